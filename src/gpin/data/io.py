"""Helpers of the file readers: errors about damaged files, and space for unpacked data."""

import contextlib
import csv
import io
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import DTypeLike

from gpin._core.errors import InputError

__all__ = ["array_file", "let_go", "listed", "one_line", "reading", "room_for", "temporary_file"]

IN_MEMORY = 2**30
"""Decoded data of up to this many bytes is kept in memory; larger data is stored in a temporary file."""


@contextlib.contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn any error of a reader into an InputError; `what` is the expected kind of file, such as "a picture"."""
    try:
        yield
    except InputError:
        raise
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise InputError(f"{path} cannot be read: {one_line(error.strerror)}") from None
    except Exception as error:  # readers raise all kinds of errors, from zlib.error to SyntaxError
        reason = str(error).replace(f" {str(path)!r}", "")  # Pillow repeats the path
        raise InputError(f"{path} is not {what}, or it is damaged: {one_line(reason or error)}") from None


def one_line(reason: object, most: int = 200) -> str:
    """The message of an error, or another message, without line breaks and of bounded length.

    Example:
        >>> one_line(ValueError("two\\nlines"))
        'two lines'
    """
    said = "".join(letter if letter.isprintable() else " " for letter in str(reason))
    said = " ".join(said.split()) or type(reason).__name__
    return said if len(said) <= most else said[: most - 1] + "…"


def listed(names: Sequence[str]) -> str:
    """Names joined with commas, as options take them; a name with a comma or a quote is quoted.

    Example:
        >>> listed(["a", "b, c"])
        'a,"b, c"'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def room_for(shape: tuple[int, ...], dtype: DTypeLike, what: str) -> np.ndarray:
    """An uninitialised array in memory or, above 1 GiB, in a temporary file that is deleted with it."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= IN_MEMORY:
        return np.empty(shape, dtype)
    with temporary_file(size, what) as file:
        return np.memmap(file, dtype, "r+", shape=shape)


@contextlib.contextmanager
def temporary_file(size: int, what: str) -> Iterator[IO[bytes]]:
    """An unnamed file with space for `size` bytes; an array that is mapped to it keeps it alive."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"{what} takes {size / 2**30:.1f} GiB unpacked, but {folder} has {free / 2**30:.1f} GiB free: set TMPDIR "
            "to a folder with more space"
        )
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk fails here, not when the map is written to
        yield file


def array_file(file: IO[bytes], size: int) -> np.ndarray:
    """The memory-mapped array in an open .npy file of `size` bytes; pickles are never loaded."""
    version = np.lib.format.read_magic(file)
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in headers:
        raise ValueError(f"its .npy version is {version}, but only versions 1.0 and 2.0 are supported")
    shape, fortran_order, dtype = headers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, not numbers")
    claimed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if any(n < 0 for n in shape) or claimed > held:
        raise ValueError(f"its header claims shape {shape}, {claimed} bytes, but {held} follow")
    if claimed == 0:
        return np.empty(shape, dtype)  # an empty range cannot be mapped
    return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran_order else "C")


def let_go(array: np.ndarray) -> None:
    """Release the memory through which a large array on disk was read; pages are mapped again when they are needed."""
    base: object = array
    while base is not None:
        # A private copy (mode "c") would lose its changes.
        if isinstance(base, np.memmap) and base.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
            mapped = getattr(base, "_mmap", None)
            if isinstance(mapped, mmap.mmap) and len(mapped) > IN_MEMORY:
                mapped.madvise(mmap.MADV_DONTNEED)
                return
        base = getattr(base, "base", None)
