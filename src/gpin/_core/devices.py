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
        found = _devices()
        here = f"there are {', '.join(found[:-1])} and {found[-1]}" if len(found) > 1 else f"there is only {found[0]}"
        raise InputError(f"there is no device {str(name)!r} here: {here}") from None
    return device


def _devices() -> list[str]:
    """The names of the devices of this machine."""
    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]
