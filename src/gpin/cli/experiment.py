"""`gpin experiment`: the paper's tables and figures, run, watched and written."""
# ruff: noqa: D417  (what several commands take is described once)

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from gpin.cli.base import CheckError, Flag, Out, app, console, on_terminal, print_json, quoted, tell

if TYPE_CHECKING:
    from rich.console import Console

    from gpin.experiments.execution.store import Store
    from gpin.experiments.protocols import Entry, Experiment, Protocol

experiment = App(
    name="experiment",
    help="Rerun the paper's tables and figures, small on a desk or whole on a cluster; resumable.",
    help_epilogue="Example: `gpin experiment run mnist`, then `gpin experiment table mnist`",
    sort_key=9,
)
app.command(experiment)

Name = Annotated[
    str,
    Parameter(
        help="digits, mnist, omniglot, cifar10, svhn or celeba: test log-likelihoods; fc-decoder: with a fully "
        "connected decoder, and with VLAE; inference-time; uncertainty: a latent plane, and the true posterior."
    ),
]
ProtocolName = Annotated[
    Literal["desk", "paper"], Parameter(help="desk takes about an hour a table on two cores; paper is the paper's own.")
]
StoreFolder = Annotated[Path, Parameter(help="Folder of results.")]
STORE = Path("experiments")


@Parameter(name="*")
@dataclass(frozen=True)
class Choice:
    """Which runs are meant: those of a protocol, or some of them, in a store."""

    protocol: ProtocolName = "desk"
    store: StoreFolder = STORE
    latent_dim: Annotated[
        str | None, Parameter(help="Latent dimensions, with commas between, instead of the protocol's.")
    ] = None
    rows: Annotated[
        str | None, Parameter(help="Rows, with commas between, such as vae,gp,sa-4, instead of the protocol's.")
    ] = None
    splits: Annotated[int | None, Parameter(help="Random splits of the data, instead of the protocol's.")] = None
    initialisations: Annotated[
        int | None,
        Parameter(
            help="Trainings of each split, of which the best on validation data counts, instead of the protocol's."
        ),
    ] = None

    def of(self, name: str) -> "_Chosen":
        """Those of an experiment."""
        from gpin._core.errors import InputError
        from gpin._core.inputs import whole_number
        from gpin.experiments.execution.store import Store
        from gpin.experiments.protocols import experiment_named, protocol_named

        one, how = experiment_named(name), protocol_named(self.protocol)
        if not one.trained and (given := list(self._some())):
            raise InputError(
                f"{name} trains nothing, and has its own rows and latent dimensions: it takes no {given[0]}"
            )
        counts = {"splits": self.splits, "initialisations": self.initialisations}
        how = how.model_copy(
            update={what: whole_number(count, what) for what, count in counts.items() if count is not None}
        )
        parts = None if self.latent_dim is None else [part.strip() for part in self.latent_dim.split(",")]
        if parts is not None and not all(part.isdecimal() and int(part) for part in parts):
            raise InputError(f"--latent-dim must be positive whole numbers such as 10,50, got {self.latent_dim!r}")
        dims = None if parts is None else list(dict.fromkeys(int(part) for part in parts))
        names = None if self.rows is None else list(dict.fromkeys(part.strip() for part in self.rows.split(",")))
        return _Chosen(one, how, one.entries(how, dims, names), Store(self.store))

    def flags(self) -> str:
        """What must be typed to say the same again.

        Example:
            >>> Choice(store=Path("my results"), rows="vae,gp").flags()
            " --store 'my results' --rows vae,gp"
        """
        where = {
            "--protocol": self.protocol if self.protocol != "desk" else None,
            "--store": self.store if self.store != STORE else None,
        }
        given = {**{name: value for name, value in where.items() if value is not None}, **self._some()}
        return "".join(f" {name} {quoted(value)}" for name, value in given.items())

    def _some(self) -> dict[str, Any]:
        """What is otherwise than the protocol says, by its flag."""
        names = ("latent_dim", "rows", "splits", "initialisations")
        given = {"--" + name.replace("_", "-"): getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


ALL = Choice()


@dataclass(frozen=True)
class _Chosen:
    """An experiment under a protocol, in a store."""

    experiment: "Experiment"
    protocol: "Protocol"
    entries: "list[Entry]"
    store: "Store"


@experiment.command(
    sort_key=1, help_epilogue="Example: `gpin experiment run mnist --workers 2`, or with `--protocol paper --dry-run`"
)
def run(
    name: Name,
    /,
    *,
    choice: Choice = ALL,
    executor: Literal["local", "slurm", "ray"] = "local",
    workers: int | None = None,
    threads: int = 1,
    address: str | None = None,
    slurm: Annotated[list[str] | None, Parameter(negative="")] = None,
    dry_run: Annotated[bool, Flag] = False,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Train and score every run of a table that is not done yet.

    Workers and this command may die or be stopped at any time: the same command again finishes what is left and repeats
    nothing. Several commands may work on one store, also from several machines that see it.

    Parameters
    ----------
    executor
        Where the workers run: processes of this machine, an array of Slurm jobs, or a Ray cluster.
    workers
        How many at a time. [default: the number of cores]
    threads
        Of each worker.
    address
        Of a Ray cluster, such as auto; by default one of this machine alone.
    slurm
        More for Slurm as key=value, again and again, such as slurm_partition=gpu or timeout_min=600.
    dry_run
        Say what it would take, from a measured step of each method, and do nothing.
    json
        Print what was done, or what it would take, as JSON.
    """
    import os

    from gpin._core.errors import InputError
    from gpin._core.inputs import whole_number
    from gpin.experiments.analysis.gathering import check_data
    from gpin.experiments.execution.executors import EXECUTORS

    chosen = choice.of(name)
    count = whole_number(os.cpu_count() or 1 if workers is None else workers, "workers")
    threads = whole_number(threads, "threads")
    if address is not None and executor != "ray":
        raise InputError("--address is that of a Ray cluster: it goes with --executor ray")
    if slurm and executor != "slurm":
        raise InputError("--slurm is for Slurm: it goes with --executor slurm")
    again = f"gpin experiment table {name}{choice.flags()}"
    if not chosen.experiment.trained:
        others = {
            "--dry-run": dry_run or None,
            "--workers": workers,
            "--executor": None if executor == "local" else executor,
        }
        _only_timed(chosen, name, threads, [flag for flag, value in others.items() if value is not None])
        print_json({"measured": True, "store": str(choice.store)}) if json else print(f"measured: {again}")
        return
    jobs = [entry.job for entry in chosen.entries]
    missing = chosen.store.missing(jobs)
    if dry_run:
        open_jobs = {job.identity for job in missing}
        entries = [entry for entry in chosen.entries if entry.job.identity in open_jobs]
        _say_expense(chosen, entries, count, threads, json)
        return
    check_data(chosen.store, chosen.entries, {job.data for job in missing})  # better once now than by every worker
    if chosen.experiment.time_dims:
        _measure_times(chosen, threads)
    if missing:
        for job in missing:
            chosen.store.forget_failure(job)
        with _watching(chosen) as watch:
            options: dict[str, Any] = {"address": address, "options": _options(slurm or [])}
            EXECUTORS[executor](chosen.store, jobs, min(count, len(missing)), threads, watch, **options)
    failed = {str(entry): chosen.store.failure(entry.job) for entry in chosen.entries}
    reasons = {entry: reason for entry, reason in failed.items() if reason is not None}
    done = len(jobs) - len(chosen.store.missing(jobs))
    if json:
        print_json({"runs": len(jobs), "done": done, "failed": reasons, "store": str(choice.store)})
    else:
        print(f"{done} of {len(jobs)} runs done in {choice.store}: {again}")
    for entry, reason in reasons.items():
        tell(f"{entry}: {reason}")
    if done < len(jobs):
        raise CheckError(f"{len(jobs) - done} of {len(jobs)} runs are not done; the same command tries them again")


@experiment.command(sort_key=2, help_epilogue="Example: `gpin experiment status mnist`")
def status(
    name: Name,
    /,
    *,
    choice: Choice = ALL,
    json: Annotated[bool, Flag] = False,
) -> None:
    """How far an experiment is: runs that are done, in somebody's hands, failed or waiting.

    Parameters
    ----------
    json
        Print the state of every run as JSON.
    """
    chosen = choice.of(name)
    if not chosen.experiment.trained:
        _say_whether_timed(chosen, name, json)
        return
    states = {str(entry): chosen.store.state(entry.job) for entry in chosen.entries}
    if json:
        print_json({"store": str(choice.store), "runs": states})
        return
    counts = {state: list(states.values()).count(state) for state in ("done", "running", "failed", "waiting")}
    print(
        f"{name}, {choice.protocol} protocol, in {choice.store}: "
        + ", ".join(f"{n} {state}" for state, n in counts.items())
    )
    for entry in chosen.entries:
        if states[str(entry)] in ("running", "failed"):
            reason = chosen.store.failure(entry.job)
            print(f"  {states[str(entry)]}: {entry}" + (f": {reason}" if reason else ""))


@experiment.command(sort_key=3, help_epilogue="Example: `gpin experiment table mnist --format latex -o mnist.tex`")
def table(
    name: Name,
    /,
    *,
    choice: Choice = ALL,
    format: Literal["markdown", "latex", "html"] | None = None,  # noqa: A002
    out: Out | None = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """The table of an experiment, from what is done so far, with the paper's own numbers beside ours.

    Parameters
    ----------
    format
        How it is written; by default as the ending of the file says, or for a terminal.
    out
        The file to write; by default it is printed.
    json
        Print the numbers in full as JSON.
    """
    from gpin._core.errors import InputError
    from gpin.experiments.analysis.results import result_record, result_tables
    from gpin.experiments.analysis.tables import FORMATS, show

    if json and (format or out):
        raise InputError("--json prints numbers for a script: it goes neither with --format nor with --out")
    chosen = choice.of(name)
    tables, gathered = result_tables(chosen.experiment, chosen.protocol, chosen.store, chosen.entries)
    if not tables:
        again = f"gpin experiment run {name}{choice.flags()}"
        raise InputError(f"{choice.store} has no result of {name} yet: {again}")
    if gathered.done < len(chosen.entries):
        tell(f"{gathered.done} of {len(chosen.entries)} runs are done; the rest is missing from the table")
    if json:
        print_json(result_record(chosen.experiment, chosen.protocol, gathered))
        return
    if format is None and out is None:
        for one in tables:
            show(one, _screen())
        return
    text = "\n".join(FORMATS[_format(format, out)](one) for one in tables)
    if out is None:
        print(text)
        return
    _write(out, text.encode())


@experiment.command(sort_key=4, help_epilogue="Example: `gpin experiment figure uncertainty -o uncertainty.png`")
def figure(
    name: Name,
    /,
    *,
    out: Out,
    protocol: ProtocolName = "desk",
    store: StoreFolder = STORE,
    row: str = "gp",
) -> None:
    """The figure of an experiment: of uncertainty, six instances with their true posteriors.

    Parameters
    ----------
    out
        The picture to write, .png or .svg.
    row
        Whose encoder.
    """
    from gpin._core.errors import InputError
    from gpin.experiments.analysis.figures import uncertainty_figure
    from gpin.experiments.protocols import experiment_named
    from gpin.report import plots

    if not experiment_named(name).grid:
        raise InputError(f"{name} has no figure, only tables: gpin experiment table {name}; uncertainty has one")
    if out.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"cannot write a figure to {out}: its name must end in .png or .svg")
    chosen = Choice(protocol, store, rows=row).of(name)
    drawn = uncertainty_figure(chosen.store, chosen.entries, row)
    _write(out, plots.png(drawn) if out.suffix.lower() == ".png" else plots.standalone_svg(drawn))


@experiment.command(sort_key=5, help_epilogue="Example: `gpin experiment report -o experiments.html`")
def report(
    *,
    out: Out = Path("experiments.html"),
    protocol: ProtocolName = "desk",
    store: StoreFolder = STORE,
) -> None:
    """One page with all tables and figures of a store.

    Parameters
    ----------
    out
        The page to write; nothing else is needed to read it.
    """
    from gpin.experiments.analysis.page import compose
    from gpin.experiments.execution.store import Store
    from gpin.experiments.protocols import protocol_named
    from gpin.runs.outputs import check_output

    check_output(out, "a page")
    _write(out, compose(Store(store), protocol_named(protocol)).html().encode())


# What they share -------------------------------------------------------------------------------------


def _measure_times(chosen: _Chosen, threads: int) -> None:
    """Time inference, unless that was done; only while nothing else runs is it worth something."""
    from gpin.experiments.analysis.times import measure_times, read_times, write_times

    one, protocol = chosen.experiment, chosen.protocol
    found = read_times(chosen.store, one, protocol)
    if found is None or found["threads"] != threads:
        told = (
            (lambda what: print(f"timing inference: {what}", file=sys.stderr)) if on_terminal() else lambda what: None
        )
        write_times(chosen.store, one, protocol, measure_times(one, protocol, threads, told))


def _screen() -> "Console":
    """For tables; as wide as they are where it is no screen but a file or a pipe."""
    screen = console()
    if not screen.is_terminal:
        screen.width = 10_000
    return screen


def _write(out: Path, content: bytes) -> None:
    from gpin._core.files import write_whole

    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, content)
    print(f"wrote {out}")


def _format(asked: str | None, out: Path | None) -> str:
    """How a table is written: as asked, or as the ending of its file says."""
    from gpin._core.errors import InputError

    endings = {".md": "markdown", ".tex": "latex", ".html": "html"}
    ending = None if out is None else endings.get(out.suffix.lower())
    if asked is None and ending is None:
        raise InputError(f"how is {out} to be written? Its name may end in {', '.join(endings)}, or say --format")
    if asked is not None and ending not in (None, asked):
        raise InputError(f"{out} would not hold {asked}: leave out --format, or choose another ending")
    return asked or ending or ""


def _only_timed(chosen: _Chosen, name: str, threads: int, others: list[str]) -> None:
    from gpin._core.errors import InputError

    if others:
        raise InputError(f"{name} trains nothing and is measured here: it takes no {others[0]}")
    _measure_times(chosen, threads)


def _say_whether_timed(chosen: _Chosen, name: str, json: bool) -> None:
    from gpin.experiments.analysis.times import read_times

    measured = read_times(chosen.store, chosen.experiment, chosen.protocol) is not None
    if json:
        print_json({"store": str(chosen.store.root), "measured": measured})
    else:
        word = "measured" if measured else "not yet measured"
        print(f"{name}, {chosen.protocol.name} protocol, in {chosen.store.root}: {word}")


def _options(pairs: list[str]) -> dict[str, Any]:
    """What is said to Slurm, by name; values are JSON where they can be, else text."""
    from gpin._core.config import json_or_text
    from gpin._core.errors import InputError

    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise InputError(f"--slurm takes key=value, such as slurm_partition=gpu, got {pair!r}")
        options[key] = json_or_text(text)
    return options


@contextmanager
def _watching(chosen: _Chosen) -> Iterator[Callable[[], None]]:
    """A bar on stderr where a person watches: how many runs are done, and what is being run."""
    if not on_terminal():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(chosen.entries))

        def watch() -> None:
            states = [(entry, chosen.store.state(entry.job)) for entry in chosen.entries]
            now = [f"{entry.data} d={entry.latent_dim} {entry.row}" for entry, state in states if state == "running"]
            bar.update(task, completed=sum(state == "done" for _, state in states), description=" · ".join(now[:3]))

        yield watch


def _say_expense(chosen: _Chosen, entries: "list[Entry]", workers: int, threads: int, json: bool) -> None:
    from gpin.experiments.analysis.tables import show
    from gpin.experiments.execution.cost import expense

    if on_terminal():
        print("measuring a step of every method …", file=sys.stderr)
    found = expense(entries, workers, threads)
    if json:
        print_json(found.record())
    else:
        show(found.table(chosen.experiment.title), _screen())
