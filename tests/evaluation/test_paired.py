"""Intervals over instances and trainings: against scipy, and against how often they contain the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from gpin.evaluation.paired import repeated_mean


def test_one_training_has_students_interval_over_instances():
    values = np.random.default_rng(0).normal(size=30)
    found = repeated_mean([values])
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert (found.instances, found.trainings) == (30, 1)


def test_other_instances_for_each_training_give_students_interval_over_trainings():
    trainings = [np.random.default_rng(seed).normal(seed, size=20 + seed) for seed in range(4)]
    found = repeated_mean(trainings, same_instances=False)
    interval = stats.ttest_1samp([own.mean() for own in trainings], 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(("trainings", "instances"), [(3, 40), (5, 20)])
@pytest.mark.parametrize("spread", [(0.0, 1.0), (1.0, 0.0), (1.0, 5.0)], ids=["instances", "trainings", "both"])
def test_the_interval_contains_the_truth_as_often_as_it_says(trainings, instances, spread):
    rng = np.random.default_rng(0)
    repeats = 400
    of_training, of_instance = spread
    hits = 0
    for _ in range(repeats):
        values = of_training * rng.normal(size=(trainings, 1)) + of_instance * rng.normal(size=(1, instances))
        found = repeated_mean(values + 0.5 * rng.normal(size=(trainings, instances)))
        hits += found.low <= 0 <= found.high
    assert 0.915 <= hits / repeats <= 0.985  # 95 %, up to 3 standard errors of 400 repeats


def test_an_interval_over_instances_alone_would_be_far_too_narrow():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        values = rng.normal(size=(3, 1)) + rng.normal(size=(1, 40))
        found = repeated_mean([values.mean(0)])
        hits += found.low <= 0 <= found.high
    assert hits / 200 < 0.6


def test_degenerate_numbers_of_instances_and_trainings():
    alone = repeated_mean([[1.0]])
    assert alone.mean == 1.0
    assert math.isnan(alone.stderr)
    assert alone.sign == 0
    assert math.isnan(repeated_mean([[1.0], [2.0]]).low)  # one instance says nothing about others
    same = repeated_mean([[2.0, 2.0], [2.0, 2.0]])
    assert (same.low, same.high, same.sign) == (2.0, 2.0, 1)
    assert repeated_mean([[-2.0, -2.0]]).sign == -1
