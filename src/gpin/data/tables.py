"""Reading of tables with named columns: .csv (also with tabs or semicolons) and .parquet."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from gpin._core.config import suggest
from gpin._core.errors import ColumnError, InputError
from gpin.data.columns import MOST_LEVELS, Levels
from gpin.data.io import listed, one_line, reading, room_for

__all__ = [
    "Table",
    "TextTable",
    "arrow_table",
    "csv_conditions",
    "is_number",
    "parquet_conditions",
    "read_csv",
    "read_parquet",
    "text_table",
]

INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+")
"""The names that pandas gives to an index column, which is not data."""
COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
"""A number with a decimal comma or a thousands separator."""
POINT = "numbers must have a decimal point and no commas"
MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "?"]
"""The cells of a text table that stand for missing values."""


LOOKED_AT = 10_000
"""The number of rows in which the text of a first row with numbers is looked for."""
IDENTIFIER = 20
"""A column of at least so many texts that are all different is not taken as categorical."""


class Table(NamedTuple):
    """A table that was read.

    Attributes:
        values: `(n, columns)`, in the narrowest type that can hold all columns; NaN for missing values, and the numbers
            of levels, from 0, in categorical columns.
        columns: The names of the columns.
        levels: The levels of each categorical column, and None for the others; None if there is none.
    """

    values: np.ndarray
    columns: tuple[str, ...]
    levels: tuple[Levels | None, ...] | None = None


def read_csv(
    path: Path,
    columns: tuple[str, ...] | None,
    exclude: tuple[str, ...] | None = None,
    kinds: Mapping[str, str] | None = None,
    given: Sequence[str] = (),
) -> Table:
    """A text table.

    The first row is a header unless all of its cells are numbers, or some are and the text in another one is repeated
    below it, as in "5.1,setosa"; without a header, columns are named 1, 2, ….
    The separator is a comma, semicolon or tab, whichever splits the first row into the most cells. Empty cells and
    those of `MISSING` are missing values.

    Arguments:
        path: The file.
        columns: The columns to read, in this order; None for all.
        exclude: Columns to leave out.
        kinds: The kinds of some columns by name; only which of them are categorical matters here.
        given: Columns that are given as conditions and left out, too.
    """
    with reading(path, "a table in UTF-8 text"):
        return _read(path, _csv_table(path, columns, exclude, given), kinds or {}, exclude or ())


def read_parquet(
    path: Path,
    columns: tuple[str, ...] | None,
    exclude: tuple[str, ...] | None = None,
    kinds: Mapping[str, str] | None = None,
    given: Sequence[str] = (),
) -> Table:
    """A Parquet table; see :func:`read_csv`."""
    with reading(path, "a Parquet file"):
        return _read(path, _parquet_table(path, columns, exclude, given), kinds or {}, exclude or ())


def csv_conditions(path: Path, given: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of a text table that are given as conditions, as text or numbers."""
    with reading(path, "a table in UTF-8 text"):
        return _conditions(path, _csv_table(path, tuple(given)))


def parquet_conditions(path: Path, given: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of a Parquet table that are given as conditions, as text or numbers."""
    with reading(path, "a Parquet file"):
        return _conditions(path, _parquet_table(path, tuple(given)))


def arrow_table(path: Path) -> pa.Table:
    """All columns of a text table or a Parquet file as they are, also those that cannot be read as data."""
    if path.suffix.lower() == ".parquet":
        with reading(path, "a Parquet file"):
            return pyarrow.parquet.read_table(path)
    with reading(path, "a table in UTF-8 text"):
        return _csv_table(path, None, choose=False)


class TextTable(NamedTuple):
    """The cells of a text table as they are written in it, the header apart if it has one, and their separator."""

    header: list[str] | None
    rows: list[list[str]]
    delimiter: str


def text_table(path: Path) -> TextTable:
    """The cells of a text table, whose rows are those of :func:`arrow_table`."""
    with reading(path, "a table in UTF-8 text"):
        first, delimiter, _ = _first_row(path)
        rows = list(_rows(path, delimiter))
        header = _is_header(path, first, delimiter)
        return TextTable(first if header else None, rows[int(header) :], delimiter)


def _csv_table(
    path: Path,
    columns: tuple[str, ...] | None,
    exclude: tuple[str, ...] | None = None,
    given: Sequence[str] = (),
    choose: bool = True,
) -> pa.Table:
    """The chosen columns of a text table, or all as they are."""
    first, delimiter, blank = _first_row(path)
    header = _is_header(path, first, delimiter)
    names = [cell.strip() for cell in first] if header else [str(i + 1) for i in range(len(first))]
    chosen = _chosen(path, names, columns, exclude, given) if choose else names
    try:
        return pyarrow.csv.read_csv(
            path,
            pyarrow.csv.ReadOptions(column_names=names, skip_rows=blank, skip_rows_after_names=int(header)),
            pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(include_columns=chosen, null_values=MISSING, strings_can_be_null=True),
        )
    except pa.ArrowInvalid:
        _refuse_ragged(path, delimiter, len(names))
        raise


def _is_header(path: Path, first: list[str], delimiter: str) -> bool:
    """Whether the first row of a text table has the names of its columns.

    A row of numbers and missing values alone has not. A row of numbers and text, such as "5.1,setosa" or
    "country,2019", has them unless one of its texts is in the same column of a later row, too.
    """
    texts = [i for i, cell in enumerate(first) if not is_number(cell) and cell.strip() not in MISSING]
    if not texts or not any(map(is_number, first)):
        return bool(texts)
    later = (row for row in islice(_rows(path, delimiter), 1, LOOKED_AT) if len(row) == len(first) and row != first)
    return not any(row[i] == first[i] for row in later for i in texts)


def _rows(path: Path, delimiter: str) -> Iterator[list[str]]:
    """The rows of a text table that are not empty."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        yield from filter(None, csv.reader(file, delimiter=delimiter))


def _parquet_table(
    path: Path, columns: tuple[str, ...] | None, exclude: tuple[str, ...] | None = None, given: Sequence[str] = ()
) -> pa.Table:
    with pyarrow.parquet.ParquetFile(path) as file:
        chosen = _chosen(path, file.schema_arrow.names, columns, exclude, given)
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


def _refuse_ragged(path: Path, delimiter: str, width: int) -> None:
    """Raise InputError if a row of a text table has another number of cells than the first."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        for cells in reader:
            if cells and len(cells) != width:
                raise InputError(
                    f"{path}: line {reader.line_num} has {len(cells)} cells, but the first row has {width}: correct "
                    f"this line, which is {one_line(delimiter.join(cells), 60)!r}"
                )


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


def _chosen(
    path: Path,
    names: list[str],
    columns: tuple[str, ...] | None,
    exclude: tuple[str, ...] | None = None,
    given: Sequence[str] = (),
) -> list[str]:
    """The columns to read: those requested, or all but those that are excluded or given as conditions."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{path} has more than one column named {twice[0]!r}: names must differ")
    if not names:
        raise InputError(f"{path} has no columns")
    twice = [name for name in columns or () if name in given]
    if twice:
        raise InputError(f"column {twice[0]!r} is given as a condition and cannot be modelled as well: name it once")
    for named in (columns or (), exclude or ()):
        for name, times in Counter(named).items():
            if name not in names:
                raise InputError(f"{path} has no column {name!r}: {suggest(name, names)}")
            if times > 1:
                raise InputError(f"column {name!r} is given {times} times: name each column once")
    chosen = [name for name in (names if columns is None else columns) if name not in (*(exclude or ()), *given)]
    if not chosen:
        others = "given" if given and not exclude else "excluded or given" if given else "excluded"
        raise InputError(f"{path} has no columns besides those that are {others}: there is nothing to model")
    if columns is None:
        index = [i for i, name in enumerate(names) if INDEX.fullmatch(name) and name in chosen]
        if index:
            said = f"named {names[index[0]]!r}, an index" if names[index[0]] else "without a name, perhaps an index"
            without = listed([*(exclude or ()), *(names[i] for i in index)])
            raise ColumnError(f"{path}: column {index[0] + 1} is {said}", f"leave it out with `exclude={without}`")
    return chosen


def _read(path: Path, table: pa.Table, kinds: Mapping[str, str], exclude: Sequence[str]) -> Table:
    """The values and levels of a table."""
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows")
    other = [field.name for field in table.schema if not _is_known(field.type)]
    if other:
        what, _ = _what_they_hold(table, other)
        out = f"leave {'it' if len(other) == 1 else 'them'} out with `exclude={listed([*exclude, *other])}`"
        raise ColumnError(f"{path}: {what}", out)
    arrays, levels = [], []
    for name in table.column_names:
        array, own = _values(path, table, name, kinds.get(name), exclude)
        arrays.append(array)
        levels.append(own)
    values = room_for((table.num_rows, len(arrays)), np.result_type(*arrays), str(path))
    for i, array in enumerate(arrays):
        values[:, i] = array
    return Table(values, tuple(table.column_names), tuple(levels) if any(levels) else None)


def _values(
    path: Path, table: pa.Table, name: str, kind: str | None, exclude: Sequence[str]
) -> tuple[np.ndarray, Levels | None]:
    """The values of one column, and its levels if it is categorical."""
    column = table[name]
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan), None
    if _is_numeric(column.type):
        numbers = _numbers(column)
        if kind != "categorical":
            return numbers, None
        found, codes = np.unique(numbers[~np.isnan(numbers)], return_inverse=True)
        names, numeric = tuple(format(value, ".15g") for value in found), True
        indices = np.full(len(numbers), np.nan)
        indices[~np.isnan(numbers)] = codes
    else:
        encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        if kind != "categorical":
            _refuse_odd_text(path, table, name, texts, exclude)
        order = sorted(range(len(texts)), key=lambda number: texts[number])
        names, numeric = tuple(texts[number] for number in order), False
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        rank = np.empty(len(texts), np.float64)
        rank[order] = np.arange(len(texts))
        missing = np.isnan(codes.astype(np.float64))
        indices = np.full(len(codes), np.nan)
        indices[~missing] = rank[codes[~missing].astype(np.int64)]
    known = int((~np.isnan(indices)).sum())
    if len(names) > MOST_LEVELS or (kind is None and len(names) == known >= IDENTIFIER):
        alike = "all different" if len(names) == known else f"of {len(names):,} different values"
        raise ColumnError(
            f"{path}: column {name!r} holds {'numbers' if numeric else 'text'}, {alike}, which are too many for a "
            "categorical column",
            f"leave it out with `exclude={listed([*exclude, name])}`",
        )
    return indices, Levels(names, numeric)


def _refuse_odd_text(path: Path, table: pa.Table, name: str, texts: list[str], exclude: Sequence[str]) -> None:
    """Raise InputError if text is rather numbers: with decimal commas, or together with some other text."""
    if any(map(COMMA.fullmatch, texts)) and all(is_number(text) or COMMA.fullmatch(text) for text in texts):
        raise InputError(f"{path}: {_what_they_hold(table, [name])[0]}: {POINT}")
    numbers = sum(map(is_number, texts))
    if len(texts) > 2 and 2 * numbers > len(texts):
        raise ColumnError(
            f"{path}: {_what_they_hold(table, [name])[0]}, but mostly numbers",
            f"correct or empty such cells, leave the column out with `exclude={listed([*exclude, name])}`, or take its "
            f"values as levels with `kinds={listed([f'{name}=categorical'])}`",
        )


def _is_known(kind: pa.DataType) -> bool:
    """Whether a column holds numbers, text or nothing at all."""
    return _is_numeric(kind) or _is_text(kind) or pa.types.is_null(kind)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


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


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The values of a numeric column; as floats, with NaN, if some are missing."""
    if pa.types.is_decimal(column.type) or (column.null_count and not pa.types.is_floating(column.type)):
        column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
        column = column.cast(pa.float64())
    return column.to_numpy()
