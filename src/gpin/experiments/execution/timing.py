"""Inference times of the variants of an experiment, measured on this machine and kept in the store."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gpin._core.errors import InputError
from gpin._core.files import checksum, read_record, write_record
from gpin._core.threads import threads
from gpin.building import build
from gpin.data import BENCHMARKS
from gpin.evaluation.timing import inference_times
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import Experiment, Protocol, variant_named
from gpin.runs.folder import environment

__all__ = ["BATCH", "REFERENCE", "REPEATS", "measure_times", "read_times", "write_times"]

BATCH, REPEATS = 128, 5
REFERENCE = "vae"
"""The variant whose time the others are divided by."""
FORMAT, VERSION = "gpin-times", 1
RECIPE = 1
"""Increase this with every change that affects inference times."""


def measure_times(
    experiment: Experiment, protocol: Protocol, rows: Sequence[str], count: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """The inference times of some variants on every data set of an experiment, ready for JSON.

    Models and images are random: apart from line searches, the time does not depend on the weights.

    Arguments:
        experiment: The experiment, with its data sets and latent dimensions.
        protocol: If it limits the training images, one batch is timed, otherwise as many images as the test part has.
        rows: The names of the variants.
        count: The number of threads.
        tell: Called with each data set and latent dimension before it is measured.
    """
    columns = []
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan
    with threads(count):
        for data in experiment.data:
            for dim in experiment.time_dims:
                tell(f"{data}, d = {dim}")
                columns.append(_column(data, dim, experiment.decoder, rows, protocol))
    what = _what(experiment, rows)
    return {"what": what, "columns": columns, "threads": count, "load": load, "environment": environment()}


def _column(data: str, dim: int, decoder: str, rows: Sequence[str], protocol: Protocol) -> dict[str, Any]:
    shape, counts = BENCHMARKS[data].shape, BENCHMARKS[data].counts
    images = BATCH if protocol.limit is not None else counts[1] or counts[0] // 10
    x = torch.rand(min(images, BATCH), *shape, generator=torch.Generator().manual_seed(0))
    architecture = {} if decoder == "mirror" else {"decoder": decoder}
    variants = {row: variant_named(row) for row in dict.fromkeys((REFERENCE, *rows))}
    models = {
        row: build(shape, variant.method, dim, architecture=architecture, seed=0, **variant.inference_options).eval()
        for row, variant in variants.items()
    }
    times = inference_times(models, x, repeats=REPEATS, calls=math.ceil(images / BATCH))
    found = {
        row: {"milliseconds": 1000 * own.mean, "ratio": own.ratio, "least": own.range[0], "most": own.range[1]}
        for row, own in times.items()
    }
    return {"data": data, "latent_dim": dim, "decoder": decoder, "images": images, "rows": found}


def _what(experiment: Experiment, rows: Sequence[str]) -> str:
    """The hash of what is measured, so that times of other variants or options are not mistaken for it."""
    variants = {row: variant_named(row) for row in rows}
    measured = {row: [variant.method, variant.inference_options] for row, variant in variants.items()}
    return checksum({"recipe": RECIPE, "rows": measured, "data": experiment.data, "dims": experiment.time_dims})


def _path(store: Store, experiment: Experiment, protocol: Protocol, rows: Sequence[str]) -> Path:
    """The file of some variants; those of the protocol have the plain name."""
    own = "" if tuple(rows) == experiment.rows[protocol.name] else f"-{_what(experiment, rows)[:16]}"
    return store.root / "times" / f"{experiment.name}-{protocol.name}{own}.json"


def write_times(
    store: Store, experiment: Experiment, protocol: Protocol, rows: Sequence[str], found: Mapping[str, Any]
) -> None:
    """Write the times that `measure_times` returned for these variants to the store."""
    path = _path(store, experiment, protocol, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, FORMAT, VERSION, found)


def read_times(store: Store, experiment: Experiment, protocol: Protocol, rows: Sequence[str]) -> dict[str, Any] | None:
    """The times of these variants, as `measure_times` returned them; None if there are none.

    They come from a measurement of exactly these variants, or else of those of the protocol, which may lack some.
    """
    for measured in (tuple(rows), experiment.rows[protocol.name]):
        try:
            path = _path(store, experiment, protocol, measured)
            found = read_record(path, FORMAT, VERSION, "a table of times")
        except (InputError, OSError):
            continue
        columns = [
            {**column, "rows": {row: own for row, own in column["rows"].items() if row in rows}}
            for column in found["columns"]
        ]
        if found.get("what") == _what(experiment, measured) and any(column["rows"] for column in columns):
            return {**found, "columns": columns}
    return None
