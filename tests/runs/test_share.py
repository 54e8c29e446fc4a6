"""A model that is shared: a folder that stands alone, says what it is, and tells nothing of this machine."""

import numpy as np
import pytest
import torch

import gpin
from gpin.runs import evaluate_run, open_run, share_run, train
from gpin.runs.settings import run_settings

OPTIONS = ["latent_dim=2", "epochs=1", "architecture.width=8", "batch_size=20", "method=vae"]
FILES = ["README.md", "calibration.safetensors", "config.json", "model.safetensors", "run.json"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private place")
    values = np.random.default_rng(0).normal(3.0, 2.0, size=(600, 3))
    np.savetxt(folder / "table.csv", values, delimiter=",", header="a,b|c,d", comments="")
    settings = run_settings(assignments=OPTIONS)
    found, _, _ = train(folder / "table.csv", settings, out=folder / "runs", progress=False)
    return found


def test_the_folder_stands_alone(run, tmp_path):
    (tmp_path / "mine").mkdir()  # an empty one is as good as none
    shared = share_run(run, tmp_path / "mine", tell=pytest.fail)
    assert shared.path == tmp_path / "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert list(shared.files) == sorted(path.name for path in shared.path.iterdir()) == FILES
    again, x = open_run(shared.path), torch.randn(5, 3)
    own = run.load()
    for vae in (again.load(pytest.fail), gpin.load(shared.path)):
        assert torch.equal(vae.encode(x).mean, own.encode(x).mean)
        assert vae.gap(x, "predicted").values.shape == (5,)
    assert (again.scaling, again.columns, again.identity) == (run.scaling, ("a", "b|c", "d"), run.identity)
    assert again.location == "table.csv"
    for path in shared.path.iterdir():
        assert str(run.folder.parent.parent).encode() not in path.read_bytes()
        assert b"private place" not in path.read_bytes()


def test_the_card_says_what_the_model_is_and_how_far_to_believe_its_score(run, tmp_path):
    shared = share_run(run, tmp_path / "mine", samples=2)
    card = (tmp_path / "mine" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: gpin\n")
    assert "\n# mine\n" in card
    assert "\n| data | table.csv: instances of 3, 480 for training, 60 for validation |\n" in card
    assert "\n| columns | a, b/c, d |\n" in card
    assert "\n| likelihood | gaussian |\n" in card
    found = evaluate_run(run, samples=2)
    assert torch.equal(shared.evaluation.log_likelihood.values, found.log_likelihood.values)
    assert f" {found.log_likelihood.mean:.2f} ±".replace("-", "−") in card
    assert "with 2 samples per instance" in card
    assert found.caution
    assert f"Caution: {found.caution}" in card
    code = card.split("```python\n")[1].split("```")[0].replace('"mine"', repr(str(tmp_path / "mine")))
    names = {"values": np.zeros((2, 3))}
    exec(code, names)
    assert names["again"].shape == (2, 3)


def test_without_its_data_there_is_no_score(run, tmp_path):
    gone = open_run(share_run(run, tmp_path / "first").path)  # which has the name of the data only
    said = []
    shared = share_run(gone, tmp_path / "second", tell=said.append)
    assert len(said) == 1
    assert said[0].endswith("; the model card has no score")
    assert shared.evaluation is None
    assert "could not be read" in (tmp_path / "second" / "README.md").read_text()
    assert open_run(shared.path).load().checksum() == run.load().checksum()


def test_nothing_is_overwritten(run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "README.md").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(gpin.InputError, match="full: the folder is not empty; choose another one"):
        share_run(run, tmp_path / "full")
    with pytest.raises(gpin.InputError, match="file: it is a file, and a folder is needed"):
        share_run(run, tmp_path / "file")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["README.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]
