"""What is said about models whose scores are made up, so that the right answer is known."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gpin.experiments.analysis.models import ModelResult, ModelTable, Training

INSTANCES = np.random.default_rng(0).normal(0, 5, 60)
"""How hard the instances are for every model, which cancels in a paired difference."""


def model(method, dim=2, *, above=0.0, seeds=3, by_seed=0.05, khat=0.1, milliseconds=1.0, instances=None, **record):
    """A model that is `above` better than others, and whose trainings differ by `by_seed`."""
    trainings = {}
    for seed in range(seeds):
        rng = np.random.default_rng([len(method), dim, seed])
        values = INSTANCES + above + by_seed * rng.normal() + 0.1 * rng.normal(size=60)
        columns = {
            "instance": np.arange(60) if instances is None else instances(seed),
            "refined_log_likelihood": values,
            "refined_bits_per_dim": -values / 3,
            "log_likelihood": values - 1,
            "refined_elbo": values - 2,
            "elbo": values - 3,
            "inference_gap": np.full(60, 3.0),
            "refined_khat": np.full(60, khat),
        }
        known = {"training_seconds": 4.0 + seed, "validation_elbo": float(seed == 1), "parameters": 7}
        trainings[seed] = Training(
            Path(f"runs/{method}-{dim}-{seed}"),
            {**known, **record},
            {name: torch.as_tensor(own) for name, own in columns.items()},
        )
    return ModelResult(method, dim, trainings, milliseconds)


def test_the_best_is_recommended_if_its_lead_is_significant():
    found = ModelTable("toy", [model("vae"), model("gp", above=2.0), model("natural", above=1.0)])
    assert found.best.name == "gp d=2"
    assert found.alike == []
    assert found.recommendation.startswith("Use gp d=2: its log-likelihood is the highest, ")
    ahead = found.difference(found.results[1], found.results[2])
    assert f"{ahead.mean:.2f} nats above that of natural d=2" in found.recommendation
    assert 0 < ahead.low < 1.0 < ahead.high


def test_a_tie_is_called_a_tie_and_the_fastest_is_named():
    found = ModelTable("toy", [model("vae", milliseconds=0.5), model("gp", above=0.01, by_seed=0.5)])
    assert [one.name for one in found.alike] == ["vae d=2" if found.best.method == "gp" else "gp d=2"]
    assert found.recommendation == (
        "No significant difference between these models was found with 60 test instances and 3 trainings of each "
        "model. Of these, vae d=2 is the fastest in inference."
    )
    assert found.recommended.name == "vae d=2"


def test_some_are_alike_and_others_are_worse():
    rows = [model("vae"), model("gp", above=3.0, milliseconds=2.0), model("natural", above=3.0)]
    found = ModelTable("toy", rows)
    (alike,) = found.alike
    assert found.recommendation == (
        f"{found.best.name} has the highest log-likelihood. {alike.name} is not significantly different from it; the "
        "other model is worse. Of these, natural d=2 is the fastest in inference."
    )
    table = found.table()
    assert {table.rows[i][0]: mark for (i, _), mark in table.marks.items()} == {
        found.best.name: "red",
        alike.name: "blue",
    }


def test_differences_between_trainings_widen_the_interval():
    steady, noisy = (model("gp", above=1.0, by_seed=spread).minus(model("vae", by_seed=0.0)) for spread in (0.0, 1.0))
    assert noisy.stderr > 3 * steady.stderr
    assert noisy.trainings == 3


def test_trainings_on_other_instances_are_paired_within_each_split():
    other = {"instances": lambda seed: np.arange(60) + 100 * seed}
    found = model("gp", above=1.0, **other).minus(model("vae", **other))
    ours, theirs = (
        np.array([own.score("refined_log_likelihood").mean() for own in model(method, above=above).trainings.values()])
        for method, above in (("gp", 1.0), ("vae", 0.0))
    )
    expected = ours - theirs
    assert found.stderr == pytest.approx(expected.std(ddof=1) / np.sqrt(3))


def test_one_training_and_lower_bounds_come_with_a_reservation():
    found = ModelTable("toy", [model("vae", khat=0.9, seeds=1), model("gp", above=2.0, seeds=1)])
    assert "Each model was trained once: with another seed, the order may change." in found.recommendation
    assert "Scores marked ≥ are lower bounds" in found.recommendation
    table = found.table()
    assert [row[1].startswith("≥ ") for row in table.rows] == [True, False]
    assert "≥ is a lower bound" in " ".join(table.notes)
    # A best model that is itself only bounded from below is all the more the best.
    found = ModelTable("toy", [model("vae"), model("gp", above=2.0, khat=0.9)])
    assert "lower bound" not in found.recommendation


def test_a_baseline_is_compared_with_models_of_its_own_dimension():
    rows = [model(method, dim, above=dim + (method == "gp")) for dim in (2, 5) for method in ("vae", "gp")]
    found = ModelTable("toy", rows, baseline="vae")
    records = {record["model"]: record["difference"] for record in found.records()}
    assert records["vae d=2"] is records["vae d=5"] is None
    assert records["gp d=2"]["to"] == "vae d=2"
    assert records["gp d=5"]["mean"] == pytest.approx(1.0, abs=0.3)
    assert found.table().head[2] == "minus vae"
    assert ModelTable("toy", rows).records()[0]["difference"]["to"] == "gp d=5"


def test_records_are_json_and_agree_with_the_arrays():
    one = model("vae", seeds=2)
    (first, _) = ModelTable("toy", [one, model("gp", above=2.0, seeds=2)]).records()
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    values = np.array([own.score("refined_log_likelihood") for own in one.trainings.values()])
    assert first["log_likelihood"]["mean"] == pytest.approx(values.mean())
    assert first["by_seed"] == pytest.approx(values.mean(1).tolist())
    assert first["bits_per_dim"] == pytest.approx(-values.mean() / 3)
    assert first["encoder_log_likelihood"]["mean"] == pytest.approx(values.mean() - 1)
    assert first["training_seconds"] == 4.5
    assert first["best_run"] == "runs/vae-2-1"  # by validation data, not by its score here


def test_models_without_a_seed_in_common_are_not_compared():
    late = model("gp", above=2.0)
    late = ModelResult("gp", 2, {2: late.trainings[2]}, 1.0)
    early = ModelResult("vae", 2, {0: model("vae").trainings[0]}, None)
    found = ModelTable("toy", [early, late])
    assert found.records()[0]["difference"]["mean"] is None
    assert found.recommendation.startswith("No significant difference")
    assert found.table().rows[0][4] == "—"
