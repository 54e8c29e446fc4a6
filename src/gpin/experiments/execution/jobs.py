"""A job: one training with its scores, described by data alone."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from pydantic import Field

from gpin._core.config import Config
from gpin._core.files import checksum
from gpin._core.seeding import seeded
from gpin.data import Rows
from gpin.evaluation.grid import grid_scores
from gpin.evaluation.scores import Measurement, join_columns
from gpin.runs import RunSettings
from gpin.runs.rows import batches
from gpin.vae import VAE

__all__ = ["Job", "Scoring", "score_instances"]

RECIPE = 2
"""To be raised by every change after which a job would give other numbers, in training, in scores or in a default,
and not by one that rounds otherwise, as another machine does too."""


class Scoring(Config):
    """How a trained model is scored.

    Arguments:
        samples: K, the importance samples for each instance and proposal.
        instances: Test instances that are scored, chosen at random; none scores all.
        seed: Of that choice, which is the same for all jobs, so that they can be compared pair by pair; and of the
            noise, which begins anew with every batch and proposal.
        grid: With two latent dimensions, compare the encoder with the true posterior on a grid too.
    """

    samples: int = Field(default=100, ge=25)
    instances: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**62)
    grid: bool = False


class Job(Config):
    """What to train on which benchmark set, and how to score it; all of it decides the result.

    Arguments:
        data: The benchmark set's name.
        settings: The run's.
        scoring: Of the trained model.
    """

    data: str
    settings: RunSettings = RunSettings()
    scoring: Scoring = Scoring()

    @cached_property
    def identity(self) -> str:
        """The hash of its canonical form, by which the store knows it: of all that is not by default, and the recipe.

        An option that is added later, and does nothing by default, so leaves the results that are there where they are.
        """
        return checksum({"recipe": RECIPE, "job": self.model_dump(mode="json", exclude_defaults=True)})[:16]


@torch.no_grad()
def score_instances(vae: VAE, rows: Rows, scoring: Scoring) -> Mapping[str, Any]:
    """Scores of every instance as the columns of a table, each `(n,)`.

    `instance` is the number of the instance in the test part. The other columns are those of
    `gpin.evaluation.scores.SCORES` that can be measured from the log-likelihoods with proposals of the encoder and
    with refined ones, from the uncertainty of methods that have one, and from the grid if `scoring` asks for it.
    """
    parts = []
    for number, batch in enumerate(batches(rows)):
        x, seed = vae.check(batch), scoring.seed + 2 * number
        with seeded(seed):
            encoder = vae.log_likelihood(x, scoring.samples, "encoder")
        with seeded(seed + 1):
            refined = vae.log_likelihood(x, scoring.samples, "refined")
        with seeded(seed):
            measurement = Measurement(
                vae=vae,
                x=x,
                encoder=encoder,
                refined=refined,
                uncertainty=vae.uncertainty(x) if vae.inference.has_uncertainty else None,
                grid=grid_scores(vae, x) if scoring.grid else None,
            )
            parts.append(measurement.columns())
    columns = join_columns(parts)
    return {"instance": rows.rows, **{name: values.numpy() for name, values in columns.items()}}
