"""Any data set as batches of tensors."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from gpin._core.errors import InputError
from gpin._core.inputs import as_tensor
from gpin._core.shards import Share
from gpin.conditions import joined

__all__ = ["Batches", "Conditioned", "Part", "hold_out"]


@runtime_checkable
class Part(Protocol):
    """Data that consists of some rows of other data."""

    rows: np.ndarray


class Conditioned(Dataset[Tensor]):
    """Data whose rows carry their conditions: joined rows, see `gpin.conditions`.

    Arguments:
        data: A tensor, an array or a `Dataset`; of an item that is a pair, the first element counts.
        c: The numbers of the conditions, `(n, C)`.
    """

    def __init__(self, data: Any, c: Tensor) -> None:
        self.data, self.c = _known(data), c

    def __len__(self) -> int:
        return len(self.c)

    def __getitem__(self, index: int) -> Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, rows: list[int]) -> Tensor:
        """The joined rows of these numbers, `(n, D + C)`."""
        x = self.data[rows] if isinstance(self.data, Tensor) else _read(self.data, rows)
        return joined(x, self.c[rows])


class Batches:
    """Batches of x from a tensor, an array, a `Dataset` or a `DataLoader`.

    If an item is a pair, such as an image with its label, x is its first element. Shuffling draws from
    `generator`, so that it is reproducible and independent of all other random numbers.

    Arguments:
        data: The data to iterate over. A `DataLoader` keeps its own batch size and order.
        batch_size: The number of instances per batch; the last batch may be smaller.
        generator: Shuffles the data in each pass; None keeps the order.
    """

    def __init__(self, data: Any, batch_size: int, generator: torch.Generator | None = None) -> None:
        self.data = _known(data)
        self.batch_size, self.generator = batch_size, generator
        self.size = _size(data.dataset if isinstance(data, DataLoader) else data)
        if self.size == 0:
            raise InputError("the data is empty: there must be at least one instance")

    def __len__(self) -> int:
        return len(self.data) if isinstance(self.data, DataLoader) else -(-self.size // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Pairs of a batch and the row numbers of its instances (None for a DataLoader, which hides them)."""
        for x, rows, _ in self.shares(Share()):
            yield x, rows

    def original(self, rows: Tensor) -> Tensor:
        """Row numbers in the whole data, of which this may be a part."""
        data: Any = self.data
        while isinstance(data, Subset | Conditioned):
            if isinstance(data, Subset):
                rows, data = torch.as_tensor(data.indices)[rows], data.dataset
            else:
                data = data.data
        return torch.from_numpy(data.rows)[rows] if isinstance(data, Part) else rows

    def shares(self, share: Share, start: int = 0) -> Iterator[tuple[Tensor, Tensor | None, int]]:
        """A share of each batch, beginning with batch `start`: x, its row numbers, and the size of the whole batch."""
        if isinstance(self.data, DataLoader):
            for x in islice(map(_first, self.data), start, None):
                yield share.of(x), None, len(x)
            return
        shuffled = self.generator is not None
        order = torch.randperm(self.size, generator=self.generator) if shuffled else torch.arange(self.size)
        for whole in order.split(self.batch_size)[start:]:
            rows = share.of(whole)
            yield self.read(rows), rows, len(whole)

    def indexed(self) -> "Batches | None":
        """The same data with instances that can be read by their numbers; None for a `DataLoader` that hides them,
        because it has an iterable or puts batches together in its own way."""
        if not isinstance(self.data, DataLoader):
            return self
        if isinstance(self.data.dataset, IterableDataset) or self.data.collate_fn is not default_collate:
            return None
        return Batches(self.data.dataset, self.batch_size)

    def read(self, rows: Tensor) -> Tensor:
        """The instances of these numbers, `(n, *shape)`, unless the data is a `DataLoader`."""
        assert not isinstance(self.data, DataLoader)
        return self.data[rows] if isinstance(self.data, Tensor) else _read(self.data, rows.tolist())


def hold_out(data: Any, generator: torch.Generator) -> tuple[Any, Any]:
    """Split data at random into nine tenths for training and one tenth for validation."""
    data = _known(data)
    size = 0 if isinstance(data, DataLoader) else _size(data)
    if size < 2:
        raise InputError(
            "x_val is needed: no validation part can be taken from a DataLoader or from fewer than two instances"
        )
    order = torch.randperm(size, generator=generator)
    held = max(1, size // 10)
    return Subset(data, order[held:].tolist()), Subset(data, order[:held].tolist())


def _known(data: Any) -> Tensor | Dataset[Any] | DataLoader[Any]:
    """Data of a supported type; arrays become tensors."""
    if isinstance(data, np.ndarray | Tensor):
        return as_tensor(data, "data")
    if isinstance(data, Dataset | DataLoader):
        return data
    raise InputError(f"data must be a tensor, an array, a Dataset or a DataLoader, got {type(data).__name__}")


def _size(data: Any) -> int:
    try:
        return len(data)
    except TypeError:
        raise InputError(f"data must have a length, but {type(data).__name__} has none") from None


def _read(data: Any, rows: list[int]) -> Tensor:
    """Some rows of a Dataset, read at once if it has `__getitems__` (which `Subset` passes on)."""
    if isinstance(data, Subset) and isinstance(data.dataset, Tensor):
        return data.dataset[[data.indices[row] for row in rows]]
    items = data.__getitems__(rows) if hasattr(data, "__getitems__") else [data[row] for row in rows]
    return items if isinstance(items, Tensor) else _stack([_first(item) for item in items])


def _stack(items: list[Any]) -> Tensor:
    try:
        return torch.stack([torch.as_tensor(item) for item in items])
    except (RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"the items of the Dataset must be tensors or arrays of the same shape: {reason}") from None


def _first(item: Any) -> Any:
    return item[0] if isinstance(item, tuple | list) else item
