"""Which rows of data are chosen."""

import numpy as np

from gpin.runs.rows import random_rows, spread_rows


def test_random_rows_are_chosen_once_each_by_the_seed(rows):
    first, again, other = (random_rows(rows, 50, seed) for seed in (0, 0, 1))
    assert len(set(first.rows)) == 50
    assert (np.diff(first.rows) > 0).all()
    np.testing.assert_array_equal(first.rows, again.rows)
    assert (first.rows != other.rows).any()
    assert random_rows(rows, None) is random_rows(rows, 300) is rows


def test_spread_rows_go_from_the_first_to_the_last(rows):
    assert spread_rows(rows, 4).rows.tolist() == [0, 99, 199, 299]
    assert spread_rows(rows, 1).rows.tolist() == [0]
    assert spread_rows(rows, None) is spread_rows(rows, 301) is rows
