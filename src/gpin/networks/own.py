"""Users' own networks as trunks and decoders."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpin._core.errors import InputError
from gpin._core.modes import evaluating
from gpin.networks.base import Trunk

__all__ = ["OwnDecoder", "OwnNetworks", "OwnTrunk"]


class OwnNetworks:
    """Returns a user's module once, or a new module from a user's function in each call.

    Arguments:
        given: A module, or a function without arguments that returns a new one in each call.
        what: The name in error messages: "encoder" or "decoder".
    """

    def __init__(self, given: nn.Module | Callable[[], nn.Module], what: str) -> None:
        if not callable(given):
            raise InputError(
                f"{what} must be a torch.nn.Module or a function that returns one, got {type(given).__name__}"
            )
        self.given, self.what = given, what
        self.made: list[nn.Module] = []

    @property
    def name(self) -> str:
        """The class name of the returned modules."""
        return type(self.made[0]).__name__

    def __call__(self) -> nn.Module:
        if isinstance(self.given, nn.Module):
            if self.made:
                raise InputError(
                    f"this method needs several {self.what}s, but got one module: pass a function that returns a new "
                    f"module in each call, such as {self.what}={type(self.given).__name__}"
                )
            module = self.given
        else:
            module = self.given()
        if not isinstance(module, nn.Module):
            raise InputError(f"the {self.what} function must return a torch.nn.Module, got {type(module).__name__}")
        if any(module is other for other in self.made):
            raise InputError(f"the {self.what} function must return a new module in each call, got the same one twice")
        self.made.append(module)
        return module


class OwnTrunk(Trunk):
    """A user's network x `(batch, *shape)` → features `(batch, out_features)`; x is not centred.

    Arguments:
        network: The module; it is called with two instances of zeros to find the number of features.
        shape: The shape of one instance.
    """

    def __init__(self, network: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network = network
        features = _tried(network, shape, "encoder")
        if features.dim() != 2 or len(features) != 2:
            raise InputError(
                f"the encoder must return features of shape (batch, features), got {tuple(features.shape)} for a batch "
                f"of shape {(2, *shape)}"
            )
        self.out_features = features.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """The features of x."""
        return self.network(x)


class OwnDecoder(nn.Module):
    """A user's network z `(batch, latent_dim)` → output; the output is not centred.

    Arguments:
        network: The module; it is called with two instances of zeros to check its output, which may be flat.
        latent_dim: d.
        output_shape: The shape of the output for one instance, see `gpin.likelihoods.Likelihood`.
    """

    def __init__(self, network: nn.Module, latent_dim: int, output_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network, self.output_shape = network, output_shape
        output = _tried(network, (latent_dim,), "decoder")
        if tuple(output.shape) not in ((2, *output_shape), (2, math.prod(output_shape))):
            wanted = ", ".join(map(str, output_shape))
            raise InputError(
                f"the decoder must return an output of shape (batch, {wanted}), or the same values flattened, "
                f"got {tuple(output.shape)} for a batch of two"
            )

    def forward(self, z: Tensor) -> Tensor:
        """The output for z with any leading dimensions: `(..., latent_dim)` → `(..., *output_shape)`."""
        output = self.network(z.reshape(-1, z.shape[-1]))
        return output.reshape(*z.shape[:-1], *self.output_shape)


@torch.no_grad()
def _tried(network: nn.Module, shape: tuple[int, ...], what: str) -> Tensor:
    """The output of a network for two instances of zeros, in evaluation mode; the network is not changed."""
    like = next(network.parameters(), torch.empty(0))
    known = not isinstance(like, nn.parameter.UninitializedParameter)
    x = torch.zeros(2, *shape, dtype=like.dtype if known else None, device=like.device)
    with evaluating(network):
        try:
            output = network(x)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"the {what} fails for a batch of shape {tuple(x.shape)}: {reason}") from error
    if not isinstance(output, Tensor):
        raise InputError(f"the {what} must return a tensor, got {type(output).__name__}")
    return output
