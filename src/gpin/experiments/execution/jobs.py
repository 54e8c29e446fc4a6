"""A job: one training with its scores, described by data alone."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from gpin._core.config import Config
from gpin._core.files import checksum
from gpin._core.seeding import seeded
from gpin.data import Rows
from gpin.evaluation.grid import grid_scores
from gpin.runs import RunSettings
from gpin.runs.apply import batches, knows_uncertainty
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

    `instance`, its number in the test part; by proposals of the encoder `log_likelihood`, `elbo`, `ess`, `khat` and
    `mc_error`, and by proposals fitted to each instance the same with `refined_` before; `uncertainty`,
    `uncertainty_f` and `uncertainty_h` of methods that know; with a grid, `log_evidence`, `kl` and `best_kl`, see
    `gpin.evaluation.grid`.
    """
    columns: dict[str, list[Tensor]] = {}
    uncertain = knows_uncertainty(vae, rows)

    def add(**values: Tensor) -> None:
        for name, value in values.items():
            columns.setdefault(name, []).append(value.double().cpu())

    for number, x in enumerate(batches(rows)):
        for before, proposal, seed in (("", "encoder", 2 * number), ("refined_", "refined", 2 * number + 1)):
            with seeded(scoring.seed + seed):
                found = vae.log_likelihood(x, scoring.samples, proposal)
            add(**{before + "log_likelihood": found.values, before + "elbo": found.elbo})
            add(**{before + name: getattr(found, name) for name in ("ess", "khat", "mc_error")})
        if uncertain:
            said = vae.uncertainty(x)
            add(uncertainty=said.total, uncertainty_f=said.mean_part, uncertainty_h=said.std_part)
        if scoring.grid:
            with seeded(scoring.seed + 2 * number):
                add(**grid_scores(vae, x))
    return {"instance": rows.rows, **{name: torch.cat(parts).numpy() for name, parts in columns.items()}}
