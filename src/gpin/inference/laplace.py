"""VLAE: the encoder's mean improved by linearising the decoder, and the Laplace covariance there."""

import math
from collections.abc import Callable

from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin.distributions import PrecisionNormal
from gpin.generative import Generative
from gpin.inference.base import InferenceModel, MethodConfig
from gpin.networks import Trunk
from gpin.refinement.gauss_newton import linearise, newton_step

__all__ = ["LaplaceConfig", "LaplaceEncoder"]


class LaplaceConfig(MethodConfig):
    """Options of VLAE.

    Arguments:
        steps: T, how often the decoder is linearised on the way to the mode.
        step_size: α: step t moves by α/(t + 1) of the way to the linearised model's mode. 1 with one
            step is exact for a linear decoder.
    """

    steps: int = Field(default=4, ge=1, le=64)
    step_size: float = Field(default=0.5, gt=0, le=1)


class LaplaceEncoder(InferenceModel[LaplaceConfig]):
    """q(z|x) = N(μ_T, Λ(μ_T)⁻¹), full covariance, for any decoder; trained through the steps."""

    name = "vlae"
    title = "VLAE: linearisation steps and a full Laplace covariance"
    reference = "Park, Kim & Kim 2019, Variational Laplace Autoencoders, ICML"
    Options = LaplaceConfig

    def __init__(self, make_trunk: Callable[[], Trunk], latent_dim: int, options: LaplaceConfig | None = None) -> None:
        super().__init__(make_trunk, latent_dim, options)
        self.trunk = make_trunk()
        self.head = nn.Linear(self.trunk.out_features, latent_dim)

    def forward(self, x: Tensor, model: Generative) -> Distribution:
        mean = self.head(self.trunk(x))
        for t in range(self.options.steps):
            factor, gradient = linearise(model, x, mean)
            mean = mean + self.options.step_size / (t + 1) * newton_step(factor, gradient)
        factor, _ = linearise(model, x, mean)
        return PrecisionNormal(mean, factor)

    def kl(self, q: Distribution) -> Tensor:
        """In closed form: −H[q] − E_q[log p(z)] = ½ Σ_j (V_j + μ_j² + log 2π) − H[q]."""
        return 0.5 * (q.variance + q.mean.square() + math.log(2 * math.pi)).sum(-1) - q.entropy()
