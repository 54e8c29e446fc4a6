"""The generative model as inference sees it: a prior, a decoder and a likelihood."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor, nn

from gpin.likelihoods import Likelihood

__all__ = ["Generative", "frozen"]


@runtime_checkable
class Generative(Protocol):
    """What an inference model may ask of the model whose posterior it infers."""

    # Submodules are no attributes that a check at run time finds from Python 3.12 on.
    if TYPE_CHECKING:
        decoder: nn.Module
        likelihood: Likelihood[Any]

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z): x `(batch, *shape)`, z `(..., batch, d)` → `(..., batch)`."""

    def log_prior(self, z: Tensor) -> Tensor:
        """log p(z): `(..., d)` → `(...)`."""

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z), shaped as log p(x|z)."""

    def reconstruction(self, x: Tensor, z: Tensor, weights: Tensor | None = None) -> Tensor:
        """log p(x|z) for an objective: in training, running statistics are updated on the way, with `weights`
        `(..., batch)` where some z count more than others."""


@contextmanager
def frozen(model: Generative) -> Iterator[None]:
    """Inside, gradients pass through decoder and likelihood to z but do not reach their parameters."""
    parameters = [p for module in (model.decoder, model.likelihood) for p in module.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
