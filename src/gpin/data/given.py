"""The conditions that data comes with: columns of a table, arrays of an archive, folders of pictures, or labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gpin._core.errors import InputError
from gpin.conditions import Condition, as_condition
from gpin.data.benchmarks import Images

__all__ = ["FOLDER", "LABEL", "Given", "benchmark_labels", "condition_of", "folder_names", "numbers_of"]

Given = Mapping[str, np.ndarray]
"""Conditions by name, each with one value per instance."""

LABEL = "label"
"""The name of the label of an image of a benchmark set."""
FOLDER = "folder"
"""The name of the condition that is the subfolder of a picture."""
MOST_LABELS = 20
"""Whole numbers with more values than this are quantities, those with fewer are labels."""


def folder_names(folder: Path, names: Sequence[str]) -> np.ndarray:
    """The first subfolder of each picture, from its path within the folder."""
    outside = next((name for name in names if "/" not in name), None)
    if outside is not None:
        raise InputError(
            f"{folder}: {outside} is in no subfolder, but its subfolder is to be its condition: move it into one"
        )
    return np.array([name.partition("/")[0] for name in names])


def benchmark_labels(name: str, images: Images) -> tuple[np.ndarray, np.ndarray | None]:
    """The labels of a benchmark set's images, and those of its test part."""
    if images.train_labels is None or (images.test is not None and images.test_labels is None):
        raise InputError(f"the images of {name!r} have no labels, so that nothing can be given with them")
    return images.train_labels, images.test_labels


def condition_of(given: Given, train: np.ndarray, others: Given | None) -> Condition:
    """The condition of a model: all levels of labels, and the mean and deviation of quantities in the training rows.

    Whole numbers are labels if they have at most 20 different values, and quantities otherwise.

    Arguments:
        given: The conditions of all rows but those of a separate test part.
        train: The training rows.
        others: The conditions of a separate test part, if there is one.
    """
    columns = {}
    for name, values in given.items():
        whole = values if others is None else np.concatenate([values, others[name]])
        many = whole.dtype.kind in "iu" and len(np.unique(whole)) > MOST_LABELS
        columns[name] = values[train].astype(np.float64) if many or whole.dtype.kind == "f" else whole
    return as_condition(columns)


def numbers_of(condition: Condition, given: Given, count: int) -> np.ndarray:
    """The numbers of conditions, float32 `(count, C)`, see `gpin.conditions`."""
    return condition.numbers(given, count).numpy().astype(np.float32)
