r"""Gauss–Newton on log p(x, z): the mode of the posterior and the Laplace approximation there.

With J = ∂g/∂z for the decoder g, and the likelihood's score r and expected curvature W at g(z),

.. math:: \Lambda = J^\top W J + I, \qquad \delta = \Lambda^{-1} (J^\top r - z)

δ is the Gauss–Newton step, and N(z, Λ⁻¹) the Laplace approximation. For a Gaussian likelihood
W = I/σ² and r = (x − g)/σ². Jacobians are computed in forward mode, which works for any decoder.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from torch.distributions import Distribution

from gpin._core.config import MethodConfig
from gpin._core.errors import InputError
from gpin._core.modes import evaluating
from gpin.distributions import PrecisionNormal
from gpin.generative import Generative, decoder_alone
from gpin.likelihoods import Curvature
from gpin.refinement.base import Refinement

__all__ = [
    "GaussNewton",
    "GaussNewtonConfig",
    "Laplace",
    "LaplaceConfig",
    "jacobian",
    "linearise",
    "newton_search",
    "newton_step",
]

CHUNK = 2**19
"""The number of Jacobian entries computed at a time, chosen to fit in the processor's cache."""

HALVINGS = 12
"""How often a step is halved before it is rejected."""

TORCHS_REASONS = ("vmap", "transform", "forward AD", "forward-mode", "forward mode", "jvp")
"""Words of torch's errors about functions that cannot be differentiated in forward mode."""


def jacobian(model: Generative, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """g(z) and ∂g/∂z of the decoder for the instances x: z `(batch, d)` → `(batch, *shape)` and `(d, batch, *shape)`;
    see :func:`gpin.generative.decoder_alone`."""
    size = z.shape[-1]
    decode = decoder_alone(model, x)
    directions = torch.eye(size, dtype=z.dtype, device=z.device).unsqueeze(1).expand(size, *z.shape)

    def along(direction: Tensor) -> Any:
        return torch.func.jvp(decode, (z,), (direction,))

    try:
        return torch.func.vmap(along, out_dims=(None, 0))(directions)  # type: ignore[arg-type]
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        if not any(word in reason for word in TORCHS_REASONS):
            raise
        raise InputError(
            "the Jacobian of the decoder, which vlae and refinement need, cannot be computed: the decoder must not "
            f"draw random numbers or change tensors in place in evaluation mode ({reason})"
        ) from error


def linearise(
    model: Generative, x: Tensor, z: Float[Tensor, "batch d"]
) -> tuple[Float[Tensor, "batch d d"], Float[Tensor, "batch d"]]:
    """The Cholesky factor of Λ, `(batch, d, d)`, and the gradient Jᵀr − z of log p(x, z), `(batch, d)`, at z."""
    size = z.shape[-1]
    rows = max(1, CHUNK // (size * math.prod(model.likelihood.output_shape)))
    factors, gradients = [], []
    for x_part, z_part in zip(x.split(rows), z.split(rows), strict=True):
        output, slopes = jacobian(model, x_part, z_part)
        score, curvature = model.likelihood.score_and_precision(model.values(x_part), output)
        slopes = slopes.flatten(2).transpose(0, 1)  # (batch, d, D)
        factors.append(_cholesky(_whitened(slopes, curvature, output)))
        gradients.append((slopes @ score.flatten(1).unsqueeze(-1)).squeeze(-1) - z_part)
    return torch.cat(factors), torch.cat(gradients)


def _whitened(
    slopes: Float[Tensor, "batch d D"], curvature: Curvature, output: Tensor
) -> Float[Tensor, "batch d rank"]:
    """Jᵀ Rᵀ, whose Gram matrix is JᵀWJ, from the slopes Jᵀ and the likelihood's curvature at the output `(batch, …)`.

    The curvature is the diagonal of W, in the shape of the output (then R = W^½), or a factor R `(batch, rank, …)` with
    W = RᵀR, or a function that multiplies by Rᵀ.
    """
    if not isinstance(curvature, Tensor):
        return curvature(slopes)
    if curvature.shape == output.shape:
        return slopes * curvature.flatten(1).unsqueeze(1).sqrt()
    if curvature.dim() != output.dim() + 1 or curvature.shape[2:] != output.shape[1:]:
        raise InputError(
            f"the likelihood's curvature has shape {tuple(curvature.shape)}: for an output of shape "
            f"{tuple(output.shape)} it must have the same shape, or one more dimension, the rank, after the first"
        )
    return slopes @ curvature.flatten(2).mT


def _cholesky(roots: Tensor) -> Tensor:
    """The Cholesky factor of A Aᵀ + I for A `(batch, d, D)`, in float64 where float32 would round the I away."""
    eye = torch.eye(roots.shape[1], dtype=roots.dtype, device=roots.device)
    factor, failed = torch.linalg.cholesky_ex(roots @ roots.mT + eye)
    if failed.any() and roots.dtype != torch.float64:
        return _cholesky(roots.double()).to(roots.dtype)
    if failed.any():
        raise InputError(
            "the posterior precision at z is not positive definite: the decoder or the likelihood returns values "
            "that are not finite"
        )
    return factor


def newton_step(factor: Float[Tensor, "batch d d"], gradient: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
    """Λ⁻¹ gradient from the Cholesky factor of Λ: `(batch, d)`."""
    return torch.cholesky_solve(gradient.unsqueeze(-1), factor).squeeze(-1)


def newton_search(
    model: Generative,
    x: Tensor,
    z: Float[Tensor, "batch d"],
    value: Float[Tensor, " batch"] | None,
    steps: int,
    tolerance: float,
) -> tuple[Float[Tensor, "batch d d"], Int[Tensor, " some"]]:
    """Move z in place by damped Gauss–Newton steps, each halved per instance until log p(x, z) does not fall.

    Arguments:
        model: The generative model, whose decoder must be in evaluation mode.
        x: `(batch, *shape)`.
        z: Where the search starts; afterwards, where it ended.
        value: log p(x, z) at the start, if known.
        steps: The maximum number of steps.
        tolerance: An instance stops once a step increases its log p(x, z) by no more than this, in nats.

    Returns:
        The Cholesky factors of Λ from the last linearisation of each instance, one step before it stopped, and the
        instances for which that step gained more than the tolerance.
    """
    value = model.log_joint(x, z) if value is None else value
    moving = torch.arange(len(x), device=x.device)
    factors = z.new_zeros(*z.shape, z.shape[-1])
    for _ in range(steps):
        factor, gradient = linearise(model, x[moving], z[moving])
        factors[moving] = factor
        step, before = newton_step(factor, gradient), value[moving]
        pending = torch.arange(len(moving), device=x.device)
        for _ in range(HALVINGS):
            rows = moving[pending]
            trial = z[rows] + step[pending]
            reached = model.log_joint(x[rows], trial)
            better = (reached >= value[rows]) & reached.isfinite()
            z[rows[better]] = trial[better]
            value[rows[better]] = reached[better]
            pending = pending[~better]
            if not len(pending):
                break
            step = step / 2
        moving = moving[value[moving] - before > tolerance]
        if not len(moving):
            break
    return factors, moving


class LaplaceConfig(MethodConfig):
    """Options of VLAE's linearisation steps.

    Arguments:
        steps: T, how often the decoder is linearised on the way to the mode.
        step_size: α. Step t moves α/(t + 1) of the way to the mode of the linearised model. For a linear decoder,
            one step of size 1 is exact.
    """

    steps: int = Field(default=4, ge=1, le=64)
    step_size: float = Field(default=0.5, gt=0, le=1)


class Laplace(Refinement[PrecisionNormal]):
    """The Laplace approximation after T steps of size α/(t + 1) from q's mean towards the mode; differentiable.

    Arguments:
        options: The number of steps and their size.
    """

    def __init__(self, options: LaplaceConfig | None = None) -> None:
        self.options = LaplaceConfig() if options is None else options

    def refine(self, x: Tensor, q: Distribution, model: Generative) -> PrecisionNormal:
        """Return N(μ_T, Λ(μ_T)⁻¹) with full covariance; only the mean of q is used."""
        mean = q.mean
        for t in range(self.options.steps):
            factor, gradient = linearise(model, x, mean)
            mean = mean + self.options.step_size / (t + 1) * newton_step(factor, gradient)
        factor, _ = linearise(model, x, mean)
        return PrecisionNormal(mean, factor)


class GaussNewtonConfig(MethodConfig):
    """Options of the damped Gauss–Newton search.

    Arguments:
        steps: The maximum number of steps; 0 gives the Gaussian with the curvature at q's mean.
        tolerance: An instance stops once a step increases its log p(x, z) by no more than this, in nats.
    """

    steps: int = Field(default=20, ge=0)
    tolerance: float = Field(default=0.1, ge=0)


class GaussNewton(Refinement[PrecisionNormal]):
    """Damped Gauss–Newton steps from q's mean, each halved per instance until log p(x, z) does not fall.

    The result is detached from the graph: nothing can be trained through this refinement.

    Arguments:
        options: The maximum number of steps and the tolerance.
    """

    def __init__(self, options: GaussNewtonConfig | None = None) -> None:
        self.options = GaussNewtonConfig() if options is None else options

    @torch.no_grad()
    def refine(self, x: Tensor, q: Distribution, model: Generative) -> PrecisionNormal:
        """Return the Laplace approximation where the search ends; only the mean of q is used."""
        z = q.mean.clone()
        with evaluating(model.decoder):
            newton_search(model, x, z, None, self.options.steps, self.options.tolerance)
            factor, _ = linearise(model, x, z)
        return PrecisionNormal(z, factor)
