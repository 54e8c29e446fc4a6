"""Natural-gradient steps: exact on a linear model, never downhill, and safe at points where the decoder fails."""

import itertools

import banana
import numpy as np
import pytest
import torch
from linear_gaussian import LinearGaussian
from torch import nn

import gpin
from gpin._core.errors import InputError
from gpin.distributions import CholeskyNormal, DiagonalNormal, LowRankNormal
from gpin.evaluation.gaps import decrement
from gpin.generative import log_joint_and_gradient
from gpin.likelihoods import Bernoulli
from gpin.refinement import Natural, NaturalConfig, natural
from gpin.refinement.natural import newton_decrement, symmetric_points


@pytest.fixture
def exact(double):
    """A correlated linear-Gaussian model, data, and a posterior with the exact covariance around a wrong mean."""
    truth = LinearGaussian(torch.randn(8, 3), torch.randn(8), 0.3)
    x = truth.sample(6)
    posterior = truth.posterior(x)
    q = CholeskyNormal(posterior.mean + torch.randn(6, 3), posterior.scale_tril.expand(6, 3, 3))
    return truth.vae("vae", known=True).eval(), x, q, posterior


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_one_step_with_the_exact_covariance_lands_on_the_posterior(exact, mode):
    vae, x, q, posterior = exact
    with mode():
        found = Natural()(x, q, vae)
    torch.testing.assert_close(found.mean, posterior.mean)
    torch.testing.assert_close(found.covariance_matrix, posterior.covariance_matrix)


def test_the_decrement_is_the_exact_gap(exact):
    """KL(N(m, Σ) ‖ N(m*, Σ)) = ½ (m − m*)ᵀ Σ⁻¹ (m − m*)."""
    vae, x, q, posterior = exact
    start = torch.distributions.MultivariateNormal(q.mean, posterior.covariance_matrix)
    gap = torch.distributions.kl_divergence(start, posterior)
    _, gradient = log_joint_and_gradient(vae, x, q.mean)
    torch.testing.assert_close(newton_decrement(gradient, q.covariance_times(gradient)), gap)
    still = Natural(NaturalConfig(steps=0), tolerance=1.0)(x, q, vae)
    torch.testing.assert_close(still.ascent.remaining_gap, gap)


def test_only_instances_above_the_tolerance_move(exact):
    vae, x, q, posterior = exact
    mean = q.mean.clone()
    mean[::2] = posterior.mean[::2] + 1e-3
    q = q.with_mean(mean)
    found = Natural(NaturalConfig(steps=9), tolerance=0.01)(x, q, vae)
    assert found.ascent.steps.tolist() == [0, 1, 0, 1, 0, 1]
    assert torch.equal(found.mean[::2], mean[::2])
    torch.testing.assert_close(found.mean[1::2], posterior.mean[1::2])
    assert (found.ascent.remaining_gap <= 0.01).all()
    assert found.ascent.remaining_gap[1::2].max() < 1e-12


def stepwise(vae, x, q, options, tolerance=None):
    """The mean after the steps, with autograd and for one instance at a time. Also returns what was accepted in each
    step, the number of its candidate or None, and the shares of momentum."""
    offsets = torch.zeros(1, 3)
    if options.draws:
        offsets = symmetric_points(options.draws, 3) @ torch.linalg.cholesky(q.covariance_matrix[0]).T
    mean, before, decrement_before, accepted, shares = q.mean[0], q.mean[0], None, [], []

    def objective(z):
        return torch.stack([vae.log_joint(x, (z + offset).unsqueeze(0)).squeeze() for offset in offsets]).mean()

    for step in range(options.steps):
        leaf = mean.clone().requires_grad_()
        value = objective(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
        direction = q.covariance_matrix[0] @ gradient
        decrement = 0.5 * gradient @ direction
        if tolerance is not None and decrement <= tolerance:
            break
        candidates = [options.step_size * options.backtracking**k * direction for k in range(options.trials)]
        if options.accelerated and step:
            shares.append(min(step / (step + 3), float(decrement / decrement_before) ** 0.5))
            candidates.insert(0, options.step_size * direction + shares[-1] * (mean - before))
        wanted = [k for k, change in enumerate(candidates) if not options.check or objective(mean + change) >= value]
        accepted.append(wanted[0] if wanted else None)
        if not wanted:
            break
        before, mean, decrement_before = mean, mean + candidates[wanted[0]], decrement
    return mean, accepted, shares


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [({}, None), ({"accelerated": False}, None), ({"check": False}, None), ({"draws": 4}, None), ({}, 0.05)],
    ids=["accelerated", "plain", "unchecked", "draws", "tolerance"],
)
def test_steps_follow_the_formula_on_a_nonlinear_decoder(double, changes, tolerance):
    vae = gpin.build((5,), "vae", 3, architecture={"width": 8}, seed=0).eval()
    count = 60
    x, factor = torch.rand(count, 5), torch.randn(count, 3, 3).tril(-1) + 0.5 * torch.eye(3)
    factor = torch.logspace(-0.5, 0.5 if "check" in changes else 1, count)[:, None, None] * factor  # good to too long
    q = CholeskyNormal(torch.randn(count, 3), factor)
    options = NaturalConfig(**{"steps": 4, "step_size": 0.8, "backtracking": 0.5, "trials": 3, **changes})
    with torch.no_grad():
        found = Natural(options, tolerance)(x, q, vae)
    seen, shares = [], []
    for i in range(count):
        one = CholeskyNormal(q.mean[i : i + 1], factor[i : i + 1])
        mean, accepted, used = stepwise(vae, x[i : i + 1], one, options, tolerance)
        torch.testing.assert_close(found.mean[i], mean)
        assert found.ascent.steps[i] == sum(k is not None for k in accepted)
        seen.append(accepted)
        shares += used
    if options.check:  # otherwise the test would say little: some instances are stuck, and some steps are shortened
        assert any(None in one for one in seen)
        assert any(k and later == 0 for one in seen for k, later in itertools.pairwise(one)) or not options.accelerated
    assert not options.accelerated or (min(shares) < 0.2 and max(shares) == 0.5)  # both bounds of β were reached
    if tolerance is None:
        torch.testing.assert_close(Natural(options)(x, q, vae).mean.detach(), found.mean)
    else:
        assert len({len(one) for one in seen}) > 2  # instances stop after different numbers of steps


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("accelerated", [False, True])
def test_the_pull_of_differentiable_steps_is_how_far_they_went_in_the_metric(double, accelerated, check, fails):
    """Σ · pull = m_T − m_0, also for an instance that a value which is not finite sends back."""
    vae = gpin.build((5,), "vae", 3, architecture={"width": 8}, seed=0).eval()
    x = torch.rand(7, 5)
    factor = torch.logspace(-0.5, 1, 7)[:, None, None] * (torch.randn(7, 3, 3).tril(-1) + 0.5 * torch.eye(3))
    q = CholeskyNormal(torch.randn(7, 3), factor)
    reached = []

    def failing(module, inputs, output):
        far = inputs[0].norm(dim=-1, keepdim=True) > 6
        reached.append(int(far.sum()))
        return torch.where(far, torch.nan, output)

    if fails:
        vae.decoder.register_forward_hook(failing)
    steps = Natural(NaturalConfig(steps=3, accelerated=accelerated)).differentiable_steps(x, q, vae, check=check)
    torch.testing.assert_close(q.covariance_times(steps.pull), (steps.mean - q.mean).detach())
    assert len(steps.gradients) == 3
    assert (int(steps.rejected) > 0) == check
    assert sum(reached) > 0 or not fails


def test_a_rejected_share_of_momentum_counts_as_a_rejected_step(double):
    """Here the plain second step is accepted at full size, but not the accelerated one."""
    vae = gpin.build((5,), "vae", 3, architecture={"width": 8}, seed=0).eval()
    x, means, factors = torch.rand(200, 5), torch.randn(200, 3), (0.7 * torch.eye(3)).expand(200, 3, 3)
    options = NaturalConfig(steps=2)
    only = [
        i
        for i in range(200)
        if stepwise(vae, x[i : i + 1], CholeskyNormal(means[i : i + 1], factors[i : i + 1]), options)[1] == [0, 1]
    ]
    assert only
    found = Natural(options).differentiable_steps(x[only], CholeskyNormal(means[only], factors[only]), vae)
    assert int(found.rejected) == len(only)


@pytest.mark.parametrize("check", [True, False])
def test_momentum_does_not_overshoot_an_exact_posterior(exact, check):
    vae, x, q, posterior = exact
    with torch.no_grad():
        found = Natural(NaturalConfig(steps=4, check=check))(x, q, vae)
    torch.testing.assert_close(found.mean, posterior.mean)


def test_momentum_helps_where_the_covariance_is_wrong(double):
    """A quadratic log p with curvature 1 and covariances from 0.1 to 1.9: plain steps are slow, or oscillate."""
    truth = LinearGaussian(torch.eye(8, 6), torch.zeros(8), 1.0)
    vae, x = truth.vae("vae", known=True).eval(), truth.sample(20)
    posterior = truth.posterior(x)
    scale = (torch.linspace(0.1, 1.9, 6) * posterior.covariance_matrix.diagonal(dim1=-2, dim2=-1)).sqrt()
    q = DiagonalNormal(posterior.mean + torch.randn(20, 6), scale.expand(20, 6))
    with torch.no_grad():
        top = vae.log_joint(x, posterior.mean)
        left = {
            (accelerated, k): (
                top - vae.log_joint(x, Natural(NaturalConfig(steps=k, accelerated=accelerated))(x, q, vae).mean)
            ).mean()
            for accelerated in (True, False)
            for k in (1, 4, 8)
        }
    assert left[True, 1] == left[False, 1]
    assert left[True, 4] < 0.8 * left[False, 4]
    assert left[True, 8] < 0.5 * left[False, 8]


def test_steps_never_lower_log_p_on_the_banana():
    vae = banana.train("vae", 8).eval()
    x = banana.TEST
    with torch.no_grad():
        q = vae.encode(x)
        wide = DiagonalNormal(q.mean, 3 * q.stddev)  # steps that are much too long
        values = [vae.log_joint(x, Natural(NaturalConfig(steps=k))(x, wide, vae).mean) for k in range(8)]
    for before, after in itertools.pairwise(values):
        assert (after >= before).all()
    assert (values[-1] > values[0]).any()


class Fragile(nn.Module):
    """A linear decoder that returns NaN for the instances whose first latent coordinate exceeds one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, z):
        return torch.where(z[..., :1] > 1, torch.nan, self.layer(z))


def test_an_instance_keeps_its_last_good_answer_where_the_decoder_returns_nan():
    decoder = Fragile()
    with torch.no_grad():
        decoder.layer.weight.copy_(torch.eye(4)[:, :2])
        decoder.layer.bias.zero_()
    vae = gpin.build((4,), "vae", 2, decoder=decoder, likelihood={"initial_variance": 0.01}, seed=0).eval()
    x = torch.tensor([[5.0, 0.5, 0, 0], [0.5, 0.5, 0, 0]])  # the mode of the first is where the decoder fails
    q = DiagonalNormal(torch.zeros(2, 2), torch.full((2, 2), 0.1))
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            found = Natural(NaturalConfig(steps=5))(x, q, vae)
        assert found.mean.isfinite().all()
        assert (vae.log_joint(x, found.mean) >= vae.log_joint(x, q.mean)).all()
        torch.testing.assert_close(found.mean[1], torch.tensor([0.495, 0.495]), rtol=0, atol=0.01)
    loose = Natural(NaturalConfig(steps=5), tolerance=0.1)(x, q, vae)
    assert loose.mean.isfinite().all()


class Kinked(nn.Module):
    """A decoder with finite values whose gradient is not finite at z = 0."""

    def forward(self, z):
        return z[..., :1].abs().sqrt().expand(*z.shape[:-1], 4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_an_instance_stays_where_the_gradient_is_not_finite(mode):
    vae = gpin.build((4,), "vae", 2, decoder=Kinked(), seed=0).eval()
    q = DiagonalNormal(torch.zeros(3, 2, requires_grad=True), torch.ones(3, 2))
    with mode():
        found = Natural(NaturalConfig(steps=2))(torch.rand(3, 4), q, vae)
    assert torch.equal(found.mean, torch.zeros(3, 2))
    if mode is torch.enable_grad:
        first = Natural().differentiable_steps(torch.rand(3, 4), q, vae, second_order=False).mean
        first.sum().backward()
        assert torch.equal(q.mean.grad, torch.ones(3, 2))


def test_a_decoder_without_gradients_is_refused_in_a_sentence():
    class Constant(nn.Module):
        def forward(self, z):
            return torch.zeros(*z.shape[:-1], 4)

    vae = gpin.build((4,), "vae", 2, decoder=Constant(), seed=0).eval()
    with pytest.raises(InputError, match="must be differentiable functions of z"):
        vae.encode(torch.rand(3, 4), steps=1)


def test_batch_normalisation_and_dropout_do_not_mix_instances_in_training():
    """In training mode, the step of an instance depends on neither the batch nor noise, and statistics stay."""
    decoder = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))
    vae = gpin.build((4,), "natural", 2, decoder=decoder, seed=0).train()
    x, q = torch.rand(6, 4), DiagonalNormal(torch.randn(6, 2), torch.full((6, 2), 0.3))
    before = decoder[1].running_mean.clone()
    together = Natural()(x, q, vae).mean
    alone = Natural()(x[:1], DiagonalNormal(q.mean[:1], q.stddev[:1]), vae).mean
    torch.testing.assert_close(together[:1], alone)
    assert torch.equal(decoder[1].running_mean, before)
    assert decoder.training
    vae.loss(x).backward()  # which updates the statistics between the steps and the backward pass
    assert not torch.equal(decoder[1].running_mean, before)
    assert all(p.grad.isfinite().all() for p in vae.parameters() if p.grad is not None)


def test_a_step_with_draws_is_exact_for_a_gaussian_posterior(exact):
    vae, x, q, posterior = exact
    for normal in (q, LowRankNormal(q.mean, q.stddev, torch.randn(6, 3, 2)), DiagonalNormal(q.mean, q.stddev)):
        at_mean, averaged = (Natural(NaturalConfig(draws=draws))(x, normal, vae) for draws in (0, 6))
        torch.testing.assert_close(averaged.mean, at_mean.mean)
    torch.testing.assert_close(Natural(NaturalConfig(draws=2))(x, q, vae).mean, posterior.mean)


def skewed():
    """A Bernoulli model with one latent dimension, whose posterior is skewed, and an encoder's answer for two x."""
    vae = gpin.VAE(
        inference=gpin.inference.METHODS["vae"](lambda: _Features(), 1),
        decoder=nn.Linear(1, 12, bias=False),
        likelihood=Bernoulli((12,)),
    ).eval()
    nn.init.constant_(vae.decoder.weight, 1.5)
    x = torch.ones(2, 12)
    x[1, 0] = 0
    return vae, x, DiagonalNormal(torch.full((2, 1), 0.5), torch.full((2, 1), 0.6))


class _Features(nn.Module):
    out_features = 12

    def forward(self, x):
        return x


def test_steps_with_draws_lead_to_the_mean_of_the_highest_elbo(double):
    """Against the maximum over a grid of E_q[log p(x, z)] by Gauss–Hermite quadrature, with the covariance of q."""
    vae, x, q = skewed()
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    offsets = torch.from_numpy(points)[:, None, None] * q.stddev
    grid = torch.linspace(-1, 4, 5001)
    with torch.no_grad():
        z = grid[:, None, None, None] + offsets
        elbo = (torch.from_numpy(weights / weights.sum())[:, None] * vae.log_joint(x, z)).sum(1)
        found = Natural(NaturalConfig(steps=60, draws=512))(x, q, vae)
        mode = Natural(NaturalConfig(steps=60))(x, q, vae)
    best = grid[elbo.argmax(0)].unsqueeze(-1)
    # 512 points of a Sobol sequence average to about 1e-3, and the curvature is about one.
    torch.testing.assert_close(found.mean, best, rtol=0, atol=5e-3)
    assert ((mode.mean - best).abs() > 0.05).all()


def test_the_draws_of_an_instance_do_not_depend_on_its_batch(double):
    vae, x, q = skewed()
    with torch.no_grad():
        both = Natural(NaturalConfig(steps=3, draws=8))(x, q, vae).mean
        alone = Natural(NaturalConfig(steps=3, draws=8))(x[1:], DiagonalNormal(q.mean[1:], q.stddev[1:]), vae).mean
    torch.testing.assert_close(both[1:], alone)


def test_unchecked_steps_take_no_further_pass_and_stay_where_the_decoder_fails(exact):
    vae, x, q, posterior = exact
    decode, passes = vae.decoder.forward, []

    def counted(z):
        passes.append(len(z))
        return decode(z)

    vae.decoder.forward = counted
    with torch.no_grad():
        found = Natural(NaturalConfig(steps=1, check=False))(x, q, vae)
        assert len(passes) == 1
        torch.testing.assert_close(found.mean, posterior.mean)
        assert found.ascent.steps.tolist() == [1] * 6
        far = CholeskyNormal(q.mean, 100 * q.factor)
        moved = Natural(NaturalConfig(steps=1, check=False))(x, far, vae).mean
        assert (vae.log_joint(x, moved) < vae.log_joint(x, q.mean)).all()  # much too far, and not noticed
    start = q.mean
    vae.decoder.forward = lambda z: torch.where(
        torch.cdist(z, start).min(-1, keepdim=True).values < 10, decode(z), torch.nan
    )
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            near = Natural(NaturalConfig(steps=2, check=False, trials=1))(x, q, vae).mean
            torch.testing.assert_close(near, posterior.mean)
            assert torch.equal(Natural(NaturalConfig(steps=2, check=False, trials=1))(x, far, vae).mean, start)


def test_many_draws_are_decoded_in_parts(double, monkeypatch):
    vae, x, q = skewed()
    whole = Natural(NaturalConfig(steps=2, draws=64))
    with torch.no_grad():
        expected = whole(x, q, vae).mean
        monkeypatch.setattr(natural, "PAIRS", 10)
        torch.testing.assert_close(whole(x, q, vae).mean, expected)


def test_the_estimated_gap_of_a_method_with_draws_is_zero_where_its_steps_end(double):
    x = skewed()[1]
    plain, averaged = (gpin.build((12,), "natural", 1, likelihood="bernoulli", draws=n, seed=0).eval() for n in (0, 64))
    for vae in (plain, averaged):
        vae.gap(x, steps=0)
        assert vae.gap(x, steps=60).values.abs().max() < 1e-3
    q = averaged.encode(x, steps=60)
    assert (decrement(averaged, x, q) > decrement(averaged, x, q, 64)).all()


def test_encode_takes_plain_steps(double):
    vae, x = gpin.build((5,), "natural", 2, accelerated=False, seed=0).eval(), torch.rand(9, 5)
    assert torch.equal(vae.encode(x, steps=4).mean, vae.encode(x, steps=4, accelerated=False).mean)
    assert not torch.equal(vae.encode(x, steps=4).mean, vae.encode(x, steps=4, accelerated=True).mean)
    with pytest.raises(InputError, match="accelerated needs natural-gradient steps"):
        vae.encode(x, accelerated=False)


def test_encode_takes_draws(double):
    vae, x, _ = skewed()
    assert not torch.allclose(vae.encode(x, steps=4, draws=8).mean, vae.encode(x, steps=4).mean)
    torch.testing.assert_close(vae.encode(x, steps=4, draws=0).mean, vae.encode(x, steps=4).mean)
    assert vae.encode(x, tolerance=0.1, draws=8).ascent.remaining_gap.max() <= 0.1
    for name, nonsense in itertools.product(("check", "accelerated"), ("no", 0)):
        with pytest.raises(InputError, match=f"{name} must be True or False"):
            vae.encode(x, steps=1, **{name: nonsense})
    for arguments in ({"draws": 8}, {"draws": 3, "steps": 1}, {"draws": -2, "steps": 1}, {"draws": 10**6, "steps": 1}):
        with pytest.raises(InputError, match="draws"):
            vae.encode(x, **arguments)
    with pytest.raises(InputError, match="check needs natural-gradient steps"):
        vae.encode(x, check=False)
    with pytest.raises(InputError, match="draws cannot be combined with calibrated=True"):
        vae.encode(x, steps=1, draws=2, calibrated=True)
    natural = gpin.build((5,), "natural", 2, draws=4).eval()
    x = torch.rand(3, 5)
    assert torch.equal(natural.encode(x).mean, natural.encode(x, steps=1, draws=4).mean)
    assert "draws" not in gpin.build((5,), "natural", 2).config.model_dump(mode="json")["options"]
