"""The residual convolutional architecture: deeper networks for images, without normalisation layers."""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from gpin.networks.base import Architecture, CentredDecoder, CentredTrunk
from gpin.networks.convolutional import Convolutional, ImageOptions, halved_sizes, upsampling

__all__ = ["Residual", "ResidualBlock", "ResidualOptions"]


class ResidualOptions(ImageOptions):
    """The options of the residual convolutional architecture.

    Arguments:
        channels: The output channels of each stride-2 convolution of the trunk; the decoder mirrors them.
        width: The units of the fully connected layers, and the number of features p of the trunk.
        blocks: The number of residual blocks after each stride-2 convolution of the trunk, and before each one of the
            decoder.
    """

    kind: Literal["residual"] = "residual"
    blocks: int = Field(default=1, ge=1)


class ResidualBlock(nn.Module):
    """x + f(x) with f = SiLU, 3×3 convolution, SiLU, 3×3 convolution: `(batch, channels, height, width)` → the same.

    f is small at initialisation, so that deep networks can be trained without normalisation. Batch normalisation would
    make the result for an instance depend on the others in the batch.
    """

    START = 0.1
    """The factor by which the initial weights of the second convolution are reduced."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        with torch.no_grad():
            self.second.weight.mul_(self.START)

    def forward(self, x: Tensor) -> Tensor:
        silu = nn.functional.silu
        return x + self.second(silu(self.first(silu(x))))


class Residual(Architecture[ResidualOptions]):
    """The convolutional architecture with residual blocks at every resolution, and SiLU in place of ReLU."""

    name = "residual"
    title = "Residual convolutional: blocks of two 3×3 convolutions at every resolution"
    Options = ResidualOptions

    @classmethod
    def suited(cls, shape: tuple[int, ...]) -> ResidualOptions:
        """The channels and width of the convolutional architecture for this shape."""
        plain = Convolutional.suited(shape)
        return ResidualOptions(channels=plain.channels, width=plain.width)

    def _blocks(self, channels: int) -> list[nn.Module]:
        return [*(ResidualBlock(channels) for _ in range(self.options.blocks)), nn.SiLU()]

    def trunk(self) -> CentredTrunk:
        channels, width = self.options.channels, self.options.width
        sizes = halved_sizes(self.shape, len(channels))
        layers: list[nn.Module] = []
        for before, after in zip((self.shape[0], *channels), channels, strict=False):
            layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), *self._blocks(after)]
        layers += [nn.Flatten(), nn.Linear(channels[-1] * math.prod(sizes[-1]), width), nn.SiLU()]
        return CentredTrunk(self.shape, layers, width)

    def decoder(self, latent_dim: int, outputs: int = 1) -> CentredDecoder:
        channels, width = self.options.channels[::-1], self.options.width
        sizes = halved_sizes(self.shape, len(channels))[::-1]
        inner = (channels[0], *sizes[0])
        layers: list[nn.Module] = [nn.Linear(latent_dim, width), nn.SiLU(), nn.Linear(width, math.prod(inner))]
        layers += [nn.Unflatten(1, inner)]
        for before, after, size in zip(channels, (*channels[1:], outputs * self.shape[0]), sizes[1:], strict=True):
            layers += [*self._blocks(before), upsampling(before, after, size)]
        layers += [] if outputs == 1 else [nn.Unflatten(1, (outputs, self.shape[0]))]
        return CentredDecoder(self.output_shape(outputs), layers)
