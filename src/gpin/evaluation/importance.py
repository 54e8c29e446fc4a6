"""Importance-weighted log-likelihood, with diagnostics of its reliability."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from gpin._core.errors import InputError
from gpin.distributions import sample_and_log_prob
from gpin.evaluation.reliability import lower_bound, share_above
from gpin.refinement import Ascent

__all__ = [
    "Annealing",
    "LogLikelihood",
    "effective_sample_size",
    "importance_draws",
    "importance_weighted",
    "pareto_khat",
]


@dataclass(frozen=True)
class Annealing:
    """How the chains of annealed importance sampling ran, see `gpin.evaluation.annealed`.

    Attributes:
        temperatures: The number of temperatures after the start.
        start: The distribution from which the chains started, "refined" or "prior".
        acceptance: The mean acceptance rate of the transitions of each instance, `(batch,)`.
    """

    temperatures: int
    start: str
    acceptance: Float[Tensor, " batch"]

    @classmethod
    def join(cls, parts: Sequence["Annealing"]) -> "Annealing":
        """Concatenate the acceptance rates of several batches."""
        return cls(parts[0].temperatures, parts[0].start, torch.cat([part.acceptance for part in parts]))


@dataclass(frozen=True)
class LogLikelihood:
    r"""Estimates of log p(x), one per instance, with their diagnostics; tensors are `(batch,)`.

    Attributes:
        values: log (1/K) Σ_k w_k, a lower bound in expectation; w_k = p(x, z_k) / q(z_k|x) with z_k ~ q(z|x), or the
            weight of an annealed chain.
        ess: The effective sample size (Σw)²/Σw², between 1 and K.
        khat: The Pareto shape of the largest weights; above 0.7 the estimate is unreliable (NaN for K < 25,
            which is too small to estimate it).
        mc_error: The Monte-Carlo standard error of each value, by the delta method (NaN for K = 1). It cannot exceed
            one nat, so it is not informative where k̂ > 0.7; see :attr:`lower_bound`.
        elbo: (1/K) Σ_k log w_k, without annealing the evidence lower bound of the proposal, from the same z_k.
        samples: K, the number of samples or annealed chains per instance.
        proposal: The name of the proposal distribution, or "annealed".
        log_weights: log w_k, `(samples, batch)`, if they were requested.
        ascent: The natural-gradient steps that led to the proposal, if there were any.
        annealing: How the chains ran, for an annealed estimate.
        upper: Whether the values are upper instead of lower bounds in expectation, from chains that ran in reverse.
    """

    values: Tensor
    ess: Tensor
    khat: Tensor
    mc_error: Tensor
    elbo: Tensor
    samples: int
    proposal: str = "encoder"
    log_weights: Tensor | None = None
    ascent: Ascent | None = None
    annealing: Annealing | None = None
    upper: bool = False

    @classmethod
    def of(
        cls, log_weights: Tensor, proposal: str = "encoder", keep_weights: bool = False, **more: Any
    ) -> "LogLikelihood":
        """The estimates, with their diagnostics, from the log weights `(samples, batch)`."""
        weights, samples = log_weights.double(), len(log_weights)
        values = torch.logsumexp(weights, dim=0) - math.log(samples)
        ess = effective_sample_size(weights)
        # The delta method: Var[log w̄] ≈ Var[w]/(K E[w]²), and Var[w]/E[w]² is (K/ESS − 1) K/(K − 1).
        variance = (1 / ess - 1 / samples).clamp(min=0)
        mc_error = (variance * samples / (samples - 1)).sqrt() if samples > 1 else ess * math.nan
        khat, kept = pareto_khat(weights), weights if keep_weights else None
        return cls(values, ess, khat, mc_error, weights.mean(0), samples, proposal, kept, **more)

    @property
    def mean(self) -> float:
        """The mean over instances."""
        return self.values.double().mean().item()

    @property
    def stderr(self) -> float:
        """The standard error of `mean` as an estimate for the population of instances (NaN for one instance)."""
        count = self.values.numel()
        return self.values.double().std().item() / math.sqrt(count) if count > 1 else math.nan

    @property
    def mean_mc_error(self) -> float:
        """The part of the error of `mean` that more samples would remove, if :attr:`lower_bound` is False."""
        return self.mc_error.double().square().sum().sqrt().item() / self.values.numel()

    @property
    def lower_bound(self) -> bool | None:
        """Whether k̂ > 0.7 is so common that `mean` is only a lower bound, which `mean_mc_error` does not show.

        It is None if k̂ is not known. See `gpin.evaluation.reliability`.
        """
        if self.upper:
            return False
        return lower_bound(share_above(self.khat))

    def __str__(self) -> str:
        share, believable = share_above(self.khat), self.lower_bound is False and not self.upper
        error = f"Monte-Carlo error {self.mean_mc_error:.2f}" if believable else "a lower bound"
        sign = "" if believable else "≥ "
        if self.upper:
            sign, error = "≤ ", "an upper bound"
        known = "k̂ unknown for all" if math.isnan(share) else f"k̂ > 0.7 for {100 * share:.0f} %"
        how = f"K={self.samples}, {self.proposal} proposal"
        if self.annealing is not None:
            how = f"{self.samples} chains annealed through {self.annealing.temperatures} temperatures from the "
            how += f"{self.annealing.start} start, acceptance {self.annealing.acceptance.mean():.2f}"
        return (
            f"{sign}{self.mean:.2f} nats ± {self.stderr:.2f} over instances, {error} ({how}, "
            f"median ESS {self.ess.median():.1f}, {known} of {self.values.numel()} instances)"
        )

    def __repr__(self) -> str:
        return f"LogLikelihood({self})"

    @classmethod
    def join(cls, parts: Iterable["LogLikelihood"]) -> "LogLikelihood":
        """Concatenate the estimates of several batches."""
        parts = list(parts)
        names = ("values", "ess", "khat", "mc_error", "elbo")
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        kept = [part.log_weights for part in parts if part.log_weights is not None]
        log_weights = torch.cat(kept, dim=1) if len(kept) == len(parts) else None
        ascents = [part.ascent for part in parts if part.ascent is not None]
        annealings = [part.annealing for part in parts if part.annealing is not None]
        return cls(
            **tensors,
            samples=parts[0].samples,
            proposal=parts[0].proposal,
            upper=parts[0].upper,
            log_weights=log_weights,
            ascent=Ascent.join(ascents) if len(ascents) == len(parts) else None,
            annealing=Annealing.join(annealings) if len(annealings) == len(parts) else None,
        )


@torch.no_grad()
def importance_weighted(
    log_joint: Callable[[Tensor], Tensor],
    q: Distribution,
    samples: int,
    chunk: int,
    proposal: str = "encoder",
    keep_weights: bool = False,
) -> LogLikelihood:
    """Estimate log p(x) for a batch by importance sampling from q.

    Arguments:
        log_joint: log p(x, z) for z `(samples, batch, d)` → `(samples, batch)`.
        q: The proposal, with batch shape `(batch,)`.
        samples: K, the number of samples drawn for every instance.
        chunk: How many samples `log_joint` and the density of q process at a time. It affects memory use but not the
            result.
        proposal: The name of q in the result.
        keep_weights: Whether to keep the log weights in the result.
    """
    if samples < 1:
        raise InputError(f"samples must be at least 1, got {samples}")
    if chunk < 1:
        raise InputError(f"chunk must be at least 1, got {chunk}")
    _, log_weights = importance_draws(log_joint, q, samples, chunk)
    return LogLikelihood.of(log_weights, proposal, keep_weights, ascent=getattr(q, "ascent", None))


def importance_draws(
    log_joint: Callable[[Tensor], Tensor], q: Distribution, samples: int, chunk: int
) -> tuple[Float[Tensor, "samples batch d"], Float[Tensor, "samples batch"]]:
    """Draws from q and, in float64, their log weights log p(x, z) − log q(z|x); see :func:`importance_weighted`."""
    z, log_prob = sample_and_log_prob(q, samples, chunk)
    return z, (torch.cat([log_joint(part) for part in z.split(chunk)]) - log_prob).double()


def effective_sample_size(log_weights: Float[Tensor, "samples batch"]) -> Float[Tensor, " batch"]:
    """(Σw)²/Σw² over the first dimension: `(samples, batch)` → `(batch,)`."""
    return torch.exp(2 * torch.logsumexp(log_weights, 0) - torch.logsumexp(2 * log_weights, 0))


def pareto_khat(log_weights: Float[Tensor, "samples batch"]) -> Float[Tensor, " batch"]:
    """The shape of the generalised Pareto distribution fitted to the largest importance weights.

    See Vehtari et al. 2024, Pareto smoothed importance sampling, with the fit of Zhang & Stephens 2009. The tail is
    the min(K/5, 3√K) largest weights, except those equal to the largest weight below the tail (float32 produces such
    ties), unless fewer than five would be left. `(samples, batch)` → `(batch,)`. The result is NaN for K < 25, when the
    tail has fewer than five weights, and 0 where the weights of the tail differ by less than one per cent, so that
    rounding could explain the differences.
    """
    samples = log_weights.shape[0]
    size = int(min(samples / 5, 3 * math.sqrt(samples)))
    if size < 5:
        return torch.full_like(log_weights[0], math.nan)
    top = log_weights.double().topk(size + 1, dim=0).values
    top = top - top[:1]
    cutoff = top[-1:].clamp(min=math.log(torch.finfo(torch.float64).tiny))
    excess = (top[:-1].exp() - cutoff.exp()).flip(0)  # ascending, (size, batch)
    excess = excess.clamp(min=torch.finfo(torch.float64).tiny)

    above = (top[:-1] > top[-1:]).sum(0)
    count = torch.where(above < 5, size, above)  # the size of the tail, (batch,); its weights come last
    tail = torch.arange(size, device=top.device).unsqueeze(1) >= size - count
    excess = excess.where(tail, 0.0)
    grid = 30 + count.sqrt().floor()
    steps = torch.arange(1, 31 + math.isqrt(size), dtype=torch.float64, device=top.device).unsqueeze(1)
    quartile = excess.gather(0, (size - count + (count / 4 + 0.5).long() - 1).unsqueeze(0))[0]
    theta = (1 - (grid / (steps - 0.5)).sqrt()) / (3 * quartile) + 1 / excess[-1]  # (grid, batch)
    shape = torch.log1p(-theta.unsqueeze(1) * excess).sum(1) / count  # (grid, batch)
    profile = count * ((-theta / shape).log() - shape - 1)
    posterior = torch.softmax(profile.where(steps <= grid, -math.inf), dim=0)
    best = (posterior * theta).sum(0)
    khat = torch.log1p(-best * excess).sum(0) / count
    # The weakly informative prior of Vehtari et al., worth ten observations of k = 0.5.
    khat = (count * khat + 5) / (count + 10)
    return torch.where(top[-1] > -0.01, 0.0, khat).to(log_weights.dtype)
