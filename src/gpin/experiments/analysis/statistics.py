"""Comparisons of runs by t-tests over runs, as in the paper."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpin.evaluation.paired import Numbers
from gpin.report.tables import Mark

__all__ = ["Summary", "mark"]

SIGNIFICANCE = 0.01
"""The p-value above which two means are not significantly different."""


@dataclass(frozen=True)
class Summary:
    """The mean and standard deviation of a score over runs (the deviation is NaN for one run)."""

    mean: float
    std: float
    runs: int

    @classmethod
    def of(cls, values: Numbers) -> "Summary":
        """The summary of one score per run.

        Example:
            >>> Summary.of([1.0, 2.0, 3.0])
            Summary(mean=2.0, std=1.0, runs=3)
        """
        numbers = np.asarray(values, dtype=np.float64)
        std = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
        return cls(float(numbers.mean()), std, len(numbers))

    def p_value(self, other: "Summary") -> float:
        """The p-value of Welch's two-sided t-test for equal means; NaN if a standard deviation is unknown."""
        if self.runs < 2 or other.runs < 2:
            return math.nan
        from scipy.stats import ttest_ind_from_stats

        ours, theirs = (self.mean, self.std, self.runs), (other.mean, other.std, other.runs)
        return float(ttest_ind_from_stats(*ours, *theirs, equal_var=False).pvalue)


def mark(column: Mapping[str, Summary]) -> dict[str, Mark]:
    """Mark the best of a column red, and blue what does not differ significantly from it (t-test at 1 %).

    Higher is better.

    Example:
        >>> mark({"a": Summary(2.0, 0.1, 10), "b": Summary(1.99, 0.1, 10), "c": Summary(1.0, 0.1, 10)})
        {'a': 'red', 'b': 'blue', 'c': ''}
    """
    known = {name: summary for name, summary in column.items() if not math.isnan(summary.mean)}
    best = max(known, key=lambda name: known[name].mean, default=None)
    marks: dict[str, Mark] = {}
    for name, summary in column.items():
        alike = best is not None and summary.p_value(column[best]) > SIGNIFICANCE
        marks[name] = "red" if name == best else "blue" if alike else ""
    return marks
