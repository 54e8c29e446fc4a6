"""The statistics against scipy, and against the paper's own marks."""

import math

import numpy as np
import pytest
from scipy import stats

from gpin.evaluation.paired import paired_difference
from gpin.experiments import PAPER, Summary, mark

OTHERWISE = {
    ("mnist", 10, "gp"): ("blue", ""),
    ("cifar10", 50, "rme-2"): ("", "blue"),
    ("svhn", 50, "sa-4"): ("", "blue"),
    ("celeba", 10, "me-2"): ("blue", ""),
}
"""Cells where the paper's mark is not what its means and deviations over ten runs give: its mark, and ours."""


def test_the_t_test_is_scipys():
    rng = np.random.default_rng(0)
    for sizes in ((10, 10), (3, 7)):
        one, two = (rng.normal(shift, 1 + shift, size) for shift, size in zip((0, 0.5), sizes, strict=True))
        expected = stats.ttest_ind(one, two, equal_var=False).pvalue
        assert Summary.of(one).p_value(Summary.of(two)) == pytest.approx(expected, rel=1e-10)


def test_the_paired_interval_is_scipys():
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(size=50), rng.normal(size=50)
    found = paired_difference(ours, theirs)
    test = stats.ttest_rel(ours, theirs)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.mean / found.stderr == pytest.approx(test.statistic)
    assert found.instances == 50


def test_one_run_has_no_deviation_and_no_test():
    alone = Summary.of([3.0])
    assert (alone.mean, alone.runs) == (3.0, 1)
    assert math.isnan(alone.std)
    assert mark({"a": alone, "b": Summary.of([2.0])}) == {"a": "red", "b": ""}
    assert math.isnan(paired_difference([1.0], [0.0]).low)


def test_the_papers_marks_come_out_of_its_own_numbers_but_for_four():
    other = {}
    cells = 0
    for name, by_dim in PAPER.log_likelihood.items():
        for dim, column in by_dim.items():
            assert len(column) == 22
            cells += len(column)
            for method, found in mark(column).items():
                theirs = PAPER.marks[name][dim][method]
                if found != theirs:
                    other[name, dim, method] = (theirs, found)
    assert cells == 5 * 3 * 22
    assert other == OTHERWISE


def test_the_papers_tables_are_whole():
    assert PAPER.log_likelihood["mnist"][50]["gp"] == Summary(1212.9, 3.2, 10)
    assert PAPER.inference_time["celeba"]["sa-8"] == 53.8
    assert PAPER.dense_log_likelihood["omniglot"][50]["vlae-1"] == 644.0
    assert PAPER.dense_inference_time["mnist"][10]["gp"] == 5.7
    assert {len(column) for column in PAPER.inference_time.values()} == {10}


def test_a_score_that_is_not_known_is_not_marked():
    unknown = Summary(math.nan, math.nan, 1)
    assert mark({"a": unknown, "b": Summary(1.0, 0.1, 3)}) == {"a": "", "b": "red"}
    assert mark({"a": unknown}) == {"a": ""}
