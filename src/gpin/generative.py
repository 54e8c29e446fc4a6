"""The interface of a generative model to inference: a prior, a decoder and a likelihood."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from gpin._core.errors import InputError
from gpin._core.modes import evaluating
from gpin.likelihoods import Likelihood

__all__ = ["Generative", "decoder_alone", "frozen", "has_gradient", "log_joint_alone", "log_joint_and_gradient"]


@runtime_checkable
class Generative(Protocol):
    """The interface through which an inference model uses the model whose posterior it infers."""

    # From Python 3.12 on, isinstance() does not see submodules as attributes.
    if TYPE_CHECKING:
        decoder: nn.Module
        likelihood: Likelihood[Any]

    def values(self, x: Tensor) -> Tensor:
        """The values `(batch, *shape)` of x, without the condition that each row of a conditional model carries."""

    def given(self, x: Tensor, z: Tensor) -> Tensor:
        """The input of the decoder: z `(..., batch, d)`, for a conditional model with the condition of x beside it."""

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


def decoder_alone(model: Generative, x: Tensor) -> Callable[[Tensor], Any]:
    """The decoder as a deterministic function of z for each instance of x alone, differentiable in z and its
    parameters.

    It runs in evaluation mode, because what refinement finds for one instance must depend neither on the other
    instances (batch normalisation) nor on noise (dropout). In training it keeps the running statistics of this moment:
    training may change them before it differentiates through the result.
    """
    decoder = model.decoder
    if not decoder.training:
        return lambda z: decoder(model.given(x, z))
    statistics = {
        f"{name}.{key}".lstrip("."): buffer.clone()
        for name, module in decoder.named_modules()
        if isinstance(module, _NormBase)
        for key, buffer in module.named_buffers(recurse=False)
    }

    def decode(z: Tensor) -> Any:
        z = model.given(x, z)
        with evaluating(decoder):
            return torch.func.functional_call(decoder, statistics, (z,)) if statistics else decoder(z)

    return decode


def has_gradient(model: Generative, x: Tensor, z: Tensor) -> bool:
    """Whether log p(x|z) has a gradient in z: x `(batch, *shape)`, z `(batch, d)`.

    It has none if the decoder or the likelihood computes without torch, or detaches its result.
    """
    with torch.inference_mode(False), frozen(model), torch.enable_grad():
        leaf = z.detach().clone().requires_grad_()
        return _log_conditional_alone(model, x.clone(), leaf).requires_grad


def log_joint_alone(model: Generative, x: Tensor, z: Tensor) -> Float[Tensor, " batch"]:
    """log p(x, z) with the decoder of :func:`decoder_alone`: x `(batch, *shape)`, z `(batch, d)` → `(batch,)`."""
    return _log_conditional_alone(model, x, z) + model.log_prior(z)


def _log_conditional_alone(model: Generative, x: Tensor, z: Tensor) -> Tensor:
    return model.likelihood.log_prob(model.values(x), decoder_alone(model, x)(z))


def log_joint_and_gradient(
    model: Generative, x: Tensor, z: Tensor, *, differentiable: bool = False
) -> tuple[Float[Tensor, "... batch"], Float[Tensor, "... batch d"]]:
    """log p(x, z), `(..., batch)`, and its gradient in z, `(..., batch, d)`, with the decoder of :func:`decoder_alone`.

    Arguments:
        model: The generative model.
        x: `(batch, *shape)`.
        z: `(..., batch, d)`.
        differentiable: Whether the gradient can be differentiated again, with respect to z and the parameters of the
            model. Otherwise both results are detached, and the gradients of parameters are not computed.
    """
    if not differentiable:
        with frozen(model), torch.enable_grad():
            leaf = z.detach().requires_grad_()
            value, gradient = _value_and_gradient(model, x, leaf, create_graph=False)
        return value.detach(), gradient
    with torch.enable_grad():
        leaf = z if z.requires_grad else z.detach().requires_grad_()
        return _value_and_gradient(model, x, leaf, create_graph=True)


def _value_and_gradient(model: Generative, x: Tensor, z: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
    conditional = _log_conditional_alone(model, x, z)
    if not conditional.requires_grad:
        raise InputError(
            "steps on log p(x, z) need its gradient in z, but log p(x|z) has none: "
            "the decoder and the likelihood must be differentiable functions of z"
        )
    value = conditional + model.log_prior(z)
    (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=create_graph)
    return value, gradient
