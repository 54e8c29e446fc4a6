"""The expected time of training, which is measured without a trace."""

import time

import numpy as np
import pytest
import torch

import gpin
from gpin.data import Rows, Scaling
from gpin.training import TrainingConfig
from gpin.training.cost import expected_seconds


@pytest.mark.parametrize("method", ["gp", "rme"])
def test_a_measurement_leaves_no_trace_and_grows_with_the_epochs(method):
    values = np.random.default_rng(0).normal(size=(64, 6))
    rows = Rows(values, np.arange(64), Scaling(kind="none"))
    vae = gpin.build((6,), method, latent_dim=2, architecture={"width": 8}, seed=0)
    before, state = vae.checksum(), torch.get_rng_state()
    began = time.perf_counter()
    config = {"batch_size": 16, "learning_rate": 1e30}
    few, many = (expected_seconds(vae, rows, rows, TrainingConfig(epochs=n, **config)) for n in (10, 1000))
    taken = time.perf_counter() - began
    assert vae.checksum() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in vae.parameters())
    assert 0 < few < 10 * 8 * taken  # four steps and four batches of validation per epoch, each part of what was taken
    assert many > few
