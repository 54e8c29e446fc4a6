"""ME: a mixture of encoders with a gating network."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin.distributions import NormalMixture
from gpin.generative import Generative
from gpin.inference.base import ELBO, InferenceModel, MethodConfig
from gpin.inference.gaussian import GaussianEncoder
from gpin.networks import Trunk

__all__ = ["MixtureConfig", "MixtureEncoder", "mixture_of", "stratified_elbo"]


def stratified_elbo(q: NormalMixture, x: Tensor, model: Generative, samples: int) -> ELBO:
    """Σ_m α_m E_{q_m}[log p(x, z) − log q(z|x)]: exact in the weights, reparametrised in the components."""
    z = q.component_rsample(samples)  # (samples, M, batch, d)
    weights = q.log_weights.exp().T  # (M, batch)
    reconstruction = (weights * model.reconstruction(x, z, weights)).sum(1).mean(0)
    kl = (weights * (q.log_prob(z) - model.log_prior(z))).sum(1).mean(0)
    return ELBO(reconstruction, kl, torch.zeros_like(kl))


def mixture_of(
    encoders: Sequence[GaussianEncoder], features: Sequence[Tensor], log_weights: Float[Tensor, "batch m"]
) -> NormalMixture:
    """The mixture of several Gaussian encoders, given the features of each one's trunk and log weights `(batch, M)`."""
    moments = [encoder.moments(own) for encoder, own in zip(encoders, features, strict=True)]
    means, stds = (torch.stack([moment[i] for moment in moments], dim=1) for i in (0, 1))
    return NormalMixture(log_weights, means, stds)


class MixtureConfig(MethodConfig):
    """Options of the mixture encoder.

    Arguments:
        components: M, the number of encoders; the paper uses 2 to 5.
    """

    components: int = Field(default=2, ge=2, le=64)


class MixtureEncoder(InferenceModel[MixtureConfig]):
    """q(z|x) = Σ_m α_m(x) q_m(z|x), where each q_m is a VAE's encoder and a separate network gives the α_m."""

    name = "me"
    label = "ME"
    title = "ME: mixture of encoders with a gating network"
    reference = "Kim & Pavlovic 2021, Reducing the Amortization Gap in VAEs, arXiv:2102.03151 (baseline)"
    Options = MixtureConfig

    def __init__(self, make_trunk: Callable[[], Trunk], latent_dim: int, options: MixtureConfig | None = None) -> None:
        super().__init__(make_trunk, latent_dim, options)
        count = self.options.components
        self.components = nn.ModuleList(GaussianEncoder(make_trunk, latent_dim) for _ in range(count))
        self.gate_trunk = make_trunk()
        self.gate = nn.Linear(self.gate_trunk.out_features, count)

    def forward(self, x: Tensor, model: Generative) -> Distribution:
        return self.mixture(x)

    def mixture(self, x: Tensor) -> NormalMixture:
        """q(z|x) as a mixture."""
        encoders = cast(list[GaussianEncoder], list(self.components))
        log_weights = self.gate(self.gate_trunk(x)).log_softmax(-1)
        return mixture_of(encoders, [encoder.trunk(x) for encoder in encoders], log_weights)

    def elbo(self, x: Tensor, model: Generative, samples: int = 1) -> ELBO:
        """The bound, with expectations stratified over the components."""
        return stratified_elbo(self.mixture(x), x, model, samples)
