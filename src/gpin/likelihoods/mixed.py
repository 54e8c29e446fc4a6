"""The mixed likelihood, for tables whose columns are of different kinds."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from gpin._core.config import suggest
from gpin._core.errors import InputError
from gpin.likelihoods.base import Curvature, Factorised, Likelihood, LikelihoodConfig
from gpin.likelihoods.bernoulli import Bernoulli
from gpin.likelihoods.categorical import Categorical, CategoricalOptions
from gpin.likelihoods.counts import NegativeBinomial, Poisson
from gpin.likelihoods.gaussian import Gaussian, GaussianOptions

__all__ = ["Mixed", "MixedOptions"]

KINDS = ("gaussian", "bernoulli", "categorical", "poisson", "negative_binomial")
"""The likelihoods of columns."""


class Column(NamedTuple):
    """The kind of a column, and the number of values of x that it takes."""

    kind: str
    width: int

    @classmethod
    def parse(cls, text: str) -> "Column":
        """A column such as "poisson", or "categorical:3" with its number of levels; otherwise raises ValueError."""
        kind, _, levels = text.partition(":")
        if kind not in KINDS:
            raise ValueError(f"unknown kind of column {kind!r}: {suggest(kind, list(KINDS))}")
        if (kind == "categorical") != bool(levels) or (levels and not (levels.isdecimal() and int(levels) > 0)):
            raise ValueError(f"{text!r} must be a kind, followed by its number of levels only if it is 'categorical:3'")
        return cls(kind, int(levels or 1))


class MixedOptions(LikelihoodConfig):
    """The options of the mixed likelihood.

    Arguments:
        columns: The kinds of the columns in their order: "gaussian", "bernoulli", "poisson", "negative_binomial", or
            "categorical:3" for a column with three levels, which takes three values of x. By default all are Gaussian.
        min_variance: The lower bound of the variances of Gaussian columns.
    """

    kind: Literal["mixed"] = "mixed"
    columns: tuple[str, ...] = Field(default=(), strict=False)
    min_variance: float = Field(default=1e-4, gt=0)

    @field_validator("columns")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for column in value:
            Column.parse(column)
        return value


class Mixed(Factorised[MixedOptions]):
    """A likelihood for each column of a table: x is `(batch, values)`, with the values of all columns side by side.

    Gaussian columns have one learnt variance each. See the likelihoods of the same names for the others.
    """

    name = "mixed"
    title = "Mixed: a table with a likelihood for each column"
    Options = MixedOptions

    def __init__(self, shape: Sequence[int], options: MixedOptions | None = None) -> None:
        super().__init__(shape, options)
        size = math.prod(self.shape)
        columns = [Column.parse(text) for text in self.options.columns] or [Column("gaussian", 1)] * size
        if len(self.shape) != 1 or sum(column.width for column in columns) != size:
            raise InputError(
                f"the columns of the likelihood 'mixed' take {sum(column.width for column in columns)} values, but an "
                f"instance has shape {self.shape}"
            )
        starts = [sum(column.width for column in columns[:number]) for number in range(len(columns))]
        order: list[int] = []
        parts: dict[str, Likelihood[Any]] = {}
        self.sizes: dict[str, int] = {}
        for kind in KINDS:
            own = [(start, column.width) for start, column in zip(starts, columns, strict=True) if column.kind == kind]
            if own:
                order += [start + level for start, width in own for level in range(width)]
                self.sizes[kind] = sum(width for _, width in own)
                parts[kind] = self._part(kind, [width for _, width in own])
        self.parts = nn.ModuleDict(parts)
        self.register_buffer("order", torch.tensor(order), persistent=False)
        self.register_buffer("inverse", torch.tensor(order).argsort(), persistent=False)

    order: Tensor
    """The values of x by kind: the first are those of the first kind, `(values,)`."""
    inverse: Tensor
    """Where each value of x is among those by kind, `(values,)`."""

    def _part(self, kind: str, widths: list[int]) -> Likelihood[Any]:
        """The likelihood of all columns of one kind."""
        shape = (sum(widths),)
        if kind == "gaussian":
            return Gaussian(shape, GaussianOptions(variance="per_pixel", min_variance=self.options.min_variance))
        if kind == "categorical":
            return Categorical(shape, CategoricalOptions(levels=tuple(widths)))
        return {"bernoulli": Bernoulli, "poisson": Poisson, "negative_binomial": NegativeBinomial}[kind](shape)

    @property
    def counts(self) -> Tensor | None:
        """The values of the columns that are counts, `(values,)`."""
        parts: Any = self.parts.values()
        found = [torch.zeros(part.shape, dtype=torch.bool) if part.counts is None else part.counts for part in parts]
        counts = self._join([own.to(self.inverse.device) for own in found])
        return counts if counts.any() else None

    def _split(self, *values: Tensor) -> list[tuple[Any, ...]]:
        """The likelihood of each kind with its share of the values, each `(..., values)`."""
        pieces = [value[..., self.order].split(list(self.sizes.values()), -1) for value in values]
        return list(zip(self.parts.values(), *pieces, strict=True))

    def _join(self, pieces: Sequence[Tensor]) -> Tensor:
        """The values of x in their order, from those of each kind."""
        return torch.cat(tuple(pieces), -1)[..., self.inverse]

    def _log_prob_each(self, x: Tensor, output: Tensor) -> Tensor:
        return self._join([part._log_prob_each(x_part, piece) for part, x_part, piece in self._split(x, output)])

    def mean(self, output: Tensor) -> Tensor:
        return self._join([part.mean(piece) for part, piece in self._split(output)])

    def sample(self, output: Tensor) -> Tensor:
        return self._join([part.sample(piece) for part, piece in self._split(output)])

    def _score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Curvature]:
        found = [part._score_and_precision(x_part, piece) for part, x_part, piece in self._split(x, output)]
        curvatures = [curvature for _, curvature in found]
        score = self._join([score for score, _ in found])
        if all(isinstance(curvature, Tensor) for curvature in curvatures):
            return score, self._join(curvatures)

        def whitened(slopes: Tensor) -> Tensor:
            pieces = slopes[..., self.order].split(list(self.sizes.values()), -1)
            return torch.cat(
                [
                    piece * curvature.unsqueeze(1).sqrt() if isinstance(curvature, Tensor) else curvature(piece)
                    for piece, curvature in zip(pieces, curvatures, strict=True)
                ],
                -1,
            )

        return score, whitened

    def center(self, mean: Tensor, spread: Tensor) -> Tensor:
        """The centres of the columns; zero for a likelihood without one."""
        found = [(part.center(own, around), own) for part, own, around in self._split(mean, spread)]
        return self._join([torch.zeros_like(own) if center is None else center for center, own in found])

    def prepare(self, spread: Tensor) -> None:
        for part, own in self._split(spread):
            part.prepare(own)

    def variables(self, x: Tensor) -> Tensor:
        found = []
        for part, own in self._split(x):
            count: Tensor = part.variables(own)
            found.append(count.where((~own.isnan()).any(1), 0.0))
        return torch.stack(found).sum(0).clamp(min=1)

    def check(self, x: Tensor) -> None:
        """Raise InputError if a value does not fit the kind of its column."""
        for part, own in self._split(x):
            part.check(own)
