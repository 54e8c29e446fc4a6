"""The encoder of the plain VAE: a diagonal Gaussian whose mean and standard deviation are networks."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin.distributions import LOG_STD_RANGE, DiagonalNormal
from gpin.generative import Generative
from gpin.inference.base import InferenceModel, MethodConfig
from gpin.networks import Trunk

__all__ = ["GaussianConfig", "GaussianEncoder"]


class GaussianConfig(MethodConfig):
    """The plain VAE has no options."""


class GaussianEncoder(InferenceModel[GaussianConfig]):
    r"""q(z|x) = N(z; b(x), diag c(x)²), from one trunk with a linear head of 2d outputs."""

    name = "vae"
    label = "VAE"
    title = "VAE: one diagonal Gaussian encoder"
    reference = "Kingma & Welling 2014, Auto-Encoding Variational Bayes, arXiv:1312.6114"
    Options = GaussianConfig
    closed_form_kl = True

    def __init__(self, make_trunk: Callable[[], Trunk], latent_dim: int, options: GaussianConfig | None = None) -> None:
        super().__init__(make_trunk, latent_dim, options)
        self.trunk = make_trunk()
        self.head = nn.Linear(self.trunk.out_features, 2 * latent_dim)

    def moments(
        self, features: Float[Tensor, "batch p"]
    ) -> tuple[Float[Tensor, "batch d"], Float[Tensor, "batch d"], Float[Tensor, "batch d"]]:
        """b, c and log c, each `(batch, d)`, from the features of the trunk, `(batch, p)`."""
        mean, log_std = self.head(features).chunk(2, dim=-1)
        log_std = log_std.clamp(*LOG_STD_RANGE)
        return mean, log_std.exp(), log_std

    def forward(self, x: Tensor, model: Generative) -> Distribution:
        return DiagonalNormal(*self.moments(self.trunk(x)))

    def features(self, x: Tensor, model: Generative) -> Float[Tensor, "batch p"]:
        """The features of the trunk, b and log c."""
        features = self.trunk(x)
        mean, _, log_std = self.moments(features)
        return torch.cat([features, mean, log_std], dim=-1)

    @property
    def gaussian_encoder(self) -> "GaussianEncoder":
        """The model itself."""
        return self

    def start_from(self, other: InferenceModel[Any]) -> None:
        """Copy the weights of a trained VAE's encoder of the same architecture."""
        if other.gaussian_encoder is None:
            super().start_from(other)
        else:
            self.copy_weights(other.gaussian_encoder)
