"""The number of threads that torch uses."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["threads"]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within the context, torch uses `count` threads; afterwards the previous number is restored."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
