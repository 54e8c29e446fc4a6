"""Any data set as batches of tensors."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gpin.errors import InputError

__all__ = ["Batches"]


class Batches:
    """Batches of x from a tensor, an array, a `Dataset` or a `DataLoader`.

    Where an item is a pair, such as an image with its label, x is its first part. Shuffling draws from
    `generator`, so that it is reproducible and independent of everything else that is random.

    Arguments:
        data: What to go through. A `DataLoader` keeps its own batch size and order.
        batch_size: Instances a batch; the last may be smaller.
        generator: Shuffle with it, anew each time round; None keeps the order.
    """

    def __init__(self, data: Any, batch_size: int, generator: torch.Generator | None = None) -> None:
        if isinstance(data, np.ndarray | Tensor | DataLoader | Dataset):
            self.data = torch.from_numpy(data) if isinstance(data, np.ndarray) else data
        else:
            raise InputError(f"data must be a tensor, an array, a Dataset or a DataLoader, got {type(data).__name__}")
        self.batch_size, self.generator = batch_size, generator
        self.size = len(data.dataset if isinstance(data, DataLoader) else data)  # type: ignore[arg-type]
        if self.size == 0:
            raise InputError("the data is empty: there must be at least one instance")

    def __len__(self) -> int:
        return len(self.data) if isinstance(self.data, DataLoader) else -(-self.size // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Pairs of a batch and the row numbers of its instances (None where a DataLoader hides them)."""
        if isinstance(self.data, DataLoader):
            for item in self.data:
                yield _first(item), None
            return
        shuffled = self.generator is not None
        order = torch.randperm(self.size, generator=self.generator) if shuffled else torch.arange(self.size)
        for rows in order.split(self.batch_size):
            if isinstance(self.data, Tensor):
                yield self.data[rows], rows
            else:
                yield torch.stack([torch.as_tensor(_first(self.data[int(i)])) for i in rows]), rows


def _first(item: Any) -> Any:
    return item[0] if isinstance(item, tuple | list) else item
