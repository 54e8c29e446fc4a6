"""A trained run with its scores on test instances.

The test part is read in batches, so that it is never in memory as a whole.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.messages import Tell
from gpin.data import DataSet, Rows, Scaling
from gpin.evaluation.calibration import LEAST, Coverage
from gpin.evaluation.importance import LogLikelihood
from gpin.evaluation.scores import Columns, with_derived
from gpin.inference import ELBO
from gpin.runs.calibration import posteriors
from gpin.runs.evaluate import Evaluation, evaluate
from gpin.runs.folder import Run
from gpin.runs.rows import OnStage, conditions_of, random_rows
from gpin.training import History
from gpin.vae import VAE

__all__ = ["ScoredRun", "TrainedRun", "column_moments", "open_trained", "score_run"]

SIMULATIONS = 300
"""The largest number of simulated instances that show whether the posteriors are calibrated."""


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run with its best weights.

    Attributes:
        name: A short name, unique on the page.
        run: The run as its folder describes it.
        vae: The model.
        history: The history of the training; empty if it is no longer in the folder.
        finished: Whether training is finished.
    """

    name: str
    run: Run
    vae: VAE
    history: History
    finished: bool

    @property
    def parameters(self) -> int:
        """The number of parameters of the model."""
        return sum(p.numel() for p in self.vae.parameters())


@dataclass(frozen=True, eq=False)
class ScoredRun(TrainedRun):
    """A run with its best weights and their scores on the test part.

    Attributes:
        encoder: The scores of all N test instances with the encoder's proposals, as in `gpin evaluate`.
        chosen: The indices of the test instances that also have refined scores, `(n,)`, ascending.
        refined: The scores of these instances with refined proposals.
        coverage: The coverage of its posteriors for simulated instances; empty if it cannot be determined.
    """

    encoder: Evaluation
    chosen: Tensor
    refined: Evaluation
    coverage: Sequence[Coverage] = ()

    def likelihood(self, proposal: str) -> LogLikelihood:
        """The log-likelihoods with one kind of proposal, "encoder" or "refined"."""
        return (self.encoder if proposal == "encoder" else self.refined).log_likelihood

    @property
    def uncertainty(self) -> Tensor | None:
        """The uncertainty of the encoder, `(N,)`; None for a method that has none."""
        return self.encoder.columns.get("uncertainty")

    @property
    def gap(self) -> Tensor | None:
        """The estimated gap of the encoder in nats, `(N,)`; None for a decoder that cannot be differentiated."""
        return self.encoder.columns.get("estimated_gap")

    @cached_property
    def of_chosen(self) -> Columns:
        """The scores of the chosen instances, each `(n,)`: those of either proposal, and those that need both."""
        encoder = {name: values[self.chosen] for name, values in self.encoder.columns.items()}
        return with_derived({**self.refined.columns, **encoder})

    def columns_of(self, score: str) -> Columns | None:
        """All scores of the test instances that have this one: all of them or the chosen ones; None if none has it."""
        return next((found for found in (self.encoder.columns, self.of_chosen) if score in found), None)


def open_trained(name: str, run: Run, tell: Tell) -> TrainedRun:
    """A run with its best weights, on the CPU."""
    history, finished = _history(run, tell)
    return TrainedRun(name, run, run.load(tell).cpu(), history, finished)


@torch.no_grad()
def score_run(
    name: str,
    run: Run,
    data: DataSet,
    *,
    samples: int,
    limit: int | None,
    seed: int,
    tell: Tell,
    on_stage: OnStage = lambda what, done, total: None,
) -> ScoredRun:
    """Score a run's best weights, with the same noise for every run.

    Arguments:
        name: The name of the run on the page.
        run: The run to score.
        data: The data of the run.
        samples: K, the number of proposals for each log-likelihood.
        limit: The largest number of test instances with refined scores, chosen at random.
        seed: The seed of all noise and of the choice of instances.
        tell: Called with each message for the user.
        on_stage: Called with what is being done, the number of instances done and their total.
    """
    vae = run.load(tell).to(device_named(None))
    history, finished = _history(run, tell)
    chosen, volume = random_rows(data.test, limit, seed), run.log_volume

    def scores(rows: Rows, proposal: str) -> Evaluation:
        def on_batch(done: int, total: int) -> None:
            on_stage(f"scoring {name} with {proposal} proposals", done, total)

        on_batch(0, len(rows))
        return _evaluation_on_cpu(
            evaluate(vae, rows, samples=samples, proposal=proposal, seed=seed, log_volume=volume, on_batch=on_batch)
        )

    encoder, refined = scores(data.test, "encoder"), scores(chosen, "refined")
    on_stage(f"measuring the coverage of {name}", 0, 1)
    return ScoredRun(
        name,
        run,
        vae.cpu(),
        history,
        finished,
        encoder,
        torch.from_numpy(np.flatnonzero(np.isin(data.test.rows, chosen.rows))),
        refined,
        _coverage(vae, data, SIMULATIONS if limit is None else max(LEAST, min(limit, SIMULATIONS)), seed),
    )


def _coverage(vae: VAE, data: DataSet, count: int, seed: int) -> list[Coverage]:
    """The coverage of all posteriors but the resampled one, without those that need what the decoder cannot do."""
    found, y = [], conditions_of(vae, data.test, count)
    for arguments in posteriors(vae):
        if arguments["posterior"] != "resampled":
            with suppress(InputError):
                found.append(vae.coverage(count, **arguments, y=y, seed=seed))
    return found


def _history(run: Run, tell: Tell) -> tuple[History, bool]:
    """The history of the training and whether it is finished, which a saved model is even without checkpoints."""
    try:
        history, finished = run.history(tell)
    except InputError as error:
        tell(f"{error}; the page is written without the history of its training")
        history, finished = History(), False
    return history, finished or (not history.epochs and (run.folder / "model").exists())


TensorsT = TypeVar("TensorsT", ELBO, LogLikelihood)


def _on_cpu(found: TensorsT) -> TensorsT:
    values: dict[str, Any] = {field.name: getattr(found, field.name) for field in fields(found)}
    moved: dict[str, Any] = {name: value.cpu() for name, value in values.items() if isinstance(value, Tensor)}
    return replace(found, **moved)


def _evaluation_on_cpu(found: Evaluation) -> Evaluation:
    return replace(found, log_likelihood=_on_cpu(found.log_likelihood), elbo=_on_cpu(found.elbo))


def column_moments(parts: Iterable[Tensor], scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
    """The mean and standard deviation of every column in the units of the data, from batches in model units."""
    if scaling.columns or scaling.missing:
        values = np.concatenate([scaling.undo(part) for part in parts])
        return np.nanmean(values, 0), np.nanstd(values, 0)
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for part in parts:
        x, size, total = part.double(), len(part), count + len(part)
        own = x.mean(0)
        squares = squares + (x - own).square().sum(0) + (own - mean).square() * (count * size / total)
        mean, count = mean + (own - mean) * (size / total), total
    offset, scale = np.asarray(scaling.offset), np.asarray(scaling.scale)
    return mean.numpy() * scale + offset, (squares / count).sqrt().numpy() * scale
