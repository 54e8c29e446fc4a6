"""The split of a run's inference gap, on test data and on training data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gpin._core.seeding import seeded
from gpin.data import DataSet
from gpin.evaluation.gaps import GAPS, Gaps
from gpin.evaluation.scores import mean_and_error
from gpin.report.numbers import plus_minus
from gpin.report.tables import ResultTable
from gpin.runs.rows import random_rows
from gpin.vae import VAE

__all__ = ["GapSplit", "split_gaps"]

INSTANCES = 100
"""The largest number of instances per part whose gaps are determined, unless the caller chooses another."""


@dataclass(frozen=True)
class GapSplit:
    """The gaps of an encoder on a part of the data, and on its training data.

    Attributes:
        parts: The gaps of the instances by the name of the part; the last is "train".
    """

    parts: Mapping[str, Gaps]

    @property
    def part(self) -> str:
        """The name of the part that is compared with the training data."""
        return next(iter(self.parts))

    def generalisation(self, gap: str) -> tuple[float, float]:
        """The mean gap of the part minus that of the training data, and its standard error over instances.

        This is what the encoder loses on instances that it was not trained on.
        """
        (mean, error), (other, other_error) = (mean_and_error(getattr(found, gap)) for found in self._two())
        return mean - other, (error**2 + other_error**2) ** 0.5

    def _two(self) -> tuple[Gaps, Gaps]:
        return self.parts[self.part], self.parts["train"]

    def record(self) -> dict[str, Any]:
        """The numbers, ready for JSON; unknown values are NaN."""

        def summary(pair: tuple[float, float]) -> dict[str, float]:
            return dict(zip(("mean", "stderr"), pair, strict=True))

        found: dict[str, Any] = {}
        for name, gaps in self.parts.items():
            found[name] = {"instances": len(gaps.inference)}
            if gaps.log_likelihood is not None:
                found[name]["log_likelihood"] = summary(mean_and_error(gaps.log_likelihood.values))
            found[name] |= {gap: summary(mean_and_error(getattr(gaps, gap))) for gap in GAPS}
        if len(self.parts) > 1:
            found["generalisation"] = {gap: summary(self.generalisation(gap)) for gap in GAPS}
        return found

    def table(self, title: str = "gaps in nats") -> ResultTable:
        """The mean gaps with their standard errors, one row per gap and one column per part."""
        several = len(self.parts) > 1
        rows = []
        for gap in GAPS:
            cells = [plus_minus(*mean_and_error(getattr(found, gap))) for found in self.parts.values()]
            name = f"{gap} gap" if gap == GAPS[0] else f"· {gap} gap"
            rows.append([name, *cells, *([plus_minus(*self.generalisation(gap))] if several else [])])
        head = [f"{name}, {len(found.inference)} instances" for name, found in self.parts.items()]
        notes = [
            "inference gap = amortization gap + approximation gap = log p(x) − ELBO of the encoder's posterior, with "
            "annealed estimates of log p(x). The approximation gap is that of the refined full-covariance Gaussian."
        ]
        return ResultTable(title, ["", *head, *(["generalisation"] if several else [])], rows, notes=notes)


@torch.no_grad()
def split_gaps(
    vae: VAE,
    data: DataSet,
    *,
    part: str = "test",
    limit: int | None = None,
    seed: int = 0,
    steps: int | None = None,
    samples: int = 100,
    **annealing: Any,
) -> GapSplit:
    """The gaps of an encoder on a part of its data and on its training data.

    Arguments:
        vae: The model.
        data: The data, with the split of the model's training.
        part: "test", "validation" or "train".
        limit: The largest number of instances of each part, chosen at random; 100 by default.
        seed: The seed of all noise and of the random choice of instances.
        steps: The number of natural-gradient steps after which the gaps are determined, see `VAE.gaps`.
        samples: The number of samples for each ELBO.
        annealing: The options of the annealed estimate, see `VAE.log_likelihood`.
    """
    found = {}
    for name in dict.fromkeys((part, "train")):
        rows = random_rows(getattr(data, name), INSTANCES if limit is None else limit, seed)
        with seeded(seed):
            found[name] = vae.gaps(rows[:], steps=steps, samples=samples, **annealing)
    return GapSplit(found)
