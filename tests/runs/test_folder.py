"""A run's folder: what is in the way of its model, and what is found elsewhere."""

import numpy as np
import pytest

import gpin
import gpin._core.files
from gpin.runs import open_run, train
from gpin.runs.settings import run_settings

OPTIONS = ["latent_dim=2", "epochs=2", "architecture.width=8", "batch_size=20"]


@pytest.fixture
def run(tmp_path):
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(60, 4)))
    found, _, _ = train(tmp_path / "data.npy", run_settings(assignments=OPTIONS), out=tmp_path / "runs", progress=False)
    return found


def test_another_model_in_its_place_is_told_of_and_the_checkpoints_taken(run):
    own = run.load(pytest.fail).checksum()
    other = gpin.build((4,), "vae", 2, architecture={"width": 8}, seed=1)
    other.save(run.folder / "model")
    said = []
    assert open_run(run.folder).load(said.append).checksum() == own
    assert said == [f"{run.folder / 'model'} is not this run's model: using the weights in the checkpoints"]


def test_the_folder_of_another_run_is_not_taken(run, tmp_path):
    record = run.record() | {"fingerprint": "of other data"}
    gpin._core.files.write_record(run.folder / "run.json", "gpin-run", 1, record)
    with pytest.raises(gpin.InputError, match="holds another run: move it away"):
        train(tmp_path / "data.npy", run_settings(assignments=OPTIONS), out=tmp_path / "runs", progress=False)
