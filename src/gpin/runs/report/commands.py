"""Commands that a page advises, as one would type them where the page was made."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpin.data import BENCHMARKS
from gpin.runs.folder import Run

__all__ = ["Command", "data_name", "run_name"]


@dataclass(frozen=True)
class Command:
    """A command of gpin with its arguments and options; the value of an option that takes none is None.

    Example:
        >>> str(Command("evaluate", ["runs/a b"], {"gaps": None})).split()[:3]
        ['gpin', 'evaluate', "'runs/a"]
    """

    name: str
    arguments: list[str]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = ["gpin", self.name, *self.arguments]
        for name, value in self.options.items():
            words += [f"--{name.replace('_', '-')}"] + ([] if value is None else [str(value)])
        return shlex.join(words)


def run_name(run: Run) -> str:
    """The folder of a run, relative to the working directory; its name alone if it is elsewhere.

    A page may be sent to others, so it does not contain the paths of the machine on which it was made.
    """
    return _near(run.folder)


def data_name(run: Run) -> str:
    """The name of a run's data, or its path as in `run_name`."""
    return run.location if run.location in BENCHMARKS else _near(Path(run.location))


def _near(path: Path) -> str:
    near = os.path.relpath(path)
    return path.resolve().name if near.startswith(os.pardir) else near
