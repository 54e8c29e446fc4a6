"""The cells of tables with columns of different kinds."""

import numpy as np
import pytest

from gpin.data import Scaling
from gpin.data.columns import ColumnScaling
from gpin.runs.report import cells
from gpin.runs.report.columns import bins

KINDS = (
    ColumnScaling(kind="gaussian", offset=40.0, scale=10.0),
    ColumnScaling(kind="categorical", levels=("red", "green", "blue")),
    ColumnScaling(kind="bernoulli"),
    ColumnScaling(kind="poisson"),
)
MIXED = Scaling(kind="columns", columns=KINDS)
NAN = np.nan
VALUES = np.array([[40.0, 0, 1, 7], [50.0, 2, 0, 5], [NAN, 2, NAN, 6], [30.0, NAN, 0, NAN]])


def test_values_are_written_by_their_kind():
    row = [cells.shown(MIXED, k, value, 10.0) for k, value in enumerate(VALUES[0])]
    assert row == ["40.0", "red", "1", "7"]
    assert [cells.shown(MIXED, k, NAN, 1.0) for k in range(4)] == ["—"] * 4
    assert cells.shown(Scaling(kind="none"), 0, 7.0, 10.0) == "7.0"


def test_columns_are_summed_up_by_their_kind():
    said = [cells.summed_up(MIXED, k, VALUES[:, k], 10.0) for k in range(4)]
    assert said == ["40.0 (8.2)", "blue (67 %)", "0 (67 %)", "6.0 (0.8)"]
    assert cells.summed_up(MIXED, 1, np.full(3, NAN), 1.0) == "—"


def test_labels_are_right_or_wrong_and_missing_values_neither():
    again = np.array([[42.0, 2, 1, 7], [50.0, 2, 1, 4], [1.0, 0, 0, 6], [30.0, 1, 0, 2]])
    expected = [[-2, 1, 0, 0], [0, 0, 1, 1], [NAN, 1, NAN, 0], [0, NAN, 0, NAN]]
    np.testing.assert_array_equal(cells.deviations(MIXED, VALUES, again), expected)
    variance = [np.var([40, 50, 30]), 1 / 3, 1 / 3, np.var([7, 5, 6])]
    np.testing.assert_allclose(cells.baseline(MIXED, VALUES), variance)


def test_every_level_has_a_bin():
    data, drawn = VALUES[:, 1], np.array([1.0, 1.0, 0.0, 2.0])
    edges, (shares, of_model), texts = bins(data, [drawn], KINDS[1].levels)
    assert (len(edges), tuple(texts)) == (4, ("red", "green", "blue"))
    assert shares.tolist() == pytest.approx([1 / 3, 0, 2 / 3])
    assert of_model.tolist() == [0.25, 0.5, 0.25]


def test_whole_numbers_have_bins_without_gaps_that_cover_the_samples():
    _, (shares, of_model), texts = bins(np.array([3.0, 3.0, 6.0, NAN]), [np.array([2.0, 4.0, 7.0, 7.0])])
    assert list(texts) == ["2", "3", "4", "5", "6", "7"]
    assert shares.tolist() == pytest.approx([0, 2 / 3, 0, 0, 1 / 3, 0])
    assert of_model.tolist() == [0.25, 0, 0.25, 0, 0, 0.5]
    counts = np.arange(100.0)
    edges, (shares, _), texts = bins(counts, [counts])
    assert (texts[0], texts[1], len(edges)) == ("0–4", "5–9", len(texts) + 1)
    assert shares[1:-1].tolist() == pytest.approx([0.05] * (len(texts) - 2))


def test_bins_cover_training_rows_and_samples_but_not_extreme_ones():
    edges, (shares, of_model), texts = bins(np.linspace(0, 1, 500), [np.array([-9.0, 9.0])])
    assert texts is None
    assert edges[[0, -1]].tolist() == pytest.approx([-1, 2], abs=0.05)  # by the width of the data to either side
    assert of_model[[0, -1]].tolist() == [0.5, 0.5]  # what lies outside counts for the outer bins
    assert shares.sum() == pytest.approx(1)
    random = np.random.default_rng(0)
    few, train, drawn = (random.standard_normal(n) for n in (10, 500, 5000))
    edges, (shares, of_model), texts = bins(few, [drawn], train=train)
    assert (texts, len(shares)) == (None, 5)  # ten different values are not ten levels
    assert max(of_model[0], of_model[-1]) < 0.1  # nothing piles up at the ends
