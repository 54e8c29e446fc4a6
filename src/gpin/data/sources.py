"""Opening of data by name or path: a benchmark set, an array file, a table, or a folder of pictures."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import (
    Field,
    PositiveInt,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from gpin._core.config import Config, suggest
from gpin._core.errors import ColumnError, InputError
from gpin._core.files import as_path
from gpin.data.arrays import instances, npz_conditions, read_npy, read_npz
from gpin.data.benchmarks import BENCHMARKS, load_benchmark
from gpin.data.columns import ColumnKind, Levels
from gpin.data.given import FOLDER, LABEL, Given, benchmark_labels, folder_names
from gpin.data.io import let_go, one_line
from gpin.data.pictures import PICTURES, FolderSurvey, read_pictures
from gpin.data.tables import Table, csv_conditions, parquet_conditions, read_csv, read_parquet

__all__ = ["FORMATS", "Format", "Source", "SourceConfig", "applicable_options", "open_source"]

FINGERPRINT_ALL = 2**28
"""Up to this many bytes, a fingerprint includes all data."""
FINGERPRINT_ROWS = 4096
"""The number of rows that a fingerprint includes of larger data."""


class SourceConfig(Config):
    """How data is read; InputError is raised for an option that does not apply to the data.

    Arguments:
        columns: For a table, the columns to read, in this order.
        key: For an .npz archive with several arrays, the name of the array.
        size: For a folder of pictures, the height and width to which all pictures are resized.
        grey: For a folder of pictures, whether to convert them to one channel.
        skip_damaged: For a folder of pictures, whether to leave out files that cannot be read as one picture, which
            raise InputError otherwise.
        given: The conditions that come with the data and are not modelled: columns of a table, other arrays of an .npz
            archive, "folder" for the subfolder of a picture, or "label" for that of an image of a benchmark set.
        exclude: For a table, the columns to leave out.
        kinds: For a table, the kinds of some columns by name, see `gpin.data.columns`; those of the others are
            detected.
    """

    later = ("skip_damaged", "given", "exclude", "kinds")

    columns: tuple[str, ...] | None = Field(default=None, min_length=1)
    key: str | None = None
    size: tuple[PositiveInt, PositiveInt] | None = None
    grey: bool = False
    skip_damaged: bool = False
    given: tuple[str, ...] | None = Field(default=None, min_length=1)
    exclude: tuple[str, ...] | None = Field(default=None, min_length=1)
    kinds: dict[str, ColumnKind] | None = None

    @model_serializer(mode="wrap")
    def _record(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """The options; in files, and in the identity of a run, without those of `later` that have their defaults."""
        return self.without_unused(handler(self)) if info.mode == "json" else handler(self)


@dataclass(frozen=True, eq=False)
class Source:
    """Opened data.

    Arguments:
        name: A short name that is valid in file names.
        location: The name of the benchmark or the absolute path, which `open_source` accepts again.
        config: The options with which it was read.
        values: The values `(count, *shape)` in the units of the file; those of an .npy file stay on disk until they are
            indexed.
        kind: "images" are `(count, channels, height, width)`, a "table" is `(count, columns)`.
        test: The test part, if the data has a separate one.
        columns: The names of a table's columns, if it has names.
        names: The names of the instances if each is a file: its path relative to the folder.
        survey: For a folder of pictures, what it was found to hold.
        given: The conditions of the values by name, if some were asked for.
        test_given: The conditions of the test part.
        levels: The levels of each categorical column of a table, and None for the others; their numbers are the values.
    """

    name: str
    location: str
    config: SourceConfig
    values: np.ndarray
    kind: Literal["images", "table"]
    test: np.ndarray | None = None
    columns: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    survey: FolderSurvey | None = None
    given: Given | None = None
    test_given: Given | None = None
    levels: tuple[Levels | None, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an instance."""
        return self.values.shape[1:]

    def fingerprint(self) -> str:
        """The SHA-256 of shapes, types, column names and content, independent of the path and format of the file.

        For an array above 256 MiB, the content is that of 4,096 evenly spaced rows.
        """
        parts = [self.values] + ([] if self.test is None else [self.test])
        about = [[part.shape, part.dtype.newbyteorder("=").name] for part in parts]
        known = [about, self.columns] + ([] if self.levels is None else [self.levels])
        found = hashlib.sha256(json.dumps(known).encode())
        for part in parts:
            kind = np.dtype(np.float64) if part.dtype == np.longdouble else part.dtype  # a long double has padding
            for rows in _rows_to_hash(part):
                found.update(np.ascontiguousarray(rows, kind.newbyteorder("<")).tobytes())
                let_go(part)
        for given in (self.given, self.test_given):
            for name, values in ({} if given is None else given).items():
                found.update(json.dumps([name, values.tolist()]).encode())
        return found.hexdigest()


@dataclass(frozen=True)
class Format:
    """A format of data files.

    Arguments:
        read: Reads the file at a path with the given options. Returns the values, `(count, columns)` for a table or
            `(count, channels, height, width)` for images, and the names of the columns, if any; or a
            `gpin.data.tables.Table`, which also has levels.
        options: The options of `SourceConfig` that apply to it.
        conditions: Reads the conditions of these names from the file at a path; None if the format has none.
    """

    read: Callable[[Path, SourceConfig], tuple[np.ndarray, tuple[str, ...] | None] | Table]
    options: tuple[str, ...] = ()
    conditions: Callable[[Path, Sequence[str]], Given] | None = None


TABLE = ("columns", "exclude", "kinds")
"""The options of tables with named columns."""
_CSV = Format(
    lambda path, config: read_csv(path, config.columns, config.exclude, config.kinds, config.given or ()),
    (*TABLE, "given"),
    csv_conditions,
)

FORMATS = {
    ".npy": Format(lambda path, config: (instances(read_npy(path), path), None)),
    ".npz": Format(
        lambda path, config: (instances(read_npz(path, config.key, config.given or ()), path), None),
        ("key", "given"),
        npz_conditions,
    ),
    ".csv": _CSV,
    ".tsv": _CSV,
    ".txt": _CSV,
    ".parquet": Format(
        lambda path, config: read_parquet(path, config.columns, config.exclude, config.kinds, config.given or ()),
        (*TABLE, "given"),
        parquet_conditions,
    ),
}
"""The formats of data files by the suffix of the file name in lower case."""


def _rows_to_hash(values: np.ndarray) -> Iterator[np.ndarray]:
    if values.nbytes <= FINGERPRINT_ALL:
        yield from np.array_split(values, max(1, values.nbytes // 2**24))
    else:
        for row in np.linspace(0, len(values) - 1, FINGERPRINT_ROWS).astype(np.int64):
            yield values[row]


def open_source(data: str | os.PathLike[str], config: SourceConfig | None = None) -> Source:
    """Open data by the name of a benchmark set or by a path.

    A path is that of an array (`.npy`, which stays on disk, or `.npz`), a table (`.csv`, `.tsv`, `.txt`, `.parquet`) or
    a folder of pictures. The name of a benchmark takes precedence over a folder of that name; open that as `./name`.

    Example:
        >>> source = open_source("digits")
        >>> source.kind, source.shape, len(source.values)
        ('images', (1, 8, 8), 1797)
    """
    try:
        return _opened(as_path(data, "the data"), os.fspath(data), config or SourceConfig())
    except ColumnError as error:  # names of files and columns may contain any characters
        raise ColumnError(one_line(error.problem, 4096), one_line(error.advice, 4096)) from None
    except InputError as error:
        raise InputError(one_line(error, 4096)) from None


def _opened(path: Path, name: str, config: SourceConfig) -> Source:
    if name in BENCHMARKS:
        _refuse_options(config, f"the benchmark set {name!r}", applicable_options(name))
        images = load_benchmark(name)
        source = Source(name, name, config, images.train, "images", images.test)
        if config.given is None:
            return source
        _check_only(config.given, LABEL, f"the benchmark set {name!r}")
        labels, test_labels = benchmark_labels(name, images)
        return replace(source, given={LABEL: labels}, test_given=None if test_labels is None else {LABEL: test_labels})
    if not name:
        raise InputError("the name of the data is empty: pass a benchmark set, a file or a folder of pictures")
    try:
        path = Path(os.path.abspath(path.expanduser()))
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"the data {name[:200]!r} cannot be opened: {one_line(error)}") from None
    if not is_file and not is_folder:
        if os.path.basename(name) == name and not path.suffix:
            known = suggest(name, list(BENCHMARKS))
            raise InputError(f"unknown data {name!r}: {known}, or pass the path of a file or of a folder of pictures")
        raise InputError(f"{path} does not exist: pass a benchmark set, a file or a folder of pictures")
    named: dict[str, Any] = {"name": _short(path), "location": str(path), "config": config}
    _refuse_options(config, f"the folder {path}" if is_folder else str(path), applicable_options(path))
    if is_folder:
        values, names, survey = read_pictures(path, config.size, config.grey, config.skip_damaged)
        if config.given is not None:
            _check_only(config.given, FOLDER, f"the folder {path}")
            named["given"] = {FOLDER: folder_names(path, names)}
        return Source(**named, values=values, kind="images", names=names, survey=survey)
    ending = path.suffix.lower()
    if ending in FORMATS:
        if config.given is not None:  # first, so that the name of a condition that is not there is reported as such
            named["given"] = _conditions(path, FORMATS[ending], config.given)
        values, columns, levels = (*FORMATS[ending].read(path, config), None)[:3]
        for condition, found in named.get("given", {}).items():
            if len(found) != len(values):
                raise InputError(
                    f"{path}: the condition {condition!r} has {len(found)} values for {len(values)} instances"
                )
        named |= {"kind": "table" if values.ndim == 2 else "images", "columns": columns, "levels": levels}
        return Source(**named, values=values)
    if ending in PICTURES:
        raise InputError(f"{path} is a single picture: pass the folder that holds all pictures")
    raise InputError(f"{path} has no known format: expected {', '.join(FORMATS)} or a folder of pictures")


def applicable_options(data: str | os.PathLike[str]) -> tuple[str, ...]:
    """The options of a `SourceConfig` that apply to data of this name or path."""
    path = Path(os.path.expanduser(data))  # unlike Path.expanduser, does not fail for an unknown user
    if os.fspath(data) in BENCHMARKS:
        return ("given",)
    if path.is_dir():
        return ("size", "grey", "skip_damaged", "given")
    known = FORMATS.get(path.suffix.lower())
    return known.options if known else ()


def _refuse_options(config: SourceConfig, what: str, applicable: tuple[str, ...]) -> None:
    of = {
        **dict.fromkeys(TABLE, "tables with named columns"),
        "key": ".npz archives",
        "given": "tables, .npz archives, folders of pictures and benchmark sets",
    }
    for option in config.changed():
        if option not in applicable:
            whose = of.get(option, "folders of pictures")
            raise InputError(f"`{option}` is an option of {whose} and does not apply to {what}: leave it out")


def _conditions(path: Path, known: Format, names: Sequence[str]) -> Given:
    """The conditions of these names in a file."""
    assert known.conditions is not None  # or `given` would have been refused
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"the condition {twice[0]!r} is given {names.count(twice[0])} times: name each once")
    return known.conditions(path, names)


def _check_only(given: Sequence[str], known: str, what: str) -> None:
    """Raise InputError if a condition is asked for other than the only one that there is."""
    if tuple(given) != (known,):
        raise InputError(f"{what} has only the condition {known!r} to give, got {', '.join(given)}")


def _short(path: Path) -> str:
    """A short name of data at this path, made of letters, digits, dots, dashes and underscores."""
    stem = path.name if path.is_dir() else path.stem
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.")[:40] or "data"
