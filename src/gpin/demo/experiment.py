"""The experiment: the digits, the methods, and how each is trained and measured."""

import statistics
import time
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor

from gpin._core.errors import InputError
from gpin._core.inputs import check_seed
from gpin._core.seeding import seeded
from gpin.evaluation.importance import LogLikelihood
from gpin.inference import ELBO
from gpin.training import History, fit
from gpin.vae import VAE, build

__all__ = ["BATCH", "NAMES", "PROPOSALS", "Contender", "Digits", "Settings", "compete", "encoding_times", "load_digits"]

NAMES = {"vae": "VAE", "gp": "GP"}
"""The methods compared, with what to call them. The first is what the others are measured against."""

PROPOSALS = ("encoder", "refined")
"""Where the samples of a log-likelihood come from; refined ones are fitted to each digit, whatever the encoder says."""

BATCH = 128
"""Digits encoded at once when inference is timed."""


@dataclass(frozen=True)
class Settings:
    """What the demo runs with. Sizes and rates were chosen on validation digits, never on test digits."""

    epochs: int = 100
    seed: int = 0
    latent_dim: int = 16
    learning_rate: float = 1e-3
    batch_size: int = 128
    samples: int = 100
    validation: int = 200
    test: int = 400

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise InputError(f"epochs must be at least 1, got {self.epochs}")
        check_seed(self.seed)


@dataclass(frozen=True)
class Digits:
    """Handwritten digits in three parts, each `(count, 1, 8, 8)` in [0, 1], with the labels of the test part."""

    train: Tensor
    validation: Tensor
    test: Tensor
    labels: list[int]

    def sizes(self) -> str:
        """In words."""
        return f"{len(self.train):,} to train, {len(self.validation)} to validate, {len(self.test)} to test"


def load_digits(settings: Settings) -> Digits:
    """The 1,797 digits that come with scikit-learn, shuffled and split."""
    from sklearn.datasets import load_digits as bundled

    data = bundled()
    x = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(settings.seed))
    test, validation, train = order.split(
        [settings.test, settings.validation, len(x) - settings.test - settings.validation]
    )
    return Digits(x[train], x[validation], x[test], data.target[test.numpy()].tolist())


@dataclass(frozen=True)
class Contender:
    """One method: its trained model, and what it makes of the test digits.

    Attributes:
        name: In the registry of methods.
        vae: The model.
        history: Of its training.
        scores: Log-likelihoods, by where the proposals came from.
        elbo: The bound with its terms, each `(count,)`.
        seconds: Inference times of a batch, one a repeat.
    """

    name: str
    vae: VAE
    history: History
    scores: dict[str, LogLikelihood]
    elbo: ELBO
    seconds: list[float]

    @property
    def title(self) -> str:
        """What to call it."""
        return NAMES[self.name]

    @property
    def parameters(self) -> int:
        """How many numbers it has learnt."""
        return sum(p.numel() for p in self.vae.parameters())

    @property
    def training_seconds(self) -> float:
        """All epochs together."""
        return sum(epoch.seconds for epoch in self.history.epochs)

    @property
    def milliseconds(self) -> float:
        """Of inference for a batch, the median."""
        return 1000 * statistics.median(self.seconds)


def compete(digits: Digits, settings: Settings, progress: bool | None = None) -> dict[str, Contender]:
    """Train every method, then measure them all; by name.

    Arguments:
        digits: To learn and to be measured on.
        settings: The same for all.
        progress: Show progress bars; by default where there is a terminal.
    """
    trained = {name: _train(name, digits, settings, progress) for name in NAMES}
    times = encoding_times({name: vae for name, (vae, _) in trained.items()}, digits.test[:BATCH])
    contenders = {}
    for name, (vae, history) in trained.items():
        with torch.no_grad(), seeded(settings.seed):  # the same noise for every method
            scores = {source: vae.log_likelihood(digits.test, settings.samples, source) for source in PROPOSALS}
            elbo = vae.elbo(digits.test, samples=10)
        contenders[name] = Contender(name, vae, history, scores, elbo, times[name])
    return contenders


def _train(name: str, digits: Digits, settings: Settings, progress: bool | None) -> tuple[VAE, History]:
    console = Console(stderr=True, highlight=False)
    if console.is_terminal if progress is None else progress:
        console.print(f"Training the {NAMES[name]} on {len(digits.train):,} digits", style="dim")
    vae = build(digits.train.shape[1:], method=name, latent_dim=settings.latent_dim, seed=settings.seed)
    history = fit(
        vae,
        digits.train,
        digits.validation,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        progress=progress,
    )
    return vae, history


@torch.no_grad()
def encoding_times(models: dict[str, VAE], x: Tensor, repeats: int = 41, calls: int = 5) -> dict[str, list[float]]:
    """Seconds that each model takes to encode x, one number a repeat; the models take turns."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for repeat in range(repeats + 1):
        for name, vae in models.items():
            start = time.perf_counter()
            for _ in range(calls):
                vae.encode(x)
            if repeat > 0:  # the first is for warming up
                times[name].append((time.perf_counter() - start) / calls)
    return times
