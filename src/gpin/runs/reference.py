"""How unusual instances are, compared with a part of the data that a run was trained on."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from torch import Tensor

from gpin._core.errors import InputError
from gpin._core.inputs import whole_number
from gpin.data import Scaling
from gpin.evaluation.anomalies import (
    AnomalyScore,
    compressed_nats,
    percentiles,
    reconstruction_error,
    surprise,
)
from gpin.runs.contributions import Parts, reasons
from gpin.runs.folder import Run
from gpin.runs.outputs import Columns
from gpin.runs.rows import OnBatch, map_batches, random_rows
from gpin.vae import VAE

__all__ = ["REFERENCE", "Part", "Reference", "Scorer", "joined"]

REFERENCE = 1000
"""The maximum number of instances with which others are compared, unless the caller chooses another."""
ENOUGH = 100
"""From this many validation instances on, they are the reference; otherwise the training part is."""
DEVIATIONS = 4.0
"""Standardised pictures are compressed with 256 levels, from minus to plus this many standard deviations."""

Part = Literal["train", "validation"]


@dataclass(frozen=True)
class Scorer:
    """Measures how unusual instances are for a model.

    Attributes:
        vae: The model.
        scaling: The scaling of its data.
        log_volume: The log volume of the scaling, see `Run.log_volume`.
        parts: The parts of an instance to which its surprise is attributed.
        samples: The number of importance samples for each log-likelihood.
        proposal: "encoder" or "refined", see `VAE.log_likelihood`.
        gap: How the gap is determined, see `VAE.gap`; "none" leaves it out.
    """

    vae: VAE
    scaling: Scaling
    log_volume: float | Callable[[Tensor], Tensor]
    parts: Parts
    samples: int = 100
    proposal: str = "encoder"
    gap: str = "estimated"

    @classmethod
    def of(cls, run: Run, vae: VAE, *, samples: int, proposal: str = "encoder", gap: str = "estimated") -> "Scorer":
        """The scorer of a run's model; options that do not apply to it raise InputError."""
        whole_number(samples, "samples")
        if proposal not in ("encoder", "refined"):
            raise InputError(f"proposal must be encoder or refined, got {proposal!r}")
        if gap != "none":
            vae.check_gap(gap)
        return cls(vae, run.scaling, run.log_volume, Parts.of(run), samples, proposal, gap)

    def scores(self, x: Tensor) -> dict[str, np.ndarray]:
        """All scores of instances, each `(batch,)`; see `Ranking`."""
        x = self.vae.check(x)
        found = self.vae.log_likelihood(x, self.samples, self.proposal)
        own = found if self.proposal == "encoder" else self.vae.log_likelihood(x, self.samples)
        columns = {
            "log_likelihood": found.values,
            "ess": found.ess,
            "khat": found.khat,
            "elbo": own.elbo,
            "reconstruction_error": reconstruction_error(self.vae, x, self.vae.encode(x).mean),
        }
        if self.gap != "none":
            columns["gap"] = self.vae.gap(x, self.gap).values
        arrays = {name: _array(values) for name, values in columns.items()}
        return arrays | self.complexity(x, arrays["log_likelihood"])

    def values(self, x: Tensor) -> Tensor:
        """The values `(batch, *shape)` of instances, which may carry conditions."""
        return self.vae.values(self.vae.check(x))

    def complexity(self, x: Tensor, log_likelihood: np.ndarray) -> dict[str, np.ndarray]:
        """For pictures, the compressed size L(x) in nats, and log p(x) + L(x) in the units of the data."""
        if len(self.vae.shape) != 3:
            return {}
        size = compressed_nats(_bytes(self.values(x), self.scaling))
        volume = self.log_volume(self.values(x)).cpu().numpy() if callable(self.log_volume) else self.log_volume
        return {"complexity": size, "corrected_log_likelihood": log_likelihood - volume + size}

    def costs(self, x: Tensor) -> tuple[np.ndarray | None, np.ndarray]:
        """The surprise of each value of the instances, `(batch, *shape)`, and that of their codes, `(batch,)`."""
        found = surprise(self.vae, x)
        return None if found.values is None else _array(found.values), _array(found.code)

    def shown(self, x: Tensor) -> tuple[np.ndarray, np.ndarray] | None:
        """The values of a table and those expected, `(batch, columns)`, in the units of the data; None for pictures."""
        if len(self.vae.shape) != 1:
            return None
        return self.scaling.undo(self.values(x)), self.scaling.undo(self.vae.reconstruct(x))


@dataclass(frozen=True)
class Reference:
    """The instances with which others are compared.

    Attributes:
        scorer: Measures how unusual instances are.
        score: The score that decides.
        part: The part of the run's data that the instances are from.
        unusual: How unusual they are, `(m,)`.
        values: The mean surprise of each value, in the shape of an instance; None if the likelihood does not know it.
        code: The mean surprise of their codes.
    """

    scorer: Scorer
    score: AnomalyScore
    part: Part
    unusual: np.ndarray
    values: np.ndarray | None
    code: float

    @classmethod
    def measured(
        cls,
        run: Run,
        scorer: Scorer,
        score: AnomalyScore,
        *,
        against: str | None = None,
        limit: int = REFERENCE,
        data: str | os.PathLike[str] | None = None,
        seed: int = 0,
        on_batch: OnBatch | None = None,
    ) -> "Reference":
        """Score a part of the run's own data; the arguments are those of `rank_run`."""
        if against not in (None, "train", "validation"):
            raise InputError(f"`against` must be train or validation, got {against!r}")
        if score.name == "gap" and scorer.gap == "none":
            raise InputError("`by=gap` ranks by the gap, which `gap=none` leaves out: choose another of the two")
        if score.name == "complexity" and len(run.model.shape) != 3:
            raise InputError("`by=complexity` compares the compressed sizes of pictures: rank a table by another score")
        whole_number(limit, "`reference`")
        parts = run.data(data)
        if against is None:
            against = "validation" if len(parts.validation) >= ENOUGH else "train"
        rows = random_rows(getattr(parts, against), limit, seed)
        found = map_batches(lambda _, x: (scorer.scores(x), *scorer.costs(x)), rows, seed=seed, on_batch=on_batch)
        scores, values, codes = [], [], []
        for batch, costs, code in found:
            scores.append(batch)
            codes.append(code)
            if costs is not None:
                values.append(costs.sum(0))
        mean = np.sum(values, axis=0) / len(rows) if values else None
        mean_code = float(np.concatenate(codes).mean())
        return cls(scorer, score, cast(Part, against), score.of(joined(scores)), mean, mean_code)

    def contributions(self, x: Tensor) -> tuple[np.ndarray | None, np.ndarray]:
        """By how many nats each value, `(batch, *shape)`, and the code, `(batch,)`, cost more than in the reference."""
        values, code = self.scorer.costs(x)
        return None if values is None else values - self.values, code - self.code

    def columns(
        self, scores: Columns, x: Tensor, contributions: tuple[np.ndarray | None, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The columns of a `Ranking` that compare instances with the reference.

        Arguments:
            scores: The scores of the instances, from `Scorer.scores`.
            x: The instances.
            contributions: Their contributions, from :meth:`contributions`.
        """
        values, code = contributions
        found: dict[str, np.ndarray] = {"percentile": percentiles(self.score.of(scores), self.unusual)}
        if values is None:
            return found | {"code_contribution": code}
        parts = self.scorer.parts.sums(values)
        texts = reasons(self.scorer.parts, parts, code, self.scorer.shown(x))
        found |= {"reason": np.array(texts), "code_contribution": code}
        names = self.scorer.parts.names
        return found | {f"contribution_{name}": part for name, part in zip(names, parts.T, strict=True)}


def joined(batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The columns of several batches, one after the other."""
    batches = list(batches)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _bytes(x: Tensor, scaling: Scaling) -> np.ndarray:
    """Pictures in model units as bytes."""
    x = x.nan_to_num(nan=0.0)  # a pixel that is missing
    if scaling.kind == "pixels":
        return scaling.undo(x)
    low, high = (-DEVIATIONS, DEVIATIONS) if scaling.kind == "standardised" else (0.0, 1.0)
    levels = 255 * (x.double().cpu().numpy() - low) / (high - low)
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
