"""Comparisons of methods and latent dimensions on any data: train, score, and tell which is better.

Every combination of a method and a number of latent dimensions is trained with several seeds. The trainings are jobs in
a store, as those of the experiments, so that they run on the same executors and can be interrupted at any time.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gpin._core.errors import InputError, TrainingError
from gpin._core.files import as_path, checksum, read_record, write_record, write_whole
from gpin._core.inputs import as_tensor, whole_number
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin._core.threads import threads as use_threads
from gpin.data import DataConfig, Source, SourceConfig, open_source, split_and_scale
from gpin.data.arrays import instances
from gpin.evaluation.timing import inference_times
from gpin.experiments.analysis.models import ModelResult, ModelTable, model_name, training_of
from gpin.experiments.execution.dispatch import Execution
from gpin.experiments.execution.jobs import Job, Scoring
from gpin.experiments.execution.store import State, Store
from gpin.inference import METHODS, method_named
from gpin.report.tables import show
from gpin.runs import RunSettings, open_run, run_settings
from gpin.runs.outputs import check_output, write_array
from gpin.runs.rows import BATCH
from gpin.runs.understood import skipped_files

__all__ = ["METHODS_COMPARED", "ModelComparison", "compare"]

METHODS_COMPARED = ("vae", "gp", "natural")
"""The methods that are compared unless others are named."""
SEEDS, LIMIT, SAMPLES = 3, 1000, 100
"""How many trainings there are of each model, how many test instances are scored, and with how many samples each."""
REPEATS, MOST_SECONDS = 50, 1.0
"""The number of timed calls of inference, and the time in seconds after which no more are made."""
TIMES, VERSION = "gpin-comparison-times", 1

OnProgress = Callable[[Mapping[str, State]], None]
Methods = str | Sequence[str] | Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One training of a comparison."""

    method: str
    latent_dim: int
    seed: int
    job: Job

    def __str__(self) -> str:
        return f"{self.method} d={self.latent_dim}, seed {self.seed}"


class ModelComparison:
    """Methods and latent dimensions that are compared on the same data, in a folder of their own.

    Example:
        >>> comparison = ModelComparison("digits", ["vae", "gp"], latent_dim=[2, 10], seeds=2, epochs=5)
        >>> len(comparison.cells), str(comparison.cells[0])
        (8, 'vae d=2, seed 0')

    Arguments:
        data: A data set's name or a path, see `gpin.data.open_source`, or the data itself: an array or a tensor
            `(n, columns)`, `(n, height, width)` or `(n, channels, height, width)`, which is stored with the results.
        methods: The names of the methods; a mapping has their options by name, such as
            `{"vae": {}, "natural": {"steps": 2}}`.
        latent_dim: One or more numbers of latent dimensions.
        seeds: The number of trainings of every model. They begin with other weights and see the data in another order.
        new_splits: Whether every seed also has a split of the data of its own.
        baseline: The method to which the others with the same number of latent dimensions are compared; by default all
            models are compared with the best one.
        samples: K, the number of importance samples per test instance.
        limit: Score at most this many test instances, chosen at random; None scores all.
        out: The folder in which comparisons are stored, each in a folder named after its data.
        options: Options of the data, the training and all methods, as in `run_settings`, such as `epochs=20`. Those of
            one method have its name before a dot: `{"natural.steps": 2}`; those of the data, the scaling and the
            likelihood are the same for all.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | np.ndarray | Tensor,
        methods: Methods = METHODS_COMPARED,
        latent_dim: int | Sequence[int] = 10,
        *,
        seeds: int = SEEDS,
        new_splits: bool = False,
        baseline: str | None = None,
        samples: int = SAMPLES,
        limit: int | None = LIMIT,
        out: str | os.PathLike[str] = "comparisons",
        **options: Any,
    ) -> None:
        self.methods, options = _methods(methods, options)
        self.latent_dims = _dims(latent_dim)
        if len(self.methods) * len(self.latent_dims) < 2:
            raise InputError("a comparison needs at least two models: give several `methods`, or several `latent_dim`")
        if baseline is not None and baseline not in self.methods:
            raise InputError(f"`baseline` must be one of the methods {', '.join(self.methods)}, got {baseline!r}")
        self.baseline, self.seeds = baseline, whole_number(seeds, "seeds")
        limit = None if limit is None else whole_number(limit, "limit")
        scoring = Scoring(samples=whole_number(samples, "samples", least=25), instances=limit)
        settings = {
            (method, dim): _settings(method, dim, options, self.methods)
            for dim in self.latent_dims
            for method in self.methods
        }
        first = next(iter(settings.values()))
        folder = as_path(out, "the folder of comparisons")
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file, but the folder of comparisons must be a folder")
        self.source, self._given = _opened(data, folder, first.data.source)
        # Every value is checked here, before anything is trained.
        self.data = split_and_scale(self.source, first.data, detect=first.model.mixed)
        fingerprint = self.source.fingerprint()
        self.store = Store(folder / f"{self.source.name}-{fingerprint[:8]}")
        self.cells = [
            Cell(
                method,
                dim,
                seed,
                Job(
                    data=self.source.name,
                    settings=_seeded(settings[method, dim], seed, new_splits),
                    scoring=scoring,
                    fingerprint=fingerprint,
                    location=self.source.location,
                ),
            )
            for seed in range(self.seeds)
            for dim in self.latent_dims
            for method in self.methods
        ]

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
        tell: Tell = to_stderr,
    ) -> "ModelComparison":
        """Train and score all models that are not done yet, and time their inference; returns the comparison.

        This may be stopped at any time: the same call finishes what is left and repeats nothing. Trainings that failed
        before are tried again.

        Arguments:
            executor: "local" runs processes on this machine, "slurm" an array of Slurm jobs, "ray" tasks on a Ray
                cluster, and "serial" one training after the other in this process, where methods that you registered
                are available too.
            workers: The number of trainings at the same time; by default the number of cores, and 1 for "serial".
            threads: The number of threads per worker.
            address: The address of a Ray cluster, such as "auto"; by default Ray is started on this machine.
            slurm: More options for Slurm, such as {"slurm_partition": "gpu", "timeout_min": 600}.
            on_progress: Called repeatedly with the state of every training, by its description.
            tell: Called with each message for the user.
        """
        where = Execution.checked(executor, workers, threads, address=address, slurm=slurm)
        where.check_methods(self.methods)
        skipped = skipped_files(self.source)
        if skipped is not None:
            tell(skipped)
        jobs = [cell.job for cell in self.cells]
        if self.store.missing(jobs):
            self.store.root.mkdir(parents=True, exist_ok=True)
            if self._given is not None and not Path(self.source.location).exists():
                write_array(Path(self.source.location), [self._given], len(self._given))
            where.run(self.store, jobs, (lambda: None) if on_progress is None else (lambda: on_progress(self.status())))
            self.__dict__.pop("result", None)  # it has changed
        failures = self.failures()
        if self.done == 0:
            reason = next(iter(failures.values()), f"see {self.store.root}")
            raise TrainingError(f"none of the {len(self.cells)} trainings could be done: {reason}")
        for cell, reason in failures.items():
            tell(f"{cell} failed: {reason}")
        self._time_inference(where.threads)
        return self

    def status(self) -> dict[str, State]:
        """The state of every training by its description: "done", "running", "failed" or "waiting"."""
        return {str(cell): self.store.state(cell.job) for cell in self.cells}

    def failures(self) -> dict[str, str]:
        """The reasons why trainings failed, by their description."""
        found = {str(cell): self.store.failure(cell.job) for cell in self.cells if self.store.result(cell.job) is None}
        return {cell: reason for cell, reason in found.items() if reason is not None}

    @property
    def done(self) -> int:
        """The number of trainings that are done and scored."""
        return len(self.cells) - len(self.store.missing(cell.job for cell in self.cells))

    # Results -----------------------------------------------------------------------------------------

    @cached_property
    def result(self) -> ModelTable:
        """The models that are done, with their scores; they are read once."""
        found: dict[tuple[str, int], ModelResult] = {}
        times = self._times()
        for cell in sorted(self.cells, key=lambda cell: self.latent_dims.index(cell.latent_dim)):
            record = self.store.result(cell.job)
            if record is None:
                continue
            run = open_run(self.store.runs / record["run"])
            training = training_of(run.folder, record, self.store.scores(cell.job))
            key = cell.method, cell.latent_dim
            known = found.get(key) or ModelResult(*key, {}, times.get(model_name(*key)))
            found[key] = replace(known, trainings={**known.trainings, cell.seed: training})
        if not found:
            raise InputError(f"{self.store.root} has no results of this comparison yet: run it first")
        batch = min(BATCH, len(self.data.test)) if times else 0
        return ModelTable(self.source.name, list(found.values()), self.baseline, batch)

    @property
    def best(self) -> ModelResult:
        """The model with the highest mean log-likelihood."""
        return self.result.best

    @property
    def recommendation(self) -> str:
        """What follows from the numbers, in a few sentences."""
        return self.result.recommendation

    def records(self) -> list[dict[str, Any]]:
        """The numbers, one record per model, ready for JSON or a data frame; see `ModelTable.records`."""
        return self.result.records()

    def record(self) -> dict[str, Any]:
        """Everything that was found, ready for JSON."""
        return {
            "data": self.source.location,
            "folder": str(self.store.root),
            "trainings": len(self.cells),
            "done": self.done,
            "failed": self.failures(),
            "best": self.best.name,
            "not_significantly_different": [one.name for one in self.result.alike],
            "recommended": self.result.recommended.name,
            "recommendation": self.recommendation,
            "models": self.records(),
        }

    def __str__(self) -> str:
        """The table and the recommendation, as text."""
        import io

        from rich.console import Console

        text = io.StringIO()
        show(self.result.table(), Console(file=text, width=10_000, color_system=None))
        lines = [line.rstrip() for line in text.getvalue().rstrip().splitlines()]
        return "\n".join([*lines, "", self.recommendation])

    def write_page(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write one self-contained page with the comparison; returns its path.

        Arguments:
            path: The file, .html; by default `comparison.html` in the folder of the comparison.
        """
        from gpin.experiments.analysis.models_page import compose_page

        path = self.store.root / "comparison.html" if path is None else as_path(path, "the page")
        check_output(path, "a page")
        write_whole(path, compose_page(self.result, self.data).html().encode())
        return path

    # Inference times ---------------------------------------------------------------------------------

    def _timed(self) -> dict[str, Path]:
        """The first run of every model that is done, by the name of the model."""
        records = ((cell, self.store.result(cell.job)) for cell in reversed(self.cells))
        found = {
            model_name(cell.method, cell.latent_dim): self.store.runs / record["run"]
            for cell, record in records
            if record is not None
        }
        return dict(reversed(found.items()))

    def _times_file(self) -> Path:
        runs = {name: folder.name for name, folder in self._timed().items()}
        return self.store.root / "times" / f"{checksum(runs)[:16]}.json"

    def _times(self) -> dict[str, float]:
        """The inference times in milliseconds by the name of the model; empty if they were not measured."""
        try:
            return dict(read_record(self._times_file(), TIMES, VERSION, "a table of times")["milliseconds"])
        except (InputError, OSError):
            return {}

    def _time_inference(self, count: int) -> None:
        """Time all models side by side on the CPU, unless this was done before."""
        if self._times():
            return
        models = {name: open_run(folder).load() for name, folder in self._timed().items()}
        with use_threads(count), seeded(0):
            found = inference_times(models, self.data.test[:BATCH], repeats=REPEATS, most_seconds=MOST_SECONDS)
        path = self._times_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        milliseconds = {name: 1000 * own.fastest for name, own in found.items()}
        write_record(path, TIMES, VERSION, {"milliseconds": milliseconds, "threads": count})
        self.__dict__.pop("result", None)


def compare(
    data: str | os.PathLike[str] | np.ndarray | Tensor,
    methods: Methods = METHODS_COMPARED,
    latent_dim: int | Sequence[int] = 10,
    *,
    seeds: int = SEEDS,
    out: str | os.PathLike[str] = "comparisons",
    executor: str = "local",
    workers: int | None = None,
    threads: int = 1,
    on_progress: OnProgress | None = None,
    tell: Tell = to_stderr,
    **options: Any,
) -> ModelComparison:
    """Train, score and compare methods and latent dimensions on data, as `gpin compare` does.

    The same call continues what was interrupted, and returns at once if everything is done.

    Arguments:
        data: A data set's name, a path, or an array or a tensor with the data itself.
        methods: The names of the methods, or a mapping from names to their options.
        latent_dim: One or more numbers of latent dimensions.
        seeds: The number of trainings of every model.
        out: The folder in which comparisons are stored.
        executor: Where models are trained, see `ModelComparison.run`.
        workers: The number of trainings at the same time; by default the number of cores.
        threads: The number of threads per worker.
        on_progress: Called repeatedly with the state of every training, by its description.
        tell: Called with each message for the user.
        options: Further options, see `ModelComparison`: `new_splits`, `baseline`, `samples`, `limit`, and those of the
            data, the training and the methods, such as `epochs` or `learning_rate`.

    Example:
        found = gpin.compare(x, methods=["vae", "natural"], latent_dim=[2, 5], seeds=3, epochs=20)
        print(found)
        found.best.name, found.best.best_run
    """
    comparison = ModelComparison(data, methods, latent_dim, seeds=seeds, out=out, **options)
    return comparison.run(executor, workers, threads, on_progress=on_progress, tell=tell)


# What was asked for ----------------------------------------------------------------------------------


def _methods(methods: Methods, options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The names of the methods, and all options with those of single methods by their names in full."""
    if isinstance(methods, Mapping):
        own = {f"{method}.{key}": value for method, given in methods.items() for key, value in given.items()}
        options = {**options, **own}
    names = [methods] if isinstance(methods, str) else list(methods)
    if not names:
        raise InputError(f"`methods` is empty: choose from {', '.join(METHODS)}")
    for i, name in enumerate(names):
        method_named(name)
        if name in names[:i]:
            raise InputError(f"the method {name!r} is given twice in `methods`: name each method once")
    return names, dict(options)


def _dims(latent_dim: int | Sequence[int]) -> list[int]:
    given = [latent_dim] if isinstance(latent_dim, int | np.integer) else latent_dim
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str) or not len(given):
        raise InputError(f"latent_dim must be a whole number or several, such as [2, 10], got {latent_dim!r}")
    dims = [whole_number(dim, "latent_dim") for dim in given]
    if len(set(dims)) < len(dims):
        raise InputError(f"`latent_dim` has a number twice: name each once, got {', '.join(map(str, dims))}")
    return dims


def _settings(method: str, dim: int, options: Mapping[str, Any], methods: Sequence[str]) -> RunSettings:
    """The settings of one model: the options of all models, and those of its own method."""
    chosen: dict[str, Any] = {}
    for key, value in options.items():
        owner, dot, name = key.partition(".")
        if dot and owner in METHODS:
            if owner not in methods:
                raise InputError(f"{key!r} is an option of {owner}, which is not among the methods compared")
            _check_own(owner, name)
            if owner == method:
                chosen[name] = value
        elif key in ("method", "methods", "latent_dim"):
            raise InputError(f"{key!r} cannot be an option of all models: give `methods` and `latent_dim` instead")
        else:
            _check_shared(key, methods)
            chosen[key] = value
    settings = run_settings({"method": method, "latent_dim": dim, **chosen})
    settings.model.check()
    return settings


def _check_own(method: str, name: str) -> None:
    """Raise InputError for an option of one method that would give it other data or other units than the others."""
    data = {*SourceConfig.model_fields, *DataConfig.model_fields, "split_seed"} - {"seed"}
    own = METHODS[method].Options.model_fields
    if name not in own and (name in data or name.partition(".")[0] == "likelihood"):
        raise InputError(
            f"'{method}.{name}' cannot be set for one method alone: models are compared with the same data, scaling "
            "and likelihood"
        )


def _check_shared(key: str, methods: Sequence[str]) -> None:
    """Raise InputError for an option that only some of the methods have."""
    having = [name for name in methods if key in METHODS[name].Options.model_fields]
    lacking = [name for name in methods if name not in having]
    if having and lacking:
        raise InputError(
            f"{key!r} is an option of {', '.join(having)} but not of {', '.join(lacking)}: write {having[0]}.{key} to "
            "set it for one method"
        )


def _seeded(settings: RunSettings, seed: int, new_splits: bool) -> RunSettings:
    training = settings.training.model_copy(update={"seed": settings.training.seed + seed})
    data = settings.data.model_copy(update={"seed": settings.data.seed + seed}) if new_splits else settings.data
    return settings.model_copy(update={"training": training, "data": data})


def _opened(
    data: str | os.PathLike[str] | np.ndarray | Tensor, folder: Path, config: SourceConfig
) -> tuple[Source, np.ndarray | None]:
    """The data, and its values if they were given as an array that has yet to be stored."""
    if isinstance(data, str | os.PathLike):
        return open_source(data, config), None
    if config != SourceConfig():
        raise InputError(f"`{config.changed()[0]}` is for reading files and does not apply to an array: leave it out")
    if not isinstance(data, np.ndarray | Tensor):
        raise InputError(f"the data must be a path, an array or a tensor, got {type(data).__name__}")
    values = instances(as_tensor(data, "the data").detach().cpu().numpy(), Path("the data"))
    values = np.ascontiguousarray(values)
    kind: Any = "table" if values.ndim == 2 else "images"
    source = Source("array", "", config, values, kind)
    place = Path(os.path.abspath(folder / f"array-{source.fingerprint()[:8]}" / "data.npy"))
    return replace(source, location=str(place)), values
