"""The architectures of trunks (x → features) and decoders (z → output), one file each, their registry, and the choice
of one for a data shape."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpin._core.config import registered
from gpin._core.errors import InputError
from gpin.networks.base import Architecture, ArchitectureConfig, CentredDecoder, CentredTrunk, Trunk, check_shape
from gpin.networks.conditional import ConditionalTrunk
from gpin.networks.convolutional import PAPER, Convolutional, ConvolutionalOptions
from gpin.networks.dense import Dense, DenseOptions
from gpin.networks.observed import ObservedTrunk
from gpin.networks.own import OwnDecoder, OwnNetworks, OwnTrunk
from gpin.networks.residual import Residual, ResidualOptions

__all__ = [
    "ARCHITECTURES",
    "PAPER",
    "Architecture",
    "ArchitectureConfig",
    "CentredDecoder",
    "CentredTrunk",
    "ConditionalTrunk",
    "Convolutional",
    "ConvolutionalOptions",
    "Dense",
    "DenseOptions",
    "ObservedTrunk",
    "OwnDecoder",
    "OwnNetworks",
    "OwnTrunk",
    "Residual",
    "ResidualOptions",
    "Trunk",
    "architecture_for",
    "architecture_named",
    "as_architecture",
    "check_shape",
    "make_architecture",
    "parse_architecture",
]

ARCHITECTURES: dict[str, type[Architecture[Any]]] = {
    architecture.name: architecture for architecture in (Convolutional, Dense, Residual)
}


def architecture_named(name: str) -> type[Architecture[Any]]:
    """The architecture of that name; raises InputError, listing the registered names, if there is none."""
    return registered(ARCHITECTURES, name, "architecture")


def architecture_for(shape: Sequence[int]) -> ArchitectureConfig:
    """The default architecture for data of this shape.

    Images of at least 8×8 pixels get a convolutional architecture, for the paper's shapes that of the paper; vectors
    and smaller images get a fully connected one.
    """
    shape = check_shape(shape)
    chosen = Convolutional if len(shape) == 3 and min(shape[1:]) >= 8 else Dense
    return chosen.suited(shape)


def make_architecture(shape: Sequence[int], options: ArchitectureConfig) -> Architecture[Any]:
    """Make the architecture with these options, for data of this shape."""
    return architecture_named(options.kind)(shape, options)


def as_architecture(
    value: str | Mapping[str, Any] | ArchitectureConfig | None, shape: Sequence[int]
) -> ArchitectureConfig:
    """The options of an architecture for data of this shape.

    Arguments:
        value: A config, which is returned unchanged; the name of an architecture; or a mapping of options that override
            the defaults for the shape. Without a `kind`, the architecture is that of `architecture_for`.
        shape: The shape of one instance.
    """
    if isinstance(value, ArchitectureConfig):
        return value
    options = {} if value is None else {"kind": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InputError(
            f"the architecture must be a name, a mapping of options or an ArchitectureConfig, got {value!r}"
        )
    kind = options.get("kind")
    suited = architecture_for(shape) if kind is None else architecture_named(kind).suited(check_shape(shape))
    return parse_architecture({**suited.record(), **options})


def parse_architecture(options: Mapping[str, Any]) -> ArchitectureConfig:
    """The options from `ArchitectureConfig.record`.

    Version 1 of the files has no kinds: an architecture with channels is convolutional, one without fully connected.
    """
    kind = options.get("kind") or (Convolutional.name if options.get("channels") else Dense.name)
    return architecture_named(kind).Options.parse(options, f"the architecture {kind!r}")
