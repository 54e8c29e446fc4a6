"""Means of a score and paired differences between models, with intervals over instances and over repeated trainings.

A score has two sources of error. Other test instances would have given another mean; this error is small if two models
are compared on the same instances, where what is common to both cancels. And another training, from another
initialisation, would have given another model. An interval over instances alone is therefore an interval for these
trained models, and says nothing about the method that trained them.

With S trainings and n instances, the scores are a table of S × n numbers. `repeated_mean` adds both variances of the
mean: that of the n means over trainings, divided by n, and that of the S means over instances, divided by S. Its
interval has the width of Student's t with the degrees of freedom of Satterthwaite (1946), which are about S − 1 if most
of the variance is between trainings, so that two or three trainings then give a wide interval. In simulations with
normal effects of trainings and instances, it contained the true mean in 93 to 96 % of the cases with three or five
trainings, and in 91 to 97 % with two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Numbers", "PairedDifference", "RepeatedMean", "paired_difference", "repeated_mean"]

Numbers = Sequence[float] | np.ndarray

UPPER = 0.975
"""The upper quantile at which an interval of 95 % ends."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of a score between two models on the same instances, with its 95 % interval."""

    mean: float
    stderr: float
    low: float
    high: float
    instances: int


def paired_difference(ours: Numbers, theirs: Numbers) -> PairedDifference:
    """The mean of ours − theirs over instances, with Student's 95 % interval.

    Example:
        >>> found = paired_difference([2.0, 3.0, 4.0], [1.0, 1.0, 1.0])
        >>> found.mean, round(found.low, 2), round(found.high, 2)
        (2.0, -0.48, 4.48)
    """
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    found = repeated_mean([differences])
    return PairedDifference(found.mean, found.stderr, found.low, found.high, found.instances)


@dataclass(frozen=True)
class RepeatedMean:
    """The mean of a score, or of a difference, over instances and trainings, with its 95 % interval.

    Attributes:
        mean: The mean over all trainings and instances.
        stderr: Its standard error; NaN if there is only one number.
        low: The lower end of the 95 % interval.
        high: The upper end of the 95 % interval.
        instances: The number of instances of a training.
        trainings: The number of trainings; with one, the error is over instances only.
    """

    mean: float
    stderr: float
    low: float
    high: float
    instances: int
    trainings: int

    @property
    def sign(self) -> int:
        """1 or −1 if the interval is on one side of zero, 0 if it contains zero or is not known."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def repeated_mean(values: Sequence[Numbers], *, same_instances: bool = True) -> RepeatedMean:
    """The mean of the values of n instances in each of S trainings, with an interval that covers both.

    Arguments:
        values: The values of the instances, `(n,)` for each training.
        same_instances: Whether all trainings have the same instances, in the same order. Otherwise, as with a split of
            the data for each training, the means of the trainings vary with their instances too, and the interval is
            that of these S means.

    Example:
        >>> found = repeated_mean([[1.0, 2.0, 3.0], [1.2, 2.2, 3.2]])
        >>> round(found.mean, 2), round(found.stderr, 2), found.trainings
        (2.1, 0.59, 2)
    """
    trainings = [np.asarray(own, dtype=np.float64) for own in values]
    means = np.array([own.mean() for own in trainings])
    parts = []
    if len(trainings) == 1 or same_instances:
        parts.append(np.mean(trainings, axis=0))
    if len(trainings) > 1:
        parts.append(means)
    mean, stderr, reach = float(means.mean()), math.nan, math.nan
    if all(len(part) > 1 for part in parts):
        errors = [float(part.std(ddof=1)) / math.sqrt(len(part)) for part in parts]
        stderr = math.hypot(*errors)
        reach = _quantile(errors, [len(part) - 1 for part in parts]) * stderr
    return RepeatedMean(mean, stderr, mean - reach, mean + reach, len(trainings[0]), len(trainings))


def _quantile(errors: Sequence[float], freedom: Sequence[int]) -> float:
    """The quantile of Student's t for the sum of independent errors, with Satterthwaite's degrees of freedom."""
    from scipy.special import stdtrit  # scipy.stats takes seconds to import

    total = math.hypot(*errors)
    if len(errors) == 1 or total == 0:
        return float(stdtrit(freedom[0], UPPER))
    shares = sum((own / total) ** 4 / count for own, count in zip(errors, freedom, strict=True))
    return float(stdtrit(1 / shares, UPPER))
