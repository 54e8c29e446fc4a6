"""Messages that the library shows to the user while it works."""

import sys
from collections.abc import Callable

__all__ = ["MEANT", "Tell", "silent", "to_stderr"]

MEANT = {"lr": "learning_rate", "rate": "learning_rate", "batch": "batch_size", "max_epochs": "epochs"}
"""Names that other libraries have for options of training, for hints."""

Tell = Callable[[str], None]
"""Called with each message for the user, one sentence, such as a warning about a damaged file."""


def to_stderr(sentence: str) -> None:
    """Print a message on stderr."""
    print(f"gpin: {sentence}", file=sys.stderr)


def silent(sentence: str) -> None:
    """Ignore a message."""
