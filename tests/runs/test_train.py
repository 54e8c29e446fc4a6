"""Training a run: what is written around it, and what happens where it cannot be."""

import errno
import importlib
import os

import numpy as np
import pytest

import gpin
from gpin.runs import train
from gpin.runs.settings import assigned

OPTIONS = assigned({}, ["latent_dim=2", "epochs=1", "architecture.width=8"])


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
        with pytest.raises(gpin.TrainingError, match=r"cannot write to .*data-gp-.*: No space left on device; mend"):
            train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    run, vae, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    assert run.load(pytest.fail).checksum() == vae.checksum()


def test_the_environment_is_that_of_the_beginning(data, tmp_path):
    run, _, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    about = run.folder / "environment.json"
    about.write_text("of then")
    (run.folder / "run.json").unlink()
    again, _, _ = train(data, OPTIONS, out=tmp_path / "runs", progress=False)
    assert again.folder == run.folder
    assert (run.folder / "run.json").is_file()
    assert about.read_text() == "of then"
