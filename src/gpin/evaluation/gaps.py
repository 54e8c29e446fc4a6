r"""Definitions of the gaps between log p(x) and the bound of an encoder.

Let q(z|x) be the encoder's posterior for an instance x, and q*(z|x) the member of its family with the highest ELBO for
this x. The gaps are (Cremer et al. 2018, Inference suboptimality in variational autoencoders)

| gap | definition | meaning |
|---|---|---|
| inference gap | log p(x) − ELBO(q) = KL(q(z\|x) ‖ p(z\|x)) | the total loss due to inference |
| amortization gap | ELBO(q*) − ELBO(q) | the loss because one network serves all instances |
| approximation gap | log p(x) − ELBO(q*) | the loss that remains for the best member of the family |

so that inference gap = amortization gap + approximation gap for every instance. ELBO(q) is the bound of q(z|x) itself,
E_q[log p(x, z) − log q(z|x)]; it does not include the KL of an encoder's random weights, which training adds.

Neither log p(x) nor q* is known in general. They are replaced by

| quantity | annealed (:meth:`gpin.VAE.gaps`) | with refined posteriors (`refined_gaps`) | in a plane (`grid_gaps`) |
|---|---|---|---|
| log p(x) | the annealed estimate | importance sampling with refined proposals | the exact value, by quadrature |
| ELBO(q*) | the ELBO of the refined Gaussian | the ELBO of the refined Gaussian | that of the best diagonal Gaussian |

This has three consequences for the gaps with refined posteriors. First, the estimate of log p(x) is a lower bound in
expectation, so the inference and approximation gaps are underestimated where importance sampling is poor; annealed
chains come closer. Second, the refined Gaussian has a full covariance, so it can be better than every member of a
diagonal family; the difference is counted as amortization. Third, it is a Laplace approximation, not the maximum of the
ELBO, so it can be worse than the encoder's posterior; the estimated amortization gap is then negative.

The amortization gap can be determined at three costs, see :meth:`gpin.VAE.gap`:

| how | price | what it is |
|---|---|---|
| "predicted" | a pass of the encoder | a regression on features of the encoder, see `gpin.evaluation.gap_prediction` |
| "estimated" | one more gradient of the decoder | the Newton decrement ½ gᵀΣg; after calibration, a regression |
| "refined" | a refinement of the instance and samples | ELBO(q*) − ELBO(q) as above, with refined posteriors |
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpin.distributions import as_normal, sample_and_log_prob
from gpin.evaluation.importance import LogLikelihood
from gpin.generative import Generative, log_joint_and_gradient
from gpin.refinement.natural import Objective, newton_decrement

__all__ = [
    "GAPS",
    "HOW",
    "Gap",
    "Gaps",
    "amortization_gap",
    "approximation_gap",
    "decrement",
    "grid_gaps",
    "inference_gap",
    "posterior_elbo",
    "refined_gap",
    "refined_gaps",
]

PAIRS = 512
"""How many pairs (x, z) are decoded at a time."""

GAPS = ("inference", "amortization", "approximation")
"""The gaps by name; the first is the sum of the others."""

HOW = ("predicted", "estimated", "refined")
"""The ways to determine the amortization gap, the cheapest first."""


@dataclass(frozen=True)
class Gap:
    """The amortization gap of each instance in nats, with intervals; tensors are `(batch,)`.

    Attributes:
        values: The gap; for "predicted" and "estimated" of a calibrated model its median, so that a mean over instances
            is somewhat below the mean gap.
        low: The lower end of an interval that covers the refined gap with a probability of 80 %; NaN if the model is
            not calibrated, and for how="refined".
        high: The upper end of the interval.
        how: "predicted", "estimated" or "refined".
    """

    values: Tensor
    low: Tensor
    high: Tensor
    how: str

    @classmethod
    def without_interval(cls, values: Tensor, how: str) -> "Gap":
        """A gap without an interval."""
        unknown = torch.full_like(values, torch.nan)
        return cls(values, unknown, unknown, how)

    @classmethod
    def join(cls, parts: Iterable["Gap"]) -> "Gap":
        """Concatenate the gaps of several batches."""
        parts = list(parts)
        values, low, high = (torch.cat([getattr(part, name) for part in parts]) for name in ("values", "low", "high"))
        return cls(values, low, high, parts[0].how)

    @property
    def mean(self) -> float:
        """The mean over instances."""
        return self.values.double().mean().item()


def decrement(model: Generative, x: Tensor, q: Distribution, draws: int = 0) -> Tensor:
    r"""The Newton decrement at the mean m of q, `(batch,)`, in nats. It costs one gradient of the decoder.

    It is ½ gᵀΣg with g = ∇_z log p(x, z) at m and the covariance Σ of q, or of the Gaussian that stands for q. If the
    posterior is Gaussian with covariance Σ, this is KL(N(m, Σ) ‖ p(z|x)).

    Arguments:
        model: The generative model.
        x: `(batch, *shape)`.
        q: Any distribution with batch shape `(batch,)` and event shape `(d,)`.
        draws: The number of draws of q over which the gradient is averaged; 0 takes it at m.
    """
    normal = as_normal(q)
    _, gradient = Objective.of(x, normal, model, draws).value_and_gradient(normal.mean.detach())
    return newton_decrement(gradient, normal.covariance_times(gradient)).detach()


def refined_gap(model: Generative, x: Tensor, q: Distribution, refined: Distribution, samples: int) -> Tensor:
    """The amortization gap of q, `(batch,)`, in nats: the ELBO of the refined posterior minus that of q.

    Arguments:
        model: The generative model.
        x: `(batch, *shape)`.
        q: Any distribution with batch shape `(batch,)` and event shape `(d,)`.
        refined: The refined posterior, `vae.refine(x)`.
        samples: The number of samples per instance for each ELBO.
    """
    return amortization_gap(*(posterior_elbo(model, x, posterior, samples) for posterior in (refined, q)))


@torch.no_grad()
def posterior_elbo(model: Generative, x: Tensor, q: Distribution, samples: int) -> Tensor:
    """The ELBO of q, `(batch,)`, with the linear part of log p(x, z) at the mean of q as a control variate.

    Far from the mode this part causes most of the noise, with a variance of twice the Newton decrement, and its
    expectation is known. A distribution whose `mean` is not its expectation has no control variate.
    """
    chunk = max(1, PAIRS // len(x))
    z, log_prob = sample_and_log_prob(q, samples, chunk)
    log_joint = torch.cat([model.log_joint(x, part) for part in z.split(chunk)])
    if not getattr(q, "exact_mean", True):
        return (log_joint - log_prob).double().mean(0)
    _, gradient = log_joint_and_gradient(model, x, q.mean)
    return (log_joint - log_prob - ((z - q.mean) * gradient).sum(-1)).double().mean(0)


def inference_gap(log_evidence: Tensor, elbo: Tensor) -> Tensor:
    """log p(x) − ELBO(q), each `(batch,)`, in nats."""
    return log_evidence - elbo


def amortization_gap(best_elbo: Tensor, elbo: Tensor) -> Tensor:
    """ELBO(q*) − ELBO(q), each `(batch,)`, in nats."""
    return best_elbo - elbo


def approximation_gap(log_evidence: Tensor, best_elbo: Tensor) -> Tensor:
    """log p(x) − ELBO(q*), each `(batch,)`, in nats."""
    return log_evidence - best_elbo


@dataclass(frozen=True)
class Gaps:
    """The three gaps of each instance, `(batch,)`, in nats.

    Attributes:
        inference: log p(x) − ELBO(q), the sum of the other two.
        amortization: ELBO(q*) − ELBO(q).
        approximation: log p(x) − ELBO(q*).
        log_likelihood: The estimate of log p(x) and its diagnostics, if the gaps come from :meth:`gpin.VAE.gaps`.
    """

    inference: Tensor
    amortization: Tensor
    approximation: Tensor
    log_likelihood: LogLikelihood | None = None

    @classmethod
    def of(
        cls, log_evidence: Tensor, best_elbo: Tensor, elbo: Tensor, log_likelihood: LogLikelihood | None = None
    ) -> "Gaps":
        """The gaps from log p(x), ELBO(q*) and ELBO(q), or estimates of them, each `(batch,)`."""
        return cls(
            inference_gap(log_evidence, elbo),
            amortization_gap(best_elbo, elbo),
            approximation_gap(log_evidence, best_elbo),
            log_likelihood,
        )

    @classmethod
    def join(cls, parts: Iterable["Gaps"]) -> "Gaps":
        """Concatenate the gaps of several batches."""
        parts = list(parts)
        inference, amortization, approximation = (torch.cat([getattr(part, name) for part in parts]) for name in GAPS)
        estimates = [part.log_likelihood for part in parts if part.log_likelihood is not None]
        joined = LogLikelihood.join(estimates) if len(estimates) == len(parts) else None
        return cls(inference, amortization, approximation, joined)

    def __str__(self) -> str:
        means = (f"{getattr(self, name).double().mean():.2f}" for name in GAPS)
        return "inference gap {} = amortization {} + approximation {} nats".format(*means)


def refined_gaps(encoder: LogLikelihood, refined: LogLikelihood) -> Gaps:
    """The gaps of an encoder, with log p(x) and ELBO(q*) estimated from the refined posterior.

    Arguments:
        encoder: The estimate with proposals of the encoder, `vae.log_likelihood(x)`.
        refined: The estimate with refined proposals, `vae.log_likelihood(x, proposal="refined")`.
    """
    return Gaps.of(refined.values, refined.elbo, encoder.elbo)


def grid_gaps(kl: Tensor, best_kl: Tensor) -> Gaps:
    """The gaps of an encoder with two latent dimensions, from the true posterior on a grid.

    An ELBO is log p(x) minus a KL divergence to the true posterior, so log p(x) cancels.

    Arguments:
        kl: KL(q ‖ p(z|x)) of the encoder's posterior, `(batch,)`; see `gpin.evaluation.grid.grid_scores`.
        best_kl: The same for the best diagonal Gaussian, `(batch,)`.
    """
    return Gaps(kl, amortization_gap(-best_kl, -kl), best_kl)
