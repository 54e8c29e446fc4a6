"""Models and runs that version 0.1.0 saved, before the modules were rearranged, load and give the same numbers."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gpin
from gpin._core.seeding import seeded
from gpin.cli import main
from gpin.inference.gp import expected_log_square
from gpin.refinement import GaussNewton, GaussNewtonConfig
from gpin.sklearn import GPVAE

GOLDEN = Path(__file__).parent / "golden"
MODELS = json.loads((GOLDEN / "models" / "expected.json").read_text())
RUNS = json.loads((GOLDEN / "runs" / "expected.json").read_text())


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_gives_the_same_answers(name):
    expected = MODELS[name]
    data = "images" if len(expected["shape"]) == 3 else "table"
    x = torch.from_numpy(np.load(GOLDEN / "models" / f"{data}.npy"))
    vae = gpin.load(GOLDEN / "models" / name)
    found = {}
    with torch.no_grad(), seeded(0):
        found["mean"] = vae.encode(x).mean
    with seeded(1):
        found["log_likelihood"] = vae.log_likelihood(x, 10).values
    with torch.no_grad(), seeded(2):
        found["elbo"] = vae.elbo(x).value
    # Version 0.1.0 refined by Gauss–Newton alone.
    with torch.no_grad(), seeded(3):
        found["refined"] = GaussNewton(GaussNewtonConfig(steps=3))(x, vae.encode(x), vae).mean
    with torch.no_grad(), seeded(4):
        proposal = GaussNewton()(x, vae.encode(x), vae)
        found["refined_log_likelihood"] = vae.log_likelihood(x, 10, proposal).values
    for what, values in found.items():
        # Float32 arithmetic rounds differently on another machine; log-likelihoods are sums of many terms.
        np.testing.assert_allclose(values.numpy(), expected[what], rtol=1e-3, atol=1e-3, err_msg=what)
    with torch.no_grad(), seeded(4):
        gained = vae.log_joint(x, vae.refine(x).mean) - vae.log_joint(x, proposal.mean)
    assert gained.mean() > -0.1


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_same_scores(name, tmp_path, capsys):
    folder = shutil.copytree(GOLDEN / "runs" / name, tmp_path / name)
    data = [] if name.startswith("digits") else ["--data", str(GOLDEN / "runs" / "run.csv")]
    assert main(["evaluate", str(folder), *data, "--samples", "10", "--json"]) == 0
    found, expected = json.loads(capsys.readouterr().out), RUNS[name]
    for key in ("method", "part", "seed", "instances", "samples", "proposal"):
        assert found[key] == expected[key]
    for score in ("log_likelihood", "ess", "bits_per_dim", "elbo"):
        for what, value in expected[score].items():
            assert found[score][what] == pytest.approx(value, rel=1e-3, abs=1e-3), (score, what)


@pytest.mark.parametrize("name", [name for name in RUNS if not name.startswith(("digits", "run-gp"))])
def test_a_finished_run_is_recognised_by_the_same_command(name, tmp_path, capsys):
    shutil.copytree(GOLDEN / "runs" / name, tmp_path / "runs" / name)
    method = RUNS[name]["method"]
    options = ["--epochs", "3", "--latent-dim", "2", "--method", method, "--out", str(tmp_path / "runs")]
    options += ["--set", "architecture.width=6", "--set", "batch_size=16"]
    assert main(["train", str(GOLDEN / "runs" / "run.csv"), *options]) == 0
    assert name in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [name]  # no second run beside it


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [("gpin.estimator", "GPVAE", GPVAE), ("gpin.special", "expected_log_square", expected_log_square)],
)
def test_names_of_the_version_before_still_import_with_a_deprecation(module, name, now):
    sys.modules.pop(module, None)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        found = importlib.import_module(module)
    assert getattr(found, name) is now
