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
"""To be raised by every change after which a job would give other numbers, in training, in scores or in a default, but
not by one that only changes rounding, as another machine does too."""


class Scoring(Config):
    """How a trained model is scored.

    Arguments:
        samples: K, the number of importance samples per instance and proposal.
        instances: The number of test instances that are scored, chosen at random; None scores all.
        seed: The seed of that choice, which is the same for all jobs so that they can be compared instance by instance,
            and of the noise, which is drawn anew for every batch and proposal.
        grid: Whether the encoder is also compared with the true posterior on a grid, with two latent dimensions.
    """

    samples: int = Field(default=100, ge=25)
    instances: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**62)
    grid: bool = False


class Job(Config):
    """What to train on which benchmark set, and how to score it: everything that determines the result.

    Arguments:
        data: The name of the benchmark set.
        settings: The settings of the run.
        scoring: How the trained model is scored.
    """

    data: str
    settings: RunSettings = RunSettings()
    scoring: Scoring = Scoring()

    @cached_property
    def identity(self) -> str:
        """The hash that names the job in the store, of all settings that differ from their defaults, and the recipe.

        An option that is added later and does nothing by default does not change it, so older results stay valid.
        """
        return checksum({"recipe": RECIPE, "job": self.model_dump(mode="json", exclude_defaults=True)})[:16]


@torch.no_grad()
def score_instances(vae: VAE, rows: Rows, scoring: Scoring) -> Mapping[str, Any]:
    """The scores of every instance as the columns of a table, each `(n,)`.

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
