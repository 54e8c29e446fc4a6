"""Reading of a folder of pictures into one array of bytes."""

import os
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from gpin._core.errors import InputError
from gpin.data.io import one_line, reading, room_for

__all__ = ["PICTURES", "read_pictures"]

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
"""The suffixes of the files that are read; other files and hidden files are ignored."""

GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
TURNED = range(5, 9)
"""EXIF orientations that swap height and width."""


def read_pictures(
    folder: Path, size: tuple[int, int] | None = None, grey: bool = False
) -> tuple[np.ndarray, tuple[str, ...]]:
    """All pictures in a folder and its subfolders, uint8 `(n, channels, height, width)`, and their sorted paths.

    There is one channel if all pictures are grey (or with `grey`), and three otherwise. EXIF orientations are applied,
    transparent pictures are placed on black, and 16 bits are reduced to 8. With `size`, `(height, width)`, each picture
    is resized (bicubic, antialiased) and cropped at the centre; without it, all must have the same size.
    """
    files = _files(folder)
    if not files:
        raise InputError(f"{folder} holds no pictures: expected files that end in {', '.join(PICTURES)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about metadata, which is not used
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        seen = [_measure(path) for path in files]
        channels = 1 if grey or all(is_grey for _, is_grey in seen) else 3
        if size is None:
            size = _one_size(folder, [found for found, _ in seen])
        images = room_for((len(files), channels, *size), np.uint8, str(folder))
        for row, path in enumerate(files):
            images[row] = _pixels(path, channels, size)
    return images, tuple(_name(path.relative_to(folder)) for path in files)


def _name(path: Path) -> str:
    """A path as text that can be encoded as UTF-8, whatever its bytes."""
    return os.fsencode(path.as_posix()).decode("utf-8", "replace")


def _files(folder: Path) -> list[Path]:
    """The sorted paths of the pictures in a folder and its subfolders; links to folders are not followed."""
    found = []

    def complain(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from None

    for where, folders, names in os.walk(folder, onerror=complain):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(where, name) for name in names if name.lower().endswith(PICTURES) and name[0] != "."]
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def _measure(path: Path) -> tuple[tuple[int, int], bool]:
    """The height and width of a picture in its EXIF orientation, and whether it is grey, from the header alone."""
    with reading(path, "a picture"), _opened(path) as image:
        frames = getattr(image, "n_frames", 1)
        if frames > 1 and image.format != "MPO":  # MPO is a camera's JPEG with previews
            raise InputError(f"{path} holds {frames} pictures: each file must hold one picture")
        if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
            raise InputError(
                f"{path} has 32 bits per pixel: save it with 8 or 16, or store all pictures in one .npy array"
            )
        turned = image.getexif().get(0x0112) in TURNED
        return (image.width, image.height) if turned else (image.height, image.width), image.mode in GREY


def _opened(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        size = one_line(error).partition(",")[0]  # without Pillow's warning about attacks
        raise InputError(f"{path} is too large ({size}): make it smaller") from None


def _one_size(folder: Path, sizes: list[tuple[int, int]]) -> tuple[int, int]:
    counts = Counter(sizes).most_common()
    if len(counts) > 1:
        said = ", ".join(f"{times} of {height}×{width}" for (height, width), times in counts[:4])
        height, width = counts[0][0]
        raise InputError(
            f"{folder} holds pictures of {len(counts)} sizes ({said}{', …' if len(counts) > 4 else ''}; height×width): "
            f"resize them with, for example, `size={height}x{width}`"
        )
    return counts[0][0]


def _pixels(path: Path, channels: int, size: tuple[int, int]) -> np.ndarray:
    """One picture, `(channels, height, width)`."""
    with reading(path, "a picture"), _opened(path) as opened:
        image = _eight_bits(ImageOps.exif_transpose(opened))
        if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
        image = image.convert("L" if channels == 1 else "RGB")
        height, width = size
        image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        pixels = np.asarray(image)
        return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _eight_bits(image: Image.Image) -> Image.Image:
    """A picture of 16-bit greys (mode "I" in older versions of Pillow) reduced to 8 bits: 65,535 = 257 × 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray(((np.asarray(image).astype(np.int64) + 128) // 257).astype(np.uint8))
