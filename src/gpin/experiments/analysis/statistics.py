"""Runs compared as in the paper, and more honestly: instance by instance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["Mark", "PairedDifference", "Summary", "mark", "paired_difference"]

Numbers = Sequence[float] | np.ndarray
Mark = Literal["red", "blue", ""]

SIGNIFICANCE = 0.01
"""Above it there is little evidence of a difference."""


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of a score over runs (the deviation is NaN for one run)."""

    mean: float
    std: float
    runs: int

    @classmethod
    def of(cls, values: Numbers) -> "Summary":
        """Of one score a run.

        Example:
            >>> Summary.of([1.0, 2.0, 3.0])
            Summary(mean=2.0, std=1.0, runs=3)
        """
        numbers = np.asarray(values, dtype=np.float64)
        std = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
        return cls(float(numbers.mean()), std, len(numbers))

    def p_value(self, other: "Summary") -> float:
        """Of Welch's two-sided t-test that both have one mean; NaN where a deviation is not known."""
        if self.runs < 2 or other.runs < 2:
            return math.nan
        from scipy.stats import ttest_ind_from_stats

        ours, theirs = (self.mean, self.std, self.runs), (other.mean, other.std, other.runs)
        return float(ttest_ind_from_stats(*ours, *theirs, equal_var=False).pvalue)


def mark(column: Mapping[str, Summary]) -> dict[str, Mark]:
    """The best of a column red, and blue what a t-test at 1 % cannot tell from it; higher is better.

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


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of a score between two models on the same instances, with its 95 % interval."""

    mean: float
    stderr: float
    low: float
    high: float
    instances: int


def paired_difference(ours: Numbers, theirs: Numbers) -> PairedDifference:
    """Ours less theirs, instance by instance, with Student's 95 % interval for the mean.

    Example:
        >>> found = paired_difference([2.0, 3.0, 4.0], [1.0, 1.0, 1.0])
        >>> found.mean, round(found.low, 2), round(found.high, 2)
        (2.0, -0.48, 4.48)
    """
    from scipy.stats import t

    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    count = len(differences)
    mean = float(differences.mean())
    stderr = float(differences.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    reach = float(t.ppf(0.975, count - 1)) * stderr if count > 1 else math.nan
    return PairedDifference(mean, stderr, mean - reach, mean + reach, count)
