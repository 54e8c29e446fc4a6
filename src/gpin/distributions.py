"""Distributions that torch.distributions lacks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import Distribution, Independent, Normal, constraints

from gpin._core.seeding import seeded

__all__ = [
    "LOG_STD_RANGE",
    "CholeskyNormal",
    "DiagonalNormal",
    "FlowNormal",
    "LatentDistribution",
    "LatentNormal",
    "LowRankNormal",
    "NormalMixture",
    "PrecisionMixture",
    "PrecisionNormal",
    "RandomMomentsNormal",
    "ReflectedNormal",
    "TemperedDistribution",
    "as_normal",
    "gaussian_kl",
    "rsample_and_log_prob",
    "sample_and_log_prob",
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

    Subclasses define :meth:`covariance_times`, :meth:`with_mean` and :meth:`standard_normal_kl`.
    """

    ascent: Any = None
    """The steps that led to this distribution, a :class:`gpin.refinement.Ascent`; None if it was not refined."""

    def normal(self) -> "LatentNormal":
        """The distribution itself."""
        return self

    @abstractmethod
    def covariance_times(self, vector: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Σ v for one vector per instance: `(..., d)` → `(..., d)`."""

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

    def with_mean(self, mean: Tensor) -> "DiagonalNormal":
        """N(mean, diag(std²))."""
        return DiagonalNormal(mean, self.stddev, self._log_std)

    def tempered(self, temperature: float) -> "DiagonalNormal":
        """N(mean, temperature · diag(std²))."""
        return DiagonalNormal(self.mean, math.sqrt(temperature) * self.stddev)


class CholeskyNormal(LatentNormal):
    """N(mean, Σ), parametrised by the Cholesky factor L of the covariance, Σ = L Lᵀ.

    Arguments:
        mean: Shape `(..., d)`.
        factor: L, lower triangular with a positive diagonal, shape `(..., d, d)`.
        log_scale: The logarithm of the diagonal of L, `(..., d)`, if already known; computed on demand otherwise.

    Example:
        >>> q = CholeskyNormal(torch.zeros(3, 2), torch.eye(2).expand(3, 2, 2))
        >>> q.rsample((5,)).shape, q.covariance_times(torch.ones(3, 2)).shape
        (torch.Size([5, 3, 2]), torch.Size([3, 2]))
    """

    def __init__(self, mean: Tensor, factor: Tensor, log_scale: Tensor | None = None) -> None:
        self.loc, self.factor, self._log_scale = mean, factor, log_scale
        super().__init__(mean.shape[:-1], mean.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean, `(..., d)`."""
        return self.loc

    @property
    def log_scale(self) -> Tensor:
        """The logarithm of the diagonal of L, `(..., d)`."""
        return self.factor.diagonal(dim1=-2, dim2=-1).log() if self._log_scale is None else self._log_scale

    @property
    def covariance_matrix(self) -> Tensor:
        """L Lᵀ, `(..., d, d)`."""
        return self.factor @ self.factor.mT

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance, `(..., d)`."""
        return self.factor.square().sum(-1)

    def covariance_times(self, vector: Tensor) -> Tensor:
        """L (Lᵀ v)."""
        return (self.factor @ (self.factor.mT @ vector.unsqueeze(-1))).squeeze(-1)

    def with_mean(self, mean: Tensor) -> "CholeskyNormal":
        """N(mean, L Lᵀ)."""
        return CholeskyNormal(mean, self.factor, self._log_scale)

    def tempered(self, temperature: float) -> "CholeskyNormal":
        """N(mean, temperature · L Lᵀ)."""
        return CholeskyNormal(self.loc, math.sqrt(temperature) * self.factor)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """mean + L ε, shape `(*sample_shape, ..., d)`."""
        noise = _noise(self, self.loc, sample_shape)
        return self.loc + _from_columns(self.factor @ _columns(noise, self.loc), noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """−½ ‖L⁻¹(z − mean)‖² − log|L| − d/2 log 2π."""
        difference = value - self.loc
        columns = torch.linalg.solve_triangular(self.factor, _columns(difference, self.loc), upper=False)
        square = columns.square().sum(-2).movedim(-1, 0).reshape(difference.shape[:-1])
        return -0.5 * (square + self.event_shape[0] * math.log(2 * math.pi)) - self.log_scale.sum(-1)

    def entropy(self) -> Tensor:
        """d/2 (1 + log 2π) + log|L|."""
        return 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) + self.log_scale.sum(-1)

    def standard_normal_kl(self) -> Tensor:
        """KL to N(0, I), `(...)`: ½ (‖L‖² + ‖m‖² − d) − log|L| with the Frobenius norm of L."""
        squares = self.factor.square().sum((-2, -1)) + self.loc.square().sum(-1)
        return 0.5 * (squares - self.event_shape[0]) - self.log_scale.sum(-1)


class LowRankNormal(LatentNormal):
    """N(mean, D (I + U Uᵀ) D) with D = diag(scale) and U of few columns.

    Arguments:
        mean: Shape `(..., d)`.
        scale: The diagonal of D, positive, shape `(..., d)`.
        directions: U, shape `(..., d, rank)`.

    Example:
        >>> q = LowRankNormal(torch.zeros(3, 4), torch.ones(3, 4), torch.ones(3, 4, 2))
        >>> q.rsample((5,)).shape, q.covariance_times(torch.ones(3, 4)).shape
        (torch.Size([5, 3, 4]), torch.Size([3, 4]))
    """

    def __init__(self, mean: Tensor, scale: Tensor, directions: Tensor) -> None:
        self.loc, self.scale, self.directions = mean, scale, directions
        super().__init__(mean.shape[:-1], mean.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean, `(..., d)`."""
        return self.loc

    @property
    def covariance_matrix(self) -> Tensor:
        """D (I + U Uᵀ) D, `(..., d, d)`."""
        root = self.scale.unsqueeze(-1) * self.directions
        return torch.diag_embed(self.scale.square()) + root @ root.mT

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance, `(..., d)`."""
        return self.scale.square() * (1 + self.directions.square().sum(-1))

    def covariance_times(self, vector: Tensor) -> Tensor:
        """D (w + U (Uᵀ w)) with w = D v."""
        scaled = (self.scale * vector).unsqueeze(-1)
        return self.scale * (scaled + self.directions @ (self.directions.mT @ scaled)).squeeze(-1)

    def with_mean(self, mean: Tensor) -> "LowRankNormal":
        """N(mean, D (I + U Uᵀ) D)."""
        return LowRankNormal(mean, self.scale, self.directions)

    def tempered(self, temperature: float) -> "LowRankNormal":
        """N(mean, temperature · D (I + U Uᵀ) D)."""
        return LowRankNormal(self.loc, math.sqrt(temperature) * self.scale, self.directions)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """mean + D (ε₁ + U ε₂) with ε₁ of d and ε₂ of rank entries, shape `(*sample_shape, ..., d)`."""
        size, rank = self.directions.shape[-2:]
        shape = (*Size(sample_shape), *self.batch_shape, size + rank)
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        own, along = noise.split([size, rank], dim=-1)
        return self.loc + self.scale * (own + (self.directions @ along.unsqueeze(-1)).squeeze(-1))

    def _inner(self) -> Tensor:
        """The Cholesky factor of I + Uᵀ U, `(..., rank, rank)`; NaN where U is not finite or too large for it."""
        eye = torch.eye(self.directions.shape[-1], dtype=self.loc.dtype, device=self.loc.device)
        factor, failed = torch.linalg.cholesky_ex(eye + self.directions.mT @ self.directions)
        return factor.where((failed == 0)[..., None, None], torch.nan)

    def _log_det(self) -> Tensor:
        """½ log|Σ|, `(...)`."""
        return self.scale.log().sum(-1) + self._inner().diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density; Σ⁻¹ by Woodbury's identity: ‖w‖² − ‖R⁻¹ Uᵀ w‖² with w = D⁻¹(z − m), R Rᵀ = I + Uᵀ U."""
        scaled = (value - self.loc) / self.scale
        columns = self.directions.mT @ _columns(scaled, self.loc)
        along = torch.linalg.solve_triangular(self._inner(), columns, upper=False).square().sum(-2)
        square = scaled.square().sum(-1) - along.movedim(-1, 0).reshape(scaled.shape[:-1])
        return -0.5 * (square + self.event_shape[0] * math.log(2 * math.pi)) - self._log_det()

    def entropy(self) -> Tensor:
        """d/2 (1 + log 2π) + ½ log|Σ|."""
        return 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) + self._log_det()

    def standard_normal_kl(self) -> Tensor:
        """KL to N(0, I), `(...)`: ½ (tr Σ + ‖m‖² − d − log|Σ|)."""
        squares = self.variance.sum(-1) + self.loc.square().sum(-1)
        return 0.5 * (squares - self.event_shape[0]) - self._log_det()


class RandomMomentsNormal(LatentDistribution):
    r"""A Gaussian whose mean and standard deviation are themselves Gaussian, marginalised exactly.

    .. math:: q(z) = \iint \mathcal{N}(z; f, h^2)\, \mathcal{N}(f; \bar f, s_f^2)\,
        \mathcal{N}(h; \bar h, s_h^2)\, df\, dh
        = \int \mathcal{N}(z; \bar f, s_f^2 + h^2)\, \mathcal{N}(h; \bar h, s_h^2)\, dh

    independently for each entry of the last dimension. Samples are exact,
    z = f̄ + s_f ε₁ + (h̄ + s_h ε₂) ε₃, and the density is a one-dimensional quadrature, accurate to 1e-7
    for s_f ≥ s_h/20 (below that, the density itself is nearly singular at z = f̄).

    Arguments:
        mean: f̄, shape `(..., d)`.
        mean_std: s_f ≥ 0, shape `(..., d)`.
        scale: h̄, of either sign, shape `(..., d)`.
        scale_std: s_h ≥ 0, shape `(..., d)`.
        nodes: Number of quadrature nodes.

    Example:
        >>> one = torch.ones(3, 2)
        >>> q = RandomMomentsNormal(0 * one, 0.1 * one, one, 0.2 * one)
        >>> q.rsample((5,)).shape, q.log_prob(one).shape
        (torch.Size([5, 3, 2]), torch.Size([3]))
    """

    axis_aligned = True

    def __init__(self, mean: Tensor, mean_std: Tensor, scale: Tensor, scale_std: Tensor, nodes: int = 64) -> None:
        self.loc, self.mean_std, self.scale, self.scale_std = torch.broadcast_tensors(mean, mean_std, scale, scale_std)
        self.nodes = nodes
        super().__init__(self.loc.shape[:-1], self.loc.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """f̄."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """h̄² + s_h² + s_f²."""
        return self.scale.square() + self.scale_std.square() + self.mean_std.square()

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Exact samples, shape `(*sample_shape, ..., d)`."""
        shape = self._extended_shape(Size(sample_shape))
        first, second, third = torch.randn((3, *shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + self.mean_std * first + (self.scale + self.scale_std * second) * third

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z) summed over the last dimension; value `(*sample_shape, ..., d)`."""
        deviates, log_weights = self._quadrature()
        variance = self.mean_std.square() + (self.scale + self.scale_std * deviates).square()
        distance = (value - self.loc).square()
        # Broadcast (nodes, ..., d) against (nodes, *sample_shape, ..., d).
        leading = distance.dim() - self.loc.dim()
        shape = (self.nodes, *(1,) * leading, *self.loc.shape)
        log_normalised = (log_weights - 0.5 * torch.log(2 * math.pi * variance)).reshape(shape)
        exponents = log_normalised - 0.5 * distance / variance.reshape(shape)
        return torch.logsumexp(exponents, dim=0).sum(-1)

    @torch.no_grad()
    def _quadrature(self) -> tuple[Tensor, Tensor]:
        """Nodes u_k and log-weights for ∫ N(u; 0, 1) F(h̄ + s_h u) du, each `(nodes, ..., d)`.

        F(h) = N(z; f̄, s_f² + h²) varies on the scale max(|h|, s_f), so the trapezoidal rule is applied
        in t with h = a sinh t, a = s_f: it is fine around h = 0, where F is nearly singular, while the
        branch points of F stay π/2 off the real line, so that the rule converges exponentially. Where
        N(u; 0, 1) is small at h = 0, a may be larger, which leaves more nodes for the bulk; far from
        zero the rule becomes uniform in u. The weights are normalised to sum to one. Nodes are computed
        in float64 and treated as constants: derivatives pass through h̄ + s_h u_k.
        """
        reach = 8.0
        scale, scale_std, mean_std = (p.double() for p in (self.scale, self.scale_std, self.mean_std))
        scale_std = torch.maximum(scale_std, 1e-9 * (scale.abs() + mean_std)).clamp(min=1e-300)
        zero = -scale / scale_std  # the u at which h = 0
        far = torch.where(zero.abs() < reach, zero.square() / 50, zero.abs() - reach / 2)
        stretch = torch.maximum(mean_std / scale_std, far).clamp(min=0.02)
        low, high = torch.asinh((-reach - zero) / stretch), torch.asinh((reach - zero) / stretch)
        fraction = torch.linspace(0, 1, self.nodes, dtype=torch.float64, device=zero.device)
        fraction = fraction.reshape(-1, *(1,) * zero.dim())
        t = low + (high - low) * fraction
        deviates = zero + stretch * torch.sinh(t)
        log_weights = -0.5 * deviates.square() + torch.log(torch.cosh(t))
        log_weights = log_weights - torch.logsumexp(log_weights, dim=0)
        return deviates.to(self.loc.dtype), log_weights.to(self.loc.dtype)


class PrecisionNormal(LatentNormal):
    """N(mean, Λ⁻¹), parametrised by the Cholesky factor L of the precision, Λ = L Lᵀ.

    Arguments:
        mean: Shape `(..., d)`.
        factor: L, lower triangular, shape `(..., d, d)`.

    Example:
        >>> q = PrecisionNormal(torch.zeros(3, 2), torch.eye(2).expand(3, 2, 2))
        >>> q.rsample((5,)).shape, q.log_prob(torch.zeros(3, 2)).shape
        (torch.Size([5, 3, 2]), torch.Size([3]))
    """

    def __init__(self, mean: Tensor, factor: Tensor) -> None:
        self.loc, self.factor = mean, factor
        super().__init__(mean.shape[:-1], mean.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean, `(..., d)`."""
        return self.loc

    @property
    def covariance_matrix(self) -> Tensor:
        """Λ⁻¹, `(..., d, d)`."""
        root = torch.linalg.solve_triangular(self.factor, torch.eye(self.event_shape[0]).to(self.factor), upper=False)
        return root.mT @ root

    @property
    def variance(self) -> Tensor:
        """The diagonal of Λ⁻¹, `(..., d)`."""
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """mean + L⁻ᵀ ε, shape `(*sample_shape, ..., d)`."""
        noise = _noise(self, self.loc, sample_shape)
        moved = torch.linalg.solve_triangular(self.factor.mT, _columns(noise, self.loc), upper=True)
        return self.loc + _from_columns(moved, noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """−½ ‖Lᵀ(z − mean)‖² + log|L| − d/2 log 2π."""
        difference = value - self.loc
        columns = self.factor.mT @ _columns(difference, self.loc)
        square = columns.square().sum(-2).movedim(-1, 0).reshape(difference.shape[:-1])
        log_det = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return log_det - 0.5 * (square + self.event_shape[0] * math.log(2 * math.pi))

    def entropy(self) -> Tensor:
        """d/2 (1 + log 2π) − log|L|."""
        log_det = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) - log_det

    def standard_normal_kl(self) -> Tensor:
        """KL to N(0, I), `(...)`: −H[q] − E_q[log p(z)] = ½ Σ_j (v_j + m_j² + log 2π) − H[q]."""
        return 0.5 * (self.variance + self.mean.square() + math.log(2 * math.pi)).sum(-1) - self.entropy()

    def covariance_times(self, vector: Tensor) -> Tensor:
        """Λ⁻¹ v, by two triangular solves."""
        return torch.cholesky_solve(vector.unsqueeze(-1), self.factor).squeeze(-1)

    def with_mean(self, mean: Tensor) -> "PrecisionNormal":
        """N(mean, Λ⁻¹)."""
        return PrecisionNormal(mean, self.factor)

    def tempered(self, temperature: float) -> "PrecisionNormal":
        """N(mean, temperature · Λ⁻¹)."""
        return PrecisionNormal(self.loc, self.factor / math.sqrt(temperature))


class ReflectedNormal(LatentNormal):
    """A diagonal Gaussian under Householder reflections, z = H_T … H_1 z₀: a full covariance at low cost.

    H_t z = z − 2 v_t (v_tᵀ z) / ‖v_t‖². Reflections preserve volumes and lengths and are their own inverses.

    Arguments:
        base: The distribution of z₀, a diagonal Gaussian with batch shape `(...)` and event shape `(d,)`.
        reflectors: v_1 … v_T, shape `(T, ..., d)`.
    """

    def __init__(self, base: DiagonalNormal, reflectors: Tensor) -> None:
        self.base, self.reflectors = base, reflectors
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    def _reflect(self, z: Tensor, reflectors: Tensor) -> Tensor:
        for v in reflectors:
            # A reflector of length zero has no direction; the clamp makes it the identity.
            square = v.square().sum(-1, keepdim=True).clamp(min=torch.finfo(v.dtype).tiny)
            z = z - 2 * v * ((v * z).sum(-1, keepdim=True) / square)
        return z

    @property
    def mean(self) -> Tensor:
        """H_T … H_1 applied to the mean of the base, `(..., d)`."""
        return self._reflect(self.base.mean, self.reflectors)

    @property
    def covariance_matrix(self) -> Tensor:
        """H diag(std²) Hᵀ, `(..., d, d)`."""
        root = torch.diag_embed(self.base.stddev).movedim(-2, 0)  # the columns of diag(std) along the first dimension
        moved = self._reflect(root, self.reflectors).movedim(0, -1)
        return moved @ moved.mT

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance, `(..., d)`."""
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Reflected samples of the base, shape `(*sample_shape, ..., d)`."""
        return self._reflect(self.base.rsample(Size(sample_shape)), self.reflectors)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of the base at the point reflected back."""
        return self.base.log_prob(self._reflect(value, self.reflectors.flip(0)))

    def standard_normal_kl(self) -> Tensor:
        """KL to N(0, I), `(...)`. It equals that of the base, because reflections preserve entropies and lengths."""
        return self.base.standard_normal_kl()

    def covariance_times(self, vector: Tensor) -> Tensor:
        """H diag(std²) Hᵀ v."""
        turned = self._reflect(vector, self.reflectors.flip(0))
        return self._reflect(self.base.variance * turned, self.reflectors)

    def with_mean(self, mean: Tensor) -> "ReflectedNormal":
        """The same reflections of a base whose mean is mapped to `mean`."""
        return ReflectedNormal(self.base.with_mean(self._reflect(mean, self.reflectors.flip(0))), self.reflectors)

    def tempered(self, temperature: float) -> "ReflectedNormal":
        """The same reflections of the tempered base."""
        return ReflectedNormal(self.base.tempered(temperature), self.reflectors)


class NormalMixture(LatentDistribution):
    """Σ_m α_m N(mean_m, diag std_m²), with samples that are reparametrised within each component.

    Arguments:
        log_weights: log α, normalised, shape `(batch, M)`.
        means: Shape `(batch, M, d)`.
        stds: Shape `(batch, M, d)`.
    """

    def __init__(self, log_weights: Tensor, means: Tensor, stds: Tensor) -> None:
        self.log_weights, self.means, self.stds = log_weights, means, stds
        super().__init__(means.shape[:-2], means.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Σ_m α_m mean_m, `(batch, d)`."""
        return (self.log_weights.exp().unsqueeze(-1) * self.means).sum(-2)

    @property
    def variance(self) -> Tensor:
        """The variance by the law of total variance, `(batch, d)`."""
        spread = (self.means - self.mean.unsqueeze(-2)).square()
        return (self.log_weights.exp().unsqueeze(-1) * (self.stds.square() + spread)).sum(-2)

    def component_rsample(self, samples: int) -> Tensor:
        """Reparametrised samples of every component, `(samples, M, batch, d)`, for stratified expectations."""
        means, stds = self.means.movedim(-2, 0), self.stds.movedim(-2, 0)
        noise = torch.randn((samples, *means.shape), dtype=means.dtype, device=means.device)
        return means + stds * noise

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Ancestral samples. Gradients reach means and standard deviations but not the choice of component;
        for gradients of the weights, use `component_rsample` and weight the components."""
        shape = Size(sample_shape)
        chosen = torch.distributions.Categorical(logits=self.log_weights.detach()).sample(shape)  # (*shape, batch)
        index = chosen[..., None, None].expand(*chosen.shape, 1, self.event_shape[0])
        mean, std = (p.expand(*shape, *p.shape).gather(-2, index).squeeze(-2) for p in (self.means, self.stds))
        return mean + std * torch.randn_like(mean)

    def log_prob(self, value: Tensor) -> Tensor:
        """log Σ_m α_m N(z; mean_m, std_m²), for z `(..., batch, d)`."""
        return self.weigh(self.component_log_prob(value))

    def component_log_prob(self, value: Tensor) -> Tensor:
        """log N(z; mean_m, std_m²) of every component: `(..., batch, d)` → `(..., batch, M)`."""
        return Normal(self.means, self.stds, validate_args=False).log_prob(value.unsqueeze(-2)).sum(-1)

    def weigh(self, component_log_prob: Tensor) -> Tensor:
        """log Σ_m α_m exp(·_m): `(..., batch, M)` → `(..., batch)`."""
        return torch.logsumexp(self.log_weights + component_log_prob, dim=-1)


class PrecisionMixture(LatentDistribution):
    """Σ_m α_m N(mean_m, Λ_m⁻¹), a mixture of Gaussians with full covariances.

    Arguments:
        log_weights: log α, normalised, shape `(..., M)`.
        components: The Gaussians, with batch shape `(..., M)`.

    Example:
        >>> components = PrecisionNormal(torch.zeros(3, 4, 2), torch.eye(2).expand(3, 4, 2, 2))
        >>> q = PrecisionMixture(torch.full((3, 4), 0.25).log(), components)
        >>> q.rsample((5,)).shape, q.log_prob(torch.zeros(3, 2)).shape
        (torch.Size([5, 3, 2]), torch.Size([3]))
    """

    def __init__(self, log_weights: Tensor, components: PrecisionNormal) -> None:
        self.log_weights, self.components = log_weights, components
        super().__init__(components.batch_shape[:-1], components.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Σ_m α_m mean_m, `(..., d)`."""
        return (self.log_weights.exp().unsqueeze(-1) * self.components.mean).sum(-2)

    @property
    def variance(self) -> Tensor:
        """The variance by the law of total variance, `(..., d)`."""
        spread = (self.components.mean - self.mean.unsqueeze(-2)).square()
        return (self.log_weights.exp().unsqueeze(-1) * (self.components.variance + spread)).sum(-2)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Ancestral samples; gradients reach the components but not the choice among them."""
        shape = Size(sample_shape)
        chosen = torch.distributions.Categorical(logits=self.log_weights.detach()).sample(shape)
        z = self.components.rsample(shape)  # of every component, (*shape, ..., M, d)
        return z.gather(-2, chosen[..., None, None].expand(*chosen.shape, 1, z.shape[-1])).squeeze(-2)

    def log_prob(self, value: Tensor) -> Tensor:
        """log Σ_m α_m N(z; mean_m, Λ_m⁻¹), for z `(..., d)`."""
        return torch.logsumexp(self.log_weights + self.components.log_prob(value.unsqueeze(-2)), dim=-1)


class FlowNormal(LatentDistribution):
    """A diagonal Gaussian pushed through transforms with a cheap forward pass, z = f_T ∘ … ∘ f_1 (z₀).

    Sampling also yields the density of the samples (:meth:`rsample_and_log_prob`). The density of other points
    requires the inverse, which an autoregressive transform computes in d passes.

    Arguments:
        base: The distribution of z₀, with batch shape `(...)` and event shape `(d,)`.
        transforms: torch transforms with `call_and_ladj`, such as those of zuko.
    """

    exact_mean = False

    def __init__(self, base: Distribution, transforms: Sequence[Any]) -> None:
        self.base, self.transforms = base, transforms
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The image of the mean of the base, which represents the flow because its mean has no closed form."""
        z = self.base.mean
        for transform in self.transforms:
            z = transform(z)
        return z

    @property
    def variance(self) -> Tensor:
        """The variance of 256 samples with fixed noise, `(..., d)`, because a flow's has no closed form."""
        with seeded(0):
            return self.rsample((256,)).var(0)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Samples in one pass, shape `(*sample_shape, ..., d)`."""
        return self.rsample_and_log_prob(sample_shape)[0]

    def rsample_and_log_prob(self, sample_shape: Shape = ()) -> tuple[Tensor, Tensor]:
        """Reparametrised samples and their log densities, without inverting the flow."""
        return self._carry(self.base.rsample(Size(sample_shape)))

    @torch.no_grad()
    def sample_and_log_prob(self, samples: int, chunk: int) -> tuple[Tensor, Tensor]:
        """Samples and their log densities, without inverting the flow, which maps `chunk` samples at a time."""
        carried = [self._carry(part) for part in self.base.sample(Size((samples,))).split(chunk)]
        z, log_prob = (torch.cat(parts) for parts in zip(*carried, strict=True))
        return z, log_prob

    def _carry(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The images of samples of the base, `(..., d)`, and the log densities there."""
        log_prob = self.base.log_prob(z)
        for transform in self.transforms:
            z, log_det = transform.call_and_ladj(z)
            log_prob = log_prob - log_det
        return z, log_prob

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z) of any point, through the inverse."""
        log_det_total = torch.zeros(value.shape[:-1], dtype=value.dtype, device=value.device)
        finite = value.isfinite().all(-1)
        for transform in reversed(self.transforms):
            value, log_det = transform.inv.call_and_ladj(value)
            log_det_total = log_det_total + log_det
        total = self.base.log_prob(value) + log_det_total
        # Far from the mass the inverse overflows to inf − inf; the density there is zero.
        return torch.where(total.isnan() & finite, -math.inf, total)


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


def as_normal(q: Distribution) -> LatentNormal:
    """The Gaussian that stands for any distribution over z: that of :meth:`LatentDistribution.normal`, a torch Gaussian
    with its full covariance, or else the diagonal Gaussian with q's mean and standard deviations."""
    if (own := getattr(q, "normal", None)) is not None:
        return cast(LatentNormal, own())
    factor = getattr(q, "scale_tril", None)
    return DiagonalNormal(q.mean, q.stddev) if factor is None else CholeskyNormal(q.mean, factor)


def tempered(q: Distribution, temperature: float) -> Distribution:
    """Any distribution over z with its covariance multiplied by a temperature, see
    :meth:`LatentDistribution.tempered`."""
    own = getattr(q, "tempered", None)
    found = TemperedDistribution(q, temperature) if own is None else cast(Distribution, own(temperature))
    if (ascent := getattr(q, "ascent", None)) is not None:
        found.ascent = ascent  # type: ignore[attr-defined]
    return found


def _noise(q: Distribution, like: Tensor, sample_shape: Shape) -> Tensor:
    """Standard normal noise of the shape of q's samples, `(*sample_shape, ..., d)`."""
    return torch.randn(q._extended_shape(Size(sample_shape)), dtype=like.dtype, device=like.device)


def _columns(vectors: Tensor, like: Tensor) -> Tensor:
    """Vectors `(*sample_shape, ..., d)` as the columns of one matrix per instance, `(..., d, samples)`."""
    return vectors.reshape(-1, *like.shape).movedim(0, -1)


def _from_columns(columns: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`_columns`: `(..., d, samples)` in the shape of `like`."""
    return columns.movedim(-1, 0).reshape(like.shape)


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
