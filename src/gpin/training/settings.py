"""The options of training that change the result."""

import math
from typing import Any, Literal, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from gpin._core.config import Config
from gpin.training.augmentation import Augmentation

__all__ = ["TrainingConfig"]

LATER = ("weight_decay", "augmentation", "kl_warmup")
"""Options that were added after runs had been stored: unless they are used, they are no part of a run's identity."""


class TrainingConfig(Config):
    """The options of training.

    Arguments:
        epochs: Passes through the training data.
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

    epochs: int = Field(default=50, ge=1)
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

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        """Convert numpy scalars to Python numbers."""
        return value.item() if isinstance(value, np.generic) else value

    @model_validator(mode="after")
    def _warm(self) -> Self:
        if self.kl_warmup > self.epochs:
            raise ValueError(f"kl_warmup={self.kl_warmup:g} must not exceed the number of epochs, {self.epochs}")
        return self

    @model_serializer(mode="wrap")
    def _record(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """The options; in files, and in the identity of a run, without those of `LATER` that have their defaults."""
        unused = set(LATER) - set(self.changed()) if info.mode == "json" else set()
        return {name: value for name, value in handler(self).items() if name not in unused}

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
