"""VLAE: the encoder's mean, improved by linearising the decoder, with the Laplace covariance at the result."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin.distributions import DiagonalNormal
from gpin.generative import Generative
from gpin.inference.refined import RefinedEncoder
from gpin.networks import Trunk
from gpin.refinement import Laplace, LaplaceConfig

__all__ = ["LaplaceConfig", "LaplaceEncoder"]


class LaplaceEncoder(RefinedEncoder[LaplaceConfig]):
    """An encoder of the mean, refined by linearisation steps to a full Laplace covariance; works with any decoder."""

    name = "vlae"
    label = "VLAE"
    title = "VLAE: linearisation steps and a full Laplace covariance"
    reference = "Park, Kim & Kim 2019, Variational Laplace Autoencoders, ICML"
    Options = LaplaceConfig
    closed_form_kl = True
    export_refusal = "it needs derivatives of the decoder and Cholesky factors, which ONNX does not have"

    def __init__(self, make_trunk: Callable[[], Trunk], latent_dim: int, options: LaplaceConfig | None = None) -> None:
        super().__init__(make_trunk, latent_dim, options)
        self.trunk = make_trunk()
        self.head = nn.Linear(self.trunk.out_features, latent_dim)
        self.refinement = Laplace(self.options)

    def encode(self, x: Tensor, model: Generative) -> Distribution:
        """The encoder's mean with unit standard deviations, which the refinement ignores."""
        mean = self.head(self.trunk(x))
        return DiagonalNormal(mean, torch.ones_like(mean))
