"""A run's folder.

| file | holds |
|---|---|
| `run.json` | the settings, the model, the scaling, where the data is and its fingerprint |
| `model/` | the best weights, as `gpin.load` reads them, once training is finished |
| `checkpoints/` | the newest two states of training, see `gpin.training.checkpoints` |
| `metrics.jsonl`, `metrics.parquet` | one row per epoch |
| `environment.json` | versions and machine |
| `tensorboard/`, `wandb/`, `loggers.json` | what loggers write, and the identifiers of their runs |

No file contains executable code. Damaged files are detected, and recovered from the rest of the folder where possible.
"""

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpin._core.errors import InputError, OtherDataError
from gpin._core.extras import installed_version
from gpin._core.files import as_path, checksum, read_record, write_record
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.building import VAEConfig, from_config, load
from gpin.data import BENCHMARKS, DataSet, Scaling, as_model_data, open_source, split_and_scale
from gpin.runs.settings import RunSettings
from gpin.training import History
from gpin.training.checkpoints import Checkpoint, Checkpoints
from gpin.training.fitted import FITTED, read_fitted
from gpin.vae import VAE

__all__ = ["Run", "as_run", "environment", "open_run", "open_runs", "versions"]

FORMAT, VERSION = "gpin-run", 1

UNKNOWN = "DATA"
"""The location of data that is not known, as it is shown in commands that need it."""


@dataclass(frozen=True)
class Run:
    """A run as its `run.json` describes it.

    Attributes:
        folder: The folder of the run.
        settings: The settings chosen by the user.
        model: The model, with every option resolved.
        scaling: The scaling from the units of the data to those of the model.
        columns: The names of the data's columns, if it has any.
        location: The name or path of the data.
        fingerprint: The fingerprint of the data.
        start: The checksum of the weights that training started from, if any.
        skipped: The names of the files of a folder that were left out, with the reason.
    """

    folder: Path
    settings: RunSettings
    model: VAEConfig
    scaling: Scaling
    columns: tuple[str, ...] | None
    location: str
    fingerprint: str
    start: str | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def fitted(self) -> bool:
        """Whether `gpin.fit` made the folder, so that the location and the split of the data are unknown."""
        return not self.fingerprint

    @property
    def identity(self) -> str:
        """The hash of all that determines the result: settings, model, data and start, but not the data's location."""
        record = self.record()
        return checksum({key: record[key] for key in ("settings", "model", "fingerprint", "start")})

    def record(self) -> dict[str, Any]:
        """The content of `run.json`, ready for JSON."""
        return {
            "settings": self.settings.model_dump(mode="json"),
            "model": self.model.model_dump(mode="json"),
            "scaling": self.scaling.model_dump(mode="json"),
            "columns": None if self.columns is None else list(self.columns),
            "location": self.location,
            "fingerprint": self.fingerprint,
            "start": self.start,
            **({"skipped": dict(self.skipped)} if self.skipped else {}),
        }

    @property
    def column_names(self) -> list[str]:
        """The names of a table's columns: its own, or x_0, x_1, … if it has none."""
        count = len(self.scaling.columns) or self.model.shape[0]
        return list(self.columns or (f"x_{j}" for j in range(count)))

    @property
    def log_volume(self) -> float | Callable[[Tensor], Tensor]:
        """log p(x) − log p(value): zero if p(x|z) is a probability and not a density, otherwise Σ log scale over the
        values of an instance; a function of x where it depends on the values or on which of them are missing."""
        if not self.model.density:
            return 0.0
        if self.scaling.columns or self.scaling.missing:
            return self.scaling.log_volumes
        return self.scaling.log_volume(math.prod(self.model.shape))

    def write(self) -> None:
        """Write `run.json`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_record(self.folder / "run.json", FORMAT, VERSION, self.record())

    def data(self, location: str | os.PathLike[str] | None = None) -> DataSet:
        """The data that the run was trained on, with the same split; read from `location` if it has moved.

        A run of `gpin.fit` does not know its data, so all rows at `location` are every part of it.
        """
        if self.fitted and location is None:
            raise InputError(
                f"{self.folder} was trained by gpin.fit, which does not know where its data is: give the data as `data`"
            )
        try:
            source = open_source(self.location if location is None else location, self.settings.data.source)
        except InputError as error:
            moved = "" if self.location in BENCHMARKS else "; if it has moved, give its new location as `data`"
            raise InputError(f"the data of {self.folder} cannot be read: {error}{moved}") from None
        if self.fitted:
            rows = as_model_data(source, self.model.shape, self.scaling, condition=self.model.condition)
            return DataSet(source, self.scaling, rows, rows, rows)
        if source.fingerprint() != self.fingerprint:
            raise OtherDataError(
                f"{source.location} is not the data that {self.folder} was trained on, or has changed since: "
                "its fingerprint differs"
            )
        return split_and_scale(source, self.settings.data, self.scaling, self.model.condition)

    def checkpoint(self, tell: Tell = to_stderr) -> Checkpoint | None:
        """The newest intact checkpoint of the training."""
        return Checkpoints(self.folder / "checkpoints").latest(tell)

    def history(self, tell: Tell = to_stderr) -> tuple[History, bool]:
        """The history of the training, and whether it is finished."""
        checkpoint = self.checkpoint(tell)
        if checkpoint is None:
            return History(), False
        return History.from_record(checkpoint.record["history"]), checkpoint.record["finished"]

    def load(self, tell: Tell = to_stderr) -> VAE:
        """The model with its best weights, or the best so far if the run is not finished."""
        folder = self.folder / "model"
        if not folder.exists() and (self.folder / "config.json").is_file():
            folder = self.folder  # one that `share_run` wrote
        if folder.exists():
            try:
                vae = load(folder)
                if vae.config == self.model:
                    return vae
                tell(f"{folder} is not this run's model: using the weights in the checkpoints")
            except InputError as error:
                tell(f"{error}: using the weights in the checkpoints")
        checkpoint = self.checkpoint(tell)
        if checkpoint is None or not checkpoint.record["history"]["epochs"]:
            raise InputError(f"{self.folder} has no trained model yet: run the training command again first")
        if not checkpoint.record["finished"]:
            tell(f"{self.folder} is not finished: these are the best weights so far")
        with seeded(0):  # the weights that it draws are replaced, and torch's random state is left alone
            vae = from_config(self.model)
        vae.load_state_dict(checkpoint.part("best"))
        return vae.eval()


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Open the folder of a run."""
    folder = as_path(folder, "the run")
    path = folder / "run.json"
    if not path.is_file() and (folder / FITTED).is_file():
        return _fitted(folder)
    if not path.is_file() and (folder / "checkpoints").is_dir():
        raise InputError(
            f"{folder} does not say what its model is: if gpin.fit made it, an earlier version did; call it again with "
            "the same arguments, which completes the folder without training"
        )
    if not path.is_file():
        what = "is not the folder of a run: run.json is missing" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; gpin train creates one and prints its path")
    record = read_record(path, FORMAT, VERSION, "a gpin run")
    return run_from(folder, record)


def open_runs(folders: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Open the runs in the folders, at least one and none of them twice."""
    paths = [as_path(folder, "the run") for folder in folders]
    if not paths:
        raise InputError("at least one run is needed: give its folder")
    places = [path.resolve() for path in paths]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise InputError(f"{paths[i]} is given twice: name each run once")
    return [open_run(path) for path in paths]


def _fitted(folder: Path) -> Run:
    """The run in a folder of `gpin.fit`."""
    record, what = read_fitted(folder), str(folder / FITTED)
    model = None if record["model"] is None else VAEConfig.parse(record["model"], what)
    if model is None or model.own:
        raise InputError(
            f"{folder} holds a model with modules of your own, which only Python can open: use gpin.load on its "
            "folder model"
        )
    settings = {
        "model": {"method": model.method, "latent_dim": model.latent_dim, "options": model.options},
        "training": record["training"],
    }
    return Run(
        folder,
        settings=RunSettings.parse(settings, what),
        model=model,
        scaling=Scaling.parse(record["scaling"] or {"kind": "none"}, what),
        columns=None,
        location=UNKNOWN,
        fingerprint="",
    )


def as_run(run: Run | str | os.PathLike[str]) -> Run:
    """A run, or the run in a folder."""
    return run if isinstance(run, Run) else open_run(run)


def run_from(folder: Path, record: Mapping[str, Any]) -> Run:
    """The run that a record of `Run.record` describes."""
    what = str(folder / "run.json")
    return Run(
        folder,
        settings=RunSettings.parse(record["settings"], what),
        model=VAEConfig.parse(record["model"], what),
        scaling=Scaling.parse(record["scaling"], what),
        columns=None if record["columns"] is None else tuple(record["columns"]),
        location=record["location"],
        fingerprint=record["fingerprint"],
        start=record["start"],
        skipped=tuple(record.get("skipped", {}).items()),
    )


def versions() -> dict[str, str]:
    """The versions of the software that a result depends on, by name, except for packages that are not installed."""
    names = ("gpin", "torch", "numpy", "scipy", "scikit-learn", "matplotlib")
    found = {name: installed_version(name) for name in names}
    return {"Python": platform.python_version(), **{name: known for name, known in found.items() if known is not None}}


def environment() -> dict[str, Any]:
    """What a result depends on besides its settings: versions and machine."""
    return {
        **versions(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _processor() -> str:
    """The name of the processor, if the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
