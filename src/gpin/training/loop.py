"""The training loop: Adam on the ELBO, validation after each epoch, the best weights at the end."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from gpin.data import Batches, hold_out
from gpin.errors import InputError, TrainingError
from gpin.inputs import positive_number, whole_number
from gpin.seeding import seeded
from gpin.vae import VAE

__all__ = ["Epoch", "History", "fit", "stage_beginnings", "validation_elbo"]

ADVICE = "the weights are back at the best epoch so far; a smaller learning_rate may help"


@dataclass(frozen=True)
class Epoch:
    """One epoch: the mean ELBO on training and validation data, and the seconds it took."""

    train: float
    validation: float
    seconds: float


@dataclass
class History:
    """What happened, epoch by epoch. `best` is the epoch (from 1) whose weights the model has now."""

    epochs: list[Epoch] = field(default_factory=list)
    best: int = 0

    @property
    def train(self) -> list[float]:
        """Mean training ELBO by epoch."""
        return [epoch.train for epoch in self.epochs]

    @property
    def validation(self) -> list[float]:
        """Mean validation ELBO by epoch."""
        return [epoch.validation for epoch in self.epochs]


def fit(
    vae: VAE,
    x_train: Any,
    x_val: Any = None,
    *,
    epochs: int = 50,
    batch_size: int = 128,
    learning_rate: float = 5e-4,
    seed: int = 0,
    progress: bool | None = None,
    on_epoch: Callable[[int, Epoch], None] | None = None,
) -> History:
    """Train a VAE, and leave it with the weights of its best epoch on validation data, in evaluation mode.

    Arguments:
        vae: What to train, in place.
        x_train: A tensor, an array, a `Dataset` or a `DataLoader`.
        x_val: Likewise; without it a tenth of the training data is held out, at random.
        epochs: Passes through the training data.
        batch_size: Instances a step.
        learning_rate: Adam's.
        seed: Of the order of the data, the held-out part and all noise; torch's global state is left alone.
        progress: Show a progress bar; by default where there is a terminal.
        on_epoch: Called after each epoch with its number, from 1, and its result.
    """
    if not isinstance(vae, VAE):
        raise InputError(f"the model to train must be a gpin.VAE, got {type(vae).__name__}")
    epochs, batch_size = whole_number(epochs, "epochs"), whole_number(batch_size, "batch_size")
    learning_rate, seed = positive_number(learning_rate, "learning_rate"), whole_number(seed, "seed", least=0)
    order = torch.Generator().manual_seed(seed)
    if x_val is None:
        x_train, x_val = hold_out(x_train, order)
    training = Batches(x_train, batch_size, order)
    validation = Batches(x_val, batch_size)
    for x, _ in validation:  # what is wrong with it should be said now, not after the first epoch
        vae.check(x)

    beginnings = stage_beginnings([stage.share for stage in vae.inference.stages()], epochs)
    with seeded(seed), _bar(epochs, progress) as advance:
        vae.prepare(vae.check(x) for x, _ in training)
        optimiser = torch.optim.Adam(vae.parameter_groups(learning_rate))
        history, best, top = History(), _snapshot(vae), -math.inf
        try:
            for number in range(1, epochs + 1):
                start = time.perf_counter()
                if number in beginnings:  # what was best in an earlier stage is not the model asked for
                    vae.inference.begin_stage(beginnings.index(number))
                    top = -math.inf
                train = _train_epoch(vae, training, optimiser, number)
                result = Epoch(train, validation_elbo(vae, validation, seed), time.perf_counter() - start)
                if not math.isfinite(result.validation):
                    raise TrainingError(f"epoch {number}: the validation bound is {result.validation} ({ADVICE})")
                history.epochs.append(result)
                if result.validation >= top:
                    history.best, best, top = number, _snapshot(vae), result.validation
                if on_epoch is not None:
                    on_epoch(number, result)
                advance(result)
        finally:
            vae.load_state_dict(best)
            vae.eval()
    return history


def stage_beginnings(shares: list[float], epochs: int) -> list[int]:
    """The first epoch of each stage, from 1, dividing the epochs by the stages' shares; each gets one at least.

    Example:
        >>> stage_beginnings([2.0, 1.0, 1.0], 8)
        [1, 5, 7]
    """
    if epochs < len(shares):
        raise InputError(f"this method trains in {len(shares)} stages and needs at least as many epochs, got {epochs}")
    beginnings: list[int] = []
    done = 0.0
    for index, share in enumerate(shares):
        earliest = beginnings[-1] + 1 if beginnings else 1
        latest = epochs - (len(shares) - 1 - index)
        beginnings.append(min(max(earliest, 1 + round(epochs * done / sum(shares))), latest))
        done += share
    return beginnings


def _train_epoch(vae: VAE, batches: Batches, optimiser: torch.optim.Optimizer, epoch: int) -> float:
    vae.train()
    total, count = 0.0, 0
    for number, (x, rows) in enumerate(batches, start=1):
        x = vae.check(x)
        optimiser.zero_grad(set_to_none=True)
        loss, bound = vae.inference.objective(x, vae)
        loss.backward()
        gradients = [p.grad for p in vae.parameters() if p.grad is not None]
        if not torch.isfinite(loss) or not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            raise TrainingError(_what_is_not_finite(vae, x, rows, loss, f"epoch {epoch}, batch {number}"))
        optimiser.step()
        total += bound.item() * len(x)
        count += len(x)
    return total / count


@torch.no_grad()
def validation_elbo(vae: VAE, batches: Batches, seed: int) -> float:
    """The mean ELBO over instances, with the same noise every time it is called."""
    vae.eval()
    total, count = 0.0, 0
    with seeded(seed):
        for x, _ in batches:
            total += vae.elbo(x).value.double().sum().item()
            count += len(x)
    return total / count


def _what_is_not_finite(vae: VAE, x: Tensor, rows: Tensor | None, loss: Tensor, where: str) -> str:
    """A sentence with the parameter and the rows of the data at fault."""
    gradients = ((name, p.grad) for name, p in vae.named_parameters() if p.grad is not None)
    culprits = [name for name, p in vae.named_parameters() if not torch.isfinite(p).all()]
    culprits = culprits or [name for name, grad in gradients if not torch.isfinite(grad).all()]
    with torch.no_grad():
        values = vae.inference.elbo(x, vae).value
    bad = (~torch.isfinite(values)).nonzero().flatten()
    what = f"the loss is {loss.item():g}" if not torch.isfinite(loss) else "a gradient is not finite"
    parameter = f"; first parameter at fault: {culprits[0]}" if culprits else ""
    numbers = (bad if rows is None else rows[bad.cpu()])[:5].tolist()
    data = f"; rows of the {'batch' if rows is None else 'data'} at fault: {numbers}" if numbers else ""
    return f"{where}: {what}{parameter}{data} ({ADVICE})"


def _snapshot(vae: VAE) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in vae.state_dict().items()}


@contextmanager
def _bar(epochs: int, progress: bool | None) -> Iterator[Callable[[Epoch], None]]:
    """A progress bar over epochs; yields what is called after each."""
    console = Console(stderr=True)
    if not (console.is_terminal if progress is None else progress):
        yield lambda epoch: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("ELBO train {task.fields[train]} · validation {task.fields[validation]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("epoch", total=epochs, train="…", validation="…")
        yield lambda epoch: bar.update(
            task, advance=1, train=f"{epoch.train:.1f}", validation=f"{epoch.validation:.1f}"
        )
