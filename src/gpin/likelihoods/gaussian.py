"""The Gaussian likelihood: one variance for all instances."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from gpin._core.shards import batch_sum
from gpin.likelihoods.base import Factorised, LikelihoodConfig

__all__ = ["Gaussian", "GaussianOptions", "VarianceOptions"]


class VarianceOptions(LikelihoodConfig):
    """The options of a likelihood whose variance is min_variance + exp(log_variance)."""

    initial_variance: float = Field(default=0.0, ge=0)
    min_variance: float = Field(default=1e-4, gt=0)

    @model_validator(mode="after")
    def _above_the_floor(self) -> "VarianceOptions":
        if 0 < self.initial_variance <= self.min_variance:
            raise ValueError(f"initial_variance must exceed the floor min_variance={self.min_variance:g}")
        return self

    def to_log(self, variance: Tensor) -> Tensor:
        """The log_variance of a variance, which is raised to just above the floor if necessary."""
        return (variance - self.min_variance).clamp(min=1e-3 * self.min_variance).log()


class GaussianOptions(VarianceOptions):
    """The options of the Gaussian likelihood.

    Arguments:
        variance: "learnt" (one scalar, by gradient), "analytic" (the running optimum, i.e. the mean squared
            error), "fixed", or "per_pixel" (learnt, one per pixel).
        initial_variance: The initial variance, or its value if fixed. 0 estimates it from the training data. With
            "analytic", the first batch replaces it.
        min_variance: The lower bound of the variance, without which the likelihood is unbounded.
    """

    kind: Literal["gaussian"] = "gaussian"
    variance: Literal["learnt", "analytic", "fixed", "per_pixel"] = "learnt"

    @model_validator(mode="after")
    def _has_a_value(self) -> "GaussianOptions":
        if self.variance == "fixed" and self.initial_variance == 0:
            raise ValueError("variance='fixed' needs initial_variance, the value of the variance")
        return self


class Gaussian(Factorised[GaussianOptions]):
    """N(x; output, σ²I), where the option `variance` determines how σ² is obtained."""

    name = "gaussian"
    title = "Gaussian: continuous data, one variance for all instances"
    Options = GaussianOptions

    learning_rate_factors: ClassVar[dict[str, float]] = {"log_variance": 20.0}
    """Factors of the learning rate by parameter. Adam changes log σ² by about the learning rate per step: 5e-4 is far
    too slow, 1e-2 is not."""

    MEMORY = 100
    """The number of training batches over which variance="analytic" averages."""

    def __init__(self, shape: Sequence[int], options: GaussianOptions | None = None) -> None:
        super().__init__(shape, options)
        start = self.options.to_log(torch.tensor(self.options.initial_variance or 1.0, dtype=torch.float64)).item()
        log_variance = torch.full(self.shape if self.options.variance == "per_pixel" else (), start)
        if self.options.variance in ("learnt", "per_pixel"):
            self.log_variance = nn.Parameter(log_variance)
        else:
            self.register_buffer("log_variance", log_variance)
        self.batches: Tensor
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    @property
    def variance(self) -> Tensor:
        """σ² = min_variance + exp(log_variance), a scalar or one value per pixel."""
        return self.options.min_variance + self.log_variance.exp()

    def _log_prob_each(self, x: Tensor, output: Tensor) -> Tensor:
        variance = self.variance
        return -0.5 * ((output - x).square() / variance + torch.log(2 * math.pi * variance))

    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        if self.options.variance == "per_pixel":
            return super().log_prob(x, output)
        # With one variance it suffices to divide the sum of squares by it.
        observed, variance = ~x.isnan(), self.variance
        squares = (output - x.where(observed, 0.0)).square_() * observed
        count = observed.flatten(-len(self.shape)).sum(-1)
        return -0.5 * (self._sum(squares) / variance + count * torch.log(2 * math.pi * variance))

    def mean(self, output: Tensor) -> Tensor:
        return output

    def sample(self, output: Tensor) -> Tensor:
        return output + self.variance.sqrt() * torch.randn_like(output)

    def _score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """(x − output)/σ² and 1/σ²."""
        precision = (1 / self.variance).expand_as(output)
        return (x - output) * precision, precision

    def center(self, mean: Tensor, spread: Tensor) -> Tensor:
        """The mean of the training data."""
        return mean

    @torch.no_grad()
    def prepare(self, spread: Tensor) -> None:
        if not self.options.initial_variance:
            start = spread if self.options.variance == "per_pixel" else spread.mean()
            self.log_variance.copy_(self.options.to_log(start))

    @torch.no_grad()
    def observe(self, x: Tensor, output: Tensor, weights: Tensor | None = None) -> None:
        if self.options.variance == "analytic":
            observed = ~x.isnan()
            squares = (output - x.where(observed, 0.0)).square() * observed
            counts = observed.flatten(-len(self.shape)).sum(-1)  # (batch,)
            errors = self._sum(squares) / counts.clamp(min=1)  # (..., batch)
            weights = torch.ones_like(errors) if weights is None else weights.expand_as(errors)
            weights = weights * (counts / math.prod(self.shape))
            error = batch_sum((weights * errors).sum()) / batch_sum(weights.sum())
            weight = 1 / (self.batches + 1).clamp(max=self.MEMORY)
            running = self.variance + weight * (error - self.variance)
            self.log_variance.copy_(self.options.to_log(running))
            self.batches += 1
