"""Leases: of several workers, on one machine or many, one holds a folder, until it lets go or dies.

A lease is a file in the folder, made by its holder and touched by it every few seconds. Who finds that it was not
touched for long, or that the process which made it is gone from this machine, takes it over. Times are those of the
file system, by which all machines judge alike.
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
"""Seconds between two signs of life."""
STALE = 60.0
"""Seconds without one, after which the holder is taken for dead."""

NAME = "lease.json"


@contextmanager
def lease(folder: Path, lost: Callable[[], None], beat: float = BEAT, stale: float = STALE) -> Iterator[bool]:
    """Whether the folder is ours, for as long as the context lasts.

    Arguments:
        folder: What to hold; it is made.
        lost: Called, in a thread of its own, if somebody else took over because this process was not heard of.
        beat: Seconds between signs of life.
        stale: Seconds after which a silent holder is taken for dead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    mine = {"holder": uuid.uuid4().hex, **_process()}
    if not (_make(path, mine) or (_take_over(path, stale) and _make(path, mine))):
        yield False
        return
    done = threading.Event()

    def stay_alive() -> None:
        while not done.wait(beat):
            if _holds(path, mine["holder"]) is False:
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
        if _holds(path, mine["holder"]):
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
    """The name of this machine, with what its processes are counted from: names alone can be the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _process() -> dict[str, Any]:
    return {"machine": _machine(), "process": os.getpid(), "started": _started(os.getpid())}


def _started(process: Any) -> str | None:
    """When a process of this machine was started, in the system's own count; None where there is none such."""
    try:
        state, *numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else numbers[18]  # a zombie is dead, though nobody has asked after it yet


def _make(path: Path, content: dict[str, Any]) -> bool:
    """Make the file with all of its content at once, unless it is there."""
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
    """What a lease says; nothing if it is damaged."""
    try:
        content = json.loads(path.read_text())
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _holds(path: Path, holder: str) -> bool | None:
    """Whether the lease is this holder's; None where nobody can tell, for file systems have their bad moments."""
    try:
        found = _read(path).get("holder")
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return None if found is None else found == holder


def _dead(path: Path, content: dict[str, Any], stale: float) -> bool:
    """Whether the holder is gone: it was not heard of for long, or its process is no more."""
    here = platform.system() == "Linux" and content.get("machine") == _machine()
    if here and _started(content.get("process")) != content.get("started"):
        return True
    age = _age(path, "st_mtime")
    return age is not None and age > stale


def _age(path: Path, when: Literal["st_mtime", "st_ctime"]) -> float | None:
    """Seconds since a file was touched, or linked, by the clock of its file system; None where that is not known."""
    clock = path.with_name(f".clock.{uuid.uuid4().hex}")
    try:
        touched = float(getattr(path.stat(), when))
        try:
            clock.touch()
            return float(getattr(clock.stat(), when)) - touched
        except OSError:  # where nothing can be written, the clock of this machine must do
            return time.time() - touched
        finally:
            with suppress(OSError):
                clock.unlink()
    except OSError:
        return None


def _take_over(path: Path, stale: float) -> bool:
    """Remove the lease of a dead holder; of several who try at once, one succeeds."""
    try:
        content = _read(path)
    except OSError:
        return False
    if not _dead(path, content, stale):
        return False
    # Who makes this link may remove the lease, and nobody else. It is named after the dead holder, so that who comes
    # late, when there is a new lease already, links to that one, sees it, and has disturbed nobody.
    claim = path.with_name(f"{path.name}.{checksum(content)}")
    try:
        os.link(path, claim)
    except FileExistsError:  # somebody was faster
        age = _age(claim, "st_ctime")
        if age is None or age <= stale:
            return False
        claim.unlink(missing_ok=True)  # and died on the way
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
