"""Memory-mapped .npy and .npz files. Pickles in them are never loaded."""

import shutil
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpin._core.config import suggest
from gpin._core.errors import InputError
from gpin.data.io import array_file, reading, temporary_file

__all__ = ["instances", "npz_conditions", "read_npy", "read_npz"]


def read_npy(path: Path) -> np.ndarray:
    """The array of an .npy file, memory-mapped."""
    with reading(path, "an .npy file"), warnings.catch_warnings(), open(path, "rb") as file:
        warnings.simplefilter("ignore")  # warnings about headers written by Python 2
        return array_file(file, path.stat().st_size)


def read_npz(path: Path, key: str | None, given: Sequence[str] = ()) -> np.ndarray:
    """One array of an .npz archive, unpacked to a temporary file; `key` chooses it if there are several besides those
    that are given as conditions."""
    with reading(path, "an .npz archive"), zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
        if not members:
            raise InputError(f"{path} holds no arrays")
        others = [name for name in members if name not in given]
        if key is None and len(others) > 1:
            raise InputError(f"{path} holds {len(others)} arrays: choose one with `key`, from {', '.join(others)}")
        if not others or key in given:
            raise InputError(f"{path}: an array that is given as a condition cannot be modelled as well")
        key = others[0] if key is None else key
        if key not in members:
            raise InputError(f"{path} has no array {key!r}: {suggest(key, list(members))}")
        size = archive.getinfo(members[key]).file_size
        with archive.open(members[key]) as packed, temporary_file(size, f"{path}, array {key!r},") as unpacked:
            shutil.copyfileobj(packed, unpacked, 2**20)
            held = unpacked.tell()
            unpacked.seek(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as above
                return array_file(unpacked, held)


def npz_conditions(path: Path, given: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz archive that are given as conditions, as text or numbers `(n,)`."""
    found = {name: np.array(read_npz(path, name)) for name in given}
    for name, array in found.items():
        if array.ndim != 1 or array.dtype.kind not in "biufU":
            raise InputError(
                f"{path}: the array {name!r}, which is given as a condition, must hold one label or number per "
                f"instance, but has the shape {array.shape} and the type {array.dtype}"
            )
    return found


def instances(array: np.ndarray, path: Path) -> np.ndarray:
    """An array with one instance per row: a table `(n, columns)`, or images `(n, channels, height, width)`.

    Images may also have the shape `(n, height, width)`, or their channels last; series are `(n, channels, length)`, see
    `channel_axis`. The result is a view: nothing is read.
    """
    if array.dtype.kind not in "biuf":
        raise InputError(f"{path} must hold numbers, but holds an array of dtype {array.dtype}")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3):
        array = np.moveaxis(array, -1, 1)
    if array.ndim not in (2, 4) or (array.ndim == 4 and array.shape[1] not in (1, 3)):
        shape = np.moveaxis(array, 1, -1).shape if array.ndim == 4 else array.shape
        raise InputError(
            f"{path} holds an array of shape {shape}: give (n, columns) for a table, (n, height, width) or (n, "
            "channels, height, width) with 1 or 3 channels for images, or (n, channels, length) for series"
        )
    if array.size == 0:
        raise InputError(f"{path} is empty: its array has shape {array.shape}")
    return array
