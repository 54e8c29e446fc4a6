"""HF: a chain of Householder reflections turns the diagonal Gaussian into one with a full covariance."""

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin.distributions import DiagonalNormal, ReflectedNormal
from gpin.generative import Generative
from gpin.inference.base import InferenceModel, MethodConfig
from gpin.inference.gaussian import GaussianEncoder
from gpin.networks import Trunk

__all__ = ["HouseholderConfig", "HouseholderEncoder"]


class HouseholderConfig(MethodConfig):
    """Options of the Householder flow.

    Arguments:
        flows: T, the number of reflections; the paper uses 1, 2, 4 and 8.
    """

    flows: int = Field(default=1, ge=1, le=64)


class HouseholderEncoder(InferenceModel[HouseholderConfig]):
    """z = H_T … H_1 z₀ with z₀ ~ N(b(x), diag c(x)²); v_1 is linear in the features, v_{t+1} linear in v_t."""

    name = "hf"
    label = "HF"
    title = "HF: Householder flow, a full-covariance Gaussian"
    reference = "Tomczak & Welling 2016, Improving VAEs using Householder Flow, arXiv:1611.09630"
    Options = HouseholderConfig
    closed_form_kl = True

    def __init__(
        self, make_trunk: Callable[[], Trunk], latent_dim: int, options: HouseholderConfig | None = None
    ) -> None:
        super().__init__(make_trunk, latent_dim, options)
        self.base = GaussianEncoder(make_trunk, latent_dim)
        sizes = [self.base.trunk.out_features] + [latent_dim] * (self.options.flows - 1)
        self.reflectors = nn.ModuleList(nn.Linear(size, latent_dim) for size in sizes)

    def features(self, x: Tensor, model: Generative) -> Tensor:
        """Those of the Gaussian encoder on which the method builds."""
        return self.base.features(x, model)

    def forward(self, x: Tensor, model: Generative) -> Distribution:
        features = self.base.trunk(x)
        mean, std, _ = self.base.moments(features)
        reflectors, v = [], features
        for layer in self.reflectors:
            v = layer(v)
            reflectors.append(v)
        return ReflectedNormal(DiagonalNormal(mean, std), torch.stack(reflectors))
