"""The demo: two runs on bundled digits, and what is in its folder."""

import json

import pytest
import torch

import gpin
from gpin.report.numbers import Correlation
from gpin.runs import open_run
from gpin.runs.demo import run_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return run_demo(tmp_path_factory.mktemp("demo") / "out", epochs=2, samples=30)


def test_all_files_are_there(demo):
    assert {path.name for path in demo.folder.iterdir()} == {"report.html", "results.json", "figures", "runs"}
    figures = {"curves", "reconstructions"}
    figures |= {f"{name}-{method}" for name in ("gap", "inference-gap", "samples") for method in ("gp", "vae")}
    assert {path.name for path in (demo.folder / "figures").iterdir()} == {f"{name}.png" for name in figures}
    runs = [open_run(folder) for folder in (demo.folder / "runs").iterdir()]
    assert sorted(run.model.method for run in runs) == ["gp", "vae"]


def test_the_saved_models_are_the_ones_reported(demo):
    x = demo.comparison.data.test[:]
    for one in demo.comparison.scored:
        again = gpin.load(one.run.folder / "model")
        assert torch.equal(again.reconstruct(x), one.vae.reconstruct(x))


def test_the_readme_picture_is_small(demo):
    png = (demo.folder / "figures" / "gap-gp.png").read_bytes()
    assert len(png) < 150_000
    assert int.from_bytes(png[16:20], "big") == 1000  # the width, in PNG's header


def test_the_record_is_json_and_agrees_with_the_models(demo):
    record = json.loads((demo.folder / "results.json").read_text())
    assert record == json.loads(json.dumps(demo.record(), allow_nan=False))
    assert set(record["methods"]) == {"vae", "gp"}
    assert record["settings"]["epochs"] == 2
    vae, gp = record["methods"]["vae"], record["methods"]["gp"]
    assert vae["inference_time_ratio"] == 1
    assert gp["inference_time_ratio"] == pytest.approx(gp["inference_ms"] / vae["inference_ms"])
    assert vae["elbo_weight_kl"] == 0 < gp["elbo_weight_kl"]
    for proposal in ("encoder", "refined"):
        scores = [method["log_likelihood"][proposal] for method in (vae, gp)]
        assert [score["samples"] for score in scores] == [30, 30]
        assert gp["elbo"] <= scores[1]["mean"]
        difference = record["difference"][proposal]
        assert difference["mean"] == pytest.approx(scores[1]["mean"] - scores[0]["mean"], abs=1e-3)
        assert difference["stderr"] < scores[1]["stderr"]  # paired: the digits' own spread cancels
    certain, uncertain = record["uncertainty"]["most_certain"], record["uncertainty"]["least_certain"]
    assert [d["uncertainty"] for d in certain] == sorted(d["uncertainty"] for d in certain)
    assert max(d["uncertainty"] for d in certain) < min(d["uncertainty"] for d in uncertain)
    smallest, largest = record["gap"]["smallest"], record["gap"]["largest"]
    assert [d["gap"] for d in smallest] == sorted(d["gap"] for d in smallest)
    assert max(d["gap"] for d in smallest) < min(d["gap"] for d in largest)
    found = Correlation.of(demo.gap, demo.gp.of_chosen["inference_gap"])
    assert record["gap"]["spearman_with_inference_gap"] == pytest.approx(found.rho)
    found = Correlation.of(demo.uncertainty, demo.gp.of_chosen["inference_gap"])
    assert record["uncertainty"]["spearman_with_inference_gap"] == pytest.approx(found.rho)


def test_the_labels_are_those_of_the_test_digits(demo):
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.tensor(bundle.images / 16, dtype=torch.float32)
    for index in (0, 7, len(demo.labels) - 1):
        distances = (images - demo.comparison.data.test[index][0]).abs().amax((1, 2))
        assert bundle.target[distances.argmin()] == demo.labels[index]
    assert set(demo.labels) == set(range(10))


@pytest.mark.slow
def test_the_same_call_again_takes_the_runs_as_they_are(demo):
    checkpoints = sorted(demo.folder.glob("runs/*/checkpoints/*"))
    before = [path.stat().st_mtime_ns for path in checkpoints]
    (demo.folder / "report.html").unlink()
    torch.manual_seed(123)
    expected, threads = torch.rand(1), torch.get_num_threads()
    torch.manual_seed(123)
    again = run_demo(demo.folder, epochs=2, samples=30)
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads
    assert [path.stat().st_mtime_ns for path in checkpoints] == before
    assert (demo.folder / "report.html").is_file()
    for one, other in zip(demo.comparison.scored, again.comparison.scored, strict=True):
        for proposal in ("encoder", "refined"):
            assert torch.equal(one.likelihood(proposal).values, other.likelihood(proposal).values)


@pytest.mark.slow
def test_another_seed_is_another_split(demo, tmp_path):
    other = run_demo(tmp_path, epochs=1, samples=2, seed=1)
    assert other.comparison.data.test.rows.tolist() != demo.comparison.data.test.rows.tolist()


@pytest.mark.parametrize(("options", "words"), [({"epochs": 0}, "epochs"), ({"seed": -1}, "seed must be")])
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, options, words):
    with pytest.raises(gpin.InputError, match=words):
        run_demo(tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())
