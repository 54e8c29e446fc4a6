"""The columns of a table: their kinds, and the conversion between their units and those of the model."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field

from gpin._core.config import Config, suggest
from gpin._core.errors import InputError
from gpin.data.io import listed

__all__ = ["KINDS", "ColumnKind", "ColumnScaling", "Levels", "choose_columns", "remapped"]

ColumnKind = Literal["gaussian", "lognormal", "bernoulli", "categorical", "poisson", "negative_binomial"]
KINDS: tuple[str, ...] = get_args(ColumnKind)
"""The kinds of columns."""
COUNTS = ("poisson", "negative_binomial")

MOST_LEVELS = 100
"""A column of text with more levels than this is not taken as categorical."""
SMALL_COUNTS = 10.0
"""Whole numbers from 0 or 1 with a mean up to this are taken as counts; those above it if they are skewed."""
SKEWED = 1.5
"""Positive numbers with a skewness above this are log-normal if their logarithms are less than half as skewed."""
OVERDISPERSED = 1.5
"""Counts whose variance exceeds their mean by this factor are taken as negative binomial."""


class Levels(NamedTuple):
    """The levels of a categorical column in their order, and whether they are numbers."""

    names: tuple[str, ...]
    numeric: bool = False


class ColumnScaling(Config):
    """The kind of a column, and the conversion from its values to those of the model.

    Arguments:
        kind: "gaussian" columns are standardised: x = (value − offset) / scale. "lognormal" ones are positive, and
            their logarithms are standardised. "bernoulli" values are 0 or 1 and counts ("poisson",
            "negative_binomial") whole numbers, both unchanged. "categorical" values are numbers of levels, from 0, and
            one-hot encoded.
        offset: The mean of the values, or of their logarithms, over the training rows.
        scale: The standard deviation, likewise.
        levels: The names of the levels of a categorical column.
        numeric: Whether these names are numbers.
    """

    kind: ColumnKind
    offset: float = 0.0
    scale: float = Field(default=1.0, gt=0)
    levels: tuple[str, ...] = ()
    numeric: bool = False

    @property
    def width(self) -> int:
        """The number of values of x that the column takes."""
        return len(self.levels) if self.kind == "categorical" else 1

    @property
    def likelihood(self) -> str:
        """The column in the options of the mixed likelihood."""
        if self.kind == "categorical":
            return f"categorical:{self.width}"
        return "gaussian" if self.kind == "lognormal" else self.kind

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Values `(n,)` in the units of the data → x `(n, width)` in float64; NaN stays NaN."""
        if self.kind == "categorical":
            x = (values[:, None] == np.arange(self.width)).astype(np.float64)
            x[np.isnan(values)] = np.nan
            return x
        values = np.log(values) if self.kind == "lognormal" else values
        return ((values - self.offset) / self.scale)[:, None]

    def undo(self, x: np.ndarray) -> np.ndarray:
        """Output of the model `(n, width)` → values `(n,)` of this kind in the units of the data.

        Means become the most probable level, the more probable of 0 and 1, and the nearest count; the mean of
        logarithms becomes a median. NaN stays NaN.
        """
        if self.kind == "categorical":
            return np.where(np.isnan(x).any(1), np.nan, x.argmax(1))
        values = x[:, 0] * self.scale + self.offset
        if self.kind == "lognormal":
            with np.errstate(over="ignore"):
                return np.exp(values)
        return (
            values if self.kind == "gaussian" else np.clip(np.rint(values), 0, 1 if self.kind == "bernoulli" else None)
        )

    def decoded(self, values: np.ndarray) -> np.ndarray:
        """Complete values `(n,)` as they are written to files: the names of levels, whole numbers, or numbers."""
        if self.kind == "categorical":
            names = [float(name) for name in self.levels] if self.numeric else self.levels
            found = np.array(names)[values.astype(np.int64)]
            return found.astype(np.int64) if self.numeric and (found == np.rint(found)).all() else found
        return values if self.kind in ("gaussian", "lognormal") else values.astype(np.int64)

    def log_volumes(self, x: np.ndarray) -> np.ndarray:
        """log |d value/dx| of each x `(n, width)`, `(n,)`; zero for a probability or a missing value."""
        if self.kind not in ("gaussian", "lognormal"):
            return np.zeros(len(x))
        volumes = np.log(self.scale) + (x[:, 0] * self.scale + self.offset if self.kind == "lognormal" else 0 * x[:, 0])
        return np.where(np.isnan(x[:, 0]), 0.0, volumes)

    def unfit(self, values: np.ndarray) -> np.ndarray:
        """Which of the values `(n,)` are not of this kind; missing values are."""
        known = ~np.isnan(values)
        if self.kind == "gaussian":
            return np.isinf(values)
        if self.kind == "lognormal":
            return known & ~((values > 0) & (values < np.inf))
        most = {"bernoulli": 1, "categorical": self.width - 1}.get(self.kind, 2**53)
        return known & ~((values == np.rint(values)) & (values >= 0) & (values <= most))

    @property
    def wanted(self) -> str:
        """The values that the kind allows, in words."""
        return {
            "gaussian": "finite numbers",
            "lognormal": "positive numbers",
            "bernoulli": "0 or 1",
            "categorical": f"one of its {self.width} levels",
        }.get(self.kind, "whole numbers from 0")


def choose_columns(
    values: np.ndarray,
    rows: np.ndarray,
    names: Sequence[str],
    levels: Sequence[Levels | None] | None,
    kinds: Mapping[str, str] | None,
    name: str,
) -> tuple[ColumnScaling, ...] | None:
    """The kinds and scalings of the columns of a table; None if all are Gaussian, or all binary, and none was chosen.

    Arguments:
        values: The table `(count, columns)`, with numbers of levels in categorical columns and NaN for missing values.
        rows: The training rows, from which means and deviations are computed.
        names: The names of the columns.
        levels: The levels of each categorical column; None for the others.
        kinds: Kinds of some columns by name; those of the others are detected.
        name: The name of the data, for error messages.
    """
    for column in kinds or {}:
        if column not in names:
            raise InputError(f"{name} has no column {column!r}, whose kind is given: {suggest(column, list(names))}")
    every = []
    for index, column in enumerate(names):
        own = np.asarray(values[:, index], np.float64)
        categorical = levels is not None and levels[index] is not None
        every.append((kinds or {}).get(column) or ("categorical" if categorical else _detected(own[~np.isnan(own)])))
    if not kinds and set(every) in ({"gaussian"}, {"bernoulli"}):
        return None
    return tuple(
        _scaled(
            column,
            kind,
            np.asarray(values[:, index], np.float64),
            rows,
            None if levels is None else levels[index],
            name,
        )
        for index, (column, kind) in enumerate(zip(names, every, strict=True))
    )


def _detected(known: np.ndarray) -> str:
    """The kind that fits the values of a numeric column."""
    if not len(known):
        return "gaussian"
    low, high = known.min(), known.max()
    if not np.isfinite([low, high]).all() or low == high:
        return "gaussian"
    whole = bool((known == np.rint(known)).all())
    if whole and low >= 0 and high <= 1:
        return "bernoulli"
    if whole and 0 <= low <= 1 and (known.mean() <= SMALL_COUNTS or _skewness(known) > 1):
        return "negative_binomial" if known.var() > OVERDISPERSED * known.mean() else "poisson"
    skewness = _skewness(known) if low > 0 else 0.0
    if skewness > SKEWED and abs(_skewness(np.log(known))) < skewness / 2:
        return "lognormal"
    return "gaussian"


def _skewness(values: np.ndarray) -> float:
    centred = values / np.abs(values).max()
    centred = centred - centred.mean()
    spread = np.sqrt((centred**2).mean())
    return float((centred**3).mean() / spread**3) if spread > 0 else 0.0


def _scaled(
    column: str, kind: str, values: np.ndarray, rows: np.ndarray, levels: Levels | None, name: str
) -> ColumnScaling:
    """The scaling of a column of this kind; raises InputError if it does not fit its values."""
    if np.isnan(values[rows]).all():
        out = f"leave it out with `exclude={listed([column])}`"
        raise InputError(f"{name}: column {column!r} has no values in the training part: {out}")
    if kind == "categorical":
        assert levels is not None  # the reader made them
        if len(levels.names) < 2:
            out = f"leave it out with `exclude={listed([column])}`"
            raise InputError(f"{name}: column {column!r} is always {levels.names[0]!r}: {out}")
        return ColumnScaling(kind="categorical", levels=levels.names, numeric=levels.numeric)
    if levels is not None:
        raise InputError(f"{name}: column {column!r} holds text, so its kind is 'categorical', not {kind!r}")
    plain = ColumnScaling.parse({"kind": kind}, f"column {column!r}")
    unfit = plain.unfit(values)
    if unfit.any():
        row = int(unfit.argmax())
        raise InputError(
            f"{name}: column {column!r} holds {values[row]:.6g} in row {row} (counting from 0): "
            f"the kind {kind!r} needs {plain.wanted}"
        )
    if kind not in ("gaussian", "lognormal"):
        return plain
    chosen = values[rows]
    chosen = chosen[~np.isnan(chosen)]
    chosen = np.log(chosen) if kind == "lognormal" else chosen
    with np.errstate(over="ignore", invalid="ignore"):
        offset, scale = float(chosen.mean()), float(chosen.std())
    if not 0 < scale < np.inf:
        raise InputError(
            f"{name}: column {column!r} cannot be standardised, because its values in the training part are all "
            f"alike or too large: leave it out with `exclude={listed([column])}`"
        )
    return ColumnScaling(kind=plain.kind, offset=offset, scale=scale)


def remapped(
    values: np.ndarray,
    names: Sequence[str],
    levels: Sequence[Levels | None] | None,
    columns: Sequence[ColumnScaling],
    name: str,
) -> np.ndarray:
    """Values of other data `(n, columns)` with the numbers of the levels that a model knows.

    Arguments:
        values: The values, in the order of the model's columns.
        names: The names of these columns.
        levels: Their levels in the other data.
        columns: The columns of the model.
        name: The name of the other data, for error messages.
    """
    values = np.array(values, np.float64)
    for index, (column, scaling) in enumerate(zip(names, columns, strict=True)):
        own = None if levels is None else levels[index]
        if scaling.kind != "categorical":
            if own is not None:
                raise InputError(f"{name}: column {column!r} holds text, but the model was trained on numbers there")
            continue
        if own is None and not np.isnan(values[:, index]).all():
            raise InputError(f"{name}: column {column!r} holds numbers, but the model was trained on text there")
        known = {level: number for number, level in enumerate(scaling.levels)}
        names = () if own is None else own.names
        numbers = np.array([known.get(level, -1) for level in names], np.float64)
        present = ~np.isnan(values[:, index])
        values[present, index] = numbers[values[present, index].astype(np.int64)] if len(numbers) else 0
        if (values[:, index] == -1).any():
            row = int((values[:, index] == -1).argmax())
            unknown = next(level for level in names if level not in known)
            raise InputError(
                f"{name}: column {column!r} holds {unknown!r}, which the model has not seen (first new level in row "
                f"{row}, counting from 0): {suggest(unknown, list(scaling.levels))}, or empty the cell"
            )
    return values
