"""Files of every format, as they were before training had automatic defaults, are read for ever."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import gpin
from gpin._core.seeding import seeded
from gpin.cli import main
from gpin.experiments.execution.jobs import Job
from gpin.experiments.execution.store import JOB, VERSION, Store, read_record
from gpin.runs import RunSettings, open_run
from gpin.training.checkpoints import Checkpoints

FORMATS = Path(__file__).parent / "golden" / "formats"
EXPECTED = json.loads((FORMATS / "expected.json").read_text())
METHODS = [path.name for path in sorted((FORMATS / "models").iterdir())]
ROUNDING = {"rel": 1e-3, "abs": 1e-3}


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_model_of_every_method(method):
    x, expected = torch.from_numpy(np.load(FORMATS / "table.npy")), EXPECTED[method]
    vae = gpin.load(FORMATS / "models" / method)
    found = {}
    with torch.no_grad(), seeded(0):
        found["mean"] = vae.encode(x).mean
    with seeded(1):
        found["log_likelihood"] = vae.log_likelihood(x, 10).values
    with torch.no_grad(), seeded(2):
        found["elbo"] = vae.elbo(x).value
    if "gap" in expected:
        found["gap"] = vae.gap(x, "predicted").values
    assert found.keys() == expected.keys()
    for what, values in found.items():
        np.testing.assert_allclose(values.numpy(), expected[what], rtol=1e-3, atol=1e-3, err_msg=what)


def train(tmp_path, name, *options):
    """Repeat the command of a run, in a copy of its folder."""
    folder = shutil.copytree(FORMATS / "runs" / name, tmp_path / name)
    common = ["--latent-dim", "2", "--set", "architecture.width=6", "--set", "batch_size=16", "--out", str(tmp_path)]
    assert main(["train", str(FORMATS / "run.csv"), *common, *options]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]  # no second run beside it
    return folder


def test_a_finished_run_is_recognised_by_its_command_and_scored(tmp_path, capsys):
    folder = train(tmp_path, "run-gp-0ff5775c", "--epochs", "3")
    assert "already done" in capsys.readouterr().out
    assert main(["evaluate", str(folder), "--samples", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "gp"


def test_a_checkpoint_in_the_middle_of_an_epoch_is_resumed(tmp_path, capsys):
    name = "run-vae-5e2db3b9"
    assert Checkpoints(FORMATS / "runs" / name / "checkpoints").unfinished().record["step"] == 4
    folder = train(tmp_path, name, "--method", "vae", "--epochs", "4", "--set", "patience=9")
    assert "resuming at epoch 4 of 4" in capsys.readouterr().err
    history, finished = open_run(folder).history()
    assert finished
    assert history.scores == [pytest.approx(score, **ROUNDING) for score in EXPECTED["interrupted"]]


def test_a_job_has_the_same_identity_and_its_result_is_found():
    about = EXPECTED["job"]
    record = read_record(FORMATS / "store" / about["identity"] / "job.json", JOB, VERSION, "a job")
    options = {name: value for name, value in record.items() if name not in ("format", "version")}
    job = Job.parse(options, "job.json")
    assert job.identity == about["identity"]
    assert Store(FORMATS / "store").result(job)["epochs"] == 1
    assert Job(data="digits").identity == about["default"]
    fifty = RunSettings.parse({"training": {"epochs": 50, "seed": 3}}, "a job")
    assert Job(data="digits", settings=fifty).identity == about["fifty"]


def test_a_folder_of_fit_is_found_complete(tmp_path):
    folder = shutil.copytree(FORMATS / "fit", tmp_path / "fit")
    x = torch.from_numpy(np.loadtxt(FORMATS / "run.csv", delimiter=",", skiprows=1, dtype=np.float32))
    vae = gpin.build((3,), "vae", 2, architecture={"width": 6}, seed=0)
    trained = []
    history = gpin.fit(
        vae, x[:80], x[80:], epochs=2, batch_size=16, folder=folder, on_epoch=lambda *epoch: trained.append(epoch)
    )
    assert history.record() == EXPECTED["fit"]
    assert not trained
