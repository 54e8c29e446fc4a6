"""A study from Python: what `gpin experiment` does, with the same arguments; and methods registered from outside."""

import json

import pytest
from experiments.grids import SCORING, columns, pretend

import gpin
from gpin._core.errors import InputError
from gpin.experiments import PROTOCOLS, Protocol, Study, write_report
from gpin.experiments import study as studies
from gpin.experiments.execution import cost as costs
from gpin.experiments.execution.executors import EXECUTORS
from gpin.inference import METHODS, GaussianEncoder

SMALL = Protocol(
    name="desk", epochs=1, batch_size=50, limit=100, validation_limit=50, splits=2, initialisations=1, scoring=SCORING
)


class ToyEncoder(GaussianEncoder):
    """A method that gpin does not have."""

    name = "toy"
    label = "Toy method"


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", ToyEncoder)


def test_a_study_is_run_and_shown_from_python(tmp_path):
    study = Study("digits", SMALL, tmp_path / "store", latent_dim=2, rows=["vae", "gp"], splits=1)
    runs = ["digits d=2 vae, split 0, start 0", "digits d=2 gp, split 0, start 0"]
    assert study.status() == dict.fromkeys(runs, "waiting")
    assert study.tables() == []
    cost = study.estimate_cost(workers=2)
    assert (cost.runs, cost.workers) == (2, 2)
    seen = []
    done = study.run("serial", on_progress=lambda states: seen.append(list(states.values()).count("done")))
    assert (done.runs, done.done, done.failed) == (2, 2, {})
    assert sorted(set(seen)) == [0, 1, 2]
    assert study.status() == dict.fromkeys(runs, "done")
    assert study.estimate_cost().runs == 0
    record = study.record()
    assert [row["row"] for row in record["columns"][0]["rows"]] == ["vae", "gp"]
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    path = study.write_tables(tmp_path / "new" / "digits.tex")
    assert path.read_text() == study.text("latex")
    page = write_report(tmp_path / "all.html", SMALL, tmp_path / "store")
    assert "GPVAE" in page.read_text()


def test_annealed_scores_split_the_gap_in_the_tables(tmp_path):
    plain, annealed = (
        Study("digits", SMALL, tmp_path, latent_dim=2, rows=["vae"], splits=1, temperatures=count)
        for count in (None, 3)
    )
    assert plain.entries[0].job.identity == Study("digits", SMALL, latent_dim=2, rows=["vae"]).entries[0].job.identity
    assert annealed.estimate_cost().runs == 1
    assert annealed.run("serial").done == 1
    assert plain.tables() == []
    likelihood, diagnostics = annealed.tables()[:2]
    assert "log p(x), annealed" in likelihood.head
    numbers = dict(zip(diagnostics.head, diagnostics.rows[0], strict=True))
    whole, *parts = (
        float(numbers[name].removeprefix("≥ ").replace("−", "-"))
        for name in ("inference gap, annealed", "amortization gap", "approximation gap, annealed")
    )
    assert whole == pytest.approx(sum(parts), abs=0.02)


def test_the_estimated_cost_counts_what_is_scored_closely(monkeypatch):
    monkeypatch.setattr(costs, "measured_seconds", lambda *arguments, **options: (0.0, 0.0))
    monkeypatch.setattr(costs, "seconds_of", lambda call: float(costs.POINTS))  # one second per instance
    scoring = SCORING.model_copy(update={"instances": 40, "closely": 10, "temperatures": 3})
    protocol = SMALL.model_copy(update={"scoring": scoring})
    study = Study("digits", protocol, latent_dim=2, rows=["vae", "natural"], splits=1)
    seconds = {kind.row: kind.run_seconds for kind in study.estimate_cost().kinds}
    close = 2 * 10  # refined and annealed
    assert seconds == {"vae": 40 + close, "natural": 40 * (1 + len((0, 2, 4))) + close}


def test_a_method_from_outside_is_a_row_of_a_table(toy, tmp_path):
    study = Study("digits", SMALL, tmp_path, latent_dim=2, rows=["vae", "toy"], splits=1)
    assert study.run("serial").done == 2
    scores = study.tables()[0]
    assert [row[0] for row in scores.rows] == ["VAE", "Toy method"]
    # It is the VAE by another name.
    assert scores.rows[0][1:] == scores.rows[1][1:]


def test_a_method_from_outside_is_timed(toy, tmp_path):
    study = Study("inference-time", "desk", tmp_path, rows=["vae", "toy"])
    small = Study(_one_data_set(study.experiment), "desk", tmp_path, rows=["vae", "toy"])
    assert not small.timed
    small.run()
    assert small.timed
    (table,) = small.tables()
    assert [row[0] for row in table.rows] == ["VAE", "Toy method"]
    assert float(table.rows[1][2]) > 0
    assert not Study(_one_data_set(study.experiment), "desk", tmp_path).timed  # the protocol's rows are others


def _one_data_set(experiment):
    from dataclasses import replace

    return replace(experiment, data=("digits",), time_dims=(2,))


def test_workers_are_not_given_methods_that_they_do_not_know(toy, tmp_path):
    study = Study("digits", SMALL, tmp_path, latent_dim=2, rows=["toy"])
    with pytest.raises(InputError, match=r"the method 'toy' is registered only in this process.*`executor=serial`"):
        study.run("local", workers=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ({}, {"executor": "slrum"}, "there is no executor 'slrum': choose one of serial, local, slurm, ray"),
        ({}, {"executor": "serial", "workers": 2}, "`workers` must be 1, got 2"),
        ({}, {"address": "auto"}, "it requires `executor=ray`"),
        ({}, {"slurm": {"timeout_min": 1}}, "it requires `executor=slurm`"),
        ({"latent_dim": [2, 0]}, {}, "latent_dim must be a whole number of at least 1, got 0"),
        ({"temperatures": 0}, {}, "temperatures must be a whole number of at least 1, got 0"),
        ({"rows": ["gpp"]}, {}, "there is no row 'gpp': .*gp"),
        ({"experiment": "uncertainty", "latent_dim": 3}, {}, "it requires `latent_dim=2`"),
        ({"experiment": "inference-time", "splits": 3}, {}, "it takes no `splits`"),
        ({"experiment": "inference-time"}, {"workers": 3}, "it takes no `workers`"),
    ],
)
def test_wrong_use_is_refused_in_the_words_of_python(arguments, options, said, tmp_path):
    with pytest.raises(InputError, match=said):
        Study(**{"experiment": "digits", "protocol": SMALL, "store": tmp_path, **arguments}).run(**options)
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_cannot_be_written_are_refused(tmp_path):
    study = Study("digits", SMALL, tmp_path, latent_dim=2, rows=["vae"])
    with pytest.raises(InputError, match=r"the format of .*x\.txt is unknown: give `format`"):
        study.write_tables(tmp_path / "x.txt")
    with pytest.raises(InputError, match=r"x\.md is not a name for latex: leave out `format`"):
        study.write_tables(tmp_path / "x.md", "latex")
    with pytest.raises(InputError, match="there is no format 'word'"):
        study.text("word")
    with pytest.raises(InputError, match="no trainings of digits whose history is known"):
        study.figure()
    with pytest.raises(InputError, match="inference-time trains nothing"):
        Study("inference-time", store=tmp_path).estimate_cost()


def test_names_of_protocols_are_looked_up(tmp_path):
    assert Study("digits", "paper", tmp_path).protocol == PROTOCOLS["paper"]
    assert gpin.experiments.Study is studies.Study


def test_results_are_read_again_after_a_run(tmp_path, monkeypatch):
    study = Study("digits", SMALL, tmp_path, latent_dim=2, rows=["vae"], splits=1)
    assert study.results.done == 0
    run = lambda store, jobs, *_, **__: [pretend(store, job, columns()) for job in jobs]  # noqa: E731
    monkeypatch.setitem(EXECUTORS, "local", run)
    assert study.run(workers=1).done == 1
    assert study.results.done == 1
