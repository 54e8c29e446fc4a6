r"""Searches from several starts: a mixture with a Gaussian at every mode of the posterior that they find.

Every start leads to a Laplace approximation N(m_i, Λ_i⁻¹), whose evidence is the mass that it claims,

.. math:: \log e_i = \log p(x, m_i) + \tfrac d2 \log 2\pi - \tfrac12 \log |\Lambda_i|

Searches that end at the same mode share its evidence: the weight of a component is proportional to e_i / n_i, where
n_i = Σ_j exp(−½ (m_i − m_j)ᵀ Λ_i (m_i − m_j)) counts the ends near m_i, itself included.

A posterior is not Gaussian around its modes. Rounds of adaptive importance sampling fit the mixture to it: each draws
from the mixture, weights the draws by p(x, z)/q(z), and moves weights, means and covariances by one step of the EM
algorithm on the weighted draws.

Reference: Cappé et al. (2008), *Adaptive importance sampling in general mixture classes*, arXiv:0710.4242.
"""

import math

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.distributions import Distribution

from gpin._core.modes import evaluating
from gpin.distributions import DiagonalNormal, PrecisionMixture, PrecisionNormal
from gpin.generative import Generative
from gpin.refinement.base import Refinement
from gpin.refinement.quasi_newton import QuasiNewton, QuasiNewtonConfig

__all__ = ["Modes", "ModesConfig"]

CHUNK = 2**24
"""The number of coordinates that a round of adaptation holds at a time."""

INERTIA = 20.0
"""How many effective draws a component needs to move half of the way to their mean and covariance."""

DEFENSIVE = 0.1
"""The share of the weight that a round divides equally among all components, so that none is lost by chance, and the
share of the wide components at the end."""

WIDE = 2.0
"""The factor of the standard deviations of the wide components."""


class ModesConfig(QuasiNewtonConfig):
    """Options of the searches from several starts.

    Arguments:
        starts: The number of searches: one from q's mean, the others from draws of the prior.
        rounds: The number of rounds of adaptive importance sampling after the searches.
        draws: The number of draws for each instance in a round.
    """

    starts: int = Field(default=16, ge=1)
    rounds: int = Field(default=0, ge=0)
    draws: int = Field(default=4000, ge=1)


class Modes(Refinement[PrecisionMixture]):
    """Laplace approximations where searches from q's mean and from draws of the prior end, as one mixture.

    The result is detached from the graph: nothing can be trained through this refinement.

    Arguments:
        options: The numbers of starts and rounds, and the options of each search.
    """

    def __init__(self, options: ModesConfig | None = None) -> None:
        self.options = ModesConfig() if options is None else options

    @torch.no_grad()
    def refine(self, x: Tensor, q: Distribution, model: Generative) -> PrecisionMixture:
        """Return the mixture; only the mean of q is used.

        There is one component per start and, after rounds, a wide copy of each with a small weight: proposals need
        tails at least as heavy as the posterior's, and those of fitted Gaussians may be too light.
        """
        with evaluating(model.decoder):
            found = self._search(x, q.mean, model)
            if not self.options.rounds:
                return found
            size = max(1, CHUNK // (self.options.draws * found.components.mean[0].numel()))
            rows = torch.arange(len(x), device=x.device).split(size)
            parts = [self._adapt(x[some], _rows(found, some), model) for some in rows]
        weights, means, factors = (torch.cat(part) for part in zip(*map(_parameters, parts), strict=True))
        weights = torch.cat([weights + math.log(1 - DEFENSIVE), weights + math.log(DEFENSIVE)], dim=-1)
        components = PrecisionNormal(torch.cat([means, means], dim=1), torch.cat([factors, factors / WIDE], dim=1))
        return PrecisionMixture(weights, components)

    def _search(self, x: Tensor, mean: Float[Tensor, "batch d"], model: Generative) -> PrecisionMixture:
        """The Laplace approximations where the searches end."""
        count = self.options.starts
        starts = torch.cat([mean.unsqueeze(0), torch.randn(count - 1, *mean.shape).to(mean)]).flatten(0, 1)
        copies = x.repeat(count, *[1] * (x.dim() - 1))
        ends = QuasiNewton(self.options).refine(copies, DiagonalNormal(starts, torch.ones_like(starts)), model)
        log_det = ends.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        evidence = model.log_joint(copies, ends.mean) + 0.5 * mean.shape[-1] * math.log(2 * math.pi) - log_det
        means, factors, evidence = (
            part.unflatten(0, (count, -1)).transpose(0, 1) for part in (ends.mean, ends.factor, evidence)
        )
        weights = (evidence - _copies(means, factors).log()).log_softmax(-1)
        return PrecisionMixture(weights, PrecisionNormal(means, factors))

    def _adapt(self, x: Tensor, q: PrecisionMixture, model: Generative) -> PrecisionMixture:
        """The mixture after all rounds, for some instances."""
        for _ in range(self.options.rounds):
            z = q.sample((self.options.draws,))
            joint = q.log_weights + q.components.log_prob(z.unsqueeze(-2))  # (draws, batch, M)
            log_prob = joint.logsumexp(-1)
            weights = truncated(model.log_joint(x, z) - log_prob).softmax(0)
            shares = weights.unsqueeze(-1) * (joint - log_prob.unsqueeze(-1)).exp()
            q = _moved(q, z, shares)
        return q


def truncated(log_weights: Float[Tensor, "draws batch"]) -> Float[Tensor, "draws batch"]:
    """Log weights of which none exceeds the mean weight times the square root of the number of draws (Ionides 2008)."""
    draws = len(log_weights)
    return torch.minimum(log_weights, log_weights.logsumexp(0) - 0.5 * math.log(draws))


def _moved(
    q: PrecisionMixture, z: Float[Tensor, "draws batch d"], shares: Float[Tensor, "draws batch m"]
) -> PrecisionMixture:
    """The mixture after a step of EM on draws z, of which component m accounts for `shares[..., m]` of the mass."""
    mass = shares.sum(0)  # (batch, M)
    tiny = torch.finfo(mass.dtype).tiny
    effective = mass.square() / shares.square().sum(0).clamp(min=tiny)
    pace = (effective / (effective + INERTIA)).unsqueeze(-1)  # (batch, M, 1)
    per_draw = shares.movedim(0, -1) / mass.clamp(min=tiny).unsqueeze(-1)  # (batch, M, draws)
    means = torch.lerp(q.components.mean, per_draw @ z.transpose(0, 1), pace)
    roots = per_draw.sqrt().unsqueeze(-1) * (z.transpose(0, 1).unsqueeze(1) - means.unsqueeze(2))
    covariances = torch.lerp(q.components.covariance_matrix, roots.mT @ roots, pace.unsqueeze(-1))
    factors = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(covariances)))
    weights = (1 - DEFENSIVE) * mass + DEFENSIVE / mass.shape[-1]
    return PrecisionMixture(weights.log().log_softmax(-1), PrecisionNormal(means, factors))


def _parameters(q: PrecisionMixture) -> tuple[Tensor, Tensor, Tensor]:
    return q.log_weights, q.components.mean, q.components.factor


def _rows(q: PrecisionMixture, rows: Tensor) -> PrecisionMixture:
    """The mixture of some instances."""
    weights, means, factors = (part[rows] for part in _parameters(q))
    return PrecisionMixture(weights, PrecisionNormal(means, factors))


def _copies(means: Float[Tensor, "batch m d"], factors: Float[Tensor, "batch m d d"]) -> Float[Tensor, "batch m"]:
    """n_i, the number of means near mean i in the metric of its own precision, at least 1: `(batch, M)`."""
    differences = means.unsqueeze(1) - means.unsqueeze(2)  # (batch, i, j, d)
    return (-0.5 * (differences @ factors).square().sum(-1)).exp().sum(-1)
