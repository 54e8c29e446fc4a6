"""The cells of tables with columns of different kinds: how values are written, and how errors are counted.

Values are in the units of the data, as `Scaling.undo` returns them: the number of a level for a categorical column, NaN
for a missing value.
"""

import numpy as np

from gpin.data import Scaling
from gpin.report.numbers import number

__all__ = ["baseline", "deviations", "is_label", "levels", "shown", "summed_up"]


def is_label(scaling: Scaling, column: int) -> bool:
    """Whether the values of a column are labels, so that they are equal or not but have no distance."""
    return bool(scaling.columns) and scaling.columns[column].kind in ("bernoulli", "categorical")


def levels(scaling: Scaling, column: int) -> tuple[str, ...]:
    """The names of the levels of a categorical column; none for another one."""
    return scaling.columns[column].levels if scaling.columns else ()


def shown(scaling: Scaling, column: int, value: float, spread: float) -> str:
    """A value as text: the name of a level, a whole number, or a number at the precision of the column's spread."""
    if not np.isfinite(value):
        return "—"
    return scaling.label(column, value) or number(value, spread)


def summed_up(scaling: Scaling, column: int, values: np.ndarray, spread: float) -> str:
    """The mean and standard deviation of a column, or its most frequent label and its share; missing values are left
    out."""
    known = values[np.isfinite(values)].astype(np.float64)
    if not len(known):
        return "—"
    if is_label(scaling, column):
        label, share = _most_frequent(known)
        return f"{shown(scaling, column, label, spread)} ({100 * share:.0f} %)"
    return f"{number(known.mean(), spread)} ({number(known.std(), spread)})"


def deviations(scaling: Scaling, original: np.ndarray, again: np.ndarray) -> np.ndarray:
    """The differences of values `(n, columns)`; for labels 1 where they differ, and NaN where a value is missing."""
    found = original.astype(np.float64) - again
    for column in range(found.shape[1]):
        if is_label(scaling, column):
            own = found[:, column]
            found[:, column] = np.where(np.isnan(own), np.nan, own != 0)
    return found


def baseline(scaling: Scaling, values: np.ndarray) -> np.ndarray:
    """The mean squared deviation `(columns,)` from the best constant: the variance, or the share of all labels but the
    most frequent."""
    found = np.nanvar(values.astype(np.float64), axis=0)
    for column in range(values.shape[1]):
        if is_label(scaling, column):
            own = values[:, column]
            found[column] = 1 - _most_frequent(own[np.isfinite(own)])[1]
    return found


def _most_frequent(known: np.ndarray) -> tuple[float, float]:
    """The most frequent value and its share."""
    values, counts = np.unique(known, return_counts=True)
    return float(values[counts.argmax()]), float(counts.max() / counts.sum())
