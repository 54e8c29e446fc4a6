import gzip
import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import gpin
from gpin.data.benchmarks import BENCHMARKS, data_folder, load_benchmark

SHARED = Path(os.environ.get("GPIN_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
COUNTS = {"mnist": (60000, 10000), "omniglot": (24345, 8070)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GPIN_DATA", str(tmp_path))
    return tmp_path


def idx(array):
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(folder, name, files):
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def random_bytes(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def mat(**arrays):
    buffer = io.BytesIO()
    savemat(buffer, arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_from_idx_files_packed_or_not(folder, packed):
    images, labels = random_bytes(5, 28, 28), random_bytes(5)
    arrays = {"train-images-idx3": images, "train-labels-idx1": labels, "t10k-images-idx3": images[:2]}
    arrays["t10k-labels-idx1"] = labels[:2]
    ending, pack = ("-ubyte.gz", gzip.compress) if packed else ("-ubyte", lambda content: content)
    write(folder, "mnist", {name + ending: pack(idx(array)) for name, array in arrays.items()})
    found = load_benchmark("mnist")
    assert np.array_equal(found.train[:, 0], images)
    assert np.array_equal(found.train_labels, labels)
    assert found.test.shape == (2, 1, 28, 28)


def test_both_layouts_of_omniglot_give_the_same_images(folder):
    images = random_bytes(4, 28, 28)
    buffer = io.BytesIO()
    np.savez(buffer, train=images, train_labels=np.arange(4), test=images[:1], test_labels=np.arange(1))
    write(folder, "omniglot", {"omniglot28.npz": buffer.getvalue()})
    compact = load_benchmark("omniglot")
    columns = images.transpose(0, 2, 1).reshape(4, 784).T / 255  # column-major images in columns
    write(folder, "omniglot", {"chardata.mat": mat(data=columns, testdata=columns[:, :1])})
    original = load_benchmark("omniglot")
    assert np.array_equal(original.train, compact.train)
    assert np.array_equal(original.test, images[:1, None])


def test_cifar10_records_are_planar_and_batches_are_joined(folder):
    images, labels = random_bytes(3, 3, 32, 32), np.array([7, 0, 9], np.uint8)
    records = b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, images, strict=True))
    names = ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin")
    write(folder, "cifar10", {f"cifar-10-batches-bin/{name}": records for name in names})
    found = load_benchmark("cifar10")
    assert np.array_equal(found.train, np.concatenate([images, images]))
    assert found.test_labels.tolist() == [7, 0, 9]


def test_svhn_has_its_axes_turned_and_ten_means_zero(folder):
    images = random_bytes(32, 32, 3, 4)
    content = mat(X=images, y=np.array([[10], [1], [2], [9]]))
    write(folder, "svhn", {"train_32x32.mat": content, "test_32x32.mat": content})
    found = load_benchmark("svhn")
    assert found.train.shape == (4, 3, 32, 32)
    assert found.train[2, 1, 5, 7] == images[5, 7, 1, 2]
    assert found.train_labels.tolist() == [0, 1, 2, 9]


@pytest.mark.parametrize("size", [(178, 218), (89, 109)])
def test_celeba_takes_the_centred_square(folder, size):
    width, height = size
    picture = np.zeros((height, width, 3), np.uint8)
    side = round(0.68 * height)
    top, left = (height - side) // 2, (width - side) // 2
    picture[top : top + side, left : left + side] = 200  # all that should be left
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        for number in (2, 1):
            jpeg = io.BytesIO()
            Image.fromarray(picture // number).save(jpeg, "JPEG", quality=95)
            packed.writestr(f"img_align_celeba/{number:06d}.jpg", jpeg.getvalue())
    write(folder, "celeba", {"img_align_celeba.zip": archive.getvalue()})
    found = load_benchmark("celeba")
    assert found.train.shape == (2, 3, 64, 64)
    assert found.test is None
    assert abs(found.train[0].mean() - 200) < 3  # in the order of the names
    assert found.train[0].min() > 150


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("mnist", {}, "train-images-idx3-ubyte.gz is not in .*GPIN_DATA"),
        ("mnist", {"train-images-idx3-ubyte.gz": b"no gzip"}, "is damaged"),
        ("mnist", {"train-images-idx3-ubyte.gz": gzip.compress(b"no idx at all")}, "not an idx file"),
        ("mnist", {"train-images-idx3-ubyte.gz": gzip.compress(idx(random_bytes(2, 3)))[:-9]}, "is damaged"),
        ("mnist", {"train-images-idx3-ubyte": idx(random_bytes(2, 3))[:-1]}, "should hold 2 × 3 bytes, but has 5"),
        ("mnist", {"train-images-idx3-ubyte": b"\x00\x00\x08\x03\x00"}, "ends within its header"),
        ("omniglot", {"omniglot28.npz": b"nothing"}, "not the expected npz file"),
        ("omniglot", {}, "^omniglot28.npz is not in .*GPIN_DATA"),
        ("omniglot", {"chardata.mat": b"nothing"}, "not a readable MATLAB file"),
        ("omniglot", {"chardata.mat": mat(other=np.zeros(3))}, "no array 'data'"),
        ("cifar10", {"cifar-10-batches-bin/data_batch_1.bin": b"\x00" * 3074}, "whole number of records"),
        ("celeba", {"img_align_celeba.zip": b"nothing"}, "is damaged"),
        ("celebb", {}, "unknown data set 'celebb': did you mean 'celeba'"),
    ],
)
def test_files_that_are_missing_or_damaged_are_named_in_one_line(folder, name, files, said):
    write(folder, name, files)
    with pytest.raises(gpin.InputError, match=said) as caught:
        load_benchmark(name)
    assert "\n" not in str(caught.value)


def test_a_pickle_inside_an_npz_is_never_run(folder):
    buffer = io.BytesIO()
    np.savez(buffer, train=np.array([_Bomb()], dtype=object))
    write(folder, "omniglot", {"omniglot28.npz": buffer.getvalue()})
    with pytest.raises(gpin.InputError, match="not the expected npz file"):
        load_benchmark("omniglot")


class _Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was executed",)


def test_digits_need_no_files(folder):
    found = load_benchmark("digits")
    assert found.train.shape == (1797, 1, 8, 8)
    assert (found.train.min(), found.train.max()) == (0, 255)


def test_without_gpin_data_the_cache_folder_is_looked_in(monkeypatch, tmp_path):
    monkeypatch.delenv("GPIN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "gpin"


@pytest.mark.skipif(
    not (SHARED / "mnist").is_dir(), reason="the benchmark data is not here; set GPIN_DATA to its folder"
)
@pytest.mark.parametrize("name", [name for name, benchmark in BENCHMARKS.items() if benchmark.files])
def test_the_real_files_are_what_they_are_known_to_be(name, monkeypatch):
    monkeypatch.setenv("GPIN_DATA", str(SHARED))
    found = load_benchmark(name)
    assert found.train.dtype == np.uint8
    if name in COUNTS:
        assert (len(found.train), len(found.test)) == COUNTS[name]
    if name == "mnist":
        assert found.train.mean() == pytest.approx(33.3, abs=0.05)
        values = found.train.astype(np.float32) / 255
        assert values.var(0, dtype=np.float64).mean() == pytest.approx(0.0673, abs=5e-5)
