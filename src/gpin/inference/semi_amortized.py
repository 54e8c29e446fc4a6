"""SA: the encoder's Gaussian, improved by a few gradient steps on its ELBO; training differentiates through them."""

from collections.abc import Callable

from torch import Tensor
from torch.distributions import Distribution

from gpin.generative import Generative
from gpin.inference.gaussian import GaussianEncoder
from gpin.inference.refined import RefinedEncoder
from gpin.networks import Trunk
from gpin.refinement import Gradient, GradientConfig

__all__ = ["SemiAmortizedConfig", "SemiAmortizedEncoder"]

SemiAmortizedConfig = GradientConfig


class SemiAmortizedEncoder(RefinedEncoder[SemiAmortizedConfig]):
    """The VAE's diagonal Gaussian encoder, followed by gradient steps on the ELBO."""

    name = "sa"
    label = "SA"
    title = "SA: semi-amortized, gradient steps on the ELBO from the encoder's output"
    reference = "Kim et al. 2018, Semi-Amortized Variational Autoencoders, arXiv:1802.02550"
    Options = SemiAmortizedConfig
    closed_form_kl = True
    export_refusal = "it ascends the decoder's gradient, with new noise in each call"

    def __init__(
        self, make_trunk: Callable[[], Trunk], latent_dim: int, options: SemiAmortizedConfig | None = None
    ) -> None:
        super().__init__(make_trunk, latent_dim, options)
        self.base = GaussianEncoder(make_trunk, latent_dim)
        self.refinement = Gradient(self.options)

    def features(self, x: Tensor, model: Generative) -> Tensor:
        """Those of the Gaussian encoder on which the method builds."""
        return self.base.features(x, model)

    def encode(self, x: Tensor, model: Generative) -> Distribution:
        """The posterior of the Gaussian encoder."""
        return self.base(x, model)
