"""Download the benchmark sets from their public sources, and check the files that are present.

A file is stored only once it is complete and verified. Checksums are those of the publishers or, for MNIST, of the
original files. None has been published for OMNIGLOT, so that file is verified by reading it.
"""

import contextlib
import hashlib
import logging
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from gpin._core.config import suggest
from gpin._core.errors import FetchError, InputError
from gpin._core.extras import extra, installed_version
from gpin.data.benchmarks import BENCHMARKS, Benchmark, data_folder
from gpin.data.io import one_line

__all__ = ["FILES", "FileCheck", "RemoteFile", "check", "fetch", "where"]

RETRIES = 2
"""How often a failed transfer is retried."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a set and its source.

    Arguments:
        name: The path relative to the folder of the set.
        checksum: "sha256:…" or "md5:…"; None if it is not known.
        size: The size in bytes; None if it is not known.
        urls: The addresses, in order of preference; empty for a file that must be downloaded by hand.
        archive: The .tar.gz file that contains it under the same name.
    """

    name: str
    checksum: str | None
    size: int | None
    urls: tuple[str, ...] = ()
    archive: "RemoteFile | None" = None


@dataclass(frozen=True)
class FileCheck:
    """A file of a set: whether it is present, its size and hash, and whether it is the original (None if unknown)."""

    path: Path
    found: bool
    size: int | None = None
    sha256: str | None = None
    right: bool | None = None


def _mnist(name: str, size: int, sha256: str) -> RemoteFile:
    places = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
    return RemoteFile(name, f"sha256:{sha256}", size, tuple(place + name for place in places))


_CIFAR10 = RemoteFile(
    "cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
    170_052_171,
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)


def _cifar10(name: str, md5: str) -> RemoteFile:
    return RemoteFile(f"cifar-10-batches-bin/{name}.bin", f"md5:{md5}", 30_730_000, archive=_CIFAR10)


def _svhn(name: str, size: int, md5: str) -> RemoteFile:
    return RemoteFile(name, f"md5:{md5}", size, (f"http://ufldl.stanford.edu/housenumbers/{name}",))


FILES: dict[str, tuple[RemoteFile, ...]] = {
    "mnist": (
        _mnist(
            "train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
        ),
        _mnist("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        _mnist(
            "t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
        ),
        _mnist("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    "omniglot": (
        RemoteFile(
            "chardata.mat",
            None,
            None,
            ("https://github.com/yburda/iwae/raw/master/datasets/OMNIGLOT/chardata.mat",),
        ),
    ),
    "cifar10": (
        _cifar10("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        _cifar10("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
        _cifar10("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
        _cifar10("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
        _cifar10("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
        _cifar10("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ),
    "svhn": (
        _svhn("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        _svhn("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
    ),
    # Behind confirmation pages, so it cannot be downloaded reliably.
    "celeba": (RemoteFile("img_align_celeba.zip", "md5:00d2c5bc6d35e252742224ab0c1e8fcb", 1_443_490_838),),
}

BY_HAND = {"celeba": "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"}
"""The pages from which to download the files that have no address of their own."""


def fetch(name: str, folder: str | os.PathLike[str] | None = None, progress: bool | None = None) -> Path:
    """Download the missing files of a benchmark set, and return its folder.

    Existing files are never changed; if one differs from the original, InputError is raised.

    Arguments:
        name: The name of the set.
        folder: The folder that contains the folders of all sets; by default `data_folder()`.
        progress: Whether to show a progress bar; by default, only in a terminal.
    """
    _benchmark(name)
    inside = _inside(name, folder)
    shown = sys.stderr.isatty() if progress is None else progress
    missing = [file for file in FILES[name] if not _is_here(name, inside, file)]
    for file in missing:
        if not file.urls and file.archive is None:
            raise InputError(
                f"{name} cannot be downloaded automatically: put {file.name} from {BY_HAND[name]} in {inside}"
            )
    try:
        inside.mkdir(parents=True, exist_ok=True)
        archives = {file.archive: None for file in missing if file.archive is not None}  # in order, each once
        for file in (*(file for file in missing if file.archive is None), *archives):
            with _downloaded(file, inside, shown) as path:
                members = [member for member in missing if member.archive == file]
                for part in members or [file]:
                    made = _unpacked(path, part) if members else path
                    reason = _what_is_wrong(name, made, part)
                    if reason:
                        raise FetchError(f"{part.name} could not be fetched, and nothing was kept: {reason}")
                    (inside / part.name).parent.mkdir(exist_ok=True)
                    os.replace(made, inside / part.name)
    except OSError as error:
        raise FetchError(f"{name} cannot be stored in {inside}: {one_line(error)}") from None
    finally:
        with contextlib.suppress(OSError):
            inside.rmdir()  # only if it is empty
    return inside


def check(name: str, folder: str | os.PathLike[str] | None = None) -> list[FileCheck]:
    """Check every original file of a set, and list the other files in its folder after them."""
    _benchmark(name)
    inside = _inside(name, folder)
    found = []
    for file in FILES[name]:
        path = inside / file.name
        if path.is_file():
            right = None if file.checksum is None else _digest(path, file.checksum) == file.checksum
            found.append(FileCheck(path, True, path.stat().st_size, _digest(path, "sha256:")[7:], right))
        else:
            found.append(FileCheck(path, False))
    known = {one.path for one in found}
    others = sorted(path for path in inside.rglob("*") if path.is_file() and path not in known)
    return found + [FileCheck(path, True, path.stat().st_size, _digest(path, "sha256:")[7:]) for path in others]


def where(name: str, folder: str | os.PathLike[str] | None = None) -> str | None:
    """The folder of a set, or the package that contains it; None if it is not present."""
    if name not in BENCHMARKS:
        raise InputError(f"unknown data set {name!r}: {suggest(str(name), list(BENCHMARKS))}")
    benchmark, inside = BENCHMARKS[name], _inside(name, folder)
    if benchmark.package:
        return benchmark.package if installed_version(benchmark.package) else None
    here = all(any((inside / path).is_file() for path in alternatives) for alternatives in benchmark.files)
    return str(inside) if here else None


def _inside(name: str, folder: str | os.PathLike[str] | None) -> Path:
    return (data_folder() if folder is None else Path(folder)) / name


def _benchmark(name: str) -> Benchmark:
    """The benchmark set of that name, which must consist of files."""
    if name not in BENCHMARKS:
        raise InputError(f"unknown data set {name!r}: {suggest(str(name), list(FILES))}")
    if name not in FILES:
        raise InputError(f"{name} has no files to fetch or check: it comes with the package {BENCHMARKS[name].package}")
    return BENCHMARKS[name]


def _is_here(name: str, inside: Path, file: RemoteFile) -> bool:
    path = inside / file.name
    if not path.is_file():
        return False
    reason = _what_is_wrong(name, path, file)
    if reason:
        raise InputError(f"{path} is not the original: {reason}; move it away and fetch again")
    return True


def _what_is_wrong(name: str, path: Path, file: RemoteFile) -> str | None:
    """Why a file is not the original, judged by its checksum or, without one, by reading it."""
    if file.checksum is not None:
        digest = _digest(path, file.checksum)
        return None if digest == file.checksum else f"its checksum is {digest} instead of {file.checksum}"
    benchmark = BENCHMARKS[name]
    try:
        images = benchmark.read(path.parent)
    except InputError as error:
        return str(error).replace(f"{path.parent}{os.sep}", "")  # the folder may be temporary
    counts = (len(images.train), None if images.test is None else len(images.test))
    return None if counts == benchmark.counts else f"it holds {counts} images instead of {benchmark.counts}"


def _digest(path: Path, like: str) -> str:
    """The checksum of a file by the algorithm of another checksum, "sha256:…" or "md5:…"."""
    algorithm = like.partition(":")[0]
    with open(path, "rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


@contextlib.contextmanager
def _downloaded(file: RemoteFile, inside: Path, shown: bool) -> Iterator[Path]:
    """The path of a verified download from the first address that works, in a temporary folder in `inside`."""
    with extra("download"):
        import pooch
        import requests

    reasons = []
    logger = pooch.get_logger()
    level = logger.level
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=inside) as temporary:
        for url in file.urls:
            source = pooch.create(temporary, "", None, registry={file.name: file.checksum}, urls={file.name: url})
            source.retry_if_failed = RETRIES
            with _Bar(file.name) if shown else contextlib.nullcontext(False) as bar:
                download = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16, timeout=60)
                logger.setLevel(logging.ERROR)  # show nothing but the progress bar
                try:
                    path = Path(source.fetch(file.name, downloader=download))
                except (requests.RequestException, ValueError) as error:
                    reasons.append(f"{url}: {_reason(error)}")
                    continue
                finally:
                    logger.setLevel(level)
            yield path
            return
    raise FetchError(f"{file.name} could not be fetched, and nothing was kept: {'; '.join(reasons)}")


def _reason(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"status {error.response.status_code} ({error.response.reason})"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the transfer was interrupted"
    if isinstance(error, requests.Timeout):
        return "the connection timed out"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return "the file has the wrong checksum" if isinstance(error, ValueError) else one_line(error)


def _unpacked(archive: Path, file: RemoteFile) -> Path:
    """The path of one member of an archive, unpacked beside it under a fixed name, whatever paths the archive holds."""
    path = archive.with_name("unpacked")
    try:
        with tarfile.open(archive) as packed, open(path, "wb") as made:
            member = packed.extractfile(file.name)
            if member is None:
                raise KeyError(file.name)
            while block := member.read(2**20):
                made.write(block)
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise InputError(f"{archive.name} has no readable member {file.name}: {one_line(error)}") from None
    return path


class _Bar:
    """A rich progress bar with the four members that pooch uses."""

    def __init__(self, name: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self.progress = Progress(*columns, console=Console(stderr=True))
        self.task = self.progress.add_task(name, total=None)

    def __enter__(self) -> "_Bar":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    @property
    def total(self) -> float | None:
        return self.progress.tasks[0].total

    @total.setter
    def total(self, total: int) -> None:
        self.progress.reset(self.task, total=total or None)  # each attempt starts from zero

    def update(self, count: int) -> None:
        self.progress.update(self.task, advance=count)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.refresh()
