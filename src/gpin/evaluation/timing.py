"""Relative run times of tasks, from interleaved repeats.

A machine under other load slows down for seconds at a time, so tasks that are timed one after the other cannot be
compared. Here the tasks take turns, and every time is divided by the mean of the reference's times just before and just
after it.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gpin.vae import VAE

__all__ = ["Timing", "inference_times", "interleaved_times"]


@dataclass(frozen=True)
class Timing:
    """The run time of one task.

    Attributes:
        seconds: The time of one call, one number per repeat.
        ratios: The time divided by that of the reference, one number per repeat.
    """

    seconds: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean time of one call in seconds."""
        return statistics.fmean(self.seconds)

    @property
    def median(self) -> float:
        """The median time of one call in seconds."""
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        """The shortest time of one call in seconds; for short tasks, the least disturbed by other load."""
        return min(self.seconds)

    @property
    def ratio(self) -> float:
        """The median of the ratios to the reference."""
        return statistics.median(self.ratios)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest ratio to the reference."""
        return min(self.ratios), max(self.ratios)


def interleaved_times(
    tasks: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 5,
    calls: int = 1,
    most_seconds: float | None = None,
) -> dict[str, Timing]:
    """Time tasks that take turns; the first one is the reference.

    The reference runs before and after every task, including itself, so its own ratios show how much times vary on this
    machine. One warm-up round is not counted.

    Arguments:
        tasks: The functions to time, by name.
        repeats: The number of rounds, without the warm-up round.
        calls: The number of calls per round, which are timed together.
        most_seconds: No new round begins after this many seconds; at least one is counted.
    """
    began = time.perf_counter()
    reference = next(iter(tasks.values()))
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    ratios: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        if most_seconds is not None and repeat > 1 and time.perf_counter() - began > most_seconds:
            break
        before = _seconds(reference, calls)
        for name, task in tasks.items():
            own = _seconds(task, calls)
            after = _seconds(reference, calls)
            if repeat:
                seconds[name].append(own)
                ratios[name].append(own / ((before + after) / 2))
            before = after
    return {name: Timing(tuple(seconds[name]), tuple(ratios[name])) for name in tasks}


def _seconds(task: Callable[[], object], calls: int) -> float:
    """The time of one call, the mean of `calls`."""
    began = time.perf_counter()
    for _ in range(calls):
        task()
    return (time.perf_counter() - began) / calls


def inference_times(
    models: Mapping[str, "VAE"],
    x: Tensor,
    *,
    repeats: int = 5,
    calls: int = 1,
    most_seconds: float | None = None,
) -> dict[str, Timing]:
    """Time the inference of models: encoding a batch and drawing one z per instance.

    Drawing is included because some methods, such as flows, do most of their work there.

    Arguments:
        models: The models by name, all on one device; the first is the reference.
        x: The batch `(batch, *shape)`, on the models' device.
        repeats: The number of rounds, without the warm-up round.
        calls: The number of batches per round.
        most_seconds: See `interleaved_times`.
    """

    def infer(vae: "VAE") -> None:
        with torch.no_grad():
            vae.encode(x).sample()
        if x.is_cuda:  # the kernels have only been queued
            torch.cuda.synchronize(x.device)

    tasks = {name: lambda vae=vae: infer(vae) for name, vae in models.items()}
    return interleaved_times(tasks, repeats=repeats, calls=calls, most_seconds=most_seconds)
