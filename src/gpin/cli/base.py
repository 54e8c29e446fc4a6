"""What the commands share: the app, common parameters and output."""

import json as jsonlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import App, Group, Parameter

from gpin import __version__
from gpin._core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from gpin.report.tables import ResultTable

app = App(
    name="gpin",
    version=f"gpin {__version__}",
    help="Amortized inference for variational autoencoders: nine methods behind one interface.",
    help_format="markdown",
    help_epilogue="Example: `gpin train digits`, or `gpin demo`\n\n"
    "Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted.",
    suppress_keyboard_interrupt=False,
)
app.meta.suppress_keyboard_interrupt = False
app.meta.group_parameters = Group("Every command")

Flag = Parameter(negative="", show_default=False)


class CheckError(Exception):
    """A check failed; the message says in one sentence what is wrong."""


# Parameters of several commands.
RunFolder = Annotated[Path, Parameter(help="The folder of the run, as printed by `gpin train`.")]
Out = Annotated[Path, Parameter(alias="-o")]
Device = Annotated[str | None, Parameter(help="The device, such as cpu or cuda; by default a GPU if there is one.")]
Columns = Annotated[str | None, Parameter(help="For a table: the columns to read, separated by commas.")]
Exclude = Annotated[str | None, Parameter(help="For a table: the columns to leave out, separated by commas.")]
Kinds = Annotated[
    str | None,
    Parameter(
        help="For a table: kinds of columns that differ from the detected ones, such as age=gaussian,visits=poisson; "
        "choose from gaussian, lognormal, bernoulli, categorical, poisson, negative_binomial."
    ),
]
Key = Annotated[str | None, Parameter(help="For an .npz archive of several arrays: the name of the array to read.")]
Size = Annotated[
    str | None, Parameter(help="For a folder of pictures: the height and width to resize them to, such as 64 or 64x48.")
]
Grey = Annotated[bool | None, Flag, Parameter(help="For a folder of pictures: read them in grey, with one channel.")]
SkipDamaged = Annotated[
    bool | None, Flag, Parameter(help="For a folder of pictures: leave out files that cannot be read, and list them.")
]

Given = Annotated[
    str | None,
    Parameter(
        help="Make the model conditional: what is given with each instance and not modelled. For a table its columns, "
        "separated by commas; for an .npz archive other arrays; for a folder of pictures folder, the subfolder of "
        "each; for a data set label."
    ),
]
Fixed = Annotated[
    list[str] | None,
    Parameter(
        name="--given",
        negative="",
        help="For a conditional model: the value of a condition for all instances, as name=value; several "
        "are separated by commas, or the option is repeated.",
    ),
]


def fixed_conditions(given: list[str] | None) -> dict[str, str]:
    """Conditions as a user types them; a comma separates two of them only if name= follows it.

    Example:
        >>> fixed_conditions(["species=setosa", "dose=1.5"])
        {'species': 'setosa', 'dose': '1.5'}
        >>> fixed_conditions(["species=setosa, dose=1.5,place=Bonn, Germany"])
        {'species': 'setosa', 'dose': '1.5', 'place': 'Bonn, Germany'}
    """
    found: dict[str, str] = {}
    for text in (part for several in given or () for part in re.split(r",(?=[^,=]+=)", several)):
        name, sign, value = text.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise InputError(f"expected `given` as name=value, such as species=setosa, got {text!r}")
        if name.strip() in found:
            raise InputError(f"the condition {name.strip()!r} is given twice: give each one once")
        found[name.strip()] = value.strip()
    return found


def source_options(
    columns: str | None,
    key: str | None,
    size: str | None,
    grey: bool | None,
    skip_damaged: bool | None = None,
    given: str | None = None,
    exclude: str | None = None,
    kinds: str | None = None,
) -> dict[str, Any]:
    """The options of a `SourceConfig` that were given.

    Example:
        >>> source_options("a, b", None, "64x48", None)
        {'columns': ['a', 'b'], 'size': [64, 48]}
    """
    from gpin.runs.settings import column_kinds, column_list, height_and_width

    options = {
        "columns": None if columns is None else column_list(columns),
        "key": key,
        "size": None if size is None else height_and_width(size),
        "grey": grey or None,
        "skip_damaged": skip_damaged or None,
        "given": None if given is None else column_list(given),
        "exclude": None if exclude is None else column_list(exclude),
        "kinds": None if kinds is None else column_kinds(kinds),
    }
    return {name: value for name, value in options.items() if value is not None}


# Output ----------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print a result on stdout as JSON, for scripts."""
    print(jsonlib.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def console() -> "Console":
    """A console on stdout, for results that people read."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


def tell(sentence: str) -> None:
    """Print a remark on stderr that the user should read besides the result."""
    print("gpin: " + " ".join(with_flags(sentence).split()), file=sys.stderr)


def with_flags(sentence: str) -> str:
    """A message of the library in the vocabulary of the command line: arguments in backticks become flags.

    Example:
        >>> with_flags("choose columns with `columns=a,b`, or set `latent_dim`")
        'choose columns with --columns a,b, or set --latent-dim'
        >>> with_flags("leave it out with `exclude=a b`")
        "leave it out with --exclude 'a b'"
        >>> with_flags("try `weight_decay=0.01`")
        'try --set weight_decay=0.01'
    """

    def flag(match: re.Match[str]) -> str:
        if match[1] in ASSIGNED:
            text = f"{match[1]}={'…' if match[2] is None else match[2]}"
            return f"--set {quoted(text) if QUOTED.search(text) else text}"
        value = "" if match[2] is None else " " + (quoted(match[2]) if QUOTED.search(match[2]) else match[2])
        return "--" + match[1].replace("_", "-") + value

    return re.sub(r"`([a-z_]+)(?:=([^`]*))?`", flag, sentence)


ASSIGNED = (
    *("batch_size", "learning_rate", "schedule", "clip_norm", "ema", "weight_decay", "augmentation", "kl_warmup"),
    "patience",
)
"""The options of training that have no flag of their own."""

QUOTED = re.compile(r"[^\w\s@%+=:,./…×-]|\s|^$")
"""What a value must be quoted for in a shell."""


def on_terminal() -> bool:
    """Whether stderr is a terminal: only then are progress and descriptions printed."""
    return sys.stderr is not None and sys.stderr.isatty()


def first_process() -> bool:
    """Whether this is the process, among those started by `torchrun`, that prints the result."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr if it is a terminal; yields a callback for the number of instances done and in total."""
    if not on_terminal():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def staged_progress(lines: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr if it is a terminal, for work in several stages.

    It yields a callback for the name of the present stage, the number of its parts done and their total.

    Arguments:
        lines: Whether to print a line when a stage begins, and one per minute, if stderr is not a terminal.
    """
    if not on_terminal():
        yield _stage_lines() if lines else lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        known: list[str] = []

        def update(what: str, done: int, total: int) -> None:
            if known != [what]:
                known[:] = [what]
                bar.reset(task, description=what)
            bar.update(task, completed=done, total=total if total > 1 else None)

        yield update


MINUTE = 60.0
"""Seconds between two lines about the same stage."""


def _stage_lines() -> Callable[[str, int, int], None]:
    """A callback that prints a line for every stage, and one per minute in a long one."""
    last: dict[str, float] = {}

    def update(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what not in last or now - last[what] >= MINUTE:
            amount = f": {done:,} of {total:,}" if what in last else ""
            print(f"gpin: {what}{amount}", file=sys.stderr, flush=True)
            last[what] = now

    return update


@contextmanager
def runs_progress(count: int, lines: bool = False) -> Iterator[Callable[[Mapping[str, str]], None] | None]:
    """A progress bar on stderr if it is a terminal: the number of finished trainings, and the running ones.

    It yields a callback for the state of every training by its description.

    Arguments:
        count: The number of trainings.
        lines: Whether to print a line for every training that is done or failed if stderr is not a terminal.
    """
    if not on_terminal() or not count:
        yield _state_lines() if lines else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=count)

        def update(states: Mapping[str, str]) -> None:
            now = [entry.partition(",")[0] for entry, state in states.items() if state == "running"]
            bar.update(task, completed=list(states.values()).count("done"), description=" · ".join(now[:3]))

        yield update


def _state_lines() -> Callable[[Mapping[str, str]], None]:
    """A callback that prints a line for every training that is done or failed since the call before."""
    known: dict[str, str] = {}

    def update(states: Mapping[str, str]) -> None:
        done = list(known.values()).count("done")
        for entry, state in states.items():
            if known and state in ("done", "failed") and known[entry] != state:
                done += (state == "done") - (known[entry] == "done")
                print(f"{state}: {entry} ({done} of {len(states)} done)", file=sys.stderr, flush=True)
        known.update(states)

    return update


def latent_dims(text: str) -> list[int]:
    """Numbers of latent dimensions as a user types them.

    Example:
        >>> latent_dims("2, 10")
        [2, 10]
    """
    from gpin._core.errors import InputError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"--latent-dim must be positive whole numbers such as 10,50, got {text!r}")
    return [int(part) for part in parts]


typed: list[str] = []
"""The arguments of the command that is running, without those of every command."""


def repeated(*, without: Sequence[str], **options: Any) -> str:
    """The command that is running, as one would type it again with other options.

    Arguments:
        without: What to leave out with its value: flags, and keys of key=value.
        options: The options to append; one whose value is a list is repeated.

    Example:
        >>> typed[:] = ["train", "my pictures", "--epochs", "5", "--set", "ema=0.9", "steps=3"]
        >>> repeated(without=["--epochs", "steps"], epochs=10)
        "gpin train 'my pictures' --set ema=0.9 --epochs 10"
    """
    flags = [name for name in without if name.startswith("--")]
    assigned = tuple(f"{name}=" for name in without)
    kept: list[str] = []
    tokens = iter(typed)
    for token in tokens:
        if token in flags:
            next(tokens, None)
        elif token == "--set" or token.startswith("--set="):
            value = next(tokens, "") if token == "--set" else token.removeprefix("--set=")
            kept += [] if value.startswith(assigned) else ["--set", value]
        elif not token.startswith(assigned):
            kept.append(token)
    pairs = [(name, one) for name, value in options.items() for one in (value if isinstance(value, list) else [value])]
    added = [text for name, value in pairs for text in (f"--{name}", str(value))]
    return " ".join(quoted(text) for text in ("gpin", *kept, *added))


def quoted(path: Any) -> str:
    """A path as one would type it in a shell."""
    import shlex

    return shlex.quote(str(path))


def show_pairs(pairs: Sequence[tuple[str, str]], file: TextIO | None = None) -> None:
    """Print names and values on stdout, or to another file, one pair per line, aligned; on a terminal, long values are
    wrapped below themselves."""
    import shutil
    from textwrap import wrap

    from rich.cells import cell_len

    width, columns = max(cell_len(name) for name, _ in pairs), shutil.get_terminal_size().columns
    stream = sys.stdout if file is None else file
    on_screen = stream is not None and stream.isatty()
    for name, value in pairs:
        lines = wrap(value, max(20, columns - width - 3), break_long_words=False) if on_screen else [value]
        print(name + " " * (width - cell_len(name) + 2) + ("\n" + " " * (width + 2)).join(lines), file=file)


def show_tables(tables: "list[ResultTable]") -> None:
    """Print tables, at full width if the output is not a terminal."""
    from gpin.report.tables import show

    screen = console()
    if not screen.is_terminal:
        screen.width = 10_000
    for one in tables:
        show(one, screen)


def show_sentences(text: str) -> None:
    """Print sentences on stdout, with lines that fit the terminal; nothing if the text is empty."""
    if text:
        console().print(text)


SAMPLES, MANY, COLDER = 100, 1000, 4
"""The default number of importance samples per instance, how many are advised where these are too few, and how many
times the temperatures of annealed chains."""

CHAINS = 32
"""The number of annealed chains that is advised, of which k̂ can be computed."""


def closer_estimate(
    what: Path | Sequence[Any], proposal: str, samples: int, temperatures: int | None = None, **others: Any
) -> str:
    """The command whose log-likelihood comes closer to log p(x) than one with these options.

    Refined proposals gain most, then more samples, then annealed chains.

    Arguments:
        what: The folder of the run, or of several runs and new data.
        proposal: "encoder", "refined" or "annealed".
        samples: The number of importance samples, or of annealed chains.
        temperatures: The number of temperatures of annealed chains.
        others: Further options to repeat, except those that are None; a list is repeated item by item.

    Example:
        >>> closer_estimate(Path("runs/a"), "encoder", 100, part=None, limit=50)
        'gpin evaluate runs/a --proposal refined --limit 50'
        >>> closer_estimate(Path("runs/a"), "refined", 100)
        'gpin evaluate runs/a --proposal refined --samples 1000'
        >>> closer_estimate(Path("runs/a"), "refined", 1000)
        'gpin evaluate runs/a --estimator annealed --chains 32'
    """
    chosen: dict[str, Any]
    if proposal == "encoder":
        chosen = {"proposal": "refined", "samples": samples if samples > SAMPLES else None}
    elif proposal == "refined" and samples < MANY:
        chosen = {"proposal": "refined", "samples": MANY}
    elif temperatures is None:
        chosen = {"estimator": "annealed", "chains": CHAINS}
    else:
        chains = max(CHAINS, samples)
        chosen = {"estimator": "annealed", "temperatures": COLDER * temperatures, "chains": chains}
    options = {**chosen, **others}.items()
    pairs = ((name, value) for name, some in options for value in (some if isinstance(some, list) else [some]) if value)
    given = (f"--{name}" if value is True else f"--{name} {quoted(value)}" for name, value in pairs)
    words = [what] if isinstance(what, Path) else what
    return " ".join(["gpin evaluate", *map(quoted, words), *given])


def number(value: float | None, digits: int = 2) -> str:
    """A number formatted for people.

    Example:
        >>> number(-1234.567)
        '−1,234.57'
    """
    return "unknown" if value is None else f"{value:,.{digits}f}".replace("-", "−")
