"""The splits of the paper: a random tenth of the training part is held out; without a test part, 80/10/10."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpin._core.errors import InputError
from gpin.data.benchmarks import Images

__all__ = ["Parts", "SplitRows", "split", "split_rows"]


class SplitRows(NamedTuple):
    """Disjoint rows, sorted so that they are read from disk in order; `test` is None if the test part is separate."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray | None


def split_rows(count: int, has_test: bool, seed: int = 0) -> SplitRows:
    """Split `count` rows as in the paper. The seed determines the split; no global random state is used.

    Example:
        >>> [len(rows) for rows in split_rows(50, has_test=False)]
        [40, 5, 5]
    """
    tenth = count // 10
    if tenth < 1:
        raise InputError(
            f"there {'is only 1 instance' if count == 1 else f'are only {count} instances'}: at least ten are needed "
            "for training, validation and testing"
        )
    order = np.random.default_rng(seed).permutation(count)
    validation, rest = np.sort(order[:tenth]), order[tenth:]
    if has_test:
        return SplitRows(np.sort(rest), validation, None)
    return SplitRows(np.sort(rest[tenth:]), validation, np.sort(rest[:tenth]))


@dataclass(frozen=True)
class Parts:
    """Three disjoint parts, each `(count, *shape)`, and the rows of the original training part in the first two."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    train_rows: np.ndarray
    validation_rows: np.ndarray


def split(images: Images, seed: int = 0) -> Parts:
    """Split a set as in the paper, into separate arrays.

    Example:
        >>> parts = split(Images(train=np.zeros((50, 1, 2, 2), np.uint8)))
        >>> len(parts.train), len(parts.validation), len(parts.test)
        (40, 5, 5)
    """
    rows = split_rows(len(images.train), images.test is not None, seed)
    test = images.train[rows.test] if images.test is None else images.test
    return Parts(images.train[rows.train], images.train[rows.validation], test, rows.train, rows.validation)
