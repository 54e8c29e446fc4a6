"""The true posterior p(z|x) in two latent dimensions, on an adaptive grid, and the KL divergence of Gaussians to it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from gpin._core.errors import InputError
from gpin.evaluation.importance import importance_weighted

if TYPE_CHECKING:
    from gpin.vae import VAE

__all__ = ["Posterior", "best_gaussian_kl", "grid_scores", "posteriors"]

REACH, FARTHEST, WIDER = 6.0, 50.0, 1.5
"""The half-width of the first grid in standard deviations of the prior, its maximum, and the factor by which it grows
until it covers every posterior. The prior's mass beyond 6 standard deviations is 3e-9."""
BORDER = 15.0
"""Every posterior must be this many nats below its maximum at the border of the first grid."""
COARSE = 0.1
"""The side of a cell of the first grid."""
DEPTH = 30.0
"""Cells this many nats below the maximum are dropped from the final grid."""
CORE, FEW, ENOUGH = 8.0, 16, 150
"""Cells are quartered until ENOUGH of them are within CORE nats of the maximum: at least two per standard deviation."""
DEEP = {True: 300.0, False: 45.0}
"""Cells this many nats below the maximum are dropped before quartering. The limit is larger while fewer than FEW cells
are within CORE nats, because a cell may then be larger than the posterior, with its mass far from the centre."""
PIECE = 512
"""The number of points decoded at a time."""


@dataclass(frozen=True)
class Posterior:
    """log p(x, z) of one instance at the centres of square cells, except cells DEPTH nats below the maximum.

    Attributes:
        points: The centres of the cells, `(n, 2)`.
        log_joint: log p(x, z), `(n,)`.
        side: The side of a cell.
    """

    points: Tensor
    log_joint: Tensor
    side: float

    @property
    def log_evidence(self) -> float:
        """log p(x), by the midpoint rule."""
        return float(torch.logsumexp(self.log_joint, 0)) + 2 * math.log(self.side)

    @property
    def log_density(self) -> Tensor:
        """log p(z|x), `(n,)`."""
        return self.log_joint - self.log_evidence


@torch.no_grad()
def posteriors(vae: "VAE", x: Tensor) -> list[Posterior]:
    """The true posterior of each instance of x, `(batch, *shape)`, for a model with two latent dimensions."""
    points, coarse = _first_grid(vae, x)
    found = []
    for i, one in enumerate(x):
        at, value, width = points, coarse[:, i], COARSE
        while (core := int((value > value.max() - CORE).sum())) < ENOUGH:
            kept = at[value > value.max() - DEEP[core < FEW]]
            width /= 2
            shifts = torch.cartesian_prod(*[torch.tensor([-width / 2, width / 2], dtype=torch.float64)] * 2)
            at = (kept.unsqueeze(1) + shifts).reshape(-1, 2)
            value = _log_joint(vae, one.unsqueeze(0), at)[:, 0]
        kept = value > value.max() - DEPTH
        found.append(Posterior(at[kept], value[kept], width))
    return found


def _first_grid(vae: "VAE", x: Tensor) -> tuple[Tensor, Tensor]:
    """The centres of cells that cover every posterior, `(points, 2)`, and log p(x, z) there, `(points, batch)`."""
    reach = REACH
    while True:
        ticks = torch.arange(-reach + COARSE / 2, reach, COARSE, dtype=torch.float64)
        points = torch.cartesian_prod(ticks, ticks)
        values = _log_joint(vae, x, points)  # each point is decoded once for all instances
        outside = points.abs().amax(-1) > reach - COARSE
        if (values[outside].amax(0) < values.amax(0) - BORDER).all():
            return points, values
        if reach == FARTHEST:
            raise InputError(
                f"a posterior extends beyond {FARTHEST:.0f} standard deviations of the prior: no grid can cover it"
            )
        reach = min(reach * WIDER, FARTHEST)


def _log_joint(vae: "VAE", x: Tensor, points: Tensor) -> Tensor:
    """log p(x, z) at every point for every instance, `(points, batch)`, in float64."""
    parts = []
    for z in points.to(x).split(max(1, PIECE // len(x))):
        if vae.condition is not None:  # each instance has a decoder of its own
            parts.append(vae.log_joint(x, z.unsqueeze(1).expand(-1, len(x), -1)).double().cpu())
            continue
        output = vae.decoder(z).unsqueeze(1)
        output = output.expand(-1, len(x), *output.shape[2:])
        parts.append((vae.likelihood.log_prob(x, output) + vae.log_prior(z).unsqueeze(1)).double().cpu())
    return torch.cat(parts)


@torch.no_grad()
def kl_to_posterior(vae: "VAE", x: Tensor, q: Distribution, evidence: Sequence[float]) -> Tensor:
    """KL(q ‖ p(z|x)) = log p(x) − E_q[log p(x, z) − log q(z)] of each instance, `(batch,)`.

    If q is axis-aligned, the expectation is a normalised sum over 41×41 points within five standard deviations of its
    mean. Otherwise such a coarse grid could miss modes or ridges, and the expectation is the mean over as many samples.
    """
    if not getattr(q, "axis_aligned", False):
        bound = importance_weighted(partial(vae.log_joint, x), q, 41**2, max(1, PIECE // len(x))).elbo
        return torch.tensor(evidence, dtype=torch.float64) - bound.cpu()
    mean, std = q.mean.double(), q.stddev.double()
    ticks = torch.linspace(-5, 5, 41, dtype=torch.float64, device=mean.device)
    z = mean + std * torch.cartesian_prod(ticks, ticks).unsqueeze(1)  # (points, batch, 2)
    log_q = torch.cat([q.log_prob(part.to(x.dtype)) for part in z.split(8)]).double()
    log_joint = torch.cat([vae.log_joint(x, part.to(x.dtype)) for part in z.split(max(1, PIECE // len(x)))]).double()
    weights = torch.softmax(log_q, 0)
    # Normalised like the weights, so that the mass of q outside the grid does not contribute.
    log_q = log_q - torch.logsumexp(log_q, 0) - (std.log().sum(-1) + 2 * math.log(10 / 40))
    return torch.tensor(evidence, dtype=torch.float64) - (weights * (log_joint - log_q)).sum(0).cpu()


def best_gaussian_kl(posterior: Posterior, steps: int = 60) -> float:
    """The minimum of KL(q ‖ p(z|x)) over Gaussians q with diagonal covariance: the approximation gap of that family.

    It is the better result of L-BFGS started from the moments of the posterior and from a Gaussian at its highest mode.
    The integral is a sum over the posterior's cells; mass of q outside these cells costs DEPTH nats.
    """
    points, log_p = posterior.points, posterior.log_density
    weights = log_p.exp() * posterior.side**2
    mean = weights @ points
    variance = weights @ (points - mean).square()
    peak = int(log_p.argmax())
    height = float(log_p[peak].exp())
    narrow = torch.full((2,), 1 / math.sqrt(2 * math.pi * height), dtype=torch.float64)

    def kl(centre: Tensor, log_std: Tensor) -> Tensor:
        z = (points - centre) / log_std.exp()
        log_q = -0.5 * z.square().sum(-1) - log_std.sum() - math.log(2 * math.pi)
        mass = log_q.exp() * posterior.side**2
        return (mass * (log_q - log_p)).sum() + (1 - mass.sum()).clamp(min=0) * DEPTH

    def climbed(centre: Tensor, std: Tensor) -> float:
        steps_away = torch.zeros(4, dtype=torch.float64, requires_grad=True)  # in units of the initial std
        optimiser = torch.optim.LBFGS([steps_away], max_iter=steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            # At most e⁸ times wider or narrower, because a larger step could overflow.
            loss = kl(centre + std * steps_away[:2], std.log() + 8 * torch.tanh(steps_away[2:] / 8))
            loss.backward()
            return loss

        optimiser.step(closure)
        return float(closure().detach())

    with torch.enable_grad():
        found = [climbed(mean, variance.sqrt()), climbed(points[peak], narrow)]
    return min((value for value in found if math.isfinite(value)), default=math.nan)


def grid_scores(vae: "VAE", x: Tensor) -> dict[str, Tensor]:
    """The scores of each instance that need the grid, each `(batch,)`.

    They are `log_evidence`, log p(x); `kl`, KL(q‖p(z|x)) of the encoder's q; and `best_kl`, the same for the best
    Gaussian with diagonal covariance. The amortization gap is the difference between the last two.
    """
    x = vae.check(x)
    found = posteriors(vae, x)
    evidence = [posterior.log_evidence for posterior in found]
    with torch.no_grad():
        kl = kl_to_posterior(vae, x, vae.encode(x), evidence)
    best = [best_gaussian_kl(posterior) for posterior in found]
    return {
        "log_evidence": torch.tensor(evidence, dtype=torch.float64),
        "kl": kl,
        "best_kl": torch.tensor(np.asarray(best), dtype=torch.float64),
    }
