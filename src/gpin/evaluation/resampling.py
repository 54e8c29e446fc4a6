r"""Weighted draws from the posterior, with as much work for each instance as it needs.

Draws z_k of a proposal q(z|x) with weights w_k ∝ p(x, z_k) / q(z_k|x) stand for the posterior: Σ_k w_k f(z_k)
approximates E[f(z)|x], and K draws chosen with the probabilities w_k are approximately draws from p(z|x) (sampling
importance resampling). How well depends on the proposal, and says so itself: an instance *passes* if the effective
sample size and the Pareto shape k̂ of its weights are good enough. The instances that fail go on to the next, more
expensive stage, such as the encoder's posterior, natural-gradient steps, a refined Gaussian.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gpin.evaluation.importance import effective_sample_size, pareto_khat
from gpin.evaluation.reliability import LIMIT

__all__ = ["PosteriorDraws", "Proposal", "escalated", "resampled"]

Proposal = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A stage: x `(batch, *shape)` → draws `(samples, batch, d)` and their log weights, not normalised,
`(samples, batch)`."""


@dataclass(frozen=True)
class PosteriorDraws:
    """Weighted draws from the posterior of each instance, with their diagnostics.

    Attributes:
        z: The draws, `(samples, batch, d)`.
        log_weights: Their log weights, `(samples, batch)`; the weights of an instance sum to one.
        log_likelihood: The estimate of log p(x) that belongs to them, `(batch,)`. That of each stage is a lower bound
            in expectation; the highest of several, which instances that failed everywhere keep, need not be.
        ess: The effective sample size of the weights, `(batch,)`, between 1 and `samples`.
        khat: The Pareto shape of the largest weights, `(batch,)`; above 0.7 the draws are unreliable.
        passed: Whether `ess` and `khat` are good enough, `(batch,)`.
        stage: The index in `stages` of the proposal that made the draws, `(batch,)`.
        stages: The names of the proposals, in the order in which they were tried.
    """

    z: Float[Tensor, "samples batch d"]
    log_weights: Float[Tensor, "samples batch"]
    log_likelihood: Float[Tensor, " batch"]
    ess: Float[Tensor, " batch"]
    khat: Float[Tensor, " batch"]
    passed: Tensor
    stage: Tensor
    stages: tuple[str, ...]

    @property
    def weights(self) -> Tensor:
        """The weights, `(samples, batch)`, which sum to one for each instance."""
        return self.log_weights.exp()

    @property
    def mean(self) -> Tensor:
        """The posterior mean, `(batch, d)`."""
        return self._expectation(self.z.double()).to(self.z.dtype)

    @property
    def variance(self) -> Tensor:
        """The posterior variance of each latent dimension, `(batch, d)`."""
        z = self.z.double()
        return self._expectation((z - self._expectation(z)).square()).to(self.z.dtype)

    @property
    def stddev(self) -> Tensor:
        """The posterior standard deviation of each latent dimension, `(batch, d)`."""
        return self.variance.sqrt()

    def _expectation(self, values: Tensor) -> Tensor:
        return (self.weights.unsqueeze(-1) * values).sum(0)

    @property
    def stage_names(self) -> list[str]:
        """The name of the proposal of each instance."""
        return [self.stages[index] for index in self.stage.tolist()]

    def resample(self, count: int | None = None) -> Tensor:
        """`count` draws of equal weight for each instance, `(count, batch, d)`, chosen with the weights as
        probabilities; by default as many as there are weighted draws. Some of them are equal."""
        return resampled(self.z, self.log_weights, len(self.z) if count is None else count)

    def __str__(self) -> str:
        counts = self.stage.bincount(minlength=len(self.stages)).tolist()
        from_ = ", ".join(f"{count} from {name}" for name, count in zip(self.stages, counts, strict=True) if count)
        return (
            f"{len(self.z):,} weighted draws for each of {len(self.ess):,} instances ({from_}; "
            f"{int((~self.passed).sum())} not reliable; median ESS {self.ess.median():.0f})"
        )

    @classmethod
    def join(cls, parts: Iterable["PosteriorDraws"]) -> "PosteriorDraws":
        """Concatenate the draws of several batches."""
        parts = list(parts)
        along = {"z": 1, "log_weights": 1, "log_likelihood": 0, "ess": 0, "khat": 0, "passed": 0, "stage": 0}
        tensors = {name: torch.cat([getattr(part, name) for part in parts], dim) for name, dim in along.items()}
        return cls(**tensors, stages=parts[0].stages)


def resampled(
    z: Float[Tensor, "samples batch d"], log_weights: Float[Tensor, "samples batch"], count: int
) -> Float[Tensor, "count batch d"]:
    """`count` of the draws of each instance, chosen independently with probabilities proportional to their weights."""
    probabilities = torch.softmax(log_weights, 0).T.contiguous()
    chosen = torch.multinomial(probabilities, count, replacement=True).T  # (count, batch)
    return z.gather(0, chosen.unsqueeze(-1).expand(-1, -1, z.shape[-1]))


def escalated(x: Tensor, stages: Mapping[str, Proposal], least_ess: float) -> PosteriorDraws:
    """Weighted draws for a batch: each stage serves the instances that failed at all stages before it.

    An instance that fails at every stage keeps the draws of the stage with the highest estimate of log p(x). Such an
    estimate exceeds log p(x) by t nats with a probability of at most e⁻ᵗ, so that the highest is the best one.

    Arguments:
        x: `(batch, *shape)`.
        stages: The proposals by their names, the cheapest first.
        least_ess: The effective sample size with which an instance passes, unless k̂ > 0.7.
    """
    found: PosteriorDraws | None = None
    for index, propose in enumerate(stages.values()):
        pending = torch.arange(len(x), device=x.device) if found is None else (~found.passed).nonzero().flatten()
        if not len(pending):
            break
        new = _weighted(*propose(x[pending]), index, tuple(stages), least_ess)
        if found is None:
            found = new
            continue
        better = new.passed | (new.log_likelihood > found.log_likelihood[pending])
        places = pending[better]
        for name in ("z", "log_weights"):
            getattr(found, name)[:, places] = getattr(new, name)[:, better]
        for name in ("log_likelihood", "ess", "khat", "passed", "stage"):
            getattr(found, name)[places] = getattr(new, name)[better]
    assert found is not None
    return found


def _weighted(z: Tensor, log_weights: Tensor, index: int, stages: tuple[str, ...], least_ess: float) -> PosteriorDraws:
    """The draws of one stage with their diagnostics."""
    log_weights = log_weights.nan_to_num(nan=-math.inf, neginf=-math.inf)
    total = torch.logsumexp(log_weights, 0)
    ess, khat = effective_sample_size(log_weights).nan_to_num(nan=1.0), pareto_khat(log_weights)
    stage = torch.full_like(total, index, dtype=torch.long)
    passed = (khat <= LIMIT) & (ess >= least_ess)
    # If p(x, z) is zero for every draw, no draw is better than another.
    shares = torch.where(total == -math.inf, -math.log(len(z)), log_weights - total)
    return PosteriorDraws(z, shares, total - math.log(len(z)), ess, khat, passed, stage, stages)
