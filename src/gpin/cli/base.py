"""What the commands share: the app that they belong to, and how they speak."""

import json as jsonlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from gpin import __version__

if TYPE_CHECKING:
    from rich.console import Console

app = App(
    name="gpin",
    version=f"gpin {__version__}",
    help="Amortized inference for variational autoencoders: eight methods behind one interface.",
    help_format="markdown",
    help_epilogue="Example: `gpin train digits`, or `gpin demo`\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted.",
    suppress_keyboard_interrupt=False,
)
app.meta.suppress_keyboard_interrupt = False
app.meta.group_parameters = Group("Every command")

Flag = Parameter(negative="", show_default=False)


class CheckError(Exception):
    """What was to be checked is not right; the message says so in one sentence."""


# What several commands take, each said once.
RunFolder = Annotated[Path, Parameter(help="The run's folder, as `gpin train` told it.")]
Out = Annotated[Path, Parameter(alias="-o")]
Device = Annotated[str | None, Parameter(help="Such as cpu or cuda; by default a GPU where there is one.")]
Columns = Annotated[str | None, Parameter(help="Of a table: which columns, with commas between.")]
Key = Annotated[str | None, Parameter(help="Of an .npz archive with several arrays: which one.")]
Size = Annotated[
    str | None, Parameter(help="Of a folder of pictures: bring all to this height and width, such as 64 or 64x48.")
]
Grey = Annotated[bool | None, Flag, Parameter(help="Of a folder of pictures: read them in one channel.")]


def source_options(columns: str | None, key: str | None, size: str | None, grey: bool | None) -> dict[str, Any]:
    """The options of a `SourceConfig` that were given.

    Example:
        >>> source_options("a, b", None, "64x48", None)
        {'columns': ['a', 'b'], 'size': [64, 48]}
    """
    from gpin.runs.settings import column_list, height_and_width

    options = {
        "columns": None if columns is None else column_list(columns),
        "key": key,
        "size": None if size is None else height_and_width(size),
        "grey": grey or None,
    }
    return {name: value for name, value in options.items() if value is not None}


# Speaking --------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """A result for a script, on stdout."""
    print(jsonlib.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def console() -> "Console":
    """For a result that a person reads, on stdout."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


def tell(sentence: str) -> None:
    """Something that the user should know beside the result, on stderr."""
    print("gpin: " + " ".join(with_flags(sentence).split()), file=sys.stderr)


def with_flags(sentence: str) -> str:
    """A sentence of the library in the words of the command line: arguments in backticks become flags.

    Example:
        >>> with_flags("choose columns with `columns=a,b`, or set `latent_dim`")
        'choose columns with --columns a,b, or set --latent-dim'
    """

    def flag(found: re.Match[str]) -> str:
        value = "" if found[2] is None else " " + found[2]
        return "--" + found[1].replace("_", "-") + value

    return re.sub(r"`([a-z_]+)(?:=([^`]*))?`", flag, sentence)


def on_terminal() -> bool:
    """Whether a person watches: what is not the result is told to nobody else."""
    return sys.stderr is not None and sys.stderr.isatty()


def first_process() -> bool:
    """Whether this is the one process, of those that `torchrun` has started, that speaks to the user."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where a person watches; yields what to call with the number of instances done, and of all."""
    if not on_terminal():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def quoted(path: Any) -> str:
    """A path as one would type it."""
    import shlex

    return shlex.quote(str(path))


def show_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and what they are, one a line, aligned, on stdout."""
    from rich.cells import cell_len

    width = max(cell_len(name) for name, _ in pairs)
    for name, value in pairs:
        print(name + " " * (width - cell_len(name) + 2) + value)


def number(value: float | None, digits: int = 2) -> str:
    """A number as a person reads it.

    Example:
        >>> number(-1234.567)
        '−1,234.57'
    """
    return "unknown" if value is None else f"{value:,.{digits}f}".replace("-", "−")
