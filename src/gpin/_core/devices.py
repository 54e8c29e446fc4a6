"""The device on which torch computes."""

import torch

from gpin._core.errors import InputError

__all__ = ["device_named"]


def device_named(name: str | torch.device | None) -> torch.device:
    """The device of this name; by default a GPU if there is one.

    Example:
        >>> device_named("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name is None else name)
        torch.zeros(1, device=device).item()  # fails on the device "meta", whose tensors have no values
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        raise InputError(f"there is no device {str(name)!r} here: use cpu, cuda, cuda:1, …, or leave it out") from None
    return device
