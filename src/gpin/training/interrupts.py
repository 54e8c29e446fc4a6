"""Ctrl-C and termination, noticed between two steps, so that nothing is left half done."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptible"]


@contextmanager
def interruptible(active: bool = True, alone: bool = True) -> Iterator[Callable[[], bool]]:
    """Inside, the first SIGINT or SIGTERM is only remembered; yields what asks whether there was one.

    A second one interrupts at once. Elsewhere than in the main thread signals are left alone, and so is one that is
    ignored, as in a shell's background. One of several processes (not `alone`) dies of SIGTERM at once: it may be
    waiting for another that is dead.
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
