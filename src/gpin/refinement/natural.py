r"""Natural-gradient steps: the mean of a Gaussian climbs log p(x, z) in the metric of its own covariance.

For q = N(m, Σ) the natural gradient of the ELBO in m is Σ E_q[∇ log p(x, z)]. With the expectation replaced by the
value at the mean, a step needs one gradient of the decoder and no Jacobian,

.. math:: g_t = \nabla_z \log p(x, z)\big|_{z=m_t}, \qquad m_{t+1} = m_t + \alpha_t\, \Sigma\, g_t

If Σ is the inverse curvature of −log p(x, z), this is Newton's step. α_t is, for each instance, the first of a sequence
of step sizes that does not lower log p(x, m), or zero. The Newton decrement ½ gᵀΣg estimates in nats how much
log p(x, m) can still rise.

Accelerated steps add a share β_t of the step before, as momentum does,

.. math:: m_{t+1} = m_t + \alpha\, \Sigma\, g_t + \beta_t\, (m_t - m_{t-1}), \qquad
    \beta_t = \min\Big( \tfrac{t}{t + 3},\ \sqrt{\delta_t / \delta_{t-1}} \Big)

where δ_t is the Newton decrement at m_t and α the first of the step sizes. The first step is the same. Where Σ is not
the inverse curvature on the way to the mode, plain steps are slow in some directions and oscillate in others; momentum
helps in both. The first bound of β_t is the schedule of Nesterov (1983), although the gradient is taken at m_t, as in
heavy-ball momentum. The second one reduces momentum where steps converge quickly. An instance for which the
accelerated step would lower log p(x, m) tries plain ones instead, which takes one more pass of the decoder.

All these steps lead to the mode. With draws, the expectation is an average over points m ± Rε of q, R Rᵀ = Σ, where the
ε are the same for all instances and calls, and this average of log p(x, z) takes the place of log p(x, m). The steps
then lead to the m that approximately maximises the ELBO for the given Σ, which is closer to the *mean* of a skewed
posterior than the mode is. A step costs one gradient of the decoder per point. For a Gaussian posterior the average is
exact.
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


def momentum_share(
    step: int, decrement: Float[Tensor, " batch"], before: Float[Tensor, " batch"]
) -> Float[Tensor, "batch 1"]:
    """β_t, from the Newton decrements at this mean and at the one before."""
    rate = (decrement / before).sqrt().nan_to_num(nan=0.0)
    return rate.clamp(max=step / (step + 3)).unsqueeze(-1)


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
        accelerated: Whether steps after the first add a share of the step before, which brings an instance closer to
            the mode where several nats are left to gain.
    """

    formerly: ClassVar[Mapping[str, Any]] = {"draws": 0, "check": True, "accelerated": False}
    later = ("draws", "check")

    steps: int = Field(default=1, ge=0, le=MOST_STEPS)
    step_size: float = Field(default=1.0, gt=0, le=1)
    backtracking: float = Field(default=0.25, gt=0, lt=1)
    trials: int = Field(default=4, ge=1, le=16)
    draws: int = Field(default=0, ge=0, le=MOST_DRAWS, multiple_of=2)
    check: bool = True
    accelerated: bool = True

    def candidates(self, step: int) -> list[tuple[float, bool]]:
        """What step t tries, one after the other: a size α, and whether to add momentum."""
        plain = [(self.step_size * self.backtracking**k, False) for k in range(self.trials)]
        return [(self.step_size, True), *plain] if self.accelerated and step else plain


@dataclass(frozen=True)
class Steps:
    """Natural-gradient steps that can be differentiated; tensors are `(batch, d)`.

    Attributes:
        mean: m_T.
        gradients: g_0 … g_{T−1}, constants.
        pull: Σ⁻¹(m_T − m_0), a constant, which is a weighted sum of the gradients.
        rejected: The number of steps, over all instances, whose first candidate was rejected.
    """

    mean: Float[Tensor, "batch d"]
    gradients: list[Tensor]
    pull: Float[Tensor, "batch d"]
    rejected: Int[Tensor, ""]


@dataclass(frozen=True)
class Ascent:
    """What natural-gradient steps did for each instance.

    Attributes:
        steps: The number of steps that were taken; a step that would have lowered log p(x, m) is not counted.
        remaining_gap: The Newton decrement at the last mean, in nats. It is NaN after a fixed number of steps, where
            the gradient at the last mean, which it needs, is not computed.
        before: log p(x, m), or its average over draws, and its gradient at the mean from which the last step was taken;
            at the only mean of an instance that could not move. None if no steps were asked for.
    """

    steps: Int[Tensor, " batch"]
    remaining_gap: Float[Tensor, " batch"]
    before: tuple[Float[Tensor, " batch"], Float[Tensor, "batch d"]] | None

    @classmethod
    def join(cls, parts: Sequence["Ascent"]) -> "Ascent":
        """Concatenate the numbers of several batches."""
        steps, gaps = (torch.cat([getattr(part, name) for part in parts]) for name in ("steps", "remaining_gap"))
        known = [part.before for part in parts if part.before is not None]
        values, gradients = zip(*known, strict=True) if known else ((), ())
        return cls(steps, gaps, (torch.cat(values), torch.cat(gradients)) if known else None)


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

    def refine(self, x: Tensor, q: Distribution, model: Generative) -> LatentNormal:
        """Return N(m_T, Σ)."""
        normal = as_normal(q)
        if torch.is_grad_enabled() and self.tolerance is None:
            return normal.with_mean(self.differentiable_steps(x, normal, model, check=self.options.check).mean)
        return self._ascend(normal, Objective.of(x, normal, model, self.options.draws))

    def differentiable_steps(
        self, x: Tensor, q: LatentNormal, model: Generative, *, second_order: bool = True, check: bool = True
    ) -> Steps:
        """T steps, where m_T is differentiable with respect to q, and to the parameters of the model if `second_order`;
        otherwise the gradients g_t are constants.

        Without `check`, every step is the first of its candidates, and log p(x, m) may fall.
        """
        objective = Objective.of(x, q, model, self.options.draws)
        mean, pull, decrement = q.mean, torch.zeros_like(q.mean), torch.zeros_like(q.mean[:, 0])
        mean_before, pull_before = mean, pull
        gradients, rejected = [], torch.zeros((), dtype=torch.long, device=mean.device)
        for step in range(self.options.steps):
            value, gradient = objective.value_and_gradient(mean, differentiable=second_order)
            # An unchecked step may have gone too far. An instance whose value or gradient is not finite stays where it
            # is and does not spoil the encoder's gradients.
            finite = value.isfinite().unsqueeze(-1)
            mean, pull = torch.where(finite, mean, mean_before), torch.where(finite, pull, pull_before)
            gradient = gradient.where(finite & gradient.isfinite().all(-1, keepdim=True), 0.0)
            gradients.append(gradient.detach())
            direction = q.covariance_times(gradient)
            decrement_before, decrement = decrement, newton_decrement(gradients[-1], direction.detach())
            share = momentum_share(step, decrement, decrement_before)
            momentum, candidates = share * (mean - mean_before), self.options.candidates(step)
            if check:
                with torch.no_grad():
                    size, pushed, _ = self._accepted(objective, mean, direction, momentum, value, candidates)
            else:
                size, pushed = (torch.full_like(value, float(part)) for part in candidates[0])
            rejected += ((size < candidates[0][0]) | (pushed < candidates[0][1])).sum()
            size, pushed = size.unsqueeze(-1), pushed.unsqueeze(-1)
            pull_before, pull = pull, pull + size * gradients[-1] + pushed * share * (pull - pull_before)
            mean_before, mean = mean, mean + size * direction + pushed * momentum
        return Steps(mean, gradients, pull, rejected)

    @staticmethod
    def _accepted(
        objective: Objective,
        mean: Tensor,
        direction: Tensor,
        momentum: Tensor,
        value: Tensor,
        candidates: Sequence[tuple[float, bool]],
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """The first of the candidates with a finite objective that is at least `value`: its size, or 0 if there is
        none; 1 if it has momentum, or 0; and the objective there, each `(batch,)`."""
        sizes, pushed, reached = torch.zeros_like(value), torch.zeros_like(value), value.clone()
        pending = torch.arange(len(mean), device=mean.device)
        for size, push in candidates:
            trial = mean[pending] + size * direction[pending]
            found = objective.at(pending).value(trial + momentum[pending] if push else trial)
            better = (found >= value[pending]) & found.isfinite()
            arrived, pending = pending[better], pending[~better]
            sizes[arrived], pushed[arrived], reached[arrived] = size, float(push), found[better]
            if not len(pending):
                break
        return sizes, pushed, reached

    @torch.no_grad()
    def _ascend(self, q: LatentNormal, objective: Objective) -> LatentNormal:
        """The steps without gradients. The pass that accepts a first candidate also yields the next gradient."""
        steps, tolerance = self.options.steps, self.tolerance
        mean = q.mean.clone()
        change, decrement = torch.zeros_like(mean), torch.zeros_like(mean[:, 0])
        moving = torch.arange(len(mean), device=mean.device)
        taken = torch.zeros_like(moving)
        if steps or tolerance is not None:
            value, gradient = objective.value_and_gradient(mean)
            value_before, gradient_before = value.clone(), gradient.clone()
        for step in range(steps):
            here_value, here_gradient = value.clone(), gradient.clone()
            direction = q.covariance_times(gradient)
            decrement_before, decrement = decrement, newton_decrement(gradient, direction)
            if tolerance is not None:
                moving = moving[decrement[moving] > tolerance]
            if not len(moving):
                break
            last = tolerance is None and step == steps - 1
            momentum = momentum_share(step, decrement, decrement_before) * change
            (size, push), *others = self.options.candidates(step)
            change = size * direction + momentum if push else size * direction
            trial, there = mean[moving] + change[moving], objective.at(moving)
            if not last:
                reached, slope = there.value_and_gradient(trial)
            else:
                reached = there.value(trial) if self.options.check else value[moving]
            better = reached.isfinite() & trial.isfinite().all(-1)
            if self.options.check:
                better &= reached >= value[moving]
            arrived, pending = moving[better], moving[~better]
            mean[arrived], value[arrived] = trial[better], reached[better]
            if not last:
                gradient[arrived] = slope[better]
            if len(pending):
                sizes, _, reached = self._accepted(
                    objective.at(pending), mean[pending], direction[pending], momentum[pending], value[pending], others
                )
                better = sizes > 0
                pending = pending[better]
                change[pending] = sizes[better].unsqueeze(-1) * direction[pending]
                mean[pending] += change[pending]
                value[pending] = reached[better]
                if not last and len(pending):
                    gradient[pending] = objective.at(pending).value_and_gradient(mean[pending])[1]
            moving = torch.cat([arrived, pending])  # an instance that could not move would try the same steps again
            taken[moving] += 1
            value_before[moving], gradient_before[moving] = here_value[moving], here_gradient[moving]
        if tolerance is None:
            gap = torch.full_like(mean[:, 0], torch.nan)
        else:
            gap = newton_decrement(gradient, q.covariance_times(gradient))
        result = q.with_mean(mean)
        result.ascent = Ascent(taken, gap, (value_before, gradient_before) if steps else None)
        return result
