"""p(x|z): what the decoder's output says about x."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from gpin._core.config import Config
from gpin._core.errors import InputError
from gpin._core.shards import batch_sum

__all__ = ["Bernoulli", "Gaussian", "Likelihood", "LikelihoodConfig", "as_likelihood_config", "make_likelihood"]


class LikelihoodConfig(Config):
    """Which likelihood, and how its variance is found.

    Arguments:
        kind: "gaussian" for continuous data, "bernoulli" for data in [0, 1].
        variance: Of the Gaussian: "learnt" (one scalar, by gradient), "analytic" (the running
            optimum, i.e. the mean squared error), "fixed", or "per_pixel" (learnt, one a pixel).
        initial_variance: The start, or the value if fixed. 0 takes it from the training data. The running
            optimum of "analytic" forgets it with the first batch.
        min_variance: The floor; a continuous likelihood is unbounded without one.
    """

    model_config = ConfigDict(strict=True)

    kind: Literal["gaussian", "bernoulli"] = "gaussian"
    variance: Literal["learnt", "analytic", "fixed", "per_pixel"] = "learnt"
    initial_variance: float = Field(default=0.0, ge=0)
    min_variance: float = Field(default=1e-4, gt=0)

    @model_validator(mode="after")
    def _applies(self) -> "LikelihoodConfig":
        given = [name for name in self.changed() if name != "kind"]
        if self.kind == "bernoulli" and given:
            raise ValueError(f"{given[0]!r} is an option of the Gaussian and does not apply to 'bernoulli'")
        if 0 < self.initial_variance <= self.min_variance:
            raise ValueError(f"initial_variance must exceed the floor min_variance={self.min_variance:g}")
        if self.variance == "fixed" and self.initial_variance == 0:
            raise ValueError("variance='fixed' needs initial_variance, the value to fix it at")
        return self


class Likelihood(nn.Module, ABC):
    """p(x|z) given the decoder's output for z.

    Shapes: x is `(batch, *event)`, output `(..., batch, *event)`; densities sum over the event.
    """

    centred: ClassVar[bool] = False
    """Whether the decoder's output is an offset from the mean of the training data."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    @abstractmethod
    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        """log p(x|z), `(..., batch)`."""

    @abstractmethod
    def mean(self, output: Tensor) -> Tensor:
        """E[x|z], the shape of `output`."""

    @abstractmethod
    def sample(self, output: Tensor) -> Tensor:
        """A draw of x given z, the shape of `output`."""

    @abstractmethod
    def score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """∂ log p(x|output)/∂output, and minus its expected second derivative, which is diagonal."""

    def check(self, x: Tensor) -> None:
        """Raise if x lies outside the support."""

    def prepare(self, spread: Tensor) -> None:
        """Start from the training data: its mean squared deviation a pixel, shape `event`."""

    def observe(self, x: Tensor, output: Tensor, weights: Tensor | None = None) -> None:
        """See one training batch, for running statistics; weights `(..., batch)` where not all outputs count alike."""

    def _sum(self, per_pixel: Tensor) -> Tensor:
        return per_pixel.flatten(-len(self.shape)).sum(-1)


class Gaussian(Likelihood):
    """N(x; output, σ²I); σ² as `variance` says, never below the floor."""

    centred = True
    learning_rate_factors: ClassVar[dict[str, float]] = {"log_variance": 20.0}
    """Adam moves log σ² by about its step size; 5e-4 is far too slow, 1e-2 is not."""

    MEMORY = 100
    """Training batches that the running optimum of variance="analytic" looks back on."""

    def __init__(self, shape: Sequence[int], config: LikelihoodConfig | None = None) -> None:
        super().__init__(shape)
        self.config = config = config or LikelihoodConfig()
        start = torch.full(self.shape if config.variance == "per_pixel" else (), self._log_start(1.0))
        if config.initial_variance:
            start.fill_(self._log_start(config.initial_variance))
        if config.variance in ("learnt", "per_pixel"):
            self.log_variance = nn.Parameter(start)
        else:
            self.register_buffer("log_variance", start)
        self.batches: Tensor
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    @property
    def variance(self) -> Tensor:
        """σ², a scalar or one a pixel; floor + exp(log_variance)."""
        return self.config.min_variance + self.log_variance.exp()

    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        squares, variance = (output - x).square_(), self.variance
        if self.config.variance == "per_pixel":
            return -0.5 * (self._sum(squares / variance) + torch.log(2 * math.pi * variance).sum())
        size = math.prod(self.shape)
        return -0.5 * (self._sum(squares) / variance + size * torch.log(2 * math.pi * variance))

    def mean(self, output: Tensor) -> Tensor:
        return output

    def score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """(x − output)/σ² and 1/σ²."""
        precision = (1 / self.variance).expand_as(output)
        return (x - output) * precision, precision

    def sample(self, output: Tensor) -> Tensor:
        return output + self.variance.sqrt() * torch.randn_like(output)

    @torch.no_grad()
    def prepare(self, spread: Tensor) -> None:
        if not self.config.initial_variance:
            start = spread if self.config.variance == "per_pixel" else spread.mean()
            self.log_variance.copy_(self._to_log(start))

    @torch.no_grad()
    def observe(self, x: Tensor, output: Tensor, weights: Tensor | None = None) -> None:
        if self.config.variance == "analytic":
            errors = (output - x).square().flatten(-len(self.shape)).mean(-1)  # (..., batch)
            weights = torch.ones_like(errors) if weights is None else weights.expand_as(errors)
            error = batch_sum((weights * errors).sum()) / batch_sum(weights.sum())
            weight = 1 / (self.batches + 1).clamp(max=self.MEMORY)
            running = self.variance + weight * (error - self.variance)
            self.log_variance.copy_(self._to_log(running))
            self.batches += 1

    def _to_log(self, variance: Tensor) -> Tensor:
        return (variance - self.config.min_variance).clamp(min=1e-3 * self.config.min_variance).log()

    def _log_start(self, variance: float) -> float:
        return self._to_log(torch.tensor(variance, dtype=torch.float64)).item()


class Bernoulli(Likelihood):
    """Independent Bernoulli pixels with the output as logits; x in [0, 1]."""

    def __init__(self, shape: Sequence[int], config: LikelihoodConfig | None = None) -> None:
        super().__init__(shape)
        self.config = config or LikelihoodConfig(kind="bernoulli")

    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        return self._sum(x * output - functional.softplus(output))

    def mean(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """x − p and p (1 − p), p the sigmoid of the logits."""
        p = output.sigmoid()
        # 1 − p is zero in float32 from a logit of 17 on, and the root of a zero has no gradient.
        precision = p * (-output).sigmoid()
        return x - p, precision.clamp(min=torch.finfo(precision.dtype).tiny)

    def sample(self, output: Tensor) -> Tensor:
        return torch.bernoulli(output.sigmoid())

    def check(self, x: Tensor) -> None:
        low, high = x.min().item(), x.max().item()
        if low < 0 or high > 1:
            raise InputError(f"a Bernoulli likelihood needs data in [0, 1], got values from {low:.4g} to {high:.4g}")


_KINDS: dict[str, type[Gaussian] | type[Bernoulli]] = {"gaussian": Gaussian, "bernoulli": Bernoulli}


def make_likelihood(shape: Sequence[int], config: LikelihoodConfig) -> Likelihood:
    """The likelihood that a config describes."""
    return _KINDS[config.kind](shape, config)


def as_likelihood_config(value: str | Mapping[str, Any] | LikelihoodConfig) -> LikelihoodConfig:
    """A likelihood named, given as options, or given as a config."""
    if isinstance(value, LikelihoodConfig):
        return value
    options = {"kind": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InputError(f"the likelihood must be a name, a mapping of options or a LikelihoodConfig, got {value!r}")
    return LikelihoodConfig.parse(options, "the likelihood")
