"""Numbers over instances, and the words for them."""

import json
import math

import numpy as np
import pytest
import torch

from gpin.report.numbers import Correlation, caution, even_ranks, without_nan


def test_what_cannot_be_ranked_has_no_correlation():
    assert math.isnan(Correlation.of(torch.ones(9), torch.arange(9.0)).rho)
    assert math.isnan(Correlation.of(torch.arange(2.0), torch.arange(2.0)).rho)
    assert Correlation.of(torch.arange(9.0), torch.arange(9.0)).rho == pytest.approx(1)


@pytest.mark.parametrize(
    ("rho", "stderr", "words"),
    [
        (0.2, 0.05, "it is weakly higher where it rains"),
        (-0.5, 0.05, "it is moderately lower where it rains"),
        (0.9, 0.05, "it is strongly higher where it rains"),
        (0.9, 0.5, "no relation is shown"),
        (math.nan, math.nan, "no relation is shown"),
        (1.0, math.nan, "no relation is shown"),
    ],
)
def test_a_correlation_claims_no_more_than_it_shows(rho, stderr, words):
    assert Correlation(rho, stderr).in_words("where it rains") == words


def test_estimates_are_believed_as_far_as_they_can_be():
    assert "can be trusted" in caution(0.0, 0.04, "rows")
    said = caution(0.5, 0.04, "rows")
    assert "up to 50% of the rows with the encoder’s proposals, and 4% with refined" in said
    assert "The log-likelihoods with the encoder’s proposals are therefore lower bounds (≥)" in said
    assert "with the encoder’s proposals and refined ones are therefore lower" in caution(0.5, 0.06, "rows")
    assert "use at least 25" in caution(math.nan, math.nan, "rows")


def test_a_record_without_nan_is_json():
    record = {"a": {"b": [math.nan, 1.0, [-math.inf]]}, "c": math.inf, "d": None, "e": "nan", "f": 3}
    found = json.loads(json.dumps(without_nan(record), allow_nan=False))
    assert found == {"a": {"b": [None, 1.0, [None]]}, "c": None, "d": None, "e": "nan", "f": 3}


def test_even_ranks_run_from_least_to_most():
    values = np.random.default_rng(0).random(100)
    chosen = even_ranks(values, 10)
    assert (values[chosen] == np.sort(values)[np.rint(np.linspace(0, 99, 10)).astype(int)]).all()
    assert len(even_ranks(values, 500)) == 100
