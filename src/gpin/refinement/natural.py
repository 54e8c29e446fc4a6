r"""Natural-gradient steps: the mean of a Gaussian climbs log p(x, z) in the metric of its own covariance.

For q = N(m, Σ) the natural gradient of the ELBO in m is Σ E_q[∇ log p(x, z)]. With the expectation replaced by the
value at the mean, a step needs one gradient of the decoder and no Jacobian,

.. math:: g_t = \nabla_z \log p(x, z)\big|_{z=m_t}, \qquad m_{t+1} = m_t + \alpha_t\, \Sigma\, g_t

If Σ is the inverse curvature of −log p(x, z), this is Newton's step. α_t is, for each instance, the first of a sequence
of step sizes that does not lower log p(x, m), or zero. The Newton decrement ½ gᵀΣg estimates in nats how much
log p(x, m) can still rise.

These steps lead to the mode. With draws, the expectation is an average over points m ± Rε of q, R Rᵀ = Σ, where the ε
are the same for all instances and calls, and this average of log p(x, z) takes the place of log p(x, m). The steps then
lead to the m that approximately maximises the ELBO for the given Σ, which is closer to the *mean* of a skewed posterior
than the mode is. A step costs one gradient of the decoder per point. For a Gaussian posterior the average is exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from torch.distributions import Distribution

from gpin._core.config import MethodConfig
from gpin.distributions import LatentNormal, as_normal
from gpin.generative import Generative, log_joint_alone, log_joint_and_gradient
from gpin.refinement.base import Refinement

__all__ = ["Ascent", "Natural", "NaturalConfig", "newton_decrement"]

MOST_STEPS = 1000
"""The largest number of steps."""

MOST_DRAWS = 4096
"""The largest number of draws."""

PAIRS = 2048
"""How many pairs of an instance and a draw are decoded at a time."""


def newton_decrement(
    gradient: Float[Tensor, "batch d"], direction: Float[Tensor, "batch d"]
) -> Float[Tensor, " batch"]:
    """½ gᵀ Σ g, `(batch,)`, from the gradient g and the direction Σg, each `(batch, d)`."""
    return 0.5 * (gradient * direction).sum(-1)


class NaturalConfig(MethodConfig):
    """Options of natural-gradient steps.

    Arguments:
        steps: T, the number of steps.
        step_size: The first step size α that is tried; 1 is Newton's step.
        backtracking: The factor by which α is reduced while log p(x, m) would fall.
        trials: How many step sizes are tried before an instance stays where it is.
        draws: The number of points of q over which the gradient is averaged, a multiple of two; 0 takes the gradient
            at the mean.
        check: Whether inference checks, with a forward pass of the decoder, that a step does not lower its objective.
            Without it, every step takes the first step size, and an instance stays where it is only if that leads to
            a mean that is not finite or, before the last step, to an objective that is not.
    """

    formerly: ClassVar[Mapping[str, Any]] = {"draws": 0, "check": True}
    later = ("draws", "check")

    steps: int = Field(default=1, ge=0, le=MOST_STEPS)
    step_size: float = Field(default=1.0, gt=0, le=1)
    backtracking: float = Field(default=0.25, gt=0, lt=1)
    trials: int = Field(default=4, ge=1, le=16)
    draws: int = Field(default=0, ge=0, le=MOST_DRAWS, multiple_of=2)
    check: bool = True


@dataclass(frozen=True)
class Ascent:
    """What natural-gradient steps did for each instance.

    Attributes:
        steps: The number of steps that were taken; a step that would have lowered log p(x, m) is not counted.
        remaining_gap: The Newton decrement at the last mean, in nats. It is NaN after a fixed number of steps, where
            the gradient at the last mean, which it needs, is not computed.
    """

    steps: Int[Tensor, " batch"]
    remaining_gap: Float[Tensor, " batch"]

    @classmethod
    def join(cls, parts: Sequence["Ascent"]) -> "Ascent":
        """Concatenate the numbers of several batches."""
        return cls(torch.cat([part.steps for part in parts]), torch.cat([part.remaining_gap for part in parts]))


@cache
def symmetric_points(count: int, dimensions: int) -> Float[Tensor, "count d"]:
    """Quasi-random standard normal points from a scrambled Sobol sequence; the second half are the negatives of the
    first."""
    uniform = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=0).draw(count // 2, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    return torch.cat([half, -half])


@dataclass(frozen=True)
class Objective:
    """What the steps raise, as a function of the mean m: log p(x, m), or its average over the points m + δ.

    Attributes:
        model: The generative model.
        x: The instances, `(batch, *shape)`.
        offsets: δ, `(draws, batch, d)`; None for log p(x, m).
    """

    model: Generative
    x: Tensor
    offsets: Float[Tensor, "draws batch d"] | None = None

    @classmethod
    def of(cls, x: Tensor, q: LatentNormal, model: Generative, draws: int) -> "Objective":
        """The objective with this number of draws of q, where 0 stands for the mean alone."""
        if draws == 0:
            return cls(model, x)
        points = symmetric_points(draws, q.mean.shape[-1]).to(q.mean)
        return cls(model, x, q.root_times(points.unsqueeze(1).expand(-1, len(x), -1)))

    def at(self, rows: Int[Tensor, " n"]) -> "Objective":
        """The objective of some instances."""
        offsets = None if self.offsets is None else self.offsets[:, rows]
        return replace(self, x=self.x[rows], offsets=offsets)

    def value(self, mean: Float[Tensor, "batch d"]) -> Float[Tensor, " batch"]:
        """The value for each instance."""
        if self.offsets is None:
            return log_joint_alone(self.model, self.x, mean)
        parts = [log_joint_alone(self.model, self.x, mean + offsets) for offsets in self._parts(self.offsets)]
        return torch.cat(parts).mean(0)

    def _parts(self, offsets: Tensor) -> Sequence[Tensor]:
        """The offsets in parts whose points are decoded together."""
        return offsets.split(max(1, PAIRS // max(1, len(self.x))))

    def value_and_gradient(
        self, mean: Float[Tensor, "batch d"], *, differentiable: bool = False
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch d"]]:
        """The value and its gradient in the mean; see `log_joint_and_gradient` for `differentiable`."""
        if self.offsets is None:
            return log_joint_and_gradient(self.model, self.x, mean, differentiable=differentiable)
        parts = [self.offsets] if differentiable else self._parts(self.offsets)
        found = [
            log_joint_and_gradient(self.model, self.x, mean + offsets, differentiable=differentiable)
            for offsets in parts
        ]
        values, gradients = zip(*found, strict=True)
        return torch.cat(values).mean(0), torch.cat(gradients).mean(0)


class Natural(Refinement[LatentNormal]):
    """Natural-gradient steps on the mean of q in the metric of its covariance, which stays as it is.

    A distribution that is not Gaussian is replaced by the Gaussian of its mean and standard deviations. If gradients
    are enabled and there is no tolerance, the result is differentiable with respect to q and the model, through the
    steps; the step sizes are constants. Otherwise it is detached and has the attribute `ascent`, an :class:`Ascent`.

    Arguments:
        options: The number of steps and their sizes.
        tolerance: If given, an instance stops as soon as its Newton decrement, the estimated remaining gap, is at most
            this many nats; `options.steps` is then the maximum.
    """

    def __init__(self, options: NaturalConfig | None = None, tolerance: float | None = None) -> None:
        self.options = NaturalConfig() if options is None else options
        self.tolerance = tolerance

    @property
    def sizes(self) -> list[float]:
        """The step sizes in the order in which they are tried."""
        options = self.options
        return [options.step_size * options.backtracking**k for k in range(options.trials)]

    def refine(self, x: Tensor, q: Distribution, model: Generative) -> LatentNormal:
        """Return N(m_T, Σ)."""
        normal = as_normal(q)
        if torch.is_grad_enabled() and self.tolerance is None:
            return normal.with_mean(self.differentiable_steps(x, normal, model, check=self.options.check)[0])
        return self._ascend(normal, Objective.of(x, normal, model, self.options.draws))

    def differentiable_steps(
        self, x: Tensor, q: LatentNormal, model: Generative, *, second_order: bool = True, check: bool = True
    ) -> tuple[Float[Tensor, "batch d"], list[Tensor], list[Tensor]]:
        """m_T, `(batch, d)`, with the gradients g_0 … g_{T−1} `(batch, d)` and the step sizes α_t `(batch, 1)`.

        m_T is differentiable with respect to q, and to the parameters of the model if `second_order`; otherwise the
        gradients g_t are constants. Without `check`, every step has the first step size, and log p(x, m) may fall.
        """
        objective = Objective.of(x, q, model, self.options.draws)
        mean, gradients, sizes = q.mean, [], []
        before = mean
        for _ in range(self.options.steps):
            value, gradient = objective.value_and_gradient(mean, differentiable=second_order)
            # An unchecked step may have gone too far. An instance whose value or gradient is not finite stays where it
            # is and does not spoil the encoder's gradients.
            finite = value.isfinite().unsqueeze(-1)
            mean = torch.where(finite, mean, before)
            gradient = gradient.where(finite & gradient.isfinite().all(-1, keepdim=True), 0.0)
            direction = q.covariance_times(gradient)
            if check:
                with torch.no_grad():
                    size, _ = self._accepted(objective, mean, direction, value, self.sizes)
            else:
                size = torch.full_like(value, self.options.step_size)
            before, mean = mean, mean + size.unsqueeze(-1) * direction
            gradients.append(gradient.detach())
            sizes.append(size.unsqueeze(-1))
        return mean, gradients, sizes

    @staticmethod
    def _accepted(
        objective: Objective, mean: Tensor, direction: Tensor, value: Tensor, sizes: list[float]
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """The first of the sizes with a finite objective at mean + α direction that is at least `value`, or 0, and the
        objective there, each `(batch,)`."""
        accepted, reached = torch.zeros_like(value), value.clone()
        pending = torch.arange(len(mean), device=mean.device)
        for size in sizes:
            trial = objective.at(pending).value(mean[pending] + size * direction[pending])
            better = (trial >= value[pending]) & trial.isfinite()
            accepted[pending[better]], reached[pending[better]] = size, trial[better]
            pending = pending[~better]
            if not len(pending):
                break
        return accepted, reached

    @torch.no_grad()
    def _ascend(self, q: LatentNormal, objective: Objective) -> LatentNormal:
        """The steps without gradients. The pass that accepts a first step size also yields the next gradient."""
        steps, tolerance, (first, *shorter) = self.options.steps, self.tolerance, self.sizes
        mean = q.mean.clone()
        moving = torch.arange(len(mean), device=mean.device)
        taken = torch.zeros_like(moving)
        if steps or tolerance is not None:
            value, gradient = objective.value_and_gradient(mean)
        for step in range(steps):
            direction = q.covariance_times(gradient)
            if tolerance is not None:
                moving = moving[newton_decrement(gradient, direction)[moving] > tolerance]
            if not len(moving):
                break
            last = tolerance is None and step == steps - 1
            trial, here = mean[moving] + first * direction[moving], objective.at(moving)
            if not last:
                reached, slope = here.value_and_gradient(trial)
            else:
                reached = here.value(trial) if self.options.check else value[moving]
            better = reached.isfinite() & trial.isfinite().all(-1)
            if self.options.check:
                better &= reached >= value[moving]
            arrived, pending = moving[better], moving[~better]
            mean[arrived], value[arrived] = trial[better], reached[better]
            if not last:
                gradient[arrived] = slope[better]
            if len(pending):
                size, reached = self._accepted(
                    objective.at(pending), mean[pending], direction[pending], value[pending], shorter
                )
                better = size > 0
                pending = pending[better]
                mean[pending] += size[better].unsqueeze(-1) * direction[pending]
                value[pending] = reached[better]
                if not last and len(pending):
                    gradient[pending] = objective.at(pending).value_and_gradient(mean[pending])[1]
            moving = torch.cat([arrived, pending])  # an instance that could not move would try the same steps again
            taken[moving] += 1
        if tolerance is None:
            gap = torch.full_like(mean[:, 0], torch.nan)
        else:
            gap = newton_decrement(gradient, q.covariance_times(gradient))
        result = q.with_mean(mean)
        result.ascent = Ascent(taken, gap)
        return result
