"""`improve`: trains the encoder of a trained model alone, on images and on samples of its decoder."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gpin._core.errors import InputError
from gpin._core.inputs import whole_number
from gpin._core.messages import Tell, silent, to_stderr
from gpin._core.seeding import seeded
from gpin.data import Batches
from gpin.generative import frozen
from gpin.training.augmentation import Augmentation
from gpin.training.calibration import calibrate_with
from gpin.training.history import History
from gpin.training.loop import OnEpoch, as_batches, check_model, run
from gpin.training.processes import Processes
from gpin.training.settings import TrainingConfig
from gpin.training.trainer import Trainer
from gpin.vae import VAE

__all__ = ["Improvement", "improve"]


@dataclass
class Improvement(History):
    """The history of `gpin.improve`; `best` is 0 if no epoch was better than the model before.

    Attributes:
        before: The validation score of the model before, in nats.
    """

    before: float = math.nan

    @property
    def after(self) -> float:
        """The validation score of the model now, in nats."""
        score = self.scores[self.best - 1] if self.best else None
        return self.before if score is None else score

    @property
    def gain(self) -> float:
        """By how much the validation score has risen, in nats; never negative."""
        return self.after - self.before


def improve(
    vae: VAE,
    x: Any,
    validation: Any = None,
    *,
    y: Any = None,
    y_val: Any = None,
    steps: int | None = None,
    samples: float = 0.2,
    epochs: int = 10,
    batch_size: int = 128,
    learning_rate: float = 5e-4,
    schedule: Literal["constant", "cosine"] = "cosine",
    clip_norm: float | None = None,
    ema: float = 0.0,
    weight_decay: float = 0.0,
    augmentation: Augmentation = "none",
    patience: int | None = None,
    seed: int = 0,
    calibrate: bool = True,
    progress: bool | None = None,
    on_epoch: OnEpoch | None = None,
    tell: Tell | None = None,
) -> Improvement:
    """Train the encoder of a trained model further; its decoder and likelihood stay as they are, bit for bit.

    An encoder overfits sooner than a decoder, and a decoder that has stopped changing is an easier target. This is the
    reverse half-asleep training of Zhang et al. (2022): the ELBO of real images, and −log q(z|x) of pairs (x, z) that
    are drawn from the model. The model keeps the weights with the best validation score, those it had
    before included, so that the score never falls.

    Arguments:
        vae: The trained model, with any method; its encoder is changed in place.
        x: The training data, as in `gpin.fit`.
        validation: The validation data; by default a random tenth of x is held out. Give the data that was held out in
            training: to a model that has seen it, no overfitting can be noticed.
        y: The conditions of x, for a conditional model, as in `gpin.fit`.
        y_val: The conditions of the validation data.
        steps: The number of natural-gradient steps with which the encoder is trained and validated, for a method that
            takes them: 0 improves the answer of the encoder alone, one forward pass. By default the method's own
            number, which this does not change.
        samples: The weight, from 0 to 1, of pairs drawn from the model in the loss; 0 trains on real images alone.
        epochs: Passes through the training data.
        batch_size: Instances per step.
        learning_rate: The learning rate of Adam at the start.
        schedule: The learning rate falls to zero along a "cosine" or is "constant".
        clip_norm: As in `gpin.fit`, like `ema`, `weight_decay`, `augmentation` and `patience`.
        ema: See `clip_norm`.
        weight_decay: See `clip_norm`.
        augmentation: See `clip_norm`.
        patience: See `clip_norm`.
        seed: The seed of the order of the data, the held-out part and all noise.
        calibrate: Calibrate `vae.gap` again at the end, as in `gpin.fit`, since another encoder has other gaps.
        progress: Show a progress bar; by default if stderr is a terminal.
        on_epoch: As in `gpin.fit`.
        tell: Called with messages for the user, such as the gain at the end; by default they are printed on stderr.

    Example:
        >>> import gpin
        >>> x = torch.randn(60, 5)
        >>> vae = gpin.build((5,), "vae", 2, seed=0)
        >>> _ = gpin.fit(vae, x[:50], x[50:], epochs=2, progress=False)
        >>> gpin.improve(vae, x[:50], x[50:], epochs=2, progress=False, tell=lambda sentence: None).gain >= 0
        True
    """
    config = TrainingConfig.parse(
        {
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "schedule": schedule,
            "clip_norm": clip_norm,
            "ema": ema,
            "weight_decay": weight_decay,
            "augmentation": augmentation,
            "patience": patience,
            "seed": seed,
        },
        "training",
    )
    check_model(vae, config, on_epoch)
    if isinstance(samples, bool) or not isinstance(samples, int | float) or not 0 <= samples <= 1:
        raise InputError(f"samples must be a weight from 0 to 1, got {samples!r}")
    taken = nullcontext() if steps is None else vae.inference.taking(whole_number(steps, "steps", least=0))
    tell = to_stderr if tell is None else tell
    processes = Processes(next(vae.parameters()).device)
    vae.to(processes.device)
    batches, held, config = as_batches(vae, x, validation, config, y, y_val)
    with seeded(config.seed), frozen(vae), taken:
        trainer = _EncoderTrainer(vae, batches, held, config, processes, float(samples))
        try:
            run(trainer, progress=progress, on_epoch=on_epoch, tell=tell)
        finally:
            trainer.take_best()
    history = trainer.history
    result = Improvement(history.epochs, history.best, history.stopped, before=trainer.before)
    if calibrate:
        same = steps is None or steps == vae.inference.options.steps
        calibrated = (None,) if same else (None, steps)
        calibrate_with(vae, batches, held, config.seed, tell if processes.first else silent, calibrated)
    if processes.first:
        tell(_sentence(result, steps))
    return result


def _sentence(result: Improvement, steps: int | None) -> str:
    count, score = len(result.epochs), "validation score" + ("" if steps is None else f" with {steps} steps")
    if not result.best:
        return f"none of {count} epochs improved the {score} of {result.before:.1f} nats: nothing was changed"
    return (
        f"the {score} rose by {result.gain:.1f} nats, from {result.before:.1f} to {result.after:.1f}, in "
        f"epoch {result.best} of {count}; the decoder is unchanged"
    )


class _EncoderTrainer(Trainer):
    """Trains the encoder alone, starting with the present weights as the best ones.

    Arguments:
        vae: The model, with frozen decoder and likelihood.
        training: The training data.
        validation: The validation data.
        config: The options of training.
        processes: The processes that train together.
        samples: The weight of pairs drawn from the model in the loss.
    """

    def __init__(
        self,
        vae: VAE,
        training: Batches,
        validation: Batches,
        config: TrainingConfig,
        processes: Processes,
        samples: float,
    ) -> None:
        super().__init__(vae, training, validation, config, processes)
        self.samples = samples
        before, _ = self._validate()
        if before is None or not math.isfinite(before):
            raise InputError(f"the validation score of this model is {before}: train it first with gpin.fit")
        self.before = self.top = before

    def _set_mode(self) -> None:
        """Put only the encoder into training mode: statistics of decoder and likelihood must not change."""
        self.vae.eval()
        self.vae.inference.train()

    def _begin_epoch(self) -> None:
        top = self.top  # a stage of training begins, but it is the model before that must be surpassed
        super()._begin_epoch()
        self.top = top

    def _objective(self, x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        loss, bound = super()._objective(x, size)
        if not self.samples:
            return loss, bound
        share = self.processes.share
        drawn, z = self.vae.simulate(size, self._conditions(x, size))  # all of them in every process
        with self.processes.part(size):
            log_prob = self.vae.inference(share.of(drawn), self.vae).log_prob(share.of(z)).mean()
        return torch.lerp(loss, -log_prob, self.samples), bound

    def _conditions(self, x: Tensor, size: int) -> Tensor | None:
        """The conditions of a share of a batch of `size`, at the places of the share, for a conditional model."""
        if self.vae.condition is None:
            return None
        start, end = self.processes.share.bounds(size)
        c = x.new_zeros(size, self.vae.condition.width)
        c[start:end] = x[:, -self.vae.condition.width :]
        return c
