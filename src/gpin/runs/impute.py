"""Missing values of data, replaced by what a run's model expects there."""

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.files import as_path, write_whole, written_whole
from gpin._core.inputs import whole_number
from gpin._core.messages import Tell, to_stderr
from gpin.data import Rows, Scaling
from gpin.data.arrays import read_npy
from gpin.data.pictures import PICTURES, read_picture, read_pictures
from gpin.data.tables import TextTable, arrow_table, is_number, text_table
from gpin.runs.folder import Run, as_run
from gpin.runs.outputs import check_output, pairs_picture, write_array
from gpin.runs.rows import OnBatch, map_batches, open_data, spread_rows
from gpin.vae import VAE

__all__ = ["Imputed", "impute_rows", "impute_to_file"]

SHOWN = 16
"""The largest number of images in a picture."""


@dataclass(frozen=True)
class Imputed:
    """A file of imputed data.

    Attributes:
        path: The file.
        count: The number of instances in it.
        filled: The number of values that were missing: cells of a table, or pixels.
    """

    path: Path
    count: int
    filled: int


def impute_to_file(
    run: Run | str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    mask: str | os.PathLike[str] | None = None,
    samples: int = 200,
    proposal: Literal["encoder", "refined"] = "refined",
    overwrite: bool = False,
    seed: int = 0,
    key: str | None = None,
    size: Sequence[int] | None = None,
    grey: bool | None = None,
    device: str | None = None,
    on_batch: OnBatch | None = None,
    tell: Tell = to_stderr,
) -> Imputed:
    """Write data with its missing values replaced by their expectations, as `gpin impute` does; see `VAE.impute`.

    A table keeps all of its columns, also those that the model does not know. Missing are its empty cells, the NaN of
    an array, and what a mask covers. In a table, a category is replaced by the most probable one, 0 or 1 by the more
    probable, a count by the nearest to its expectation, and a log-normal value by the exponential of the expected
    logarithm: a median, not a mean.

    Arguments:
        run: The run, or its folder.
        data: The data with missing values: a data set's name or a path.
        out: The file to write: .csv or .parquet for a table; .npy for an array or pictures; .png for pictures, at most
            16 of them, each with its hole above the result.
        mask: For arrays and pictures: an .npy file, a picture or a folder of pictures in which nonzero, or lighter than
            middle grey, stands for missing; for one instance, or for each.
        samples: The number of draws from the posterior of each instance.
        proposal: "refined" or "encoder", see `VAE.impute`.
        overwrite: Whether a file that exists may be replaced.
        seed: The seed of all noise.
        key: The array in an .npz archive.
        size: The height and width to resize the images of a folder to.
        grey: Whether to read the images of a folder in grey, with one channel.
        device: The device, such as "cpu" or "cuda"; by default a GPU if there is one.
        on_batch: Called after each batch with the number of instances done and their total.
        tell: Called with each message for the user.
    """
    run, out = as_run(run), as_path(out, "the file to write")
    whole_number(samples, "samples")
    places = (str(data), run.location, None if mask is None else str(mask))
    named = Path(data).suffix.lower() in (".csv", ".tsv", ".txt", ".parquet")
    what = "images" if len(run.model.shape) == 3 else "one row per instance" if named else "an array"
    ending = check_output(out, what, *places)
    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already: choose another name, or replace it with `overwrite`")
    if mask is not None and named:
        raise InputError("`mask` is for arrays and pictures; the missing values of a table are its empty cells")
    vae = run.load(tell).to(device_named(device))
    rows = open_data(run, data, key=key, size=size, grey=grey, missing=True, tell=tell)
    holes = None if mask is None else read_mask(as_path(mask, "the mask"), len(rows), run.model.shape)
    rows = spread_rows(rows, SHOWN) if ending == ".png" else rows
    found = impute_rows(vae, rows, holes, samples=samples, proposal=proposal, seed=seed, on_batch=on_batch)
    counted = Counted(found, run.scaling, str(data))
    if named:
        _write_table(run, Path(data), out, counted)
    elif ending == ".png":
        x, filled = (torch.cat(parts) for parts in zip(*((x, again) for _, x, again in counted), strict=True))
        write_whole(out, pairs_picture(x.nan_to_num(0.0), filled, run.scaling))
    else:
        write_array(out, (_in_units(run, rows, *parts) for parts in counted), len(rows))
    return Imputed(out, len(rows), counted.filled)


class Counted:
    """Imputed batches, see `impute_rows`, which are counted; raises InputError at the end if no value was missing."""

    def __init__(self, batches: Iterator[tuple[np.ndarray, Tensor, Tensor]], scaling: Scaling, name: str) -> None:
        self.batches, self.scaling, self.name, self.filled = batches, scaling, name, 0

    def __iter__(self) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
        for numbers, x, filled in self.batches:
            self.filled += int((self.scaling.by_column(x.isnan().numpy().astype(np.int64)) > 0).sum())
            yield numbers, x, filled
        if not self.filled:
            raise InputError(f"{self.name} has no missing values, so that there is nothing to impute")


def impute_rows(
    vae: VAE,
    rows: Rows,
    holes: np.ndarray | None = None,
    *,
    samples: int = 200,
    proposal: Literal["encoder", "refined"] = "refined",
    seed: int = 0,
    on_batch: OnBatch | None = None,
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Row numbers, x with NaN where it is missing, and x without, `(batch, *shape)` in model units, batch by batch.

    Arguments:
        vae: The model.
        rows: The data.
        holes: Where values are missing besides NaN, `(n, *shape)` for all n rows of the source, or `shape`.
        samples: The number of draws from the posterior of each instance.
        proposal: "refined" or "encoder", see `VAE.impute`.
        seed: The seed of all noise.
        on_batch: Called after each batch with the number of instances done and their total.
    """

    def impute(numbers: np.ndarray, x: Tensor) -> tuple[np.ndarray, Tensor, Tensor]:
        known = vae.values(x)
        if holes is not None:
            gone = torch.from_numpy(np.array(holes if holes.ndim == known.dim() - 1 else holes[numbers]))
            known = known.masked_fill(gone, torch.nan)
        if not known.isnan().any():
            return numbers, known, known
        filled = vae.impute(vae.with_values(x, known), samples=samples, proposal=proposal)
        return numbers, known, filled.cpu()

    return map_batches(impute, rows, seed=seed, on_batch=on_batch)


def read_mask(path: Path, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Which values are missing, `shape` or `(count, *shape)`, from an .npy file, a picture, or a folder of pictures.

    A mask of pictures may have one channel for all, or no channels.
    """
    if path.suffix.lower() == ".npy":
        mask = np.asarray(read_npy(path))
        if mask.dtype.kind not in "biuf":
            raise InputError(f"the mask {path} must hold numbers or truth values, but holds an array of {mask.dtype}")
        mask = np.nan_to_num(mask) != 0
    elif path.is_dir() or path.suffix.lower() in PICTURES:
        if len(shape) != 3:
            raise InputError(f"the mask {path} is a picture, but the data is a table: give an .npy file")
        sizes = (shape[1], shape[2])
        mask = (read_pictures(path, sizes, grey=True)[0] if path.is_dir() else read_picture(path, 1, sizes)) > 127
    else:
        raise InputError(f"the mask {path} must be an .npy file, a picture or a folder of pictures")
    if len(shape) == 3 and mask.ndim >= 2 and mask.shape[-3:] != shape:
        wide = mask if mask.ndim != 3 or mask.shape == (1, *shape[1:]) else mask[:, None]  # (count, height, width)
        if wide.shape[-2:] == shape[1:] and (wide.ndim < 3 or wide.shape[-3] == 1):
            mask = np.broadcast_to(wide, (*wide.shape[:-3], *shape))
    if mask.shape not in (shape, (count, *shape)):
        each = " or ".join(str(size) for size in (shape, (count, *shape)))
        raise InputError(f"the mask {path} has shape {mask.shape}, but the data needs {each}")
    return mask


def _in_units(run: Run, rows: Rows, numbers: np.ndarray, x: Tensor, filled: Tensor) -> np.ndarray:
    """A batch in the units and the type of the data, with its observed values as they were."""
    values = run.scaling.undo(filled)
    values = values.round() if run.scaling.kind == "binary" and values.ndim == 2 else values
    given = np.asarray(rows.values[numbers])
    gone = np.isnan(run.scaling.undo(x)) if run.scaling.columns else x.isnan().numpy()
    return np.where(gone, _as_type(values, given.dtype), given)


def _as_type(values: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    """Numbers in another type: rounded and clipped to a type of whole numbers, and true from 0.5 for truth values."""
    if kind.kind == "b":
        return values >= 0.5
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        # The largest float below the limit, since that of a wide type is rounded up to a float beyond it.
        high = np.nextafter(limits.max, 0, dtype=np.float64) if limits.bits > 32 else limits.max
        values = np.clip(np.rint(values.astype(np.float64)), limits.min, high)
    return values.astype(kind, copy=False)


def _write_table(run: Run, data: Path, out: Path, batches: Counted) -> None:
    """Write a table as it is, but with values in the empty cells of the model's columns."""
    table = arrow_table(data)
    parts = [(run.scaling.undo(filled), run.scaling.undo(x)) for _, x, filled in batches]
    filled, given = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    conditions = () if run.model.condition is None else run.model.condition.names
    names = run.columns or [name for name in table.column_names if name not in conditions]
    new = {
        name: (values, gone)
        for name, values, gone in zip(names, run.scaling.decoded(filled), np.isnan(given).T, strict=True)
        if gone.any()
    }
    if data.suffix.lower() != ".parquet":
        text = text_table(data)
        if out.suffix.lower() != ".parquet":
            _write_text(table, text, out, new)
            return
        table = _with_codes(table, text, names)
    for name, (values, gone) in new.items():
        table = table.set_column(table.column_names.index(name), name, _filled(table[name], values, gone))
    with written_whole(out) as file:
        if out.suffix.lower() == ".parquet":
            from pyarrow import parquet

            parquet.write_table(table, file)
        else:
            from pyarrow.csv import WriteOptions, write_csv

            header = table.column_names != [str(i + 1) for i in range(table.num_columns)]
            write_csv(table, file, WriteOptions(include_header=header))


def _with_codes(table: pa.Table, text: TextTable, names: Sequence[str]) -> pa.Table:
    """A table in which other columns than those named are text if they hold numbers such as 07311."""
    for index, name in enumerate(table.column_names):
        if name not in names and pa.types.is_integer(table[name].type):
            cells = [row[index].strip() for row in text.rows]
            values = table[name].to_pylist()
            if any(value is not None and str(value) != cell for value, cell in zip(values, cells, strict=True)):
                known = [None if value is None else cell for value, cell in zip(values, cells, strict=True)]
                table = table.set_column(index, name, pa.array(known, pa.string()))
    return table


def _write_text(table: pa.Table, text: TextTable, out: Path, new: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Write the cells of a text table, with new values by column where they are gone; all others keep their text."""
    for name, (values, gone) in new.items():
        index = table.column_names.index(name)
        known = {row[index] for row, missing in zip(text.rows, gone, strict=True) if not missing}
        if pa.types.is_boolean(table[name].type):
            values = np.where(values >= 0.5, "true", "false")
            spelling = {cell.strip().lower(): cell for cell in known}
        else:  # a level that is a number may have been written differently, such as 07311
            spelling = {
                format(float(cell), ".15g"): cell for cell in known if values.dtype.kind == "i" and is_number(cell)
            }
        for i in np.flatnonzero(gone):
            text.rows[i][index] = spelling.get(str(values[i]), str(values[i]))
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, delimiter=text.delimiter, lineterminator="\n")
    writer.writerows([] if text.header is None else [text.header])
    writer.writerows(text.rows)
    write_whole(out, lines.getvalue().encode())


def _filled(column: pa.ChunkedArray, values: np.ndarray, gone: np.ndarray) -> pa.Array:
    """A column with values in the cells that are gone; whole numbers stay so if all new ones are."""
    kind: Any = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    new = pa.array(values)
    kind = new.type if pa.types.is_null(kind) else kind
    if pa.types.is_boolean(kind):
        new = pa.array(values >= 0.5)
    elif pa.types.is_integer(kind) and pa.types.is_floating(new.type):
        kind = pa.float64()
    import pyarrow.compute as pc

    return pc.if_else(pa.array(gone), new.cast(kind), column.combine_chunks().cast(kind))
