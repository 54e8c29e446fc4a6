"""The heteroscedastic Gaussian likelihood, in which the decoder gives the variance of every pixel."""

import math
from typing import Literal

import torch
from torch import Tensor

from gpin.likelihoods.base import Factorised
from gpin.likelihoods.gaussian import VarianceOptions

__all__ = ["Heteroscedastic", "HeteroscedasticOptions"]


class HeteroscedasticOptions(VarianceOptions):
    """The options of the heteroscedastic Gaussian likelihood.

    Arguments:
        initial_variance: The approximate initial value of the variances. 0 estimates it from the training data.
        min_variance: The lower bound of the variances, without which the likelihood is unbounded.
    """

    kind: Literal["heteroscedastic"] = "heteroscedastic"


class Heteroscedastic(Factorised[HeteroscedasticOptions]):
    r"""N(x; μ(z), diag σ²(z)), with mean and variance from the decoder.

    The output is `(..., batch, 2, *shape)`: first μ, then l, with σ² = min_variance + exp(l).
    """

    name = "heteroscedastic"
    title = "Heteroscedastic Gaussian: continuous data, mean and variance of every pixel from the decoder"
    Options = HeteroscedasticOptions

    outputs = 2

    def _parts(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """μ and l, each `(..., batch, *shape)`."""
        mean, log_variance = output.unbind(-len(self.shape) - 1)
        return mean, log_variance

    def variance(self, output: Tensor) -> Tensor:
        """σ², `(..., batch, *shape)`."""
        return self.options.min_variance + self._parts(output)[1].exp()

    def _log_prob_each(self, x: Tensor, output: Tensor) -> Tensor:
        variance = self.variance(output)
        return -0.5 * ((x - self.mean(output)).square() / variance + torch.log(2 * math.pi * variance))

    def mean(self, output: Tensor) -> Tensor:
        return self._parts(output)[0]

    def sample(self, output: Tensor) -> Tensor:
        mean = self.mean(output)
        return mean + self.variance(output).sqrt() * torch.randn_like(mean)

    def _score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """The score ((x − μ)/σ², ½ s ((x − μ)²/σ² − 1)) and the diagonal of W, (1/σ², ½ s²), with
        s = ∂ log σ²/∂l = exp(l)/σ²."""
        mean, log_variance = self._parts(output)
        variance = self.variance(output)
        slope = torch.sigmoid(log_variance - math.log(self.options.min_variance))
        error = x - mean
        score = torch.stack([error / variance, 0.5 * slope * (error.square() / variance - 1)], -len(self.shape) - 1)
        precision = torch.stack([1 / variance, 0.5 * slope.square()], -len(self.shape) - 1)
        # The slope vanishes where the variance is at its lower bound, and the square root has no gradient at zero.
        return score, precision.clamp(min=torch.finfo(precision.dtype).tiny)

    def center(self, mean: Tensor, spread: Tensor) -> Tensor:
        """The mean of the training data, and the logarithm of the initial variance."""
        start = torch.full_like(spread, self.options.initial_variance) if self.options.initial_variance else spread
        return torch.stack([mean, self.options.to_log(start.mean()).expand_as(mean)])
