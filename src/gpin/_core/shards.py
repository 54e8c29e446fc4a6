"""Batches shared by several processes, with the same results as in one process.

Each process computes some instances of every batch. For the result not to depend on the number of processes, an
instance must get the same noise in whichever process it is computed, and batch averages must be taken over the whole
batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpin._core.errors import InputError

__all__ = ["Share", "batch_sum", "shared"]

aten = torch.ops.aten


@dataclass(frozen=True)
class Share:
    """The part of every batch that a process computes: the `rank`-th of `world` nearly equal parts, from 0."""

    rank: int = 0
    world: int = 1

    def bounds(self, size: int) -> tuple[int, int]:
        """The first and last (exclusive) position of the part in a batch of this size.

        Example:
            >>> [Share(rank, 2).bounds(5) for rank in (0, 1)]
            [(0, 2), (2, 5)]
        """
        return size * self.rank // self.world, size * (self.rank + 1) // self.world

    def of(self, items: Tensor) -> Tensor:
        """The part of a batch; for an empty part, the first item of the batch, which then has weight zero."""
        start, stop = self.bounds(len(items))
        return items[start:stop] if stop > start else items[:1]


_sum: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("sum over the processes", default=None)


def batch_sum(value: Tensor) -> Tensor:
    """The sum over the whole batch, given the sum over the instances that this process computes."""
    over_processes = _sum.get()
    return value if over_processes is None else over_processes(value)


@contextmanager
def shared(share: Share, size: int, over_processes: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within the context, the parts of a batch are computed so that together they equal the result of one process.

    Arguments:
        share: The part that this process computes.
        size: The number of instances in the whole batch.
        over_processes: A function that sums a tensor over the processes.
    """
    if share.world == 1:
        yield
        return
    start, stop = share.bounds(size)
    token = _sum.set(lambda value: over_processes(value if stop > start else torch.zeros_like(value)))
    try:
        with _WholeNoise(start, max(stop, start + 1), size):
            yield
    finally:
        _sum.reset(token)


class _WholeNoise(TorchDispatchMode):
    """Draws noise for all rows of a batch and keeps the rows from `start` to `stop`.

    All noise in an objective must have shape `(..., batch, d)`, or be a choice for each instance, as by
    `torch.distributions.Categorical`; any other noise raises InputError.
    """

    def __init__(self, start: int, stop: int, size: int) -> None:
        super().__init__()
        self.start, self.stop, self.size = start, stop, size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func in (aten.randn.default, aten.rand.default):
            return self._part(func(self._whole(args[0]), *args[1:], **kwargs))
        if func in (aten.randn_like.default, aten.rand_like.default):
            like = args[0].new_empty(self._whole(args[0].shape))
            return self._part(func(like, *args[1:], **kwargs))
        if func in (aten.normal_.default, aten.uniform_.default):
            return args[0].copy_(self._part(func(args[0].new_empty(self._whole(args[0].shape)), *args[1:], **kwargs)))
        if func is aten.normal.Tensor_Tensor:
            mean, std = args
            zeros = mean.new_zeros(self._whole(torch.broadcast_shapes(mean.shape, std.shape)))
            return mean + std * self._part(func(zeros, torch.ones_like(zeros), **kwargs))
        if func is aten.multinomial.default and args[0].dim() == 2:  # one row of probabilities per instance
            whole = args[0].new_ones(self.size, args[0].shape[1])
            whole[self.start : self.stop] = args[0]
            return func(whole, *args[1:], **kwargs)[self.start : self.stop]
        raise InputError(f"{func} draws noise in a way that cannot be shared by several processes")

    def _whole(self, shape: Any) -> list[int]:
        if len(shape) < 2 or shape[-2] != self.stop - self.start:
            raise InputError(
                f"noise of shape {tuple(shape)} cannot be shared by processes: its shape must be (..., batch, d)"
            )
        return [*shape[:-2], self.size, shape[-1]]

    def _part(self, noise: Tensor) -> Tensor:
        return noise[..., self.start : self.stop, :].contiguous()
