"""The options of training that change the result."""

import math
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, field_validator

from gpin._core.config import Config

__all__ = ["TrainingConfig"]


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
        patience: Stop after this many epochs without a better validation ELBO; None trains for all epochs. A method
            that trains in stages is stopped only in its last stage.
        seed: The seed of the order of the data, the held-out part and all noise.
    """

    model_config = ConfigDict(strict=True)  # "2" is not 2, and True is not 1

    epochs: int = Field(default=50, ge=1)
    batch_size: int = Field(default=128, ge=1)
    learning_rate: float = Field(default=5e-4, gt=0)
    schedule: Literal["constant", "cosine"] = "constant"
    clip_norm: float | None = Field(default=None, gt=0)
    ema: float = Field(default=0.0, ge=0, lt=1)
    patience: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**63)

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        """Convert numpy scalars to Python numbers."""
        return value.item() if isinstance(value, np.generic) else value

    def rate(self, done: float) -> float:
        """The factor of the learning rate after a fraction `done` of all steps.

        Example:
            >>> TrainingConfig(schedule="cosine").rate(0.5)
            0.5
        """
        return 1.0 if self.schedule == "constant" else round((1 + math.cos(math.pi * done)) / 2, 12)
