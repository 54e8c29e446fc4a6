"""The interface of a generative model to inference: a prior, a decoder and a likelihood."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor, nn

from gpin.likelihoods import Likelihood

__all__ = ["Generative", "frozen"]


@runtime_checkable
class Generative(Protocol):
    """The interface through which an inference model uses the model whose posterior it infers."""

    # From Python 3.12 on, isinstance() does not see submodules as attributes.
    if TYPE_CHECKING:
        decoder: nn.Module
        likelihood: Likelihood[Any]

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z): x `(batch, *shape)`, z `(..., batch, d)` → `(..., batch)`."""

    def log_prior(self, z: Tensor) -> Tensor:
        """log p(z): `(..., d)` → `(...)`."""

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z), with the shape of log p(x|z)."""

    def reconstruction(self, x: Tensor, z: Tensor, weights: Tensor | None = None) -> Tensor:
        """log p(x|z) for an objective. In training mode this also updates running statistics, in which `weights`
        `(..., batch)` weight each z."""


@contextmanager
def frozen(model: Generative) -> Iterator[None]:
    """Within the context, gradients pass through decoder and likelihood to z but do not reach their parameters."""
    parameters = [p for module in (model.decoder, model.likelihood) for p in module.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
