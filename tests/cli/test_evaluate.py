"""`gpin evaluate` with several runs and with new data."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from cli.conftest import SMALL, random_table
from scipy import stats

from gpin.runs import ScoredRuns, evaluate_run, evaluate_runs, open_run, run_settings, train


@pytest.fixture(scope="module")
def pair(gpin, files, runs, tmp_path_factory):
    """A GP and a VAE on the same table, and a VAE on another split of it."""
    out = tmp_path_factory.mktemp("pair")
    found = [runs["table"]]
    for more in ([], ["--set", "split_seed=1"]):
        said = gpin("train", files / "table.csv", "--method", "vae", *SMALL, *more, "--out", out, "--json")
        assert said.code == 0, said.err
        found.append(json.loads(said.out)["run"])
    return found


@pytest.fixture(scope="module")
def new(tmp_path_factory):
    """A table that no run has seen, with its columns in another order and one too many."""
    table = random_table(140)[100:]
    path = tmp_path_factory.mktemp("new") / "new.csv"
    rows = np.column_stack([table[:, 2], table[:, 0], table[:, 1], np.arange(40)])
    np.savetxt(path, rows, delimiter=",", header="c,a,b,d", comments="", fmt="%.17g")
    return path


def test_the_differences_are_those_of_the_log_likelihoods(gpin, pair):
    said = gpin("evaluate", *pair[:2], "--samples", 30, "--proposal", "refined", "--part", "train", "--json")
    record = json.loads(said.out)
    ours, theirs = (
        evaluate_run(run, samples=30, proposal="refined", part="train").log_likelihood.values.double().numpy()
        for run in (pair[1], pair[0])
    )
    first, second = record["runs"]
    assert [first["run"], second["run"]] == [str(run) for run in pair[:2]]
    assert (first["difference"], first["not_compared"], second["not_compared"]) == (None, None, None)
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert second["difference"]["mean"] == pytest.approx((ours - theirs).mean())
    assert second["difference"]["low"] == pytest.approx(interval.low)
    assert second["difference"]["high"] == pytest.approx(interval.high)
    assert second["difference"]["instances"] == 64
    assert first["log_likelihood"]["mean"] == pytest.approx(theirs.mean())


def test_several_runs_as_text(gpin, pair):
    said = gpin("evaluate", *pair, "--samples", 30)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[1].endswith(pair[1])
    assert any(line.startswith("log-likelihood minus that of gp") for line in lines)
    assert " has no paired difference from gp: it was scored on other instances" in " ".join(said.out.split())
    assert "Their intervals hold for these trained models" in " ".join(said.out.split())


def test_runs_on_other_data_are_scored_but_not_compared(gpin, pair, runs):
    record = json.loads(gpin("evaluate", pair[0], runs["plain"], runs["images"], "--samples", 5, "--json").out)
    assert [run["not_compared"] for run in record["runs"]] == [None, *["it was trained on other data"] * 2]
    said = gpin("evaluate", pair[0], runs["plain"], "--samples", 5)
    assert "minus that of" not in said.out
    assert "vae, table.npy has no paired difference from gp, table.csv: it was trained on other data." in " ".join(
        said.out.split()
    )


def test_new_data_is_scored_as_a_whole(gpin, pair, new):
    record = json.loads(gpin("evaluate", pair[0], new, "--samples", 30, "--json").out)
    run = open_run(pair[0])
    own = np.loadtxt(new, delimiter=",", skiprows=1)[:, [1, 2, 0]]  # a, b, c
    x = run.scaling.apply(own)
    expected = run.load().log_likelihood(x, 30, "refined")
    refined = json.loads(gpin("evaluate", pair[0], new, "--samples", 30, "--proposal", "refined", "--json").out)
    assert (record["data"], record["instances"]) == (str(new), 40)
    assert "part" not in record
    assert refined["log_likelihood"]["mean"] == pytest.approx(expected.mean, abs=0.1)
    said = gpin("evaluate", *pair, new, "--samples", 30, "--limit", 9)
    assert f"9 instances of {new}, 30 samples each" in said.out
    assert "no paired difference" not in said.out  # another split of the training data does not matter here


def test_all_runs_have_the_same_new_instances(pair, new):
    found = evaluate_runs(pair, new=new, limit=7, samples=5)
    assert found.remarks == []
    differences = [found.difference(i) for i in range(3)]
    assert differences[0] is None
    # The split of the third differs, and so does its scaling: the difference is in the units of the table.
    volumes = [open_run(run).log_volume for run in pair]
    assert volumes[0] != volumes[2]
    means = [one.log_likelihood.mean - volume for one, volume in zip(found.scores, volumes, strict=True)]
    assert [one.mean for one in differences[1:]] == pytest.approx([means[1] - means[0], means[2] - means[0]], abs=1e-4)


def test_differences_of_tables_with_labels_and_missing_values_are_those_of_the_log_likelihoods(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "mixed.csv"
    rows = [f"{'xyz'[i % 3]},{'' if i % 4 == 0 else rng.normal(5, 3):.5},{rng.poisson(3)}" for i in range(60)]
    path.write_text("\n".join(["s,a,k", *rows]) + "\n")
    runs = [
        train(path, run_settings({"method": "vae", "latent_dim": dim, "epochs": 1}), out=tmp_path, progress=False)[0]
        for dim in (1, 2)
    ]
    found = evaluate_runs(runs, samples=5, part="train")
    ours, theirs = (one.log_likelihood.values.double() for one in (found.scores[1], found.scores[0]))
    assert found.difference(1).mean == pytest.approx((ours - theirs).mean().item(), abs=1e-6)  # they scale alike


def test_densities_and_probabilities_are_not_compared():
    def run(density, *kinds):
        scaling = SimpleNamespace(columns=[SimpleNamespace(kind=kind) for kind in kinds])
        names = ["a", "b"] if kinds else None
        model = SimpleNamespace(shape=(2,), density=density)
        return SimpleNamespace(fingerprint="f", columns=names, column_names=names, model=model, scaling=scaling)

    def obstacle(*pair):
        return ScoredRuns(pair, [SimpleNamespace(rows=np.arange(3))] * 2).obstacle(1)

    assert "one likelihood is a density where the other is a probability" in obstacle(run(True), run(False))
    assert obstacle(run(True), run(True)) is None
    counts, logs = run(True, "gaussian", "poisson"), run(True, "lognormal", "poisson")
    assert obstacle(counts, logs) is None
    assert "a density where" in obstacle(counts, run(True, "gaussian", "gaussian"))


def test_training_data_given_as_new_data_is_pointed_out(gpin, pair, files):
    said = gpin("evaluate", pair[0], files / "table.csv", "--samples", 5)
    assert said.code == 0
    assert "most of it was used in training, so that the scores are too good" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["RUN", "runs/another"], "runs/another is neither the folder of a run nor data"),
        (["RUN", "RUN"], "is given twice: name each run once"),
        (["runs/another", "RUN"], "runs/another does not exist; gpin train creates one"),
        (["RUN", "NEW", "OTHER"], "is not the folder of a run: run.json is missing"),
        (["RUN", "OTHER", "--gaps"], "--gaps applies to a single run"),
        (["RUN", "OTHER", "--sandwich", "5"], "--sandwich applies to a single run"),
        (["RUN", "OTHER", "--calibration"], "--calibration applies to a single run and its own data"),
        (["RUN", "NEW", "--calibration"], "--calibration applies to a single run and its own data"),
        (["RUN", "NEW", "--gaps"], "--gaps applies to the data of the run and not to new data"),
        (["RUN", "NEW", "--part", "train"], "--part applies to the data of the run and not to new data"),
        (["RUN", "NEW", "--data", "NEW"], "--data applies to the data of the run and not to new data"),
        (["RUN", "--columns", "a"], "--columns says how new data is read: give new data"),
        (["RUN", "--data", "NEW"], "its fingerprint differs; to score it as new data: gpin evaluate"),
        (["RUN", "NEW", "--columns", "a,b"], "the model was trained on instances of 3 numbers"),
        (["RUN", "digits"], "the model was trained on instances of 3 numbers"),
        ([], "requires an argument"),
    ],
)
def test_wrong_use_is_one_sentence(gpin, pair, new, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    shutil.copy(new, tmp_path / "new.csv")
    places = {"RUN": pair[0], "OTHER": pair[1], "NEW": "new.csv"}
    found = gpin("evaluate", *(places.get(word, word) for word in words))
    assert found.code == 2
    assert found.one_line, found.err
    assert said in found.err
