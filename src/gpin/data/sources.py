"""Data by name or path: a benchmark set, a file of arrays, a table, or a folder of pictures."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from gpin._core.config import Config, suggest
from gpin._core.errors import InputError
from gpin._core.files import as_path
from gpin.data.arrays import instances, read_npy, read_npz
from gpin.data.benchmarks import BENCHMARKS, load_benchmark
from gpin.data.io import let_go, one_line
from gpin.data.pictures import PICTURES, read_pictures
from gpin.data.tables import read_csv, read_parquet

__all__ = ["FORMATS", "Format", "Source", "SourceConfig", "applicable_options", "open_source"]

FINGERPRINT_ALL = 2**28
"""Bytes up to which a fingerprint reads everything."""
FINGERPRINT_ROWS = 4096
"""Rows that it reads of larger data."""


class SourceConfig(Config):
    """How data is read; an option that does not apply to the data is refused.

    Arguments:
        columns: Of a table: which columns, in this order.
        key: Of an .npz archive with several arrays: which one.
        size: Of a folder of pictures: the height and width to which all are brought.
        grey: Of a folder of pictures: read them in one channel.
    """

    columns: tuple[str, ...] | None = Field(default=None, min_length=1)
    key: str | None = None
    size: tuple[PositiveInt, PositiveInt] | None = None
    grey: bool = False


@dataclass(frozen=True, eq=False)
class Source:
    """Data that was opened.

    Arguments:
        name: Short and fit for a file name.
        location: What `open_source` opens again: a benchmark's name or an absolute path.
        config: How it was read.
        values: `(count, *shape)` in the units of the file; of a .npy file, on disk until it is indexed.
        kind: Images are `(count, channels, height, width)`, a table is `(count, columns)`.
        test: A test part of its own, where there is one.
        columns: Their names, where a table has names.
        names: Of the instances, where each is a file: its path below the folder.
    """

    name: str
    location: str
    config: SourceConfig
    values: np.ndarray
    kind: Literal["images", "table"]
    test: np.ndarray | None = None
    columns: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an instance."""
        return self.values.shape[1:]

    def fingerprint(self) -> str:
        """sha256 over shapes, types, column names and content, whatever the path and the format of the file.

        Of an array above 256 MiB, the content is that of 4,096 rows at even distances.
        """
        parts = [self.values] + ([] if self.test is None else [self.test])
        about = [[part.shape, part.dtype.newbyteorder("=").name] for part in parts]
        found = hashlib.sha256(json.dumps([about, self.columns]).encode())
        for part in parts:
            kind = np.dtype(np.float64) if part.dtype == np.longdouble else part.dtype  # which has unset bytes
            for rows in _rows_to_hash(part):
                found.update(np.ascontiguousarray(rows, kind.newbyteorder("<")).tobytes())
                let_go(part)
        return found.hexdigest()


@dataclass(frozen=True)
class Format:
    """A format of data files.

    Arguments:
        read: Reads a file at a path, as a config says: values `(count, columns)` of a table or `(count, channels,
            height, width)` of images, and the names of the columns where it has names.
        options: The options of a `SourceConfig` that apply to it.
    """

    read: Callable[[Path, SourceConfig], tuple[np.ndarray, tuple[str, ...] | None]]
    options: tuple[str, ...] = ()


_CSV = Format(lambda path, config: read_csv(path, config.columns), ("columns",))

FORMATS = {
    ".npy": Format(lambda path, config: (instances(read_npy(path), path), None)),
    ".npz": Format(lambda path, config: (instances(read_npz(path, config.key), path), None), ("key",)),
    ".csv": _CSV,
    ".tsv": _CSV,
    ".txt": _CSV,
    ".parquet": Format(lambda path, config: read_parquet(path, config.columns), ("columns",)),
}
"""The formats of data files, by the ending of a file's name in lower case."""


def _rows_to_hash(values: np.ndarray) -> Iterator[np.ndarray]:
    if values.nbytes <= FINGERPRINT_ALL:
        yield from np.array_split(values, max(1, values.nbytes // 2**24))
    else:
        for row in np.linspace(0, len(values) - 1, FINGERPRINT_ROWS).astype(np.int64):
            yield values[row]


def open_source(data: str | os.PathLike[str], config: SourceConfig | None = None) -> Source:
    """Open data by the name of a benchmark set or by a path.

    A path leads to an array (`.npy`, which stays on disk, or `.npz`), a table (`.csv`, `.tsv`, `.txt`, `.parquet`) or a
    folder of pictures. A benchmark's name wins over a folder of that name, which is opened as `./name`.

    Example:
        >>> source = open_source("digits")
        >>> source.kind, source.shape, len(source.values)
        ('images', (1, 8, 8), 1797)
    """
    try:
        return _opened(as_path(data, "the data"), os.fspath(data), config or SourceConfig())
    except InputError as error:  # names of files and columns may hold anything
        raise InputError(one_line(error, 4096)) from None


def _opened(path: Path, name: str, config: SourceConfig) -> Source:
    if name in BENCHMARKS:
        _refuse_options(config, f"the benchmark set {name!r}", ())
        images = load_benchmark(name)
        return Source(name, name, config, images.train, "images", images.test)
    if not name:
        raise InputError("the data has an empty name: give a benchmark set, a file or a folder of pictures")
    try:
        path = Path(os.path.abspath(path.expanduser()))
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"the data {name[:200]!r} cannot be opened: {one_line(error)}") from None
    if not is_file and not is_folder:
        if os.path.basename(name) == name and not path.suffix:
            known = suggest(name, list(BENCHMARKS))
            raise InputError(f"unknown data {name!r}: {known}, or give the path of a file or of a folder of pictures")
        raise InputError(f"{path} does not exist: give a benchmark set, a file or a folder of pictures")
    named: dict[str, Any] = {"name": _short(path), "location": str(path), "config": config}
    _refuse_options(config, f"the folder {path}" if is_folder else str(path), applicable_options(path))
    if is_folder:
        values, names = read_pictures(path, config.size, config.grey)
        return Source(**named, values=values, kind="images", names=names)
    ending = path.suffix.lower()
    if ending in FORMATS:
        values, columns = FORMATS[ending].read(path, config)
        return Source(**named, values=values, kind="table" if values.ndim == 2 else "images", columns=columns)
    if ending in PICTURES:
        raise InputError(f"{path} is one picture: give the folder that holds them all")
    raise InputError(f"{path} is of no known kind: expected {', '.join(FORMATS)} or a folder of pictures")


def applicable_options(data: str | os.PathLike[str]) -> tuple[str, ...]:
    """The options of a `SourceConfig` that apply to data of this name or path."""
    path = Path(os.path.expanduser(data))  # which leaves an unknown user's alone
    if os.fspath(data) in BENCHMARKS:
        return ()
    if path.is_dir():
        return ("size", "grey")
    known = FORMATS.get(path.suffix.lower())
    return known.options if known else ()


def _refuse_options(config: SourceConfig, what: str, applicable: tuple[str, ...]) -> None:
    of = {"columns": "tables with named columns", "key": ".npz archives"}
    for option in config.changed():
        if option not in applicable:
            whose = of.get(option, "folders of pictures")
            raise InputError(f"`{option}` is an option of {whose} and does not apply to {what}: leave it out")


def _short(path: Path) -> str:
    """A name for files made from data at this path: letters, digits, dots, dashes and underscores."""
    stem = path.name if path.is_dir() else path.stem
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.")[:40] or "data"
