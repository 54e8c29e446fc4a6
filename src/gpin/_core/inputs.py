"""Checks and conversions of the numbers and arrays that users pass."""

import operator
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpin._core.errors import InputError

__all__ = ["as_dtype", "as_tensor", "check_seed", "positive_number", "warn_of_bytes", "whole_number"]


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """The value, of any integer type, as an int; anything but a whole number of at least `least` raises InputError.

    Example:
        >>> whole_number(np.int64(3), "samples")
        3
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return number


def positive_number(value: Any, name: str) -> float:
    """The value as a float; anything but a finite number above zero raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < float("inf"):
        raise InputError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def check_seed(value: Any) -> int:
    """The value as a seed for torch, small enough that each batch can have its own; otherwise raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**62:
        raise InputError(f"seed must be a whole number between 0 and 2⁶² − 1, got {value!r}")
    return int(value)


def as_dtype(value: Any) -> torch.dtype | None:
    """The value, such as "float64", as a dtype in which models can compute, or None; otherwise raises InputError."""
    known = {"float32": torch.float32, "float64": torch.float64}
    chosen = known.get(value) if isinstance(value, str) else value
    if value is not None and chosen not in known.values():
        raise InputError(f"dtype must be torch.float32 or torch.float64, got {value!r}")
    return chosen


def warn_of_bytes(x: Tensor) -> None:
    """Warn if x holds the bytes of pictures, since nothing scales them."""
    if x.dtype == torch.uint8 and len(x) and x.max() > 1:
        warnings.warn(
            "x holds bytes (uint8) above 1, which are taken as they are and not scaled to [0, 1]: pass x / 255, here "
            "and wherever the model gets pictures",
            stacklevel=2,
        )


def as_tensor(data: Any, name: str) -> Tensor:
    """The data as a tensor; anything but a tensor or an array of real numbers raises InputError.

    Arrays may have any memory layout and byte order.
    """
    if isinstance(data, np.ma.MaskedArray):
        raise InputError(f"{name} must not have missing values, got a masked array: fill or drop the masked values")
    if isinstance(data, np.ndarray):
        if data.dtype == object or not (np.issubdtype(data.dtype, np.number) or data.dtype == bool):
            raise InputError(f"{name} must hold numbers, got an array of dtype {data.dtype}")
        native = np.dtype(np.float64) if data.dtype == np.longdouble else data.dtype.newbyteorder("=")
        if data.dtype != native or not data.flags.writeable or min(data.strides, default=0) < 0:
            data = data.astype(native)
        data = torch.from_numpy(data)
    if not isinstance(data, Tensor):
        raise InputError(f"{name} must be a tensor or an array, got {type(data).__name__}")
    if data.is_complex():
        raise InputError(f"{name} must be real, got {data.dtype}")
    if data.dim() == 0:
        raise InputError(f"{name} must have a batch dimension, got a single number")
    return data
