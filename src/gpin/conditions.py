"""The condition of a VAE: labels and numbers that are given and not modelled, as in p(x|z, c) and q(z|x, c).

A condition has one or more columns. A column of labels becomes one number per level, of which that of the instance's
label is one and the others are zero; a column of numbers is standardised. Together they are C numbers per instance, c.

An instance and its condition travel together: a conditional model works on *joined* rows `(batch, D + C)`, first the D
values of x, flattened, then c. Whatever chooses, splits or repeats rows of x therefore takes their conditions along.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from gpin._core.config import Config, suggest
from gpin._core.errors import InputError

__all__ = ["Condition", "ConditionColumn", "as_condition", "beside", "joined", "parted"]

NAME = "y"
"""The name of the only column of a condition that is given without names."""
MOST_LEVELS = 1000
"""The largest number of levels of a column of labels."""


class ConditionColumn(Config):
    """One column of a condition.

    Arguments:
        name: Its name.
        levels: The labels that it may have, all text or all whole numbers; None for a column of numbers.
        mean: The mean of a column of numbers over the training data, which is subtracted.
        deviation: The standard deviation by which it is divided afterwards.
    """

    name: str
    levels: tuple[int, ...] | tuple[str, ...] | None = Field(default=None, min_length=2, max_length=MOST_LEVELS)
    mean: float = 0.0
    deviation: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if self.levels is not None and len(set(map(str, self.levels))) < len(self.levels):
            raise ValueError(f"the levels of {self.name!r} must differ")
        return self

    @property
    def width(self) -> int:
        """The number of entries of c that belong to this column."""
        return 1 if self.levels is None else len(self.levels)

    @classmethod
    def of(cls, name: str, values: Any) -> "ConditionColumn":
        """The column that describes these values: text, whole numbers and booleans are labels, other numbers are not.

        Arguments:
            name: The name of the column.
            values: One value per instance, or every level once.
        """
        array = _checked(name, values)
        if array.dtype.kind == "f":
            mean, deviation = float(array.mean()), float(array.std())
            if not 0 < deviation < math.inf:
                raise InputError(f"the condition {name!r} is always {mean:.6g}: a condition must differ between rows")
            return cls(name=name, mean=mean, deviation=deviation)
        levels = np.unique(array).tolist()
        if len(levels) < 2:
            raise InputError(f"the condition {name!r} is always {levels[0]!r}: a condition must differ between rows")
        if len(levels) > MOST_LEVELS:
            raise InputError(
                f"the condition {name!r} has {len(levels):,} levels, but at most {MOST_LEVELS:,} are possible: "
                "pass floating-point numbers if they are quantities and not labels"
            )
        return cls(name=name, levels=tuple(levels))

    def numbers(self, values: Any) -> Float[np.ndarray, "n width"]:
        """The entries of c for some values, in float64; a value that is not a level raises InputError."""
        array = _checked(self.name, values)
        if self.levels is None:
            try:
                array = array.astype(np.float64)
            except ValueError:
                raise InputError(f"the condition {self.name!r} must be numbers, got {array[0].item()!r}") from None
            return ((array - self.mean) / self.deviation)[:, None]
        places = {str(level): place for place, level in enumerate(self.levels)}
        found, where = np.unique(array, return_inverse=True)
        chosen = []
        for value in found.tolist():
            written = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
            if written not in places:
                known = list(map(str, self.levels))
                raise InputError(f"the condition {self.name!r} has no level {value!r}: {_some(written, known)}")
            chosen.append(places[written])
        return np.eye(len(self.levels))[np.array(chosen)[where]]

    def values(self, numbers: np.ndarray) -> np.ndarray:
        """The values whose entries of c, `(n, width)`, these are: labels, or numbers in their own units."""
        if self.levels is None:
            return numbers[:, 0] * self.deviation + self.mean
        return np.array(self.levels)[numbers.argmax(1)]


class Condition(Config):
    """What a model is conditional on: its columns, in the order of their entries in c.

    Example:
        >>> condition = as_condition({"species": ["cat", "dog", "dog"], "weight": [4.0, 9.0, 11.0]})
        >>> condition.names, condition.width
        (('species', 'weight'), 3)
        >>> condition.numbers({"species": "dog", "weight": 8.0}, 2)
        tensor([[0., 1., 0.],
                [0., 1., 0.]], dtype=torch.float64)
    """

    columns: tuple[ConditionColumn, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"the columns must have different names, got {', '.join(self.names)}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def width(self) -> int:
        """C, the number of entries of c."""
        return sum(column.width for column in self.columns)

    def __str__(self) -> str:
        *first, last = self.names
        return f"{', '.join(first)} and {last}" if first else last

    def numbers(self, y: Any, count: int) -> Float[Tensor, "count C"]:
        """c for the conditions of `count` instances, in float64.

        Arguments:
            y: One value per instance, or one value for all. For several columns: a mapping from their names to such
                values, a data frame, or an array `(count, columns)` in the order of :attr:`names`.
            count: The number of instances.
        """
        given = _columns(y, self.names)
        for name in self.names:
            if name not in given:
                raise InputError(f"the condition {name!r} is missing: give a value for each of {', '.join(self.names)}")
        parts = []
        for column in self.columns:
            part = column.numbers(given[column.name])
            if len(part) not in (1, count):
                raise InputError(
                    f"y must have one condition for each of {count} instances, or one for all, but "
                    f"{column.name!r} has {len(part)}"
                )
            parts.append(np.broadcast_to(part, (count, column.width)))
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def examples(self, count: int) -> dict[str, np.ndarray]:
        """`count` conditions: the levels of each column of labels in turn, and the means of columns of numbers.

        Example:
            >>> as_condition({"species": ["cat", "dog"], "weight": [4.0, 6.0]}).examples(3)["species"].tolist()
            ['cat', 'dog', 'cat']
        """
        return {
            column.name: np.full(count, column.mean) if column.levels is None else np.resize(column.levels, count)
            for column in self.columns
        }

    def values(self, c: Float[Tensor, "n C"]) -> dict[str, np.ndarray]:
        """The values of each column, `(n,)` by name, whose numbers are c; :meth:`numbers` accepts them again."""
        ends = np.cumsum([column.width for column in self.columns])[:-1]
        parts = np.split(c.detach().cpu().double().numpy(), ends, axis=1)
        return {column.name: column.values(part) for column, part in zip(self.columns, parts, strict=True)}


def as_condition(given: Any) -> Condition:
    """The condition that describes `given`: conditions of training data, see `Condition.numbers`, or a `Condition`."""
    if isinstance(given, Condition):
        return given
    return Condition(columns=tuple(ConditionColumn.of(name, values) for name, values in _columns(given).items()))


def joined(x: Tensor, c: Float[Tensor, "batch C"]) -> Float[Tensor, "batch joined"]:
    """Rows of x `(batch, *shape)` with their conditions beside them, `(batch, D + C)`."""
    return torch.cat([x.flatten(1), c.to(x.device, x.dtype if x.is_floating_point() else c.dtype)], dim=1)


def parted(x: Float[Tensor, "batch joined"], shape: Sequence[int]) -> tuple[Tensor, Float[Tensor, "batch C"]]:
    """The values `(batch, *shape)` and the conditions `(batch, C)` of joined rows; both are views."""
    size = math.prod(shape)
    return x[:, :size].unflatten(1, tuple(shape)), x[:, size:]


def beside(z: Float[Tensor, "... batch d"], c: Float[Tensor, "batch C"]) -> Float[Tensor, "... batch joined"]:
    """z with the condition of its instance beside it, which is what the decoder of a conditional model takes."""
    return torch.cat([z, c.to(z).expand(*z.shape[:-1], c.shape[-1])], dim=-1)


def _columns(y: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """The columns of y by name; those of an array without names are called `names`."""
    if isinstance(y, Mapping) or hasattr(y, "columns"):
        keys = list(y if isinstance(y, Mapping) else y.columns)
        if not keys:
            raise InputError("the condition has no columns")
        return {str(name): y[name] for name in keys}
    array = _array(y)
    if array.ndim < 2:
        name = getattr(y, "name", None)
        own = (name if isinstance(name, str) else NAME,) if names is None else tuple(names)
        if len(own) > 1:
            raise InputError(f"y must have the columns {', '.join(own)}: give a mapping from their names to values")
        return {own[0]: array}
    if array.ndim > 2 or not array.shape[1]:
        raise InputError(f"y must have the shape (n,) or (n, columns), got {array.shape}")
    own = tuple(f"{NAME}{i + 1}" for i in range(array.shape[1])) if names is None else tuple(names)
    if len(own) != array.shape[1]:
        raise InputError(f"y must have the columns {', '.join(own)}, got an array of {array.shape[1]} columns")
    return dict(zip(own, array.T, strict=True))


def _array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError("a condition must be an array or a list of values of one kind") from None


def _checked(name: str, values: Any) -> np.ndarray:
    """The values of a column `(n,)`: text, whole numbers or float64; missing ones raise InputError."""
    array = np.atleast_1d(_array(values))
    if array.ndim != 1 or not len(array):
        raise InputError(f"the condition {name!r} must be one value per instance, got shape {array.shape}")
    if array.dtype.kind == "O":
        missing = [row for row, value in enumerate(array) if value is None or value != value]
        if missing:
            raise InputError(f"the condition {name!r} has no value in row {missing[0]} (counting from 0)")
        # Of Python objects, such as those in a data frame, numpy finds the kind; text among numbers makes all text.
        array = np.array(array.tolist())
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array))[0])
            raise InputError(f"the condition {name!r} is {array[row]} in row {row} (counting from 0): it must be known")
    if array.dtype.kind not in "iufU":
        raise InputError(f"the condition {name!r} must be labels or numbers, got values of type {array.dtype}")
    return array


def _some(name: str, known: list[str]) -> str:
    """A hint with the known levels, or some of them."""
    return suggest(name, known) if len(known) <= 20 else f"it has {len(known)} levels, such as {', '.join(known[:5])}"
