"""What is done with a run: numbers against those of the model itself, files, and what is refused."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from gpin._core.seeding import seeded
from gpin.cli import base
from gpin.runs import coverage_run, open_run


def model(folder):
    run = open_run(folder)
    return run, run.load(print)


def read(path):
    table = pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pyarrow.parquet.read_table(path)
    return {name: column.to_numpy() for name, column in zip(table.column_names, table.columns, strict=True)}


# Evaluate --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "part"), [("table", "test"), ("images", "train")])
@pytest.mark.parametrize("proposal", ["encoder", "refined"])
def test_evaluate_is_the_models_own_log_likelihood(gpin, runs, name, part, proposal):
    said = gpin("evaluate", runs[name], "--samples", 30, "--proposal", proposal, "--part", part, "--seed", 3, "--json")
    assert (said.code, said.err) == (0, "")
    record = json.loads(said.out)
    run, vae = model(runs[name])
    rows = getattr(run.data(), part)
    x = rows.__getitems__(range(len(rows)))
    with seeded(3):
        expected = vae.log_likelihood(x, 30, proposal)
    assert (record["instances"], record["samples"], record["proposal"]) == (len(x), 30, proposal)
    assert record["log_likelihood"]["mean"] == pytest.approx(expected.mean)
    assert record["log_likelihood"]["stderr"] == pytest.approx(expected.stderr)
    assert record["scores"][f"{'' if proposal == 'encoder' else 'refined_'}mc_error"] == {
        "error_of_mean": pytest.approx(expected.mean_mc_error)
    }
    bound = (expected.khat > 0.7).double().mean() > 0.05
    assert record["log_likelihood"]["lower_bound"] is bool(bound)
    assert record["log_likelihood"]["mc_error"] == (None if bound else pytest.approx(expected.mean_mc_error))
    assert record["log_likelihood"]["bias"] is None
    assert record["ess"]["median"] == pytest.approx(expected.ess.median().item())
    assert record["khat"]["share_above_0.7"] == pytest.approx((expected.khat > 0.7).double().mean().item())
    elbo = record["elbo"]
    assert elbo["mean"] == pytest.approx(elbo["reconstruction"] - elbo["kl"] - elbo["weight_kl"], rel=1e-5)


def test_evaluate_shows_the_coverage_of_each_posterior(gpin, runs):
    options = ["evaluate", runs["images"], "--samples", 2, "--part", "train", "--calibration", "--simulations", 60]
    record = json.loads(gpin(*options, "--seed", 3, "--json").out)["calibration"]
    names = ["encoder", "encoder, 1 step", "refined", "resampled"]
    assert [row["posterior"] for row in record["simulated"]] == names
    assert record["train"] == []  # it has fewer than 50 instances
    _, vae = model(runs["images"])
    for row, arguments in zip(record["simulated"], [{}, {"steps": 1}, {"posterior": "refined"}], strict=False):
        expected = vae.coverage(60, **arguments, seed=3)
        assert [one["mean"] for one in row["coverage"]] == [expected.mean(one["level"]) for one in row["coverage"]]
        assert row["temperature"] == expected.temperature
    said = gpin(*options, "--seed", 3)
    assert (said.code, said.err) == (0, "")
    table = [line for line in said.out.splitlines() if line.startswith("encoder, 1 step")]
    shown = [float(word) for word in table[0].removeprefix("encoder, 1 step").split()[:4]]
    assert shown == [round(100 * one["mean"], 1) for one in record["simulated"][1]["coverage"]]


def test_the_coverage_of_a_calibrated_run_is_also_that_of_its_data(runs):
    run, vae = model(runs["plain"])
    x = run.data().train[:]
    assert len(x) >= 50
    vae.calibrate(x, steps=0)
    copy = shutil.copytree(run.folder, run.folder.with_name("calibrated"))
    vae.save(copy / "model")
    found = coverage_run(copy, steps=0, simulations=50, part="train", seed=2)
    names = ["encoder", "encoder, 0 steps", "encoder, 0 steps, calibrated", "refined"]
    assert [row.posterior for row in found.simulated] == [*names, "resampled"]
    assert [row.posterior for row in found.data] == names
    assert all(row.count == 50 for row in [*found.simulated, *found.data])
    shutil.rmtree(copy)


def test_bits_per_dimension_are_in_the_units_of_the_data(gpin, runs):
    record = json.loads(gpin("evaluate", runs["images"], "--samples", 5, "--json").out)
    nats = record["log_likelihood"]["mean"] - 64 * math.log(255)  # x = bytes/255, so p(bytes) = p(x)/255 for each
    assert record["bits_per_dim"]["mean"] == pytest.approx(-nats / math.log(2) / 64)
    record = json.loads(gpin("evaluate", runs["table"], "--samples", 5, "--json").out)
    train = open_run(runs["table"]).data().train
    deviations = np.asarray(train.values)[train.rows].std(0)
    nats = record["log_likelihood"]["mean"] - np.log(deviations).sum()
    assert record["bits_per_dim"]["mean"] == pytest.approx(-nats / math.log(2) / 3)
    assert record["khat"] == {"median": None, "share_above_0.7": None}  # too few samples to tell


def test_bits_per_dimension_of_binary_data_are_those_of_a_probability(gpin, tmp_path):
    np.save(tmp_path / "bits.npy", np.random.default_rng(0).integers(0, 2, (60, 5)))
    options = ["--latent-dim", "1", "--set", "architecture.width=4", "--epochs", "1", "--out", tmp_path, "--json"]
    folder = json.loads(gpin("train", tmp_path / "bits.npy", *options).out)["run"]
    record = json.loads(gpin("evaluate", folder, "--json").out)
    assert record["bits_per_dim"]["mean"] == pytest.approx(-record["log_likelihood"]["mean"] / math.log(2) / 5)


def test_evaluate_as_text(gpin, runs):
    said = gpin("evaluate", runs["table"])
    assert (said.code, said.err) == (0, "")
    for words in ("8 test instances, 100 samples each", "log-likelihood", "Pareto-k̂", "bits per dimension", "ELBO"):
        assert words in said.out
    assert "± is the standard error of the mean over instances." in said.out
    assert all(len(line) <= 80 for line in printed(said))


def printed(said):
    """The lines that do not contain the folder of the run."""
    return [line for line in said.out.splitlines()[1:] if not line.startswith("A closer estimate: ")]


def test_an_estimate_that_cannot_be_believed_is_printed_as_a_lower_bound(gpin, runs):
    """With ten samples k̂ is not known, so that nothing vouches for the Monte-Carlo error."""
    said = gpin("evaluate", runs["table"], "--samples", 10, "--part", "train")
    assert re.search(r"^log-likelihood +≥ \S+ ± \S+ nats$", said.out, re.MULTILINE)
    assert re.search(r"^· Monte-Carlo error +lower bound$", said.out, re.MULTILINE)
    assert re.search(r"^bits per dimension +≤ ", said.out, re.MULTILINE)
    assert "k̂ cannot be computed from fewer than 25 samples" in said.out
    better = said.out.splitlines()[-1].removeprefix("A closer estimate: ").split()
    assert better == ["gpin", "evaluate", str(runs["table"]), "--proposal", "refined", "--part", "train"]
    again = gpin(*better[1:])  # the advice can be followed
    assert again.code == 0
    record = json.loads(gpin("evaluate", runs["table"], "--samples", 10, "--part", "train", "--json").out)
    assert record["log_likelihood"]["lower_bound"] is None
    assert record["closer_estimate"] == " ".join(better)


def test_an_estimate_that_can_be_believed_has_its_monte_carlo_error(gpin, runs, monkeypatch):
    monkeypatch.setattr("gpin.evaluation.importance.pareto_khat", lambda weights: torch.zeros_like(weights[0]))
    said = gpin("evaluate", runs["table"])
    assert re.search(r"^log-likelihood +−?\d\S* ± \S+ nats$", said.out, re.MULTILINE)
    assert re.search(r"^· Monte-Carlo error +\d\S* nats$", said.out, re.MULTILINE)
    assert "lower bound" not in said.out
    assert "A closer estimate" not in said.out
    monkeypatch.setattr("gpin.evaluation.importance.pareto_khat", lambda weights: torch.ones_like(weights[0]))
    said = gpin("evaluate", runs["table"], "--proposal", "refined", "--limit", 5)
    assert "k̂ is above 0.7 for 100 % of the instances, so the log-likelihood is a lower" in said.out
    assert said.out.splitlines()[-1].endswith("--proposal refined --samples 1000 --limit 5")


def test_evaluate_after_steps_says_how_many_were_taken(gpin, runs):
    said = gpin("evaluate", runs["table"], "--tolerance", "0.001", "--max-steps", "5")
    assert (said.code, said.err) == (0, "")
    assert "natural-gradient steps" in said.out
    assert "estimated remaining gap" in said.out
    assert "ELBO after the steps" in said.out
    assert "training ELBO and its terms are those of the method's own posterior" in said.out
    assert "own posterior" not in gpin("evaluate", runs["table"]).out
    none, two = (json.loads(gpin("evaluate", runs["table"], "--steps", k, "--json").out) for k in "02")
    assert none["scores"]["steps_taken"]["mean"] == 0 < two["scores"]["steps_taken"]["mean"]
    assert none["log_likelihood"] != two["log_likelihood"]


QUICK = ["--temperatures", 3, "--chains", 2]


def test_evaluate_annealed(gpin, runs):
    said = gpin("evaluate", runs["table"], "--estimator", "annealed", *QUICK, "--limit", 5)
    assert said.code == 0
    assert "5 test instances, 2 annealed chains each, 3 temperatures, refined start" in said.out
    assert "annealed log-likelihood" in said.out
    assert "acceptance rate" in said.out


def test_evaluate_says_how_far_importance_sampling_is_off(gpin, runs):
    said = gpin("evaluate", runs["table"], "--samples", 30, "--sandwich", 4, *QUICK)
    assert "4 instances simulated from the model: log p(x) is between" in said.out
    assert "· encoder, 1 step, 30 samples" in said.out
    record = json.loads(gpin("evaluate", runs["table"], "--samples", 30, "--sandwich", 4, *QUICK, "--json").out)
    assert record["sandwich"]["instances"] == 4
    assert set(record["sandwich"]["too_low"]) == {"encoder", "encoder, 1 step", "refined"}


def test_evaluate_splits_the_gap(gpin, runs):
    said = gpin("evaluate", runs["table"], "--gaps", "--limit", 5, *QUICK)
    assert "· approximation gap" in said.out
    assert "test, 5 instances" in said.out
    record = json.loads(gpin("evaluate", runs["table"], "--gaps", "--limit", 5, *QUICK, "--json").out)["gaps"]
    for part in ("test", "train"):
        found = {name: record[part][name]["mean"] for name in ("inference", "amortization", "approximation")}
        assert found["inference"] == pytest.approx(found["amortization"] + found["approximation"])
    difference = record["test"]["inference"]["mean"] - record["train"]["inference"]["mean"]
    assert record["generalisation"]["inference"]["mean"] == pytest.approx(difference)


def test_evaluate_says_when_the_posterior_has_collapsed(gpin, runs, tmp_path):
    assert "collapsed" not in gpin("evaluate", runs["table"]).out
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).normal(size=(400, 2)))  # there is nothing to tell
    options = ["--latent-dim", "1", "--set", "architecture.width=8", "--set", "learning_rate=0.01", "--epochs", "20"]
    folder = json.loads(gpin("train", tmp_path / "noise.npy", *options, "--out", tmp_path, "--json").out)["run"]
    said = gpin("evaluate", folder)
    assert re.search(r"KL of z +0\.0\d: the posterior has collapsed to the prior$", said.out, re.MULTILINE)
    assert all(len(line) <= 80 for line in printed(said))


def test_a_limit_chooses_instances_by_the_seed(gpin, runs):
    command = ["evaluate", runs["table"], "--part", "train", "--limit", 10, "--samples", 5, "--json", "--seed"]
    first, again, other = (json.loads(gpin(*command, seed).out) for seed in (0, 0, 1))
    assert first["instances"] == 10
    assert first == again
    assert first["log_likelihood"] != other["log_likelihood"]


def test_data_that_has_moved(gpin, files, runs, tmp_path):
    shutil.copy(files / "table.csv", tmp_path / "table.csv")
    options = ["--epochs", "1", "--latent-dim", "2", "--set", "architecture.width=8", "--out", tmp_path, "--json"]
    folder = json.loads(gpin("train", tmp_path / "table.csv", *options).out)["run"]
    (tmp_path / "table.csv").rename(tmp_path / "moved.csv")
    said = gpin("evaluate", folder)
    assert said.code == 2
    assert said.one_line
    assert "--data" in said.err
    assert gpin("evaluate", folder, "--data", tmp_path / "moved.csv").code == 0
    said = gpin("evaluate", folder, "--data", files / "table.npy")
    assert said.code == 2
    assert "is not the data" in said.err


# Encode ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_codes_are_those_of_the_encoder_on_scaled_data(gpin, files, runs, tmp_path, ending):
    out = tmp_path / "new" / f"latents{ending}"
    said = gpin("encode", runs["table"], files / "table.csv", "-o", out, "--samples", 20)
    created = f"gpin: the folder {out.parent} did not exist and was created\n"
    assert said == (0, f"wrote {out}: 80 rows\n", created)
    columns = read(out)
    run, vae = model(runs["table"])
    x = run.scaling.apply(np.load(files / "table.npy"))
    q, uncertainty = vae.encode(x), vae.uncertainty(x)
    np.testing.assert_array_equal(columns["row"], np.arange(80))
    for j in range(2):
        np.testing.assert_allclose(columns[f"mean_{j}"], q.mean[:, j].detach(), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(columns[f"std_{j}"], q.stddev[:, j].detach(), rtol=1e-5)
    np.testing.assert_allclose(columns["uncertainty"], uncertainty.total, rtol=1e-5)
    np.testing.assert_allclose(columns["uncertainty_f"], uncertainty.mean_part, rtol=1e-5)
    np.testing.assert_allclose(columns["uncertainty_h"], uncertainty.std_part, rtol=1e-5)
    assert np.isfinite(columns["log_likelihood"]).all()
    assert ((columns["ess"] >= 1) & (columns["ess"] <= 20)).all()
    assert "khat" in columns
    assert not list(out.parent.glob("*.part"))


def test_a_method_without_uncertainty_has_no_such_column(gpin, files, runs, tmp_path):
    said = gpin("encode", runs["plain"], files / "table.npy", "-o", tmp_path / "z.parquet", "--samples", 0, "--json")
    assert said.code == 0, said.err
    expected = ["row", "mean_0", "mean_1", "std_0", "std_1", "gap", "reconstruction_error"]
    assert json.loads(said.out)["columns"] == expected
    assert list(read(tmp_path / "z.parquet")) == expected


def test_columns_are_found_by_name_or_by_position(gpin, files, runs, tmp_path):
    command = ["encode", runs["table"], "-o", tmp_path / "z.csv", "--samples", 0]
    gpin(*command, files / "table.csv")
    expected = (tmp_path / "z.csv").read_text()
    values = np.load(files / "table.npy")
    (tmp_path / "turned.csv").write_text(
        "\n".join(["c,note,a,b", *(f"{c!r},x,{a!r},{b!r}" for a, b, c in values.tolist())])
    )
    (tmp_path / "renamed.csv").write_text((tmp_path / "turned.csv").read_text().replace("c,note,a,b", "r,note,p,q", 1))
    for data in ([tmp_path / "turned.csv"], [tmp_path / "renamed.csv", "--columns", "p,q,r"], [files / "table.npy"]):
        (tmp_path / "z.csv").unlink()
        said = gpin(*command, *data)
        assert said.code == 0, said.err
        assert (tmp_path / "z.csv").read_text() == expected
    said = gpin(*command, tmp_path / "renamed.csv")
    assert said.code == 2
    assert "has no column 'a'" in said.err


def test_pictures_are_read_as_in_the_run(gpin, files, runs, tmp_path):
    out = tmp_path / "z.parquet"
    said = gpin("encode", runs["pictures"], files / "pictures", "-o", out, "--samples", 0)
    assert said == (0, f"wrote {out}: 30 rows\n", "")
    said = gpin("encode", runs["pictures"], files / "images.npy", "-o", out, "--samples", 0)  # takes no --size
    assert said == (0, f"wrote {out}: 60 rows\n", "")
    said = gpin("encode", runs["pictures"], files / "images.npy", "-o", out, "--size", 8)
    assert said.code == 2
    assert "--size" in said.err
    said = gpin("encode", runs["images"], files / "pictures", "-o", out)
    assert said.code == 2
    assert "--size" in said.err
    assert gpin("encode", runs["images"], files / "pictures", "-o", out, "--size", "8x8", "--grey").code == 0


def test_a_file_is_replaced_whole_or_not_at_all(gpin, files, runs, tmp_path, monkeypatch):
    from gpin.vae import VAE

    out = tmp_path / "z.parquet"
    out.write_text("before")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(VAE, "encode", fail)
    said = gpin("encode", runs["plain"], files / "table.npy", "-o", out)
    assert said.code == 1
    assert said.one_line
    assert [path.name for path in tmp_path.iterdir()] == ["z.parquet"]
    assert out.read_text() == "before"


# Samples and reconstructions -------------------------------------------------------------------------


def test_reconstructions_of_a_table_are_in_its_units(gpin, files, runs, tmp_path):
    said = gpin("reconstruct", runs["table"], files / "table.csv", "-o", tmp_path / "r.csv")
    assert said == (0, f"wrote {tmp_path / 'r.csv'}: 80 reconstructions\n", "")
    columns = read(tmp_path / "r.csv")
    assert list(columns) == ["row", "a", "b", "c"]
    run, vae = model(runs["table"])
    with torch.no_grad():
        x = vae.reconstruct(run.scaling.apply(np.load(files / "table.npy"))).double().numpy()
    for j, name in enumerate("abc"):
        expected = x[:, j] * run.scaling.scale[j] + run.scaling.offset[j]
        np.testing.assert_allclose(columns[name], expected, rtol=1e-5, atol=1e-8)
    assert 900 < columns["b"].mean() < 1100


def test_reconstruct_without_data_takes_the_test_part(gpin, runs, tmp_path):
    said = gpin("reconstruct", runs["table"], "-o", tmp_path / "r.parquet", "--count", 3, "--json")
    assert json.loads(said.out) == {"out": str(tmp_path / "r.parquet"), "reconstructions": 3}
    rows = open_run(runs["table"]).data().test.rows
    np.testing.assert_array_equal(read(tmp_path / "r.parquet")["row"], rows[[0, len(rows) // 2 - 1, -1]])


def test_reconstructions_of_images(gpin, files, runs, tmp_path):
    said = gpin("reconstruct", runs["images"], files / "images.npy", "-o", tmp_path / "r.npy")
    assert said.code == 0, said.err
    array = np.load(tmp_path / "r.npy")
    assert (array.shape, array.dtype) == ((60, 1, 8, 8), np.uint8)
    run, vae = model(runs["images"])
    expected = run.scaling.undo(vae.reconstruct(run.scaling.apply(np.load(files / "images.npy")[:, None])))
    np.testing.assert_array_equal(array, expected)
    assert gpin("reconstruct", runs["images"], files / "images.npy", "-o", tmp_path / "r.png", "--count", 20).code == 0
    with Image.open(tmp_path / "r.png") as image:
        assert image.size == ((16 * 9 - 1) * 8, (4 * 9 - 2 + 3) * 8)
        pixels = np.asarray(image)[:64:8, :64:8, 0]
    np.testing.assert_array_equal(pixels, np.load(files / "images.npy")[0])


def test_samples(gpin, runs, tmp_path):
    assert gpin("sample", runs["images"], "-o", tmp_path / "s.png").out == f"wrote {tmp_path / 's.png'}: 64 samples\n"
    with Image.open(tmp_path / "s.png") as image:
        assert image.size == ((8 * 9 - 1) * 8,) * 2
    gpin("sample", runs["images"], "-o", tmp_path / "s.npy", "--count", 200)
    array = np.load(tmp_path / "s.npy")
    assert (array.shape, array.dtype) == ((200, 1, 8, 8), np.uint8)
    gpin("sample", runs["table"], "-o", tmp_path / "s.csv", "--count", 200, "--noise")
    columns = read(tmp_path / "s.csv")
    assert list(columns) == ["a", "b", "c"]
    assert len(columns["a"]) == 200
    assert 900 < columns["b"].mean() < 1100
    gpin("sample", runs["plain"], "-o", tmp_path / "s.parquet", "--count", 2)
    assert list(read(tmp_path / "s.parquet")) == ["x_0", "x_1", "x_2"]


def test_samples_are_reproducible(gpin, runs, tmp_path):
    content = []
    for seed in (0, 0, 1):
        gpin("sample", runs["table"], "-o", tmp_path / "s.npy", "--noise", "--seed", seed)
        content.append((tmp_path / "s.npy").read_bytes())
    assert content[0] == content[1] != content[2]


def test_noise_is_drawn_on_request(gpin, runs, tmp_path):
    drawn = {}
    for name, options in (("mean", []), ("noisy", ["--noise"])):
        assert gpin("sample", runs["table"], "-o", tmp_path / "s.npy", "--count", 200, *options).code == 0
        drawn[name] = np.load(tmp_path / "s.npy")
    variance = model(runs["table"])[1].likelihood.log_variance.exp().item()
    spread = (drawn["noisy"] - drawn["mean"]) / open_run(runs["table"]).scaling.scale
    assert spread.var() == pytest.approx(variance, rel=6 * math.sqrt(2 / spread.size))


@pytest.fixture(scope="module")
def random_run(gpin, files, tmp_path_factory):
    """A run of a method whose encoder is random: it climbs a bound that it samples."""
    out = tmp_path_factory.mktemp("random")
    options = ["--method", "sa", "--latent-dim", "2", "--epochs", "1", "--set", "architecture.width=8"]
    return json.loads(gpin("train", files / "table.csv", *options, "--out", out, "--json").out)["run"]


@pytest.mark.parametrize("command", ["encode", "reconstruct"])
def test_a_seed_decides_the_noise_of_the_encoder(gpin, files, random_run, tmp_path, command):
    content = []
    for seed in (0, 0, 1):
        out = tmp_path / "out.parquet"
        assert gpin(command, random_run, files / "table.csv", "-o", out, "--seed", seed).code == 0
        columns = read(out)
        content.append(np.stack([columns[name] for name in columns if name not in ("row", "khat")]))
    np.testing.assert_array_equal(content[0], content[1])
    assert (content[0] != content[2]).any()


# Export and report -----------------------------------------------------------------------------------


def test_an_exported_model_takes_the_units_of_the_data(gpin, files, runs, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    said = gpin("export", runs["table"], "-o", tmp_path / "e.onnx", "--json")
    assert (said.code, said.err) == (0, "")
    record = json.loads(said.out)
    assert record["inputs"] == {"x": ["batch", 3]}
    assert record["outputs"]["mean"] == ["batch", 2]
    assert record["outputs"]["uncertainty"] == ["batch"]
    values = np.load(files / "table.npy")
    (mean,) = onnxruntime.InferenceSession(str(tmp_path / "e.onnx")).run(["mean"], {"x": values.astype(np.float32)})
    run, vae = model(runs["table"])
    np.testing.assert_allclose(mean, vae.encode(run.scaling.apply(values)).mean.detach(), rtol=1e-2, atol=1e-3)
    said = gpin("export", runs["table"], "-o", tmp_path / "d.onnx", "--part", "decoder", "--json")
    record = json.loads(said.out)
    assert (record["inputs"], record["outputs"]) == ({"z": ["batch", 2]}, {"mean": ["batch", 3]})
    (rows,) = onnxruntime.InferenceSession(str(tmp_path / "d.onnx")).run(["mean"], {"z": mean})
    np.testing.assert_allclose(rows, run.scaling.undo(vae.decode(mean)), rtol=1e-4)


def test_a_whole_model_is_exported_as_a_folder_that_commands_take_for_a_run(gpin, runs, tmp_path):
    said = gpin("export", runs["table"], "-o", tmp_path / "mine", "--part", "model", "--json")
    assert (said.code, said.err) == (0, "")
    assert {"README.md", "config.json", "model.safetensors", "run.json"} <= set(json.loads(said.out)["files"])
    assert gpin("sample", tmp_path / "mine", "-o", tmp_path / "samples.csv", "--count", 3).code == 0
    again = gpin("export", runs["table"], "-o", tmp_path / "mine", "--part", "model")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "is not empty" in again.err
    wrong = gpin("export", runs["table"], "-o", tmp_path / "other", "--part", "model", "--steps", 0)
    assert (wrong.code, wrong.err) == (
        2,
        "gpin: --steps applies to the encoder alone: leave it out with --part model\n",
    )


def test_a_report_is_one_page(gpin, runs, tmp_path):
    said = gpin("report", runs["table"], "-o", tmp_path / "report.html", "--samples", 30)
    assert said.code == 0, said.err
    assert said.out == f"wrote {tmp_path / 'report.html'}: 1 run\n"
    assert "</html>" in (tmp_path / "report.html").read_text()
    assert said.err.splitlines() == [
        "gpin: scoring gp with encoder proposals",
        "gpin: scoring gp with refined proposals",
        "gpin: measuring the coverage of gp",
        "gpin: drawing the page",
    ]


def test_stages_are_lines_or_a_bar(monkeypatch, capsys):
    with base.staged_progress() as on_stage:
        on_stage("scoring", 0, 10)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(base, "MINUTE", 0.0)  # a line for every call
    with base.staged_progress(lines=True) as on_stage:
        for done in (0, 2000):
            on_stage("scoring", done, 5000)
    assert capsys.readouterr().err == "gpin: scoring\ngpin: scoring: 2,000 of 5,000\n"
    monkeypatch.setattr(base, "on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with base.staged_progress(lines=True) as on_stage:
        on_stage("scoring", 3, 10)
        on_stage("drawing", 0, 1)
    shown = capsys.readouterr().err
    assert "drawing" in shown
    assert "gpin:" not in shown


def test_every_option_of_a_report_has_an_effect(gpin, files, tmp_path):
    shutil.copy(files / "table.csv", tmp_path / "table.csv")
    options = ["--epochs", "1", "--latent-dim", "2", "--set", "architecture.width=8", "--out", tmp_path, "--json"]
    folder = json.loads(gpin("train", tmp_path / "table.csv", *options).out)["run"]
    (tmp_path / "table.csv").rename(tmp_path / "moved.csv")
    out = tmp_path / "report.html"
    said = gpin("report", folder, "-o", out)
    assert said.code == 0
    assert "--data; the page is written without what needs it" in said.err
    assert "was not found" in out.read_text()
    pages = []
    for changed in ([], [], ["--samples", 7], ["--limit", 3], ["--seed", 1]):
        given = {"--samples": 5, "--limit": 4, "--seed": 0, "--data": tmp_path / "moved.csv"} | dict(
            [changed] if changed else []
        )
        assert gpin("report", folder, "-o", out, *(word for pair in given.items() for word in pair)).code == 0
        pages.append(out.read_text())
    assert pages[0] == pages[1]
    assert len(set(pages)) == 4


# What is refused -------------------------------------------------------------------------------------

AFTER = {
    "evaluate": [],
    "encode": ["digits", "-o", "z.parquet"],
    "sample": ["-o", "s.csv"],
    "reconstruct": ["-o", "r.csv"],
    "report": ["-o", "r.html"],
    "export": ["-o", "e.onnx"],
}


@pytest.mark.parametrize("command", AFTER)
def test_a_run_that_is_missing_or_damaged_is_one_line(gpin, runs, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    damaged = shutil.copytree(runs["table"], tmp_path / "damaged")
    text = (damaged / "run.json").read_text()
    (damaged / "run.json").write_text(text.replace('"standardised"', '"none"'))
    for folder, words in (("nowhere", "does not exist"), ("empty", "run.json is missing"), ("damaged", "is damaged")):
        said = gpin(command, folder, *AFTER[command])
        assert (said.code, said.out) == (2, "")
        assert said.one_line
        assert words in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged", "empty"]


def test_damaged_weights_are_found_in_the_checkpoints(gpin, runs, tmp_path):
    damaged = shutil.copytree(runs["table"], tmp_path / "damaged")
    (damaged / "model" / "model.safetensors").write_bytes(b"torn")
    said = gpin("evaluate", damaged, "--json")
    whole = gpin("evaluate", runs["table"], "--json")
    assert said.code == 0
    assert "using the weights in the checkpoints" in said.err
    assert json.loads(said.out)["log_likelihood"] == json.loads(whole.out)["log_likelihood"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("table", ["sample", "-o", "s.png"], "a table to s.png: its name must end in .csv or .parquet or .npy"),
        ("images", ["sample", "-o", "s.csv"], "images to s.csv: its name must end in .png or .npy"),
        ("images", ["reconstruct", "-o", "s"], "images to s: its name must end in"),
        ("table", ["encode", "digits", "-o", "z.xls"], "z.xls: its name must end in .parquet or .csv"),
        ("table", ["encode", "digits", "-o", "z.csv"], "the model was trained on instances of 3 numbers"),
        ("table", ["encode", "digits"], "--out"),
        ("table", ["export", "-o", "e.pt"], ".onnx"),
        ("table", ["report", "-o", "r.pdf"], ".html"),
        ("table", ["evaluate", "--samples", "0"], "samples must be"),
        ("table", ["evaluate", "--proposal", "guess"], "guess"),
        ("table", ["evaluate", "--part", "none"], "none"),
        ("table", ["evaluate", "--steps", "-1"], "steps must be a whole number of at least 0, got -1"),
        ("table", ["evaluate", "--tolerance", "0"], "tolerance must be a positive number, got 0.0"),
        ("table", ["encode", "digits", "-o", "z.csv", "--max-steps", "3"], "max_steps applies only with a tolerance"),
        ("table", ["evaluate", "--limit", "0"], "limit must be"),
        (
            "table",
            ["evaluate", "--chains", "4"],
            "--chains applies to --estimator annealed, --sandwich and --gaps only",
        ),
        (
            "table",
            ["evaluate", "--estimator", "annealed", "--temperatures", "0"],
            "temperatures must be a whole number",
        ),
        ("table", ["evaluate", "--estimator", "annealed", "--chains", "1"], "chains must be at least 2, got 1"),
        ("table", ["evaluate", "--estimator", "annealed", "--samples", "5"], "choose temperatures, chains, start"),
        ("table", ["evaluate", "--gaps", "--tolerance", "1"], "--gaps cannot be combined with --tolerance"),
        ("table", ["evaluate", "--sandwich", "0"], "sandwich must be a whole number of at least 1"),
        ("table", ["evaluate", "--simulations", "60"], "--simulations applies only with --calibration: give both"),
        (
            "table",
            ["evaluate", "--calibration", "--simulations", "9"],
            "--simulations must be a whole number of at least",
        ),
        ("table", ["evaluate", "--seed", "-1"], "seed must be a whole number between 0"),
        ("table", ["evaluate", "--device", "cuda:99"], "no device 'cuda:99'"),
        ("table", ["sample", "-o", "s.csv", "--count", "0"], "count must be"),
        ("table", ["reconstruct", "-o", "r.csv", "--count", "-1"], "count must be"),
        ("table", ["reconstruct", "-o", "r.csv", "--columns", "a"], "--columns says how to read other data"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(gpin, runs, tmp_path, monkeypatch, name, arguments, words):
    monkeypatch.chdir(tmp_path)
    said = gpin(arguments[0], Path(runs[name]), *arguments[1:])
    assert (said.code, said.out) == (2, "")
    assert said.one_line
    assert words in said.err
    assert not list(tmp_path.iterdir())


# What must not be lost -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command", "out", "words"),
    [
        ("table", ["sample"], "table.csv", "it is the data itself"),
        ("table", ["encode", "mixed.csv", "--columns", "a,b,c"], "table.csv", "it is the data itself"),
        ("plain", ["reconstruct", "table.csv"], "table.npy", "it is the data itself"),
        ("pictures", ["sample"], "pictures/new.png", "contains the data's pictures"),
        ("pictures", ["reconstruct"], "pictures/more/new.png", "contains the data's pictures"),
    ],
)
def test_nothing_is_written_over_the_data_or_among_it(gpin, runs, files, monkeypatch, name, command, out, words):
    monkeypatch.chdir(files)
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    said = gpin(command[0], runs[name], *command[1:], "-o", files / out)
    assert said.code == 2
    assert said.one_line
    assert words in said.err
    assert {path: path.read_bytes() for path in files.rglob("*") if path.is_file()} == before


def test_reconstruct_finds_data_that_has_moved(gpin, runs, files, tmp_path):
    shutil.copy(files / "table.csv", tmp_path / "moved.csv")
    assert gpin("reconstruct", runs["table"], "-o", tmp_path / "here.csv").code == 0
    said = gpin("reconstruct", runs["table"], "--data", tmp_path / "moved.csv", "-o", tmp_path / "there.csv")
    assert said.code == 0, said.err
    assert (tmp_path / "here.csv").read_text() == (tmp_path / "there.csv").read_text()
    said = gpin("reconstruct", runs["table"], "digits", "--data", tmp_path / "moved.csv", "-o", tmp_path / "no.csv")
    assert said.code == 2
    assert "leave one out" in said.err


def test_improve_writes_a_new_run_and_finds_it_done(gpin, runs, tmp_path):
    command = ("improve", runs["plain"], "--out", tmp_path / "better", "--epochs", "2", "--set", "learning_rate=0.001")
    first = gpin(*command)
    assert first.code == 0
    assert first.out == f"done: {tmp_path / 'better'}\n"
    assert "validation score" in first.err
    again = gpin(*command)
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith(f"already done: {tmp_path / 'better'}\n")
    record = json.loads(gpin(*command, "--json").out)
    assert record["done_before"]
    assert record["validation_score"]["gain"] >= 0
    wrong = gpin("improve", runs["plain"], "--samples", "2", "--out", tmp_path / "other")
    assert wrong.code == 2
    assert wrong.err == "gpin: samples must be a weight from 0 to 1, got 2.0\n"
