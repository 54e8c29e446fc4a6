"""Handle Ctrl-C and termination between two steps, so that no step is left unfinished."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptible"]


@contextmanager
def interruptible(active: bool = True, alone: bool = True) -> Iterator[Callable[[], bool]]:
    """Within the context, the first SIGINT or SIGTERM is only noted; yields a function that says whether there was one.

    A second one interrupts at once. Outside the main thread signals are not handled, nor is a signal that the process
    ignores, as in a shell's background. With several processes (not `alone`) SIGTERM terminates at once, because the
    process may be waiting for another one that has died.
    """
    asked = False

    def remember(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if not active or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    numbers = [signal.SIGINT, signal.SIGTERM] if alone else [signal.SIGINT]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
