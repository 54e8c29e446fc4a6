"""Honest numbers in honest words."""

import math

import pytest
import torch

from gpin.demo.estimates import verdict
from gpin.report.numbers import Correlation


def test_the_correlation_is_spearmans():
    x = torch.arange(100.0)
    assert Correlation.of(x, x**3).rho == pytest.approx(1)
    mixed = Correlation.of(x, torch.randn(100))
    assert abs(mixed.rho) < 4 * mixed.stderr
    assert mixed.stderr == pytest.approx(1 / math.sqrt(97), rel=0.1)


@pytest.mark.parametrize(
    ("mean", "stderr", "words"),
    [
        (1.0, 0.2, "+1.00 ± 0.20 nats, in favour of the GP model (5.0 standard errors)."),
        (-1.0, 0.2, "−1.00 ± 0.20 nats, in favour of the plain VAE (5.0 standard errors)."),
        (0.3, 0.2, "+0.30 ± 0.20 nats, not significant (1.5 standard errors)."),
        (-0.3, 0.2, "−0.30 ± 0.20 nats, not significant (1.5 standard errors)."),
        (0.0, 0.0, "+0.00 ± 0.00 nats, not significant (0.0 standard errors)."),
        (math.nan, math.nan, "+nan ± nan nats, not significant (0.0 standard errors)."),
    ],
)
def test_the_verdict_claims_no_more_than_is_shown(mean, stderr, words):
    assert verdict(mean, stderr) == words
