"""Reproducible random numbers that leave the caller's random state unchanged."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded"]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the context, torch's generators on all devices start from `seed`; afterwards their states are restored."""
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
        torch.manual_seed(seed)
        yield
