"""Improving the encoder of a run: a new run beside it."""

import numpy as np
import pytest
import torch
from linear_gaussian import LinearGaussian

import gpin
from gpin.runs import evaluate_run, improve_run, open_run, train
from gpin.runs.settings import run_settings

SETTINGS = run_settings(
    assignments=[
        "method=vae",
        "latent_dim=2",
        "epochs=4",
        "learning_rate=0.01",
        "architecture.width=8",
        "batch_size=16",
    ]
)
OPTIONS = {"epochs": 3, "learning_rate": 0.01}


@pytest.fixture
def run(tmp_path):
    np.save(tmp_path / "data.npy", LinearGaussian.random().sample(300).numpy())
    return train(tmp_path / "data.npy", SETTINGS, out=tmp_path / "runs", progress=False)[0]


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_new_run_has_the_better_encoder_and_the_same_decoder(run):
    before, said = files(run.folder), []
    found = improve_run(run.folder, options=OPTIONS, progress=False, tell=said.append)
    assert files(run.folder) == before
    assert found.run.folder.name == f"{run.folder.name}-improved"
    assert not found.done
    assert found.gain > 0
    assert said[-1].startswith("the validation score rose by ")
    old, new = run.load(pytest.fail), open_run(found.run.folder).load(pytest.fail)
    for name, value in old.state_dict().items():
        assert name.startswith("inference.") or torch.equal(value, new.state_dict()[name]), name
    assert not torch.equal(old.inference.head.weight, new.inference.head.weight)
    history, finished = found.run.history(pytest.fail)
    assert finished
    assert [epoch.stage for epoch in history.epochs] == ["all"] * 4 + ["improve"] * 3
    assert history.best > 4
    assert found.after == history.scores[history.best - 1]
    assert evaluate_run(found.run, samples=5, tell=pytest.fail).record()["log_likelihood"]["mean"]
    again = improve_run(run.folder, options=OPTIONS, tell=pytest.fail)
    assert again.done
    assert (again.before, again.after) == (found.before, found.after)


def test_the_encoder_of_natural_is_improved_without_its_step(tmp_path):
    np.save(tmp_path / "data.npy", LinearGaussian.random().sample(300).numpy())
    settings = SETTINGS.model_copy(update={"model": SETTINGS.model.model_copy(update={"method": "natural"})})
    old = train(tmp_path / "data.npy", settings, out=tmp_path / "runs", progress=False)[0]
    said = []
    found = improve_run(old, options={**OPTIONS, "steps": 0}, progress=False, tell=said.append)
    assert found.gain > 0
    assert said[-1].startswith("the validation score with 0 steps rose by ")
    history, _ = found.run.history(pytest.fail)
    assert [epoch.stage for epoch in history.epochs] == ["all"] * 4 + ["improve, 0 steps"] * 3
    model = found.run.load(pytest.fail)
    assert model.inference.options.steps == 1
    with pytest.raises(gpin.InputError, match="is not this run improved with these options"):
        improve_run(old, options=OPTIONS, tell=pytest.fail)


def test_a_folder_with_something_else_is_left_alone(run, tmp_path):
    improve_run(run, options=OPTIONS, progress=False, tell=lambda sentence: None)
    with pytest.raises(gpin.InputError, match="is not this run improved with these options"):
        improve_run(run, options={**OPTIONS, "epochs": 4}, progress=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(gpin.InputError, match="is not this run improved with these options"):
        improve_run(run, out=tmp_path / "other", options=OPTIONS, progress=False)


def test_bad_input_is_one_sentence(run, tmp_path):
    with pytest.raises(gpin.InputError, match="there is no option 'epoch' for improving a run: did you mean 'epochs'"):
        improve_run(run, options={"epoch": 3})
    with pytest.raises(gpin.InputError, match="samples must be a weight"):
        improve_run(run, options={"samples": 2})
    with pytest.raises(gpin.InputError, match="is not the folder of a run"):
        improve_run(tmp_path)
    assert not run.folder.with_name(f"{run.folder.name}-improved").exists()


def test_an_unfinished_run_is_refused(run):
    path = next((run.folder / "checkpoints").iterdir())
    for other in (run.folder / "checkpoints").iterdir():
        other.unlink()
    assert not path.exists()
    with pytest.raises(gpin.InputError, match="is not finished: repeat its training command first"):
        improve_run(run)
