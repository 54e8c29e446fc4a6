"""`train`: start a run, resume it, or return it if it is finished."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpin._core.devices import device_named
from gpin._core.errors import BusyError, InputError, TrainingError, VersionError
from gpin._core.files import as_path, remove_unfinished, write_record
from gpin._core.messages import Tell, silent, to_stderr
from gpin.building import build, load
from gpin.data import Batches, DataSet, Scaling, open_source, split_and_scale
from gpin.runs.folder import FORMAT, VERSION, Run, environment, open_run
from gpin.runs.going_on import go_on
from gpin.runs.rows import BATCH
from gpin.runs.settings import RunSettings, run_settings
from gpin.runs.understood import skipped_files
from gpin.training import History, Logger, OnEpoch, fit
from gpin.training.calibration import calibrate_with
from gpin.training.loggers import as_loggers
from gpin.training.processes import Processes
from gpin.vae import VAE

__all__ = ["train"]

MIXED = {"kind": "mixed"}
"""The likelihood of a table with columns of different kinds."""


def train(
    data: str | os.PathLike[str],
    settings: RunSettings | None = None,
    *,
    out: str | os.PathLike[str] = "runs",
    start: str | os.PathLike[str] | None = None,
    device: str | None = None,
    max_time: float | None = None,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    log: str | Logger | Sequence[str | Logger] | None = None,
    progress: bool | None = None,
    on_start: Callable[[Run, DataSet, VAE], None] | None = None,
    on_epoch: OnEpoch | None = None,
    tell: Tell = to_stderr,
) -> tuple[Run, VAE, History]:
    """Train in a new folder below `out`; the same call resumes the run, or returns it if it is finished.

    If `out` has a run that differs in a smaller number of epochs or in less patience only, training goes on from its
    last state, with the same result as if it had started afresh; that run is left as it is.

    Arguments:
        data: A data set's name or a path, see `gpin.data.open_source`.
        settings: The settings of the data, the model and the training; by default those of `gpin.runs.run_settings()`.
            Options of training that are "auto" are chosen by the size of the data, and recorded in the run's settings.
        out: The folder in which runs are stored.
        start: A run or a saved model to start from, for methods that support it.
        device: The device, such as "cpu" or "cuda"; by default a GPU if there is one.
        max_time: The time, in seconds, after which this call stops training, see `gpin.fit`. The same call resumes it.
        checkpoint_seconds: The time between checkpoints, in seconds.
        tensorboard: The same as log="tensorboard".
        log: Where to log the results of each epoch: "tensorboard", "wandb", "mlflow" or your own, see `gpin.fit`.
        progress: Whether to show a progress bar; by default if there is a terminal.
        on_start: Called before the first step with the run, its data and its model.
        on_epoch: Called after each epoch; it may end training, see `gpin.fit`.
        tell: Called with each message for the user.
    """
    settings, out = settings or run_settings(), as_path(out, "the folder of runs")
    settings.model.check()
    as_loggers(out, log, "tensorboard" if tensorboard else None)  # a missing package is named before a file is written
    processes = Processes(None if device is None else device_named(device))
    source = open_source(data, settings.data.source)
    skipped = skipped_files(source)
    if skipped is not None and processes.first:
        tell(skipped)
    parts = split_and_scale(source, settings.data, detect=settings.model.mixed)
    settings = settings.model_copy(update={"training": settings.training.resolved(len(parts.train))})
    first = None if start is None else _started_from(as_path(start, "the start"), tell)
    model = settings.model
    likelihood = model.likelihood
    if parts.scaling.columns:
        likelihood = {**(likelihood or MIXED), "columns": [column.likelihood for column in parts.scaling.columns]}
    elif likelihood is None:
        likelihood = {"kind": "bernoulli" if parts.scaling.kind == "binary" else "gaussian"}
    vae = build(
        parts.shape,
        model.method,
        model.latent_dim,
        likelihood=likelihood,
        architecture=model.architecture,
        given=parts.condition,
        missing=parts.scaling.missing,
        start=first,
        seed=settings.training.seed,
        **model.options,
    )
    assert vae.config is not None  # it was built from one
    run = Run(
        out,
        settings,
        vae.config,
        parts.scaling,
        source.columns,
        source.location,
        source.fingerprint(),
        None if first is None else first.checksum(),
        () if source.survey is None else source.survey.skipped,
    )
    run = replace(run, folder=out / f"{source.name}-{model.method}-{run.identity[:8]}")
    scaling = _recorded_scaling(run)
    if scaling != run.scaling:  # an earlier version chose another one for this data
        run, parts = replace(run, scaling=scaling), split_and_scale(source, settings.data, scaling)
    speak = tell if processes.first else silent
    with _alone(run.folder) if processes.first else contextlib.nullcontext():
        if processes.first:
            with _writing(run.folder):
                _write_about(run, speak)
                go_on(run, vae, speak)
        processes.any(False)  # wait until the first process has written its checkpoint
        vae.to(processes.device)
        if processes.first and on_start is not None:
            on_start(run, parts, vae)
        history = fit(
            vae,
            parts.train,
            parts.validation,
            folder=run.folder,
            max_time=max_time,
            checkpoint_seconds=checkpoint_seconds,
            tensorboard=tensorboard,
            log=log,
            progress=progress,
            on_epoch=on_epoch,
            tell=speak,
            identity=run.identity,
            calibrate=False,
            **settings.training.model_dump(),
        )
        if processes.first and not history.paused:
            with _writing(run.folder):
                _save_model(run, vae, parts, speak)
    return run, vae, history


def _started_from(folder: Path, tell: Tell) -> VAE:
    return open_run(folder).load(tell) if (folder / "run.json").is_file() else load(folder)


def _recorded_scaling(run: Run) -> Scaling:
    """The scaling with which a run began, or the present one if it is new or its record cannot be read."""
    try:
        known = open_run(run.folder)
    except InputError:
        return run.scaling
    return known.scaling if known.identity == run.identity else run.scaling


def _write_about(run: Run, tell: Tell) -> None:
    """Write `run.json` and `environment.json` unless they exist."""
    path = run.folder / "run.json"
    if path.is_file():
        try:
            known = open_run(run.folder)
        except VersionError:
            raise
        except InputError as error:
            tell(f"{error}: it is written again")
        else:
            if known.identity != run.identity:
                raise InputError(f"{run.folder} holds another run: move it away, or choose another folder with `out`")
            if known.location == run.location:
                return
    run.write()
    about = run.folder / "environment.json"
    if not about.is_file():  # if only the data has moved, the environment in which the run began stays
        write_record(about, FORMAT, VERSION, environment())


def _save_model(run: Run, vae: VAE, parts: DataSet, tell: Tell) -> None:
    """Write the best weights with the calibration of their gap, unless they are there and intact."""
    try:
        saved = load(run.folder / "model")
    except VersionError:
        raise
    except InputError:
        saved = None
    if saved is not None and saved.config == run.model and saved.checksum() == vae.checksum():
        vae._gpin_calibrations, vae._gpin_temperatures = saved.calibrations, saved.temperatures
        return
    training, validation = (Batches(rows, BATCH) for rows in (parts.train, parts.validation))
    calibrate_with(vae, training, validation, run.settings.training.seed, tell)
    vae.save(run.folder / "model")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Report a failed write with the folder, since the error of a full disk names no file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise TrainingError(f"cannot write to {folder}: {reason}; fix this and run again") from error


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A context in which no other process on this machine trains the same run."""
    try:
        import fcntl
    except ModuleNotFoundError:  # not on Windows
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = open(folder / ".lock", "w")  # noqa: SIM115  (closed below)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        yield  # a finished run may be on a read-only disk; a write that is needed will fail by itself
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"{folder} is being trained by another process: wait for it, or stop it first") from None
        for place in (folder, folder / "model"):
            remove_unfinished(place)
        yield
