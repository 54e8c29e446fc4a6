"""`gpin methods`: list the methods, likelihoods and architectures."""

import json as jsonlib
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gpin.cli.base import Flag, app, console, print_json

if TYPE_CHECKING:
    from rich.console import Console

HINTS = {
    "methods": 'In Python: gpin.build(shape, method="gp", covariance="full"), or preset="paper".\n'
    "See also: gpin methods likelihoods, gpin methods architectures.",
    "likelihoods": "In a shell: gpin train DATA --set likelihood=gaussian --set likelihood.variance=per_pixel",
    "architectures": "In a shell: gpin train DATA --set architecture=residual. The default depends on the shape.",
}


@app.command(sort_key=9, help_epilogue="Example: `gpin methods --json`, or `gpin methods likelihoods`")
def methods(
    kind: Literal["methods", "likelihoods", "architectures"] = "methods", /, *, json: Annotated[bool, Flag] = False
) -> None:
    """List the inference models, likelihoods or architectures with their options.

    Parameters
    ----------
    kind
        What to list: the inference models with their presets and references, the likelihoods or the architectures.
    json
        Print the list as JSON.
    """
    from gpin.inference import METHODS
    from gpin.likelihoods import LIKELIHOODS
    from gpin.networks import ARCHITECTURES

    if kind == "methods":
        records = [{**_record(method), **_of_a_method(method)} for method in METHODS.values()]
    else:
        registry: dict[str, Any] = {**(LIKELIHOODS if kind == "likelihoods" else ARCHITECTURES)}
        records = [_record(entry) for entry in registry.values()]
    if json:
        print_json(records)
    else:
        _show(records, HINTS[kind], console())


def _record(entry: Any) -> dict[str, Any]:
    """A registry entry with its options, ready for JSON."""
    schema = entry.Options.model_json_schema()
    # A class without a docstring inherits its base's, whose "Arguments" would not be its own.
    texts = _argument_texts(entry.Options.__doc__ or "")
    return {
        "name": entry.name,
        "title": entry.title,
        "options": [
            {
                "name": name,
                "default": option.get("default"),
                "values": _values(option),
                "help": texts.get(name, option.get("description", "")),
            }
            for name, option in schema.get("properties", {}).items()
            if option.get("const") != entry.name  # the field that holds the entry's own name
        ],
    }


def _of_a_method(method: Any) -> dict[str, Any]:
    """The further fields of a method."""
    return {
        "reference": method.reference,
        "presets": {name: dict(options) for name, options in method.Options.presets.items()},
        "label": method.label,
        "has_uncertainty": method.has_uncertainty,
        "closed_form_kl": method.closed_form_kl,
        "export_refusal": method.export_refusal,
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
    """The values that an option may take, in words, from its JSON schema.

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


def _show(records: list[dict[str, Any]], hint: str, console: "Console") -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= 100
    for record in records:
        console.print(Text.assemble((record["name"], "bold cyan"), "  ", (record["title"], "bold")))
        if "reference" in record:
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
        for name, options in record.get("presets", {}).items():
            setting = ", ".join(f"{key}={_literal(value)}" for key, value in options.items())
            line = Text.assemble(("preset ", "dim"), (name, "cyan"), f": {setting}")
            console.print(Padding(line, (1, 0, 0, 2), expand=False))
        console.print()
    console.print(Text(hint, style="dim"))
    if not wide:
        console.print("To see what each option does, widen the terminal to 100 columns, or add --json.", style="dim")
