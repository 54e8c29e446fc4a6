"""Trunks (x → features) and decoders (z → output), and the rule that picks them for a data shape.

The convolutional pair follows the three architecture tables of the paper's supplement: 4×4 kernels,
stride 2, padding 1, LeakyReLU(0.01) in the encoder and ReLU in the decoder.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from gpin._core.config import Config
from gpin._core.errors import InputError
from gpin._core.inputs import whole_number

__all__ = ["Architecture", "Decoder", "Trunk", "architecture_for", "as_architecture", "check_shape", "matched_width"]

SLOPE = 0.01


class Architecture(Config):
    """The layers of trunk and decoder.

    Arguments:
        channels: Output channels of each stride-2 convolution of the trunk; the decoder mirrors them.
            Empty for a fully connected trunk with two hidden layers.
        width: Units of the fully connected layers; the feature width p of the trunk.
        decoder: "mirror" reflects the trunk; "dense" is a fully connected decoder with two hidden
            layers and as many parameters as the mirror would have.
    """

    channels: tuple[int, ...] = ()
    width: int = Field(default=256, ge=1)
    decoder: Literal["mirror", "dense"] = "mirror"

    @model_validator(mode="after")
    def _check(self) -> "Architecture":
        if any(c < 1 for c in self.channels):
            raise ValueError(f"channels must be positive, got {self.channels}")
        if self.decoder == "dense" and not self.channels:
            raise ValueError("decoder='dense' is for convolutional trunks; without channels it is dense already")
        return self


PAPER = {
    (1, 28, 28): Architecture(channels=(32, 32, 64), width=256),
    (3, 32, 32): Architecture(channels=(32, 32, 64), width=512),
    (3, 64, 64): Architecture(channels=(32, 32, 64, 64), width=512),
}
"""The supplement's tables: MNIST and OMNIGLOT; CIFAR10 and SVHN; CelebA."""


def architecture_for(shape: Sequence[int]) -> Architecture:
    """The architecture for data of this shape.

    The paper's tables for the paper's shapes. Other images of at least 8×8 get convolutions until the
    shorter side is 2 to 4 pixels; vectors and smaller images are fully connected.
    """
    shape = check_shape(shape)
    if shape in PAPER:
        return PAPER[shape]
    if len(shape) == 3 and min(shape[1:]) >= 8:
        side = min(shape[1:])
        if side < 16:
            return Architecture(channels=(32, 64), width=128)
        depth = max(3, math.ceil(math.log2(side / 4)))
        channels = (32, 32) + (64,) * (depth - 2)
        return Architecture(channels=channels, width=256 if shape[0] == 1 and side <= 28 else 512)
    return Architecture(width=128)


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A data shape as a tuple, or a clear error."""
    wanted = "a tuple such as (1, 28, 28) for images (channels, height, width) or (30,) for vectors"
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise InputError(f"shape must be {wanted}, got {shape!r}")
    try:
        sizes = tuple(whole_number(size, "size") for size in shape)
    except InputError:
        sizes = ()
    if not sizes:
        raise InputError(f"shape must be {wanted}, with positive whole numbers, got {tuple(shape)!r}")
    return sizes


def as_architecture(value: Architecture | Mapping[str, Any] | None, shape: Sequence[int]) -> Architecture:
    """An architecture as it is, or the rule's choice for this shape with some of it changed."""
    if isinstance(value, Architecture):
        return value
    if not isinstance(value, Mapping | None) or not all(isinstance(name, str) for name in value or {}):
        raise InputError(f"the architecture must be an Architecture or a mapping of its options, got {value!r}")
    return Architecture.parse({**architecture_for(shape).model_dump(), **(value or {})}, "the architecture")


class Trunk(nn.Sequential):
    """x `(batch, *shape)` → features `(batch, out_features)`.

    `center`, the mean of the training data once known, is subtracted from x.
    """

    center: Tensor

    def __init__(self, shape: Sequence[int], architecture: Architecture) -> None:
        shape = check_shape(shape)
        width = architecture.width
        layers: list[nn.Module] = []
        if architecture.channels:
            sizes = _conv_sizes(shape, architecture.channels)
            for before, after in zip((shape[0], *architecture.channels), architecture.channels, strict=False):
                layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE, inplace=True)]
            layers += [nn.Flatten(), nn.Linear(architecture.channels[-1] * math.prod(sizes[-1]), width)]
        else:
            layers += [nn.Flatten(), nn.Linear(math.prod(shape), width), nn.LeakyReLU(SLOPE, inplace=True)]
            layers += [nn.Linear(width, width)]
        super().__init__(*layers, nn.LeakyReLU(SLOPE, inplace=True))
        self.out_features = width
        self.register_buffer("center", torch.zeros(shape))
        _channels_last(self)

    def forward(self, x: Tensor) -> Tensor:
        """Features of x."""
        return super().forward(x - self.center)


class Decoder(nn.Sequential):
    """z `(batch, latent_dim)` → output `(batch, *shape)`, without a final nonlinearity.

    `center`, the mean of the training data where the likelihood wants it, is added to the output.
    """

    center: Tensor

    def __init__(self, latent_dim: int, shape: Sequence[int], architecture: Architecture) -> None:
        shape = check_shape(shape)
        if not architecture.channels:
            layers = _dense(latent_dim, architecture.width, shape)
        elif architecture.decoder == "dense":
            width = matched_width(latent_dim, shape, architecture)
            layers = _dense(latent_dim, width, shape)
        else:
            layers = _mirror(latent_dim, shape, architecture)
        super().__init__(*layers)
        self.register_buffer("center", torch.zeros(shape))
        _channels_last(self)

    def forward(self, z: Tensor) -> Tensor:
        """Z may have any leading dimensions: `(..., latent_dim)` → `(..., *shape)`."""
        output = super().forward(z.reshape(-1, z.shape[-1])) + self.center
        return output.reshape(*z.shape[:-1], *output.shape[1:])


def matched_width(latent_dim: int, shape: Sequence[int], architecture: Architecture) -> int:
    """Hidden units of the two-layer dense decoder whose parameter count is nearest the mirror's."""
    mirror = Architecture(channels=architecture.channels, width=architecture.width)
    with torch.device("meta"):
        target = sum(p.numel() for p in Decoder(latent_dim, shape, mirror).parameters())
    size = math.prod(shape)
    # n² + (d + 2 + size) n + size = target
    linear = latent_dim + 2 + size
    exact = (-linear + math.sqrt(linear**2 + 4 * (target - size))) / 2
    return max(1, round(exact))


def _conv_sizes(shape: tuple[int, ...], channels: tuple[int, ...]) -> list[tuple[int, int]]:
    """Heights and widths before, between and after the convolutions; each halves, rounding down."""
    if len(shape) != 3:
        raise InputError(f"a convolutional architecture needs data (channels, height, width), got shape {shape}")
    sizes = [(shape[1], shape[2])]
    for _ in channels:
        sizes.append((sizes[-1][0] // 2, sizes[-1][1] // 2))
    if min(sizes[-1]) < 1:
        raise InputError(f"{len(channels)} stride-2 convolutions are too many for images of {shape[1]}×{shape[2]}")
    return sizes


def _dense(latent_dim: int, width: int, shape: tuple[int, ...]) -> list[nn.Module]:
    hidden = [nn.Linear(latent_dim, width), nn.ReLU(inplace=True), nn.Linear(width, width), nn.ReLU(inplace=True)]
    return [*hidden, nn.Linear(width, math.prod(shape)), nn.Unflatten(1, shape)]


def _mirror(latent_dim: int, shape: tuple[int, ...], architecture: Architecture) -> list[nn.Module]:
    channels, width = architecture.channels[::-1], architecture.width
    sizes = _conv_sizes(shape, architecture.channels)[::-1]
    inner = (channels[0], *sizes[0])
    layers: list[nn.Module] = [nn.Linear(latent_dim, width), nn.ReLU(inplace=True)]
    layers += [nn.Linear(width, math.prod(inner)), nn.ReLU(inplace=True), nn.Unflatten(1, inner)]
    for i, (before, after) in enumerate(zip(channels, (*channels[1:], shape[0]), strict=True)):
        # Where the trunk rounded an odd size down, output_padding brings the pixel back (3 → 7).
        odd = (sizes[i + 1][0] % 2, sizes[i + 1][1] % 2)
        kind = FewChannels if after < 8 else nn.ConvTranspose2d
        layers += [kind(before, after, 4, stride=2, padding=1, output_padding=odd), nn.ReLU(inplace=True)]
    return layers[:-1]


class FewChannels(nn.ConvTranspose2d):
    """The same function as a 2×2 convolution to four times the channels, one of them for each pixel of a 2×2 block.

    Before the padding is cut off, the pixels 2m and 2m + 1 are made of input m by taps 0 and 1, and of input m − 1 by
    taps 2 and 3. For few channels that is faster on the CPU, whose kernels work on eight channels at a time.
    """

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """`(batch, in, height, width)` → `(batch, out, 2 height + odd, 2 width + odd)`."""
        assert self.bias is not None
        blocks = self.weight.unflatten(3, (2, 2)).unflatten(2, (2, 2)).flip(2, 4)  # (in, out, 2 inputs, 2 pixels, …)
        filters = blocks.permute(1, 3, 5, 0, 2, 4).reshape(-1, self.in_channels, 2, 2)
        filters = filters.contiguous(memory_format=torch.channels_last)
        output = F.pixel_shuffle(F.conv2d(x, filters, self.bias.repeat_interleave(4), padding=1), 2)
        high, wide = self.output_padding
        return output[..., 1 : output.shape[-2] - 1 + high, 1 : output.shape[-1] - 1 + wide]


def _channels_last(network: nn.Module) -> None:
    """Lay out the filters with channels last, in which convolutions on the CPU are faster."""
    for parameter in network.parameters():
        if parameter.dim() == 4:
            # `contiguous` would leave filters of one channel as they are, for which both layouts look alike.
            laid_out = torch.empty_like(parameter, memory_format=torch.channels_last)
            parameter.data = laid_out.copy_(parameter.data)
