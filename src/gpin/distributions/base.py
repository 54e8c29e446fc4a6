"""The base classes of distributions over z, the diagonal Gaussian, and how any distribution is sampled."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import Distribution, Independent, Normal, constraints

__all__ = [
    "LOG_STD_RANGE",
    "DiagonalNormal",
    "LatentDistribution",
    "LatentNormal",
    "Shape",
    "TemperedDistribution",
    "columns_of",
    "from_columns",
    "gaussian_kl",
    "rsample_and_log_prob",
    "sample_and_log_prob",
    "standard_noise",
    "tempered",
]

Shape = Size | list[int] | tuple[int, ...]

LOG_STD_RANGE = (-10.0, 10.0)
"""The range of log standard deviations that encoders and refinements may return."""


def gaussian_kl(
    mean: Float[Tensor, "*batch d"], variance: Float[Tensor, "*batch d"], log_variance: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch"]:
    """KL(N(mean, variance) ‖ N(0, I)) = ½ Σ_j (v_j + m_j² − 1 − log v_j): `(..., d)` → `(...)`.

    log v is a separate argument because a random encoder passes its expectation.
    """
    return 0.5 * (variance + mean.square() - 1 - log_variance).sum(-1)


class LatentDistribution(Distribution):
    """Base class of gpin's distributions over z, which draw samples together with their log densities.

    The batch shape is `(...)`, the event shape `(d,)`. The functions :func:`rsample_and_log_prob` and
    :func:`sample_and_log_prob` do the same for any torch distribution.
    """

    arg_constraints = {}
    support = constraints.real_vector
    has_rsample = True
    axis_aligned: ClassVar[bool] = False
    """Whether the density is unimodal and uncorrelated, so that a grid of a few standard deviations around the mean
    covers it."""
    exact_mean: bool = True
    """Whether `mean` is the expectation, and not only a point that represents the distribution."""
    ascent: Any = None
    """The steps that led to this distribution, a :class:`gpin.refinement.Ascent`; None if it was not refined."""

    def rsample_and_log_prob(self, sample_shape: Shape = ()) -> tuple[Tensor, Tensor]:
        """Reparametrised samples `(*sample_shape, ..., d)` and their log densities `(*sample_shape, ...)`."""
        z = self.rsample(Size(sample_shape))
        return z, self.log_prob(z)

    @torch.no_grad()
    def sample_and_log_prob(self, samples: int, chunk: int) -> tuple[Tensor, Tensor]:
        """Samples `(samples, ..., d)` and their log densities `(samples, ...)`, without gradients.

        The densities are computed for `chunk` samples at a time, which affects memory use but not the result.
        """
        return _sample_and_log_prob(self, samples, chunk)

    def normal(self) -> "LatentNormal":
        """The Gaussian that stands for this distribution where one is needed: q itself if it is Gaussian, otherwise the
        diagonal Gaussian with its mean and standard deviations."""
        return DiagonalNormal(self.mean, self.stddev)

    def tempered(self, temperature: float) -> "LatentDistribution":
        """The distribution with its deviations from the mean multiplied by √temperature, so that its covariance is
        multiplied by the temperature."""
        return TemperedDistribution(self, temperature)


class LatentNormal(LatentDistribution, ABC):
    """Base class of the Gaussians N(m, Σ) over z, which offer products with Σ and can be moved to another mean.

    Subclasses define :meth:`covariance_times`, :meth:`root_times`, :meth:`with_mean` and :meth:`standard_normal_kl`.
    """

    def normal(self) -> "LatentNormal":
        """The distribution itself."""
        return self

    @abstractmethod
    def covariance_times(self, vector: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Σ v for one vector per instance: `(..., d)` → `(..., d)`."""

    @abstractmethod
    def root_times(self, noise: Float[Tensor, "*samples d"]) -> Float[Tensor, "*samples d"]:
        """R ε with R Rᵀ = Σ for standard normal noise ε `(*sample_shape, ..., d)`: the deviation of a draw from m."""

    @abstractmethod
    def with_mean(self, mean: Float[Tensor, "*batch d"]) -> "LatentNormal":
        """N(mean, Σ): the same covariance around another mean, `(..., d)`."""

    @abstractmethod
    def standard_normal_kl(self) -> Float[Tensor, "*batch"]:
        """KL to N(0, I), `(...)`."""


class DiagonalNormal(LatentNormal, Independent[Normal]):
    """N(mean, diag(std²)).

    Arguments:
        mean: Shape `(..., d)`.
        std: Shape `(..., d)`.
        log_std: The logarithm of std, if already known; computed on demand otherwise.
    """

    axis_aligned = True

    def __init__(self, mean: Tensor, std: Tensor, log_std: Tensor | None = None) -> None:
        super().__init__(Normal(mean, std, validate_args=False), 1, validate_args=False)
        self._log_std = log_std

    @property
    def log_std(self) -> Tensor:
        """log std, `(..., d)`."""
        return self.stddev.log() if self._log_std is None else self._log_std

    def expand(self, batch_shape: Shape, _instance: Any = None) -> "DiagonalNormal":
        """The same distribution with a larger batch shape."""
        shape = (*batch_shape, *self.event_shape)
        log_std = None if self._log_std is None else self._log_std.expand(shape)
        return DiagonalNormal(self.mean.expand(shape), self.stddev.expand(shape), log_std)

    def standard_normal_kl(self) -> Tensor:
        """KL to N(0, I), `(...)`: ½ Σ_j (v_j + m_j² − 1 − log v_j)."""
        return gaussian_kl(self.mean, self.variance, self.variance.log())

    def covariance_times(self, vector: Tensor) -> Tensor:
        """diag(std²) v."""
        return self.variance * vector

    def root_times(self, noise: Tensor) -> Tensor:
        """std · ε."""
        return self.stddev * noise

    def with_mean(self, mean: Tensor) -> "DiagonalNormal":
        """N(mean, diag(std²))."""
        return DiagonalNormal(mean, self.stddev, self._log_std)

    def tempered(self, temperature: float) -> "DiagonalNormal":
        """N(mean, temperature · diag(std²))."""
        return DiagonalNormal(self.mean, math.sqrt(temperature) * self.stddev)


class TemperedDistribution(LatentDistribution):
    """The distribution of m + √τ (z − m) for z of another distribution with mean m: τ times its covariance.

    Arguments:
        base: The distribution of z, with batch shape `(...)` and event shape `(d,)`.
        temperature: τ, a positive number.

    Example:
        >>> q = TemperedDistribution(DiagonalNormal(torch.zeros(3, 2), torch.ones(3, 2)), 4.0)
        >>> q.stddev[0], q.rsample((5,)).shape
        (tensor([2., 2.]), torch.Size([5, 3, 2]))
    """

    def __init__(self, base: Distribution, temperature: float) -> None:
        self.base, self.temperature = base, temperature
        self._scale = math.sqrt(temperature)
        self.exact_mean = getattr(base, "exact_mean", True)
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean of the base, `(..., d)`."""
        return self.base.mean

    @property
    def variance(self) -> Tensor:
        """τ times the variance of the base, `(..., d)`."""
        return self.temperature * self.base.variance

    def _moved(self, z: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """Draws of the base and their log densities as draws of this distribution with theirs."""
        mean = self.base.mean
        return mean + self._scale * (z - mean), log_prob - self.event_shape[0] * math.log(self._scale)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """m + √τ (z − m) for draws z of the base, shape `(*sample_shape, ..., d)`."""
        mean = self.base.mean
        return mean + self._scale * (self.base.rsample(Size(sample_shape)) - mean)

    def rsample_and_log_prob(self, sample_shape: Shape = ()) -> tuple[Tensor, Tensor]:
        """Reparametrised samples and their log densities, from those of the base."""
        return self._moved(*rsample_and_log_prob(self.base, sample_shape))

    @torch.no_grad()
    def sample_and_log_prob(self, samples: int, chunk: int) -> tuple[Tensor, Tensor]:
        """Samples and their log densities, from those of the base."""
        return self._moved(*sample_and_log_prob(self.base, samples, chunk))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of the base at m + (z − m)/√τ, minus d/2 log τ."""
        mean = self.base.mean
        inner = self.base.log_prob(mean + (value - mean) / self._scale)
        return inner - self.event_shape[0] * math.log(self._scale)


def tempered(q: Distribution, temperature: float) -> LatentDistribution:
    """Any distribution over z with its covariance multiplied by a temperature, see
    :meth:`LatentDistribution.tempered`."""
    own = getattr(q, "tempered", None)
    found = TemperedDistribution(q, temperature) if own is None else cast(LatentDistribution, own(temperature))
    found.ascent = getattr(q, "ascent", None)
    return found


def rsample_and_log_prob(q: Distribution, sample_shape: Shape = ()) -> tuple[Tensor, Tensor]:
    """Reparametrised samples of any distribution and their log densities, by q's own method if it has one."""
    own = getattr(q, "rsample_and_log_prob", None)
    if own is not None:
        return cast(tuple[Tensor, Tensor], own(Size(sample_shape)))
    z = q.rsample(Size(sample_shape))
    return z, q.log_prob(z)


@torch.no_grad()
def sample_and_log_prob(q: Distribution, samples: int, chunk: int) -> tuple[Tensor, Tensor]:
    """Samples of any distribution and their log densities, like :meth:`LatentDistribution.sample_and_log_prob`."""
    own = getattr(q, "sample_and_log_prob", None)
    return _sample_and_log_prob(q, samples, chunk) if own is None else cast(tuple[Tensor, Tensor], own(samples, chunk))


def _sample_and_log_prob(q: Distribution, samples: int, chunk: int) -> tuple[Tensor, Tensor]:
    z = q.sample(Size((samples,)))
    return z, torch.cat([q.log_prob(part) for part in z.split(chunk)])


def standard_noise(q: Distribution, like: Tensor, sample_shape: Shape) -> Tensor:
    """Standard normal noise of the shape of q's samples, `(*sample_shape, ..., d)`."""
    return torch.randn(q._extended_shape(Size(sample_shape)), dtype=like.dtype, device=like.device)


def columns_of(vectors: Tensor, like: Tensor) -> Tensor:
    """Vectors `(*sample_shape, ..., d)` as the columns of one matrix per instance, `(..., d, samples)`."""
    return vectors.reshape(-1, *like.shape).movedim(0, -1)


def from_columns(columns: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`columns_of`: `(..., d, samples)` in the shape of `like`."""
    return columns.movedim(-1, 0).reshape(like.shape)
