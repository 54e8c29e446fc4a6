"""Gradient ascent on the ELBO of each instance, over the mean and standard deviation of a diagonal Gaussian."""

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution

from gpin._core.config import MethodConfig
from gpin._core.shards import batch_sum
from gpin.distributions import LOG_STD_RANGE, DiagonalNormal, gaussian_kl
from gpin.generative import Generative
from gpin.refinement.base import Refinement

__all__ = ["Gradient", "GradientConfig", "inner_elbo"]

Objective = Callable[[Tensor], Tensor]

HALVINGS = 10
"""How often a step is halved before it is rejected."""


class GradientConfig(MethodConfig):
    """Options of gradient ascent on the ELBO.

    Arguments:
        steps: T, the number of gradient steps; the paper uses 1, 2, 4 and 8.
        line_search: "backtracking" halves the step of each instance until its ELBO does not decrease;
            "none" uses a fixed step size.
        step_size: The step size; with backtracking, the one tried first.
        momentum: The coefficient with which the previous step's direction is added to the gradient.
        clip: The maximum norm of an instance's gradient; 0 disables clipping.
        reduction: The objective of the ascent: the "sum" of the instances' bounds, which keeps instances independent,
            or their "mean", which divides the step by the batch size.
        inner_samples: The number of samples of z in the objective; their noise is fixed during the ascent.
        second_order: How training differentiates through the steps: "exact", or by "finite_difference"
            Hessian-vector products, as in the original.
    """

    steps: int = Field(default=4, ge=1, le=1000)
    line_search: Literal["backtracking", "none"] = "backtracking"
    step_size: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    clip: float = Field(default=0.0, ge=0)
    reduction: Literal["sum", "mean"] = "sum"
    inner_samples: int = Field(default=1, ge=1)
    second_order: Literal["exact", "finite_difference"] = "exact"

    presets = {
        "paper": {"line_search": "none", "step_size": 1e-3, "reduction": "mean"},
        "original": {
            "line_search": "none",
            "step_size": 1.0,
            "momentum": 0.5,
            "clip": 5.0,
            "reduction": "mean",
            "second_order": "finite_difference",
        },
    }

    @model_validator(mode="after")
    def _applies(self) -> "GradientConfig":
        if self.line_search == "backtracking" and self.reduction == "mean":
            raise ValueError(
                "reduction='mean' does not apply to line_search='backtracking', whose steps are per instance"
            )
        return self


class Gradient(Refinement[DiagonalNormal]):
    """A diagonal Gaussian after T steps of gradient ascent on the ELBO from q's mean and standard deviations.

    Arguments:
        options: The options of the ascent, such as the number of steps and the line search.
    """

    def __init__(self, options: GradientConfig | None = None) -> None:
        self.options = GradientConfig() if options is None else options

    def refine(self, x: Tensor, q: Distribution, model: Generative) -> DiagonalNormal:
        """Return the diagonal Gaussian after the last step; only the mean and standard deviations of q are used."""
        mean = q.mean
        log_std = q.stddev.log() if (own := getattr(q, "log_std", None)) is None else own
        noise = torch.randn((self.options.inner_samples, *mean.shape), dtype=mean.dtype, device=mean.device)
        start = torch.cat([mean, log_std], dim=-1)
        mean, log_std = self.climb(start, lambda state: inner_elbo(state, noise, x, model), model).chunk(2, dim=-1)
        log_std = log_std.clamp(*LOG_STD_RANGE)
        return DiagonalNormal(mean, log_std.exp(), log_std)

    def climb(self, state: Float[Tensor, "batch n"], objective: Objective, model: Generative) -> Tensor:
        """Return the state `(batch, n)` after T ascent steps on `objective`, `(batch, n)` → `(batch,)`."""
        options, through = self.options, torch.is_grad_enabled()
        state = state if through else state.detach()
        size = state.new_full((len(state), 1), options.step_size)
        velocity = torch.zeros_like(state)
        for _ in range(options.steps):
            with torch.enable_grad():
                if through and options.second_order == "finite_difference":
                    gradient = _finite_difference_gradient(objective, state, model)
                else:
                    leaf = state if state.requires_grad else state.detach().requires_grad_()
                    bound = objective(leaf).sum()
                    (gradient,) = torch.autograd.grad(bound, leaf, create_graph=through)
            if options.reduction == "mean":
                gradient = gradient / batch_sum(gradient.new_tensor(len(state)))
            if options.clip:
                norm = gradient.norm(dim=-1, keepdim=True)
                gradient = gradient * (options.clip / norm.clamp(min=options.clip))
            velocity = options.momentum * velocity + gradient
            if options.line_search == "backtracking":
                size = _backtrack(state, velocity, size, objective)
                velocity = torch.where(size > 0, velocity, torch.zeros_like(velocity))
                state = state + size * velocity
                size = torch.where(size > 0, 2 * size, torch.full_like(size, options.step_size))
            else:
                state = state + options.step_size * velocity
        return state


@torch.no_grad()
def _backtrack(state: Tensor, direction: Tensor, size: Tensor, objective: Objective) -> Tensor:
    """The first of size, size/2, size/4 … that does not lower the objective, or zero, for each instance."""
    before = objective(state)
    accepted = torch.zeros_like(size)
    for _ in range(HALVINGS):
        better = (objective(state + size * direction) >= before).unsqueeze(-1)
        accepted = torch.where((accepted == 0) & better, size, accepted)
        if (accepted > 0).all():
            break
        size = size / 2
    return accepted


def inner_elbo(
    state: Float[Tensor, "batch twice_d"], noise: Float[Tensor, "samples batch d"], x: Tensor, model: Generative
) -> Float[Tensor, " batch"]:
    """The objective of the ascent, for fixed noise: state (mean, log std) `(batch, 2d)` → `(batch,)`."""
    mean, log_std = state.chunk(2, dim=-1)
    log_std = log_std.clamp(*LOG_STD_RANGE)
    std = log_std.exp()
    return model.log_conditional(x, mean + std * noise).mean(0) - gaussian_kl(mean, std.square(), 2 * log_std)


def _finite_difference_gradient(objective: Objective, state: Tensor, model: Generative) -> Tensor:
    """The gradient of the objective at state, whose own derivatives are finite differences of gradients."""
    parameters = [p for p in cast(nn.Module, model).parameters() if p.requires_grad]
    return cast(Tensor, _FiniteDifferenceGradient.apply(objective, state, *parameters))


class _FiniteDifferenceGradient(torch.autograd.Function):
    """vᵀ ∂g/∂(λ, θ) ≈ (∇F(λ + εv) − ∇F(λ − εv)) / 2ε with g = ∇_λ F: two gradients, no graph of the first."""

    @staticmethod
    def forward(ctx: Any, objective: Objective, state: Tensor, *parameters: Tensor) -> Tensor:
        ctx.objective = objective
        ctx.save_for_backward(state, *parameters)
        with torch.enable_grad():
            leaf = state.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(objective(leaf).sum(), leaf)
        return gradient

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, vector: Tensor) -> tuple[Tensor | None, ...]:
        state, *parameters = ctx.saved_tensors
        scale = vector.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(vector.dtype).tiny)
        # The gradients of the parameters are sums over instances, so all instances share one ε, set by the longest
        # vector.
        epsilon = (torch.finfo(state.dtype).eps ** (1 / 3) / scale.max()).item()
        sides = []
        for sign in (+1, -1):
            with torch.enable_grad():
                leaf = (state + sign * epsilon * vector).detach().requires_grad_()
                sides.append(torch.autograd.grad(ctx.objective(leaf).sum(), [leaf, *parameters], allow_unused=True))
        differences = [
            None if up is None or down is None else (up - down) / (2 * epsilon) for up, down in zip(*sides, strict=True)
        ]
        return None, *differences
