"""A trained run with its scores on test instances, which training never saw.

The test part is read in batches, so that it is never in memory as a whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.messages import Tell
from gpin.data import DataSet, Scaling
from gpin.evaluation.importance import LogLikelihood
from gpin.evaluation.scores import Columns, with_derived
from gpin.inference import ELBO
from gpin.runs.evaluate import Evaluation, evaluate
from gpin.runs.folder import Run
from gpin.runs.rows import random_rows
from gpin.training import History
from gpin.vae import VAE

__all__ = ["ScoredRun", "column_moments", "score_run"]


@dataclass(frozen=True, eq=False)
class ScoredRun:
    """A run with its best weights, and what they make of the test part.

    Attributes:
        name: Short, and no other run's on the same page.
        run: As its folder describes it.
        vae: The model.
        history: Of its training; empty where the folder no longer has it.
        finished: Whether training came to its end.
        encoder: Scores of all N test instances, by proposals of the encoder: those of `gpin evaluate`.
        chosen: Which test instances have refined scores too, `(n,)`, ascending.
        refined: Scores of these by proposals fitted to each.
    """

    name: str
    run: Run
    vae: VAE
    history: History
    finished: bool
    encoder: Evaluation
    chosen: Tensor
    refined: Evaluation

    @property
    def parameters(self) -> int:
        """How many numbers it has learnt."""
        return sum(p.numel() for p in self.vae.parameters())

    def likelihood(self, proposal: str) -> LogLikelihood:
        """Log-likelihoods by where the proposals came from, "encoder" or "refined"."""
        return (self.encoder if proposal == "encoder" else self.refined).log_likelihood

    @property
    def uncertainty(self) -> Tensor | None:
        """The uncertainty of the encoder, `(N,)`; None for a method that has none."""
        return self.encoder.columns.get("uncertainty")

    @cached_property
    def of_chosen(self) -> Columns:
        """Scores of the chosen instances, each `(n,)`: all that either proposal gives, and what both together give."""
        encoder = {name: values[self.chosen] for name, values in self.encoder.columns.items()}
        return with_derived({**self.refined.columns, **encoder})

    def column(self, score: str) -> Tensor | None:
        """A score of all test instances, or of the chosen ones if all do not have it; None for a run without it."""
        return self.encoder.columns.get(score, self.of_chosen.get(score))


@torch.no_grad()
def score_run(
    name: str, run: Run, data: DataSet, *, samples: int, limit: int | None, seed: int, tell: Tell
) -> ScoredRun:
    """Measure a run's best weights, with the same noise for every run.

    Arguments:
        name: What to call it.
        run: What to measure.
        data: Its data.
        samples: K, the proposals of a log-likelihood.
        limit: Test instances that get refined scores, at most, chosen at random.
        seed: Of all noise and of the choice.
        tell: Called with each sentence that the user should read.
    """
    vae = run.load(tell).to(device_named(None))
    history, finished = _history(run, tell)
    few, volume = random_rows(data.test, limit, seed), run.log_volume
    encoder = evaluate(vae, data.test, samples=samples, seed=seed, log_volume=volume)
    refined = evaluate(vae, few, samples=samples, proposal="refined", seed=seed, log_volume=volume)
    return ScoredRun(
        name,
        run,
        vae.cpu(),
        history,
        finished,
        _evaluation_on_cpu(encoder),
        torch.from_numpy(np.flatnonzero(np.isin(data.test.rows, few.rows))),
        _evaluation_on_cpu(refined),
    )


def _history(run: Run, tell: Tell) -> tuple[History, bool]:
    """What happened in training, and whether it is finished; a saved model is, whatever became of the checkpoints."""
    try:
        history, finished = run.history(tell)
    except InputError as error:
        tell(f"{error}; the page does without the history of its training")
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
    """Mean and standard deviation of every column in the units of the data, from batches in those of the model."""
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for part in parts:
        x, size, total = part.double(), len(part), count + len(part)
        own = x.mean(0)
        squares = squares + (x - own).square().sum(0) + (own - mean).square() * (count * size / total)
        mean, count = mean + (own - mean) * (size / total), total
    offset, scale = np.asarray(scaling.offset), np.asarray(scaling.scale)
    return mean.numpy() * scale + offset, (squares / count).sqrt().numpy() * scale
