"""Augmentation: random shifts and flips of training images."""

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Augmentation", "augmented", "largest_shift"]

Augmentation = Literal["none", "shift", "flip", "shift+flip"]


def largest_shift(size: int) -> int:
    """The largest shift, in pixels, of an image with a side of `size` pixels: a fourteenth of it, at least one.

    Example:
        >>> largest_shift(28), largest_shift(64)
        (2, 5)
    """
    return max(1, round(size / 14))


def augmented(x: Tensor, kind: Augmentation) -> Tensor:
    """Images `(batch, channels, height, width)`, each shifted or mirrored at random.

    "shift" moves an image by up to `largest_shift` whole pixels in both directions, and repeats the pixels at its edge.
    "flip" mirrors left and right in half of the images. The noise comes from torch's global generator.
    """
    rows, columns = (torch.arange(size, device=x.device).expand(len(x), size) for size in x.shape[2:])
    if "shift" in kind:
        noise = torch.rand(len(x), 2, device=x.device)
        rows, columns = (_shifted(index, noise[:, axis]) for axis, index in enumerate((rows, columns)))
    if "flip" in kind:
        mirrored = torch.rand(len(x), 1, device=x.device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    batch = torch.arange(len(x), device=x.device)[:, None, None]
    return x.movedim(1, -1)[batch, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def _shifted(index: Tensor, noise: Tensor) -> Tensor:
    """Indices `(batch, size)`, shifted by a whole number from uniform noise `(batch,)`."""
    size = index.shape[1]
    most = largest_shift(size)
    return (index + (noise * (2 * most + 1)).long()[:, None] - most).clamp(0, size - 1)
