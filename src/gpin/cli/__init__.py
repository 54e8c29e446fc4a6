"""The command line: parse, call, print.

Torch, numpy, matplotlib and other modules that are slow to import are imported inside the commands, so that
`gpin --help` and usage errors are answered at once.
"""

import os
import signal
import sys

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""


def _leave() -> None:
    """End the process at once with the exit code of an interruption."""
    os.write(2, b"gpin: interrupted\n")
    os._exit(INTERRUPTED)


try:
    import traceback as tracebacks
    from collections.abc import Sequence
    from types import FrameType
    from typing import Annotated

    from cyclopts import CycloptsError, Parameter, UnknownOptionError, UnusedCliTokensError

    from gpin._core.errors import BusyError, FetchError, InputError, TrainingError

    # Importing them registers their commands.
    from gpin.cli import compare, data, demo, evaluate, experiment, impute, methods, rank, runs, train  # noqa: F401
    from gpin.cli.base import CheckError, Flag, app, typed, with_flags
    from gpin.cli.train import hint_for_option
except KeyboardInterrupt:  # before `main` can handle it
    _leave()

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command given by the arguments, by default those of the process, and return the exit code."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    # By default, waiting threads of torch spin, which on a busy machine can take six times as long as the work itself.
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
        return _fail(str(interruption) or "interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if "--traceback" in tokens:
            tracebacks.print_exc()
        return _fail(*_sentence(error))


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C: a module that is being imported may swallow an exception, so during imports the process ends."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def _sentence(error: Exception) -> tuple[str, int]:
    """The message of an error in one line, and the exit code."""
    if isinstance(error, CycloptsError):
        command = " ".join(["gpin", *(error.command_chain or ())])
        message = str(error)
        if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
            message = f"unexpected {error.unused_tokens[0]!r}: {command} takes no further arguments"
        if isinstance(error, UnknownOptionError) and error.command_chain and error.command_chain[-1] == "train":
            message = hint_for_option(error.token.value.partition("=")[0]) or message
        return f"{message} (see {command} --help)", WRONG_USE
    if isinstance(error, BusyError | FetchError | TrainingError | CheckError):
        return with_flags(str(error)), FAILED
    if isinstance(error, InputError):
        return with_flags(str(error)), WRONG_USE
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror, FAILED
    return f"unexpected {type(error).__name__}: {error} (--traceback shows where)", FAILED


def _fail(sentence: str, code: int) -> int:
    # The processes started by `torchrun` all fail with the same error, which is printed once per machine.
    if os.environ.get("LOCAL_RANK", "0") == "0" or sentence.startswith("unexpected"):
        print("gpin: " + " ".join(sentence.split()), file=sys.stderr)
    return code


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    traceback: Annotated[bool, Flag, Parameter(help="Print the full traceback of an error.")] = False,
) -> None:
    """Take the options of every command, then run the command; `main` itself handles --traceback."""
    typed[:] = tokens
    app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
