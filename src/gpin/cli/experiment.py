"""`gpin experiment`: run the paper's experiments, monitor them, and write their tables and figures."""
# ruff: noqa: D417  (the parameters of `Choice` are described there)

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from gpin.cli.base import (
    CheckError,
    Flag,
    Out,
    app,
    latent_dims,
    on_terminal,
    print_json,
    quoted,
    runs_progress,
    show_tables,
    tell,
)

if TYPE_CHECKING:
    from gpin.experiments import Study

experiment = App(
    name="experiment",
    help="Reproduce the paper's tables and figures, at desk scale or in full. Interrupted experiments can be resumed.",
    help_epilogue="Example: `gpin experiment run mnist`, then `gpin experiment table mnist`",
    sort_key=9,
)
app.command(experiment)

Name = Annotated[
    str,
    Parameter(
        help="digits, mnist, omniglot, cifar10, svhn or celeba: test log-likelihoods; fc-decoder: the same with a "
        "fully connected decoder, including VLAE; inference-time: how long inference takes; uncertainty: a comparison "
        "with the true posterior in two latent dimensions."
    ),
]
ProtocolName = Annotated[
    Literal["desk", "long", "paper"],
    Parameter(
        help="desk takes one to two hours per table on two cores; long trains on all images of mnist or omniglot for "
        "40 epochs; paper follows the paper."
    ),
]
StoreFolder = Annotated[Path, Parameter(help="The folder of the results.")]
STORE = Path("experiments")


@Parameter(name="*")
@dataclass(frozen=True)
class Choice:
    """The runs that a command applies to: all or some of a protocol, in a store."""

    protocol: ProtocolName = "desk"
    store: StoreFolder = STORE
    latent_dim: Annotated[
        str | None, Parameter(help="Latent dimensions, separated by commas, instead of the protocol's.")
    ] = None
    rows: Annotated[
        str | None,
        Parameter(
            help="Rows of the table, such as vae,gp,sa-4, or names of methods, separated by commas, instead of the "
            "protocol's."
        ),
    ] = None
    splits: Annotated[
        int | None, Parameter(help="The number of random splits of the data, instead of the protocol's.")
    ] = None
    initialisations: Annotated[
        int | None,
        Parameter(
            help="The number of trainings per split, instead of the protocol's. Only the one that is best on "
            "validation data counts."
        ),
    ] = None
    temperatures: Annotated[
        int | None,
        Parameter(
            help="Score by annealed chains with this number of temperatures too, such as 100, which splits the "
            "inference gap. These runs are others than those without."
        ),
    ] = None

    def study(self, name: str) -> "Study":
        """The study of an experiment with these runs."""
        from gpin.experiments import Study

        return Study(
            name,
            self.protocol,
            self.store,
            latent_dim=None if self.latent_dim is None else latent_dims(self.latent_dim),
            rows=None if self.rows is None else [part.strip() for part in self.rows.split(",")],
            splits=self.splits,
            initialisations=self.initialisations,
            temperatures=self.temperatures,
        )

    def flags(self) -> str:
        """The flags that make the same choice.

        Example:
            >>> Choice(store=Path("my results"), rows="vae,gp").flags()
            " --store 'my results' --rows vae,gp"
        """
        given = {name: value for name, value in vars(self).items() if value != getattr(ALL, name)}
        return "".join(f" --{name.replace('_', '-')} {quoted(value)}" for name, value in given.items())


ALL = Choice()


@experiment.command(
    sort_key=1, help_epilogue="Example: `gpin experiment run mnist --workers 2`, or with `--protocol paper --dry-run`"
)
def run(
    name: Name,
    /,
    *,
    choice: Choice = ALL,
    executor: Literal["local", "serial", "slurm", "ray"] = "local",
    workers: int | None = None,
    threads: int = 1,
    address: str | None = None,
    slurm: Annotated[list[str] | None, Parameter(negative="")] = None,
    dry_run: Annotated[bool, Flag] = False,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Train and score all runs of an experiment that are not done yet.

    Workers and this command may be stopped at any time: the same command finishes what is left and repeats nothing.
    Several commands may work on one store at once, also from several machines that share it.

    Parameters
    ----------
    executor
        Where runs are trained: in processes on this machine, in this process, in an array of Slurm jobs, or on Ray.
    workers
        The number of runs to train at the same time. [default: the number of cores]
    threads
        The number of threads per worker.
    address
        The address of a Ray cluster, such as auto; by default Ray is started on this machine.
    slurm
        More options for Slurm as key=value, such as slurm_partition=gpu or timeout_min=600; may be repeated.
    dry_run
        Estimate the time it would take from a measured step of each method, without running anything.
    json
        Print the result, or the estimate, as JSON.
    """
    study = choice.study(name)
    if dry_run:
        _show_cost(study, workers, threads, json)
        return
    options = slurm_options(slurm or [])
    with runs_progress(len(study.entries)) as on_progress:
        done = study.run(
            executor,
            workers,
            threads,
            address=address,
            slurm=options,
            on_progress=on_progress,
            on_timing=lambda what: _say(f"timing inference: {what}"),
        )
    again = f"gpin experiment table {name}{choice.flags()}"
    if not study.experiment.trained:
        print_json({"measured": True, "store": str(choice.store)}) if json else print(f"measured; next: {again}")
        return
    if json:
        print_json({**vars(done), "store": str(choice.store)})
    else:
        print(f"{done.done} of {done.runs} runs done in {choice.store}; next: {again}")
    for entry, reason in done.failed.items():
        tell(f"{entry}: {reason}")
    if done.done < done.runs:
        raise CheckError(
            f"{done.runs - done.done} of {done.runs} runs are not done: run the same command to try them again"
        )


@experiment.command(sort_key=2, help_epilogue="Example: `gpin experiment status mnist`")
def status(
    name: Name,
    /,
    *,
    choice: Choice = ALL,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Show how many runs of an experiment are done, running, failed or waiting.

    Parameters
    ----------
    json
        Print the state of every run as JSON.
    """
    study = choice.study(name)
    head = f"{name}, {choice.protocol} protocol, in {choice.store}: "
    if not study.experiment.trained:
        if json:
            print_json({"store": str(choice.store), "measured": study.timed})
        else:
            print(head + ("measured" if study.timed else "not yet measured"))
        return
    states = study.status()
    if json:
        print_json({"store": str(choice.store), "runs": states})
        return
    counts = {state: list(states.values()).count(state) for state in ("done", "running", "failed", "waiting")}
    print(head + ", ".join(f"{n} {state}" for state, n in counts.items()))
    reasons = study.failures()
    for entry, state in states.items():
        if state in ("running", "failed"):
            print(f"  {state}: {entry}" + (f": {reasons[entry]}" if entry in reasons else ""))


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
    """Show the table of an experiment, from the runs done so far, with the paper's numbers for comparison.

    Parameters
    ----------
    format
        The format; by default that of the file's extension, or a table for the terminal.
    out
        The file to write; by default the table is printed.
    json
        Print the numbers in full precision as JSON.
    """
    from gpin._core.errors import InputError

    if json and (format or out):
        raise InputError("--json prints numbers for scripts: it cannot be combined with --format or --out")
    study = choice.study(name)
    tables = study.tables()
    if not tables:
        again = f"gpin experiment run {name}{choice.flags()}"
        raise InputError(f"{choice.store} has no results of {name} yet: run {again}")
    done, runs = study.results.done, len(study.entries)
    if done < runs:
        tell(f"{done} of {runs} runs are done; the rest is missing from the table")
    if json:
        print_json(study.record())
    elif format is None and out is None:
        show_tables(tables)
    elif out is None:
        print(study.text(format or ""))
    else:
        print(f"wrote {study.write_tables(out, format)}")


@experiment.command(sort_key=4, help_epilogue="Example: `gpin experiment figure uncertainty -o uncertainty.png`")
def figure(
    name: Name,
    /,
    *,
    out: Out,
    choice: Choice = ALL,
    row: str | None = None,
) -> None:
    """Write the figure of an experiment: for uncertainty, six instances with their true posteriors; for the others, the
    validation scores over epochs and over time.

    Parameters
    ----------
    out
        The figure to write, .png or .svg.
    row
        The row whose encoder is shown, for uncertainty. [default: gp]
    """
    from gpin._core.errors import InputError

    study = (choice if row is None else replace(choice, rows=row)).study(name)
    if row is not None and not study.experiment.grid:
        raise InputError(f"--row applies to uncertainty: choose the curves of {name} with --rows")
    print(f"wrote {study.write_figure(out)}")


@experiment.command(sort_key=5, help_epilogue="Example: `gpin experiment report -o experiments.html`")
def report(
    *,
    out: Out = Path("experiments.html"),
    protocol: ProtocolName = "desk",
    store: StoreFolder = STORE,
) -> None:
    """Write one page with all tables and figures of a store.

    Parameters
    ----------
    out
        The HTML file to write, which is self-contained.
    """
    from gpin.experiments import write_report

    print(f"wrote {write_report(out, protocol, store)}")


# What the commands share -----------------------------------------------------------------------------


def slurm_options(pairs: list[str]) -> dict[str, Any]:
    """Options for Slurm by name; values are parsed as JSON if possible, and are text otherwise."""
    from gpin._core.config import json_or_text
    from gpin._core.errors import InputError

    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise InputError(f"--slurm takes key=value, such as slurm_partition=gpu, got {pair!r}")
        options[key] = json_or_text(text)
    return options


def _show_cost(study: "Study", workers: int | None, threads: int, json: bool) -> None:
    _say("measuring a step of every method …")
    cost = study.estimate_cost(workers, threads)
    if json:
        print_json(cost.record())
    else:
        show_tables([cost.table(study.experiment.title)])


def _say(what: str) -> None:
    """Print what is going on, if stderr is a terminal."""
    if on_terminal():
        print(what, file=sys.stderr)
