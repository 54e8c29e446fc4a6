"""Statistics over instances with their standard errors, and their wording."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from gpin.evaluation.reliability import lower_bound

__all__ = [
    "Correlation",
    "caution",
    "difference",
    "duration",
    "even_ranks",
    "number",
    "plus_minus",
    "rounded",
    "without_nan",
]


def caution(encoder: float, refined: float, noun: str) -> str:
    """How far to trust log-likelihoods, given the share of instances with k̂ > 0.7 for each kind of proposal.

    See `gpin.evaluation.reliability`; this is its sentence for several models and both proposals.

    Example:
        >>> caution(0.02, 0.01, "digits")
        'k̂ is below 0.7 for nearly all digits, so the estimates can be trusted.'
    """
    bounds = {"the encoder’s proposals": lower_bound(encoder), "refined ones": lower_bound(refined)}
    if None in bounds.values():
        return "k̂ cannot be computed from so few samples: use at least 25 to see how far the estimates can be trusted."
    if not any(bounds.values()):
        return f"k̂ is below 0.7 for nearly all {noun}, so the estimates can be trusted."
    which = " and ".join(name for name, bound in bounds.items() if bound)
    return (
        f"k̂ exceeds 0.7 for up to {100 * encoder:.0f}% of the {noun} with the encoder’s proposals, and "
        f"{100 * refined:.0f}% with refined ones. The log-likelihoods with {which} are therefore lower bounds (≥): "
        "neither the Monte-Carlo error nor ± shows how much they are too low. With the encoder’s proposals they "
        "reflect the encoder as much as the model, with refined ones mainly the model. More samples or annealed "
        "importance sampling come closer."
    )


def without_nan(value: Any) -> Any:
    """A record with None in place of the numbers that JSON cannot represent.

    Example:
        >>> without_nan({"a": [1.0, math.nan, math.inf], "b": "text", "c": (1, math.nan)})
        {'a': [1.0, None, None], 'b': 'text', 'c': [1, None]}
    """
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plus_minus(mean: float, stderr: float, digits: int = 2) -> str:
    """A mean and its standard error as text, with a true minus sign; an unknown error is left out.

    Example:
        >>> plus_minus(-1.0, 0.25), plus_minus(-1.0, math.nan)
        ('−1.00 ± 0.25', '−1.00')
    """
    error = f" ± {stderr:.{digits}f}" if math.isfinite(stderr) else ""
    return f"{mean:.{digits}f}{error}".replace("-", "−")


def rounded(value: float, digits: int) -> str:
    """A number as text with so many decimals, with a true minus sign but never as −0.

    Example:
        >>> rounded(-1.26, 1), rounded(-0.04, 1)
        ('−1.3', '0.0')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def difference(value: float, plus: bool = False) -> str:
    """A difference in nats as text, with two decimals and never as −0; a dash if it is not known.

    Arguments:
        value: The difference.
        plus: Whether a positive one begins with a plus sign.

    Example:
        >>> difference(-0.004), difference(-1.0), difference(1.0, plus=True), difference(0.004, plus=True)
        ('0.00', '−1.00', '+1.00', '0.00')
    """
    if not math.isfinite(value):
        return "—"
    return ("+" if plus and round(value, 2) > 0 else "") + rounded(value, 2)


def number(value: float, spread: float) -> str:
    """A number as text, at a precision of a hundredth of `spread`, the standard deviation of its column, or finer.

    Example:
        >>> number(-12.3456, 3.1), number(0.01234, 0.0031), number(1234.5, 310.0), number(2e9, 3e8), number(0.5, 0.0)
        ('−12.35', '0.01234', '1234', '2.000e+09', '0.5000')
    """
    digits = 2 - math.floor(math.log10(spread)) if spread > 0 else 99
    text = f"{value:.{max(digits, 0)}f}" if digits <= 8 and abs(value) < 1e7 else f"{value:#.4g}"
    return text.replace("-", "−")


def duration(seconds: float) -> str:
    """A time in a unit that is easy to read.

    Example:
        >>> duration(4.25), duration(40), duration(4000), duration(400000)
        ('4.2 s', '40 s', '1.1 h', '4.6 days')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation over instances, with its standard error (Fisher's z, Bonett & Wright 2000)."""

    rho: float
    stderr: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Correlation":
        """The correlation of two values per instance, each `(count,)`; NaN if there is nothing to rank."""
        from scipy.stats import spearmanr

        if len(x) < 3 or x.min() == x.max() or y.min() == y.max():
            return cls(math.nan, math.nan)
        rho = float(spearmanr(x.numpy(), y.numpy()).statistic)
        return cls(rho, (1 - rho**2) * math.sqrt((1 + rho**2 / 2) / (len(x) - 3)) if len(x) > 3 else math.nan)

    def in_words(self, where: str) -> str:
        """How the first value depends on the second, in words; `where` describes where the second is large.

        Example:
            >>> Correlation(0.5, 0.1).in_words("where the gap is larger")
            'it is moderately higher where the gap is larger'
        """
        if not abs(self.rho) >= 2 * self.stderr:
            return "no relation is shown"
        strength = "weakly" if abs(self.rho) < 0.3 else "moderately" if abs(self.rho) < 0.6 else "strongly"
        return f"it is {strength} {'higher' if self.rho > 0 else 'lower'} {where}"

    def __str__(self) -> str:
        return plus_minus(self.rho, self.stderr)


def even_ranks(values: Any, count: int) -> np.ndarray:
    """Indices of `count` values, ascending, at evenly spaced ranks from the smallest to the largest.

    Example:
        >>> even_ranks([3.0, 1.0, 5.0, 4.0, 2.0], 3).tolist()
        [1, 0, 2]
    """
    order = np.argsort(np.asarray(values), kind="stable")
    ranks = np.linspace(0, len(order) - 1, min(count, len(order)))
    return order[np.rint(ranks).astype(int)]
