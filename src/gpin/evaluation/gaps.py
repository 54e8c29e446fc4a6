r"""The gaps between log p(x) and the bound of an encoder, each defined once.

Let q(z|x) be the posterior that the encoder gives for an instance x, and q*(z|x) the best member of its family, the one
with the highest ELBO for this x. Then (Cremer et al. 2018, Inference suboptimality in variational autoencoders)

| gap | definition | what it is |
|---|---|---|
| inference gap | log p(x) − ELBO(q) = KL(q(z\|x) ‖ p(z\|x)) | everything that inference loses |
| amortization gap | ELBO(q*) − ELBO(q) | what is lost because one network serves all instances |
| approximation gap | log p(x) − ELBO(q*) | the rest: what no member of the family can recover |

so that inference gap = amortization gap + approximation gap, for every instance. ELBO(q) is the bound of q(z|x) itself,
E_q[log p(x, z) − log q(z|x)]; the KL of an encoder's random weights, which training also charges, is not part of it.

Neither log p(x) nor q* is known in general. What stands in for them:

| truth | with refined posteriors (`refined_gaps`) | in a latent plane (`grid_gaps`) |
|---|---|---|
| log p(x) | the importance-weighted estimate with refined proposals | exact, by quadrature on a grid |
| ELBO(q*) | the ELBO of the refined Gaussian | that of the best diagonal Gaussian |

Three consequences for the gaps with refined posteriors. The estimate of log p(x) is a lower bound in expectation, so
the inference and the approximation gap are underestimated where importance sampling is poor. The refined Gaussian has a
full covariance, so it can be better than every member of a diagonal family; the difference counts as amortization. And
it is a Laplace approximation, not the maximum of the ELBO, so it can be worse than the encoder's posterior: then the
estimated amortization gap is below zero.
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
        """The gaps from log p(x), ELBO(q*) and ELBO(q), each `(batch,)`, or from what stands in for them."""
        return cls(
            inference_gap(log_evidence, elbo),
            amortization_gap(best_elbo, elbo),
            approximation_gap(log_evidence, best_elbo),
        )


def refined_gaps(encoder: LogLikelihood, refined: LogLikelihood) -> Gaps:
    """The gaps of an encoder, where the refined posterior stands in for log p(x) and for the best of the family.

    Arguments:
        encoder: The estimate with proposals of the encoder, `vae.log_likelihood(x)`.
        refined: The estimate with refined proposals, `vae.log_likelihood(x, proposal="refined")`.
    """
    return Gaps.of(refined.values, refined.elbo, encoder.elbo)


def grid_gaps(kl: Tensor, best_kl: Tensor) -> Gaps:
    """The gaps of an encoder in a latent plane, where the posterior is known on a grid.

    An ELBO is log p(x) less a KL divergence to the true posterior, so that log p(x) cancels.

    Arguments:
        kl: KL(q ‖ p(z|x)) of the encoder's posterior, `(batch,)`; see `gpin.evaluation.grid.grid_scores`.
        best_kl: The same of the best diagonal Gaussian, `(batch,)`.
    """
    return Gaps(kl, amortization_gap(-best_kl, -kl), best_kl)
