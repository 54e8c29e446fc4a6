"""A comparison from Python on small tables: complete, interrupted, extended, moved, and refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gpin
from gpin._core.errors import InputError, TrainingError
from gpin.experiments import ModelComparison, comparison
from gpin.experiments.execution import worker
from gpin.inference import METHODS, GaussianEncoder
from gpin.runs.rows import random_rows

TINY = {"epochs": 1, "batch_size": 32, "architecture.width": 8, "samples": 25, "executor": "serial"}


@pytest.fixture(scope="module")
def values():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(80, 1))
    return np.hstack([a, 3 * a + 0.1 * rng.normal(size=(80, 1)), rng.normal(size=(80, 1))])


@pytest.fixture(scope="module", autouse=True)
def _quick_timing():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "REPEATS", 2)
        yield


@pytest.fixture(scope="module")
def found(values, tmp_path_factory):
    """A VAE with two sizes of its code and two seeds, on an array."""
    return gpin.compare(values, "vae", [1, 2], seeds=2, out=tmp_path_factory.mktemp("whole"), **TINY)


def test_the_scores_are_those_of_the_runs(found):
    assert [record["model"] for record in found.records()] == ["vae d=1", "vae d=2"]
    for record in found.records():
        assert len(record["runs"]) == 2
        assert len(set(record["runs"])) == 2
        for folder, mean in zip(record["runs"], record["by_seed"], strict=True):
            run = gpin.open_run(folder)
            assert run.model.latent_dim == record["latent_dim"]
            own = run.load().log_likelihood(run.data().test[:], 25, "refined")
            assert mean == pytest.approx(own.mean, abs=0.05)  # the same but for the noise
    seeds = {gpin.open_run(folder).settings.training.seed for folder in found.records()[0]["runs"]}
    assert seeds == {0, 1}
    assert {gpin.open_run(folder).settings.data.seed for folder in found.records()[0]["runs"]} == {0}
    assert found.best.best_run in [Path(folder) for one in found.records() for folder in one["runs"]]


def test_the_text_and_the_json_have_every_model(found):
    text = str(found)
    assert text.splitlines()[-1] == found.recommendation
    assert "vae d=1" in text
    assert "vae d=2" in text
    assert "ms" in text
    record = found.record()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert (record["trainings"], record["done"], record["failed"]) == (4, 4, {})
    assert record["best"] == found.best.name


def test_the_page_has_the_recommendation_and_the_differences(found, tmp_path):
    page = found.write_page(tmp_path / "page.html").read_text()
    assert found.recommendation.split("<")[0].split(".")[0] in page
    assert "<svg" in page
    assert "seed 1" in page
    assert found.write_page().parent == found.store.root
    with pytest.raises(InputError, match=r"must end in \.html"):
        found.write_page(tmp_path / "page.pdf")


def test_what_is_done_is_not_repeated_and_more_can_be_added(found, values, monkeypatch):
    trained = []
    run_job = worker.run_job
    monkeypatch.setattr(worker, "run_job", lambda store, job: [trained.append(job), run_job(store, job)])
    out = found.store.root.parent
    again = gpin.compare(torch.from_numpy(values), ["vae"], [1, 2], seeds=2, out=out, **TINY)
    assert again.records() == found.records()
    assert trained == []
    more = gpin.compare(values, ["vae"], [1, 3], seeds=1, out=out, **TINY)
    assert [job.settings.model.latent_dim for job in trained] == [3]
    assert more.records()[0]["by_seed"] == found.records()[0]["by_seed"][:1]
    assert "Each model was trained once" in more.recommendation


def test_other_scores_use_the_trainings_that_are_there(found, values):
    checkpoints = {path: path.stat().st_mtime_ns for path in found.store.runs.rglob("*") if "checkpoints" in path.parts}
    assert checkpoints
    closer = gpin.compare(values, "vae", [1, 2], seeds=2, out=found.store.root.parent, **{**TINY, "samples": 30})
    assert [one["runs"] for one in closer.records()] == [one["runs"] for one in found.records()]
    assert {path: path.stat().st_mtime_ns for path in checkpoints} == checkpoints
    assert closer.records()[0]["log_likelihood"] != found.records()[0]["log_likelihood"]


def test_an_interrupted_comparison_continues_to_the_same_numbers(found, values, tmp_path, monkeypatch):
    run_job, began = worker.run_job, []

    def interrupted(store, job):
        began.append(job)
        if len(began) == 3:
            raise KeyboardInterrupt
        run_job(store, job)

    monkeypatch.setattr(worker, "run_job", interrupted)
    options = {"methods": "vae", "latent_dim": [1, 2], "seeds": 2, "out": tmp_path, **TINY}
    with pytest.raises(KeyboardInterrupt):
        gpin.compare(values, **options)
    assert ModelComparison(values, **{k: v for k, v in options.items() if k != "executor"}).done == 2
    again = gpin.compare(values, **options)
    assert len(began) == 5  # the third began twice
    drop = ("runs", "best_run", "training_seconds", "inference_milliseconds")
    ours, theirs = ([{k: v for k, v in one.items() if k not in drop} for one in c.records()] for c in (again, found))
    assert ours == theirs


def test_data_that_has_moved_is_recognised_and_data_that_has_changed_is_not_mixed_in(values, tmp_path):
    np.save(tmp_path / "a.npy", values)
    options = {"methods": "vae", "latent_dim": [1, 2], "seeds": 1, "out": tmp_path / "out", **TINY}
    first = gpin.compare(tmp_path / "a.npy", **options)
    (tmp_path / "moved").mkdir()
    (tmp_path / "a.npy").rename(tmp_path / "moved" / "a.npy")
    assert gpin.compare(tmp_path / "moved" / "a.npy", **options).records() == first.records()
    # Changed while it is compared: the fingerprint is taken first, the training reads later.
    others = {key: value for key, value in options.items() if key not in ("executor", "latent_dim")}
    changed = ModelComparison(tmp_path / "moved" / "a.npy", latent_dim=[3, 4], **others)
    np.save(tmp_path / "moved" / "b.npy", values + 1)
    (tmp_path / "moved" / "b.npy").rename(tmp_path / "moved" / "a.npy")
    with pytest.raises(TrainingError, match=r"none of the 2 trainings could be done: .* has changed since"):
        changed.run("serial")


def test_options_of_one_method_and_splits_of_every_seed(values, tmp_path):
    given = {key: value for key, value in TINY.items() if key != "executor"}
    found = ModelComparison(
        values, {"vae": {}, "natural": {"steps": 2}}, 2, seeds=2, new_splits=True, out=tmp_path, seed=5, **given
    )
    options = {cell.method: cell.job.settings.model.options for cell in found.cells}
    assert options == {"vae": {}, "natural": {"steps": 2}}
    seeds = [(cell.job.settings.training.seed, cell.job.settings.data.seed) for cell in found.cells]
    assert seeds == [(5, 0), (5, 0), (6, 1), (6, 1)]
    assert list(tmp_path.iterdir()) == []  # nothing is written before it runs
    with pytest.raises(InputError, match="has no results of this comparison yet"):
        found.records()


class ToyEncoder(GaussianEncoder):
    """A method that workers do not have."""

    name = "toy"
    label = "Toy method"


def test_tables_with_missing_values_and_conditions_have_the_bits_of_their_runs(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "table.csv"
    rows = [f"{'' if i % 4 == 0 else rng.normal(5, 3):.5},{rng.normal():.5f},{'xy'[i % 2]}" for i in range(80)]
    path.write_text("\n".join(["a,b,s", *rows]) + "\n")
    asked = {**TINY, "seeds": 2, "given": ["s"], "limit": 4, "new_splits": True}
    for record in gpin.compare(path, "vae", [1, 2], out=tmp_path / "out", **asked).records():
        bits = []
        for folder in record["runs"]:
            run, vae = gpin.open_run(folder), gpin.open_run(folder).load()
            test = run.data().test
            chosen = random_rows(test, 4, 0)
            values = vae.log_likelihood(chosen[:], 25, "refined").values.double()
            observed = ~chosen.plain[:].isnan()
            volume = (observed * torch.tensor(run.scaling.scale).log()).sum(1)
            bits.append((-(values - volume) / observed.sum(1) / np.log(2)).mean().item())
        assert record["bits_per_dim"] == pytest.approx(np.mean(bits), abs=0.02)  # the same but for the noise


def test_the_data_is_read_as_in_training(tmp_path):
    path = tmp_path / "table.csv"
    rng = np.random.default_rng(0)
    path.write_text("a,k\n" + "".join(f"{rng.normal():.3f},{rng.poisson(3)}\n" for _ in range(80)))
    options = {"epochs": 1, "out": tmp_path / "out"}
    assert ModelComparison(path, "vae", [1, 2], **options).data.scaling.columns
    plain = ModelComparison(path, "vae", [1, 2], likelihood="gaussian", **options).data.scaling
    assert (plain.kind, plain.columns) == ("standardised", ())


def test_a_method_from_outside_needs_this_process(values, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "toy", ToyEncoder)
    with pytest.raises(InputError, match="registered only in this process"):
        gpin.compare(values, ["vae", "toy"], 1, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_fails_is_told_and_the_others_are_shown(values, tmp_path, monkeypatch):
    run_job = worker.run_job

    def fails(store, job):
        if job.settings.model.latent_dim == 2:
            raise TrainingError("the loss is not finite")
        run_job(store, job)

    monkeypatch.setattr(worker, "run_job", fails)
    told = []
    found = gpin.compare(values, "vae", [1, 2], seeds=1, out=tmp_path, tell=told.append, **TINY)
    assert told == ["vae d=2, seed 0 failed: the loss is not finite"]
    assert (found.done, [one["model"] for one in found.records()]) == (1, ["vae d=1"])
    assert found.recommendation.startswith("Only vae d=1 is done")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"methods": "vae"}, "at least two models: give several `methods`, or several `latent_dim`"),
        ({"methods": []}, "`methods` is empty"),
        ({"methods": ["vae", "gpp"]}, "unknown method 'gpp': did you mean 'gp'"),
        ({"methods": ["vae", "vae"]}, "the method 'vae' is given twice"),
        ({"latent_dim": [2, 2]}, "`latent_dim` has a number twice"),
        ({"latent_dim": [0]}, "latent_dim must be a whole number of at least 1, got 0"),
        ({"latent_dim": "2,5"}, "latent_dim must be a whole number or several"),
        ({"latent_dim": []}, "latent_dim must be a whole number or several"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1, got 0"),
        ({"samples": 10}, "samples must be a whole number of at least 25, got 10"),
        ({"limit": 0}, "limit must be a whole number of at least 1, got 0"),
        ({"baseline": "gp"}, "`baseline` must be one of the methods vae, natural, got 'gp'"),
        ({"epochs": 0}, "epochs"),
        ({"steps": 2}, "'steps' is an option of natural but not of vae: write natural.steps"),
        ({"gp.covariance": "full"}, "'gp.covariance' is an option of gp, which is not among the methods compared"),
        ({"natural.stepz": 2}, "there is no option 'stepz' for method 'natural'"),
        (
            {"vae.scaling": "none"},
            "'vae.scaling' cannot be set for one method alone: models are compared with the same",
        ),
        ({"methods": {"vae": {"likelihood": "laplace"}, "gp": {}}}, "'vae.likelihood' cannot be set for one method"),
        ({"natural.likelihood.variance": "analytic"}, "'natural.likelihood.variance' cannot be set for one method"),
        ({"vae.columns": ["a"]}, "'vae.columns' cannot be set for one method"),
        ({"vae.limit": 20}, "'vae.limit' cannot be set for one method"),
        ({"vae.split_seed": 1}, "'vae.split_seed' cannot be set for one method"),
        ({"lerning_rate": 2}, "there is no option 'lerning_rate' for method 'vae': did you mean 'learning_rate'"),
        ({"method": "gp"}, "'method' cannot be an option of all models"),
        ({"columns": ["a"]}, "`columns` is for reading files and does not apply to an array"),
    ],
)
def test_wrong_use_is_one_sentence_and_leaves_nothing_behind(given, said, values, tmp_path):
    options = {"methods": ["vae", "natural"], "latent_dim": 1, "out": tmp_path / "new", **given}
    with pytest.raises(InputError) as error:
        gpin.compare(values, **options)
    assert said in str(error.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (np.zeros((5, 2)), "at least ten are needed"),
        (np.zeros((20, 2, 2, 2, 2)), "the data holds an array of shape (20, 2, 2, 2, 2)"),
        ([1.0, 2.0], "the data must be a path, an array or a tensor, got list"),
        (np.array(["a"] * 20), "the data must hold numbers"),
        ("digitz", "unknown data 'digitz'"),
    ],
)
def test_data_that_cannot_be_compared_is_refused(data, said, tmp_path):
    with pytest.raises(InputError) as error:
        gpin.compare(data, out=tmp_path / "new")
    assert said in str(error.value)
    assert not (tmp_path / "new").exists()


def test_the_folder_must_not_be_a_file(values, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file, but the folder of comparisons must be a folder"):
        gpin.compare(values, out=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
