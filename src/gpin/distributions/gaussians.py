"""Gaussians with correlated latent dimensions, by the way in which their covariance is stored."""

import math
from typing import cast

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from gpin.distributions.base import (
    DiagonalNormal,
    LatentNormal,
    Shape,
    columns_of,
    from_columns,
    standard_noise,
)

__all__ = ["CholeskyNormal", "LowRankNormal", "PrecisionNormal", "ReflectedNormal", "as_normal"]


class CorrelatedNormal(LatentNormal):
    """Base class of Gaussians that store their mean, `loc`, `(..., d)`, and their covariance in a form of their own."""

    def __init__(self, mean: Tensor) -> None:
        self.loc = mean
        super().__init__(mean.shape[:-1], mean.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean, `(..., d)`."""
        return self.loc

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """mean + R ε with R as in :meth:`root_times`, shape `(*sample_shape, ..., d)`."""
        return self.loc + self.root_times(standard_noise(self, self.loc, sample_shape))


class CholeskyNormal(CorrelatedNormal):
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
        super().__init__(mean)
        self.factor, self._log_scale = factor, log_scale

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

    def root_times(self, noise: Tensor) -> Tensor:
        """L ε."""
        return from_columns(self.factor @ columns_of(noise, self.loc), noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """−½ ‖L⁻¹(z − mean)‖² − log|L| − d/2 log 2π."""
        difference = value - self.loc
        columns = torch.linalg.solve_triangular(self.factor, columns_of(difference, self.loc), upper=False)
        square = columns.square().sum(-2).movedim(-1, 0).reshape(difference.shape[:-1])
        return -0.5 * (square + self.event_shape[0] * math.log(2 * math.pi)) - self.log_scale.sum(-1)

    def entropy(self) -> Tensor:
        """d/2 (1 + log 2π) + log|L|."""
        return 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) + self.log_scale.sum(-1)

    def standard_normal_kl(self) -> Tensor:
        """KL to N(0, I), `(...)`: ½ (‖L‖² + ‖m‖² − d) − log|L| with the Frobenius norm of L."""
        squares = self.factor.square().sum((-2, -1)) + self.loc.square().sum(-1)
        return 0.5 * (squares - self.event_shape[0]) - self.log_scale.sum(-1)


class LowRankNormal(CorrelatedNormal):
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
        super().__init__(mean)
        self.scale, self.directions = scale, directions

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

    def root_times(self, noise: Tensor) -> Tensor:
        """D R ε with the Cholesky factor R of I + U Uᵀ; NaN where U is not finite or too large for it."""
        return self.scale * from_columns(self._factor(self.directions.mT) @ columns_of(noise, self.loc), noise)

    def _inner(self) -> Tensor:
        """The Cholesky factor of I + Uᵀ U, `(..., rank, rank)`; NaN where U is not finite or too large for it."""
        return self._factor(self.directions)

    @staticmethod
    def _factor(directions: Tensor) -> Tensor:
        """The Cholesky factor of I + Vᵀ V for V `(..., n, m)`: `(..., m, m)`; NaN where there is none."""
        eye = torch.eye(directions.shape[-1], dtype=directions.dtype, device=directions.device)
        factor, failed = torch.linalg.cholesky_ex(eye + directions.mT @ directions)
        return factor.where((failed == 0)[..., None, None], torch.nan)

    def _log_det(self) -> Tensor:
        """½ log|Σ|, `(...)`."""
        return self.scale.log().sum(-1) + self._inner().diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density; Σ⁻¹ by Woodbury's identity: ‖w‖² − ‖R⁻¹ Uᵀ w‖² with w = D⁻¹(z − m), R Rᵀ = I + Uᵀ U."""
        scaled = (value - self.loc) / self.scale
        columns = self.directions.mT @ columns_of(scaled, self.loc)
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


class PrecisionNormal(CorrelatedNormal):
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
        super().__init__(mean)
        self.factor = factor

    @property
    def covariance_matrix(self) -> Tensor:
        """Λ⁻¹, `(..., d, d)`."""
        root = torch.linalg.solve_triangular(self.factor, torch.eye(self.event_shape[0]).to(self.factor), upper=False)
        return root.mT @ root

    @property
    def variance(self) -> Tensor:
        """The diagonal of Λ⁻¹, `(..., d)`."""
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def root_times(self, noise: Tensor) -> Tensor:
        """L⁻ᵀ ε."""
        moved = torch.linalg.solve_triangular(self.factor.mT, columns_of(noise, self.loc), upper=True)
        return from_columns(moved, noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """−½ ‖Lᵀ(z − mean)‖² + log|L| − d/2 log 2π."""
        difference = value - self.loc
        columns = self.factor.mT @ columns_of(difference, self.loc)
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

    def root_times(self, noise: Tensor) -> Tensor:
        """H diag(std) ε."""
        return self._reflect(self.base.stddev * noise, self.reflectors)

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


def as_normal(q: Distribution) -> LatentNormal:
    """The Gaussian that stands for any distribution over z: that of :meth:`LatentDistribution.normal`, a torch Gaussian
    with its full covariance, or else the diagonal Gaussian with q's mean and standard deviations."""
    if (own := getattr(q, "normal", None)) is not None:
        return cast(LatentNormal, own())
    factor = getattr(q, "scale_tril", None)
    return DiagonalNormal(q.mean, q.stddev) if factor is None else CholeskyNormal(q.mean, factor)
