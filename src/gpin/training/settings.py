"""The options of training that change the result."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from gpin._core.config import Config
from gpin.training.augmentation import Augmentation

__all__ = ["AUTO", "CHOSEN", "TrainingConfig"]

AUTO: Literal["auto"] = "auto"
"""The value of an option that is chosen by the size of the data, see :meth:`TrainingConfig.resolved`."""

CHOSEN = ("epochs", "batch_size", "learning_rate", "patience")
"""The options that can be `AUTO`."""


class Choice(NamedTuple):
    """What suits training sets of fewer than `below` instances: the batch size, the learning rate and the budget."""

    below: float
    batch_size: int
    learning_rate: float
    steps: int


CHOICES = (
    Choice(5_000, 32, 1e-3, 10_000),
    Choice(20_000, 64, 1e-3, 10_000),
    Choice(math.inf, 128, 5e-4, 20_000),
)
"""The automatic choices by the number of training instances; docs/getting-started.md says what they achieve."""

FEWEST, MOST = 10, 1_000
"""The smallest and the largest number of epochs that are chosen automatically."""

WAIT, SHORTEST = 500, 10
"""The patience that is chosen automatically: this many steps, and at least this many epochs."""


class TrainingConfig(Config):
    """The options of training; those of `CHOSEN` may be "auto" until the data is known, see :meth:`resolved`.

    Arguments:
        epochs: Passes through the training data.
        steps: A number of steps of Adam instead of one of epochs; it is rounded up to whole epochs.
        batch_size: Instances per step, over all processes.
        learning_rate: The learning rate of Adam at the start.
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
        patience: Stop after this many epochs without a better validation score; None trains for all epochs. A method
            that trains in stages is stopped only in its last stage, and none during the KL warm-up.
        seed: The seed of the order of the data, the held-out part and all noise.
    """

    model_config = ConfigDict(strict=True)  # "2" is not 2, and True is not 1
    later = ("weight_decay", "augmentation", "kl_warmup", "steps")

    epochs: int = Field(default=50, ge=1)
    steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=128, ge=1)
    learning_rate: float = Field(default=5e-4, gt=0)
    schedule: Literal["constant", "cosine"] = "constant"
    clip_norm: float | None = Field(default=None, gt=0)
    ema: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    augmentation: Augmentation = "none"
    kl_warmup: float = Field(default=0.0, ge=0)
    patience: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    _auto: tuple[str, ...] = PrivateAttr(default=())

    @property
    def auto(self) -> tuple[str, ...]:
        """The names of the options that are "auto"; until they are chosen, their fields have no meaning."""
        return self._auto

    @model_validator(mode="wrap")
    @classmethod
    def _chosen_later(cls, options: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Note which options are "auto"; a number of steps makes the number of epochs one of them."""
        if not isinstance(options, Mapping):
            return handler(options)
        options = dict(options)
        if options.get("steps") is not None and options.setdefault("epochs", AUTO) != AUTO:
            raise ValueError("epochs and steps are two ways to say how long to train: give only one of them")
        auto = tuple(name for name in CHOSEN if isinstance(options.get(name), str) and options[name] == AUTO)
        config = handler({name: value for name, value in options.items() if name not in auto})
        config._auto = auto
        if "epochs" not in auto and config.kl_warmup > config.epochs:
            raise ValueError(f"kl_warmup={config.kl_warmup:g} must not exceed the number of epochs, {config.epochs}")
        return config

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        """Convert numpy scalars to Python numbers."""
        return value.item() if isinstance(value, np.generic) else value

    @model_serializer(mode="wrap")
    def _record(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """The options; in files, and in the identity of a run, without those of `later` that have their defaults."""
        options = self.without_unused(handler(self)) if info.mode == "json" else handler(self)
        return {**options, **dict.fromkeys(self.auto, AUTO)}

    def resolved(self, size: int, batches: int | None = None) -> Self:
        """These options for a number of training instances, with a value in place of every "auto" and of `steps`.

        If the number of epochs is given, the others are what they have always been: batches of 128, a learning rate of
        5e-4, and no patience. Otherwise they follow from `CHOICES`, with a patience of `WAIT` steps.

        Arguments:
            size: The number of training instances.
            batches: The number of batches per epoch, if the data comes in batches already.

        Example:
            >>> config = TrainingConfig(epochs="auto", batch_size="auto", learning_rate="auto", patience="auto")
            >>> small = config.resolved(319)
            >>> small.epochs, small.batch_size, small.learning_rate, small.patience
            (1000, 32, 0.001, 50)
        """
        if not self.auto:
            return self
        choice = next(choice for choice in CHOICES if size < choice.below)
        options = self.model_dump()
        fields = type(self).model_fields
        for name in self.auto:
            options[name] = fields[name].default
        if "epochs" in self.auto:
            if "batch_size" in self.auto:
                options["batch_size"] = choice.batch_size
            if "learning_rate" in self.auto:
                options["learning_rate"] = choice.learning_rate
            each = math.ceil(size / options["batch_size"]) if batches is None else batches
            if self.steps is None:
                options["epochs"] = min(max(math.ceil(choice.steps / each), FEWEST), MOST)
            else:
                options["epochs"] = math.ceil(self.steps / each)
            if "patience" in self.auto:
                options["patience"] = max(math.ceil(WAIT / each), SHORTEST)
        return type(self).parse({**options, "steps": None}, f"training on {size:,} instances")

    def choices(self, chosen: "TrainingConfig", batches: int) -> str:
        """What was chosen by the size of the data where these options are "auto"; empty if nothing was.

        Arguments:
            chosen: These options as :meth:`resolved`.
            batches: The number of batches per epoch.

        Example:
            >>> config = TrainingConfig(epochs="auto", batch_size=64, patience="auto")
            >>> config.choices(config.resolved(640), 10)
            'at most 1,000 epochs of 10 steps and a patience of 50 epochs'
        """
        patient = chosen.patience is not None and chosen.patience < chosen.epochs
        budget = f"{'at most ' if patient else ''}{chosen.epochs:,} epochs of {batches:,} steps"
        said = {
            "batch_size": f"batches of {chosen.batch_size}",
            "learning_rate": f"a learning rate of {chosen.learning_rate:g}",
            "epochs": budget,
            "patience": f"a patience of {chosen.patience} epochs",
        }
        parts = [text for name, text in said.items() if name in self.auto and (patient or name != "patience")]
        if "epochs" not in self.auto:
            return ""
        return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"

    def kl_weight(self, epochs: float) -> float:
        """The weight of KL(q(z|x) ‖ p(z)) in the loss after so many epochs, or fractions of one.

        Example:
            >>> TrainingConfig(kl_warmup=2).kl_weight(0.5)
            0.25
        """
        return min(1.0, epochs / self.kl_warmup) if self.kl_warmup else 1.0

    def rate(self, done: float) -> float:
        """The factor of the learning rate after a fraction `done` of all steps.

        Example:
            >>> TrainingConfig(schedule="cosine").rate(0.5)
            0.5
        """
        return 1.0 if self.schedule == "constant" else round((1 + math.cos(math.pi * done)) / 2, 12)
