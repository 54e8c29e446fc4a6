"""A score that is registered from outside appears everywhere: terminal, JSON, page, store and tables."""

import json
import math

import numpy as np
import pytest
from experiments.grids import columns, experiment, pretend, protocol
from pages import Content
from pyarrow import parquet

from gpin.cli import main
from gpin.evaluation.scores import MEDIAN, SCORES, Score, register
from gpin.experiments.analysis.results import Results
from gpin.experiments.analysis.tables import likelihood_tables
from gpin.experiments.execution.store import Store
from gpin.experiments.execution.worker import run_job

SMALL = ["--epochs", "1", "--latent-dim", "2", "--set", "architecture.width=8"]


def length(measurement):
    """‖x‖ of each instance."""
    return measurement.x.flatten(1).norm(dim=1)


@pytest.fixture
def score():
    """The new score, registered for one test."""
    yield register(
        Score(
            name="length",
            symbol="‖x‖",
            title="length of x",
            explanation="the Euclidean norm of an instance",
            unit="cubits",
            reductions=(MEDIAN,),
            format=".4f",
            measure=length,
        )
    )
    del SCORES["length"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run's folder, and ‖x‖ of its test instances in the units of the model."""
    from gpin.runs import open_run

    folder = tmp_path_factory.mktemp("run")
    np.save(folder / "data.npy", np.random.default_rng(0).normal(size=(60, 3)))
    assert main(["train", str(folder / "data.npy"), *SMALL, "--out", str(folder / "runs")]) == 0
    (found,) = (folder / "runs").iterdir()
    return found, np.linalg.norm(open_run(found).data().test[:].numpy(), axis=1)


def lower_median(values):
    return float(np.sort(values)[(len(values) - 1) // 2])


def test_the_terminal_and_the_json_of_evaluate(score, run, capsys):
    folder, lengths = run
    assert main(["evaluate", str(folder), "--samples", "5"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("length of x")]
    assert line.split()[-2:] == [f"{lower_median(lengths):.4f}", "cubits"]
    assert main(["evaluate", str(folder), "--samples", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["scores"]["length"]
    assert found == {"median": pytest.approx(lower_median(lengths), rel=1e-6)}


def test_the_page(score, run, tmp_path):
    folder, lengths = run
    assert main(["report", str(folder), "--samples", "5", "-o", str(tmp_path / "page.html")]) == 0
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert Content(html).row("Length of x") == [f"{lower_median(lengths):.4f}"]
    assert "the Euclidean norm of an instance; cubits" in html


def test_the_store_and_the_tables(score, tmp_path):
    store, how, one = Store(tmp_path), protocol(splits=1), experiment("vae")
    (entry,) = one.entries(how)
    run_job(store, entry.job)
    stored = parquet.read_table(store.scores(entry.job)).to_pandas()["length"]
    assert len(stored) == how.scoring.instances
    results = Results(store, [entry])
    *_, diagnostics = likelihood_tables(one, how, results)
    place = diagnostics.head.index("‖x‖")
    assert diagnostics.rows[0][place] == f"{lower_median(stored):.4f}"
    assert "‖x‖: the Euclidean norm of an instance, cubits" in diagnostics.notes[0]
    (variant,) = results.variants("digits", 2)
    assert variant.record()["scores"]["length"]["mean"] == pytest.approx(lower_median(stored))


def test_a_store_from_before_has_blank_cells_or_no_column(score, tmp_path):
    store, how, one = Store(tmp_path), protocol(splits=2), experiment("vae", "gp")
    entries = one.entries(how)
    for entry in entries:
        given = {"length": np.full(40, 2.0)} if entry.row == "gp" or entry.split else {}
        pretend(store, entry.job, columns(**given))
    *_, diagnostics = likelihood_tables(one, how, Results(store, entries))
    place = diagnostics.head.index("‖x‖")
    assert [row[place] for row in diagnostics.rows] == ["", "2.0000 ± 0.0000"]  # the VAE lacks it for one split
    plain = [entry for entry in entries if entry.row == "vae" and not entry.split]
    *_, diagnostics = likelihood_tables(one, how, Results(store, plain))
    assert "‖x‖" not in diagnostics.head
    assert not math.isnan(Results(store, plain).variants("digits", 2)[0].scores["elbo"].mean)
