"""The progress of training: a bar on a terminal, and lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gpin._core.messages import Tell
from gpin.training.history import Epoch

__all__ = ["progress_bar"]

INTERVAL = 60.0
"""The least time between two lines, in seconds."""


@contextmanager
def progress_bar(
    epochs: int, steps: int, done: int, shown: bool | None, tell: Tell
) -> Iterator[tuple[Callable[[], None], Callable[[Epoch], None]]]:
    """A progress bar over all steps; yields the functions to call after each step and after each epoch.

    Arguments:
        epochs: The number of epochs.
        steps: The number of steps per epoch.
        done: The number of steps already made.
        shown: Whether to show the bar. By default it is shown if stderr is a terminal; if it is not, `tell` is called
            with a line after each epoch or each minute, whichever is less often.
        tell: Called with these lines.
    """
    console = Console(stderr=True)
    if shown is None and not console.is_terminal:
        yield lambda: None, _lines(epochs, done // steps, tell)
        return
    if shown is False:
        yield lambda: None, lambda epoch: None
        return
    columns = (
        TextColumn("epoch {task.fields[epoch]} of {task.fields[epochs]}"),
        BarColumn(),
        TextColumn("ELBO train {task.fields[train]} · validation {task.fields[validation]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(
            "", total=epochs * steps, completed=done, epoch=done // steps + 1, epochs=epochs, train="…", validation="…"
        )

        def after_epoch(result: Epoch) -> None:
            number = min(epochs, int(bar.tasks[0].completed) // steps + 1)
            bar.update(task, epoch=number, train=f"{result.train:.1f}", validation=f"{result.validation:.1f}")

        yield lambda: bar.advance(task), after_epoch


def _lines(epochs: int, done: int, tell: Tell) -> Callable[[Epoch], None]:
    """A function to call after each epoch, which tells of the epochs since the last minute in one line."""
    started = written = time.monotonic()
    first = done

    def after_epoch(result: Epoch) -> None:
        nonlocal done, written
        done += 1
        now = time.monotonic()
        if now - written >= INTERVAL:
            written = now
            left = (now - started) / (done - first) * (epochs - done)
            rest = f" · at most {_duration(left)} left" if done < epochs else ""
            tell(f"epoch {done} of {epochs} · ELBO train {result.train:.1f} · validation {result.validation:.1f}{rest}")

    return after_epoch


def _duration(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> _duration(90), _duration(8000)
        ('2 min', '2.2 h')
    """
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
