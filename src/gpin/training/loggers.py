"""Loggers: where training reports its metrics besides the folder of the run, such as TensorBoard, W&B and MLflow."""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gpin._core.errors import InputError
from gpin._core.extras import extra
from gpin._core.files import write_whole
from gpin._core.messages import Tell, to_stderr
from gpin.training.history import History

__all__ = ["LOGGERS", "Logger", "Loggers", "MLflow", "TensorBoard", "WeightsAndBiases", "as_loggers"]

TITLES = {"train": "elbo/train", "validation": "elbo/validation", "score": "score", "learning_rate": "learning_rate"}
"""The names under which the results of an epoch are logged."""

IDENTIFIERS = "loggers.json"
"""The file in the folder of a run that contains the identifiers of its W&B and MLflow runs."""


@runtime_checkable
class Logger(Protocol):
    """Something that training reports to, such as an experiment tracker. Only the first process calls it."""

    def start(self, config: Mapping[str, Any]) -> int | None:
        """Called before the first step, also when a run is resumed.

        Returns the number of the last epoch that the logger already has: all epochs after it are logged, including
        those trained before. None logs only the epochs that are trained from now on.

        Arguments:
            config: The options of the model and of training, and the numbers of instances, ready for JSON.
        """

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Called after each epoch.

        Arguments:
            metrics: "elbo/train", "elbo/validation", "score" and "learning_rate", see `gpin.training.Epoch`.
            step: The number of the epoch, from 1.
        """

    def finish(self) -> None:
        """Called when training ends, is interrupted or fails, but not when the process is killed."""


class TensorBoard:
    """Event files for TensorBoard in the subfolder `tensorboard` of the run's folder."""

    def __init__(self, folder: Path | None) -> None:
        if folder is None:
            raise InputError("logging to TensorBoard needs a `folder` to write its events to")
        with extra("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._make_writer: Callable[..., Any] = SummaryWriter
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    @property
    def recorded(self) -> bool:
        """Whether there are events of this run already."""
        return any(self._folder.glob("events.*"))

    def start(self, config: Mapping[str, Any]) -> int | None:
        return None if self.recorded else 0

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._writer is None:  # events of epochs that are trained again are removed
            self._writer = self._make_writer(str(self._folder), purge_step=step)
        for title, value in metrics.items():
            self._writer.add_scalar(title, value, step)
        self._writer.flush()

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Tracker:
    """What W&B and MLflow share: a run that has an identifier, which is kept in the run's folder."""

    name: str

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.identifier = self._known().get(self.name)
        self.own = True

    @property
    def recorded(self) -> bool:
        """Whether this run has been logged before."""
        return self.identifier is not None

    def remember(self, identifier: str) -> None:
        """Keep the identifier of the tracker's run in the folder."""
        self.identifier = identifier
        if self.folder is not None:
            content = {**self._known(), self.name: identifier}
            write_whole(self.folder / IDENTIFIERS, json.dumps(content, indent=2).encode())

    def _known(self) -> dict[str, str]:
        path = None if self.folder is None else self.folder / IDENTIFIERS
        if path is None or not path.is_file():
            return {}
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(known, dict):
                raise ValueError
        except ValueError:
            raise InputError(f"{path} is damaged: remove it, and the loggers begin new runs") from None
        return known


class WeightsAndBiases(_Tracker):
    """A run of Weights & Biases, or the one that is active. `WANDB_MODE=offline` needs no account and no network."""

    name = "wandb"

    def __init__(self, folder: Path | None) -> None:
        with extra("wandb"):
            import wandb
        self._wandb: Any = wandb
        super().__init__(folder)

    def start(self, config: Mapping[str, Any]) -> int | None:
        self.own = self._wandb.run is None
        self._run = self._begin() if self.own else self._wandb.run
        self._run.config.update(dict(config), allow_val_change=True)
        if not self.own:
            return None
        # Offline, nobody knows what an earlier part has logged, so that every part has all epochs.
        return max(0, self._run.step - 1)

    def _begin(self) -> Any:
        identifier = self.identifier or os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:12]
        defaults = {} if self.folder is None else {"name": self.folder.absolute().name, "dir": str(self.folder)}
        options = {"project": "gpin", **defaults}
        # An argument would override the environment, with which the user chooses.
        options = {key: value for key, value in options.items() if f"WANDB_{key.upper()}" not in os.environ}
        try:
            run = self._wandb.init(id=identifier, resume="allow", **options)
        except Exception as error:
            raise InputError(
                f"W&B cannot start: {_first_line(error)}; with WANDB_MODE=offline it needs no account and no network"
            ) from error
        self.remember(identifier)
        return run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        if self.own:
            self._run.finish()


class MLflow(_Tracker):
    """A run of MLflow, or the one that is active, in the store that `MLFLOW_TRACKING_URI` names; by default local."""

    name = "mlflow"

    def __init__(self, folder: Path | None) -> None:
        with extra("mlflow"):
            import mlflow
        self._mlflow: Any = mlflow
        super().__init__(folder)

    def start(self, config: Mapping[str, Any]) -> int | None:
        active = self._mlflow.active_run()
        self.own = active is None
        resumed = self.own and self.identifier is not None
        self._run_id = (self._begin() if active is None else active).info.run_id
        if not resumed:  # the parameters of a run cannot be changed
            self._mlflow.log_params(_flat(config))
        if not self.own:
            return None
        logged = self._mlflow.MlflowClient().get_metric_history(self._run_id, TITLES["train"]) if resumed else []
        return max((metric.step for metric in logged), default=0)

    def _begin(self) -> Any:
        name = None if self.folder is None else self.folder.absolute().name
        try:
            run = self._mlflow.start_run(run_id=self.identifier, run_name=None if self.identifier else name)
        except Exception as error:
            new = f"; remove {self.folder / IDENTIFIERS} to begin a new run" if self.identifier and self.folder else ""
            raise InputError(f"MLflow cannot start: {_first_line(error)}{new}") from error
        self.remember(run.info.run_id)
        return run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(metrics), step=step, run_id=self._run_id)

    def finish(self) -> None:
        if self.own:
            self._mlflow.end_run()


LOGGERS: dict[str, Callable[[Path | None], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""The loggers by name: functions of the folder of the run, or None, that raise InputError if a package is missing."""


class Loggers:
    """The loggers of one training; one by name that fails during training is reported and left out from then on.

    Arguments:
        chosen: Pairs of a name, "own" for a logger of the user, and a logger.
        tell: Called with messages for the user.
    """

    def __init__(self, chosen: Iterable[tuple[str, Logger]] = (), tell: Tell = to_stderr) -> None:
        self.chosen, self.tell = list(chosen), tell
        self.last: dict[int, int | None] = {}

    @contextmanager
    def logging(self, config: Mapping[str, Any], history: History, finished: bool) -> Iterator[None]:
        """A context in which the loggers are started; afterwards they are finished."""
        try:
            self._start(config, history, finished)
            yield
        finally:
            for name, logger in [entry for entry in self.chosen if id(entry[1]) in self.last]:
                with self._reported(name, logger):
                    logger.finish()

    def _start(self, config: Mapping[str, Any], history: History, finished: bool) -> None:
        """Start all loggers, or for a finished run those that have not recorded it, and log what they miss."""
        if finished:
            self.chosen = [(name, logger) for name, logger in self.chosen if not getattr(logger, "recorded", True)]
        for _, logger in self.chosen:
            self.last[id(logger)] = logger.start(config)
        for row in history.rows():
            self._log(row, {key for key, last in self.last.items() if last is not None})

    def log(self, history: History) -> None:
        """Log the newest epoch."""
        self._log(history.rows()[-1], set(self.last))

    def _log(self, row: Mapping[str, Any], to: set[int]) -> None:
        metrics = {title: row[name] for name, title in TITLES.items() if name in row}
        for name, logger in list(self.chosen):
            last = self.last.get(id(logger))
            if id(logger) not in to or (last is not None and row["epoch"] <= last):
                continue
            with self._reported(name, logger):
                logger.log(metrics, row["epoch"])

    @contextmanager
    def _reported(self, name: str, logger: Logger) -> Iterator[None]:
        """Report the failure of a tracker, which must not end a training of hours; an error in the user's code does."""
        try:
            yield
        except Exception as error:
            if name == "own":
                raise
            self.tell(f"logging to {name} failed: {_first_line(error)}; training continues without it")
            self.chosen.remove((name, logger))


def as_loggers(folder: Path | None, *log: Any) -> list[tuple[str, Logger]]:
    """The loggers that a user has chosen, each once: names, loggers of their own, lists of these, or None.

    Example:
        >>> as_loggers(None, "tensorbord")
        Traceback (most recent call last):
            ...
        gpin._core.errors.InputError: unknown logger 'tensorbord': use tensorboard, wandb or mlflow, or an object with \
start(config), log(metrics, step) and finish()
    """
    several = [entry for given in log for entry in (given if isinstance(given, list | tuple) else [given])]
    chosen: list[tuple[str, Logger]] = []
    for entry in several:
        if entry is None:
            continue
        if isinstance(entry, str) and entry in LOGGERS:
            if entry not in [name for name, _ in chosen]:
                chosen.append((entry, LOGGERS[entry](folder)))
        elif isinstance(entry, Logger) and not isinstance(entry, type):
            chosen.append(("own", entry))
        else:
            *names, last = LOGGERS
            raise InputError(
                f"unknown logger {entry!r}: use {', '.join(names)} or {last}, or an object with start(config), "
                "log(metrics, step) and finish()"
            )
    return chosen


def _first_line(error: Exception) -> str:
    """The message of another package in one line, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """A nested mapping in one level.

    Example:
        >>> _flat({"model": {"method": "gp", "options": {}}, "seed": 0})
        {'model.method': 'gp', 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return flat
