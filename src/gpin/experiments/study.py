"""Studies: an experiment under a protocol, in a store, which can be run, monitored and shown."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpin._core.errors import InputError
from gpin._core.files import make_folder, write_whole
from gpin._core.inputs import whole_number
from gpin.data import open_source
from gpin.experiments.analysis.results import Results, experiment_record, experiment_times
from gpin.experiments.analysis.tables import experiment_tables
from gpin.experiments.execution.cost import CostEstimate, estimate_cost
from gpin.experiments.execution.dispatch import Execution
from gpin.experiments.execution.store import State, Store
from gpin.experiments.execution.timing import measure_times, read_times, write_times
from gpin.experiments.protocols import (
    Experiment,
    Protocol,
    experiment_named,
    protocol_named,
    variant_named,
)
from gpin.report.tables import FORMATS, ResultTable
from gpin.runs.outputs import check_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RunSummary", "Study", "write_report"]

ENDINGS = {".md": "markdown", ".tex": "latex", ".html": "html"}
"""The formats of tables by file extension."""

OnProgress = Callable[[Mapping[str, State]], None]


@dataclass(frozen=True)
class RunSummary:
    """The outcome of `Study.run`.

    Attributes:
        runs: The number of trainings of the study.
        done: The number of them that are done.
        failed: Why trainings failed, by the description of the run.
    """

    runs: int
    done: int
    failed: dict[str, str]


class Study:
    """An experiment under a protocol, in a store.

    Example:
        >>> study = Study("digits", rows=["vae", "gp"], latent_dim=[2], splits=1)
        >>> [str(entry) for entry in study.entries]
        ['digits d=2 vae, split 0, start 0', 'digits d=2 gp, split 0, start 0']

    Arguments:
        experiment: The name of an experiment, one of `EXPERIMENTS`, or an `Experiment` of your own.
        protocol: The name of a protocol, one of `PROTOCOLS`, or a `Protocol` of your own.
        store: The folder of the results; it is created when something is written.
        latent_dim: Latent dimensions instead of the protocol's.
        rows: Names of variants, such as "sa-4", or of any registered methods, instead of the protocol's.
        splits: The number of random splits of the data instead of the protocol's.
        initialisations: The number of trainings per split, of which the best on validation data counts, instead of the
            protocol's.
        temperatures: Score every instance by annealed chains with this number of temperatures too, which splits the
            inference gap; by default the protocol's scores. The runs are others than those without.
    """

    def __init__(
        self,
        experiment: str | Experiment,
        protocol: str | Protocol = "desk",
        store: str | os.PathLike[str] = "experiments",
        *,
        latent_dim: int | Sequence[int] | None = None,
        rows: str | Sequence[str] | None = None,
        splits: int | None = None,
        initialisations: int | None = None,
        temperatures: int | None = None,
    ) -> None:
        self.experiment = experiment_named(experiment) if isinstance(experiment, str) else experiment
        protocol = protocol_named(protocol) if isinstance(protocol, str) else protocol
        given = {"latent_dim": latent_dim, "splits": splits, "initialisations": initialisations}
        given["temperatures"] = temperatures
        if not self.experiment.trained:
            for name, value in given.items():
                if value is not None:
                    raise InputError(f"{self.experiment.name} only measures times: it takes no `{name}`")
        counts = {"splits": splits, "initialisations": initialisations}
        self.protocol = protocol.model_copy(
            update={name: whole_number(count, name) for name, count in counts.items() if count is not None}
        )
        if temperatures is not None:
            scoring = self.protocol.scoring.model_copy(
                update={"temperatures": whole_number(temperatures, "temperatures")}
            )
            self.protocol = self.protocol.model_copy(update={"scoring": scoring})
        dims = _listed(latent_dim, int)
        dims = None if dims is None else [whole_number(dim, "latent_dim") for dim in dims]
        names = _listed(rows, str)
        self.store = Store(store)
        self.entries = self.experiment.entries(self.protocol, dims, names)
        self.rows = tuple(names or self.experiment.rows[self.protocol.name])

    @property
    def _jobs(self) -> list[Any]:
        """The different trainings; rows that differ only in their number of steps share one."""
        return list({entry.job.identity: entry.job for entry in self.entries}.values())

    # Execution ---------------------------------------------------------------------------------------

    def run(
        self,
        executor: str = "local",
        workers: int | None = None,
        threads: int = 1,
        *,
        address: str | None = None,
        slurm: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
        on_timing: Callable[[str], None] = lambda what: None,
    ) -> RunSummary:
        """Train and score every run that is not done yet, and time inference if the experiment asks for it.

        Workers and this process may be stopped at any time: the same call finishes what is left and repeats nothing.
        Several processes, also on several machines that share the store, may work on it at once. Runs that failed
        before are tried again. An experiment that only measures times does so in this process.

        Arguments:
            executor: "local" runs processes on this machine, "slurm" an array of Slurm jobs, "ray" tasks on a Ray
                cluster, and "serial" one run after the other in this process, where methods that you registered are
                available too.
            workers: The number of runs to train at the same time; by default the number of cores, and 1 for "serial".
            threads: The number of threads per worker.
            address: The address of a Ray cluster, such as "auto"; by default Ray is started on this machine.
            slurm: More options for Slurm, such as {"slurm_partition": "gpu", "timeout_min": 600}.
            on_progress: Called repeatedly with the state of every run.
            on_timing: Called with the data set and latent dimension before inference is timed.
        """
        where = Execution.checked(executor, workers, threads, address=address, slurm=slurm)
        if not self.experiment.trained:
            given = {"executor": None if executor == "local" else executor, "workers": workers}
            for name, value in given.items():
                if value is not None:
                    raise InputError(
                        f"{self.experiment.name} trains nothing and is measured in this process: it takes no `{name}`"
                    )
        jobs = self._jobs
        missing = self.store.missing(jobs)
        if self.experiment.trained:
            where.check_methods([variant_named(row).method for row in self.rows])
        self._check_data({job.data for job in missing})  # once here rather than in every worker
        if self.experiment.time_dims:
            self._time_inference(where.threads, on_timing)
        if missing:
            where.run(self.store, jobs, (lambda: None) if on_progress is None else (lambda: on_progress(self.status())))
            self.__dict__.pop("results", None)  # they have changed
        return RunSummary(len(jobs), len(jobs) - len(self.store.missing(jobs)), self.failures())

    def estimate_cost(self, workers: int | None = None, threads: int = 1) -> CostEstimate:
        """Estimate the cost of the runs that are not done yet from a measured step of each variant; nothing is run.

        Arguments:
            workers: The number of runs to train at the same time; by default the number of cores.
            threads: The number of threads per worker.
        """
        if not self.experiment.trained:
            raise InputError(f"{self.experiment.name} trains nothing: there is no cost to estimate")
        where = Execution.checked("local", workers, threads)
        missing = {job.identity for job in self.store.missing(self._jobs)}
        trainings = {entry.job.identity: entry for entry in self.entries if entry.job.identity in missing}
        return estimate_cost(list(trainings.values()), where.workers, where.threads)

    def status(self) -> dict[str, State]:
        """The state of every run by its description: "done", "running", "failed" or "waiting"."""
        return {str(entry): self.store.state(entry.job) for entry in self.entries}

    def failures(self) -> dict[str, str]:
        """The reasons why runs failed, by the description of the run."""
        found = {str(entry): self.store.failure(entry.job) for entry in self.entries}
        return {entry: reason for entry, reason in found.items() if reason is not None}

    @property
    def timed(self) -> bool:
        """Whether the inference times of all rows were measured."""
        return self._measured() is not None

    def _measured(self) -> dict[str, Any] | None:
        found = read_times(self.store, self.experiment, self.protocol, self.rows)
        complete = found is not None and all(set(self.rows) <= set(column["rows"]) for column in found["columns"])
        return found if complete else None

    def _time_inference(self, threads: int, tell: Callable[[str], None]) -> None:
        """Time inference before anything else runs, unless it was timed with the same number of threads."""
        found = self._measured()
        if found is None or found["threads"] != threads:
            times = measure_times(self.experiment, self.protocol, self.rows, threads, tell)
            write_times(self.store, self.experiment, self.protocol, self.rows, times)

    def _check_data(self, needed: set[str]) -> None:
        """Raise InputError if the images differ from those that the store has results for."""
        known = Results(self.store, self.entries).fingerprints
        for data in dict.fromkeys(entry.data for entry in self.entries):
            try:
                source = open_source(data)
            except InputError:
                if data in needed:
                    raise
                continue
            if data in known and known[data] != {source.fingerprint()}:
                raise InputError(
                    f"{self.store.root} has results for other images under the name {data}: use another `store`, "
                    "or move those results away"
                )

    # Analysis ----------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> Results:
        """The results in the store, which are read once."""
        return Results(self.store, self.entries)

    def tables(self) -> list[ResultTable]:
        """The tables of the runs done so far, with the paper's numbers for comparison; empty if nothing is done."""
        return experiment_tables(self.experiment, self.protocol, self.results, self._times())

    def record(self) -> dict[str, Any]:
        """The numbers of the tables in full precision, ready for JSON; unknown values are None."""
        return experiment_record(self.experiment, self.protocol, self.results, self._times())

    def _times(self) -> dict[str, Any] | None:
        return experiment_times(self.experiment, self.protocol, self.results, self.rows)

    def text(self, format: str = "markdown") -> str:  # noqa: A002
        """All tables as one text.

        Arguments:
            format: "markdown", "latex" or "html".
        """
        if format not in FORMATS:
            raise InputError(f"there is no format {format!r}: choose one of {', '.join(FORMATS)}")
        return "\n".join(FORMATS[format](table) for table in self.tables())

    def write_tables(self, path: str | os.PathLike[str], format: str | None = None) -> Path:  # noqa: A002
        """Write all tables to a file; returns its path.

        Arguments:
            path: The file, whose folder is created if it is missing.
            format: "markdown", "latex" or "html"; by default that of the file's extension, .md, .tex or .html.
        """
        path = Path(path)
        ending = ENDINGS.get(path.suffix.lower())
        if format is None and ending is None:
            known = ", ".join(ENDINGS)
            raise InputError(f"the format of {path} is unknown: give `format`, or a name that ends in {known}")
        if format is not None and ending not in (None, format):
            raise InputError(f"{path} is not a name for {format}: leave out `format`, or choose another extension")
        return _write(path, self.text(format or ending or "").encode())

    def figure(self, row: str | None = None) -> "Figure":
        """The figure of the experiment: six instances with their true posteriors in two latent dimensions, or the
        validation scores over epochs and over time.

        Arguments:
            row: The variant whose encoder is shown with the true posteriors; by default the first.
        """
        from gpin.experiments.analysis.figures import uncertainty_figure
        from gpin.experiments.analysis.progress import paper_scores, progress_figure, progress_of

        if self.experiment.grid:
            return uncertainty_figure(self.store, self.entries, self.rows[0] if row is None else row)
        found = {column: progress_of(self.results, *column) for column in self.results.columns()}
        shown = [column for column, trainings in found.items() if trainings]
        if not shown:
            raise InputError(
                f"{self.store.root} has no trainings of {self.experiment.name} whose history is known, so there is no "
                "figure"
            )
        if len(shown) > 1:
            several = ", ".join(f"{data} d={dim}" for data, dim in shown)
            raise InputError(f"a figure shows one column of the tables, and there are {several}: give `latent_dim`")
        targets = paper_scores(self.experiment, *shown[0]) if self.protocol.limit is None else {}
        return progress_figure(found[shown[0]], targets)

    def write_figure(self, path: str | os.PathLike[str], row: str | None = None) -> Path:
        """Write the figure of the experiment to a file; returns its path.

        Arguments:
            path: The file, .png or .svg, whose folder is created if it is missing.
            row: The variant whose encoder is shown; by default the first.
        """
        from gpin.report import plots

        path = Path(path)
        if path.suffix.lower() not in (".png", ".svg"):
            raise InputError(f"cannot write a figure to {path}: its name must end in .png or .svg")
        figure = self.figure(row)
        return _write(path, plots.png(figure) if path.suffix.lower() == ".png" else plots.standalone_svg(figure))


def write_report(
    path: str | os.PathLike[str] = "experiments.html",
    protocol: str | Protocol = "desk",
    store: str | os.PathLike[str] = "experiments",
) -> Path:
    """Write one self-contained page with all tables and figures of a store; returns its path.

    Arguments:
        path: The page to write, .html.
        protocol: The protocol whose results are shown.
        store: The folder of the results.
    """
    from gpin.experiments.analysis.page import compose_page

    path = Path(path)
    check_output(path, "a page")
    protocol = protocol_named(protocol) if isinstance(protocol, str) else protocol
    return _write(path, compose_page(Store(store), protocol).html().encode())


def _write(path: Path, content: bytes) -> Path:
    make_folder(path.parent)
    write_whole(path, content)
    return path


def _listed(value: Any, single: type) -> list[Any] | None:
    """One or several values as a list without repetitions."""
    if value is None:
        return None
    return list(dict.fromkeys([value] if isinstance(value, single) else value))
