"""Where torch computes."""

import torch

from gpin._core.errors import InputError

__all__ = ["device_named"]


def device_named(name: str | torch.device | None) -> torch.device:
    """A device by its name; by default a GPU where there is one.

    Example:
        >>> device_named("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device).item()  # which a device without numbers, meta, cannot do
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        raise InputError(f"there is no device {str(name)!r} here: give cpu, cuda, cuda:1, …, or leave it out") from None
    return device
