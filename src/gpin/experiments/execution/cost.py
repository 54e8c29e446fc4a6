"""The estimated cost of an experiment: runs, parameters, memory and time, from a measured step of each variant."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpin._core.threads import threads
from gpin.building import build
from gpin.data import BENCHMARKS, split_rows
from gpin.evaluation.grid import grid_scores
from gpin.experiments.execution.jobs import Job, Scoring, annealed_estimate
from gpin.experiments.protocols import Entry, variant_named
from gpin.report.numbers import duration
from gpin.report.tables import ResultTable
from gpin.training.cost import measured_seconds, seconds_of
from gpin.vae import VAE

__all__ = ["CostEstimate", "RunGroup", "estimate_cost"]

POINTS = 8
"""The number of test instances whose scores are measured."""


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seeds.

    Attributes:
        row: The name of the variant.
        data: The data set.
        latent_dim: The latent dimension.
        runs: The number of runs.
        parameters: The number of parameters of each model.
        step_seconds: The time of one training step.
        run_seconds: The time of all steps, validations and scores of one run.
    """

    row: str
    data: str
    latent_dim: int
    runs: int
    parameters: int
    step_seconds: float
    run_seconds: float


@dataclass(frozen=True)
class CostEstimate:
    """The estimated cost of some runs.

    Attributes:
        kinds: The groups of runs.
        workers: The number of runs at the same time.
        threads: The number of threads per worker.
        memory: The peak memory of this process while it measured, in bytes; a worker needs more for data and scores.
    """

    kinds: Sequence[RunGroup]
    workers: int
    threads: int
    memory: int

    @property
    def seconds(self) -> float:
        """The time of all runs, shared among the workers, and at least that of the longest run."""
        shared = sum(kind.runs * kind.run_seconds for kind in self.kinds) / self.workers
        return max([shared, *(kind.run_seconds for kind in self.kinds)])

    @property
    def runs(self) -> int:
        """The number of all runs."""
        return sum(kind.runs for kind in self.kinds)

    def record(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        kinds = [vars(kind) for kind in self.kinds]
        return {
            "runs": self.runs,
            "workers": self.workers,
            "threads": self.threads,
            "seconds": self.seconds,
            "memory_bytes": self.memory,
            "kinds": kinds,
        }

    def table(self, title: str) -> ResultTable:
        """The estimate as a table."""
        rows = [
            [
                f"{kind.data} d={kind.latent_dim} {variant_named(kind.row).title}",
                str(kind.runs),
                f"{kind.parameters:,}",
                f"{1000 * kind.step_seconds:.0f} ms",
                duration(kind.run_seconds),
                duration(kind.runs * kind.run_seconds),
            ]
            for kind in self.kinds
        ]
        notes = [
            f"{self.runs:,} runs, {duration(self.seconds)} with {_counted(self.workers, 'worker')} of "
            f"{_counted(self.threads, 'thread')} at the speed just measured on this machine. "
            f"{self.memory / 2**20:,.0f} MB for training; data and scores need more."
        ]
        return ResultTable(title, ["", "runs", "parameters", "per step", "per run", "all runs"], rows, notes=notes)


def estimate_cost(entries: Sequence[Entry], workers: int, each: int = 1) -> CostEstimate:
    """Estimate the cost of runs by measuring a training step and the scores of one run per group.

    Arguments:
        entries: The runs.
        workers: The number of runs at the same time.
        each: The number of threads per worker.
    """
    kinds: dict[tuple[str, str, int], list[Entry]] = {}
    for entry in entries:
        kinds.setdefault((entry.data, entry.row, entry.latent_dim), []).append(entry)
    with threads(each):
        measured = [_measure(same) for same in kinds.values()]
    return CostEstimate(measured, workers, each, _peak_memory())


def _measure(same: Sequence[Entry]) -> RunGroup:
    entry, job = same[0], same[0].job
    train, validation, test = _counts(job)
    model, training = job.settings.model, job.settings.training.resolved(train)
    shape = BENCHMARKS[job.data].shape
    vae = build(shape, model.method, model.latent_dim, architecture=model.architecture, seed=0, **model.options)
    x = torch.rand(training.batch_size, *shape, generator=torch.Generator().manual_seed(0))
    vae.prepare([x])
    batches = math.ceil(train / training.batch_size), math.ceil(validation / training.batch_size)
    step, epoch = measured_seconds(vae, x, batches, training.learning_rate)
    run = training.epochs * epoch + _scoring_seconds(vae, x[:POINTS], job.scoring, test)
    return RunGroup(entry.row, entry.data, entry.latent_dim, len(same), _size(vae), step, run)


def _scoring_seconds(vae: VAE, x: torch.Tensor, scoring: Scoring, test: int) -> float:
    """The time to score `test` instances, only some of them closely, at the speed measured with the instances x."""
    vae.eval()
    steps = (None, *scoring.steps)
    each = sum(seconds_of(lambda k=k: vae.log_likelihood(x, scoring.samples, "encoder", steps=k)) for k in steps)
    closely = seconds_of(lambda: vae.log_likelihood(x, scoring.samples, "refined"))
    if scoring.grid:
        closely += seconds_of(lambda: grid_scores(vae, x))
    if scoring.temperatures:
        closely += seconds_of(lambda: annealed_estimate(vae, x, scoring))
    return (test * each + min(test, scoring.closely or test) * closely) / len(x)


def _counts(job: Job) -> tuple[int, int, int]:
    """The numbers of instances for training, validation and scores, from the original data set."""
    count, test = BENCHMARKS[job.data].counts
    rows = split_rows(count, test is not None, 0)
    sizes = len(rows.train), len(rows.validation), test if rows.test is None else len(rows.test)
    limits = job.settings.data.limit, job.settings.data.validation_limit, job.scoring.instances
    counts = [min(size or 0, limit or size or 0) for size, limit in zip(sizes, limits, strict=True)]
    return counts[0], counts[1], counts[2]


def _size(vae: VAE) -> int:
    return sum(p.numel() for p in vae.parameters())


def _peak_memory() -> int:
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kilobytes elsewhere


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count != 1 else "")
