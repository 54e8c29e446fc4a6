"""A Gaussian that a normalising flow transforms."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from gpin._core.seeding import seeded
from gpin.distributions.base import LatentDistribution, Shape

__all__ = ["FlowNormal"]


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
