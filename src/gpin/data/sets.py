"""The data that a model is trained on: the parts of a source, scaled when they are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import Dataset

from gpin._core.config import Config, suggest
from gpin._core.errors import InputError
from gpin.conditions import Condition, joined
from gpin.data.columns import choose_columns, remapped
from gpin.data.given import condition_of, numbers_of
from gpin.data.io import let_go, one_line
from gpin.data.scaling import Scaling, ScalingKind, check_values, choose_scaling
from gpin.data.sources import Source, SourceConfig
from gpin.data.splits import split_rows

__all__ = ["DataConfig", "DataSet", "Rows", "as_model_data", "split_and_scale"]


class Rows(Dataset[Tensor]):
    """Some rows of an array, read and scaled one batch at a time; the array is never copied as a whole.

    With conditions, the instances are joined rows, which carry them, see `gpin.conditions`.

    `rows[0]` is an instance, `rows[:5]` a batch of five. For a `DataLoader`, pass `collate_fn=torch.as_tensor`, because
    `__getitems__` already returns batches.

    Arguments:
        values: The array `(count, *shape)` in the units of the data, in memory or on disk.
        rows: The indices of the rows, in order.
        scaling: Converts the units of the data to those of the model.
        names: The names of all `count` instances, if they have names.
        c: The numbers of all `count` conditions, float32 `(count, C)`, if there are conditions.
    """

    def __init__(
        self,
        values: np.ndarray,
        rows: np.ndarray,
        scaling: Scaling,
        names: Sequence[str] | None = None,
        c: np.ndarray | None = None,
    ) -> None:
        self.values, self.rows, self.scaling, self.names = values, np.asarray(rows, np.int64), scaling, names
        self.c = c

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | slice) -> Tensor:
        """One instance of shape `shape`, or a batch for a slice."""
        if isinstance(index, slice):
            return self.__getitems__(np.arange(len(self))[index])
        if self.c is not None:
            return self.__getitems__([index])[0]
        return self.scaling.apply(self.values[self.rows[index]])

    def __getitems__(self, indices: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """A batch `(n, *shape)`, read in the order of the rows on disk."""
        rows = self.rows[np.asarray(indices, np.int64)]
        order = np.argsort(rows, kind="stable")
        x = self.scaling.apply(self.values[rows[order]])
        batch = torch.empty_like(x)
        batch[torch.from_numpy(order)] = x
        let_go(self.values)
        return batch if self.c is None else joined(batch, torch.from_numpy(self.c[rows]))

    def chosen(self, indices: np.ndarray) -> "Rows":
        """A subset of these rows, in the given order; nothing is read."""
        return Rows(self.values, self.rows[indices], self.scaling, self.names, self.c)

    @property
    def plain(self) -> "Rows":
        """The same rows without their conditions."""
        return self if self.c is None else Rows(self.values, self.rows, self.scaling, self.names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an instance in the units of the model."""
        return self.scaling.shape(self.values.shape[1:])


class DataConfig(Config):
    """How data is read, scaled and split.

    Arguments:
        source: How it is read, passed to `open_source` before `split_and_scale`.
        scaling: The kind of scaling; "auto" chooses one that fits the data, see `choose_scaling`.
        seed: The seed of the split.
        limit: The maximum number of training instances, chosen at random; the other parts stay complete.
        validation_limit: The maximum number of validation instances, chosen at random.
    """

    source: SourceConfig = SourceConfig()
    scaling: ScalingKind = "auto"
    seed: int = Field(default=0, ge=0, strict=True)
    limit: int | None = Field(default=None, ge=1, strict=True)
    validation_limit: int | None = Field(default=None, ge=1, strict=True)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A source with its scaling, in three disjoint parts; `condition` describes the conditions that it comes with."""

    source: Source
    scaling: Scaling
    train: Rows
    validation: Rows
    test: Rows
    condition: Condition | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an instance in the units of the model."""
        return self.scaling.shape(self.source.shape)


def split_and_scale(
    source: Source,
    config: DataConfig,
    scaling: Scaling | None = None,
    condition: Condition | None = None,
    *,
    detect: bool = True,
) -> DataSet:
    """Split a source as in the paper and choose its scaling; every value is checked.

    A source with a separate test part keeps it and holds out a tenth for validation; others are split 80/10/10.

    Arguments:
        source: A source from `open_source`.
        config: How to split and scale it.
        scaling: The scaling of an earlier run, used unchanged; None chooses one.
        condition: The condition of an earlier run, used unchanged; None derives it from the conditions of the source.
        detect: Whether columns of a table may be of different kinds, unless a kind of scaling is chosen.

    Example:
        >>> from gpin.data import open_source
        >>> data = split_and_scale(open_source("digits"), DataConfig(limit=100))
        >>> len(data.train), len(data.validation), len(data.test), data.scaling.kind
        (100, 179, 179, 'pixels')
    """
    rows = split_rows(len(source.values), source.test is not None, config.seed)
    # Separate random streams, so that a limit does not change the split.
    train = _some(rows.train, config.limit, np.random.default_rng([config.seed, 1]))
    validation = _some(rows.validation, config.validation_limit, np.random.default_rng([config.seed, 2]))
    if scaling is None:
        scaling = _table_scaling(source, train, detect and config.scaling == "auto")
    if scaling is None:
        kind = "standardised" if source.config.kinds and config.scaling == "auto" else config.scaling
        scaling = choose_scaling(source.values, train, kind, test=source.test, columns=source.columns, name=source.name)
    else:
        for part in (source.values, source.test):
            if part is not None:
                check_values(part, scaling, source.columns, source.name)
    c = test_c = None
    if source.given is not None:
        condition = condition_of(source.given, train, source.test_given) if condition is None else condition
        c = numbers_of(condition, source.given, len(source.values))
        if source.test is not None:
            assert source.test_given is not None
            test_c = numbers_of(condition, source.test_given, len(source.test))
    whole = Rows(source.values, np.arange(len(source.values)), scaling, source.names, c)
    if source.test is None:
        assert rows.test is not None
        test = whole.chosen(rows.test)
    else:
        test = Rows(source.test, np.arange(len(source.test)), scaling, c=test_c)
    return DataSet(source, scaling, whole.chosen(train), whole.chosen(validation), test, condition)


def _table_scaling(source: Source, train: np.ndarray, detect: bool) -> Scaling | None:
    """The scaling of a table with columns of different kinds; None if all are alike."""
    if not detect:
        asked = next((name for name, own in zip(source.columns or (), source.levels or (), strict=False) if own), None)
        asked = asked or next(iter(source.config.kinds or ()), None)
        if asked is not None:
            raise InputError(
                f"{source.name}: column {asked!r} has a kind of its own, so that neither `scaling` nor one likelihood "
                "for all columns can be chosen: leave that choice or the column out"
            )
        return None
    if source.kind != "table" or source.columns is None:
        return None
    columns = choose_columns(source.values, train, source.columns, source.levels, source.config.kinds, source.name)
    if columns is None or {column.kind for column in columns} == {"gaussian"}:
        return None
    missing = source.values.dtype.kind == "f" and bool(np.isnan(source.values).any())
    return Scaling(kind="columns", columns=columns, missing=missing)


def _some(rows: np.ndarray, limit: int | None, random: np.random.Generator) -> np.ndarray:
    return rows if limit is None or limit >= len(rows) else np.sort(random.choice(rows, limit, replace=False))


def as_model_data(
    source: Source,
    shape: tuple[int, ...],
    scaling: Scaling,
    columns: Sequence[str] | None = None,
    condition: Condition | None = None,
    given: Mapping[str, Any] | None = None,
    *,
    missing: bool = False,
) -> Rows:
    """All rows of a source as data for a model that was trained on another source; every value is checked.

    A separate test part follows the other rows. Columns are matched by name if both have names: their order does not
    matter, and columns that the model does not know are dropped. For a model of colour images, grey images are repeated
    in every channel.

    Arguments:
        source: A source from `open_source`.
        shape: The shape of the model's instances.
        scaling: The scaling of the model.
        columns: The names of the model's columns, if they have names.
        condition: What the model is conditional on, if anything.
        given: Values of conditions that are the same for all instances and do not come with the source, by name.
        missing: Whether values may be missing even if the model was trained on complete data.
    """
    values = source.values if source.test is None else np.concatenate([source.values, source.test])
    levels = source.levels
    if source.columns is not None and columns is not None:
        for name in columns:
            if name not in source.columns:
                known = one_line(suggest(name, list(source.columns)), 4096)
                raise InputError(f"{source.name} has no column {name!r}, which the model was trained on: {known}")
        if tuple(columns) != source.columns:
            order = [source.columns.index(name) for name in columns]
            values = values[:, order]
            levels = None if levels is None else tuple(levels[number] for number in order)
    if scaling.columns and values.shape[1:] == (len(scaling.columns),):
        values = remapped(values, columns or source.columns or (), levels, scaling.columns, source.name)
    elif levels is not None:
        raise InputError(f"{source.name} holds text, but the model was trained on numbers")
    if len(shape) == 3 and values.shape[1:] == (1, *shape[1:]):
        values = np.broadcast_to(values, (len(values), *shape))
    if scaling.shape(values.shape[1:]) != tuple(shape) or len(scaling.columns or values[0]) != len(values[0]):
        raise InputError(
            f"{source.name} holds {_said(values.shape[1:])}, but the model was trained on {_said(tuple(shape))}: "
            + _reshaped(source, shape)
        )
    if missing:
        scaling = scaling.model_copy(update={"missing": True})
    check_values(values, scaling, source.columns if columns is None else columns, source.name)
    c = None if condition is None else _given_numbers(condition, source, given or {}, len(values))
    return Rows(values, np.arange(len(values)), scaling, source.names, c)


def _given_numbers(condition: Condition, source: Source, given: Mapping[str, Any], count: int) -> np.ndarray:
    """The numbers of the conditions of a source, of which some may be the same for all instances."""
    own = dict(source.given or {})
    if source.test_given is not None:
        own = {name: np.concatenate([values, source.test_given[name]]) for name, values in own.items()}
    found = {**own, **given}
    missing = [name for name in condition.names if name not in found]
    if missing:
        which = f"condition{'' if len(missing) == 1 else 's'} {', '.join(map(repr, missing))}"
        values = " and ".join(f"`given={name}=VALUE`" for name in missing)
        raise InputError(
            f"{source.name} does not come with the {which} of the model: give one value for all instances with {values}"
        )
    return numbers_of(condition, found, count)


def _reshaped(source: Source, shape: tuple[int, ...]) -> str:
    """What to do about data of another shape."""
    options = []
    if source.survey is not None and len(shape) == 3:
        options += [] if source.shape[1:] == shape[1:] else [f"`size={shape[1]}x{shape[2]}`"]
        options += ["`grey`"] if (source.shape[0], shape[0]) == (3, 1) else []
    return f"read the pictures with {' and '.join(options)}" if options else "pass data of that shape"


def _said(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"instances of {shape[0]} numbers"
    return "images of " + "×".join(map(str, shape)) + " (channels×height×width)"
