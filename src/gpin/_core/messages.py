"""What the library has to say while it works."""

import sys
from collections.abc import Callable

__all__ = ["Tell", "silent", "to_stderr"]

Tell = Callable[[str], None]
"""Called with each sentence that the user should read, such as that a file is damaged."""


def to_stderr(sentence: str) -> None:
    """Print a sentence on stderr."""
    print(f"gpin: {sentence}", file=sys.stderr)


def silent(sentence: str) -> None:
    """Print nothing."""
