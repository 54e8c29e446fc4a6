"""Training with likelihoods that span many orders of magnitude: single instances must not dominate a batch."""

import math

import pytest
import torch
from torch import nn

import gpin
from gpin.inference.base import taming
from gpin.likelihoods import Likelihood


def test_ordinary_batches_are_left_alone():
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 3, 4, 7, 32, 256):
        for _ in range(50):
            assert taming(1e3 * torch.randn(size, generator=generator), torch.zeros(size, 1)) is None
    assert taming(torch.zeros(5), torch.zeros(5, 1)) is None
    assert taming(torch.tensor([1.0, math.nan, 2.0]), torch.zeros(3, 1)) is None
    blank_but_for_one = torch.tensor([5.0] * 9 + [600.0])  # a spread of zero, and an instance that is merely different
    assert taming(blank_but_for_one, torch.zeros(10, 8)) is None


def test_extreme_instances_are_reduced_to_the_limit():
    losses = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1e8, 1e4])  # the median is 4, and the spread 4
    factors = taming(losses, torch.zeros(9, 1))
    assert factors is not None
    assert factors.tolist() == pytest.approx([1] * 7 + [200 / (1e8 - 4), 200 / (1e4 - 4)])
    assert taming(-losses, torch.zeros(9, 1)) is None  # an extremely good instance does no harm


class Scales(Likelihood):
    """x ~ N(0, s²) with the standard deviation s = output² + 1e-4, which may be tiny."""

    @staticmethod
    def _std(output):
        return output.square() + 1e-4

    def log_prob(self, x, output):
        std = self._std(output)
        return self._sum(-0.5 * (x / std).square() - std.log() - 0.5 * math.log(2 * math.pi))

    def mean(self, output):
        return torch.zeros_like(output)

    def sample(self, output):
        return self._std(output) * torch.randn_like(output)

    def score_and_precision(self, x, output):
        std = self._std(output)
        return 2 * output * (x.square() / std**3 - 1 / std), 8 * output.square() / std.square()


@pytest.mark.parametrize("method", ["vae", "natural"])
def test_training_survives_likelihoods_that_span_millions_of_nats(method, monkeypatch):
    class Same(nn.Module):
        def forward(self, z):
            return z

    def model():
        trunk = nn.Sequential(nn.Linear(2, 32), nn.Tanh())
        trunk.out_features = 32
        inference = gpin.inference.METHODS[method](lambda: trunk, 2)
        return gpin.VAE(inference, Same(), Scales((2,)))

    def score():
        torch.manual_seed(0)
        vae = model()
        history = gpin.fit(
            vae, x, x[:200], epochs=3, batch_size=64, learning_rate=3e-3, calibrate=False, progress=False
        )
        return history.scores[-1]

    torch.manual_seed(1)
    x = Scales((2,)).sample(torch.randn(2000, 2))
    tamed = score()
    monkeypatch.setattr("gpin.inference.base.EXTREME", math.inf)
    assert tamed > score() + 1
