"""A run with a better encoder: the encoder of a trained run is trained further, and the result is a new run."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpin._core.config import suggest
from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.files import as_path, read_record, write_record
from gpin._core.messages import Tell, to_stderr
from gpin.runs.folder import Run, as_run, open_run
from gpin.training import History, improve
from gpin.training.checkpoints import Checkpoint, Checkpoints

__all__ = ["ImprovedRun", "improve_run"]

FORMAT, VERSION = "gpin-improvement", 1
OPTIONS = (
    *("steps", "samples", "epochs", "batch_size", "learning_rate", "schedule", "clip_norm", "ema", "weight_decay"),
    *("augmentation", "patience", "seed"),
)
"""The options of `gpin.improve` that determine its result."""


@dataclass(frozen=True)
class ImprovedRun:
    """A run with a better encoder.

    Attributes:
        run: The new run.
        before: The validation score of the run before, in nats.
        after: The validation score of the new run, in nats.
        done: Whether it had been improved before, so that nothing was trained.
    """

    run: Run
    before: float
    after: float
    done: bool

    @property
    def gain(self) -> float:
        """By how much the validation score has risen, in nats; never negative."""
        return self.after - self.before


def improve_run(
    run: Run | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    progress: bool | None = None,
    tell: Tell = to_stderr,
) -> ImprovedRun:
    """Train the encoder of a run further with `gpin.improve`, as the command of that name does.

    The run itself is left as it is. The new one has the same data and decoder, and its history continues that of the
    run. The same call again finds the new run complete.

    Arguments:
        run: The trained run, or its folder.
        out: The folder of the new run; by default the run's folder with "-improved" after its name.
        data: The new location of the run's data, if it has moved.
        options: Options of `gpin.improve`, such as {"epochs": 20}; by default the run's batch size.
        device: The device, such as "cpu" or "cuda"; by default the CPU.
        progress: Whether to show a progress bar; by default if there is a terminal.
        tell: Called with each message for the user.
    """
    run = as_run(run)
    if run.fitted:
        raise InputError(f"{run.folder} was trained by gpin.fit: improve its model in Python with gpin.improve")
    chosen = {"batch_size": run.settings.training.batch_size, **(options or {})}
    for name in chosen:
        if name not in OPTIONS:
            raise InputError(f"there is no option {name!r} for improving a run: {suggest(name, list(OPTIONS))}")
    source = run.folder.resolve()
    folder = source.with_name(f"{source.name}-improved") if out is None else as_path(out, "the folder of the new run")
    history, finished = run.history(tell)
    if not finished:
        raise InputError(f"{run.folder} is not finished: repeat its training command first")
    vae = run.load(tell)
    new = replace(run, folder=folder, start=vae.checksum())
    if folder.exists() and any(folder.iterdir()):
        return _found(new, chosen)
    parts = run.data(data)
    if device is not None:
        vae.to(device_named(device))
    result = improve(vae, parts.train, parts.validation, progress=progress, tell=tell, **chosen)
    # The scores of these epochs are those with this number of steps.
    stage = "improve" if (steps := chosen.get("steps")) is None else f"improve, {steps} steps"
    epochs = [replace(epoch, stage=stage) for epoch in result.epochs]
    best = len(history.epochs) + result.best if result.best else history.best
    whole = History([*history.epochs, *epochs], best, history.stopped)
    new.write()
    if (run.folder / "environment.json").is_file():
        shutil.copy(run.folder / "environment.json", folder / "environment.json")
    vae.save(folder / "model")
    weights = {f"best/{name}": tensor for name, tensor in vae.state_dict().items()}
    record = {"history": whole.record(), "finished": True, "about": new.identity}
    Checkpoints(folder / "checkpoints").write(len(whole.epochs), Checkpoint(weights, record))
    write_record(
        folder / "improvement.json",
        FORMAT,
        VERSION,
        {"options": chosen, "start": new.start, "before": result.before, "after": result.after},
    )
    return ImprovedRun(new, result.before, result.after, done=False)


def _found(new: Run, options: Mapping[str, Any]) -> ImprovedRun:
    """The improved run in a folder that is not empty; anything else there raises InputError."""
    path = new.folder / "improvement.json"
    record = read_record(path, FORMAT, VERSION, "the record of an improvement") if path.is_file() else {}
    if record.get("options") != options or record.get("start") != new.start:
        raise InputError(
            f"{new.folder} exists and is not this run improved with these options: move it away, or choose another "
            "folder with `out`"
        )
    return ImprovedRun(open_run(new.folder), record["before"], record["after"], done=True)
