"""The gap at three prices, in a linear-Gaussian model whose gaps are known, and the calibration of its intervals."""

import math
import shutil

import pytest
import torch
from linear_gaussian import LinearGaussian
from scipy.stats import spearmanr
from torch.distributions import MultivariateNormal, kl_divergence

import gpin
from gpin.distributions import CholeskyNormal
from gpin.evaluation.gap_prediction import (
    LENGTHS,
    Calibration,
    GapNetwork,
    GapRegression,
    compressed,
    estimate_features,
    expanded,
)
from gpin.evaluation.gaps import decrement
from gpin.generative import log_joint_and_gradient


def divergence(model, q, x):
    """KL(q ‖ p(z|x)), which is the gap, since refinement finds the posterior of a linear-Gaussian model exactly."""
    covariance = torch.diag_embed(q.variance)
    return kl_divergence(MultivariateNormal(q.mean, covariance), model.posterior(x)).detach()


def inaccurate(**options):
    """A linear-Gaussian model and a VAE with its decoder, the exact standard deviations and random means."""
    model = LinearGaussian.random()
    vae = model.vae("vae", known=True, **options).eval()
    posterior = model.posterior(model.sample(1))
    with torch.no_grad():
        vae.inference.head.weight[2:] = 0
        vae.inference.head.bias[2:] = posterior.variance[0].log() / 2
    return model, vae


@pytest.fixture
def brief(monkeypatch):
    """The network of the predicted gap is fitted in a moment, for tests in which its accuracy does not matter."""
    monkeypatch.setattr(GapNetwork, "UPDATES", 40)


# The Newton decrement --------------------------------------------------------------------------------


def test_the_decrement_is_the_gap_where_the_covariance_is_exact(double):
    model = LinearGaussian(torch.randn(6, 3), torch.randn(6), 0.3)  # a posterior with correlations
    vae, x = model.vae("vae", known=True).eval(), model.sample(20)
    covariance = model.posterior(x).covariance_matrix.expand(20, 3, 3)
    q = CholeskyNormal(torch.randn(20, 3), torch.linalg.cholesky(covariance))
    exact = kl_divergence(MultivariateNormal(q.mean, covariance), model.posterior(x))
    torch.testing.assert_close(decrement(vae, x, q), exact)


def test_an_uncalibrated_model_returns_the_decrement_without_intervals(double):
    model, vae = inaccurate()
    x = model.sample(300)  # more than one batch
    found = vae.gap(x)
    torch.testing.assert_close(found.values, divergence(model, vae.encode(x), x))
    assert found.how == "estimated"
    assert found.low.isnan().all()
    assert found.high.isnan().all()
    assert found.mean == pytest.approx(found.values.mean().item())


def test_the_refined_gap_is_the_divergence_from_the_posterior(double):
    model, vae = inaccurate()
    x = model.sample(5)
    found = vae.gap(x, "refined", samples=20_000)
    torch.testing.assert_close(found.values, divergence(model, vae.encode(x), x), rtol=0.03, atol=0.03)
    assert found.low.isnan().all()


def test_the_noise_of_the_refined_gap_is_new_in_each_call():
    model, vae = inaccurate()
    x = model.sample(3)
    assert not torch.equal(vae.gap(x, "refined", samples=2).values, vae.gap(x, "refined", samples=2).values)


@pytest.mark.parametrize("how", ["estimated", "refined", "predicted"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_the_gap_is_the_same_in_every_mode_and_leaves_no_gradients(how, mode):
    model, vae = inaccurate()
    vae.calibrate(model.sample(60))
    x = model.sample(4)
    torch.manual_seed(1)
    expected = vae.gap(x, how).values
    with mode():
        torch.manual_seed(1)
        found = vae.gap(x.clone(), how).values
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    assert all(p.requires_grad and p.grad is None for p in vae.parameters())


def test_the_gap_after_steps_is_that_of_the_posterior_after_steps(double):
    model = LinearGaussian(torch.randn(6, 2), torch.randn(6), 0.3)
    vae, x = model.vae("natural", known=True).eval(), model.sample(8)
    for steps in (0, 1, 3):
        found = vae.gap(x, steps=steps).values
        torch.testing.assert_close(found, decrement(vae, x, vae.encode(x, steps=steps)))
    torch.testing.assert_close(vae.gap(x).values, vae.gap(x, steps=1).values)  # as trained
    assert (vae.gap(x, steps=20).values < vae.gap(x, steps=0).values).all()


# Regression and intervals ----------------------------------------------------------------------------


def test_compression_is_undone():
    gaps = torch.tensor([-2.0, -0.1, 0.0, 0.3, 500.0], dtype=torch.float64)
    torch.testing.assert_close(expanded(compressed(gaps)), gaps)


LINEAR = (math.inf,)  # the length scale of calibrations of older versions


@pytest.mark.parametrize("lengths", [LINEAR, LENGTHS])
def test_the_regression_is_that_of_a_gaussian_process(lengths):
    """Mean, deviation and leave-one-out residuals against their definitions, computed with the instance left out."""
    features, targets = torch.randn(60, 3), torch.randn(60, dtype=torch.float64)
    targets = targets + features[:, 0] * 2
    found = GapRegression.fit(features, targets, torch.arange(60), lengths)
    x = (features.double() - features.double().mean(0)) / features.double().std(0) / 3**0.5
    square = (x[:, None] - x[None]).square().sum(-1)
    linear = lengths is LINEAR
    kernel = x @ x.T if linear else torch.exp(-0.5 * square / found.length**2)
    noisy = kernel + found.noise * torch.eye(60)
    centred = targets - targets.mean()
    amplitude = centred @ torch.linalg.solve(noisy, centred) / 60
    kept = torch.arange(60) != 7
    row = kernel[7, kept]
    mean = row @ torch.linalg.solve(noisy[kept][:, kept], centred[kept])
    variance = amplitude * (noisy[7, 7] - row @ torch.linalg.solve(noisy[kept][:, kept], row))
    torch.testing.assert_close(found._residuals()[7], (centred[7] - mean) / variance.sqrt())
    mean, deviation = found.mean_and_deviation(features[:5])
    torch.testing.assert_close(mean, targets.mean() + kernel[:5] @ torch.linalg.solve(noisy, centred))
    own = (kernel - kernel @ torch.linalg.solve(noisy, kernel)).diagonal()[:5]
    torch.testing.assert_close(deviation, (amplitude * (own + found.noise)).sqrt())


def test_intervals_cover_what_they_promise_under_skewed_noise():
    def draw(count):
        features = torch.randn(count, 4)
        noise = torch.empty(count, dtype=torch.float64).exponential_(2.0)
        return features, 2 + torch.sin(2 * features[:, 0].double()) + noise

    (features, targets), (new, truth) = draw(800), draw(4000)
    found = GapRegression.fit(features, targets, torch.arange(0, 800, 2), LENGTHS)(new, "predicted")
    gap = expanded(truth)
    assert 0.75 < ((gap >= found.low) & (gap <= found.high)).double().mean() < 0.85
    assert ((found.low < found.values) & (found.values < found.high)).all()
    assert spearmanr(found.values, gap).statistic > 0.7


def test_far_from_all_instances_the_prediction_is_as_uncertain_as_the_prior():
    features, targets = torch.randn(200, 3), torch.randn(200, dtype=torch.float64)
    found = GapRegression.fit(features, targets + 3 * features[:, 0].sin(), torch.arange(200), LENGTHS)
    _mean, near = found.mean_and_deviation(features[:20])
    there, far = found.mean_and_deviation(1000 + torch.zeros(1, 3))
    assert (far > near).all()
    assert there.item() == pytest.approx(found.targets.mean().item())


def test_calibrated_gaps_of_a_linear_gaussian_model_cover_the_known_divergence():
    model, vae = inaccurate()
    with torch.no_grad():  # standard deviations that are wrong, so that the decrement is biased
        vae.inference.head.bias[2:] += 0.3
    # The intervals are those of a gap that is measured with this number of samples. Here the estimate is so accurate
    # that, with few samples, noise would be most of what they describe.
    held, x = model.sample(700), model.sample(1500)
    vae.calibrate(held, refined=300)
    measured = vae.gap(x, "refined", samples=20).values
    for how in ("predicted", "estimated"):
        found = vae.gap(x, how)
        assert 0.72 < ((measured >= found.low) & (measured <= found.high)).double().mean() < 0.88, how
    vae.calibrate(held, refined=300, samples=1000)
    exact = divergence(model, vae.encode(x), x)
    for how, least in (("predicted", 0.6), ("estimated", 0.9)):
        found = vae.gap(x, how)
        covered = ((exact >= found.low) & (exact <= found.high)).double().mean()
        assert 0.72 < covered < 0.88, how
        assert spearmanr(found.values, exact).statistic > least
        assert found.values.median() == pytest.approx(exact.median().item(), rel=0.1)


def test_training_instances_improve_the_ranking_and_keep_the_intervals():
    """With 80 validation instances alone the predicted gap is hardly better than chance."""
    model, vae = inaccurate()
    held, x = model.sample(80), model.sample(1500)
    exact = divergence(model, vae.encode(x), x)
    rho = {}
    for name, training in (("alone", None), ("with training", model.sample(4000).split(1000))):
        vae.calibrate(held, training=training)
        found = vae.gap(x, "predicted")
        rho[name] = spearmanr(found.values, exact).statistic
        covered = ((exact >= found.low) & (exact <= found.high)).double().mean()
        assert 0.65 < covered < 0.95, name  # two quantiles of 80 residuals: 0.8 ± 3 · 0.045
    assert rho["with training"] > max(0.9, rho["alone"] + 0.05)


def test_the_network_learns_a_function_and_stays_within_its_targets():
    features = torch.randn(3000, 5)
    targets = 2 + torch.sin(2 * features[:, 0]) + 0.1 * torch.randn(3000)
    features[:, 4] = 7.0  # constant
    network = GapNetwork.fit(features, targets.double())
    new = torch.randn(1000, 5)
    new[:, 4] = 7.0
    truth = 2 + torch.sin(2 * new[:, 0]).double()
    assert (network(new) - truth).square().mean() < 0.05 * truth.var()
    far = network(1e6 * torch.randn(50, 5))
    low, high = targets.min().item(), targets.max().item()
    assert ((far >= low - 1e-6) & (far <= high + 1e-6)).all()


def test_a_calibration_without_training_data_keeps_what_was_learnt_from_it(network_trained):
    network = network_trained.calibrations[None].network
    network_trained.calibrate(torch.rand(80, 6), simulations=50)
    assert network_trained.calibrations[None].network is network
    assert network_trained.calibrations[2].network is None


def test_training_instances_that_are_not_finite_are_left_out(brief):
    features, estimates, gaps = torch.randn(2100, 4), torch.rand(2100, 5), torch.rand(60)
    features[3], estimates[7, 0] = torch.inf, torch.nan
    held = torch.randn(60, 4), torch.rand(60, 5), torch.arange(60), gaps
    found = Calibration.fit(*held, (features, estimates))
    assert found.predict(torch.randn(5, 4), "predicted").values.isfinite().all()
    assert found.network is not None
    assert Calibration.fit(*held, (features[:2001], estimates[:2001])).network is None  # two are too many


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        (lambda: torch.rand(1999, 6), "training must have at least 2,000 instances, got 1,999"),
        (list, "training must have at least 2,000 instances, got 0"),
        (lambda: 7, "training must be a tensor, an array or batches of them, got int"),
    ],
)
def test_bad_training_data_is_named(training, sentence):
    vae = gpin.build((6,), "vae", 2, architecture={"width": 8}, seed=0)
    with pytest.raises(gpin.InputError, match=sentence):
        vae.calibrate(torch.rand(60, 6), training=training())


def test_the_network_does_not_depend_on_torchs_default_precision(brief, double):
    vae = gpin.build((6,), "vae", 2, architecture={"width": 8}, seed=0)
    vae.calibrate(torch.rand(60, 6), training=torch.rand(2000, 6))
    assert vae.calibrations[None].network.weight.dtype == torch.float32


def test_the_largest_number_of_training_instances_is_used(monkeypatch):
    vae, seen = gpin.build((6,), "vae", 2, architecture={"width": 8}, seed=0), []
    monkeypatch.setattr(GapNetwork, "fit", lambda features, targets: seen.append(len(features)))
    vae.calibrate(torch.rand(60, 6), training=torch.rand(12_000, 6).split(4999))
    assert seen == [10_000]


@pytest.mark.parametrize("scale", [1.0, 3.0, 10.0, 1e2, 1e6])
def test_the_estimate_does_not_explode_far_from_the_calibration(scale):
    """On data that a bent decoder has never produced, it stays within a factor of ten of the decrement."""
    vae = gpin.build((6,), "vae", 2, architecture={"width": 16}, seed=0).eval()
    x = torch.randn(300, 6)
    vae.prepare(x)
    vae.calibrate(x)
    far = scale * torch.randn(50, 6)
    found = vae.gap(far)
    with torch.no_grad():
        raw = decrement(vae, far, vae.encode(far))
    assert (found.low <= found.values).all()
    assert (found.values <= found.high).all()
    assert (found.values < 10 * raw + 10).all()
    large = raw > 100
    assert (found.values[large] > raw[large] / 10).all()


class Opaque(torch.autograd.Function):
    """The identity, which torch can differentiate backwards only."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class OpaqueDecoder(torch.nn.Linear):
    def forward(self, z):
        return Opaque.apply(super().forward(z))


def test_a_model_that_cannot_be_calibrated_is_trained_all_the_same():
    vae, said = gpin.build((6,), "vae", 2, decoder=OpaqueDecoder(2, 6), seed=0), []
    history = gpin.fit(vae, torch.rand(200, 6), torch.rand(60, 6), epochs=1, progress=False, tell=said.append)
    assert len(history.epochs) == 1
    assert not vae.calibrated
    assert any("is not calibrated: " in sentence and "\n" not in sentence for sentence in said)


def test_the_gap_after_the_methods_own_steps_is_the_calibrated_one():
    vae, x = gpin.build((6,), "natural", 2, architecture={"width": 8}, seed=0).eval(), torch.rand(100, 6)
    vae.prepare(x)
    vae.calibrate(x)
    torch.testing.assert_close(vae.gap(x, steps=1).low, vae.gap(x).low)
    assert vae.gap(x, steps=2).low.isnan().all()


def test_the_gap_leaves_batch_statistics_alone():
    decoder = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 6)
    )
    vae, x = gpin.build((6,), "vae", 2, decoder=decoder, seed=0).train(), torch.rand(20, 6)
    before = decoder[1].running_mean.clone()
    vae.gap(x, "refined", samples=3)
    assert torch.equal(decoder[1].running_mean, before)
    assert decoder.training


def test_calibration_leaves_the_mode_and_the_random_state_alone():
    model, vae = inaccurate()
    x = model.sample(60)
    vae.train()
    state = torch.get_rng_state()
    vae.calibrate(x)
    assert vae.training
    assert vae.calibrated
    assert torch.equal(torch.get_rng_state(), state)


def test_calibrations_for_other_steps_stand_side_by_side():
    model = LinearGaussian.random()
    vae, x = model.vae("natural", known=True).eval(), model.sample(60)
    vae.calibrate(x)
    vae.calibrate(x, steps=0)
    assert not torch.equal(vae.gap(x, "predicted").values, vae.gap(x, "predicted", steps=0).values)
    assert vae.gap(x, steps=2).low.isnan().all()
    assert vae.gap(x, steps=0).low.isfinite().all()
    assert not model.vae("natural").calibrated


# Files and training ----------------------------------------------------------------------------------


@pytest.fixture
def network_trained(brief):
    """A model whose own calibration has a network, and the other one for two steps none."""
    vae = gpin.build((6,), "gp", latent_dim=2, seed=0).eval()
    vae.calibrate(torch.rand(80, 6), training=[torch.rand(2000, 6)])
    vae.calibrate(torch.rand(80, 6), steps=2)
    return vae


@pytest.fixture
def calibrated():
    vae = gpin.build((6,), "gp", latent_dim=2, seed=0).eval()
    vae.calibrate(torch.rand(80, 6))
    vae.calibrate(torch.rand(80, 6), steps=2)
    return vae


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_calibration_is_saved_and_loaded(network_trained, tmp_path, dtype):
    x = torch.rand(5, 6)
    network_trained.save(tmp_path)
    loaded = gpin.load(tmp_path, dtype=dtype)
    assert [loaded.calibrations[steps].network is not None for steps in (None, 2)] == [True, False]
    for how in ("predicted", "estimated"):
        for steps in (None, 2):
            found, expected = loaded.gap(x, how, steps=steps), network_trained.gap(x, how, steps=steps)
            for end in ("values", "low", "high"):
                torch.testing.assert_close(getattr(found, end), getattr(expected, end), rtol=1e-4, atol=1e-5)


def test_the_weights_do_not_depend_on_the_calibration(calibrated):
    assert calibrated.checksum() == gpin.build((6,), "gp", latent_dim=2, seed=0).checksum()


def test_a_model_saved_without_calibration_is_loaded_without(calibrated, tmp_path):
    calibrated.save(tmp_path)
    gpin.build((6,), "gp", latent_dim=2, seed=0).save(tmp_path)  # over the other, whose calibration stays behind
    assert not gpin.load(tmp_path).calibrated


def test_a_calibration_that_is_not_copied_along_is_forgotten_and_a_damaged_one_is_named(calibrated, tmp_path):
    calibrated.save(tmp_path)
    damaged = shutil.copytree(tmp_path, tmp_path / "damaged")
    (tmp_path / "calibration.safetensors").unlink()
    assert not gpin.load(tmp_path).calibrated
    (damaged / "calibration.safetensors").write_bytes(b"other")
    with pytest.raises(gpin.InputError, match=r"calibration.safetensors is damaged .* checksums differ"):
        gpin.load(damaged)


def test_other_weights_need_another_calibration(calibrated):
    calibrated.load_state_dict(calibrated.state_dict())
    assert not calibrated.calibrated


def test_training_calibrates_with_the_validation_data_and_drops_what_was_before(calibrated):
    x, seen = torch.rand(150, 6), torch.rand(60, 6)
    before = calibrated.calibrations
    gpin.fit(calibrated, x, seen, epochs=1, progress=False)
    assert list(calibrated.calibrations) == [None]
    assert calibrated.calibrations[None] is not before[None]
    expected = calibrated.gap(x[:5], "predicted").values
    calibrated.calibrate(seen)
    torch.testing.assert_close(calibrated.gap(x[:5], "predicted").values, expected)
    gpin.fit(calibrated, x, seen, epochs=1, progress=False, calibrate=False)
    assert not calibrated.calibrations
    gpin.fit(calibrated, x, seen[:40], epochs=1, progress=False)  # too few
    assert not calibrated.calibrations


def drawn_twice(x):
    """A loader that yields more instances than its data has."""
    sampler = torch.utils.data.RandomSampler(x, replacement=True, num_samples=2 * len(x))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=200, sampler=sampler)


@pytest.mark.parametrize(
    "loaded",
    [
        lambda x: x,
        lambda x: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x), batch_size=100, shuffle=True),
        drawn_twice,
    ],
)
def test_training_learns_the_predicted_gap_from_its_own_data_too(brief, loaded):
    vae, x, held = gpin.build((6,), "vae", 2, architecture={"width": 8}, seed=0), torch.rand(2200, 6), torch.rand(60, 6)
    gpin.fit(vae, loaded(x), held, epochs=1, progress=False)
    found = vae.gap(x[:5], "predicted").values
    vae.calibrate(held, training=x)
    torch.testing.assert_close(vae.gap(x[:5], "predicted").values, found, rtol=1e-3, atol=1e-3)
    assert vae.calibrations[None].network is not None


def test_training_learns_from_a_loader_that_hides_its_instances(brief):
    def batch(items):
        return torch.stack(items) / 2

    vae, x = gpin.build((6,), "vae", 2, architecture={"width": 8}, seed=0), torch.rand(2200, 6)
    loader = torch.utils.data.DataLoader(x, batch_size=1000, collate_fn=batch)
    gpin.fit(vae, loader, torch.rand(60, 6) / 2, epochs=1, progress=False)
    centre = vae.calibrations[None].network.centre
    vae.calibrate(torch.rand(60, 6) / 2, training=x / 2)
    torch.testing.assert_close(vae.calibrations[None].network.centre, centre)


def test_training_says_why_a_model_cannot_be_calibrated():
    class Noisy(torch.nn.Linear):
        def forward(self, z):
            return super().forward(z) + torch.randn(6)

    vae, said = gpin.build((6,), "vae", latent_dim=2, decoder=Noisy(2, 6)), []
    gpin.fit(vae, torch.rand(100, 6), torch.rand(60, 6), epochs=1, progress=False, tell=said.append)
    assert not vae.calibrated
    assert said[-1].startswith("the gap of this model is not calibrated: the Jacobian of the decoder")


# Bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda vae, x: vae.gap(x, "guessed"), "unknown how 'guessed': choose 'predicted', 'estimated' or 'refined'"),
        (lambda vae, x: vae.gap(x, None), "unknown how None"),
        (lambda vae, x: vae.gap(x, "predicted"), r"only after calibration: call vae.calibrate\(x\) with validation"),
        (lambda vae, x: vae.gap(x, "predicted", steps=3), r"call vae.calibrate\(x, steps=3\)"),
        (lambda vae, x: vae.gap(x, steps=-1), "steps must be a whole number of at least 0, got -1"),
        (lambda vae, x: vae.gap(x, samples=10), "samples applies to how='refined' only"),
        (lambda vae, x: vae.gap(x, "refined", samples=0), "samples must be a whole number of at least 1, got 0"),
        (lambda vae, x: vae.gap(x[:, :3]), r"x must have shape \(batch, 6\)"),
        (lambda vae, x: vae.calibrate(x[:49]), "calibration needs at least 50 instances, got 49"),
        (lambda vae, x: vae.calibrate(x, refined=10), "refined must be a whole number of at least 50, got 10"),
        (lambda vae, x: vae.calibrate(x, steps=1.5), "steps must be a whole number"),
        (lambda vae, x: vae.calibrate(x, samples=0), "samples must be a whole number"),
        (lambda vae, x: vae.calibrate(x, seed=-1), "seed must be a whole number"),
    ],
)
def test_bad_input_is_named_in_one_line(call, said):
    vae = gpin.build((6,), "vae", latent_dim=2, seed=0).eval()
    with pytest.raises(gpin.InputError, match=said) as caught:
        call(vae, torch.rand(60, 6))
    assert "\n" not in str(caught.value)
    assert not vae.calibrated


def test_a_model_that_returns_nan_cannot_be_calibrated():
    features = torch.randn(60, 2)
    with pytest.raises(gpin.InputError, match="cannot be calibrated: the model returns values that are not finite"):
        GapRegression.fit(features, torch.full((60,), torch.nan), torch.arange(60), LINEAR)


def test_a_calibration_of_an_older_version_uses_its_three_features():
    vae, x = gpin.build((6,), "vae", 2, seed=0).eval(), torch.rand(80, 6)
    q = vae.encode(x)
    features, gaps = estimate_features(vae, x, q), torch.rand(80)
    encoder = torch.rand(80, 4)
    old = Calibration.fit(encoder, features[:, :3], torch.arange(80), gaps)
    found = old.estimate(features, encoder, "estimated").values
    assert torch.equal(found, old.estimate(features[:, :3], encoder, "estimated").values)
    new = Calibration.fit(encoder, features, torch.arange(80), gaps)
    assert not torch.equal(new.estimate(features, encoder, "estimated").values, found)


def test_a_calibration_of_an_older_version_has_a_linear_kernel_and_no_output_of_its_network(brief):
    encoder, features, gaps = torch.randn(2100, 4), torch.rand(2100, 5), torch.rand(60)
    held = encoder[:60], features[:60], torch.arange(60), gaps
    network = Calibration.fit(*held, (encoder, features)).network
    linear = GapRegression.fit(features[:60], compressed(gaps.double()), torch.arange(60), LINEAR)
    old = Calibration(Calibration.fit(*held).predicted, linear, network)
    inside = features[:60].clamp(features[:60].amin(0), features[:60].amax(0))
    found = old.estimate(torch.cat([features[:60], torch.rand(60, 3)], -1), encoder[:60], "estimated")
    torch.testing.assert_close(found.values, expanded(linear.mean_and_deviation(inside)[0]))


@pytest.mark.parametrize("method", ["natural", "vae"])
def test_the_estimate_knows_what_the_last_step_has_shown(method, double):
    vae, x = gpin.build((6,), method, 2, architecture={"width": 8}, seed=0).eval(), torch.rand(9, 6)
    vae.prepare(x)
    assert estimate_features(vae, x, vae.encode(x, steps=0)).shape == (9, 5)
    before, after = vae.encode(x, steps=2), vae.encode(x, steps=3)
    assert (after.ascent.steps == 3).any()
    moved = after.ascent.steps == 3
    features = estimate_features(vae, x, after)
    torch.testing.assert_close(features[:, 0], compressed(decrement(vae, x, after)))
    torch.testing.assert_close(features[moved, 5], compressed(decrement(vae, x, before))[moved])
    gain = vae.log_joint(x, after.mean) - vae.log_joint(x, before.mean)
    torch.testing.assert_close(features[moved, 6], compressed(gain)[moved])
    gradients = [log_joint_and_gradient(vae, x, q.mean)[1] for q in (before, after)]
    product = (gradients[0] * after.covariance_times(gradients[1])).sum(-1)
    torch.testing.assert_close(features[moved, 7], compressed(product)[moved])


@pytest.mark.slow
def test_the_output_of_the_network_is_a_feature_of_the_estimate():
    """The gap depends on one feature of the decoder's gradient and one of the encoder; training instances, of which
    only the estimates are known, show how the encoder's feature goes with the first."""
    encoder, features = torch.randn(2400, 4), torch.randn(2400, 5)
    features[:, 1] = torch.sin(2 * encoder[:, 0])
    gaps = (1 + features[:, 1]) * torch.exp(0.2 * torch.randn(2400))
    features[2200:, 1] = 0.0  # new instances, for which the gradient does not show it
    found = Calibration.fit(
        encoder[:200], features[:200], torch.arange(200), gaps[:200], (encoder[200:2200], features[200:2200])
    )
    torch.testing.assert_close(
        found.estimated.features[:, 5].double(), found.network(encoder[:200]), rtol=1e-5, atol=1e-5
    )
    new = encoder[2200:], features[2200:]
    estimated = found.estimate(new[1], new[0], "estimated").values
    assert spearmanr(estimated, gaps[2200:]).statistic > 0.6
    assert not torch.allclose(estimated, found.estimate(new[1], torch.zeros_like(new[0]), "estimated").values)


def test_instances_that_were_not_refined_may_be_harder_than_all_that_were():
    """The regression must not extrapolate when it stands in for their gaps."""
    gaps = torch.rand(400, dtype=torch.float64) * 5
    gaps[300:] = 1000.0 + torch.arange(100)
    estimates = torch.cat([compressed(gaps).unsqueeze(-1), torch.randn(400, 4)], -1)
    found = Calibration.fit(torch.randn(400, 3), estimates, torch.arange(300), gaps[:300])
    torch.testing.assert_close(expanded(found.predicted.targets[300:]), gaps[300:], rtol=0.2, atol=0)


def test_the_draws_of_a_method_are_those_of_its_estimate(double):
    vae, x = gpin.build((6,), "natural", 2, draws=4, seed=0).eval(), torch.rand(9, 6)
    q = vae.encode(x, steps=1)
    features = estimate_features(vae, x, q, 4)
    torch.testing.assert_close(features[:, 0], compressed(decrement(vae, x, q, 4)))
    assert not torch.allclose(features[:, 0], estimate_features(vae, x, q)[:, 0])
    assert torch.equal(vae._gap_features(x, 1)[1], features)


class Fragile(torch.nn.Linear):
    """A decoder whose values are not finite far from zero."""

    def forward(self, z):
        return super().forward(torch.where(z.abs() > 50, torch.nan, z))


def test_a_batch_for_which_the_decoder_fails_has_no_gap_but_no_error_either():
    vae = gpin.build((6,), "natural", 2, decoder=Fragile(2, 6), seed=0).eval()
    vae.prepare(torch.rand(60, 6))
    vae.calibrate(torch.rand(60, 6))
    far = 1e6 * torch.ones(2, 6)
    assert vae.encode(far, steps=0).mean.abs().max() > 50
    assert vae.gap(far).values.isnan().all()
    both = vae.gap(torch.cat([far, torch.rand(3, 6)])).values
    assert both.isnan().tolist() == [True, True, False, False, False]
