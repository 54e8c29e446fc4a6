"""Folders of `gpin.fit` in the commands: what is known is used, and the data is asked for."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gpin as library
from gpin.data import DataConfig, open_source, split_and_scale
from gpin.runs import open_run

GOLDEN = Path(__file__).parents[1] / "golden" / "formats"
OPTIONS = {"epochs": 1, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a model of three columns, with its data in `x.npy`, which the folder does not know."""
    place = tmp_path_factory.mktemp("fit")
    x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    np.save(place / "x.npy", x.numpy())
    vae = library.build((3,), "natural", 2, architecture={"width": 6}, seed=0)
    library.fit(vae, x[:70], x[70:], folder=place / "my fit", **OPTIONS)
    return place / "my fit"


def test_a_folder_of_fit_is_a_run_with_the_trained_model(folder):
    run = open_run(folder)
    assert (run.model.method, run.settings.training.epochs, run.scaling.kind) == ("natural", 1, "none")
    assert run.load().checksum() == library.load(folder / "model").checksum()


@pytest.mark.parametrize("command", [["evaluate"], ["reconstruct", "-o", "pairs.csv"], ["evaluate", "--calibration"]])
def test_a_command_that_needs_the_data_asks_for_it(gpin, folder, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    said = gpin(command[0], folder, *command[1:])
    assert said.code == 2
    assert said.one_line
    assert "was trained by gpin.fit, which does not know where its data is: give the data as --data" in said.err
    assert not list(tmp_path.iterdir())


def test_with_the_data_it_is_evaluated_encoded_and_reported(gpin, folder, tmp_path):
    data = folder.parent / "x.npy"
    said = gpin("evaluate", folder, "--data", data, "--samples", "5", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["instances"] == 80
    assert gpin("encode", folder, data, "-o", tmp_path / "codes.csv", "--samples", "5").code == 0
    assert len((tmp_path / "codes.csv").read_text().splitlines()) == 81
    assert gpin("sample", folder, "-o", tmp_path / "samples.csv").code == 0
    said = gpin("report", folder, "--data", data, "-o", tmp_path / "report.html", "--samples", "5")
    assert said.code == 0, said.err


def test_improve_is_for_runs_whose_data_is_known(gpin, folder):
    said = gpin("improve", folder)
    assert said.code == 2
    assert "improve its model in Python with gpin.improve" in said.err


def test_the_scaling_of_rows_that_gpin_read_is_known(gpin, files, tmp_path):
    data = split_and_scale(open_source(files / "table.csv"), DataConfig())
    vae = library.build((3,), "vae", 2, architecture={"width": 6}, seed=0)
    library.fit(vae, data.train, data.validation, folder=tmp_path / "fit", **OPTIONS)
    assert open_run(tmp_path / "fit").scaling == data.scaling
    said = gpin("evaluate", tmp_path / "fit", "--data", files / "table.csv", "--samples", "5", "--json")
    assert said.code == 0, said.err


def test_a_model_with_modules_of_ones_own_is_for_python(gpin, tmp_path):
    vae = library.build((3,), "vae", 2, encoder=nn.Linear(3, 4), seed=0)
    library.fit(vae, torch.randn(20, 3), folder=tmp_path / "fit", **OPTIONS)
    said = gpin("sample", tmp_path / "fit", "-o", tmp_path / "samples.csv")
    assert said.code == 2
    assert said.one_line
    assert "modules of your own" in said.err


def test_a_folder_of_an_earlier_version_is_completed_by_the_same_call(gpin, tmp_path):
    folder = shutil.copytree(GOLDEN / "fit", tmp_path / "fit")
    said = gpin("sample", folder, "-o", tmp_path / "samples.csv")
    assert said.code == 2
    assert "call it again with the same arguments" in said.err
    x = torch.from_numpy(np.loadtxt(GOLDEN / "run.csv", delimiter=",", skiprows=1, dtype=np.float32))
    vae = library.build((3,), "vae", 2, architecture={"width": 6}, seed=0)
    library.fit(vae, x[:80], x[80:], epochs=2, batch_size=16, folder=folder, progress=False)
    assert gpin("sample", folder, "-o", tmp_path / "samples.csv").code == 0
