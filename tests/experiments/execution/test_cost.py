"""What an experiment would take, for a small one."""

import json

import pytest
import torch
from experiments.grids import experiment, protocol

import gpin
from gpin.experiments.execution.cost import CostEstimate, RunGroup, _counts, estimate_cost
from gpin.experiments.protocols import EXPERIMENTS, PROTOCOLS


@pytest.fixture(scope="module")
def found():
    how = protocol(splits=2, initialisations=3, epochs=4)
    return estimate_cost(experiment("vae", "vae-2x", dims=(2, 3)).entries(how), workers=2)


def test_runs_are_counted_and_measured_by_kind(found):
    assert [(kind.row, kind.data, kind.latent_dim, kind.runs) for kind in found.kinds] == [
        (row, "digits", dim, 6) for dim in (2, 3) for row in ("vae", "vae-2x")
    ]
    assert found.runs == 24
    for kind in found.kinds:
        vae = gpin.build((1, 8, 8), "vae", kind.latent_dim, seed=0)
        assert kind.parameters == sum(p.numel() for p in vae.parameters())
        epochs = 8 if kind.row == "vae-2x" else 4
        assert kind.run_seconds > 2 * epochs * kind.step_seconds > 0  # two steps an epoch, and more
        assert kind.run_seconds < 60
    assert found.seconds == pytest.approx(sum(6 * kind.run_seconds for kind in found.kinds) / 2)
    assert 2**26 < found.memory < 2**36


def test_a_record_is_json(found):
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record.keys() == {"runs", "workers", "threads", "seconds", "memory_bytes", "kinds"}
    assert (record["runs"], record["workers"], len(record["kinds"])) == (24, 2, 4)
    assert record["kinds"][0]["row"] == "vae"


def test_a_table_says_it_to_a_person():
    kinds = [
        RunGroup("gp", "mnist", 10, 30, 1_234_567, 0.0125, 7200.0),
        RunGroup("vae", "mnist", 10, 30, 1000, 0.01, 90.0),
    ]
    table = CostEstimate(kinds, 4, 1, 512 * 2**20).table("MNIST")
    assert table.rows[0] == ["mnist d=10 GPVAE", "30", "1,234,567", "12 ms", "2.0 h", "2.5 days"]
    assert table.rows[1][4:] == ["1.5 min", "45.0 min"]
    assert "60 runs, 15.2 h with 4 workers" in table.notes[0]
    assert "512 MB" in table.notes[0]


def test_it_takes_no_less_than_the_longest_run():
    kinds = [RunGroup("gp", "mnist", 10, 1, 1000, 0.01, 100.0), RunGroup("vae", "mnist", 10, 1, 1000, 0.01, 10.0)]
    assert CostEstimate(kinds, 2, 1, 0).seconds == 100.0
    assert CostEstimate(kinds, 64, 1, 0).seconds == 100.0
    assert CostEstimate(kinds, 1, 1, 0).seconds == 110.0


def test_instances_are_counted_as_they_will_be():
    (small, *_), (desk, *_), (paper, *_) = (
        experiment("vae").entries(protocol()),
        EXPERIMENTS["mnist"].entries(PROTOCOLS["desk"]),
        EXPERIMENTS["mnist"].entries(PROTOCOLS["paper"]),
    )
    assert _counts(small.job) == (100, 50, 10)
    how = PROTOCOLS["desk"]
    assert _counts(desk.job) == (how.limit, how.validation_limit, how.scoring.instances)
    train, validation, test = _counts(paper.job)
    assert (train + validation, test) == (60000, 10000)


def test_threads_are_left_as_they_were(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    found = estimate_cost([], 1, 2)
    assert asked == [2, 7]
    assert found.record()["threads"] == 2
    assert "1 worker of 2 threads" in found.table("").notes[0]
