"""Reading of tables with named columns: .csv (also with tabs or semicolons) and .parquet."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from gpin._core.config import suggest
from gpin._core.errors import InputError
from gpin.data.io import listed, one_line, reading, room_for

__all__ = ["csv_conditions", "is_number", "parquet_conditions", "read_csv", "read_parquet"]

INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+")
"""The names that pandas gives to an index column, which is not data."""
COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
"""A number with a decimal comma or a thousands separator."""
POINT = "numbers must have a decimal point and no commas"


def read_csv(
    path: Path, columns: tuple[str, ...] | None, given: Sequence[str] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """A text table, `(n, columns)`, and the names of its columns, without those that are given as conditions.

    The first row is a header unless all of its cells are numbers; without a header, columns are named 1, 2, ….
    The separator is a comma, semicolon or tab, whichever splits the first row into the most cells.
    """
    with reading(path, "a table in UTF-8 text"):
        table = _csv_table(path, columns, given)
        return _values(path, table), tuple(table.column_names)


def csv_conditions(path: Path, given: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of a text table that are given as conditions, as text or numbers."""
    with reading(path, "a table in UTF-8 text"):
        return _conditions(path, _csv_table(path, tuple(given)))


def _csv_table(path: Path, columns: tuple[str, ...] | None, given: Sequence[str] = ()) -> pa.Table:
    first, delimiter, blank = _first_row(path)
    header = not all(is_number(cell) or not cell.strip() for cell in first)
    names = [cell.strip() for cell in first] if header else [str(i + 1) for i in range(len(first))]
    return pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(column_names=names, skip_rows=blank, skip_rows_after_names=int(header)),
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(include_columns=_chosen(path, names, columns, given)),
    )


def read_parquet(
    path: Path, columns: tuple[str, ...] | None, given: Sequence[str] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """A Parquet table, `(n, columns)`, and the names of its columns, without those that are given as conditions."""
    with reading(path, "a Parquet file"):
        table = _parquet_table(path, columns, given)
        return _values(path, table), tuple(table.column_names)


def parquet_conditions(path: Path, given: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of a Parquet table that are given as conditions, as text or numbers."""
    with reading(path, "a Parquet file"):
        return _conditions(path, _parquet_table(path, tuple(given)))


def _parquet_table(path: Path, columns: tuple[str, ...] | None, given: Sequence[str] = ()) -> pa.Table:
    with pyarrow.parquet.ParquetFile(path) as file:
        chosen = _chosen(path, file.schema_arrow.names, columns, given)
        return file.read(columns=chosen).select(chosen)


def _conditions(path: Path, table: pa.Table) -> dict[str, np.ndarray]:
    """The columns of a table as arrays of text or numbers."""
    found = {}
    for name in table.column_names:
        column = table[name]
        missing = [row for row, value in enumerate(_plain(column)) if value is None or value != value or value == ""]
        if missing:
            raise InputError(
                f"{path}: column {name!r}, which is given as a condition, has no value in row {missing[0]} (counting "
                f"from 0; {len(missing)} missing in total): fill or remove such rows"
            )
        found[name] = _numbers(column) if _is_numeric(column.type) else np.array(list(_plain(column)))
        if found[name].dtype.kind not in "biufU":
            raise InputError(f"{path}: column {name!r} holds {column.type}, which cannot be given as a condition")
    return found


def _first_row(path: Path) -> tuple[list[str], str, int]:
    """The cells of the first non-empty row, the separator that gives the most cells, and the number of rows before."""
    best: tuple[list[str], str, int] = ([], ",", 0)
    for delimiter in ",;\t":
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = enumerate(csv.reader(file, delimiter=delimiter))
            blank, cells = next(((number, row) for number, row in rows if row), (0, []))
        if delimiter != "," and _has_decimal_commas(cells):
            raise InputError(f"{path}: {POINT}, but the first row is {one_line(delimiter.join(cells), 40)}")
        if len(cells) > len(best[0]):
            best = (cells, delimiter, blank)
    if not best[0]:
        raise InputError(f"{path} is empty")
    return best


def _has_decimal_commas(cells: list[str]) -> bool:
    """Whether the cells of a row are numbers, some with a decimal comma; a single cell may be two numbers instead."""
    whole = all(is_number(cell.replace(",", ".")) for cell in cells)
    return whole and len(cells) > 1 and any(COMMA.fullmatch(cell) for cell in cells)


def is_number(cell: str) -> bool:
    """Whether a cell of a text table is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # float() accepts underscores, which numbers in a table do not have


def _chosen(path: Path, names: list[str], columns: tuple[str, ...] | None, given: Sequence[str] = ()) -> list[str]:
    """The columns to read: those requested, or all but those that are given as conditions."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{path} has more than one column named {twice[0]!r}: names must differ")
    if not names:
        raise InputError(f"{path} has no columns")
    twice = [name for name in columns or () if name in given]
    if twice:
        raise InputError(f"column {twice[0]!r} is given as a condition and cannot be modelled as well: name it once")
    if columns is None:
        names = [name for name in names if name not in given]
        if not names:
            raise InputError(f"{path} has no columns besides those that are given: there is nothing to model")
        index = [i for i, name in enumerate(names) if INDEX.fullmatch(name)]
        if index:
            rest = [name for name in names if not INDEX.fullmatch(name)]
            said = f"named {names[index[0]]!r}, an index" if names[index[0]] else "without a name, perhaps an index"
            raise InputError(f"{path}: column {index[0] + 1} is {said}: choose columns with `columns={listed(rest)}`")
        return names
    for name, times in Counter(columns).items():
        if name not in names:
            raise InputError(f"{path} has no column {name!r}: {suggest(name, names)}")
        if times > 1:
            raise InputError(f"column {name!r} is given {times} times: name each column once")
    return list(columns)


def _values(path: Path, table: pa.Table) -> np.ndarray:
    """The values of a table, `(n, columns)`, in the narrowest type that can hold all columns."""
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows")
    numeric = [field.name for field in table.schema if _is_numeric(field.type)]
    # A column without any values has the type null; the check for missing values below reports it.
    other = [field.name for field in table.schema if not _is_numeric(field.type) and not pa.types.is_null(field.type)]
    if other:
        advice = f"choose numeric columns with `columns={listed(numeric)}`" if numeric else "there is no numeric column"
        what, example = _what_they_hold(table, other)
        raise InputError(f"{path}: {what}: {POINT if COMMA.fullmatch(example) else advice}")
    for name in table.column_names:
        column = table[name]
        missing = column.null_count or _nans(column)
        if missing:
            row = next(i for i, value in enumerate(_plain(column)) if value is None or value != value)
            raise InputError(
                f"{path}: column {name!r} has no value in row {row} (counting from 0; {missing} missing in total): "
                f"fill or remove such rows, or leave the column out with `columns`"
            )
    arrays = [_numbers(table[name]) for name in table.column_names]
    values = room_for((table.num_rows, len(arrays)), np.result_type(*arrays), str(path))
    for i, array in enumerate(arrays):
        values[:, i] = array
    return values


def _is_numeric(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _what_they_hold(table: pa.Table, names: list[str]) -> tuple[str, str]:
    """A description of the columns that do not hold numbers, and the first cell that is not a number."""
    kind, values = table.schema.field(names[0]).type, _plain(table[names[0]])
    what = "dates or times" if pa.types.is_temporal(kind) else str(kind)
    if isinstance(next((value for value in values if value is not None), None), str | bytes):
        what = "text"
    bad = ((row, value) for row, value in enumerate(_plain(table[names[0]])) if value is not None)
    row, value = next(((row, v) for row, v in bad if not (isinstance(v, str) and (is_number(v) or not v))), (0, ""))
    example = one_line(repr(value) if isinstance(value, str | bytes) else value, 40)
    which = f"column {names[0]!r} holds" if len(names) == 1 else f"columns {_quoted(names)} hold"
    return f"{which} {what} (first: {example} in row {row}, counting from 0)", str(value)


def _quoted(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:8]) + (", …" if len(names) > 8 else "")


def _plain(column: pa.ChunkedArray) -> Any:
    """An iterator over the values of a column as Python objects."""
    return (value for chunk in column.chunks for value in (cell.as_py() for cell in chunk))


def _nans(column: pa.ChunkedArray) -> int:
    return int(np.isnan(_numbers(column)).sum()) if pa.types.is_floating(column.type) else 0


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return column.to_numpy()
