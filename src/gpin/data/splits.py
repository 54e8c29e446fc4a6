"""The paper's splits: a tenth of the training part held out at random; without a test part, 80/10/10."""

from dataclasses import dataclass

import numpy as np

from gpin.data.benchmarks import Images
from gpin.errors import InputError

__all__ = ["Parts", "split"]


@dataclass(frozen=True)
class Parts:
    """Three disjoint parts, each `(count, *shape)`, and the rows of the first two in what they were taken from."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    train_rows: np.ndarray
    validation_rows: np.ndarray


def split(images: Images, seed: int = 0) -> Parts:
    """Split a set as the paper does; the seed chooses the rows, and nothing else that is random is touched.

    Example:
        >>> parts = split(Images(train=np.zeros((50, 1, 2, 2), np.uint8)))
        >>> len(parts.train), len(parts.validation), len(parts.test)
        (40, 5, 5)
    """
    count = len(images.train)
    tenth = count // 10
    if tenth < 1:
        raise InputError(f"a set of {count} instances cannot be split: at least ten are needed")
    order = np.random.default_rng(seed).permutation(count)
    # Rows in their own order, so that reading from disk goes forwards.
    validation, rest = np.sort(order[:tenth]), order[tenth:]
    if images.test is not None:
        train = np.sort(rest)
        return Parts(images.train[train], images.train[validation], images.test, train, validation)
    test, train = np.sort(rest[:tenth]), np.sort(rest[tenth:])
    return Parts(images.train[train], images.train[validation], images.train[test], train, validation)
