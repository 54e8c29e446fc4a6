"""The command line: parse, call, print.

Torch, matplotlib and scikit-learn are imported inside the commands, so that `gpin --help` answers at once.
"""

import json as jsonlib
import os
import re
import sys
import traceback as tracebacks
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter

from gpin import __version__
from gpin.errors import InputError, TrainingError

if TYPE_CHECKING:
    from rich.console import Console

    from gpin.inference import InferenceModel

__all__ = ["app", "main"]

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""

app = App(
    name="gpin",
    version=f"gpin {__version__}",
    help="Gaussian-process inference networks for VAEs: amortized inference that knows when it is wrong.",
    help_format="markdown",
    help_epilogue="Example: `gpin demo`\n\nExit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted.",
    suppress_keyboard_interrupt=False,
)
app.meta.suppress_keyboard_interrupt = False
app.meta.group_parameters = Group("Every command")

Flag = Parameter(negative="", show_default=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name (by default those of the process); returns the exit code."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show "±" gets "?"
    try:
        app.meta(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return DONE
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if "--traceback" in tokens:
            tracebacks.print_exc()
        return _say(*_sentence(error))


def _sentence(error: Exception) -> tuple[str, int]:
    """What to tell the user of an error in one line, and the exit code."""
    if isinstance(error, CycloptsError):
        command = " ".join(["gpin", *(error.command_chain or ())])
        return f"{error} (see {command} --help)", WRONG_USE
    if isinstance(error, InputError):
        return str(error), WRONG_USE
    if isinstance(error, TrainingError):
        return str(error), FAILED
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror, FAILED
    return f"unexpected {type(error).__name__}: {error} (--traceback shows where)", FAILED


def _say(sentence: str, code: int) -> int:
    print("gpin: " + " ".join(sentence.split()), file=sys.stderr)
    return code


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    traceback: Annotated[bool, Flag, Parameter(help="Show where an error came from, not only what it is.")] = False,
) -> None:
    """Options of every command, then the command itself; `main` looks for --traceback when something goes wrong."""
    app(tokens, exit_on_error=False, print_error=False, result_action="return_value")


@app.command(help_epilogue="Example: `gpin demo --out my-demo --seed 1`")
def demo(
    *, out: Path = Path("gpin-demo"), epochs: int | None = None, seed: int = 0, json: Annotated[bool, Flag] = False
) -> None:
    """The whole story in about a minute, offline: a VAE and a GP encoder on scikit-learn's digits.

    Trains both, compares them on test digits, shows which digits the GP encoder is sure of, and writes
    report.html, results.json, the figures and the models into a folder. What such a folder held from an
    earlier demo is replaced.

    Parameters
    ----------
    out
        Folder for the report, the figures and the models.
    epochs
        Passes through the training data, for each model; without it, enough to converge.
    seed
        Of the split, the first weights and all noise.
    json
        Print the results as JSON instead of tables and pictures.
    """
    from gpin import demo as story

    settings = story.Settings(seed=seed) if epochs is None else story.Settings(seed=seed, epochs=epochs)
    result = story.run(out, settings)
    if json:
        _print_json(result.record())
    else:
        story.show(result, _console())


@app.command(help_epilogue="Example: `gpin methods --json`")
def methods(*, json: Annotated[bool, Flag] = False) -> None:
    """The inference models, with their options, presets and references.

    Parameters
    ----------
    json
        Print them as JSON.
    """
    from gpin.inference import METHODS

    records = [_method_record(method) for method in METHODS.values()]
    if json:
        _print_json(records)
    else:
        _show_methods(records, _console())


def _method_record(method: "type[InferenceModel[Any]]") -> dict[str, Any]:
    """What there is to know about a method, ready for JSON."""
    schema = method.Options.model_json_schema()
    # A class without a docstring inherits its base's, whose "Arguments" would not be its own.
    texts = _argument_texts(method.Options.__doc__ or "")
    return {
        "name": method.name,
        "title": method.title,
        "reference": method.reference,
        "options": [
            {
                "name": name,
                "default": option.get("default"),
                "values": _values(option),
                "help": texts.get(name, option.get("description", "")),
            }
            for name, option in schema.get("properties", {}).items()
        ],
        "presets": {name: dict(options) for name, options in method.Options.presets.items()},
    }


def _argument_texts(docstring: str) -> dict[str, str]:
    """The texts of a docstring's "Arguments:" section, by name.

    Example:
        >>> _argument_texts("Title.\\n\\n    Arguments:\\n        size: How\\n            many.\\n        name: Which.")
        {'size': 'How many.', 'name': 'Which.'}
    """
    section = docstring.partition("Arguments:\n")[2]
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {9,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _values(option: dict[str, Any]) -> str:
    """What an option may be, in words, from its JSON schema.

    Example:
        >>> _values({"enum": ["full", "diagonal"]}), _values({"type": "integer", "minimum": 1})
        ('full, diagonal', 'integer ≥ 1')
    """
    if "anyOf" in option:
        return " or ".join(_values(part) for part in option["anyOf"])
    if "const" in option or "enum" in option:
        return ", ".join(_literal(value) for value in option.get("enum", [option.get("const")]))
    kind = option.get("type", "object")
    if kind == "boolean":
        return "true, false"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {option[key]:g}" for key, sign in signs.items() if key in option]
    return " ".join(["none" if kind == "null" else kind, ", ".join(bounds)]).strip()


def _literal(value: Any) -> str:
    """A value as one would type it: strings bare, the rest as in JSON."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else jsonlib.dumps(value)


def _show_methods(records: list[dict[str, Any]], console: "Console") -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= 100
    for record in records:
        console.print(Text.assemble((record["name"], "bold cyan"), "  ", (record["title"], "bold")))
        console.print(Padding(Text(record["reference"], style="dim"), (0, 0, 0, 2), expand=False))
        if record["options"]:
            table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
            table.add_column("option", style="cyan", no_wrap=True)
            table.add_column("default", no_wrap=True)
            table.add_column("values")
            if wide:
                table.add_column("what it does", style="dim")
            for option in record["options"]:
                cells = [option["name"], _literal(option["default"]), option["values"], option["help"]]
                table.add_row(*(Text(cell) for cell in cells[: len(table.columns)]))
            console.print(Padding(table, (1, 0, 0, 2), expand=False))
        for name, options in record["presets"].items():
            setting = ", ".join(f"{key}={_literal(value)}" for key, value in options.items())
            line = Text.assemble(("preset ", "dim"), (name, "cyan"), f": {setting}")
            console.print(Padding(line, (1, 0, 0, 2), expand=False))
        console.print()
    console.print('In Python: gpin.build(shape, method="gp", covariance="full"), or preset="paper".', style="dim")
    if not wide:
        console.print("What each option does: widen the terminal to 100 columns, or gpin methods --json.", style="dim")


def _print_json(value: Any) -> None:
    print(jsonlib.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False)
