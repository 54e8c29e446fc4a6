"""Conversion between the units of the data and those of the model.

Data is read once, in pieces, so that an array on disk is never loaded into memory as a whole.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor

from gpin._core.config import Config, suggest
from gpin._core.errors import InputError
from gpin.data.columns import ColumnScaling
from gpin.data.io import let_go, listed

__all__ = ["Scaling", "ScalingKind", "channel_axis", "check_values", "choose_scaling"]

ScalingKind = Literal["auto", "pixels", "standardised", "binary", "none"]

PIECE = 2**21
"""The number of values processed at a time: 16 MiB in float64."""
HUGE = 1e150
"""The square of a number above this, or below its inverse, is outside the range of float64."""
LARGEST = float(np.finfo(np.float32).max)
MOST_CHANNELS = 16
"""The largest number of channels of a series; more rows make an image."""


class Scaling(Config):
    """x = (value − offset) / scale, in float32.

    Arguments:
        kind: "pixels" divides bytes by 255; "standardised" gives mean 0 and variance 1 over the training data, for each
            column of a table and each channel of images or series separately; "binary" is for values in {0, 1}; "none"
            keeps the values unchanged; "columns" is for a table with columns of different kinds.
        offset: One offset for all values of an instance, one per column, or one per channel.
        scale: As many positive scales as offsets.
        axis: The axis of an instance along which the offsets differ, from 0, see `channel_axis`; None for the last one,
            the columns of a table.
        columns: The columns of a table with different kinds; then there is neither offset nor scale.
        missing: Whether NaN stands for missing values in the data.
    """

    later = ("axis", "columns", "missing")

    kind: Literal["pixels", "standardised", "binary", "none", "columns"]
    offset: tuple[float, ...] = Field(default=(0.0,), min_length=1)
    scale: tuple[float, ...] = Field(default=(1.0,), min_length=1)
    axis: Literal[0, 1, 2] | None = None
    columns: tuple[ColumnScaling, ...] = ()
    missing: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.offset) != len(self.scale) or min(self.scale) <= 0:
            raise ValueError("offset and scale must have the same length, and every scale must be positive")
        return self

    @model_serializer(mode="wrap")
    def _record(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The scaling as it is stored in files, without what earlier versions did not have unless it is used."""
        return self.without_unused(handler(self))

    def apply(self, values: np.ndarray) -> Tensor:
        """Convert values in the units of the data, `(..., *shape)`, to those of the model.

        Example:
            >>> Scaling(kind="pixels", scale=(255.0,)).apply(np.array([[0, 51, 255]], np.uint8))
            tensor([[0.0000, 0.2000, 1.0000]])
        """
        values = np.asarray(values)
        if self.columns:
            return self._table(values)
        # float32 is exact for bytes; a mean that is large compared with the deviation needs float64.
        exact = values.dtype.itemsize == 1 and self.kind != "standardised"
        x = values.astype(np.float32 if exact else np.float64)
        scaled = (x - self._like(self.offset, x)) / self._like(self.scale, x)
        return torch.from_numpy(scaled.astype(np.float32, copy=False))

    def undo(self, x: Tensor | np.ndarray) -> np.ndarray:
        """Convert output of the model, `(..., *shape)`, to the units of the data.

        Pixels are rounded and clipped to bytes; standardised values are float64; others are unchanged, in float32.
        """
        x = x.detach().cpu().numpy() if isinstance(x, Tensor) else x
        if self.columns:
            x = x.astype(np.float64)
            return np.stack([column.undo(part) for column, part in self._parts(x)], -1)
        if self.kind in ("binary", "none"):
            return x.astype(np.float32, copy=False)
        x = x.astype(np.float64)
        values = x * self._like(self.scale, x) + self._like(self.offset, x)
        return np.clip(np.rint(values), 0, 255).astype(np.uint8) if self.kind == "pixels" else values

    def _table(self, values: np.ndarray) -> Tensor:
        """x `(n, width)` or `(width,)` of the values of a table with columns of different kinds."""
        rows = np.atleast_2d(np.asarray(values, np.float64))
        parts = [column.apply(rows[:, index]) for index, column in enumerate(self.columns)]
        x = torch.from_numpy(np.concatenate(parts, 1).astype(np.float32))
        return x if values.ndim > 1 else x[0]

    def _parts(self, x: np.ndarray) -> Iterator[tuple[ColumnScaling, np.ndarray]]:
        """The columns with their shares of x `(n, width)`."""
        ends = np.cumsum([column.width for column in self.columns])
        return zip(self.columns, np.split(x, ends[:-1], axis=1), strict=True)

    def shape(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an instance of the model, from that of the data."""
        return (sum(column.width for column in self.columns),) if self.columns else values

    def by_column(self, values: np.ndarray) -> np.ndarray:
        """Numbers for each value of x, `(n, *shape)`, summed over the levels of each categorical column of a table."""
        return np.stack([part.sum(1) for _, part in self._parts(values)], 1) if self.columns else values

    def decoded(self, values: np.ndarray) -> list[np.ndarray]:
        """The columns of a table `(n, columns)` as they are written to files: text, whole numbers or numbers."""
        if self.kind == "binary":
            return list(np.rint(values).astype(np.int64).T)
        if not self.columns:
            return list(values.T)
        return [column.decoded(values[:, index]) for index, column in enumerate(self.columns)]

    def label(self, index: int, value: float) -> str | None:
        """A value of a column as text if it is missing, a category or a whole number by its kind; None for others."""
        if np.isnan(value):
            return "missing"
        if not self.columns or self.columns[index].kind in ("gaussian", "lognormal"):
            return None
        return str(self.columns[index].decoded(np.array([value]))[0])

    def log_volumes(self, x: Tensor) -> Tensor:
        """log p(x) − log p(value) of each instance x `(n, *shape)`: Σ log |d value/dx| over observed values, `(n,)`."""
        found = x.detach().cpu().numpy().astype(np.float64)
        if self.columns:
            volumes = sum(column.log_volumes(part) for column, part in self._parts(found))
        else:
            scales = np.broadcast_to(np.log(self._like(self.scale, found)), found.shape)
            volumes = np.where(np.isnan(found), 0.0, scales).reshape(len(found), -1).sum(1)
        return torch.as_tensor(volumes).to(x.device)

    def units(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Offset and scale: one number for all values of an instance of this shape, or one for each."""
        offset, scale = (self._like(numbers, np.empty(shape)) for numbers in (self.offset, self.scale))
        return (offset, scale) if offset.size == 1 else (np.broadcast_to(offset, shape), np.broadcast_to(scale, shape))

    def log_volume(self, dims: int) -> float:
        """Σ log scale over the `dims` values of an instance: log p(value) = log p(x) − log_volume."""
        scales = len(self.scale)
        if scales not in (1, dims) and (self.axis is None or dims % scales):
            raise InputError(f"an instance has {dims} values, but the scaling is for {scales}")
        return math.fsum(map(math.log, self.scale)) * (dims // scales)

    def unfit(self, values: np.ndarray) -> np.ndarray:
        """Which of the values, `(..., *shape)`, cannot be scaled: not valid for this kind, or too large for float32."""
        if self.columns:
            wide = values.astype(np.float64)
            return np.stack([column.unfit(wide[..., index]) for index, column in enumerate(self.columns)], -1)
        known = ~np.isnan(values) if values.dtype.kind == "f" else True
        if self.kind == "pixels":
            return known & ((values < 0) | (values > 255) | (values != np.rint(values)))
        if self.kind == "binary":
            return known & (values != 0) & (values != 1)
        x = values.astype(np.float64)
        with np.errstate(over="ignore"):
            return np.abs((x - self._like(self.offset, x)) / self._like(self.scale, x)) > LARGEST

    def _like(self, numbers: tuple[float, ...], x: np.ndarray) -> np.ndarray:
        """Offsets or scales as an array that broadcasts against x, `(..., *shape)`."""
        if self.axis is not None:
            place = self.axis - 3  # only images have an axis
            if x.ndim < 3 or x.shape[place] != len(numbers):
                raise InputError(f"the scaling is for {len(numbers)} channels, but the data has shape {x.shape}")
            return np.asarray(numbers, x.dtype).reshape(-1, *[1] * (-1 - place))
        if len(numbers) not in (1, x.shape[-1] if x.ndim else 1):
            raise InputError(f"the data has {x.shape[-1]} columns, but the scaling is for {len(numbers)}")
        return np.asarray(numbers, x.dtype)


def channel_axis(shape: Sequence[int]) -> Literal[0, 1, 2] | None:
    """The axis of an instance along which values have units of their own if they are standardised; None without one.

    It is that of the channels of an image. An array `(count, channels, length)` of series, or `(count, length,
    channels)`, is read as images of one channel: their shorter side counts as channels if there are at most 16, each at
    least four times as long.

    Example:
        >>> channel_axis((3, 32, 32)), channel_axis((1, 2, 500)), channel_axis((1, 500, 2)), channel_axis((1, 28, 28))
        (0, 1, 2, None)
    """
    if len(shape) != 3:
        return None
    channels, height, width = shape
    if channels > 1:
        return 0
    short, long = sorted((height, width))
    if not 1 < short <= MOST_CHANNELS or long < 4 * short:
        return None
    return 1 if height == short else 2


def choose_scaling(
    values: np.ndarray,
    rows: np.ndarray | None = None,
    kind: ScalingKind = "auto",
    *,
    test: np.ndarray | None = None,
    columns: Sequence[str] | None = None,
    name: str = "the data",
) -> Scaling:
    """Choose the scaling of data and check every value.

    "auto" treats values in {0, 1} as binary and images of whole numbers from 0 to 255 as pixels, and keeps other images
    in [0, 1] unchanged. It standardises everything else: tables column by column, and images and series channel by
    channel, see `channel_axis`. Means and deviations are those of the training rows; the kind is chosen from all data.

    Arguments:
        values: Images `(count, channels, height, width)` or a table `(count, columns)`.
        rows: The training rows of `values`; None for all.
        kind: The kind of scaling; InputError is raised if it does not fit the data.
        test: A separate test part, which is checked too.
        columns: The names of the columns, for error messages.
        name: The name of the data, for error messages.
    """
    if kind not in get_args(ScalingKind):
        raise InputError(f"unknown scaling {kind!r}: {suggest(str(kind), list(get_args(ScalingKind)))}")
    data = _Data((values,) if test is None else (values, test), columns, name)
    # Bytes are standardised only on request, and computing their moments would dominate the cost.
    moments = kind == "standardised" or (kind == "auto" and not (values.dtype in (np.uint8, bool) and data.images))
    survey = _survey(data, rows, moments)
    kind = _fitting(survey, data) if kind == "auto" else kind
    if kind == "standardised":
        scaling = _standardised(survey, data)
    else:
        scaling = Scaling(kind=kind, scale=(255.0 if kind == "pixels" else 1.0,))
    scaling = scaling.model_copy(update={"missing": survey.missing})
    _refuse_misfits(survey, data, scaling)
    return scaling


def check_values(
    values: np.ndarray, scaling: Scaling, columns: Sequence[str] | None = None, name: str = "the data"
) -> None:
    """Raise InputError if a value is infinite, or missing although the scaling has none, or cannot be scaled."""
    data = _Data((values,), columns, name)
    survey = _survey(data, None, moments=False)
    if survey.missing and not scaling.missing:
        raise InputError(
            f"{name} has missing values (the first is {data.first(np.isnan)}), but the model was trained on complete "
            "data: fill them, for example with gpin impute"
        )
    _refuse_misfits(survey, data, scaling)


@dataclass(frozen=True)
class _Data:
    """The arrays to survey, the first of which has the training rows, and their names in error messages."""

    parts: tuple[np.ndarray, ...]
    columns: Sequence[str] | None
    name: str

    @property
    def images(self) -> bool:
        return self.parts[0].ndim > 2

    @property
    def axis(self) -> Literal[0, 1, 2] | None:
        return channel_axis(self.parts[0].shape[1:])

    def reduced(self, function: Callable[..., np.ndarray], x: np.ndarray) -> np.ndarray:
        """A reduction of rows x `(n, *shape)`: one value per column of a table or per channel, or one for all pixels.

        That of channels broadcasts against an instance.
        """
        if not self.images:
            return function(x, axis=0)
        if self.axis is None:
            return function(x)
        return function(x, axis=tuple(i for i in range(4) if i != self.axis + 1), keepdims=True)[0]

    def column(self, index: int) -> str:
        if self.images:
            return f"channel {index + 1}"
        return f"column {index + 1}" if self.columns is None else f"column {self.columns[index]!r}"

    def pieces(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """The data in pieces, each with the index of its array and of its first row."""
        for number, part in enumerate(self.parts):
            step = max(1, PIECE // max(1, math.prod(part.shape[1:])))
            for start in range(0, len(part), step):
                yield number, start, part[start : start + step]
                let_go(part)

    def first(self, bad: Callable[[np.ndarray], np.ndarray]) -> str:
        """The first bad value and its position, such as "-1 in row 3, column 'a'"."""
        for number, start, piece in self.pieces():
            found = bad(_wide(piece))
            if found.any():
                row, *place = (int(i) for i in np.unravel_index(int(found.argmax()), found.shape))
                where = f"pixel {tuple(place)}" if self.images else self.column(place[0])
                part = " of the test part" if number else ""
                return f"{piece[(row, *place)]:.6g} in row {start + row}{part}, {where} (rows count from 0)"
        raise AssertionError("no bad value was found")


@dataclass(frozen=True)
class _Survey:
    """The range of all values, whether all are whole numbers and some are missing, and the moments and range of the
    training rows.

    Arrays have one entry per column of a table. For images they are scalars, or have one entry per channel and
    broadcast against an instance.
    """

    low: np.ndarray
    high: np.ndarray
    whole: bool
    missing: bool
    train_low: np.ndarray
    train_high: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


def _survey(data: _Data, rows: np.ndarray | None, moments: bool) -> _Survey:
    """Read the data once; NaN stands for missing values, and infinite values raise InputError.

    Means m and sums of squares s of two sets of a and b rows are combined by δ = m_b − m_a, m = m_a + δ b/(a+b),
    s = s_a + s_b + δ² ab/(a+b) (Chan, Golub and LeVeque). The first row is subtracted from all rows, so that no digits
    are lost if the mean is large compared with the deviation.
    """
    chosen = np.ones(len(data.parts[0]), bool)
    if rows is not None:
        chosen[:] = False
        chosen[rows] = True
    infinity = data.reduced(np.max, np.full((1, *data.parts[0].shape[1:]), np.inf))
    low, high, train_low, train_high = infinity, -infinity, infinity, -infinity
    whole, missing, first, mean, squares = True, False, None, np.zeros_like(infinity), np.zeros_like(infinity)
    count: Any = 0
    for number, start, piece in data.pieces():
        floats = piece.dtype.kind == "f"
        x = _wide(piece) if floats or moments else piece
        gone = np.isnan(x) if floats else np.zeros((), bool)
        if floats and np.isinf(x).any():
            where = data.first(np.isinf)
            raise InputError(f"{data.name} holds {where}: every value must be a finite number; correct or empty it")
        holey = bool(gone.any())
        missing = missing or holey
        whole = whole and (not floats or bool(((x == np.rint(x)) | gone).all()))
        low = np.minimum(low, data.reduced(np.min, np.where(gone, np.inf, x) if holey else x))
        high = np.maximum(high, data.reduced(np.max, np.where(gone, -np.inf, x) if holey else x))
        training = chosen[start : start + len(piece)]
        if number > 0 or not moments or not training.any():
            continue
        x = x[training]
        gone = gone[training] if holey else gone
        train_low = np.minimum(train_low, data.reduced(np.min, np.where(gone, np.inf, x) if holey else x))
        train_high = np.maximum(train_high, data.reduced(np.max, np.where(gone, -np.inf, x) if holey else x))
        with np.errstate(over="ignore", invalid="ignore"):  # values above HUGE raise an error later
            if first is None:
                first = np.nan_to_num(data.reduced(_first, x))
            x = x - first
            size: Any
            if holey:
                size = data.reduced(np.sum, ~gone)
                x = np.where(gone, 0.0, x)
                piece_mean = data.reduced(np.sum, x) / np.maximum(size, 1)
                x = np.where(gone, piece_mean, x)
            else:
                piece_mean = data.reduced(np.mean, x)
                size = x.size // piece_mean.size
            delta, total = piece_mean - mean, np.maximum(count + size, 1) if holey else count + size
            mean = mean + delta * (size / total)
            squares = squares + data.reduced(np.sum, (x - piece_mean) ** 2) + delta**2 * (count * size / total)
            count = count + size
    with np.errstate(invalid="ignore"):
        deviation = np.sqrt(squares / np.maximum(count, 1))
        mean = mean if first is None else first + mean
    return _Survey(low, high, whole, missing, train_low, train_high, mean, deviation)


def _first(x: np.ndarray, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> np.ndarray:
    """The first values along the axes, as a reduction of numpy."""
    axes = range(x.ndim) if axis is None else np.atleast_1d(axis)
    found = x[tuple(slice(1) if i in axes else slice(None) for i in range(x.ndim))]
    return found if keepdims else found.squeeze(axis)


def _wide(piece: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes infinite, which raises an error later
        return np.asarray(piece, np.float64)


def _fitting(survey: _Survey, data: _Data) -> Literal["pixels", "standardised", "binary", "none"]:
    """The kind of scaling that fits the values."""
    low, high = survey.low.min(), survey.high.max()
    if survey.whole and low >= 0 and high <= 1:
        return "binary"
    if data.images and low >= 0 and (high <= 1 or (survey.whole and high <= 255)):
        return "pixels" if survey.whole else "none"
    return "standardised"


def _standardised(survey: _Survey, data: _Data) -> Scaling:
    """The scaling to mean 0 and variance 1 over the training rows; raises InputError if the variance is zero."""
    low, high, mean, deviation = map(np.ravel, (survey.train_low, survey.train_high, survey.mean, survey.deviation))
    if len(unknown := np.flatnonzero(low > high)):
        where = "its pixels" if data.images and data.axis is None else data.column(int(unknown[0]))
        named = [] if data.columns is None or data.images else [data.columns[int(i)] for i in unknown]
        how = f" with `exclude={listed(named)}`" if named else ""
        raise InputError(f"{data.name}: {where} has no values in the training part: leave it out{how}")
    constant = np.flatnonzero(low == high)
    if len(constant) == len(low) and data.images and (low == low[0]).all():
        raise InputError(f"{data.name}: every pixel of the training part is {low[0]:.6g}, which cannot be standardised")
    if len(constant):
        said = ", ".join(f"{data.column(i)} is always {low[i]:.6g}" for i in constant[:4])
        others = "channels" if data.images else "columns"
        more = f" and {len(constant) - 4} more {others} are constant" if len(constant) > 4 else ""
        out = "leave it out" if len(constant) == 1 else "leave them out"
        how = (
            out if data.columns is None else f"{out} with `exclude={listed([data.columns[int(i)] for i in constant])}`"
        )
        raise InputError(
            f"{data.name}: {said}{more} in the training part and cannot be standardised: {how}, or use `scaling=none`"
        )
    size = np.maximum(np.abs(low), np.abs(high))
    odd = np.flatnonzero((size > HUGE) | (deviation < 1 / HUGE))
    if len(odd):
        i = int(odd[0])
        where = "its pixels" if data.images and data.axis is None else data.column(i)
        raise InputError(
            f"{data.name}: {where} from {low[i]:.6g} to {high[i]:.6g} cannot be standardised in float64: "
            "convert the data to other units"
        )
    offset, scale = tuple(mean.tolist()), tuple(deviation.tolist())
    return Scaling(kind="standardised", offset=offset, scale=scale, axis=data.axis)


def _refuse_misfits(survey: _Survey, data: _Data, scaling: Scaling) -> None:
    """Raise InputError unless the scaling can be applied to every value, which the range of the values determines."""
    ends = np.stack([survey.low, survey.high]).astype(np.float64)
    ends = np.where(np.isinf(ends), 0.0, ends)  # of columns without any value
    if scaling.columns:
        bad = any(bool(scaling.unfit(_wide(piece)).any()) for _, _, piece in data.pieces())
        why = "the model was trained on a column of another kind"
    else:
        bad = bool(scaling.unfit(ends).any()) or (scaling.kind in ("pixels", "binary") and not survey.whole)
        reasons = {"pixels": "pixels must be whole numbers from 0 to 255", "binary": "binary data must be 0 or 1"}
        why = reasons.get(scaling.kind, "that is too large for float32; convert the data to other units")
    if bad:
        raise InputError(f"{data.name} holds {data.first(scaling.unfit)}: {why}")
