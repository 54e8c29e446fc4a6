"""Going on where a shorter training of the same run has ended.

A run for more epochs, or with more patience, makes the same steps as a shorter one until that ends, so its training
begins with a checkpoint of the shorter one, and ends with the same bits as if it had been asked for from the start.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from gpin._core.errors import InputError
from gpin._core.messages import Tell
from gpin.runs.folder import Run, open_run
from gpin.training import TrainingConfig
from gpin.training.checkpoints import Checkpoint, Checkpoints
from gpin.training.trainer import stage_beginnings
from gpin.vae import VAE

__all__ = ["almost", "go_on"]

BUDGET = ("epochs", "patience")
"""The options that say when training ends, and nothing about its steps unless the learning rate has a schedule."""


def go_on(run: Run, vae: VAE, tell: Tell) -> None:
    """Give a run that has not begun a checkpoint of a shorter training beside it, if there is one.

    The other run is left as it is.

    Arguments:
        run: The run, whose folder is below that of all runs.
        vae: The model before training.
        tell: Called with a sentence that says where training goes on, or why it cannot.
    """
    own = Checkpoints(run.folder / "checkpoints")
    if own.any():
        return
    training = run.settings.training
    shorter = [known for known in _others(run) if _about(known) == _about(run)]
    if training.schedule != "constant":
        if shorter:
            tell(
                f"{shorter[0].folder} differs in the number of epochs or the patience only, but with "
                f"schedule={training.schedule!r} the learning rate of every step depends on the number of epochs, so "
                f"training starts afresh; `start={shorter[0].folder}` starts from its weights"
            )
        return
    found = [(known, state) for known in shorter if (state := _state(known, training, vae)) is not None]
    if found:
        known, state = max(found, key=lambda pair: pair[1].record["updates"])
        number = state.record["updates"]
        tell(f"going on after step {number:,} of {known.folder}, which has the same settings and stays as it is")
        own.write(number, Checkpoint(state.tensors, {**state.record, "about": run.identity}))


def almost(run: Run, vae: VAE, asked: TrainingConfig, size: int) -> tuple[Run, dict[str, Any]] | None:
    """The run beside a new one with which training would go on if options that were not given had other values.

    Such options are the batch size and the learning rate, whose defaults depend on how the budget is given. Returns
    that run and the values of these options, or None if there is no such run.

    Arguments:
        run: The new run.
        vae: Its model.
        asked: The options of training before any was chosen by the size of the data.
        size: The number of training instances.
    """
    found = []
    for known in _others(run):
        theirs = known.settings.training
        other = _different(run.settings.training, theirs, asked.model_fields_set)
        if not other or _about(known, {*BUDGET, *other}) != _about(run, {*BUDGET, *other}):
            continue
        training = TrainingConfig(**{**asked.model_dump(), **other}).resolved(size)
        state = None if training.schedule != "constant" else _state(known, training, vae)
        if state is not None:
            found.append((state.record["updates"], known, other))
    return max(found, key=lambda one: one[0])[1:] if found else None


def _different(training: TrainingConfig, theirs: TrainingConfig, given: Collection[str]) -> dict[str, Any]:
    """The options, not given, of the other training that prevent this one from going on with it."""
    free = [name for name in TrainingConfig.model_fields if name not in (*BUDGET, "seed", "steps", *given)]
    other = {name: getattr(theirs, name) for name in free if getattr(theirs, name) != getattr(training, name)}
    if other and "patience" not in given and not _patient(training, theirs):
        other["patience"] = theirs.patience
    return other


def _others(run: Run) -> list[Run]:
    """The runs beside a run that have the same data and method by their names, and can be opened."""
    start = run.folder.name.rpartition("-")[0]
    found = []
    for folder in sorted(Path(run.folder.parent).glob("*")):
        if folder != run.folder and folder.name.rpartition("-")[0] == start and (folder / "run.json").is_file():
            try:
                found.append(open_run(folder))
            except InputError:
                continue
    return found


def _about(run: Run, without: Collection[str] = BUDGET) -> dict[str, Any]:
    """All that determines the steps of a training, but not when it ends, nor other options of training to ignore."""
    record = run.record()
    training = {name: value for name, value in record["settings"]["training"].items() if name not in without}
    settings = {**record["settings"], "training": training}
    return {"settings": settings, **{name: record[name] for name in ("model", "scaling", "fingerprint", "start")}}


def _state(known: Run, asked: TrainingConfig, vae: VAE) -> Checkpoint | None:
    """A state of the other run's training that is one of a training with these options as well."""
    state = Checkpoints(known.folder / "checkpoints").unfinished()
    if state is None or not state.record["updates"] or state.record["about"] != known.identity:
        return None
    beginnings = stage_beginnings([stage.share for stage in vae.inference.stages()], asked.epochs)
    alike = state.record.get("scored", False) and state.record["beginnings"] == beginnings
    patient = _patient(asked, known.settings.training)
    begun = state.record["epoch"] - (state.record["step"] == 0)  # between two epochs, the next one has not begun
    return state if alike and patient and begun <= asked.epochs else None


def _patient(asked: TrainingConfig, theirs: TrainingConfig) -> bool:
    """Whether a training ends no earlier than the other one for lack of patience."""
    return asked.patience is None or (theirs.patience is not None and asked.patience >= theirs.patience)
