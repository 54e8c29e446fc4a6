"""Training a run: what is written around it, and what happens where it cannot be."""

import errno
import importlib
import json
import os

import numpy as np
import pytest

import gpin
from gpin._core.files import write_record
from gpin.runs import train
from gpin.runs.settings import run_settings

OPTIONS = run_settings(assignments=["latent_dim=2", "epochs=1", "architecture.width=8"])


module = importlib.import_module("gpin.runs.train")  # whose function hides it


@pytest.fixture
def data(tmp_path):
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(60, 4)))
    return tmp_path / "data.npy"


@pytest.mark.parametrize("name", ["_write_about", "_save_model"])
def test_a_full_disk_is_a_sentence_with_the_folder(data, tmp_path, monkeypatch, name):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(module, name, full)
        with pytest.raises(gpin.TrainingError, match=r"cannot write to .*data-gp-.*: No space left on device; fix"):
            train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    run, vae, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    assert run.load(pytest.fail).checksum() == vae.checksum()


def test_a_run_is_calibrated_once_with_its_validation_data(tmp_path, monkeypatch):
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(700, 4)))
    run, vae, _ = train(tmp_path / "data.npy", OPTIONS, out=tmp_path / "runs", progress=False)
    x = run.data().test[:5]
    found = run.load(pytest.fail).gap(x, "predicted")
    np.testing.assert_allclose(found.values, vae.gap(x, "predicted").values)
    monkeypatch.setattr(gpin.VAE, "calibrate", lambda *_, **__: pytest.fail("the run is calibrated already"))
    _, again, _ = train(tmp_path / "data.npy", OPTIONS, out=tmp_path / "runs", progress=False)
    np.testing.assert_allclose(again.gap(x, "predicted").values, found.values)


def test_the_environment_is_that_of_the_beginning(data, tmp_path):
    run, _, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    about = run.folder / "environment.json"
    about.write_text("of then")
    (run.folder / "run.json").unlink()
    again, _, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    assert again.folder == run.folder
    assert (run.folder / "run.json").is_file()
    assert about.read_text() == "of then"


def test_a_run_of_another_version_is_left_alone(data, tmp_path):
    run, _, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    for path, kind in ((run.folder / "run.json", "gpin-run"), (run.folder / "model" / "config.json", None)):
        content = path.read_bytes()
        record = json.loads(content)
        del record["record_sha256"], record["format"]
        write_record(path, kind or json.loads(content)["format"], record.pop("version") + 1, record)
        newer = path.read_bytes()
        with pytest.raises(gpin.InputError, match=r"has format version 2; this gpin reads 1"):
            train(data, OPTIONS, out=tmp_path / "runs", progress=False)
        assert path.read_bytes() == newer
        path.write_bytes(content)


def test_a_finished_run_is_found_done_where_nothing_can_be_written(data, tmp_path, monkeypatch):
    run, vae, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)

    def refuse(path, mode="r", **more):
        if "w" in mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open(path, mode, **more)

    monkeypatch.setattr(module, "open", refuse, raising=False)
    monkeypatch.setattr("gpin._core.files.open", refuse, raising=False)
    again, same, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    assert again.folder == run.folder
    assert same.checksum() == vae.checksum()


def test_what_a_killed_process_left_half_written_is_removed(data, tmp_path):
    run, _, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    for folder in (run.folder, run.folder / "model"):
        (folder / "x.json.1234abcd.part").write_text("half")
    train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    assert not list(run.folder.rglob("*.part"))
