"""`fit`: Adam on the ELBO, validation after each epoch, the best weights at the end; resumable with a folder."""

import errno
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from gpin._core.errors import InputError, TrainingError
from gpin._core.files import as_path, checksum
from gpin._core.seeding import seeded
from gpin.data import Batches, hold_out
from gpin.training.checkpoints import Checkpoint, Checkpoints
from gpin.training.history import Epoch, History, Metrics
from gpin.training.interrupts import interruptible
from gpin.training.processes import Processes
from gpin.training.progress import progress_bar
from gpin.training.settings import TrainingConfig
from gpin.training.trainer import Trainer
from gpin.vae import VAE

__all__ = ["fit"]


def fit(
    vae: VAE,
    x_train: Any,
    x_val: Any = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    progress: bool | None = None,
    on_epoch: Callable[[int, Epoch], None] | None = None,
    tell: Callable[[str], None] | None = None,
    identity: str | None = None,
    **options: Any,
) -> History:
    """Train a VAE, and leave it with the weights of its best epoch on validation data, in evaluation mode.

    Arguments:
        vae: What to train, in place.
        x_train: A tensor, an array, a `Dataset` or a `DataLoader`.
        x_val: Likewise; without it a tenth of the training data is held out, at random.
        folder: Keep checkpoints and metrics here. The same call again goes on where it was stopped or killed, to
            the same bits, and returns at once where it had finished.
        checkpoint_seconds: How often to write a checkpoint; so much is lost at most.
        tensorboard: Write events for TensorBoard into the folder (an extra).
        progress: Show a progress bar; by default where there is a terminal.
        on_epoch: Called after each epoch with its number, from 1, and its result.
        tell: Called with a sentence on what the user should know, such as a damaged checkpoint; by default it is
            printed on stderr.
        identity: What tells this run from others in the same folder; by default a hash of the model's and the
            training's options and of all data. The first weights are not in it: those of a resumed run are its own.
        options: Those of :class:`TrainingConfig`: epochs=50, batch_size=128, learning_rate=5e-4,
            schedule="constant", clip_norm=None, ema=0.0, patience=None, seed=0. Torch's global random state is
            left alone.
    """
    if not isinstance(vae, VAE):
        raise InputError(f"the model to train must be a gpin.VAE, got {type(vae).__name__}")
    config = TrainingConfig.parse(options, "training")
    if tensorboard and folder is None:
        raise InputError("tensorboard=True needs a folder to write its events to")
    if not checkpoint_seconds >= 0:
        raise InputError(f"checkpoint_seconds must not be negative, got {checkpoint_seconds}")
    if folder is not None and isinstance(x_train, DataLoader):
        raise InputError("a DataLoader cannot be resumed, for it hides its order: pass its Dataset, or no folder")
    processes = Processes(next(vae.parameters()).device)
    vae.to(processes.device)
    order = torch.Generator().manual_seed(config.seed)
    if x_val is None:
        x_train, x_val = hold_out(x_train, order)
    training = Batches(x_train, config.batch_size, order)
    validation = Batches(x_val, config.batch_size)
    for x, _ in validation:  # what is wrong with it should be said now, not after the first epoch
        vae.check(x)
    store = None if folder is None else _Store(as_path(folder), processes, checkpoint_seconds, tell or _print)

    with seeded(config.seed):
        saved = None if store is None else store.load(identity or _about(vae, training, validation, config))
        if saved is None:
            vae.prepare(vae.check(x) for x, _ in training)
            processes.synchronise(list(vae.state_dict().values()))
        trainer = Trainer(vae, training, validation, config, processes)
        try:
            if saved is not None:
                trainer.restore(saved)
            _run(trainer, store, tensorboard, progress, on_epoch)
        finally:
            trainer.take_best()
    return trainer.history


def _run(
    trainer: Trainer,
    store: "_Store | None",
    tensorboard: bool,
    progress: bool | None,
    on_epoch: Callable[[int, Epoch], None] | None,
) -> None:
    """Train on, and tell everyone who wants to know."""
    first = trainer.processes.first
    if store is not None:
        store.begin(trainer, tensorboard)
    if trainer.finished:
        return
    steps, shown = len(trainer.training), progress if first else False
    bar = progress_bar(trainer.config.epochs, steps, trainer.updates, shown)
    signals = interruptible(store is not None, trainer.processes.alone)
    with signals as asked, bar as (advance, show):

        def after_step(stop: bool) -> None:
            advance()
            if store is not None:
                store.after_step(trainer, stop)

        def after_epoch() -> None:
            result = trainer.history.epochs[-1]
            show(result)
            if store is not None:
                store.after_epoch(trainer)
            if on_epoch is not None and first:
                on_epoch(len(trainer.history.epochs), result)

        trainer.run(after_step, after_epoch, asked)


class _Store:
    """A run's folder while it is trained: checkpoints and metrics, written by the first process alone."""

    def __init__(self, folder: Path, processes: Processes, every: float, tell: Callable[[str], None]) -> None:
        self.folder, self.processes, self.every, self.tell = folder, processes, every, tell
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.about = ""
        self.written = time.monotonic()
        self.metrics: Metrics | None = None
        if folder.exists() and not folder.is_dir():
            raise InputError(f"cannot train in {folder}: it is a file, and a folder is needed")

    def load(self, about: str) -> Checkpoint | None:
        """The newest good checkpoint, if it is of the same training."""
        self.about = about
        first = self.processes.first
        saved = self.checkpoints.latest(self.tell if first else lambda sentence: None)
        if saved is not None and saved.record["about"] != about:
            raise InputError(
                f"{self.folder} holds another run: its model, options or data differ from these; choose another folder"
            )
        return saved

    def begin(self, trainer: Trainer, tensorboard: bool) -> None:
        """Before the first step: better to fail now than after an hour, if the folder cannot be written to.

        Of a finished run, the metrics are only mended.
        """
        if not self.processes.first:
            return
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.metrics = Metrics(self.folder, trainer.history, tensorboard)
            if trainer.finished:
                self.metrics.close(trainer.history)
        if not trainer.finished and not trainer.updates:
            self._write(trainer)

    def after_step(self, trainer: Trainer, stop: bool) -> None:
        """Write a checkpoint when it is time, or when asked to stop."""
        if self.processes.first and (stop or time.monotonic() - self.written >= self.every):
            self._write(trainer)
        if stop:
            raise KeyboardInterrupt

    def after_epoch(self, trainer: Trainer) -> None:
        """Write the metrics, and at the end of training the last checkpoint."""
        if self.metrics is not None:
            with self._writing():
                self.metrics.add(trainer.history)
                if trainer.finished:
                    self.metrics.close(trainer.history)
            if trainer.finished or time.monotonic() - self.written >= self.every:
                self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        captured = trainer.capture()
        checkpoint = Checkpoint(captured.tensors, {**captured.record, "about": self.about})
        with self._writing():
            self.checkpoints.write(trainer.updates, checkpoint)
        self.written = time.monotonic()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What keeps the folder from being written to becomes a sentence."""
        try:
            yield
        except OSError as error:
            kept = "the last good checkpoint is kept: " if self.checkpoints.any() else ""
            mend = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend that"
            raise TrainingError(
                f"cannot write to {self.folder}: {error.strerror or error}; {kept}{mend} and run the same again"
            ) from error


def _about(vae: VAE, training: Batches, validation: Batches, config: TrainingConfig) -> str:
    """What a run is of: model, options and data."""
    seen = hashlib.sha256()
    for batches in (Batches(training.data, 1024), validation):
        for x, _ in batches:
            seen.update(x.detach().cpu().double().numpy().tobytes())
    return checksum(
        {
            "model": None if vae.config is None else vae.config.model_dump(mode="json"),
            "parameters": {name: list(p.shape) for name, p in vae.named_parameters()},
            "training": config.model_dump(mode="json"),
            "sizes": [training.size, validation.size],
            "data": seen.hexdigest(),
        }
    )


def _print(sentence: str) -> None:
    print(f"gpin: {sentence}", file=sys.stderr)
