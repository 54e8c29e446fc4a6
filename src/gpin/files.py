"""Files that appear whole or not at all, and records that notice when they were changed."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gpin.errors import InputError

__all__ = ["as_path", "checksum", "read_record", "write_record", "write_whole", "written_whole"]


def as_path(value: Any, what: str = "the folder") -> Path:
    """A path, or an error that names what was given instead."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{what} must be a path, got {value!r}")
    return Path(value)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` when all is written, even if the machine loses power on the way.

    What fails inside leaves no file, and an older one as it was.
    """
    beside = path.with_name(path.name + ".part")
    try:
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all, even if the machine loses power on the way."""
    with written_whole(path) as file:
        file.write(content)


def write_record(path: Path, kind: str, version: int, content: Mapping[str, Any]) -> None:
    """Write a JSON file that carries its format, its version and a checksum of itself."""
    record = {"format": kind, "version": version, **content}
    record["record_sha256"] = checksum(record)
    write_whole(path, json.dumps(record, indent=2, ensure_ascii=False).encode())


def read_record(path: Path, kind: str, version: int, what: str) -> dict[str, Any]:
    """What `write_record` wrote; `what` says in errors what the file should have been, such as "a gpin model"."""
    damaged = f"{path} is damaged or was edited by hand"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{damaged}: it is not JSON") from None
    if not isinstance(record, dict) or record.get("format") != kind:
        raise InputError(f"{path} is not {what}")
    if record.get("version") != version:
        raise InputError(f"{path} has format version {record.get('version')!r}; this gpin reads {version}")
    if record.pop("record_sha256", None) != checksum(record):
        raise InputError(f"{damaged}: its checksum does not fit")
    return record


def checksum(record: Mapping[str, Any]) -> str:
    """sha256 of a record in canonical form, with keys sorted."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
