"""Files that are written atomically, and JSON records with a checksum."""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gpin._core.errors import InputError, VersionError
from gpin._core.messages import Tell, to_stderr

__all__ = [
    "as_path",
    "check_writable",
    "checksum",
    "make_folder",
    "read_record",
    "remove_unfinished",
    "write_record",
    "write_whole",
    "written_whole",
]

UNFINISHED = ".part"
"""The suffix of a file that is being written."""


def as_path(value: Any, what: str = "the folder") -> Path:
    """The value as a path; anything but a string or a path raises InputError, in which `what` names the argument."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{what} must be a path, got {value!r}")
    return Path(value)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` only when everything is written, even if the machine loses power.

    If the body of the context raises, no new file appears, and an existing one is unchanged. A symbolic link is
    kept and its target replaced. A pipe or a device is written to directly.
    """
    place = Path(os.path.realpath(path))
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if place.exists() and not place.is_file():
        with open(place, "wb") as file:
            yield file
        return
    # Each writer has a temporary name of its own; otherwise one could publish what another has half written.
    beside = place.with_name(f"{place.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    try:
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(beside):
            error.filename = str(path)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: it appears complete or not at all, even if the machine loses power."""
    with written_whole(path) as file:
        file.write(content)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of killed writers from a folder to which no other process is writing."""
    for path in folder.glob(f"*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Raise OSError if no file can be created in a folder, so that work fails before it begins and not at its end."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def make_folder(folder: Path, tell: Tell = to_stderr) -> None:
    """Create the folder of a file unless it exists; the user is told, since its name may be a typo."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        tell(f"the folder {folder} did not exist and was created")


def write_record(path: Path, kind: str, version: int, content: Mapping[str, Any]) -> None:
    """Write a JSON file that contains its format, its version and a checksum of its content."""
    record = {"format": kind, "version": version, **content}
    record["record_sha256"] = checksum(record)
    write_whole(path, json.dumps(record, indent=2, ensure_ascii=False).encode())


def read_record(path: Path, kind: str, version: int, what: str) -> dict[str, Any]:
    """Read a file of `write_record`; `what` names the expected content in errors, such as "a gpin model"."""
    damaged = f"{path} is damaged or was edited by hand"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{damaged}: it is not JSON") from None
    if not isinstance(record, dict) or record.get("format") != kind:
        raise InputError(f"{path} is not {what}")
    if record.get("version") != version:
        raise VersionError(f"{path} has format version {record.get('version')!r}; this gpin reads {version}")
    if record.pop("record_sha256", None) != checksum(record):
        raise InputError(f"{damaged}: its checksum does not match")
    return record


def checksum(record: Mapping[str, Any]) -> str:
    """The sha256 of a record in canonical form, with keys sorted."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
