"""The true posterior p(z|x) in a latent plane, on a grid as fine as it needs, and how far a Gaussian is from it."""

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
"""The prior's mass beyond 6 standard deviations is 3e-9: the first grid ends there, or farther out, where a posterior
reaches so far."""
BORDER = 15.0
"""Nats below its highest point at which every posterior must be by then."""
COARSE = 0.1
"""Side of a cell of the first grid."""
DEPTH = 30.0
"""Nats below the highest point at which a cell is given up in the end."""
CORE, FEW, ENOUGH = 8.0, 16, 150
"""Cells are quartered until ENOUGH are within CORE nats of the highest: two or more a standard deviation."""
DEEP = {True: 300.0, False: 45.0}
"""Nats at which one is given up before, while there are FEW, larger than the posterior perhaps, and after: mass can lie
that far from the centre of its cell."""
PIECE = 512
"""Points that the decoder takes at a time."""


@dataclass(frozen=True)
class Posterior:
    """log p(x, z) of one instance at the centres of square cells, which hold all mass but what is DEPTH nats down.

    Attributes:
        points: `(n, 2)`.
        log_joint: log p(x, z), `(n,)`.
        side: Of a cell.
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
    """Of each instance of x `(batch, *shape)`, for a model with two latent dimensions."""
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
    """Centres of cells `(points, 2)` that hold every posterior, and log p(x, z) there, `(points, batch)`."""
    reach = REACH
    while True:
        ticks = torch.arange(-reach + COARSE / 2, reach, COARSE, dtype=torch.float64)
        points = torch.cartesian_prod(ticks, ticks)
        values = _log_joint(vae, x, points)  # one decoder pass for all instances
        outside = points.abs().amax(-1) > reach - COARSE
        if (values[outside].amax(0) < values.amax(0) - BORDER).all():
            return points, values
        if reach == FARTHEST:
            raise InputError(
                f"a posterior does not end within {FARTHEST:.0f} standard deviations of the prior: no grid holds it"
            )
        reach = min(reach * WIDER, FARTHEST)


def _log_joint(vae: "VAE", x: Tensor, points: Tensor) -> Tensor:
    """log p(x, z) at every point for every instance, `(points, batch)`, in float64."""
    parts = []
    for z in points.to(x).split(max(1, PIECE // len(x))):
        output = vae.decoder(z).unsqueeze(1)
        output = output.expand(-1, len(x), *output.shape[2:])  # each point is decoded once for all
        parts.append((vae.likelihood.log_prob(x, output) + vae.log_prior(z).unsqueeze(1)).double().cpu())
    return torch.cat(parts)


@torch.no_grad()
def kl_to_posterior(vae: "VAE", x: Tensor, q: Distribution, evidence: Sequence[float]) -> Tensor:
    """KL(q ‖ p(z|x)) = log p(x) − E_q[log p(x, z) − log q(z)] of each instance, `(batch,)`.

    The expectation is a sum over 41×41 points within five standard deviations of q, normalised, where q has a peak and
    no correlations. Where it may have several, or ridges, a grid so coarse would miss them: there it is the mean over
    as many samples.
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
    # Normalised like the weights, so that what the grid leaves out of q is not counted as a difference.
    log_q = log_q - torch.logsumexp(log_q, 0) - (std.log().sum(-1) + 2 * math.log(10 / 40))
    return torch.tensor(evidence, dtype=torch.float64) - (weights * (log_joint - log_q)).sum(0).cpu()


def best_gaussian_kl(posterior: Posterior, steps: int = 60) -> float:
    """The least KL(q ‖ p(z|x)) over Gaussians q with diagonal covariance: what no encoder of that family can mend.

    Found by L-BFGS from the posterior's own moments, and from a Gaussian as wide as its highest mode, of which the
    better counts; the integral is a sum over the posterior's cells, and what q has outside is charged with DEPTH nats.
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
        steps_away = torch.zeros(4, dtype=torch.float64, requires_grad=True)  # in units of the start's deviations
        optimiser = torch.optim.LBFGS([steps_away], max_iter=steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            # No more than e⁸ times as wide or narrow: a step beyond would overflow.
            loss = kl(centre + std * steps_away[:2], std.log() + 8 * torch.tanh(steps_away[2:] / 8))
            loss.backward()
            return loss

        optimiser.step(closure)
        return float(closure().detach())

    with torch.enable_grad():
        found = [climbed(mean, variance.sqrt()), climbed(points[peak], narrow)]
    return min((value for value in found if math.isfinite(value)), default=math.nan)


def grid_scores(vae: "VAE", x: Tensor) -> dict[str, Tensor]:
    """What the grid says of each instance, each `(batch,)`.

    `log_evidence`, log p(x); `kl`, KL(q‖p(z|x)) of the encoder's q; `best_kl`, the same of the best Gaussian with
    diagonal covariance. The amortization gap is the difference of the two.
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
