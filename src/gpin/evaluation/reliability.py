"""Whether the error of an importance-weighted log-likelihood can be believed, and what is said if it cannot.

The estimate of log p(x) from K samples is a lower bound in expectation. Its Monte-Carlo error comes from the same
weights as the estimate itself, so it cannot show what samples that were never drawn would add. If the weights have a
heavy tail, the estimate is too low by far more than this error. The shape k̂ of the tail tells: the error is believable
up to k̂ = 0.7 (Vehtari et al. 2024, Pareto smoothed importance sampling).

A mean over instances is therefore reported with its Monte-Carlo error only if k̂ exceeds 0.7 for at most `COMMON` of
them. Otherwise it is reported as a lower bound. How far it is too low can be measured on data that is simulated from
the model, between two bounds: a `Bias`.
"""

import math
from dataclasses import dataclass

from torch import Tensor

__all__ = ["COMMON", "LIMIT", "Bias", "caution", "few_instances", "lower_bound", "share_above"]

LIMIT = 0.7
"""The largest k̂ at which the Monte-Carlo error of an instance is believable."""

COMMON = 0.05
"""The largest share of instances with a larger k̂ at which the Monte-Carlo error of their mean is believable.

On the digits with two latent dimensions, where quadrature gives the exact log p(x), means over 179 instances with a
share of 7 % to 26 % in a model of two epochs were too low by 2 to 4 times their Monte-Carlo error, and those with a
share of 12 % to 44 % in a model of sixty epochs by 10 to 55 times, with 100 to 10,000 samples per instance."""

ENOUGH = 20
"""The number of instances below which a mean over them allows no firm conclusion, because its standard error is itself
uncertain by more than one sixth: by about 1/√(2(n − 1))."""


def few_instances(count: int, noun: str = "instances") -> str:
    """A sentence that so few instances allow no firm conclusion; empty if there are enough.

    Example:
        >>> few_instances(7), few_instances(100)
        ('The mean is over only 7 instances, which allow no firm conclusion.', '')
    """
    if count >= ENOUGH:
        return ""
    if count == 1:
        return "There is only one instance, which allows no firm conclusion."
    return f"The mean is over only {count} {noun}, which allow no firm conclusion."


def share_above(khat: Tensor) -> float:
    """The share of instances with k̂ > 0.7 among those whose k̂ is known; NaN if none is known."""
    known = khat[~khat.isnan()]
    return (known > LIMIT).double().mean().item() if len(known) else math.nan


def lower_bound(share: float) -> bool | None:
    """Whether a mean log-likelihood can be reported only as a lower bound; None if k̂ is not known.

    Arguments:
        share: The share of instances with k̂ > 0.7, NaN if it is not known.

    Example:
        >>> lower_bound(0.02), lower_bound(0.64), lower_bound(math.nan)
        (False, True, None)
    """
    return None if math.isnan(share) else share > COMMON


@dataclass(frozen=True)
class Bias:
    """How far a mean log-likelihood is too low, on instances that are simulated from the model.

    The bounds hold in expectation: with few chains, `at_least` can exceed `at_most` by chance.

    Attributes:
        at_least: A lower bound of log p(x) minus the estimate, mean over instances, in nats.
        at_most: An upper bound of log p(x) minus the estimate, mean over instances, in nats.
        instances: The number of simulated instances.
        error: The standard error of the bounds over instances, the larger of the two; NaN if it is not known.
    """

    at_least: float
    at_most: float
    instances: int
    error: float = math.nan

    def __str__(self) -> str:
        """Both bounds in words.

        Example:
            >>> print(Bias(3.14, 3.62, 100, error=0.2))
            at least 3.14 and at most 3.62 nats (± 0.20) too low
            >>> print(Bias(-0.02, 0.31, 100))
            at most 0.31 nats too low
            >>> print(Bias(0.31, 0.29, 100, error=0.05))
            about 0.30 nats (± 0.05) too low
        """
        nats = "nats" if math.isnan(self.error) else f"nats (± {self.error:.2f})"
        if self.at_least > self.at_most:
            return f"about {(self.at_least + self.at_most) / 2:.2f} {nats} too low"
        least = f"at least {self.at_least:.2f} and " if self.at_least > 0 else ""
        return f"{least}at most {max(self.at_most, 0.0):.2f} {nats} too low"


def caution(share: float, mc_error: float, bias: Bias | None = None, noun: str = "instances") -> str:
    """How far to believe a mean log-likelihood and its Monte-Carlo error, in words; empty if there is nothing to say.

    Arguments:
        share: The share of instances with k̂ > 0.7, NaN if it is not known.
        mc_error: The Monte-Carlo error of the mean in nats, NaN if it is not known.
        bias: How far the mean is too low on simulated instances, if that was measured.
        noun: The plural noun for the instances.

    Example:
        >>> caution(0.64, 0.03)
        'k̂ is above 0.7 for 64 % of the instances, so the log-likelihood is a lower bound: its Monte-Carlo error of 0.03 nats does not show how much it is too low.'
    """  # noqa: E501  (the sentence is one line)
    found = lower_bound(share)
    said = []
    if found is None:
        said.append(
            "k̂ cannot be computed from fewer than 25 samples, so the log-likelihood can be called no more than a lower "
            "bound: its Monte-Carlo error may not show how much it is too low."
        )
    elif found:
        error = f" of {mc_error:.2f} nats" if math.isfinite(mc_error) else ""
        said.append(
            f"k̂ is above 0.7 for {100 * share:.0f} % of the {noun}, so the log-likelihood is a lower bound: its "
            f"Monte-Carlo error{error} does not show how much it is too low."
        )
    if bias is not None:
        said.append(f"On {bias.instances:,} instances simulated from the model, the mean of such estimates is {bias}.")
    return " ".join(said)
