"""Leases: only one of several workers, on one machine or many, holds a folder, until it releases it or dies.

A lease is a file in the folder that its holder creates and touches every few seconds. A worker takes over a lease that
was not touched for a long time, or whose process no longer exists on this machine. Times are those of the file
system, so that all machines agree on them.
"""

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from gpin._core.files import checksum

__all__ = ["BEAT", "STALE", "lease", "leased"]

BEAT = 5.0
"""Seconds between two heartbeats."""
STALE = 60.0
"""Seconds without a heartbeat after which the holder is considered dead."""

NAME = "lease.json"


@contextmanager
def lease(folder: Path, lost: Callable[[], None], beat: float = BEAT, stale: float = STALE) -> Iterator[bool]:
    """Yield whether this process holds the folder, for as long as the context lasts.

    Arguments:
        folder: The folder to hold; it is created if it is missing.
        lost: Called in a separate thread if another process took over because this one showed no heartbeat.
        beat: Seconds between two heartbeats.
        stale: Seconds without a heartbeat after which a holder is considered dead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    content = {"holder": uuid.uuid4().hex, **_process()}
    if not (_make(path, content) or (_take_over(path, stale) and _make(path, content))):
        yield False
        return
    done = threading.Event()

    def stay_alive() -> None:
        while not done.wait(beat):
            if _holds(path, content["holder"]) is False:
                if not done.is_set():
                    lost()
                return
            with suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=stay_alive, daemon=True)
    thread.start()
    try:
        yield True
    finally:
        done.set()
        thread.join()
        if _holds(path, content["holder"]):
            path.unlink(missing_ok=True)


def leased(folder: Path, stale: float = STALE) -> bool:
    """Whether a living process holds the folder."""
    path = folder / NAME
    try:
        content = _read(path)
    except FileNotFoundError:
        return False
    except OSError:
        content = {}
    return not _dead(path, content, stale)


def _machine() -> str:
    """The name of this machine with its boot and process namespace, because names alone may not be unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _process() -> dict[str, Any]:
    return {"machine": _machine(), "process": os.getpid(), "started": _started(os.getpid())}


def _started(process: Any) -> str | None:
    """The start time of a process on this machine, in the system's own units; None if there is no such process."""
    try:
        state, *numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else numbers[18]  # a zombie is dead, although nothing has waited for it yet


def _make(path: Path, content: dict[str, Any]) -> bool:
    """Create the file with all of its content at once, unless it exists."""
    beside = path.with_name(f"{path.name}.{content['holder']}")
    try:
        beside.write_text(json.dumps(content))
        os.link(beside, path)
    except FileExistsError:
        return False
    finally:
        beside.unlink(missing_ok=True)
    return True


def _read(path: Path) -> dict[str, Any]:
    """The content of a lease; empty if it is damaged."""
    try:
        content = json.loads(path.read_text())
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _holds(path: Path, holder: str) -> bool | None:
    """Whether the lease belongs to this holder; None if a failure of the file system hides it."""
    try:
        found = _read(path).get("holder")
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return None if found is None else found == holder


def _dead(path: Path, content: dict[str, Any], stale: float) -> bool:
    """Whether the holder is dead: it showed no heartbeat for too long, or its process no longer exists."""
    here = platform.system() == "Linux" and content.get("machine") == _machine()
    if here and _started(content.get("process")) != content.get("started"):
        return True
    age = _age(path, "st_mtime")
    return age is not None and age > stale


def _age(path: Path, when: Literal["st_mtime", "st_ctime"]) -> float | None:
    """Seconds since a file was touched, or linked, by the clock of its file system; None if that is unknown."""
    clock = path.with_name(f".clock.{uuid.uuid4().hex}")
    try:
        touched = float(getattr(path.stat(), when))
        try:
            clock.touch()
            return float(getattr(clock.stat(), when)) - touched
        except OSError:  # without write access, use the clock of this machine
            return time.time() - touched
        finally:
            with suppress(OSError):
                clock.unlink()
    except OSError:
        return None


def _take_over(path: Path, stale: float) -> bool:
    """Remove the lease of a dead holder; of several processes that try at once, one succeeds."""
    try:
        content = _read(path)
    except OSError:
        return False
    if not _dead(path, content, stale):
        return False
    # Only the process that creates this link may remove the lease. The link is named after the dead holder: a late
    # process, which links to a new lease instead, sees the difference below and removes nothing.
    claim = path.with_name(f"{path.name}.{checksum(content)}")
    try:
        os.link(path, claim)
    except FileExistsError:  # another process was faster
        age = _age(claim, "st_ctime")
        if age is None or age <= stale:
            return False
        claim.unlink(missing_ok=True)  # and died before it was done
        return _take_over(path, stale)
    except OSError:
        return False
    try:
        if _read(claim) != content:
            return False
        path.unlink(missing_ok=True)
        return True
    except OSError:
        return False
    finally:
        claim.unlink(missing_ok=True)
