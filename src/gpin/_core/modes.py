"""The modes of a module and of torch as contexts."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["differentiable", "evaluating"]


@contextmanager
def differentiable() -> Iterator[None]:
    """Within the context, gradients are not recorded but can be enabled, even if the caller is in inference mode.

    Tensors that were made in inference mode must be cloned before they are used in a differentiated computation.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Within the context, the module is in evaluation mode, so that its running statistics do not change."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
