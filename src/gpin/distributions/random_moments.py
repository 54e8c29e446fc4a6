"""The Gaussian whose mean and standard deviation are random, with the randomness integrated out."""

import math

import torch
from torch import Size, Tensor

from gpin.distributions.base import LatentDistribution, Shape

__all__ = ["RandomMomentsNormal"]


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
