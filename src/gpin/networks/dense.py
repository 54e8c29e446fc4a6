"""The fully connected architecture, for vectors and small images."""

import math
from typing import Any, Literal

from pydantic import Field, model_validator
from torch import nn

from gpin.networks.base import Architecture, ArchitectureConfig, CentredDecoder, CentredTrunk

__all__ = ["SLOPE", "Dense", "DenseOptions", "dense_decoder"]

SLOPE = 0.01

WRITTEN = {"channels": [], "decoder": "mirror"}
"""The entries besides the width in version 1 of the files and in the identity of a run, instead of a kind."""


class DenseOptions(ArchitectureConfig):
    """The options of the fully connected architecture.

    Arguments:
        width: The units of the hidden layers, and the number of features p of the trunk.
    """

    kind: Literal["dense"] = "dense"
    width: int = Field(default=256, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, options: Any) -> Any:
        if not isinstance(options, dict):
            return options
        if options.get("decoder") == "dense":
            raise ValueError("decoder='dense' applies to convolutional trunks; without channels it is always dense")
        given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
        return {name: value for name, value in given.items() if name not in WRITTEN or value != WRITTEN[name]}

    def record(self) -> dict[str, Any]:
        return {"width": self.width, **WRITTEN}


class Dense(Architecture[DenseOptions]):
    """Two hidden layers, with LeakyReLU(0.01) in the trunk and with ReLU in the decoder."""

    name = "dense"
    title = "Fully connected: two hidden layers in trunk and decoder"
    Options = DenseOptions

    @classmethod
    def suited(cls, shape: tuple[int, ...]) -> DenseOptions:
        """128 units for every shape."""
        return DenseOptions(width=128)

    def trunk(self) -> CentredTrunk:
        width = self.options.width
        layers = [nn.Flatten(), nn.Linear(math.prod(self.shape), width), nn.LeakyReLU(SLOPE, inplace=True)]
        layers += [nn.Linear(width, width), nn.LeakyReLU(SLOPE, inplace=True)]
        return CentredTrunk(self.shape, layers, width)

    def decoder(self, latent_dim: int, outputs: int = 1) -> CentredDecoder:
        return dense_decoder(latent_dim, self.options.width, self.output_shape(outputs))


def dense_decoder(latent_dim: int, width: int, output_shape: tuple[int, ...]) -> CentredDecoder:
    """A decoder with two hidden layers of `width` units and ReLU."""
    layers = [nn.Linear(latent_dim, width), nn.ReLU(inplace=True), nn.Linear(width, width), nn.ReLU(inplace=True)]
    layers += [nn.Linear(width, math.prod(output_shape)), nn.Unflatten(1, output_shape)]
    return CentredDecoder(output_shape, layers)
