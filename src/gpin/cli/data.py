"""`gpin data`: the benchmark sets; where they are looked for, their download, and whether they are right."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from gpin.cli.base import CheckError, Flag, app, console, print_json

data = App(
    name="data",
    help="Benchmark data: where it is looked for, verified download, counts and checksums.",
    help_epilogue="Example: `gpin data list`",
    sort_key=8,
)
app.command(data)


@data.command(name="list", help_epilogue="Example: `gpin data list --json`")
def list_(*, json: Annotated[bool, Flag] = False) -> None:
    """The benchmark sets, and whether they are there.

    Parameters
    ----------
    json
        Print them as JSON.
    """
    from gpin.data import BENCHMARKS, data_folder
    from gpin.data.fetch import FILES, where

    records = [
        {
            "name": name,
            "title": benchmark.title,
            "shape": list(benchmark.shape),
            "where": where(name),
            "fetchable": name in FILES and all(file.urls or file.archive for file in FILES[name]),
        }
        for name, benchmark in BENCHMARKS.items()
    ]
    if json:
        print_json({"folder": str(data_folder()), "sets": records})
    else:
        _show_list(records, data_folder())


def _show_list(records: list[dict[str, Any]], folder: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("what it is")
    table.add_column("shape", no_wrap=True)
    table.add_column("is it there?", no_wrap=True)
    for record in records:
        here = Text("yes") if record["where"] is not None else Text(f"no: {_how_to_get(record)}", style="dim")
        table.add_row(record["name"], record["title"], "×".join(map(str, record["shape"])), here)
    screen = console()
    screen.print(table)
    screen.print(f"\nlooked for in {folder} (GPIN_DATA names another folder)", style="dim", soft_wrap=True)


def _how_to_get(record: dict[str, Any]) -> str:
    from gpin.data.fetch import FILES

    if record["name"] not in FILES:
        return f"pip install 'gpin[{record['name']}]'"
    return f"gpin data fetch {record['name']}" if record["fetchable"] else "to be got by hand"


@data.command(help_epilogue="Example: `gpin data fetch mnist`")
def fetch(name: str, /, *, json: Annotated[bool, Flag] = False) -> None:
    """Download what is missing of a benchmark set, and verify it.

    Parameters
    ----------
    name
        Of the set, see `gpin data list`.
    json
        Print where it is as JSON.
    """
    from gpin.data.fetch import fetch as fetch_files

    folder = fetch_files(name)
    if json:
        print_json({"name": name, "folder": str(folder)})
    else:
        print(f"{name} is in {folder}")


@data.command(help_epilogue="Example: `gpin data check mnist`")
def check(name: str, /, *, json: Annotated[bool, Flag] = False) -> None:
    """Whether a benchmark set is there and right: counts, shape and checksums.

    Parameters
    ----------
    name
        Of the set, see `gpin data list`.
    json
        Print what was found as JSON.
    """
    from gpin.data import BENCHMARKS, load_benchmark
    from gpin.data.fetch import FILES, where
    from gpin.data.fetch import check as check_files

    place = where(name)
    files = [
        {
            "file": str(found.path),
            "found": found.found,
            "bytes": found.size,
            "sha256": found.sha256,
            "original": found.right,
        }
        for found in (check_files(name) if name in FILES else [])
    ]
    record: dict[str, Any] = {"name": name, "where": place, "files": files}
    if place is not None or name not in FILES:
        images = load_benchmark(name)
        record |= {
            "shape": list(images.train.shape[1:]),
            "train": len(images.train),
            "test": None if images.test is None else len(images.test),
        }
    if json:
        print_json(record)
    else:
        _show_check(record)
    wrong = [file["file"] for file in files if file["original"] is False]
    if wrong:
        raise CheckError(f"{name}: {wrong[0]} is not the original file: its checksum differs")
    if place is None:
        raise CheckError(f"{name} is not there: gpin data fetch {name} gets it, or says how")
    for part, count in zip(("train", "test"), BENCHMARKS[name].counts, strict=True):
        if record[part] != count:
            raise CheckError(
                f"{name} is not whole: {record[part] or 0:,} images in its {part} part, not {count or 0:,}"
            )


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
