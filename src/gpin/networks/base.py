"""The base classes of architectures, trunks (x → features) and decoders (z → output)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from gpin._core.config import KindConfig
from gpin._core.errors import InputError
from gpin._core.inputs import whole_number

__all__ = ["Architecture", "ArchitectureConfig", "CentredDecoder", "CentredTrunk", "Trunk", "check_shape"]


class ArchitectureConfig(KindConfig):
    """The options of an architecture; `kind` is its name in `gpin.networks.ARCHITECTURES`."""


OptionsT = TypeVar("OptionsT", bound=ArchitectureConfig)


class Trunk(nn.Module):
    """A network x `(batch, *shape)` → features `(batch, out_features)`."""

    out_features: int


class Architecture(ABC, Generic[OptionsT]):
    """Makes the networks of a VAE for data of one shape.

    Arguments:
        shape: The shape of one instance.
        options: The options of the architecture; by default those for the shape.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    Options: ClassVar[type[ArchitectureConfig]]
    options: OptionsT

    def __init__(self, shape: Sequence[int], options: OptionsT | None = None) -> None:
        self.shape = check_shape(shape)
        self.options = self.suited(self.shape) if options is None else options  # type: ignore[assignment]

    @classmethod
    def suited(cls, shape: tuple[int, ...]) -> ArchitectureConfig:
        """The default options for data of this shape."""
        return cls.Options()

    def output_shape(self, outputs: int) -> tuple[int, ...]:
        """The shape of the decoder's output for one instance, see :meth:`decoder`."""
        return self.shape if outputs == 1 else (outputs, *self.shape)

    @abstractmethod
    def trunk(self) -> Trunk:
        """A new network x `(batch, *shape)` → features `(batch, out_features)`."""

    @abstractmethod
    def decoder(self, latent_dim: int, outputs: int = 1) -> nn.Module:
        """A new network z `(..., latent_dim)` → output, for any leading dimensions.

        Arguments:
            latent_dim: d.
            outputs: The number of outputs for each value of x, see `gpin.likelihoods.Likelihood`. The shape of the
                output is `(..., *shape)` for one, and `(..., outputs, *shape)` for several.
        """


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A data shape as a tuple; raises InputError if it is not a valid shape."""
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


class CentredTrunk(nn.Sequential, Trunk):
    """Layers x `(batch, *shape)` → features `(batch, out_features)`.

    `center` is subtracted from x: the mean of the training data, or zero before it is known.
    """

    center: Tensor

    def __init__(self, shape: tuple[int, ...], layers: Sequence[nn.Module], out_features: int) -> None:
        super().__init__(*layers)
        self.out_features = out_features
        self.register_buffer("center", torch.zeros(shape))
        _channels_last(self)

    @torch.no_grad()
    def center_input(self, mean: Tensor) -> None:
        """Set the centre to the mean of the training data, which has the shape of one instance."""
        self.center.copy_(mean)

    def forward(self, x: Tensor) -> Tensor:
        """The features of x."""
        return super().forward(x - self.center)


class CentredDecoder(nn.Sequential):
    """Layers z `(..., latent_dim)` → output `(..., *output_shape)`, without a final nonlinearity.

    `center`, which the likelihood computes from the training data, is added to the output.
    """

    center: Tensor

    def __init__(self, output_shape: tuple[int, ...], layers: Sequence[nn.Module]) -> None:
        super().__init__(*layers)
        self.register_buffer("center", torch.zeros(output_shape))
        _channels_last(self)

    @torch.no_grad()
    def center_output(self, center: Tensor) -> None:
        """Set the centre, which has the shape of the output for one instance."""
        self.center.copy_(center)

    def forward(self, z: Tensor) -> Tensor:
        """The output for z with any leading dimensions: `(..., latent_dim)` → `(..., *output_shape)`."""
        output = super().forward(z.reshape(-1, z.shape[-1])) + self.center
        return output.reshape(*z.shape[:-1], *output.shape[1:])


def _channels_last(network: nn.Module) -> None:
    """Store the filters with channels last, which makes convolutions on the CPU faster."""
    for parameter in network.parameters():
        if parameter.dim() == 4:
            # `contiguous` would not change filters with one channel, for which both layouts look alike.
            laid_out = torch.empty_like(parameter, memory_format=torch.channels_last)
            parameter.data = laid_out.copy_(parameter.data)
