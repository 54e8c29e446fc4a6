"""How long each method takes to infer z: beside the VAE in one and the same run, as the paper's tables of times."""

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpin._core.errors import InputError
from gpin._core.files import checksum, read_record, write_record
from gpin._core.threads import threads
from gpin.data import BENCHMARKS
from gpin.experiments.analysis.gathering import BASELINE
from gpin.experiments.analysis.paper import PAPER
from gpin.experiments.analysis.tables import ResultTable
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import ROWS, Experiment, Protocol
from gpin.runs.folder import environment
from gpin.vae import VAE, build

__all__ = ["measure_times", "read_times", "time_tables", "write_times"]

BATCH, REPEATS = 128, 5
FORMAT, VERSION = "gpin-times", 1
RECIPE = 1
"""To be raised by every change after which inference would take another time."""


def measure_times(
    experiment: Experiment, protocol: Protocol, count: int, told: Callable[[str], None]
) -> dict[str, Any]:
    """The times of every row of every column, ready for JSON.

    Time does not depend on what the weights are, but for line searches, so models and images are random.

    Arguments:
        experiment: Whose rows and columns.
        protocol: "paper" takes as many images as the test part has, "desk" one batch.
        count: Threads.
        told: Called with each column before it is measured.
    """
    columns = []
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan
    with threads(count):
        for data in experiment.data:
            for dim in experiment.time_dims:
                told(f"{data}, d = {dim}")
                columns.append(_column(data, dim, experiment.decoder, experiment.rows[protocol.name], protocol))
    what = _what(experiment, protocol)
    return {"what": what, "columns": columns, "threads": count, "load": load, "environment": environment()}


def _what(experiment: Experiment, protocol: Protocol) -> str:
    """The hash of what is measured: times of other rows, or of other options, are not of this table."""
    rows = {row: [ROWS[row].method, ROWS[row].options] for row in experiment.rows[protocol.name]}
    return checksum({"recipe": RECIPE, "rows": rows, "data": experiment.data, "dims": experiment.time_dims})


def _column(data: str, dim: int, decoder: str, rows: Sequence[str], protocol: Protocol) -> dict[str, Any]:
    shape, counts = BENCHMARKS[data].shape, BENCHMARKS[data].counts
    images = BATCH if protocol.limit is not None else counts[1] or counts[0] // 10
    x = torch.rand(min(images, BATCH), *shape, generator=torch.Generator().manual_seed(0))
    batches = math.ceil(images / BATCH)
    architecture = {} if decoder == "mirror" else {"decoder": decoder}
    models = {
        row: build(shape, ROWS[row].method, dim, architecture=architecture, seed=0, **ROWS[row].options).eval()
        for row in dict.fromkeys((BASELINE, *rows))
    }
    times: dict[str, list[float]] = {row: [] for row in models}
    ratios: dict[str, list[float]] = {row: [] for row in models}
    for repeat in range(REPEATS + 1):
        before = _seconds(models[BASELINE], x, batches)
        for row, vae in models.items():
            own = _seconds(vae, x, batches)
            after = _seconds(models[BASELINE], x, batches)
            if repeat:  # the first is for warming up
                times[row].append(own / batches)
                ratios[row].append(own / ((before + after) / 2))
            before = after
    found = {
        row: {
            "milliseconds": 1000 * statistics.fmean(times[row]),
            "ratio": statistics.median(ratios[row]),
            "least": min(ratios[row]),
            "most": max(ratios[row]),
        }
        for row in models
    }
    return {"data": data, "latent_dim": dim, "decoder": decoder, "images": images, "rows": found}


@torch.no_grad()
def _seconds(vae: VAE, x: torch.Tensor, batches: int) -> float:
    """To encode some batches, and to draw one z for every instance."""
    began = time.perf_counter()
    for _ in range(batches):
        vae.encode(x).sample()
    return time.perf_counter() - began


def write_times(store: Store, experiment: Experiment, protocol: Protocol, found: Mapping[str, Any]) -> None:
    """Keep them in the store."""
    path = store.root / "times" / f"{experiment.name}-{protocol.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, FORMAT, VERSION, found)


def read_times(store: Store, experiment: Experiment, protocol: Protocol) -> dict[str, Any] | None:
    """What `write_times` wrote; None where there is nothing whole, or where something else was measured."""
    try:
        path = store.root / "times" / f"{experiment.name}-{protocol.name}.json"
        found = read_record(path, FORMAT, VERSION, "a table of times")
    except (InputError, OSError):
        return None
    return found if found.get("what") == _what(experiment, protocol) else None


def time_tables(experiment: Experiment, found: Mapping[str, Any]) -> list[ResultTable]:
    """A table a column: times as multiples of the VAE's, ours and the paper's."""
    tables = []
    for column in found["columns"]:
        data, dim, rows = column["data"], column["latent_dim"], column["rows"]
        paper = _paper(experiment, data, dim)
        cells = [
            [
                ROWS[row].title,
                f"{own['milliseconds']:.1f}",
                f"{own['ratio']:.2f}",
                f"{own['least']:.2f} – {own['most']:.2f}",
                f"{paper[row]:.1f}" if row in paper else "",
                f"{paper[row] / paper[BASELINE]:.2f}" if row in paper and BASELINE in paper else "",
            ]
            for row, own in rows.items()
        ]
        notes = [
            f"To encode a batch of {BATCH} and draw one z for every instance: mean of {REPEATS} passes over "
            f"{column['images']:,} images, and the median and range of its ratio to the VAE's before and after. Random "
            f"weights and images; {found['threads']} of the machine's cores, load average {found['load']:.1f} "
            "before. The paper's were measured on a GPU. Line searches of SA take longer in a trained model.",
        ]
        head = ["", "ms", "× VAE", "range", "paper, ms", "paper, × VAE"]
        dense = ", dense decoder" if experiment.decoder == "dense" else ""
        title = f"Inference time, {data.upper()}, d = {dim}{dense}"
        tables.append(ResultTable(title, head, cells, notes=notes))
    return tables


def _paper(experiment: Experiment, data: str, dim: int) -> Mapping[str, float]:
    if experiment.decoder == "dense":
        return PAPER.dense_inference_time.get(data, {}).get(dim, {})
    return PAPER.inference_time.get(data, {}) if dim == 50 else {}
