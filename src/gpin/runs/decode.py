"""Samples from a run's model, and reconstructions of data."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.files import as_path, write_whole
from gpin._core.inputs import check_seed, whole_number
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.data import Rows
from gpin.data.io import one_line
from gpin.runs.folder import Run, as_run
from gpin.runs.outputs import Written, check_output, pairs_picture, picture, write_array, write_table
from gpin.runs.rows import (
    BATCH,
    OnBatch,
    batch_seed,
    check_given,
    map_batches,
    open_data,
    source_options,
    spread_rows,
)
from gpin.vae import VAE

__all__ = ["reconstruct_rows", "reconstruct_to_file", "sample_rows", "sample_to_file"]

PAIRS = 16
"""The default number of reconstructions in a picture."""


def sample_to_file(
    run: Run | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    count: int = 64,
    noise: bool = False,
    given: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str | None = None,
    tell: Tell = to_stderr,
) -> Written:
    """Draw samples from a run's model and write them to a file, as `gpin sample` does.

    Arguments:
        run: The run, or its folder.
        out: The file to write: .png for images; .csv or .parquet for tables, in the units of the data; .npy for both.
        count: The number of instances to draw.
        noise: Whether to draw x with the noise of p(x|z), instead of its mean.
        given: The conditions of the draws from a conditional model, by name; a table has a column for each.
        seed: The seed of all noise.
        device: The device, such as "cpu" or "cuda"; by default a GPU if there is one.
        tell: Called with each message for the user.
    """
    run, out = as_run(run), as_path(out, "the file to write")
    ending = check_output(out, _content(run), run.location, tell=tell)
    vae = run.load(tell).to(device_named(device))
    y = _one_condition(run, given)
    if run.scaling.columns and not noise:
        tell(
            "each row holds the expected or most probable values for its code, which vary less than the data; `noise` "
            "draws them instead"
        )
    draws = sample_rows(vae, count, noise=noise, seed=seed, y=y)
    if ending == ".png":
        write_whole(out, picture(torch.cat(list(draws)), run.scaling))
        return Written(out, count)
    values = (run.scaling.undo(x) for x in draws)
    if ending == ".npy":
        return write_array(out, values, count)
    same = y or {}
    return write_table(
        out,
        (
            {**_by_column(run, batch), **{name: np.full(len(batch), value) for name, value in same.items()}}
            for batch in values
        ),
    )


def _one_condition(run: Run, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The condition of all draws, whose values are levels or numbers, or None for a model without a condition."""
    given, condition = check_given(run, given), run.model.condition
    if condition is None:
        return None
    missing = [column for column in condition.columns if column.name not in given]
    if missing:
        levels = [None if column.levels is None else one_line(", ".join(map(str, column.levels))) for column in missing]
        said = [
            f"`given={column.name}=VALUE`, {'a number' if known is None else f'one of {known}'}"
            for column, known in zip(missing, levels, strict=True)
        ]
        raise InputError(f"{run.folder} is conditional on {condition}: give {'; and '.join(said)}")
    return {name: values[0] for name, values in condition.values(condition.numbers(given, 1)).items()}


def reconstruct_to_file(
    run: Run | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    other: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    count: int | None = None,
    seed: int = 0,
    columns: Sequence[str] | None = None,
    key: str | None = None,
    size: Sequence[int] | None = None,
    grey: bool | None = None,
    skip_damaged: bool | None = None,
    given: Mapping[str, Any] | None = None,
    device: str | None = None,
    on_batch: OnBatch | None = None,
    tell: Tell = to_stderr,
) -> Written:
    """Encode and decode instances and write their reconstructions to a file, as `gpin reconstruct` does.

    Arguments:
        run: The run, or its folder.
        out: The file to write: .png for images, each above its reconstruction; .csv or .parquet for tables, in the
            units of the data; .npy for both.
        other: Other data to reconstruct, by name or path; by default the test part of the run's own data.
        data: The new location of the run's own data, if it has moved.
        count: The number of instances, evenly spaced; by default 16 for a picture, and all for a table or an array.
        seed: The seed of all noise, for methods whose encoder is stochastic.
        columns: The columns of a table of other data.
        key: The array in an .npz archive of other data.
        size: The height and width to resize the images of a folder of other data to.
        grey: Whether to read such images in grey, with one channel.
        skip_damaged: Whether to leave out files of such a folder that cannot be read as one picture.
        given: Values of the conditions of a conditional model that are the same for all instances of other data, by
            name; the others are read with the data, as in the run.
        device: The device, such as "cpu" or "cuda"; by default a GPU if there is one.
        on_batch: Called after each batch with the number of instances done and their total.
        tell: Called with each message for the user.
    """
    run, out = as_run(run), as_path(out, "the file to write")
    places = [None if place is None else str(place) for place in (other, data)]
    ending = check_output(out, _content(run), run.location, *places, tell=tell)
    options = source_options(
        columns=columns, key=key, size=size, grey=grey, skip_damaged=skip_damaged, given=given or None
    )
    if other is None and options:
        raise InputError(f"`{next(iter(options))}` says how to read other data, but no other data is given")
    if other is not None and data is not None:
        raise InputError(
            f"`data` is the new location of the run's own data, but {other} is to be reconstructed: leave one out"
        )
    vae = run.load(tell).to(device_named(device))
    rows = run.data(data).test if other is None else open_data(run, other, **options, tell=tell)
    rows = spread_rows(rows, PAIRS if count is None and ending == ".png" else count)
    found = reconstruct_rows(vae, rows, seed=seed, on_batch=on_batch)
    return _write_reconstructions(run, out, found, len(rows))


def _write_reconstructions(
    run: Run, out: Path, found: Iterator[tuple[np.ndarray, Tensor, Tensor]], count: int
) -> Written:
    ending = out.suffix.lower()
    if ending == ".png":
        _, x, reconstructions = zip(*found, strict=True)
        write_whole(out, pairs_picture(torch.cat(x), torch.cat(reconstructions), run.scaling))
        return Written(out, count)
    if ending == ".npy":
        return write_array(out, (run.scaling.undo(again) for _, _, again in found), count)
    number = "row" if "row" not in run.column_names else "row_number"
    return write_table(
        out, ({number: numbers} | _by_column(run, run.scaling.undo(again)) for numbers, _, again in found)
    )


def _content(run: Run) -> str:
    """The kind of content that instances are written as, a key of `gpin.runs.outputs.ENDINGS`."""
    return "images" if len(run.model.shape) == 3 else "a table"


def _by_column(run: Run, batch: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(run.column_names, run.scaling.decoded(batch), strict=True))


def reconstruct_rows(
    vae: VAE, rows: Rows, *, seed: int = 0, on_batch: OnBatch | None = None
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Row numbers, x and E[x|z] at the posterior mean of z, `(batch, *shape)` in model units, batch by batch."""

    def pairs(numbers: np.ndarray, x: Tensor) -> tuple[np.ndarray, Tensor, Tensor]:
        return numbers, vae.values(x), vae.reconstruct(x).cpu()

    return map_batches(pairs, rows, seed=seed, on_batch=on_batch)


def sample_rows(
    vae: VAE, count: int, *, noise: bool = False, seed: int = 0, y: Mapping[str, Any] | None = None
) -> Iterator[Tensor]:
    """Yield `count` draws from the model, `(batch, *shape)` in model units, batch by batch.

    Arguments:
        vae: The model.
        count: The number of draws.
        noise: Whether to draw x with the noise of p(x|z), instead of its mean.
        seed: The seed of all noise.
        y: For a conditional model: the condition of all draws, or one for each, by name.
    """
    whole_number(count, "count")
    check_seed(seed)
    for number, start in enumerate(range(0, count, BATCH)):
        with seeded(batch_seed(seed, number)):
            x = vae.sample(min(BATCH, count - start), noise, y=_part(y, start)).cpu()
        yield x


def _part(y: Mapping[str, Any] | None, start: int) -> dict[str, Any] | None:
    """The conditions of a batch that begins at `start`."""
    if y is None:
        return None
    return {name: value if np.ndim(value) == 0 else value[start : start + BATCH] for name, value in y.items()}
