"""Reading of a folder of pictures into one array of bytes."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps

from gpin._core.errors import InputError
from gpin.data.io import one_line, reading, room_for

__all__ = ["PICTURES", "FolderSurvey", "read_picture", "read_pictures"]

T = TypeVar("T")

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
"""The suffixes of the files that are read; other files and hidden files are ignored."""

GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
TURNED = range(5, 9)
"""EXIF orientations that swap height and width."""


@dataclass(frozen=True)
class FolderSurvey:
    """What a folder of pictures was found to hold.

    Attributes:
        sizes: The sizes of its pictures, `(height, width)`, with the number of pictures of each, most frequent first.
        coloured: The names of the pictures that are stored in colour; the others are grey.
        colours: Whether any of them, as read, has colours and not only shades of grey.
        deep: The number of pictures with 16 bits per pixel, which are reduced to 8.
        transparent: The number of pictures with transparency, which are placed on black.
        ignored: The names of its other files.
        skipped: The names of the files that cannot be read, with the reason.
    """

    sizes: tuple[tuple[tuple[int, int], int], ...]
    coloured: tuple[str, ...]
    colours: bool
    deep: int
    transparent: int
    ignored: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Header:
    """What the header of a picture says; `size` is its height and width in its EXIF orientation."""

    size: tuple[int, int]
    grey: bool
    deep: bool
    transparent: bool


def read_pictures(
    folder: Path, size: tuple[int, int] | None = None, grey: bool = False, skip_damaged: bool = False
) -> tuple[np.ndarray, tuple[str, ...], FolderSurvey]:
    """All pictures in a folder and its subfolders, uint8 `(n, channels, height, width)`, with their sorted paths.

    There is one channel if all pictures are grey (or with `grey`), and three otherwise. EXIF orientations are applied,
    transparent pictures are placed on black, and 16 bits are reduced to 8. With `size`, `(height, width)`, each picture
    is resized (bicubic, antialiased) and cropped at the centre; without it, all must have the same size. A file that
    cannot be read as one picture raises InputError or, with `skip_damaged`, is left out.
    """
    files, ignored = _files(folder)
    if not files:
        raise InputError(f"{folder} holds no pictures: expected files that end in {', '.join(PICTURES)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about metadata, which is not used
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        seen, skipped = _surveyed(folder, files, skip_damaged)
        coloured = [path for path, header in seen.items() if not header.grey]
        channels = 1 if grey or not coloured else 3
        sizes = Counter(header.size for header in seen.values()).most_common()
        size = _one_size(folder, sizes) if size is None else size
        images = room_for((len(seen), channels, *size), np.uint8, str(folder))
        colours = False
        for row, path in enumerate(seen):
            images[row] = pixels = _readable(path, lambda path: read_picture(path, channels, size))
            colours = colours or bool((pixels != pixels[:1]).any())
    survey = FolderSurvey(
        sizes=tuple(sizes),
        coloured=_names(folder, coloured),
        colours=colours,
        deep=sum(header.deep for header in seen.values()),
        transparent=sum(header.transparent for header in seen.values()),
        ignored=_names(folder, ignored),
        skipped=skipped,
    )
    return images, _names(folder, seen), survey


def _surveyed(
    folder: Path, files: list[Path], skip_damaged: bool
) -> tuple[dict[Path, _Header], tuple[tuple[str, str], ...]]:
    """The headers of all pictures, and the names of skipped files with the reason."""
    if not skip_damaged:
        return {path: _readable(path, _measure) for path in files}, ()
    seen, skipped = {}, []
    for path in files:
        try:
            seen[path] = _measure(path, whole=True)
        except InputError as error:
            reason = str(error).removeprefix(str(path)).strip()
            skipped.append((_name(path.relative_to(folder)), one_line(reason)))
    if not seen:
        raise InputError(f"none of the {len(files)} pictures in {folder} can be read: the first {skipped[0][1]}")
    return seen, tuple(skipped)


def _readable(path: Path, read: Callable[[Path], T]) -> T:
    """The result of a reader; its InputError says how to go on without the file."""
    try:
        return read(path)
    except InputError as error:
        raise InputError(f"{error}; `skip_damaged` leaves out such files") from None


def _names(folder: Path, files: Iterable[Path]) -> tuple[str, ...]:
    return tuple(_name(path.relative_to(folder)) for path in files)


def _name(path: Path) -> str:
    """A path as text that can be encoded as UTF-8, whatever its bytes."""
    return os.fsencode(path.as_posix()).decode("utf-8", "replace")


def _files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The sorted paths of the pictures in a folder and its subfolders, and those of the other files.

    Links to folders are not followed, and hidden files are left out.
    """
    found: list[Path] = []

    def complain(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from None

    for where, folders, names in os.walk(folder, onerror=complain):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(where, name) for name in names if not name.startswith(".")]
    found.sort(key=lambda path: path.relative_to(folder).parts)
    pictures = [path for path in found if path.name.lower().endswith(PICTURES)]
    return pictures, [path for path in found if not path.name.lower().endswith(PICTURES)]


def _measure(path: Path, whole: bool = False) -> _Header:
    """The header of a picture; with `whole`, its pixels are read as well, which fails if they are damaged."""
    with reading(path, "a picture"), _opened(path) as image:
        frames = getattr(image, "n_frames", 1)
        if frames > 1 and image.format != "MPO":  # MPO is a camera's JPEG with previews
            raise InputError(f"{path} holds {frames} pictures: each file must hold one picture")
        if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
            raise InputError(
                f"{path} has 32 bits per pixel: save it with 8 or 16, or store all pictures in one .npy array"
            )
        if whole:
            image.load()
        turned = image.getexif().get(0x0112) in TURNED
        size = (image.width, image.height) if turned else (image.height, image.width)
        return _Header(size, image.mode in GREY, image.mode.startswith("I"), _is_transparent(image))


def _opened(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        size = one_line(error).partition(",")[0]  # without Pillow's warning about attacks
        raise InputError(f"{path} is too large ({size}): make it smaller") from None


def _one_size(folder: Path, counts: list[tuple[tuple[int, int], int]]) -> tuple[int, int]:
    if len(counts) > 1:
        said = ", ".join(f"{times} of {height}×{width}" for (height, width), times in counts[:4])
        height, width = counts[0][0]
        raise InputError(
            f"{folder} holds pictures of {len(counts)} sizes ({said}{', …' if len(counts) > 4 else ''}; height×width): "
            f"resize them with, for example, `size={height}x{width}`"
        )
    return counts[0][0]


def read_picture(path: Path, channels: int, size: tuple[int, int]) -> np.ndarray:
    """One picture with 1 or 3 channels and of this height and width, `(channels, height, width)`."""
    with reading(path, "a picture"), _opened(path) as opened:
        image = _eight_bits(ImageOps.exif_transpose(opened))
        if _is_transparent(image):
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
        image = image.convert("L" if channels == 1 else "RGB")
        height, width = size
        image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        pixels = np.asarray(image)
        return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info


def _eight_bits(image: Image.Image) -> Image.Image:
    """A picture of 16-bit greys (mode "I" in older versions of Pillow) reduced to 8 bits: 65,535 = 257 × 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray(((np.asarray(image).astype(np.int64) + 128) // 257).astype(np.uint8))
