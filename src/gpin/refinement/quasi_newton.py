r"""Quasi-Newton ascent on log p(x, z), between a first and a last linearisation of the decoder.

L-BFGS maximises log p(x, z) for each instance. Its inverse Hessian starts as the inverse of the curvature Λ of
Gauss–Newton, or as the covariance Σ of q, and is corrected by the differences that the search observes,

.. math:: z_{t+1} = z_t + \alpha_t H_t g_t, \qquad H_0 = \Lambda^{-1} \text{ or } \Sigma, \qquad
    s_t = z_{t+1} - z_t, \quad y_t = g_t - g_{t+1}, \quad H_{t+1} y_t = s_t

with the gradient g_t of log p(x, z) at z_t. A step takes one gradient of the decoder, whereas Gauss–Newton takes one
derivative per latent dimension. The last linearisation yields the covariance, a last Gauss–Newton step, and the test
whether an instance needs more of them.

Reference: Liu & Nocedal (1989), *On the limited memory BFGS method for large scale optimization*.
"""

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from torch.distributions import Distribution

from gpin._core.config import MethodConfig
from gpin._core.modes import evaluating
from gpin.distributions import LatentNormal, PrecisionNormal, as_normal
from gpin.generative import Generative, log_joint_and_gradient
from gpin.refinement.base import Refinement
from gpin.refinement.gauss_newton import linearise, newton_search
from gpin.refinement.natural import newton_decrement

__all__ = ["QuasiNewton", "QuasiNewtonConfig"]

BACKTRACKING = 0.3
"""The factor by which a rejected step is shortened."""

SMALLEST = BACKTRACKING**12
"""The step size below which an instance stops."""

SUFFICIENT = 1e-4
"""The share of the increase predicted by the gradient that a step must reach (Armijo's rule)."""


class QuasiNewtonConfig(MethodConfig):
    """Options of the quasi-Newton search.

    Arguments:
        leading_steps: The number of Gauss–Newton steps before the quasi-Newton steps. They are long enough to cross
            small dips of log p(x, z), in which shorter steps would end, and yield the first inverse Hessian, Λ⁻¹. With
            0, the first inverse Hessian is the covariance of q.
        gradients: The maximum number of quasi-Newton steps that are tried, each of which takes one gradient of the
            decoder; 0 leaves the search to Gauss–Newton alone, without leading steps.
        memory: The number of past steps from which the curvature is corrected.
        steps: The maximum number of Gauss–Newton steps at the end; 0 gives the Gaussian with the curvature where
            the quasi-Newton steps end.
        tolerance: In nats. The quasi-Newton steps of an instance end once the increase of its log p(x, z) that they
            predict is no larger than this. The search ends once a Gauss–Newton step has increased log p(x, z) by no
            more than this.
    """

    leading_steps: int = Field(default=1, ge=0)
    gradients: int = Field(default=64, ge=0)
    memory: int = Field(default=20, ge=1)
    steps: int = Field(default=20, ge=0)
    tolerance: float = Field(default=0.1, ge=0)


class QuasiNewton(Refinement[PrecisionNormal]):
    """A damped Gauss–Newton step from q's mean, L-BFGS steps to the mode, and Gauss–Newton steps where still needed.

    No step lowers log p(x, z) of an instance. A trial point where log p(x, z) or its gradient is not finite is
    rejected. The covariance is that of the last linearisation, which is at the mean or one step of at most `tolerance`
    nats before it. The result is detached from the graph: nothing can be trained through this refinement.

    Arguments:
        options: The maximum numbers of steps and the tolerance.
    """

    def __init__(self, options: QuasiNewtonConfig | None = None) -> None:
        self.options = QuasiNewtonConfig() if options is None else options

    @torch.no_grad()
    def refine(self, x: Tensor, q: Distribution, model: Generative) -> PrecisionNormal:
        """Return the Laplace approximation where the search ends; without leading steps, q's covariance is used too."""
        options, z, value = self.options, q.mean.clone(), None
        with evaluating(model.decoder):
            if options.gradients:
                z, value = self._climb(x, self._lead(x, q, model), model)
            factor, stale = newton_search(model, x, z, value, options.steps, options.tolerance)
            if len(stale):
                factor[stale], _ = linearise(model, x[stale], z[stale])
        return PrecisionNormal(z, factor)

    def _lead(self, x: Tensor, q: Distribution, model: Generative) -> LatentNormal:
        """The Gaussian whose mean is where the quasi-Newton steps start and whose covariance is the first H."""
        if not self.options.leading_steps:
            return as_normal(q)
        z = q.mean.clone()
        factor, _ = newton_search(model, x, z, None, self.options.leading_steps, self.options.tolerance)
        return PrecisionNormal(z, factor)

    def _climb(self, x: Tensor, q: LatentNormal, model: Generative) -> tuple[Tensor, Tensor]:
        """z `(batch, d)` after the quasi-Newton steps, and log p(x, z) `(batch,)`.

        In every round each moving instance tries one point: the end of its current step. An instance that accepts it
        computes its next step; another shortens the step.
        """
        z = q.mean.clone()
        value, gradient = log_joint_and_gradient(model, x, z)
        curvature = InverseHessian(q, self.options.memory)
        direction, decrement, size = torch.zeros_like(z), torch.zeros_like(value), torch.ones_like(value)
        arrived, moving = torch.arange(len(x), device=x.device), torch.arange(0, device=x.device)
        for _ in range(self.options.gradients):
            direction[arrived] = curvature.times(gradient[arrived], arrived)
            decrement[arrived], size[arrived] = newton_decrement(gradient[arrived], direction[arrived]), 1.0
            moving = torch.cat([moving, arrived[decrement[arrived] > self.options.tolerance]])
            if not len(moving):
                break
            step = size[moving].unsqueeze(-1) * direction[moving]
            reached, slope = log_joint_and_gradient(model, x[moving], z[moving] + step)
            accepted = reached >= value[moving] + SUFFICIENT * size[moving] * 2 * decrement[moving]
            accepted &= reached.isfinite() & slope.isfinite().all(-1)
            arrived, moving = moving[accepted], moving[~accepted]
            curvature.update(step[accepted], gradient[arrived] - slope[accepted], arrived)
            z[arrived] += step[accepted]
            value[arrived], gradient[arrived] = reached[accepted], slope[accepted]
            size[moving] *= BACKTRACKING
            moving = moving[size[moving] >= SMALLEST]
        return z, value


class InverseHessian:
    """The L-BFGS estimate of the inverse Hessian of −log p(x, z) of each instance.

    Arguments:
        q: The Gaussian whose covariance is the first estimate, with batch shape `(batch,)`.
        memory: The number of past steps that are kept.
    """

    def __init__(self, q: LatentNormal, memory: int) -> None:
        self.q = q
        self.steps = q.mean.new_zeros(memory, *q.mean.shape)  # oldest first
        self.changes = torch.zeros_like(self.steps)
        self.weights = self.steps[..., 0].clone()  # 1 / sᵀy; zero where no step is stored
        self.stored = 0

    def update(
        self, step: Float[Tensor, "some d"], change: Float[Tensor, "some d"], rows: Int[Tensor, " some"]
    ) -> None:
        """Store steps s and the changes y of the gradient of −log p(x, z) along them, where sᵀy > 0, for some rows."""
        product = (step * change).sum(-1)
        kept = product > torch.finfo(step.dtype).eps * step.norm(dim=-1) * change.norm(dim=-1)
        rows = rows[kept]
        for past, latest in ((self.steps, step), (self.changes, change), (self.weights, 1 / product)):
            past[:, rows] = torch.cat([past[1:, rows], latest[kept].unsqueeze(0)])
        self.stored = min(self.stored + 1, len(self.steps))

    def times(self, vector: Float[Tensor, "some d"], rows: Int[Tensor, " some"]) -> Float[Tensor, "some d"]:
        """H v for some rows, by the two-loop recursion."""
        first = len(self.steps) - self.stored
        steps, changes, weights = (past[first:, rows] for past in (self.steps, self.changes, self.weights))
        weights = weights.unsqueeze(-1)
        shares = []
        for step, change, weight in zip(steps.flip(0), changes.flip(0), weights.flip(0), strict=True):
            shares.append(weight * (step * vector).sum(-1, keepdim=True))
            vector = vector - shares[-1] * change
        padded = torch.zeros_like(self.q.mean)
        padded[rows] = vector
        vector = self.q.covariance_times(padded)[rows]
        for step, change, weight, share in zip(steps, changes, weights, reversed(shares), strict=True):
            vector = vector + step * (share - weight * (change * vector).sum(-1, keepdim=True))
        return vector
