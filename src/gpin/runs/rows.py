"""The rows of data that a run's model is applied to: opened, chosen, and read in batches."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gpin._core.config import suggest
from gpin._core.errors import ColumnError, InputError
from gpin._core.inputs import check_seed, whole_number
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.data import Rows, SourceConfig, applicable_options, as_model_data, open_source
from gpin.runs.folder import Run
from gpin.runs.understood import skipped_files
from gpin.vae import VAE

__all__ = [
    "BATCH",
    "OnBatch",
    "OnStage",
    "batch_seed",
    "batches",
    "check_given",
    "conditions_of",
    "example_conditions",
    "map_batches",
    "numbered_batches",
    "open_data",
    "random_rows",
    "source_options",
    "spread_rows",
]

BATCH = 128
"""The number of instances that are read and encoded together, the same as in `VAE.log_likelihood`."""

T = TypeVar("T")

OnBatch = Callable[[int, int], None]
"""A callback that takes the number of instances done and their total."""

OnStage = Callable[[str, int, int], None]
"""A callback that takes what is being done, the number of instances or parts done and their total."""


def open_data(
    run: Run,
    data: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    key: str | None = None,
    size: Sequence[int] | None = None,
    grey: bool | None = None,
    skip_damaged: bool | None = None,
    given: Mapping[str, Any] | None = None,
    missing: bool = False,
    tell: Tell = to_stderr,
) -> Rows:
    """All rows of a source as data for a run's model, read as in the run except for the options given.

    Options of the run that do not apply to this source are dropped, while options given here raise InputError if they
    do not apply. The columns of a table are matched by name, or by position if `columns` is given.

    Arguments:
        run: The run whose model takes the data.
        data: A data set's name or a path.
        columns: The columns of a table.
        key: The array in an .npz archive.
        size: The height and width to resize the images of a folder to.
        grey: Whether to read the images of a folder in grey, with one channel.
        skip_damaged: Whether to leave out files of a folder that cannot be read as one picture.
        given: Values of the conditions of a conditional model that are the same for all instances, by name; the others
            are read with the data, as in the run.
        missing: Whether values may be missing even if the model was trained on complete data.
        tell: Called with a sentence that lists skipped files.
    """
    chosen = source_options(columns=columns, key=key, size=size, grey=grey, skip_damaged=skip_damaged)
    condition, given = run.model.condition, check_given(run, given)
    read = tuple(name for name in (() if condition is None else condition.names) if name not in given)
    own = run.settings.data.source.model_dump()
    own |= {"columns": run.columns, "given": read or None, "exclude": None, "kinds": _texts(run)}
    inherited = {name: own[name] for name in applicable_options(str(data))}
    try:
        source = open_source(data, SourceConfig.parse({**inherited, **chosen}, "the data"))
    except ColumnError as error:
        fixed = "the model needs its columns as they were in training, so correct or empty the cells at fault"
        advice = "remove such columns from the file" if run.columns is None else fixed
        raise InputError(f"{error.problem}: {advice}") from None
    skipped = skipped_files(source)
    if skipped is not None:
        tell(skipped)
    names = run.columns if columns is None else None
    return as_model_data(source, run.model.shape, run.scaling, names, condition, given, missing=missing)


def _texts(run: Run) -> dict[str, str] | None:
    """The categorical columns of a run, which are read as such even if other data has numbers there."""
    pairs = zip(run.columns or (), run.scaling.columns, strict=False)
    return {name: "categorical" for name, column in pairs if column.kind == "categorical"} or None


def check_given(run: Run, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The values of conditions that are given for all instances; raises InputError if the model has no such one."""
    condition = run.model.condition
    for name in given or {}:
        if condition is None:
            raise InputError(f"{run.folder} is not conditional on anything: leave out `given`")
        if name not in condition.names:
            raise InputError(f"{run.folder} has no condition {name!r}: {suggest(name, list(condition.names))}")
    return given or {}


def conditions_of(vae: VAE, rows: Rows, count: int) -> Mapping[str, np.ndarray] | None:
    """The conditions of `count` evenly spaced rows, for draws from a conditional model; None for another one."""
    if vae.condition is None or rows.c is None:
        return None
    places = np.linspace(0, len(rows) - 1, count).astype(np.int64)
    return vae.condition.values(torch.from_numpy(rows.c[rows.rows[places]]))


def example_conditions(vae: VAE, count: int) -> Mapping[str, np.ndarray] | None:
    """`count` examples of conditions for draws from a conditional model; None for another one."""
    return None if vae.condition is None else vae.condition.examples(count)


def source_options(**options: Any) -> dict[str, Any]:
    """The options of a `SourceConfig` that are given, that is, not None."""
    return {name: value for name, value in options.items() if value is not None}


def random_rows(rows: Rows, limit: int | None, seed: int = 0) -> Rows:
    """At most `limit` of the rows, chosen at random with the seed, in their original order."""
    if limit is None or whole_number(limit, "limit") >= len(rows):
        return rows
    chosen = np.random.default_rng(seed).choice(len(rows), limit, replace=False)
    return rows.chosen(np.sort(chosen))


def spread_rows(rows: Rows, count: int | None) -> Rows:
    """At most `count` of the rows, evenly spaced from the first to the last."""
    if count is None or whole_number(count, "count") >= len(rows):
        return rows
    return rows.chosen(np.linspace(0, len(rows) - 1, count).astype(np.int64))


def batches(rows: Rows) -> Iterator[Tensor]:
    """Yield all instances in batches `(n, *shape)`."""
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def numbered_batches(rows: Rows, on_batch: OnBatch | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yield all instances in batches, each with the numbers of its rows in the source.

    Arguments:
        rows: The data.
        on_batch: Called when a batch is done, that is, when the next one is requested.
    """
    numbers = np.split(rows.rows, range(BATCH, len(rows), BATCH))
    done = 0
    for in_source, x in zip(numbers, batches(rows), strict=True):
        yield in_source, x
        done += len(x)
        if on_batch is not None:
            on_batch(done, len(rows))


def map_batches(
    function: Callable[[np.ndarray, Tensor], T], rows: Rows, *, seed: int = 0, on_batch: OnBatch | None = None
) -> Iterator[T]:
    """Yield the result of a function for all instances in batches, each with noise of its own and without gradients.

    Arguments:
        function: Called with the numbers of a batch's rows in the source, and the batch.
        rows: The data.
        seed: The seed of all noise.
        on_batch: Called after each batch with the number of instances done and their total.
    """
    check_seed(seed)
    for number, (numbers, x) in enumerate(numbered_batches(rows, on_batch)):
        with seeded(batch_seed(seed, number)), torch.no_grad():
            found = function(numbers, x)
        yield found


def batch_seed(seed: int, number: int) -> int:
    """The seed of a batch; no two batches share noise, even under different seeds."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)
