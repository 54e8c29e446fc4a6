"""Numbers over digits with their standard errors, and how to say them."""

import math
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Correlation", "mean_and_error", "plus_minus", "verdict"]


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean over instances, and its standard error."""
    values = values.double()
    return values.mean().item(), values.std().item() / math.sqrt(len(values))


def plus_minus(mean: float, stderr: float) -> str:
    """Both as text, with a true minus sign."""
    return f"{mean:.2f} ± {stderr:.2f}".replace("-", "−")


def verdict(mean: float, stderr: float) -> str:
    """A paired difference GP − VAE in words that claim no more than it shows.

    Example:
        >>> verdict(0.2, 0.4)
        '+0.20 ± 0.40 nats, not significant (0.5 standard errors).'
    """
    errors = abs(mean) / stderr if stderr > 0 else 0.0
    words = "not significant" if errors < 2 else f"in favour of the {'GP model' if mean > 0 else 'plain VAE'}"
    return f"{mean:+.2f} ± {stderr:.2f} nats, {words} ({errors:.1f} standard errors).".replace("-", "−")


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation over instances, with its standard error (Fisher's z, Bonett & Wright 2000)."""

    rho: float
    stderr: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Correlation":
        """Of two numbers of every instance."""
        from scipy.stats import spearmanr

        rho = float(spearmanr(x.numpy(), y.numpy()).statistic)
        return cls(rho, (1 - rho**2) * math.sqrt((1 + rho**2 / 2) / (len(x) - 3)))

    def __str__(self) -> str:
        return plus_minus(self.rho, self.stderr)
