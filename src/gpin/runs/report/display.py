"""How instances are shown: what they are called, and how images and series become pixels."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from gpin.data import Rows, Scaling, channel_axis
from gpin.report.style import LIGHT
from gpin.runs.rows import batches

__all__ = ["Display", "Words", "series_channels", "words_for"]

SIDE = 96
"""The longest side of an image in pixels; larger images are subsampled."""
SHORTEST = 16
"""The smallest length of a series of one channel."""
PANEL = (120, 72)
"""The width and height in pixels of a drawn series."""


@dataclass(frozen=True)
class Words:
    """The noun for an instance: singular, plural, and with its article."""

    noun: str
    nouns: str
    one: str


def words_for(shape: Sequence[int], scaling: Scaling) -> Words:
    """The noun for an instance of this shape.

    Example:
        >>> words_for((1, 28, 28), Scaling(kind="pixels")).nouns, words_for((1, 2, 64), Scaling(kind="none")).nouns
        ('images', 'series')
    """
    if len(shape) == 1:
        return Words("row", "rows", "a row")
    if series_channels(shape, scaling):
        return Words("series", "series", "a series")
    return Words("image", "images", "an image")


def series_channels(shape: Sequence[int], scaling: Scaling) -> int:
    """The number of channels if an instance is a series, otherwise 0.

    An array `(n, channels, length)` or `(n, length, channels)` is read as images of one channel. It is shown as series
    if there are few channels compared with the length, see `channel_axis`, and the values are not bytes or binary.
    """
    if len(shape) < 2 or math.prod(shape[:-2]) != 1 or scaling.kind in ("pixels", "binary"):
        return 0
    channels, length = sorted(shape[-2:])
    alone = channels == 1 and length >= SHORTEST
    return channels if alone or channel_axis((1, *shape[-2:])) else 0


@dataclass(frozen=True, eq=False)
class Display:
    """How model inputs are displayed as images, in the units of the data.

    In an image, `low` is black and `high` is white. In the drawing of a series, they are the lower and the upper edge,
    for each channel separately.
    """

    scaling: Scaling
    low: np.ndarray
    high: np.ndarray
    series: bool = False

    @classmethod
    def of(cls, rows: Rows) -> "Display":
        """The display of these rows: pixels and values in [0, 1] unchanged, other values by their range."""
        return cls.fitting(rows.shape, rows.scaling, batches(rows.plain))

    @classmethod
    def fitting(cls, shape: Sequence[int], scaling: Scaling, parts: Iterable[Tensor]) -> "Display":
        """The display of instances of a shape, by the range of these batches in the units of the model."""
        if scaling.kind == "pixels":
            return cls(scaling, np.array(0.0), np.array(255.0))
        channels = series_channels(shape, scaling)
        low, high = np.full(max(channels, 1), math.inf), np.full(max(channels, 1), -math.inf)
        for x in parts:
            values = _by_channel(scaling.undo(x), len(low))
            low = np.fmin(low, np.nanmin(values, axis=(0, 2)))
            high = np.fmax(high, np.nanmax(values, axis=(0, 2)))
        if not channels and low >= 0 and high <= 1:
            low, high = np.array([0.0]), np.array([1.0])
        return cls(scaling, low, np.where(high > low, high, low + 1), series=bool(channels))

    def __call__(self, x: Tensor) -> np.ndarray:
        """Instances as images `(count, 1 or 3, height, width)` with values in [0, 1], subsampled if they are large."""
        values = self.scaling.undo(x).astype(np.float64)
        if self.series:
            values = _by_channel(values, len(self.low))
            return np.stack([_drawn((one - self.low[:, None]) / (self.high - self.low)[:, None]) for one in values])
        step = math.ceil(max(values.shape[2:]) / SIDE)
        shown = (values[:, :, ::step, ::step] - self.low) / (self.high - self.low)
        if shown.shape[1] in (1, 3):
            return shown
        return np.concatenate(list(shown.transpose(1, 0, 2, 3)[:, :, None]), axis=3)  # channels side by side, in grey


def _by_channel(values: np.ndarray, channels: int) -> np.ndarray:
    """Instances as `(count, channels, length)` in float64, from channels in front of the length or behind it."""
    if values.shape[-1] == channels < values.shape[-2]:
        values = values.swapaxes(-1, -2)
    return values.reshape(len(values), channels, -1).astype(np.float64)


def _drawn(series: np.ndarray) -> np.ndarray:
    """A series `(channels, length)` with values in [0, 1] as lines on white, one colour per channel: `(3, h, w)`."""
    width, height = (2 * side for side in PANEL)  # drawn twice as large, so that the lines become smooth
    image = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(image)
    across = np.linspace(6, width - 6, series.shape[1])
    for k, line in enumerate(series):
        up = height - 8 - np.clip(np.nan_to_num(line), -0.05, 1.05) * (height - 16)
        pen.line(list(zip(across.tolist(), up.tolist(), strict=True)), fill=LIGHT[f"series-{k % 8 + 1}"], width=3)
    pen.rectangle((0, 0, width - 1, height - 1), outline=LIGHT["rule"], width=2)
    small = image.resize(PANEL, Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float64).transpose(2, 0, 1) / 255
