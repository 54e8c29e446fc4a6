"""The likelihoods of counts: Poisson and negative binomial, with the logarithm of the mean as the decoder's output."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from gpin._core.errors import InputError
from gpin.likelihoods.base import Factorised, LikelihoodConfig

__all__ = ["NegativeBinomial", "NegativeBinomialOptions", "Poisson", "PoissonOptions"]

HIGHEST = 30.0
"""The largest log mean; exp of more could overflow before training has seen that it is too high."""
LEAST = 1e-3
"""The least mean from which the decoder starts, for a count that is almost always zero."""

OptionsT = TypeVar("OptionsT", bound=LikelihoodConfig)


class PoissonOptions(LikelihoodConfig):
    """The Poisson likelihood has no options."""

    kind: Literal["poisson"] = "poisson"


class NegativeBinomialOptions(LikelihoodConfig):
    """The negative binomial likelihood has no options."""

    kind: Literal["negative_binomial"] = "negative_binomial"


class _Counts(Factorised[OptionsT]):
    """Independent counts x = 0, 1, 2, …, with λ = exp(output) as their means."""

    density = False
    support = (0.0, math.inf)

    @property
    def counts(self) -> Tensor:
        """All values are counts."""
        return torch.ones(self.shape, dtype=torch.bool)

    def mean(self, output: Tensor) -> Tensor:
        return output.clamp(max=HIGHEST).exp()

    @abstractmethod
    def _damping(self, mean: Tensor) -> Tensor:
        """λ divided by the variance of x, in the shape of the means."""

    def _score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """a (x − λ) and a λ, where a is the mean of x divided by its variance."""
        mean = self.mean(output)
        damping = self._damping(mean)
        # The square root of the precision has no gradient at zero.
        return damping * (x - mean), (damping * mean).clamp(min=torch.finfo(mean.dtype).tiny)

    def center(self, mean: Tensor, spread: Tensor) -> Tensor:
        """The logarithm of the mean of the training data."""
        return mean.clamp(min=LEAST).log()

    def check(self, x: Tensor) -> None:
        """Raise InputError unless every value of x is a whole number from 0, or missing."""
        super().check(x)
        if (broken := x[(x != x.round()) & ~x.isnan()]).numel():
            raise InputError(f"the likelihood {self.name!r} needs whole numbers, got {broken[0].item():.6g}")


class Poisson(_Counts[PoissonOptions]):
    """Independent Poisson values of x, whose variances equal their means."""

    name = "poisson"
    title = "Poisson: counts whose variance is their mean"
    Options = PoissonOptions

    def _log_prob_each(self, x: Tensor, output: Tensor) -> Tensor:
        return x * output - self.mean(output) - torch.lgamma(x + 1)

    def sample(self, output: Tensor) -> Tensor:
        return torch.poisson(self.mean(output))

    def _damping(self, mean: Tensor) -> Tensor:
        return torch.ones_like(mean)


class NegativeBinomial(_Counts[NegativeBinomialOptions]):
    """Independent negative binomial values of x, with variances λ + λ²/r; r is learnt for each value.

    It is the Poisson distribution with a rate drawn from a gamma distribution of shape r, and close to the Poisson
    distribution where r is large.
    """

    name = "negative_binomial"
    title = "Negative binomial: counts whose variance exceeds their mean"
    Options = NegativeBinomialOptions

    learning_rate_factors: ClassVar[dict[str, float]] = {"log_shape": 20.0}
    """As for the logarithm of a Gaussian's variance."""

    LARGEST = math.log(1000.0)
    """The largest log r, at which the distribution is almost that of Poisson."""

    def __init__(self, shape: Sequence[int], options: NegativeBinomialOptions | None = None) -> None:
        super().__init__(shape, options)
        self.log_shape = nn.Parameter(torch.zeros(self.shape))

    @property
    def dispersion(self) -> Tensor:
        """r, with the shape of one instance."""
        return self.log_shape.clamp(max=self.LARGEST).exp()

    def _log_prob_each(self, x: Tensor, output: Tensor) -> Tensor:
        output, r = output.clamp(max=HIGHEST), self.dispersion
        # Differences of large numbers, which depend on x and r alone.
        wide, r_wide = x.double(), r.double()
        constant = torch.lgamma(wide + r_wide) - torch.lgamma(r_wide) - torch.lgamma(wide + 1)
        total = torch.logaddexp(output, r.log())
        return constant.to(output.dtype) + r * (r.log() - total) + x * (output - total)

    def sample(self, output: Tensor) -> Tensor:
        r = self.dispersion.expand_as(output)
        return torch.poisson(self.mean(output) * torch._standard_gamma(r) / r)

    def _damping(self, mean: Tensor) -> Tensor:
        return 1 / (1 + mean / self.dispersion)
