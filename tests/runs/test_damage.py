"""Whatever happens to a file of a run's folder: a clear sentence or a recovery, never a traceback or a wrong number."""

import json
import random
import re
import shutil

import numpy as np
import pytest

import gpin
from gpin.cli import main

OPTIONS = ["--latent-dim", "2", "--epochs", "2", "--set", "architecture.width=8", "--set", "batch_size=20"]


def flip(content, place):
    changed = bytearray(content)
    changed[place] ^= random.Random(place).randrange(1, 256)
    return bytes(changed)


def damages(content, number=3):
    """The content, truncated in several places and with one byte changed in several others."""
    size, places = len(content), random.Random(len(content))
    yield b""
    if size:
        yield from (content[:cut] for cut in {size - 1, size // 2, places.randrange(size)})
        yield from (flip(content, places.randrange(size)) for _ in range(number))
        yield flip(content, size - 1)
        yield flip(content, 0)
        yield content + b"\0"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run and its data."""
    folder = tmp_path_factory.mktemp("whole")
    np.save(folder / "data.npy", np.random.default_rng(0).normal(size=(60, 4)))
    assert main(["train", str(folder / "data.npy"), "--out", str(folder / "runs"), *OPTIONS]) == 0
    (run,) = (folder / "runs").iterdir()
    return run


def answer(capsys, *arguments):
    """Exit code, and what was said on both sides, after checking that errors are told as they should be."""
    capsys.readouterr()
    code = main(arguments)
    out, err = capsys.readouterr()
    assert "unexpected" not in err
    assert "Traceback" not in err
    assert all(re.match("gpin: |resuming|[a-z]+  ", line) for line in err.splitlines()), err
    if code:
        assert code in (1, 2)
        assert err.startswith("gpin: ")
        assert out == ""
    return code, out, err


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_damage_to_any_file_is_told_of_or_mended(every, whole, tmp_path, capsys):
    data = str(whole.parents[1] / "data.npy")
    _, right, _ = answer(capsys, "evaluate", str(whole), "--samples", "5", "--json")
    weights = gpin.load(whole / "model").checksum()
    names = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert len(names) >= 8
    mended = refused = 0
    for name in names:
        content = (whole / name).read_bytes()
        for damaged in [None, *damages(content)][::every]:
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)
            run = shutil.copytree(whole, tmp_path / "runs" / whole.name)
            if damaged is None:
                (run / name).unlink()
            else:
                (run / name).write_bytes(damaged)
            code, out, _ = answer(capsys, "evaluate", str(run), "--samples", "5", "--json")
            if code == 0:
                found, expected = json.loads(out), json.loads(right)
                elsewhere = {"run": "", "closer_estimate": ""}  # which name the folder
                assert {**found, **elsewhere} == {**expected, **elsewhere}, name
            code, _, _ = answer(capsys, "train", data, "--out", str(tmp_path / "runs"), *OPTIONS)
            if code == 0:
                mended += 1
                assert gpin.load(run / "model").checksum() == weights, name
                assert answer(capsys, "evaluate", str(run), "--samples", "5", "--json")[0] == 0
            else:
                refused += 1
    assert mended > 20 * refused


def test_damage_to_everything_at_once_is_a_sentence(whole, tmp_path, capsys):
    run = shutil.copytree(whole, tmp_path / "runs" / whole.name)
    for path in run.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    code, _, err = answer(capsys, "evaluate", str(run))
    assert code == 2
    assert "damaged" in err
    code, _, err = answer(
        capsys, "train", str(whole.parents[1] / "data.npy"), "--out", str(tmp_path / "runs"), *OPTIONS
    )
    assert code == 2
    assert "remove that folder to start again" in err
