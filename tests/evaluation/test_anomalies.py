"""How unusual instances are, against models and sizes that are known."""

import io
import math

import numpy as np
import pytest
import torch
from linear_gaussian import LinearGaussian
from PIL import Image

import gpin
from gpin.evaluation.anomalies import (
    ANOMALY_SCORES,
    anomaly_score,
    compressed_nats,
    percentiles,
    reconstruction_error,
    surprise,
)


def test_the_surprise_is_that_of_a_linear_model_in_closed_form(double):
    """E_q[−log N(x_i; w_i z, σ²)] = ½ ((x_i − w_i m)² + w_iᵀ S w_i)/σ² + ½ log 2πσ², and KL(N(m, S) ‖ N(0, I))."""
    truth = LinearGaussian.random(size=5, latent_dim=2, variance=0.3)
    vae, x = truth.vae("vae", known=True).eval(), truth.sample(4)
    q = vae.encode(x)
    found = surprise(vae, x, draws=20_000)
    squares = (x - truth.offset - q.mean @ truth.matrix.T).square() + q.variance @ truth.matrix.square().T
    exact = 0.5 * squares / truth.variance + 0.5 * math.log(2 * math.pi * truth.variance)
    torch.testing.assert_close(found.values, exact.detach(), rtol=0.02, atol=0.02)
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(q.mean, q.stddev), torch.distributions.Normal(0.0, 1.0)
    ).sum(-1)
    torch.testing.assert_close(found.code, kl.detach(), rtol=0.02, atol=0.02)


def test_surprises_sum_to_the_elbo():
    vae, x = gpin.build((1, 4, 4), "gp", 2, likelihood="bernoulli", seed=0).eval(), torch.rand(6, 1, 4, 4)
    found = surprise(vae, x, draws=4000)
    assert found.values.shape == x.shape
    bound = vae.log_likelihood(x, samples=4000).elbo
    torch.testing.assert_close(-(found.values.flatten(1).sum(1) + found.code), bound, rtol=0.01, atol=0.05)


def test_without_densities_of_single_values_only_the_code_is_known(monkeypatch):
    vae = gpin.build((3,), "vae", 2, seed=0).eval()
    monkeypatch.setattr(type(vae.likelihood), "log_prob_each", lambda *_: None)
    found = surprise(vae, torch.rand(5, 3))
    assert found.values is None
    assert found.code.shape == (5,)


def test_the_reconstruction_error_leaves_out_what_is_missing():
    vae = LinearGaussian(torch.zeros(2, 1), torch.tensor([1.0, 0.0]), 0.1).vae("vae", known=True).eval()
    x = torch.tensor([[2.0, 2.0], [float("nan"), 4.0]])
    assert reconstruction_error(vae, x, torch.zeros(2, 1)).tolist() == [2.5, 16.0]


def test_percentiles_are_those_of_scipy():
    from scipy.stats import percentileofscore

    rng = np.random.default_rng(0)
    reference, values = rng.integers(0, 20, 57), rng.integers(-2, 23, 40)
    expected = [percentileofscore(reference, value, kind="mean") for value in values]
    np.testing.assert_allclose(percentiles(values, reference), expected)


def test_every_score_is_larger_for_what_is_less_likely():
    columns = {"log_likelihood": [1.0, 0.0], "elbo": [1.0, 0.0], "reconstruction_error": [0.0, 1.0], "gap": [0.0, 1.0]}
    columns["corrected_log_likelihood"] = [1.0, 0.0]
    for score in ANOMALY_SCORES.values():
        unusual = score.of({name: np.array(values) for name, values in columns.items()})
        assert unusual[1] > unusual[0]
        assert score.shown in columns


def test_an_unknown_score_is_refused_with_a_suggestion():
    with pytest.raises(gpin.InputError, match="unknown score 'elbow' to rank by: did you mean 'elbo'"):
        anomaly_score("elbow")


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_compressed_sizes_are_those_of_files_and_larger_for_noise(channels):
    noise = np.random.default_rng(0).integers(0, 256, (channels, 12, 9), dtype=np.uint8)
    ramp = np.broadcast_to(np.arange(9, dtype=np.uint8) * 20, noise.shape)
    sizes = compressed_nats(np.stack([np.zeros_like(noise), ramp, noise]))
    assert (np.diff(sizes) > 0).all()
    assert sizes[2] > noise.size * math.log(256)  # noise cannot be compressed
    if channels == 1:
        file = io.BytesIO()
        Image.fromarray(noise[0]).save(file, "png", optimize=True)
        assert sizes[2] == pytest.approx(8 * math.log(2) * len(file.getvalue()))


def test_only_bytes_are_compressed():
    with pytest.raises(gpin.InputError, match="images must be bytes"):
        compressed_nats(np.zeros((2, 1, 3, 3)))
