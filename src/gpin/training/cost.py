"""The time that training takes, from a few measured steps."""

import copy
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gpin._core.seeding import seeded
from gpin.data import Rows
from gpin.training.settings import TrainingConfig
from gpin.training.validation import scores
from gpin.vae import VAE

__all__ = ["expected_seconds", "measured_seconds", "seconds_of"]

STEPS = 3
"""The number of training steps that are measured in each stage."""


def expected_seconds(vae: VAE, training: Rows, validation: Rows, config: TrainingConfig) -> float:
    """The expected time of all epochs with their validation, from steps of a copy of the model.

    The model and torch's random state are left unchanged.
    """
    batches = math.ceil(len(training) / config.batch_size), math.ceil(len(validation) / config.batch_size)
    with seeded(0):
        trial = copy.deepcopy(vae)
        x = trial.check(training[: config.batch_size])
        trial.prepare([x])
        _, epoch = measured_seconds(trial, x, batches, rate=0.0)  # no step leads away, whatever the learning rate
    return config.epochs * epoch


def measured_seconds(vae: VAE, x: Tensor, batches: tuple[int, int], rate: float) -> tuple[float, float]:
    """The time of one training step and that of one epoch with its validation, both means over the method's stages.

    Arguments:
        vae: The model, which is changed.
        x: A batch.
        batches: The numbers of training and of validation batches per epoch.
        rate: The learning rate.
    """
    stages = vae.inference.stages()
    shares = sum(stage.share for stage in stages)
    step = epoch = 0.0
    for i, stage in enumerate(stages):  # a recursive mixture grows from stage to stage
        vae.inference.begin_stage(i)
        own, check = _step_seconds(vae, x, rate), _check_seconds(vae, x)
        step += own * stage.share / shares
        epoch += (batches[0] * own + batches[1] * check) * stage.share / shares
    return step, epoch


def _step_seconds(vae: VAE, x: Tensor, rate: float) -> float:
    vae.train()
    optimiser = torch.optim.Adam(vae.parameters(), rate, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        vae.loss(x).backward()
        optimiser.step()

    step()  # the first one is slower
    return statistics.median(seconds_of(step) for _ in range(STEPS))


def _check_seconds(vae: VAE, x: Tensor) -> float:
    vae.eval()
    return seconds_of(lambda: scores(vae, x))


def seconds_of(call: Callable[..., object]) -> float:
    """The time of one call."""
    began = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
