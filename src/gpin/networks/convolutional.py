"""The convolutional architecture of the paper's supplement, extended to images of other sizes.

It uses 4×4 kernels, stride 2 and padding 1, with LeakyReLU(0.01) in the trunk and ReLU in the decoder.
"""

import math
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from gpin._core.errors import InputError
from gpin.networks.base import Architecture, ArchitectureConfig, CentredDecoder, CentredTrunk
from gpin.networks.dense import SLOPE, dense_decoder

__all__ = [
    "PAPER",
    "Convolutional",
    "ConvolutionalOptions",
    "FewChannels",
    "ImageOptions",
    "halved_sizes",
    "matched_width",
    "upsampling",
]


class ImageOptions(ArchitectureConfig):
    """The options that architectures for images share.

    Arguments:
        channels: The output channels of each stride-2 convolution of the trunk; the decoder mirrors them.
        width: The units of the fully connected layers, and the number of features p of the trunk.
    """

    channels: tuple[int, ...] = (32, 32, 64)
    width: int = Field(default=256, ge=1)

    @field_validator("channels")
    @classmethod
    def _positive(cls, channels: tuple[int, ...]) -> tuple[int, ...]:
        if not channels or any(c < 1 for c in channels):
            raise ValueError(f"channels must be one or more positive numbers, got {channels}")
        return channels


class ConvolutionalOptions(ImageOptions):
    """The options of the convolutional architecture.

    Arguments:
        channels: The output channels of each stride-2 convolution of the trunk; the decoder mirrors them.
        width: The units of the fully connected layers, and the number of features p of the trunk.
        decoder: "mirror" reflects the trunk; "dense" is a fully connected decoder with two hidden
            layers and as many parameters as the mirror would have.
    """

    kind: Literal["convolutional"] = "convolutional"
    decoder: Literal["mirror", "dense"] = "mirror"

    def record(self) -> dict[str, Any]:
        """The record without the kind, as in version 1 of the files."""
        return self.model_dump(mode="json", exclude={"kind"})


PAPER = {
    (1, 28, 28): ConvolutionalOptions(channels=(32, 32, 64), width=256),
    (3, 32, 32): ConvolutionalOptions(channels=(32, 32, 64), width=512),
    (3, 64, 64): ConvolutionalOptions(channels=(32, 32, 64, 64), width=512),
}
"""The tables of the supplement: MNIST and OMNIGLOT; CIFAR10 and SVHN; CelebA."""


class Convolutional(Architecture[ConvolutionalOptions]):
    """Stride-2 convolutions, then a fully connected layer; the decoder mirrors them."""

    name = "convolutional"
    title = "Convolutional: the tables of the paper's supplement, and the same for other images"
    Options = ConvolutionalOptions

    @classmethod
    def suited(cls, shape: tuple[int, ...]) -> ConvolutionalOptions:
        """The paper's options for its shapes; for others, convolutions until the shorter side is 2 to 4 pixels."""
        if shape in PAPER:
            return PAPER[shape]
        side = min(halved_sizes(shape, 0)[0])
        if side < 16:
            return ConvolutionalOptions(channels=(32, 64) if side >= 8 else (32,), width=128)
        depth = max(3, math.ceil(math.log2(side / 4)))
        width = 256 if shape[0] == 1 and side <= 28 else 512
        return ConvolutionalOptions(channels=(32, 32) + (64,) * (depth - 2), width=width)

    def trunk(self) -> CentredTrunk:
        channels, width = self.options.channels, self.options.width
        sizes = halved_sizes(self.shape, len(channels))
        layers: list[nn.Module] = []
        for before, after in zip((self.shape[0], *channels), channels, strict=False):
            layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE, inplace=True)]
        layers += [nn.Flatten(), nn.Linear(channels[-1] * math.prod(sizes[-1]), width)]
        return CentredTrunk(self.shape, [*layers, nn.LeakyReLU(SLOPE, inplace=True)], width)

    def decoder(self, latent_dim: int, outputs: int = 1) -> CentredDecoder:
        shape = self.output_shape(outputs)
        if self.options.decoder == "dense":
            return dense_decoder(latent_dim, matched_width(latent_dim, self.shape, self.options, outputs), shape)
        channels, width = self.options.channels[::-1], self.options.width
        sizes = halved_sizes(self.shape, len(channels))[::-1]
        inner = (channels[0], *sizes[0])
        layers: list[nn.Module] = [nn.Linear(latent_dim, width), nn.ReLU(inplace=True)]
        layers += [nn.Linear(width, math.prod(inner)), nn.ReLU(inplace=True), nn.Unflatten(1, inner)]
        for before, after, size in zip(channels, (*channels[1:], outputs * self.shape[0]), sizes[1:], strict=True):
            layers += [upsampling(before, after, size), nn.ReLU(inplace=True)]
        layers[-1:] = [] if outputs == 1 else [nn.Unflatten(1, (outputs, self.shape[0]))]
        return CentredDecoder(shape, layers)


def matched_width(latent_dim: int, shape: tuple[int, ...], options: ConvolutionalOptions, outputs: int = 1) -> int:
    """The hidden units of the two-layer dense decoder whose parameter count is closest to that of the mirror."""
    mirror = Convolutional(shape, ConvolutionalOptions(channels=options.channels, width=options.width))
    with torch.device("meta"):
        target = sum(p.numel() for p in mirror.decoder(latent_dim, outputs).parameters())
    size = outputs * math.prod(shape)
    # n² + (d + 2 + size) n + size = target
    linear = latent_dim + 2 + size
    exact = (-linear + math.sqrt(linear**2 + 4 * (target - size))) / 2
    return max(1, round(exact))


def halved_sizes(shape: tuple[int, ...], times: int) -> list[tuple[int, int]]:
    """The heights and widths before, between and after stride-2 convolutions, which halve them, rounding down."""
    if len(shape) != 3:
        raise InputError(f"a convolutional architecture needs data (channels, height, width), got shape {shape}")
    sizes = [(shape[1], shape[2])]
    for _ in range(times):
        sizes.append((sizes[-1][0] // 2, sizes[-1][1] // 2))
    if min(sizes[-1]) < 1:
        raise InputError(f"{times} stride-2 convolutions are too many for images of {shape[1]}×{shape[2]}")
    return sizes


def upsampling(before: int, after: int, size: tuple[int, int]) -> nn.ConvTranspose2d:
    """A 4×4 transposed convolution of stride 2 to images of this size."""
    # Where the trunk rounded an odd size down, output_padding restores the missing pixel (3 → 7).
    odd = (size[0] % 2, size[1] % 2)
    kind = FewChannels if after < 8 else nn.ConvTranspose2d
    return kind(before, after, 4, stride=2, padding=1, output_padding=odd)


class FewChannels(nn.ConvTranspose2d):
    """The same function, computed in a way that is faster on the CPU for few output channels, because the kernels for
    convolutions process eight channels at a time.
    """

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """`(batch, in, height, width)` → `(batch, out, 2 height + odd, 2 width + odd)`."""
        return self._as_product(x) if self.out_channels == 1 else self._as_convolution(x)

    def _as_product(self, x: Tensor) -> Tensor:
        """A matrix product yields a 4×4 patch for every input pixel, and the overlapping patches are added up.

        For one channel this is the faster way, most of all in second derivatives, which `natural` needs in training and
        which take a third less time; for three channels it is the slower one.
        """
        assert self.bias is not None
        pixels = x.permute(0, 2, 3, 1).flatten(1, 2)  # (batch, height width, in)
        patches = pixels @ self.weight.flatten(1)  # (batch, height width, out 4 4)
        size = tuple(2 * side + odd for side, odd in zip(x.shape[-2:], self.output_padding, strict=True))
        return F.fold(patches.mT, size, 4, padding=1, stride=2) + self.bias[:, None, None]

    def _as_convolution(self, x: Tensor) -> Tensor:
        """A 2×2 convolution with one output channel for each pixel of a 2×2 block.

        Before the padding is cut off, pixels 2m and 2m + 1 are computed from input m with taps 0 and 1, and from input
        m − 1 with taps 2 and 3.
        """
        assert self.bias is not None
        blocks = self.weight.unflatten(3, (2, 2)).unflatten(2, (2, 2)).flip(2, 4)  # (in, out, 2 inputs, 2 pixels, …)
        filters = blocks.permute(1, 3, 5, 0, 2, 4).reshape(-1, self.in_channels, 2, 2)
        filters = filters.contiguous(memory_format=torch.channels_last)
        output = F.pixel_shuffle(F.conv2d(x, filters, self.bias.repeat_interleave(4), padding=1), 2)
        high, wide = self.output_padding
        return output[..., 1 : output.shape[-2] - 1 + high, 1 : output.shape[-1] - 1 + wide]
