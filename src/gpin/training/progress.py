"""The progress bar of training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gpin.training.history import Epoch

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(
    epochs: int, steps: int, done: int, shown: bool | None
) -> Iterator[tuple[Callable[[], None], Callable[[Epoch], None]]]:
    """A progress bar over all steps; yields the functions to call after each step and after each epoch.

    Arguments:
        epochs: The number of epochs.
        steps: The number of steps per epoch.
        done: The number of steps already made.
        shown: Whether to show the bar; by default if stderr is a terminal.
    """
    console = Console(stderr=True)
    if not (console.is_terminal if shown is None else shown):
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
