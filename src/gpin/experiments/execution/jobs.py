"""Jobs: the plain description of one training and its scores."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from gpin._core.config import Config
from gpin._core.files import checksum
from gpin._core.seeding import seeded
from gpin.data import Rows
from gpin.evaluation.grid import grid_scores
from gpin.evaluation.importance import LogLikelihood
from gpin.evaluation.scores import Measurement, join_columns, known_gaps
from gpin.runs import RunSettings
from gpin.runs.rows import BATCH, batches, random_rows
from gpin.vae import VAE

__all__ = ["OWN", "Job", "Scoring", "annealed_estimate", "score_instances"]

RECIPE = 2
"""Increase this with every change that gives other numbers, in training, scores or defaults, except for differences in
rounding, which occur between machines too.

Results of recipe 2 keep the epoch that is best on validation data by one of two rules: the method's own bound, in runs
that were started before `gpin.training.validation` had a score, and that score since. In seven
trainings of a VAE that were compared, both rules chose the same epoch. The predicted gap of results whose record has
`gap_learns_from_training` learns from training data too. Steps after the first are accelerated in results whose model
has the option `accelerated`, and plain in older ones; the tables say which rows these are."""

OWN = -1
"""The number of steps in a store that stands for the method's own posterior."""

LogVolume = float | Callable[[Tensor], Tensor]


class Scoring(Config):
    """How a trained model is scored.

    Arguments:
        samples: K, the number of importance samples per instance and proposal.
        instances: The number of test instances that are scored, chosen at random; None scores all.
        seed: The seed of that choice, which is the same for all jobs so that they can be compared instance by instance,
            and of the noise, which differs for every batch and proposal.
        grid: Whether the encoder is also compared with the true posterior on a grid, with two latent dimensions.
        steps: Numbers of natural-gradient steps after which the posterior is scored too, besides the method's own.
        temperatures: The number of temperatures of an annealed log-likelihood, with which the inference gap is split;
            0 does without.
        closely: The number of these instances that are scored by refined proposals, annealed chains and the grid too,
            which takes long, chosen at random; None scores all closely.
    """

    samples: int = Field(default=100, ge=25)
    instances: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**62)
    grid: bool = False
    steps: tuple[Annotated[int, Field(ge=0, le=1000)], ...] = ()
    temperatures: int = Field(default=0, ge=0)
    closely: int | None = Field(default=None, ge=1)


class Job(Config):
    """The data, settings and scoring of a run: everything that determines its result.

    Arguments:
        data: The name of the benchmark set, or a name for data of your own.
        settings: The settings of the run.
        scoring: How the trained model is scored.
        fingerprint: For data of your own: its fingerprint, which identifies it wherever it is.
        location: For data of your own: where it is, which does not determine the result.
    """

    data: str
    settings: RunSettings = RunSettings()
    scoring: Scoring = Scoring()
    fingerprint: str | None = None
    location: str | None = None

    @cached_property
    def identity(self) -> str:
        """The hash that names the job in the store, computed from the recipe and all settings that are not defaults.

        An option that is added later and has no effect by default does not change it, so older results stay valid.
        """
        job = self.model_dump(mode="json", exclude_defaults=True, exclude={"location"})
        return checksum({"recipe": RECIPE, "job": job})[:16]

    def record(self) -> dict[str, Any]:
        """The job, ready for JSON; for a benchmark set without the fields that only data of your own has."""
        absent = {name for name in ("fingerprint", "location") if getattr(self, name) is None}
        return self.model_dump(mode="json", exclude=absent)


def annealed_estimate(vae: VAE, x: Tensor, scoring: Scoring) -> LogLikelihood | None:
    """The annealed log-likelihood of x, if `scoring` asks for it."""
    if not scoring.temperatures:
        return None
    return vae.log_likelihood(x, estimator="annealed", temperatures=scoring.temperatures)


def score_instances(vae: VAE, rows: Rows, scoring: Scoring, log_volume: LogVolume | None = None) -> Mapping[str, Any]:
    """The scores of every instance as the columns of a table, each `(n,)`.

    `instance` is the number of the instance in the test part. The other columns are those of
    `gpin.evaluation.scores.SCORES` that can be measured from the log-likelihoods with proposals of the encoder and
    with refined ones, from the uncertainty of methods that have one, and from annealed chains and the grid if `scoring`
    asks for them. With the log volume of the scaling, see `Run.log_volume`, the bits per dimension are among them.

    If `scoring` has numbers of steps, the table has n rows for the method's own posterior, in which the column `steps`
    is -1, followed by n rows for the posterior after each number of steps. If not all instances are scored closely,
    the others follow in the same way, and the scores that they lack are NaN.
    """
    close = random_rows(rows, scoring.closely, scoring.seed)
    tables = _score_rows(vae, close, scoring, log_volume, closely=True, first_batch=0)
    rest = rows.chosen(np.flatnonzero(~np.isin(rows.rows, close.rows)))
    if len(rest):
        first = math.ceil(len(close) / BATCH)
        tables += _score_rows(vae, rest, scoring, log_volume, closely=False, first_batch=first)
    return {name: values.numpy() for name, values in join_columns(tables).items()}


@torch.no_grad()
def _score_rows(
    vae: VAE, rows: Rows, scoring: Scoring, log_volume: LogVolume | None, closely: bool, first_batch: int
) -> list[dict[str, Tensor]]:
    """The columns of :func:`score_instances` for some instances, one table for each posterior.

    Arguments:
        vae: The model.
        rows: The instances.
        scoring: How they are scored.
        log_volume: The log volume of the scaling, if it is known.
        closely: Whether they are scored by refined proposals, annealed chains and the grid too.
        first_batch: The number of the first batch, which determines its noise.
    """
    posteriors = [None, *scoring.steps]
    parts: dict[int | None, list[dict[str, Tensor]]] = {steps: [] for steps in posteriors}
    for number, batch in enumerate(batches(rows), first_batch):
        x, seed = vae.check(batch), scoring.seed + 2 * number
        volume = log_volume(vae.values(x)) if callable(log_volume) else log_volume
        with seeded(seed + 1):
            refined = vae.log_likelihood(x, scoring.samples, "refined") if closely else None
        with seeded(seed + 1):
            annealed = annealed_estimate(vae, x, scoring) if closely else None
        for steps in posteriors:
            with seeded(seed):
                encoder = vae.log_likelihood(x, scoring.samples, "encoder", steps=steps)
            with seeded(seed):
                measurement = Measurement(
                    vae=vae,
                    x=x,
                    encoder=encoder,
                    refined=refined,
                    annealed=annealed,
                    uncertainty=vae.uncertainty(x) if vae.inference.has_uncertainty else None,
                    gaps=known_gaps(vae, x, steps),
                    grid=grid_scores(vae, x) if scoring.grid and closely and steps is None else None,
                    log_volume=volume,
                )
                parts[steps].append(measurement.columns())
    tables = []
    for steps in posteriors:
        columns = join_columns(parts[steps])
        own = {} if not scoring.steps else {"steps": torch.full((len(rows),), OWN if steps is None else steps)}
        tables.append({"instance": torch.as_tensor(rows.rows), **own, **columns})
    return tables
