"""The command line: parse, call, print.

Torch, numpy, matplotlib and all else that is slow to import is imported inside the commands, so that `gpin --help` and
every mistake in typing are answered at once.
"""

import os
import signal
import sys

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""


def _leave() -> None:
    """End the process at once, interrupted."""
    os.write(2, b"gpin: interrupted\n")
    os._exit(INTERRUPTED)


try:
    import traceback as tracebacks
    from collections.abc import Sequence
    from types import FrameType
    from typing import Annotated

    from cyclopts import CycloptsError, Parameter, UnusedCliTokensError

    from gpin._core.errors import BusyError, FetchError, InputError, TrainingError
    from gpin.cli import data, demo, experiment, methods, runs, train  # noqa: F401  (their commands register themselves)
    from gpin.cli.base import CheckError, Flag, app, with_flags
except KeyboardInterrupt:  # before `main` is there to say so
    _leave()

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name (by default those of the process); returns the exit code."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    # Torch's threads wait for each other by spinning, which on a busy machine can take six times as long as working.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show "±" gets "?"
    try:
        app.meta(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        if sys.stdout is not None:  # a shell may have closed it
            sys.stdout.flush()
        return DONE
    except KeyboardInterrupt as interruption:
        return _say(str(interruption) or "interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if "--traceback" in tokens:
            tracebacks.print_exc()
        return _say(*_sentence(error))


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. Modules that are being imported may swallow an exception, so an import is not interrupted but left."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def _sentence(error: Exception) -> tuple[str, int]:
    """What to tell the user of an error in one line, and the exit code."""
    if isinstance(error, CycloptsError):
        command = " ".join(["gpin", *(error.command_chain or ())])
        said = str(error)
        if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
            said = f"unexpected {error.unused_tokens[0]!r}: {command} takes no more than came before it"
        return f"{said} (see {command} --help)", WRONG_USE
    if isinstance(error, BusyError | FetchError | TrainingError | CheckError):
        return with_flags(str(error)), FAILED
    if isinstance(error, InputError):
        return with_flags(str(error)), WRONG_USE
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror, FAILED
    return f"unexpected {type(error).__name__}: {error} (--traceback shows where)", FAILED


def _say(sentence: str, code: int) -> int:
    # What several processes of `torchrun` have to say of one mistake is said once a machine.
    if os.environ.get("LOCAL_RANK", "0") == "0" or sentence.startswith("unexpected"):
        print("gpin: " + " ".join(sentence.split()), file=sys.stderr)
    return code


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    traceback: Annotated[bool, Flag, Parameter(help="Show where an error came from, not only what it is.")] = False,
) -> None:
    """Options of every command, then the command itself; `main` looks for --traceback when something goes wrong."""
    app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
