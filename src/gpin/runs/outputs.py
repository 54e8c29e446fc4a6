"""Output files of instances: tables, arrays and pictures, written completely or not at all."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import dtype_to_descr, write_array_header_1_0
from torch import Tensor

from gpin._core.errors import InputError
from gpin._core.files import check_writable, make_folder, written_whole
from gpin._core.messages import Tell, to_stderr
from gpin.data import BENCHMARKS, Scaling
from gpin.data.io import listed
from gpin.data.pictures import PICTURES
from gpin.data.tables import is_number
from gpin.report.images import image_grid, image_png, pairs

__all__ = ["ENDINGS", "Columns", "Written", "check_output", "pairs_picture", "picture", "write_array", "write_table"]

TILE = 64
"""The size in pixels to which small images are enlarged."""
ACROSS = 16
"""The largest number of images side by side."""
ENDINGS = {
    "images": (".png", ".npy"),
    "a table": (".csv", ".parquet", ".npy"),
    "one row per instance": (".parquet", ".csv"),
    "an array": (".npy",),
    "a ranking": (".csv", ".parquet", ".json"),
    "a page": (".html", ".htm"),
    "a model": (".onnx",),
}
"""The file extensions for each kind of content."""

Columns = Mapping[str, np.ndarray]
"""The columns of a table by name, all of the same length."""


@dataclass(frozen=True)
class Written:
    """A file that was written.

    Attributes:
        path: The file.
        count: The number of instances in it.
        columns: The names of a table's columns; none in an array or a picture.
    """

    path: Path
    count: int
    columns: tuple[str, ...] = ()


def check_output(path: Path, what: str, *data: str | None, tell: Tell = to_stderr) -> str:
    """Check that a file can be written and that its extension fits its content; returns the extension in lower case.

    Missing folders are created, which is mentioned.

    Arguments:
        path: The file.
        what: The kind of content, a key of `ENDINGS`.
        data: Names or paths of data that must be neither overwritten nor added to.
        tell: Called with each message for the user.
    """
    ending = path.suffix.lower()
    for place in (Path(name) for name in data if name is not None and name not in BENCHMARKS):
        if path.exists() and place.exists() and path.samefile(place):
            raise InputError(f"cannot write to {path}: it is the data itself; choose another file")
        if ending in PICTURES and place.resolve() in path.resolve().parents:
            raise InputError(f"cannot write to {path}: {place} contains the data's pictures; choose another folder")
    if ending not in ENDINGS[what]:
        raise InputError(f"cannot write {what} to {path}: its name must end in {' or '.join(ENDINGS[what])}")
    if path.is_dir():
        raise InputError(f"cannot write to {path}: it is a folder, and a file is needed")
    make_folder(path.parent, tell)
    if not path.exists() or path.is_file():
        check_writable(path.parent)
    return ending


def write_table(path: Path, batches: Iterable[Columns], *, compact: bool = False) -> Written:
    """Write columns, batch by batch, as .parquet or .csv; `compact` makes small .parquet files."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    count, writer = 0, None
    names: tuple[str, ...] = ()
    with written_whole(path) as file:
        try:
            for columns in batches:
                table = pa.table({name: np.ascontiguousarray(column) for name, column in columns.items()})
                if writer is None and path.suffix.lower() == ".csv":
                    options = csv.WriteOptions(include_header=_has_header(path, list(columns)))
                    writer = csv.CSVWriter(file, table.schema, write_options=options)
                elif writer is None:
                    writer = parquet.ParquetWriter(file, table.schema, **(_compact(table.schema) if compact else {}))
                writer.write_table(table)
                names = tuple(columns)
                count += table.num_rows
        finally:
            if writer is not None:
                writer.close()
    return Written(path, count, names)


def _compact(schema: Any) -> dict[str, Any]:
    """Options of a .parquet file: bytes of equal significance of the numbers of a column are compressed together."""
    import pyarrow as pa

    numbers = [field.name for field in schema if pa.types.is_floating(field.type)]
    others = [field.name for field in schema if field.name not in numbers]
    return {"compression": "zstd", "use_dictionary": others, "use_byte_stream_split": numbers}


def _has_header(path: Path, names: list[str]) -> bool:
    """Whether to write a header to a .csv file: not if the columns are called 1, 2, …, as those without a header are.

    A header of numbers alone would be read as a row of data, so other numeric names raise InputError.
    """
    if names == [str(i + 1) for i in range(len(names))]:
        return False
    if all(map(is_number, names)):
        raise InputError(
            f"cannot write columns named {listed(names)} to {path}: in a .csv file, names that are all numbers would "
            "be read as a row of data; write a .parquet file instead"
        )
    return True


def write_array(path: Path, batches: Iterable[np.ndarray], count: int) -> Written:
    """Write `count` instances, batch by batch, as one .npy file `(count, *shape)`."""
    written, dtype = 0, None
    # Not through a memory map, which on a full disk kills the process without an error.
    with written_whole(path) as file:
        for batch in batches:
            if dtype is None:
                dtype = batch.dtype
                header = {"descr": dtype_to_descr(dtype), "fortran_order": False, "shape": (count, *batch.shape[1:])}
                write_array_header_1_0(file, header)
            assert batch.dtype == dtype
            file.write(batch.tobytes())
            written += len(batch)
        assert written == count
    return Written(path, count)


def picture(images: Tensor, scaling: Scaling) -> bytes:
    """Images `(count, channels, height, width)`, in model units, in a square grid as a PNG file."""
    grid = image_grid(_unit(images, images, scaling), columns=min(ACROSS, math.ceil(math.sqrt(len(images)))))
    return image_png(grid, _magnified(images))


def pairs_picture(x: Tensor, reconstructions: Tensor, scaling: Scaling) -> bytes:
    """Images, each above its reconstruction, up to sixteen side by side, as a PNG file."""
    parts = (_unit(part, x, scaling) for part in (x, reconstructions))
    above, below = ([part[i : i + ACROSS] for i in range(0, len(part), ACROSS)] for part in parts)
    blocks = [pairs(*rows) for rows in zip(above, below, strict=True)]
    width = blocks[0].shape[1]
    padded = [np.pad(block, ((0, 3), (0, width - block.shape[1]), (0, 0))) for block in blocks]
    return image_png(np.concatenate(padded)[:-3], _magnified(x))


def _unit(images: Tensor, like: Tensor, scaling: Scaling) -> np.ndarray:
    """Images scaled to [0, 1] for display: unchanged if that is their range, otherwise by the range of `like`."""
    if images.shape[1] not in (1, 3):
        raise InputError(f"images of {images.shape[1]} channels cannot be shown: write a .npy file instead")
    low, high = like.min().item(), like.max().item()
    if scaling.kind in ("pixels", "binary") or (scaling.kind == "none" and low > -0.5 and high < 1.5):
        low, high = 0.0, 1.0
    return ((images - low) / max(high - low, 1e-12)).numpy()


def _magnified(images: Tensor) -> int:
    return max(1, TILE // max(images.shape[-2:]))
