"""`fit`: maximises the ELBO with Adam, validates after each epoch, keeps the best weights, and resumes in a folder."""

import errno
import hashlib
import inspect
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gpin._core.errors import InputError, StopTraining, TrainingError
from gpin._core.files import as_path, checksum
from gpin._core.identity import fingerprint, same_structure
from gpin._core.inputs import as_tensor, positive_number, warn_of_bytes
from gpin._core.messages import Tell, silent, to_stderr
from gpin._core.seeding import seeded
from gpin.building import from_config
from gpin.data import Batches, Conditioned, hold_out
from gpin.training.augmentation import Augmentation
from gpin.training.calibration import calibrate_with
from gpin.training.checkpoints import Checkpoint, Checkpoints
from gpin.training.fitted import save_fitted, write_fitted
from gpin.training.history import Epoch, History, Metrics
from gpin.training.interrupts import interruptible
from gpin.training.loggers import Logger, Loggers, as_loggers
from gpin.training.processes import Processes
from gpin.training.progress import progress_bar
from gpin.training.settings import AUTO, TrainingConfig
from gpin.training.trainer import Trainer
from gpin.training.validation import warning_of_overfitting
from gpin.vae import VAE

__all__ = ["OnEpoch", "as_batches", "check_model", "fit", "run"]

OnEpoch = Callable[[int, Epoch], Any]
"""A function that is called with the number and the result of each epoch, and may end training."""


def fit(
    vae: VAE,
    x_train: Any,
    x_val: Any = None,
    *,
    y: Any = None,
    y_val: Any = None,
    epochs: int | Literal["auto"] = AUTO,
    steps: int | None = None,
    batch_size: int | Literal["auto"] = AUTO,
    learning_rate: float | Literal["auto"] = AUTO,
    schedule: Literal["constant", "cosine"] = "constant",
    clip_norm: float | None = None,
    ema: float = 0.0,
    weight_decay: float = 0.0,
    augmentation: Augmentation = "none",
    kl_warmup: float = 0.0,
    patience: int | Literal["auto"] | None = AUTO,
    seed: int = 0,
    max_time: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    folder: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    log: str | Logger | Sequence[str | Logger] | None = None,
    progress: bool | None = None,
    on_epoch: OnEpoch | None = None,
    tell: Tell | None = None,
    identity: str | None = None,
    calibrate: bool = True,
) -> History:
    """Train a VAE; afterwards it is in evaluation mode, with the weights of its best epoch on validation data.

    The best epoch is that with the highest validation score, the importance-weighted bound on log p(x) from four
    samples of q(z|x) per instance; the `best` of the history says which it is. The score is the same for all methods.

    Arguments:
        vae: The model to train, in place.
        x_train: The training data: a tensor, an array, a `Dataset` or a `DataLoader`.
        x_val: The validation data, in any of these forms; by default a random tenth of the training data is held out.
        y: The conditions of the training data, for a conditional model, see :meth:`VAE.check`.
        y_val: The conditions of the validation data.
        epochs: Passes through the training data. By default, training has a budget of 10,000 or, with 20,000 and more
            instances, 20,000 steps, and stops early; see `TrainingConfig.resolved` for all automatic choices. A number
            is obeyed exactly.
        steps: The number of steps of Adam as the budget, instead of `epochs`; it is rounded up to whole epochs.
        batch_size: Instances per step, over all processes. By default 32, 64 or 128 by the size of the data, and 128 if
            `epochs` is a number.
        learning_rate: The learning rate of Adam at the start. By default 1e-3 for batches of 32 and 64 that were chosen
            by the size of the data, and otherwise 5e-4.
        schedule: The learning rate is "constant", as in the paper, or falls to zero along a "cosine".
        clip_norm: Gradients whose norm exceeds this value are scaled down to it; None disables clipping.
        ema: The decay of an exponential moving average of the weights, such as 0.999. The average is used for
            validation and as the result of training; 0 uses the weights themselves.
        weight_decay: The decay of weights relative to the learning rate, as in AdamW, such as 0.01. Biases, the
            variances of likelihoods and random weights, which have a prior, do not decay.
        augmentation: Random changes of training images: "shift" by up to a fourteenth of each side, "flip" left and
            right, "shift+flip" or "none". Flips suit pictures whose mirror image is as likely, and not digits.
        kl_warmup: The number of epochs, or fraction of one, in which the weight of KL(q(z|x) ‖ p(z)) in the loss rises
            from 0 to 1; 0 has no warm-up. It can prevent the collapse of q(z|x) to the prior early in training.
        patience: Stop after this many epochs without a better validation score; None trains for all epochs. By default
            500 steps and at least 10 epochs, and None if `epochs` is a number.
        seed: The seed of the order of the data, the held-out part and all noise. Torch's global random state is left
            unchanged.
        max_time: The time, in seconds, after which this call stops between two steps. `History.paused` is then true,
            the model has its best weights so far, and the same call resumes the run if it has a folder.
        device: The device to which the model is moved first; by default it stays where it is.
        dtype: The precision to train in, torch.float32 or torch.float64; by default that of the model.
        folder: The folder for checkpoints, metrics and the trained model, which `gpin evaluate` and the other commands
            open as a run. Calling `fit` again with the same arguments resumes a stopped or killed run, with
            bit-identical results, and returns at once if the run had finished. A folder that holds another run raises
            InputError.
        checkpoint_seconds: How often to write a checkpoint; at most this much work is lost.
        tensorboard: The same as log="tensorboard".
        log: Where to log the results of each epoch: "tensorboard" (needs a folder), "wandb" or "mlflow", each with the
            extra of that name; an object with the methods of `gpin.training.Logger`; or a list of these. A resumed run
            continues its run in W&B or MLflow, if it has a folder.
        progress: Show a progress bar; by default if stderr is a terminal. If it is not one, `tell` is called by default
            with a line after an epoch, at most once a minute; False does without either.
        on_epoch: Called after each epoch with its number, from 1, and its result. If it returns False or raises
            `gpin.StopTraining`, training ends: the model has its best weights so far, `History.stopped` is true, and a
            run in a folder counts as finished, so that the same call does not resume it.
        tell: Called with messages for the user, such as a warning when the validation score falls while the training
            ELBO rises; by default they are printed on stderr.
        identity: Distinguishes this run from others in the same folder; by default a hash of the options of the model
            and of training and of all data. For a model with modules of your own, or with frozen parameters, the hash
            also covers their code, attributes, buffers, hooks and frozen parameters. It does not cover the initial
            values of trainable parameters, because a resumed run takes them from its checkpoint: models that differ
            only in the `seed` or `start` of `gpin.build` count as the same, so give each its own folder or identity.
        calibrate: Calibrate `vae.gap` at the end, with at most 1,000 validation instances, of which at most 500 are
            refined, and from 2,000 training instances on with at most 10,000 of these. With fewer than 50 validation
            instances there is no calibration. It takes seconds to minutes.
    """
    config = TrainingConfig.parse(
        {
            "epochs": epochs,
            "steps": steps,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "schedule": schedule,
            "clip_norm": clip_norm,
            "ema": ema,
            "weight_decay": weight_decay,
            "augmentation": augmentation,
            "kl_warmup": kl_warmup,
            "patience": patience,
            "seed": seed,
        },
        "training",
    )
    check_model(vae, config, on_epoch)
    if max_time is not None:
        positive_number(max_time, "max_time")
    if not checkpoint_seconds >= 0:
        raise InputError(f"checkpoint_seconds must not be negative, got {checkpoint_seconds}")
    if folder is not None and isinstance(x_train, DataLoader):
        raise InputError("a DataLoader cannot be resumed because its order is unknown: pass its Dataset, or no folder")
    place = None if folder is None else as_path(folder)
    chosen = as_loggers(place, log, "tensorboard" if tensorboard else None)
    vae.move(device, dtype)
    processes = Processes(next(vae.parameters()).device)
    vae.to(processes.device)
    tell, asked = to_stderr if tell is None else tell, config
    training, validation, config = as_batches(vae, x_train, x_val, config, y, y_val)
    if processes.first and (choices := asked.choices(config, len(training))):
        tell(f"chosen by the size of the data: {choices}")
    store = None if place is None else _Store(place, processes, checkpoint_seconds, tell)

    modules = None if store is None or identity else _modules(vae)

    with seeded(config.seed), _remembered(vae, modules):
        saved = None
        if store is not None:
            saved = store.load(identity or _about(vae, modules, training, validation, config), vae)
        if saved is None:
            vae.prepare(vae.check(x) for x, _ in training)
            processes.synchronise(list(vae.state_dict().values()))
        trainer = Trainer(vae, training, validation, config, processes)
        try:
            if saved is not None:
                trainer.restore(saved)
            run(trainer, store, Loggers(chosen, tell), progress, on_epoch, tell, max_time)
        finally:
            trainer.take_best()
    if calibrate and not trainer.history.paused:
        calibrate_with(vae, training, validation, config.seed, tell if processes.first else silent)
    if store is not None and not trainer.history.paused:
        store.save(vae)
    return trainer.history


def check_model(vae: VAE, config: TrainingConfig, on_epoch: OnEpoch | None) -> None:
    """Raise InputError unless the model can be trained with these options."""
    if not isinstance(vae, VAE):
        raise InputError(f"the model to train must be a gpin.VAE, got {type(vae).__name__}")
    if config.kl_warmup and "kl_weight" not in inspect.signature(vae.inference.objective).parameters:
        raise InputError(
            f"method {vae.inference.name!r} has no KL warm-up: its objective does not take a kl_weight; use kl_warmup=0"
        )
    if config.augmentation != "none" and len(vae.shape) != 3:
        raise InputError(
            f"augmentation={config.augmentation!r} is for images of shape (channels, height, width), but the data has "
            f"shape {vae.shape}; use augmentation='none'"
        )
    if on_epoch is not None and not callable(on_epoch):
        raise InputError(f"on_epoch must be a function of the epoch's number and result, got {on_epoch!r}")


def as_batches(
    vae: VAE, x_train: Any, x_val: Any, config: TrainingConfig, y: Any = None, y_val: Any = None
) -> tuple[Batches, Batches, TrainingConfig]:
    """The training data in random order, the validation data, and the options that are chosen by the size of the first.

    By default, the validation data is a random tenth of the training data. Those of a conditional model are joined
    rows, see `gpin.conditions`.
    """
    if y_val is not None and x_val is None:
        raise InputError("y_val needs x_val: leave it out, since the held-out part takes its conditions from y")
    if (y is None) != (y_val is None) and x_val is not None:
        raise InputError("y and y_val belong together: give the conditions of the training and the validation data")
    x_train, x_val = _with_conditions(vae, x_train, y), _with_conditions(vae, x_val, y_val)
    order = torch.Generator().manual_seed(config.seed)
    if x_val is None:
        x_train, x_val = hold_out(x_train, order)
    training = Batches(x_train, config.batch_size, order)
    config = config.resolved(training.size, len(x_train) if isinstance(x_train, DataLoader) else None)
    training.batch_size = config.batch_size
    validation = Batches(x_val, config.batch_size)
    for x, _ in validation:  # report invalid data now and not after the first epoch
        vae.check(x)
    return training, validation, config


def _with_conditions(vae: VAE, data: Any, y: Any) -> Any:
    """The data with its conditions, if there are any."""
    if y is None:
        return data  # of a model without a condition, or with rows that are joined already
    if isinstance(data, DataLoader):
        raise InputError("y cannot be matched with a DataLoader, whose order is unknown: pass its Dataset")
    if vae.likelihood.density and isinstance(data, Tensor | np.ndarray):
        warn_of_bytes(as_tensor(data, "x"))  # which joined rows no longer are
    return Conditioned(data, vae.conditions(y, len(data)).cpu())


def run(
    trainer: Trainer,
    store: "_Store | None" = None,
    loggers: Loggers | None = None,
    progress: bool | None = None,
    on_epoch: OnEpoch | None = None,
    tell: Tell = to_stderr,
    max_time: float | None = None,
) -> None:
    """Train to the end or for `max_time` seconds; report to the bar, the folder, loggers and the user's functions."""
    first = trainer.processes.first
    loggers = loggers if first and loggers is not None else Loggers()
    if store is not None:
        store.begin(trainer)
    logging = loggers.logging(_described(trainer), trainer.history, trainer.finished)
    if trainer.finished:
        with logging:  # which records the run where it has not been recorded
            return
    steps, shown = len(trainer.training), progress if first else False
    bar = progress_bar(trainer.config.epochs, steps, trainer.updates, shown, tell)
    signals = interruptible(store is not None, trainer.processes.alone)
    deadline = math.inf if max_time is None else time.monotonic() + max_time
    with suppress(_OutOfTimeError), logging, signals as asked, bar as (advance, show):

        def stopped() -> bool:
            return asked() or time.monotonic() >= deadline

        def after_step(stop: bool) -> None:
            advance()
            if store is not None:
                store.after_step(trainer, stop)
            if stop:
                # A signal, perhaps to another process, is an interruption even if time is up as well.
                if trainer.processes.any(asked()):
                    raise KeyboardInterrupt
                trainer.history.paused = True
                raise _OutOfTimeError

        def after_epoch() -> None:
            result = trainer.history.epochs[-1]
            show(result)
            warning = warning_of_overfitting(trainer.history.epochs, trainer.config.patience is not None)
            if first and warning is not None:
                tell(warning)
            if store is not None:
                store.after_epoch(trainer)
            loggers.log(trainer.history)
            stop = on_epoch is not None and first and _stops(on_epoch, len(trainer.history.epochs), result)
            if trainer.processes.any(stop) and not trainer.finished:
                trainer.stop()
                if store is not None:
                    store.finish(trainer)

        trainer.run(after_step, after_epoch, stopped)


class _OutOfTimeError(Exception):
    """The time that training was given is up."""


def _described(trainer: Trainer) -> dict[str, Any]:
    """The options of a training for its loggers."""
    model = trainer.vae.config
    return {
        "model": {} if model is None else model.model_dump(mode="json"),
        "training": trainer.config.model_dump(),
        "instances": {"train": trainer.training.size, "validation": trainer.validation.size},
    }


def _stops(on_epoch: OnEpoch, number: int, result: Epoch) -> bool:
    """Whether the user's function ends training."""
    try:
        answer = on_epoch(number, result)
    except StopTraining:
        return True
    return isinstance(answer, bool | np.bool_) and not answer


class _Store:
    """The folder of a run during training: checkpoints and metrics, written only by the first process."""

    def __init__(self, folder: Path, processes: Processes, every: float, tell: Tell) -> None:
        self.folder, self.processes, self.every, self.tell = folder, processes, every, tell
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.about = ""
        self.written = time.monotonic()
        self.metrics: Metrics | None = None
        self.complete = False
        if folder.exists() and not folder.is_dir():
            raise InputError(f"cannot train in {folder}: it is a file and not a folder")

    def load(self, about: str, vae: VAE) -> Checkpoint | None:
        """The newest undamaged checkpoint; that of another run or precision raises InputError."""
        self.about = about
        first = self.processes.first
        saved = self.checkpoints.latest(self.tell if first else silent)
        if saved is not None and (
            saved.record["about"] != about or _precisions(saved.part("best")) != _precisions(vae.state_dict())
        ):
            raise InputError(
                f"{self.folder} holds another run: its model, options or data differ from these; choose another folder"
            )
        return saved

    def begin(self, trainer: Trainer) -> None:
        """Write to the folder before the first step, so that a folder that is not writable fails now.

        For a finished run, only missing or damaged metrics are written again.
        """
        if not self.processes.first:
            return
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.metrics = Metrics(self.folder, trainer.history)
            if trainer.finished:
                self.metrics.close(trainer.history)
        self.complete = trainer.finished and not trainer.updates
        with self._adding():
            write_fitted(self.folder, trainer.vae, trainer.config, trainer.training)
        if trainer.finished == bool(trainer.updates):  # a new training, or one that was killed before its last write
            self._write(trainer)

    def after_step(self, trainer: Trainer, stop: bool) -> None:
        """Write a checkpoint if one is due, or if training was asked to stop."""
        if self.processes.first and (stop or time.monotonic() - self.written >= self.every):
            self._write(trainer)

    def after_epoch(self, trainer: Trainer) -> None:
        """Write the metrics, and a checkpoint if one is due; at the end of training the last one."""
        if self.metrics is not None:
            with self._writing():
                self.metrics.add(trainer.history)
            if trainer.finished:
                self.finish(trainer)
            elif time.monotonic() - self.written >= self.every:
                self._write(trainer)

    def finish(self, trainer: Trainer) -> None:
        """Write the metrics as a table, the state from which a longer training goes on, and the last checkpoint."""
        if self.metrics is not None:
            with self._writing():
                self.metrics.close(trainer.history)
            if not trainer.history.stopped:
                self._write(trainer, last=True)
            self._write(trainer)

    def save(self, vae: VAE) -> None:
        """Write the trained model, so that `gpin.load` and the commands find it."""
        if self.processes.first:
            with self._adding():
                save_fitted(self.folder, vae)

    def _adding(self) -> AbstractContextManager[None]:
        """A context that adds files to the folder, if it can: that of a finished run may be read-only."""
        return suppress(OSError) if self.complete else self._writing()

    def _write(self, trainer: Trainer, last: bool = False) -> None:
        captured = trainer.capture(last)
        checkpoint = Checkpoint(captured.tensors, {**captured.record, "about": self.about})
        with self._writing():
            self.checkpoints.write(trainer.updates + captured.record["finished"], checkpoint)
        self.written = time.monotonic()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors in writing to the folder into TrainingError."""
        try:
            yield
        except OSError as error:
            kept = "the last good checkpoint is kept: " if self.checkpoints.any() else ""
            remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "fix this"
            raise TrainingError(
                f"cannot write to {self.folder}: {error.strerror or error}; {kept}{remedy} and run again"
            ) from error


def _modules(vae: VAE) -> str | None:
    """The fingerprint of the model before its first training; None if the config describes the model completely.

    Training changes buffers, such as running statistics. A model that an earlier call of `fit` has left in just this
    state is therefore identified as it was when that call began.
    """
    config = vae.config
    if config is not None and not config.own and all(p.requires_grad for p in vae.parameters()):
        with seeded(0):
            described = from_config(config)
        if same_structure(vae, described):
            return None
    now = fingerprint(vae)
    start, end = vae._gpin_fingerprints or (now, now)
    return start if now == end else now


@contextmanager
def _remembered(vae: VAE, modules: str | None) -> Iterator[None]:
    """After the context, however it ends, the model remembers its fingerprint before it, `modules`, and that of now."""
    try:
        yield
    finally:
        if modules is not None:
            with suppress(InputError):  # training added what cannot be described: then the model has no past
                vae._gpin_fingerprints = (modules, fingerprint(vae))


def _about(vae: VAE, modules: str | None, training: Batches, validation: Batches, config: TrainingConfig) -> str:
    """The identity of a run: a hash of model, options and data; `modules` is the fingerprint if the model needs one."""
    model = None if vae.config is None else vae.config.model_dump(mode="json")
    seen = hashlib.sha256()
    for batches in (Batches(training.data, 1024), validation):
        for x, _ in batches:
            seen.update(x.detach().cpu().double().numpy().tobytes())
    return checksum(
        {
            "model": model,
            **({} if modules is None else {"modules": modules}),
            "parameters": {name: list(p.shape) for name, p in vae.named_parameters()},
            "training": config.model_dump(mode="json"),
            "sizes": [training.size, validation.size],
            "data": seen.hexdigest(),
        }
    )


def _precisions(tensors: Mapping[str, Tensor]) -> set[torch.dtype]:
    return {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
