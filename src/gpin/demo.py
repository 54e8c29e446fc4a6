"""`gpin demo`: a VAE and a GP encoder on scikit-learn's digits, trained, compared, pictured and written up."""

import json
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text
from torch import Tensor

from gpin.errors import InputError
from gpin.estimators import LogLikelihood
from gpin.inference import ELBO
from gpin.report import Page, Table, Tile, plots
from gpin.training import History, fit
from gpin.vae import VAE, build, write_whole

__all__ = ["Contender", "Digits", "Result", "Settings", "compose", "load_digits", "run", "show"]

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
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must lie between 0 and 2^63 − 1, got {self.seed}")


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


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation over instances, with its standard error (Fisher's z, Bonett & Wright 2000)."""

    rho: float
    stderr: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Correlation":
        """Of two numbers of every instance."""
        from scipy.stats import spearmanr

        rho = float(spearmanr(x.numpy(), y.numpy()).statistic)
        return cls(rho, (1 - rho**2) * math.sqrt((1 + rho**2 / 2) / (len(x) - 3)))

    def __str__(self) -> str:
        return f"{self.rho:.2f} ± {self.stderr:.2f}"


@dataclass(frozen=True)
class Row:
    """A line of the comparison: what is measured, which way is better, how to read it, and each method's value."""

    label: str
    better: str
    note: str
    cells: list[str]

    def reading(self) -> str:
        """The note, and which way is better."""
        return self.note + (f"; {self.better} is better" if self.better else "")


@dataclass(frozen=True)
class Result:
    """What came out of the demo.

    Attributes:
        settings: What it ran with.
        digits: The data.
        contenders: By method.
        uncertainty: Of the GP encoder for each test digit, `(count,)`.
        folder: Where report and models are.
    """

    settings: Settings
    digits: Digits
    contenders: dict[str, Contender]
    uncertainty: Tensor
    folder: Path

    def difference(self, proposal: str) -> tuple[float, float]:
        """Log-likelihood by the GP model less that by the VAE, paired: the mean over digits, and its standard error."""
        vae, gp = (self.contenders[name].scores[proposal].values for name in ("vae", "gp"))
        return (gp - vae).double().mean().item(), _stderr(gp - vae)

    @property
    def gap(self) -> Tensor:
        """How much the GP encoder's bound leaves out, for each test digit: refined log-likelihood − ELBO.

        Without the weights' part of the bound, which is the same for all.
        """
        gp = self.contenders["gp"]
        return gp.scores["refined"].values - (gp.elbo.value + gp.elbo.weight_kl)

    @property
    def gap_by_uncertainty(self) -> Correlation:
        """How well uncertainty, known from one pass of the encoder, ranks the gap."""
        return Correlation.of(self.uncertainty, self.gap)

    @property
    def gap_by_elbo(self) -> Correlation:
        """How well the negative ELBO, which needs the decoder too, ranks it: the baseline."""
        return Correlation.of(-self.contenders["gp"].elbo.value, self.gap)

    def time_ratio(self, contender: Contender) -> float:
        """Inference time relative to the VAE's: the median over interleaved repeats."""
        reference = self.contenders["vae"].seconds
        return statistics.median(a / b for a, b in zip(contender.seconds, reference, strict=True))

    def record(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        sizes = {name: len(getattr(self.digits, name)) for name in ("train", "validation", "test")}
        order = self.uncertainty.argsort()
        return {
            "data": {"name": "scikit-learn digits", "shape": list(self.digits.train.shape[1:]), **sizes},
            "settings": asdict(self.settings),
            "methods": {name: self._record_of(contender) for name, contender in self.contenders.items()},
            "difference": {
                "what": "test log-likelihood, gp − vae, paired",
                **{proposal: _mean_record(*self.difference(proposal)) for proposal in PROPOSALS},
                "sentence": self.verdict(),
            },
            "uncertainty": {
                "most_certain": [self._digit(i) for i in order[:6].tolist()],
                "least_certain": [self._digit(i) for i in order.flip(0)[:6].tolist()],
                "spearman_with_gap": _finite(self.gap_by_uncertainty.rho),
                "spearman_with_gap_stderr": _finite(self.gap_by_uncertainty.stderr),
                "spearman_of_negative_elbo_with_gap": _finite(self.gap_by_elbo.rho),
            },
            "files": {"report": str(self.folder / "report.html"), "models": str(self.folder / "models")},
        }

    def _record_of(self, contender: Contender) -> dict[str, Any]:
        elbo = contender.elbo
        return {
            "log_likelihood": {proposal: _score_record(contender.scores[proposal]) for proposal in PROPOSALS},
            "elbo": _finite(elbo.value.mean().item()),
            "elbo_weight_kl": _finite(elbo.weight_kl.mean().item()),
            "inference_ms": contender.milliseconds,
            "inference_time_ratio": self.time_ratio(contender),
            "parameters": contender.parameters,
            "best_epoch": contender.history.best,
            "training_seconds": contender.training_seconds,
        }

    def _digit(self, index: int) -> dict[str, Any]:
        value = self.uncertainty[index].item()
        return {"index": index, "label": self.digits.labels[index], "uncertainty": _finite(value)}

    def rows(self) -> list[Row]:
        """The comparison, line by line."""
        contenders = list(self.contenders.values())
        reference = contenders[0]
        return [
            *self._score_rows(
                "Test log-likelihood", "nats a digit ± standard error, from {} proposals of the encoder", "encoder"
            ),
            *self._score_rows("Refined log-likelihood", "the same, from {} proposals fitted to each digit", "refined"),
            Row(
                "ELBO",
                "higher",
                "the bound that training raises; ± standard error",
                [_plus_minus(c.elbo.value.mean().item(), _stderr(c.elbo.value)) for c in contenders],
            ),
            Row(
                "· cost of random weights",
                "",
                "for having a distribution of weights; already taken off above",
                [f"{c.elbo.weight_kl.mean():.2f}" for c in contenders],
            ),
            Row(
                "Inference time",
                "lower",
                f"to encode a batch of {BATCH}; the {reference.title} takes {reference.milliseconds:.2f} ms",
                [f"{self.time_ratio(c):.2f}×" for c in contenders],
            ),
            Row("Parameters", "", "of encoder and decoder", [f"{c.parameters:,}" for c in contenders]),
        ]

    def _score_rows(self, label: str, note: str, proposal: str) -> list[Row]:
        k, scores = self.settings.samples, [c.scores[proposal] for c in self.contenders.values()]
        return [
            Row(label, "higher", note.format(k), [_plus_minus(score.mean, score.stderr) for score in scores]),
            Row(
                "· Monte-Carlo error",
                "lower",
                "what more proposals would remove",
                [f"± {score.mean_mc_error:.2f}" for score in scores],
            ),
            Row(
                f"· effective samples of {k}",
                "higher",
                "how many of them count; median",
                [f"{score.ess.median():.1f}" for score in scores],
            ),
            Row(
                "· digits with k̂ > 0.7",
                "lower",
                "share where too few count",
                [f"{100 * _share_above(score):.0f}%" for score in scores],
            ),
        ]

    def verdict(self) -> str:
        """Which model is better, if that can be said."""
        encoder, refined = (verdict(*self.difference(proposal)) for proposal in PROPOSALS)
        return (
            f"GP − VAE, digit by digit, over {len(self.digits.test)} test digits: {encoder} "
            f"With refined proposals: {refined} "
            "One run each: the errors cover the choice of test digits only, and another seed can turn the sign."
        )

    def caution(self) -> str:
        """How far to believe the estimates."""
        encoder, refined = (
            100 * max(_share_above(c.scores[proposal]) for c in self.contenders.values()) for proposal in PROPOSALS
        )
        if encoder < 10 and refined < 10:
            return "k̂ is below 0.7 for nearly all digits, so the estimates can be trusted."
        return (
            f"k̂ exceeds 0.7 for up to {encoder:.0f}% of the digits with the encoder’s proposals, and {refined:.0f}% "
            "with refined ones. There the estimates are lower bounds: the first reflect how well an encoder proposes "
            "as much as how good its model is, the second much more the model alone."
        )

    def relation(self) -> str:
        """What the uncertainty says about the gap, in words that claim no more than it shows."""
        found, baseline = self.gap_by_uncertainty, self.gap_by_elbo
        if not abs(found.rho) >= 2 * found.stderr:
            words = "no relation is shown"
        else:
            strength = "weakly" if abs(found.rho) < 0.3 else "moderately" if abs(found.rho) < 0.6 else "strongly"
            words = f"it is {strength} {'higher' if found.rho > 0 else 'lower'} where the gap is larger"
        return (
            f"Uncertainty against the encoder’s gap (refined log-likelihood − ELBO): Spearman correlation {found} over "
            f"{len(self.uncertainty)} test digits, so {words}. The negative ELBO, the baseline, has {baseline}."
        )


def verdict(mean: float, stderr: float) -> str:
    """A paired difference GP − VAE in words that claim no more than it shows.

    Example:
        >>> verdict(0.2, 0.4)
        '+0.20 ± 0.40 nats, not significant (0.5 standard errors).'
    """
    errors = abs(mean) / stderr if stderr > 0 else 0.0
    words = "not significant" if errors < 2 else f"in favour of the {'GP model' if mean > 0 else 'plain VAE'}"
    return f"{mean:+.2f} ± {stderr:.2f} nats, {words} ({errors:.1f} standard errors).".replace("-", "−")


# Run -------------------------------------------------------------------------------------------------


def run(folder: Path, settings: Settings | None = None, progress: bool | None = None) -> Result:
    """Train and compare, and write the report, the figures, the results and the models into a folder.

    Arguments:
        folder: Made where it is missing; files of an earlier demo in it are replaced.
        settings: By default those of about a minute.
        progress: Show progress bars; by default where there is a terminal.
    """
    settings = settings or Settings()
    for part in (folder, folder / "figures", folder / "models"):
        part.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass  # better to fail now than after a minute of training
    with _one_thread():
        digits = load_digits(settings)
        result = _compare(_train(digits, settings, folder, progress), digits, settings, folder)
        _write(result)
    return result


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch on one thread: the networks are so small that two would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(digits: Digits, settings: Settings, folder: Path, progress: bool | None) -> dict[str, tuple[VAE, History]]:
    console = Console(stderr=True, highlight=False)
    trained = {}
    for name, title in NAMES.items():
        if console.is_terminal if progress is None else progress:
            console.print(f"Training the {title} on {len(digits.train):,} digits", style="dim")
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
        vae.save(folder / "models" / name)
        trained[name] = (vae, history)
    return trained


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


@torch.no_grad()
def _compare(trained: dict[str, tuple[VAE, History]], digits: Digits, settings: Settings, folder: Path) -> Result:
    times = encoding_times({name: vae for name, (vae, _) in trained.items()}, digits.test[:BATCH])
    contenders = {}
    for name, (vae, history) in trained.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)  # the same noise for every method
            scores = {source: vae.log_likelihood(digits.test, settings.samples, source) for source in PROPOSALS}
            elbo = vae.elbo(digits.test, samples=10)
        contenders[name] = Contender(name, vae, history, scores, elbo, times[name])
    uncertainty = contenders["gp"].vae.uncertainty(digits.test).total
    return Result(settings, digits, contenders, uncertainty, folder)


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


# The terminal ----------------------------------------------------------------------------------------


def show(result: Result, console: Console) -> None:
    """Print the comparison, the most and least certain digits, and where the report is."""
    settings = result.settings
    console.print(
        f"\nHandwritten digits of 8×8 pixels: {result.digits.sizes()}.\n{settings.latent_dim} latent dimensions, "
        f"{settings.epochs} epochs each, seed {settings.seed}.\n",
        style="dim",
    )
    table = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    for contender in result.contenders.values():
        table.add_column(contender.title, justify="right", no_wrap=True)
    table.add_column("better", style="dim")
    for row in result.rows():
        table.add_row(Text(row.label), *row.cells, row.better)
    console.print(table)
    console.print()
    console.print(result.verdict())
    console.print(result.caution(), style="dim")
    order = result.uncertainty.argsort()
    _show_digits(result, order[:6], "Test digits that the GP encoder is most certain of", console)
    _show_digits(result, order.flip(0)[:6], "and least certain of", console)
    console.print(f"\n{result.relation()}", style="dim")
    report = Text.assemble("\nReport: ", (str(result.folder / "report.html"), "bold"))
    console.print(report, soft_wrap=True)


def _show_digits(result: Result, chosen: Tensor, title: str, console: Console) -> None:
    console.print(f"\n{title}", style="bold")
    coloured = console.color_system is not None and not console.no_color
    for line in half_blocks(result.digits.test[chosen, 0].numpy(), coloured):
        console.print(Text("  ").append(line))
    labels = [f"a {result.digits.labels[i]}" for i in chosen.tolist()]
    values = [f"{result.uncertainty[i].item():#.2g}" for i in chosen.tolist()]
    for cells in (labels, values):
        console.print(Text("  " + "   ".join(f"{cell:^8}" for cell in cells).rstrip(), style="dim"))


def half_blocks(images: np.ndarray, coloured: bool, gap: str = "   ") -> list[Text]:
    """Grey images `(count, height, width)` side by side, two rows of pixels to a line of text.

    Without colours a pixel is either on or off.
    """
    lines = []
    for top in range(0, images.shape[1] - 1, 2):
        line = Text()
        for i, image in enumerate(images):
            line.append(gap if i else "")
            for upper, lower in zip(image[top], image[top + 1], strict=True):
                if coloured:
                    line.append("▀", style=f"{_grey(upper)} on {_grey(lower)}")
                else:
                    line.append(" ▄▀█"[2 * int(upper > 0.5) + int(lower > 0.5)])
        lines.append(line)
    return lines


def _grey(value: float) -> str:
    level = round(255 * min(max(float(value), 0.0), 1.0))
    return f"#{level:02x}{level:02x}{level:02x}"


# The report ------------------------------------------------------------------------------------------


def compose(result: Result) -> Page:
    """The page that tells the story of a result; below each figure, how to read it."""
    page = Page(
        "A VAE and a GP encoder on handwritten digits",
        lead=[
            "Two variational autoencoders learnt the same small images; they differ only in the encoder, the network "
            "that guesses the hidden code of an image. The VAE’s encoder gives one answer; the GP encoder’s is a "
            "random function with a Gaussian-process prior, so that it also says how far to trust it."
        ],
        foot="Made by gpin demo. The page needs nothing else: it can be mailed, printed and kept as it is.",
    )
    digits, contenders = result.digits, list(result.contenders.values())
    each = _one_of_each(digits.labels)

    section = page.section("Which model is better?")
    section.table(
        Table(
            ["", *(c.title for c in contenders)],
            [[f"{row.label}\n{row.reading()}", *row.cells] for row in result.rows()],
            series=True,
        )
    )
    section.text(result.verdict(), kind="key")
    section.text(
        "The log-likelihood is the score: how probable the model finds digits that it has never seen. It cannot be "
        "computed, only estimated from proposed codes: those of the encoder, or better ones, found for each digit by "
        "four Gauss–Newton steps. The effective samples say how many proposals matter; k̂ warns where too few do. "
        + result.caution(),
        kind="note",
    )

    section = page.section("How they learnt")
    section.drawing(plots.svg(_curves(result)), alt="Learning curves: the ELBO of each model by epoch.")
    section.text(
        "The ELBO by epoch, on validation digits (solid) and training digits (dashed). A dot marks the epoch whose "
        "weights were kept, the best on validation digits. Where dashed and solid part, a model begins to learn its "
        "training digits by heart. The GP’s bound is lower by what it pays for its random weights, so compare heights "
        "within a method, not between methods.",
        kind="note",
    )

    section = page.section("Reconstructions")
    rows = [("Digit", digits.test[each]), *((c.title, c.vae.reconstruct(digits.test[each])) for c in contenders)]
    section.strips(
        (title, plots.image_png(plots.image_grid(images, columns=len(each)), scale=4), f"{title}: one image a class")
        for title, images in rows
    )
    section.text(
        f"Test digits, and each painted again from the {result.settings.latent_dim} numbers that the encoder made of "
        "it. Blur is what the numbers did not keep.",
        kind="note",
    )

    section = page.section("Samples")
    section.pictures((c.title, _sample_grid(c, result, scale=4), f"Samples of the {c.title}") for c in contenders)
    section.text(
        "Digits that nobody wrote: each model paints from a code drawn at random. The more of them one can read, the "
        "better the model knows what digits look like.",
        kind="note",
    )

    section = page.section("What the GP encoder is sure of")
    section.tiles(_tiles(result))
    section.text(
        f"Test digits from the least uncertain to the most, at evenly spaced ranks among all {len(digits.test)}: the "
        "digit, what the GP model makes of it, and its uncertainty. Uncertainty is the variance of the encoder’s own "
        "answer, summed over the latent dimensions; it comes with the answer, from one pass through the encoder. See "
        "for yourself whether the last look odder than the first.",
        kind="note",
    )

    section = page.section("Does uncertainty find the difficult digits?")
    section.drawing(plots.svg(_scatter(result)), alt="Uncertainty against the gap, a point for every test digit.")
    section.text(result.relation(), kind="key")
    section.text(
        "Each point is a test digit. Its gap is the refined log-likelihood less the ELBO: what the encoder’s answer "
        "leaves out. The line joins the medians of ten groups of equal size; where uncertainty finds the difficult "
        "digits, it rises. The negative ELBO is the baseline to beat; it needs the decoder as well, and has an "
        "advantage, since it is part of the gap itself.",
        kind="note",
    )

    page.section("Settings").table(Table(["Setting", "Value"], _settings_rows(result), numeric=False))
    return page


def _settings_rows(result: Result) -> list[list[str]]:
    settings, contenders = result.settings, list(result.contenders.values())
    config = contenders[0].vae.config
    assert config is not None  # it was built from one
    network = config.architecture
    return [
        ["Data", f"digits of scikit-learn, 8×8 pixels in [0, 1]: {result.digits.sizes()}"],
        *([c.title, type(c.vae.inference).title] for c in contenders),
        ["Latent dimensions", str(settings.latent_dim)],
        ["Likelihood", f"{config.likelihood.kind}, variance {config.likelihood.variance}"],
        ["Network", f"stride-2 convolutions of {network.channels} channels, then {network.width} units; mirrored"],
        ["Training", f"Adam at {settings.learning_rate:g}, batches of {settings.batch_size}, {settings.epochs} epochs"],
        *(
            [f"Kept of the {c.title}", f"epoch {c.history.best} ({c.training_seconds:.0f} s in all)"]
            for c in contenders
        ),
        ["Seed", str(settings.seed)],
        ["Versions", ", ".join(f"{name} {number}" for name, number in versions().items())],
    ]


def versions() -> dict[str, str]:
    """What a result depends on."""
    names = ("gpin", "torch", "numpy", "scipy", "scikit-learn", "matplotlib")
    return {"Python": platform.python_version(), **{name: version(name) for name in names}}


def _write(result: Result) -> None:
    """The report, the results and every figure, into the result's folder."""
    folder, contenders = result.folder, list(result.contenders.values())
    chosen = result.digits.test[_one_of_each(result.digits.labels)]
    rebuilt = [c.vae.reconstruct(chosen) for c in contenders]
    figures = {
        "uncertainty": uncertainty_figure(result),
        "curves": plots.png(_curves(result)),
        "gap": plots.png(_scatter(result)),
        "reconstructions": plots.image_png(plots.pairs(chosen, *rebuilt), scale=8),
        **{f"samples-{c.name}": _sample_grid(c, result, scale=8) for c in contenders},
    }
    for name, content in figures.items():
        write_whole(folder / "figures" / f"{name}.png", content)
    write_whole(folder / "results.json", json.dumps(result.record(), indent=2, ensure_ascii=False).encode())
    write_whole(folder / "report.html", compose(result).html().encode())


def uncertainty_figure(result: Result) -> bytes:
    """The README's picture, a PNG 1000 pixels wide: digits from certain to uncertain with their reconstructions."""
    test = result.digits.test
    figure = plots.ordered_strip(
        test,
        result.uncertainty,
        result.contenders["gp"].vae.reconstruct(test),
        columns=12,
        rows=2,
        title="Test digits, the GP encoder’s reconstructions below, and its uncertainty above",
    )
    return plots.png(figure, dpi=100)


def _curves(result: Result) -> Figure:
    contenders = result.contenders.values()
    lines = {c.title: {"validation": c.history.validation, "training": c.history.train} for c in contenders}
    return plots.curves(lines, "epoch", "ELBO, nats a digit", {c.title: c.history.best for c in contenders})


def _scatter(result: Result) -> Figure:
    index = list(result.contenders).index("gp")
    return plots.scatter(
        result.uncertainty, result.gap, "uncertainty of the GP encoder", "gap, nats", index=index, log_x=True
    )


def _tiles(result: Result) -> list[Tile]:
    chosen = plots.even_ranks(result.uncertainty, 36).tolist()
    images = result.digits.test[chosen]
    rebuilt = result.contenders["gp"].vae.reconstruct(images)
    tiles = []
    for i, image, again in zip(chosen, images, rebuilt, strict=True):
        value = result.uncertainty[i].item()
        pictures = [plots.image_png(plots.image_grid(one[None], columns=1)) for one in (image, again)]
        alt = f"A {result.digits.labels[i]} and its reconstruction, uncertainty {value:#.2g}"
        tiles.append(Tile(pictures, alt, f"{value:#.2g}"))
    return tiles


def _sample_grid(contender: Contender, result: Result, scale: int) -> bytes:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(result.settings.seed)
        images = contender.vae.sample(40)
    return plots.image_png(plots.image_grid(images, columns=8), scale)


def _one_of_each(labels: Sequence[int]) -> list[int]:
    """Where each label occurs first, in the order of the labels."""
    return [labels.index(label) for label in sorted(set(labels))]


def _stderr(values: Tensor) -> float:
    return values.double().std().item() / math.sqrt(len(values))


def _share_above(likelihood: LogLikelihood) -> float:
    """Of instances with k̂ > 0.7."""
    return (likelihood.khat > 0.7).double().mean().item()


def _plus_minus(mean: float, error: float) -> str:
    return f"{mean:.2f} ± {error:.2f}".replace("-", "−")


def _score_record(score: LogLikelihood) -> dict[str, Any]:
    return {
        **_mean_record(score.mean, score.stderr),
        "mc_error": _finite(score.mean_mc_error),
        "samples": score.samples,
        "effective_sample_size": _finite(score.ess.median().item()),
        "khat_above_0.7": _share_above(score),
    }


def _mean_record(mean: float, stderr: float) -> dict[str, Any]:
    return {"mean": _finite(mean), "stderr": _finite(stderr)}


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
