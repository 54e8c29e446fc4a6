"""The page, the figure and the tables of times and true posteriors, from a small experiment that was really run."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as parquet
import pytest
from experiments.grids import columns, pretend, protocol
from pages import Content, check_in_browser, check_self_contained, needs_browser
from scipy.stats import spearmanr

from gpin._core.errors import InputError
from gpin.building import load
from gpin.experiments.analysis import page as pages
from gpin.experiments.analysis.figures import uncertainty_figure
from gpin.experiments.analysis.page import compose_page
from gpin.experiments.analysis.progress import paper_scores
from gpin.experiments.analysis.results import Results
from gpin.experiments.execution import timing
from gpin.experiments.execution.planes import plane_arrays
from gpin.experiments.execution.store import Store
from gpin.experiments.execution.timing import measure_times, read_times, write_times
from gpin.experiments.execution.worker import run_jobs
from gpin.experiments.protocols import PROTOCOLS, Experiment
from gpin.experiments.study import Study
from gpin.report import plots
from gpin.runs import open_run

PLANE = Experiment("plane", "A plane", ("digits",), {"small": ("gp-shared", "towers")}, {"small": (2,)}, grid=True)
TABLE = Experiment("table", "A <table>", ("mnist",), {"small": ("vae", "gp", "gp-shared")}, {"small": (10,)})
TIMES = Experiment(
    "times",
    "Times",
    ("mnist",),
    {"small": ("vae", "iaf-1", "gp-shared")},
    {"small": ()},
    trained=False,
    time_dims=(50,),
)
SMALL = protocol(splits=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A plane that was trained, a table that was made up, and times that were measured."""
    found = Store(tmp_path_factory.mktemp("store"))
    run_jobs(found, [entry.job for entry in PLANE.entries(SMALL)])
    for i, entry in enumerate(TABLE.entries(SMALL)):
        pretend(found, entry.job, columns(i, uncertain=entry.row.startswith("gp")))
    rows = TIMES.rows["small"]
    write_times(found, TIMES, SMALL, rows, measure_times(TIMES, SMALL, rows, 1, lambda what: None))
    return found


@pytest.fixture(scope="module")
def html(store):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "EXPERIMENTS", {one.name: one for one in (PLANE, TABLE, TIMES)})
        return compose_page(store, SMALL).html()


def test_the_page_has_every_table_and_the_figure(html):
    check_self_contained(html)
    content = Content(html)
    assert content.count("h2") == 4  # three experiments, and how it was made
    # Of the plane scores, diagnostics and true posteriors, of the table differences too; and times.
    assert content.count("table") == 3 + 3 + 1
    assert content.count("img") == 1
    assert "A &lt;table&gt;" in html
    assert 'class="blue"' in html  # the paper's mark; one run has none of its own


@needs_browser
@pytest.mark.parametrize("width", [1100, 390])
def test_a_browser_shows_the_page(html, tmp_path, width):
    check_in_browser(html, tmp_path, width, drawings=0)


def test_an_empty_store_has_no_page(tmp_path):
    with pytest.raises(InputError, match="has no result"):
        compose_page(Store(tmp_path), PROTOCOLS["desk"])


def test_the_plane_says_how_far_the_encoder_is_from_the_truth(store):
    entries = PLANE.entries(SMALL)
    study = Study(PLANE, SMALL, store.root)
    tables, results = study.tables(), study.results
    scores = parquet.read_table(store.scores(entries[0].job)).to_pandas()
    assert (scores.kl >= scores.best_kl - 1e-6).all()
    row = next(row for row in tables[0].rows if row[0].startswith("GP, shared"))
    rho = spearmanr(scores.uncertainty, scores.kl).statistic
    assert row[5].startswith(f"{rho:.2f}".replace("-", "−"))
    assert row[1:3] == [f"{scores[name].mean():.2f}".replace("-", "−") for name in ("log_evidence", "kl")]
    assert results.posterior("towers", "digits", 2).by_uncertainty == (None, None)  # it has none
    assert "Trained on 100 instances, scored on 10 of the test part." in tables[0].notes
    line = results.posterior("gp-shared", "digits", 2)
    assert line.excess.mean == pytest.approx((scores.kl - scores.best_kl).mean())
    recorded = study.record()["columns"][0]["rows"]
    mine = next(row for row in recorded if row["row"] == "gp-shared")
    assert mine["posterior"]["kl"]["mean"] == pytest.approx(scores.kl.mean())
    assert mine["posterior"]["by_uncertainty"][0]["rho"] == pytest.approx(rho)


def test_the_figure_shows_six_instances_from_certain_to_uncertain(store):
    figure = uncertainty_figure(store, PLANE.entries(SMALL), "gp-shared")
    titles = [float(axes.get_title().split()[1]) for axes in figure.axes if axes.get_title()]
    assert len(titles) == 6
    assert titles == sorted(titles)
    assert len(figure.axes) == 12
    assert plots.png(figure).startswith(b"\x89PNG")
    assert b"<svg" in plots.standalone_svg(figure)


def test_the_figure_needs_the_store_alone(store, tmp_path):
    """Without the models, which are not in a repository of results, the page is the same."""
    folder = tmp_path / "copy"
    shutil.copytree(store.root, folder, ignore=shutil.ignore_patterns("run"))
    entries = PLANE.entries(SMALL)
    first, second = (plots.png(uncertainty_figure(one, entries, "gp-shared")) for one in (store, Store(folder)))
    assert first == second


def test_the_stored_posteriors_are_densities(store):
    found = store.planes(PLANE.entries(SMALL)[0].job)
    for x, y, density, mean, std in zip(*(found[name] for name in ("x", "y", "density", "mean", "std")), strict=True):
        assert density.shape == (len(y), len(x))
        mass = density.sum() * (x[1] - x[0]) * (y[1] - y[0])
        assert mass == pytest.approx(1, abs=0.1)  # but for what lies outside the picture, and the coarse pixels
        assert x[0] <= mean[0] - 2.4 * std[0]
        assert y[-1] >= mean[1] + 2.4 * std[1]
    assert found["images"].shape == (6, 2, 1, 8, 8)


def test_a_store_of_an_older_version_draws_the_figure_with_its_model(store, tmp_path):
    folder, entries = tmp_path / "copy", PLANE.entries(SMALL)
    shutil.copytree(store.root, folder, ignore=shutil.ignore_patterns("planes.npz"))
    first, second = (plots.png(uncertainty_figure(one, entries, "gp-shared")) for one in (store, Store(folder)))
    assert first == second


def test_the_posteriors_of_a_model_in_double_precision_are_the_same(store):
    (entry, *_) = PLANE.entries(SMALL)
    folder = next((store.folder(entry.job) / "run").glob("*/model"))
    scores = parquet.read_table(store.scores(entry.job)).to_pydict()
    found = plane_arrays(load(folder, dtype="float64"), open_run(folder.parent).data().test, scores)
    for name, values in store.planes(entry.job).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-2, atol=1e-3 * np.abs(values).max())


def test_all_images_have_curves_with_the_right_references(tmp_path, monkeypatch):
    """Under a protocol with all images; the paper has other numbers for a dense decoder."""
    dense = replace(TABLE, name="dense", decoder="dense", title="Dense")
    monkeypatch.setattr(pages, "EXPERIMENTS", {one.name: one for one in (TABLE, dense)})
    found, whole = Store(tmp_path), SMALL.model_copy(update={"limit": None})
    history = [{"score": 1.0, "processor_seconds": 60.0}, {"score": 900.0, "processor_seconds": 60.0}]
    for one in (TABLE, dense):
        for entry in one.entries(whole):
            pretend(found, entry.job, columns(), history=history)
    html = compose_page(found, whole).html()
    assert html.count("validation scores</h3>") == 2
    assert "A &lt;table&gt;, d = 10: validation scores" in html
    assert "Dense, d = 10: validation scores" in html
    assert paper_scores(TABLE, "mnist", 10) == {"vae": 685.1, "gp": 696.5}
    assert paper_scores(dense, "mnist", 50) == {"vae": 872.6, "gp": 882.3}
    assert html.count("Test log-likelihood in nats, importance-weighted") == 1  # each note once


def test_a_figure_without_its_posteriors_is_refused(store, tmp_path):
    other, (entry, *_) = Store(tmp_path), PLANE.entries(SMALL)
    with pytest.raises(InputError, match="no results of gp-shared"):
        uncertainty_figure(other, [entry], "gp-shared")
    pretend(other, entry.job, columns(uncertain=True))
    with pytest.raises(InputError, match="has neither them nor the model"):
        uncertainty_figure(other, [entry], "gp-shared")


def test_times_of_what_is_trained_too_are_those_of_the_rows_that_are_wanted(tmp_path):
    store, how = Store(tmp_path), protocol(splits=1)
    one = replace(TIMES, trained=True, latent_dims={"small": (50, 10)})
    rows = one.rows["small"]
    write_times(store, one, how, rows, measure_times(one, how, rows, 1, lambda what: None))
    tables = Study(one, how, tmp_path, rows=["gp-shared"]).tables()
    assert [[row[0] for row in table.rows] for table in tables] == [["GP, shared trunk, absolute"]]
    assert Study(one, how, tmp_path, latent_dim=10).tables() == []


def test_a_row_with_steps_is_timed_with_its_steps(monkeypatch):
    seen = {}

    def look(models, *_, **__):
        seen.update({row: vae.config.options.get("steps") for row, vae in models.items()})
        return {}

    monkeypatch.setattr(timing, "inference_times", look)
    measure_times(TIMES, SMALL, ["natural-0", "natural", "natural-4"], 1, lambda what: None)
    assert seen == {"vae": None, "natural-0": 0, "natural": 1, "natural-4": 4}


def test_times_are_ratios_to_the_vae_beside_the_papers(store):
    found = read_times(store, TIMES, SMALL, TIMES.rows["small"])
    (column,) = found["columns"]
    assert list(column["rows"]) == ["vae", "iaf-1", "gp-shared"]
    for row in column["rows"].values():
        assert 0 < row["least"] <= row["ratio"] <= row["most"]
        assert row["milliseconds"] > 0
    (table,) = Study(TIMES, SMALL, store.root).tables()
    assert [row[4:] for row in table.rows] == [["3.6", "1.00"], ["4.8", "1.33"], ["", ""]]
    assert read_times(Store(store.root / "nowhere"), TIMES, SMALL, TIMES.rows["small"]) is None
    other = replace(TIMES, rows={"small": ("vae", "gp")})
    assert read_times(store, other, SMALL, ("vae", "gp")) is None  # what was measured is another table


def test_the_page_has_rows_and_dimensions_that_nobody_asked_for(store, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "EXPERIMENTS", {TABLE.name: TABLE})
    found = Store(tmp_path)
    for entry in TABLE.entries(SMALL, [10, 20], ["vae", "hf-4"]):
        pretend(found, entry.job, columns())
    content = compose_page(found, SMALL).html()
    assert "d = 20" in content
    assert "HF (4)" in content
    assert "IAF" not in content


def test_the_figure_of_an_encoder_without_uncertainty_is_refused(store):
    with pytest.raises(InputError, match="the encoder of towers has none"):
        uncertainty_figure(store, PLANE.entries(SMALL), "towers")


def test_correlations_are_scipys(store):
    entries = TABLE.entries(SMALL)
    results = Results(store, entries)
    scores = columns(1, uncertain=True)
    gap = scores["refined_elbo"] - scores["elbo"]
    line = next(line for line in results.variants("mnist", 10) if line.row == "gp")
    assert line.by_uncertainty.rho == pytest.approx(spearmanr(scores["uncertainty"], gap).statistic)
    assert line.by_elbo.rho == pytest.approx(spearmanr(-scores["elbo"], gap).statistic)
    assert line.scores["amortization_gap"].mean == pytest.approx(np.mean(gap))
    assert math.isnan(line.scores["amortization_gap"].std)
