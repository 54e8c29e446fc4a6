"""`gpin data`: list, download and check the benchmark data sets."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from gpin.cli.base import CheckError, Flag, app, console, print_json

data = App(
    name="data",
    help="List, download and check benchmark data sets.",
    help_epilogue="Example: `gpin data list`",
    sort_key=8,
)
app.command(data)


@data.command(name="list", help_epilogue="Example: `gpin data list --json`")
def list_(*, json: Annotated[bool, Flag] = False) -> None:
    """List the benchmark data sets and whether they are available.

    Parameters
    ----------
    json
        Print the list as JSON.
    """
    from gpin.data import data_folder, list_benchmarks

    records = list_benchmarks()
    if json:
        print_json({"folder": str(data_folder()), "sets": records})
    else:
        _show_list(records, data_folder())


def _show_list(records: list[dict[str, Any]], folder: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("description")
    table.add_column("shape", no_wrap=True)
    table.add_column("available", no_wrap=True)
    for record in records:
        here = Text("yes") if record["where"] is not None else Text(f"no: {_how_to_get(record)}", style="dim")
        table.add_row(record["name"], record["title"], "×".join(map(str, record["shape"])), here)
    screen = console()
    screen.print(table)
    screen.print(f"\nData folder: {folder} (set GPIN_DATA to use another)", style="dim", soft_wrap=True)


def _how_to_get(record: dict[str, Any]) -> str:
    from gpin.data.fetch import FILES

    if record["name"] not in FILES:
        return f"pip install 'gpin[{record['name']}]'"
    return f"gpin data fetch {record['name']}" if record["fetchable"] else "download by hand"


@data.command(help_epilogue="Example: `gpin data fetch mnist`")
def fetch(name: str, /, *, json: Annotated[bool, Flag] = False) -> None:
    """Download the missing files of a benchmark data set and verify them.

    Parameters
    ----------
    name
        The name of the data set, see `gpin data list`.
    json
        Print the folder as JSON.
    """
    from gpin.data.fetch import fetch as fetch_files

    folder = fetch_files(name)
    if json:
        print_json({"name": name, "folder": str(folder)})
    else:
        print(f"{name} is in {folder}")


@data.command(help_epilogue="Example: `gpin data check mnist`")
def check(name: str, /, *, json: Annotated[bool, Flag] = False) -> None:
    """Check the counts, shape and checksums of a benchmark data set.

    Parameters
    ----------
    name
        The name of the data set, see `gpin data list`.
    json
        Print the findings as JSON.
    """
    from gpin.data import check_benchmark

    record = check_benchmark(name)
    if json:
        print_json(record)
    else:
        _show_check(record)
    if record["problem"] is not None:
        raise CheckError(record["problem"])


def _show_check(record: dict[str, Any]) -> None:
    states = {True: "original", False: "NOT the original", None: "no checksum known"}
    for file in record["files"]:
        state = states[file["original"]] if file["found"] else "missing"
        size = "" if file["bytes"] is None else f", {file['bytes']:,} bytes, sha256 {file['sha256'][:12]}…"
        print(f"{file['file']}: {state}{size}")
    if record["where"] is not None:
        test = "" if record["test"] is None else f" for training and {record['test']:,} for testing"
        shape = "×".join(map(str, record["shape"]))
        print(f"{record['name']} from {record['where']}: {record['train']:,} images of {shape}{test}")
