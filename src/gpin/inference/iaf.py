"""IAF: an inverse autoregressive flow on the encoder's Gaussian, with its features as context."""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution, Transform, constraints

from gpin.distributions import DiagonalNormal, FlowNormal
from gpin.generative import Generative
from gpin.inference.base import InferenceModel, MethodConfig
from gpin.inference.gaussian import GaussianEncoder
from gpin.networks import Trunk

__all__ = ["GatedAffine", "IAFConfig", "IAFEncoder"]


class IAFConfig(MethodConfig):
    """Options of the inverse autoregressive flow.

    Arguments:
        flows: T, the number of flows; the paper uses 1, 2, 4 and 8.
        hidden: The number of units in the single hidden layer of each flow's masked network.
    """

    flows: int = Field(default=2, ge=1, le=64)
    hidden: int = Field(default=256, ge=1)


class GatedAffine(Transform):
    """z ↦ σ z + (1 − σ) m with σ = sigmoid(s + 2): one step of the flow, initially close to the identity."""

    domain = constraints.real
    codomain = constraints.real
    bijective = True
    sign = +1

    BIAS = 2.0

    def __init__(self, shift: Tensor, gate: Tensor) -> None:
        super().__init__()
        self.shift, self.gate = shift, gate + self.BIAS

    def _call(self, x: Tensor) -> Tensor:
        return torch.lerp(self.shift, x, self.gate.sigmoid())

    def _inverse(self, y: Tensor) -> Tensor:
        # (y − (1 − σ) m)/σ, written so that a closed gate does not divide by zero.
        return y + (y - self.shift) * torch.exp(-self.gate)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log σ."""
        return nn.functional.logsigmoid(self.gate)


class IAFEncoder(InferenceModel[IAFConfig]):
    """z_t = σ_t z_{t−1} + (1 − σ_t) m_t, where a masked network of (z_{t−1}, features) gives σ_t and m_t.

    Sampling takes one pass.
    """

    name = "iaf"
    label = "IAF"
    title = "IAF: inverse autoregressive flow with the encoder's features as context"
    reference = "Kingma et al. 2016, Improving Variational Inference with Inverse Autoregressive Flow, arXiv:1606.04934"
    Options = IAFConfig
    export_refusal = "the standard deviation of a flow has no closed form"

    def __init__(self, make_trunk: Callable[[], Trunk], latent_dim: int, options: IAFConfig | None = None) -> None:
        super().__init__(make_trunk, latent_dim, options)
        self.base = GaussianEncoder(make_trunk, latent_dim)
        forwards = torch.arange(latent_dim)
        self.flows = nn.ModuleList(
            _masked_transform()(
                latent_dim,
                context=self.base.trunk.out_features,
                order=forwards if t % 2 == 0 else forwards.flip(0),
                univariate=GatedAffine,
                hidden_features=(self.options.hidden,),
                activation=nn.ELU,
            )
            for t in range(self.options.flows)
        )

    def features(self, x: Tensor, model: Generative) -> Tensor:
        """Those of the Gaussian encoder on which the method builds."""
        return self.base.features(x, model)

    def forward(self, x: Tensor, model: Generative) -> Distribution:
        features = self.base.trunk(x)
        mean, std, _ = self.base.moments(features)
        return FlowNormal(DiagonalNormal(mean, std), [flow(features) for flow in self.flows])


def _masked_transform() -> Any:
    """zuko's masked autoregressive transform; importing it disables torch's validation, so restore the setting."""
    before = Distribution._validate_args
    from zuko.flows.autoregressive import MaskedAutoregressiveTransform

    Distribution.set_default_validate_args(before)
    return MaskedAutoregressiveTransform
