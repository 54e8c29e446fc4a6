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

| quantity | with refined posteriors (`refined_gaps`) | with a latent plane (`grid_gaps`) |
|---|---|---|
| log p(x) | the importance-weighted estimate with refined proposals | the exact value, by quadrature on a grid |
| ELBO(q*) | the ELBO of the refined Gaussian | the ELBO of the best diagonal Gaussian |

This has three consequences for the gaps with refined posteriors. First, the estimate of log p(x) is a lower bound in
expectation, so the inference and approximation gaps are underestimated where importance sampling is poor. Second, the
refined Gaussian has a full covariance, so it can be better than every member of a diagonal family; the difference is
counted as amortization. Third, it is a Laplace approximation, not the maximum of the ELBO, so it can be worse than the
encoder's posterior; the estimated amortization gap is then negative.
"""

from dataclasses import dataclass

from torch import Tensor

from gpin.evaluation.importance import LogLikelihood

__all__ = ["Gaps", "amortization_gap", "approximation_gap", "grid_gaps", "inference_gap", "refined_gaps"]


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
    """

    inference: Tensor
    amortization: Tensor
    approximation: Tensor

    @classmethod
    def of(cls, log_evidence: Tensor, best_elbo: Tensor, elbo: Tensor) -> "Gaps":
        """The gaps from log p(x), ELBO(q*) and ELBO(q), or estimates of them, each `(batch,)`."""
        return cls(
            inference_gap(log_evidence, elbo),
            amortization_gap(best_elbo, elbo),
            approximation_gap(log_evidence, best_elbo),
        )


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
