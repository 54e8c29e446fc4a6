"""The inference models, one file each, and their registry.

Register your own method under its name, `METHODS["mine"] = MyEncoder`. Tables, export, timing and listings then include
it; they read the attributes described in :class:`InferenceModel`.
"""

from typing import Any

from gpin._core.config import registered
from gpin.generative import Generative
from gpin.inference.base import ELBO, InferenceModel, MethodConfig, Stage, Uncertainty
from gpin.inference.gaussian import GaussianConfig, GaussianEncoder
from gpin.inference.gp.encoder import GPConfig, GPEncoder
from gpin.inference.householder import HouseholderConfig, HouseholderEncoder
from gpin.inference.iaf import IAFConfig, IAFEncoder
from gpin.inference.laplace import LaplaceConfig, LaplaceEncoder
from gpin.inference.mixture import MixtureConfig, MixtureEncoder
from gpin.inference.natural import NaturalEncoder, NaturalEncoderConfig
from gpin.inference.recursive_mixture import RecursiveMixtureConfig, RecursiveMixtureEncoder
from gpin.inference.refined import RefinedEncoder
from gpin.inference.semi_amortized import SemiAmortizedConfig, SemiAmortizedEncoder

__all__ = [
    "ELBO",
    "METHODS",
    "GPConfig",
    "GPEncoder",
    "GaussianConfig",
    "GaussianEncoder",
    "Generative",
    "HouseholderConfig",
    "HouseholderEncoder",
    "IAFConfig",
    "IAFEncoder",
    "InferenceModel",
    "LaplaceConfig",
    "LaplaceEncoder",
    "MethodConfig",
    "MixtureConfig",
    "MixtureEncoder",
    "NaturalEncoder",
    "NaturalEncoderConfig",
    "RecursiveMixtureConfig",
    "RecursiveMixtureEncoder",
    "RefinedEncoder",
    "SemiAmortizedConfig",
    "SemiAmortizedEncoder",
    "Stage",
    "Uncertainty",
    "method_named",
]

METHODS: dict[str, type[InferenceModel[Any]]] = {
    method.name: method
    for method in (
        GaussianEncoder,
        GPEncoder,
        SemiAmortizedEncoder,
        IAFEncoder,
        HouseholderEncoder,
        MixtureEncoder,
        RecursiveMixtureEncoder,
        LaplaceEncoder,
        NaturalEncoder,
    )
}


def method_named(name: str) -> type[InferenceModel[Any]]:
    """The method of that name; raises InputError, listing the registered names, if there is none."""
    return registered(METHODS, name, "method")
