"""What may be wrong with the columns of a table, in sentences: identifiers and extreme values."""

from collections.abc import Iterator

import numpy as np

from gpin.data.columns import Levels
from gpin.data.io import listed
from gpin.data.scaling import Scaling
from gpin.data.sources import Source

__all__ = ["remarks"]

FEWEST = 10
"""Fewer rows than this say nothing about a column."""
FAR = 20.0
"""How many robust standard deviations from the median a value is extreme."""


def remarks(source: Source, scaling: Scaling) -> Iterator[str]:
    """Sentences about columns of a table that look like identifiers, and about extreme values."""
    if source.kind != "table" or source.columns is None or len(source.values) < FEWEST:
        return
    for index, column in enumerate(source.columns):
        values = np.asarray(source.values[:, index], np.float64)
        levels = None if source.levels is None else source.levels[index]
        if _identifies(values, levels):
            yield (
                f"column {column!r} looks like an identifier, because its values are "
                f"{'in sequence' if levels is None else 'all different'}: leave it out with "
                f"`exclude={listed([*(source.config.exclude or ()), column])}` unless it is data"
            )
        elif levels is None and (not scaling.columns or scaling.columns[index].kind == "gaussian"):
            yield from _extremes(column, values)


def _identifies(values: np.ndarray, levels: Levels | None) -> bool:
    """Whether a column is complete, and its values are all different text, or whole numbers in sequence."""
    if np.isnan(values).any():
        return False
    if levels is not None:
        return len(levels.names) == len(values)
    return bool((np.diff(np.sort(values)) == 1).all())


def _extremes(column: str, values: np.ndarray) -> Iterator[str]:
    known = ~np.isnan(values)
    low, middle, high = np.quantile(values[known], (0.25, 0.5, 0.75))
    spread = (high - low) / 1.349  # the standard deviation, if the values are normal
    distances = np.where(known, np.abs(values - middle), 0.0)
    count = int((distances > FAR * spread).sum()) if spread > 0 else 0
    if count:
        row = int(distances.argmax())
        what = "1 extreme value" if count == 1 else f"{count:,} extreme values"
        advice = ""
        if values[known].min() > 0:
            advice = f", or take the column as log-normal with `kinds={listed([f'{column}=lognormal'])}`"
        yield (
            f"column {column!r} has {what}; the farthest is {values[row]:.6g} in row {row} (counting from 0; the "
            f"median is {middle:.6g}): correct or empty it if it is an error{advice}"
        )
