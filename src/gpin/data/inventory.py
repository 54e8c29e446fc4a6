"""Listing of the benchmark sets, and checks that they are complete and original."""

from typing import Any

from gpin.data.benchmarks import BENCHMARKS, load_benchmark
from gpin.data.fetch import FILES, check, where

__all__ = ["check_benchmark", "list_benchmarks"]


def list_benchmarks() -> list[dict[str, Any]]:
    """One record per benchmark set: name, title, shape, where it is (or None), and whether `fetch` can download it."""
    return [
        {
            "name": name,
            "title": benchmark.title,
            "shape": list(benchmark.shape),
            "where": where(name),
            "fetchable": name in FILES and all(file.urls or file.archive for file in FILES[name]),
        }
        for name, benchmark in BENCHMARKS.items()
    ]


def check_benchmark(name: str) -> dict[str, Any]:
    """The location, files and counts of a benchmark set, and the first problem with them as a sentence (or None).

    The record has the keys `name`, `where`, `files` (each with `file`, `found`, `bytes`, `sha256` and `original`) and
    `problem` and, if the set can be read, `shape`, `train` and `test`.
    """
    place = where(name)
    files = [
        {
            "file": str(found.path),
            "found": found.found,
            "bytes": found.size,
            "sha256": found.sha256,
            "original": found.right,
        }
        for found in (check(name) if name in FILES else [])
    ]
    record: dict[str, Any] = {"name": name, "where": place, "files": files}
    if place is not None or name not in FILES:
        images = load_benchmark(name)
        record |= {
            "shape": list(images.train.shape[1:]),
            "train": len(images.train),
            "test": None if images.test is None else len(images.test),
        }
    return {**record, "problem": _problem(record)}


def _problem(record: dict[str, Any]) -> str | None:
    name = record["name"]
    wrong = [file["file"] for file in record["files"] if file["original"] is False]
    if wrong:
        return f"{name}: {wrong[0]} is not the original file: its checksum differs"
    if record["where"] is None:
        return f"{name} is not present: run `gpin data fetch {name}`"
    for part, count in zip(("train", "test"), BENCHMARKS[name].counts, strict=True):
        if record[part] != count:
            return f"{name} is incomplete: its {part} part has {record[part] or 0:,} images instead of {count or 0:,}"
    return None
