"""Coverage, ranks and temperatures, against a model whose posterior is known."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from linear_gaussian import LinearGaussian
from scipy.stats import binom
from torch.distributions import MultivariateNormal

import gpin
from gpin.evaluation.calibration import LEVELS, Coverage, binomial_band, ranked
from gpin.evaluation.gap_prediction import pack_calibrations, unpack_calibrations

N = 600
REACH = NormalDist().inv_cdf(0.9)
"""The half-width of a central 80 % interval in standard deviations."""


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LinearGaussian(torch.randn(6, 3) + 1.0, torch.randn(6), 0.5)


@pytest.fixture(scope="module")
def vae(model):
    return model.vae("vae", known=True).eval()


def scaled(model, factor):
    """The true posterior with its standard deviations multiplied by a factor."""

    def posterior(x):
        true = model.posterior(x)
        return MultivariateNormal(true.mean, scale_tril=factor * true.scale_tril)

    return posterior


# The truth -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [7, 199])
def test_the_true_posterior_is_calibrated(model, vae, samples):
    found = vae.coverage(N, model.posterior, samples=samples)
    assert found.values.shape == (N, 3)
    assert found.samples == samples
    assert 0.01 < found.p_value <= 1
    for level in LEVELS:
        assert abs(found.mean(level) - level) < 4 * found.stderr(level)
        error = math.sqrt(level * (1 - level) / N)
        assert ((found.per_dimension(level) - level).abs() < 4.5 * error).all()
    assert found.ranks.min() == 0
    assert found.ranks.max() == samples


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_posterior_of_another_width_covers_what_the_normal_distribution_says(model, vae, factor):
    found = vae.coverage(N, scaled(model, factor))
    for level in LEVELS:
        normal = NormalDist()
        expected = 2 * normal.cdf(factor * normal.inv_cdf((1 + level) / 2)) - 1
        assert abs(found.mean(level) - expected) < 4 * found.stderr(level) + 0.005  # all may be inside
    assert found.p_value < 1e-6
    counts = found.histogram(4).double().mean(1)
    outer, inner = (counts[0] + counts[3]) / 2, (counts[1] + counts[2]) / 2
    assert outer > 1.3 * inner if factor < 1 else inner > 1.3 * outer
    # The 80 % point of |z − m| has a relative error of √(0.16 / n) / (2 φ(1.28) 1.28) for n independent values.
    error = math.sqrt(0.16 / N) / (2 * NormalDist().pdf(REACH) * REACH)
    assert math.sqrt(found.temperature) * factor == pytest.approx(1, abs=4 * error)


def test_draws_count_like_the_distribution_that_they_come_from(model, vae):
    found = vae.coverage(N, lambda x: scaled(model, 0.5)(x).sample((99,)), samples=3)
    assert found.samples == 99  # as many as were given
    assert abs(found.mean(0.8) - (2 * NormalDist().cdf(0.5 * REACH) - 1)) < 4 * found.stderr(0.8)


def test_a_biased_mean_has_a_sloping_histogram(model, vae):
    def shifted(x):
        true = model.posterior(x)
        return MultivariateNormal(true.mean + 2 * true.stddev, scale_tril=true.scale_tril)

    counts = vae.coverage(N, shifted).histogram(3)
    assert (counts[0] > counts[1]).all()
    assert (counts[1] > counts[2]).all()


def test_resampled_draws_of_a_poor_encoder_are_calibrated(vae):
    before, after = vae.coverage(300), vae.coverage(300, "resampled", samples=99)
    assert before.p_value < 1e-6
    assert after.p_value > 0.01
    assert abs(after.mean(0.8) - 0.8) < 4 * after.stderr(0.8)


def test_for_given_data_a_draw_of_the_posterior_stands_for_the_true_z(model, vae):
    x = model.sample(N)
    for data in (x.numpy(), (x, model.posterior(x).sample())):
        found = vae.coverage(data, scaled(model, 0.5))
        assert abs(found.mean(0.8) - (2 * NormalDist().cdf(0.5 * REACH) - 1)) < 4 * found.stderr(0.8)


# Ranks and bands by hand -----------------------------------------------------------------------------


def test_ranks_and_scales_by_hand():
    draws = torch.arange(1.0, 10.0).reshape(9, 1, 1)  # the ends of the 80 % interval are 1 and 9, the mean is 5
    for z, rank, scale in ((0.5, 0, 4.5 / 4), (3.5, 3, 1.5 / 4), (5.0, 4, 0.0), (13.0, 9, 2.0)):
        values, scales, samples = ranked(torch.tensor([[z]]), draws, 0)
        found = Coverage(values, scales, samples)
        assert found.ranks.item() == rank
        assert scales.item() == pytest.approx(scale)
    one_sided = torch.distributions.Independent(torch.distributions.LogNormal(torch.zeros(1, 1), 9.0), 1)
    assert ranked(torch.full((1, 1), 1e30), one_sided, 99)[1].item() == math.inf  # both ends are below the mean


def test_statistics_by_hand():
    values = (torch.arange(200.0) + 0.5) / 200
    found = Coverage(torch.stack([values, values / 2], 1).double(), torch.ones(200, 2), 99)
    assert found.bins == 20
    assert found.histogram().sum(0).tolist() == [200, 200]
    assert found.chi2.tolist() == pytest.approx([0, 10 * (20 - 10) ** 2 / 10 + 10 * 10**2 / 10])
    assert found.p_values[0] == 1
    assert found.p_value < 1e-10
    assert found.per_dimension(0.5).tolist() == [0.5, 0.5]
    assert found.per_dimension(0.8).tolist() == pytest.approx([0.8, 0.8], abs=0.01)
    assert found.mean(0.8) == pytest.approx(0.8, abs=0.01)
    assert "80 % intervals 80.0 %" in str(found)
    record = found.record()
    assert [row["level"] for row in record["coverage"]] == list(LEVELS)
    assert np.array(record["histogram"]["counts"]).shape == (2, 20)


@pytest.mark.parametrize(("count", "share"), [(100, 0.05), (1000, 0.05), (60, 1 / 6)])
def test_the_band_has_at_least_its_probability_and_not_much_more(count, share):
    low, high = binomial_band(count, share, 0.95)
    assert binom.cdf(high, count, share) - binom.cdf(low - 1, count, share) >= 0.95
    assert binom.cdf(high - 1, count, share) - binom.cdf(low, count, share) < 0.95


# Temperatures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("simulations", [pytest.param(0, marks=pytest.mark.slow), 400])
def test_calibrated_intervals_cover_what_they_claim(model, simulations):
    """An encoder whose mean is right and whose standard deviations are half of the true ones, for a diagonal model."""
    torch.manual_seed(1)
    exact = LinearGaussian.random(latent_dim=3)
    vae = exact.vae("vae", known=True).eval()
    true = exact.posterior(exact.sample(2))

    def forward(x, _):
        return gpin.distributions.DiagonalNormal(exact.posterior(x).mean, 0.5 * true.stddev[:1].expand(len(x), -1))

    vae.inference.forward = forward
    with pytest.raises(gpin.InputError, match=r"no temperature yet: call vae.calibrate\(x\) with"):
        vae.encode(exact.sample(2), calibrated=True)
    vae.calibrate(exact.sample(400), refined=400, samples=50, simulations=simulations)
    assert vae.temperatures[None] == pytest.approx(4, rel=0.2)
    assert ("refined" in vae.temperatures) == bool(simulations)
    for data in (N, exact.sample(N)):
        found = vae.coverage(data, calibrated=True, seed=5)
        assert abs(found.mean(0.8) - 0.8) < 0.03
        assert vae.coverage(data, seed=5).mean(0.8) < 0.6
    x = exact.sample(3)
    q, calibrated = vae.encode(x), vae.encode(x, calibrated=True)
    torch.testing.assert_close(calibrated.mean, q.mean)
    torch.testing.assert_close(calibrated.variance, vae.temperatures[None] * q.variance)
    if simulations:
        factor = vae.temperatures["refined"]
        assert factor == pytest.approx(1, rel=0.2)  # the refined posterior is exact
        refined, calibrated = vae.refine(x), vae.refine(x, calibrated=True)
        torch.testing.assert_close(calibrated.covariance_matrix, factor * refined.covariance_matrix)
        assert vae.coverage(N, "refined", calibrated=True).posterior == "refined, calibrated"


def test_a_posterior_after_steps_has_its_own_temperature(model):
    vae, x = model.vae("natural", known=True).eval(), model.sample(60)
    vae.calibrate(x)
    with pytest.raises(gpin.InputError, match=r"call vae.calibrate\(x, steps=3\)"):
        vae.encode(x, steps=3, calibrated=True)
    vae.calibrate(x, steps=3)
    q = vae.encode(x, steps=3)
    calibrated = vae.encode(x, steps=3, calibrated=True)
    torch.testing.assert_close(calibrated.variance, vae.temperatures[3] * q.variance)
    assert torch.equal(calibrated.ascent.steps, q.ascent.steps)
    own = vae.encode(x, steps=1, calibrated=True)  # the number of steps that the method itself takes
    torch.testing.assert_close(own.variance, vae.temperatures[None] * q.variance)


def test_temperatures_are_saved_and_older_files_have_none(model, tmp_path):
    vae = gpin.build((6,), "vae", latent_dim=2, seed=0).eval()
    vae.calibrate(torch.rand(60, 6), simulations=50)
    vae.calibrate(torch.rand(60, 6), steps=2)
    assert set(vae.temperatures) == {None, 2, "refined"}
    vae.save(tmp_path)
    assert gpin.load(tmp_path).temperatures == vae.temperatures
    calibrations, temperatures = unpack_calibrations(pack_calibrations(vae.calibrations, {}))
    assert set(calibrations) == {None, 2}
    assert temperatures == {}
    vae.load_state_dict(vae.state_dict())
    assert vae.temperatures == {}


# The caller ------------------------------------------------------------------------------------------


def test_the_mode_and_the_random_state_are_left_alone(vae):
    vae.train()
    state = torch.get_rng_state()
    first = vae.coverage(60)
    assert vae.training
    assert torch.equal(torch.get_rng_state(), state)
    torch.randn(1)
    assert torch.equal(vae.coverage(60).values, first.values)
    assert not torch.equal(vae.coverage(60, seed=1).values, first.values)
    vae.eval()
    with torch.inference_mode():
        assert torch.equal(vae.coverage(60).values, first.values)
        vae.coverage(60, "refined", samples=9)


def test_all_posteriors_of_a_seed_have_the_same_simulations(vae):
    seen = []

    def noted(x):
        seen.append(x)
        torch.randn(len(seen))
        return vae.encode(x)

    vae.coverage(150, noted)
    vae.coverage(150, noted)
    assert torch.equal(torch.cat(seen[: len(seen) // 2]), torch.cat(seen[len(seen) // 2 :]))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda vae: vae.coverage(10), "data must be a whole number of at least 50, got 10"),
        (lambda vae: vae.coverage(torch.rand(3, 6)), "coverage needs at least 50 instances, got 3"),
        (lambda vae: vae.coverage((torch.rand(60, 6), torch.rand(60, 2))), r"x and z of shape \(60, 3\)"),
        (lambda vae: vae.coverage(posterior="exact"), "unknown posterior 'exact': choose 'encoder', 'refined', 'res"),
        (lambda vae: vae.coverage(posterior=3), "unknown posterior 3"),
        (lambda vae: vae.coverage(60, "refined", steps=2), "steps applies to posterior='encoder' only"),
        (lambda vae: vae.coverage(60, "resampled", calibrated=True), "calibrated applies to posterior='encoder' or"),
        (lambda vae: vae.coverage(60, calibrated=True), r"no temperature yet: call vae.calibrate\(x\)"),
        (lambda vae: vae.coverage(60, "refined", calibrated=True), r"vae.calibrate\(x, simulations=500\)"),
        (lambda vae: vae.coverage(60, samples=0), "samples must be a whole number of at least 1, got 0"),
        (lambda vae: vae.coverage(60, lambda x: x), r"draws of shape \(samples, 60, 3\), got draws of shape \(60, 6\)"),
        (lambda vae: vae.coverage(60, lambda x: x.new_full((5, 60, 3), torch.nan)), "draws that are not finite"),
        (lambda vae: vae.coverage(60, lambda x: "draws"), "must be a tensor or an array, got str"),
        (lambda vae: vae.coverage(60).mean(80), "level must be between 0 and 1, got 80"),
        (lambda vae: vae.encode(torch.rand(2, 6), tolerance=1.0, calibrated=True), "not to a tolerance"),
        (lambda vae: vae.calibrate(torch.rand(60, 6), simulations=9), "simulations must be a whole number of at least"),
    ],
)
def test_bad_input_is_named_in_one_line(vae, call, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        call(vae)
    assert "\n" not in str(caught.value)
