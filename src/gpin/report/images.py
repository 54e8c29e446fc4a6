"""Images as pixels: grids and pairs of images, and their encoding as PNG files.

Images are arrays `(count, channels, height, width)` with values in [0, 1] (values outside are clipped), with one
channel for grey or three for colour.
"""

import io
import math
from typing import Any

import numpy as np
from PIL import Image

from gpin._core.errors import InputError

__all__ = ["image_grid", "image_png", "pairs", "rgba"]


def image_grid(images: Any, columns: int, gap: int = 1) -> np.ndarray:
    """Images side by side, row after row, with transparent gaps: RGBA pixels `(height, width, 4)`.

    Example:
        >>> image_grid(np.zeros((5, 1, 8, 8)), columns=3).shape
        (17, 26, 4)
    """
    tiles = rgba(images)
    count, height, width, _ = tiles.shape
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    grid = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, 4), dtype=np.uint8)
    for i, tile in enumerate(tiles):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        grid[top : top + height, left : left + width] = tile
    return grid


def pairs(*rows: Any, gap: int = 1) -> np.ndarray:
    """Rows of images that belong together column by column, such as x and its reconstructions: RGBA pixels."""
    if len({len(row) for row in rows}) != 1:
        raise InputError(f"the rows must have the same number of images, got {[len(row) for row in rows]}")
    return image_grid(np.concatenate([np.asarray(row) for row in rows]), columns=len(rows[0]), gap=gap)


def image_png(pixels: np.ndarray, scale: int = 1) -> bytes:
    """RGBA pixels as a PNG file, with each pixel drawn as a square of scale × scale."""
    buffer = io.BytesIO()
    large = pixels.repeat(scale, 0).repeat(scale, 1)
    Image.fromarray(large).save(buffer, format="png")
    return buffer.getvalue()


def rgba(images: Any) -> np.ndarray:
    """Images as bytes with channels last, opaque: `(count, height, width, 4)`."""
    images = np.asarray(images)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or len(images) == 0:
        raise InputError(f"images must have shape (count, 1 or 3, height, width), got {images.shape}")
    colour = np.broadcast_to(images, (len(images), 3, *images.shape[2:])).transpose(0, 2, 3, 1)
    levels = np.rint(255 * np.clip(np.nan_to_num(colour), 0, 1)).astype(np.uint8)
    return np.concatenate([levels, np.full_like(levels[..., :1], 255)], axis=-1)
