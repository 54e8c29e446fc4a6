"""Mixtures of Gaussians."""

import torch
from torch import Size, Tensor
from torch.distributions import Normal

from gpin.distributions.base import LatentDistribution, Shape
from gpin.distributions.gaussians import PrecisionNormal

__all__ = ["NormalMixture", "PrecisionMixture"]


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
