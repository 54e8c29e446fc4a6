"""The inference models, one file each, and their registry."""

from typing import Any

from gpin.config import suggest
from gpin.errors import InputError
from gpin.inference.base import ELBO, Generative, InferenceModel, MethodConfig, Uncertainty
from gpin.inference.gaussian import GaussianConfig, GaussianEncoder
from gpin.inference.gp import GPConfig, GPEncoder

__all__ = [
    "ELBO",
    "METHODS",
    "GPConfig",
    "GPEncoder",
    "GaussianConfig",
    "GaussianEncoder",
    "Generative",
    "InferenceModel",
    "MethodConfig",
    "Uncertainty",
    "method_named",
]

METHODS: dict[str, type[InferenceModel[Any]]] = {
    method.name: method
    for method in (
        GaussianEncoder,
        GPEncoder,
    )
}


def method_named(name: str) -> type[InferenceModel[Any]]:
    """The method of that name, or an error that lists what there is."""
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"unknown method {name!r}: {suggest(str(name), list(METHODS))}")
    return METHODS[name]
