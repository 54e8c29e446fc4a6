"""Epochs to the paper's score, and the curves over epochs and over time."""

import pytest
from experiments.grids import columns, pretend

from gpin._core.errors import InputError
from gpin.experiments import PAPER, Study, write_report
from gpin.experiments.analysis.progress import Progress, processors_note, progress_of

TARGETS = [PAPER.log_likelihood["mnist"][10][row].mean for row in ("vae", "gp")]


@pytest.fixture
def study(tmp_path):
    """Three rows of a long experiment: one reaches the paper's VAE, one both, and one has no history."""
    found = Study("mnist", "long", tmp_path, latent_dim=10, rows=["vae-2x", "natural-0", "natural", "gp"])
    low, high = TARGETS
    scores = {"vae-2x": [1.0, low, low + 1], "natural": [low + 2, high - 1, high + 1, high]}
    for entry in found.entries:
        history = [{"score": score, "seconds": 1800.0} for score in scores.get(entry.row, [])]
        if entry.row != "natural-0":  # which is the same training as natural
            pretend(found.store, entry.job, columns(0), history=history)
    return Study("mnist", "long", tmp_path, latent_dim=10, rows=["vae-2x", "natural-0", "natural", "gp"])


def test_the_first_epoch_that_reaches_a_score(study):
    found = progress_of(study.results, "mnist", 10)
    assert list(found) == ["vae-2x", "natural"]
    assert found["natural"].seconds == [1800.0, 3600.0, 5400.0, 7200.0]
    table = study.tables()[-1]
    assert table.title == "MNIST, d = 10: epochs to the paper's score"
    assert [row[1:3] + row[4:] for row in table.rows] == [
        ["3", "1.5 h", "2 (1.0 h)", "not reached"],
        ["4", "2.0 h", "1 (30 min)", "3 (1.5 h)"],
    ]


def test_times_of_different_processors_are_noted(study):
    def note(**processors):
        return processors_note(
            {row.replace("_", "-"): Progress([1.0], [1.0], name) for row, name in processors.items()}
        )

    assert note() == note(vae="Xeon", natural="Xeon") == note(vae="", natural="") == []
    [found] = note(vae="EPYC", natural="Xeon", vae_2x="EPYC")
    assert found.endswith("Natural (1 step): Xeon; all others: EPYC.")
    assert "Natural (1 step): an unknown processor; all others: EPYC." in note(vae="EPYC", natural="", vae_2x="EPYC")[0]
    assert not any("different processors" in text for text in study.tables()[-1].notes)


def test_a_table_and_its_page_say_that_processors_differ(tmp_path):
    study = Study("mnist", "long", tmp_path, latent_dim=10, rows=["vae-2x", "natural"])
    for entry, name in zip(study.entries, ["EPYC", "Xeon"], strict=True):
        history = [{"score": 1.0, "seconds": 1800.0}]
        pretend(study.store, entry.job, columns(0), history=history, environment={"processor": name})
    study = Study("mnist", "long", tmp_path, latent_dim=10, rows=["vae-2x", "natural"])
    assert any("different processors" in text for text in study.tables()[-1].notes)
    assert "different processors" in write_report(tmp_path / "page.html", "long", tmp_path).read_text()


def test_the_figure_has_a_curve_for_each_training_and_the_scores_of_the_paper(study):
    left, right = study.figure().axes
    labels = [line.get_label() for line in left.lines if not line.get_label().startswith("_")]
    assert labels == ["Natural (1 step)", "VAE, twice the epochs"]
    assert right.lines[1].get_xdata().tolist() == [0.5, 1.0, 1.5]
    assert [line.get_ydata()[0] for line in left.lines[2:]] == TARGETS


def test_a_figure_of_several_columns_is_refused(study, tmp_path):
    both = Study("mnist", "long", tmp_path, latent_dim=[10, 20], rows=["natural"])
    for entry in both.entries:
        pretend(both.store, entry.job, columns(0), history=[{"score": 1.0, "seconds": 1.0}])
    both = Study("mnist", "long", tmp_path, latent_dim=[10, 20], rows=["natural"])
    with pytest.raises(InputError, match="there are mnist d=10, mnist d=20: give `latent_dim`"):
        both.figure()
