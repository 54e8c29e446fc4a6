"""Quasi-Newton refinement against dense BFGS, exact posteriors, and what the search promises."""

import banana
import pytest
import torch
from linear_gaussian import LinearGaussian
from pydantic import ValidationError
from torch import nn
from torch.distributions import MultivariateNormal

import gpin
from gpin.distributions import CholeskyNormal, DiagonalNormal, PrecisionNormal
from gpin.refinement import GaussNewton, GaussNewtonConfig, QuasiNewton, QuasiNewtonConfig, gauss_newton, quasi_newton
from gpin.refinement.quasi_newton import InverseHessian


def refiner(leading_steps=0, **options):
    """Without Gauss–Newton steps at the start, so that the quasi-Newton steps have something to do."""
    return QuasiNewton(QuasiNewtonConfig(leading_steps=leading_steps, **options))


def linear_model(count=12, latent_dim=4):
    truth = LinearGaussian.random(size=8, latent_dim=latent_dim)
    return truth, truth.vae("vae", known=True).eval(), truth.sample(count)


class Curved(nn.Module):
    """A smooth decoder whose posteriors are far from Gaussian; not a number, or infinite, where z₁ exceeds a limit."""

    def __init__(self, size, latent_dim, limit=torch.inf, beyond=torch.nan):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(latent_dim, 16), nn.Tanh(), nn.Linear(16, size))
        self.limit, self.beyond = limit, beyond
        with torch.no_grad():
            for parameter in self.parameters():
                parameter *= 3

    def forward(self, z):
        return torch.where(z[..., :1] > self.limit, self.beyond, self.layers(z))


def curved_model(count=20, **options):
    vae = gpin.build((6,), "vae", 3, architecture={"width": 8}, seed=0).eval()
    vae.decoder = Curved(6, 3, **options)
    return vae, torch.randn(count, 6)


# The curvature ------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [1, 3, 10])
def test_the_inverse_hessian_is_that_of_dense_bfgs(memory, double):
    """H ← (I − ρ s yᵀ) H (I − ρ y sᵀ) + ρ s sᵀ over the last pairs with sᵀy > 0 of each instance, ρ = 1/sᵀy."""
    count, d = 5, 4
    q = CholeskyNormal(torch.zeros(count, d), torch.eye(d) + torch.randn(count, d, d).tril(-1))
    estimate, pairs = InverseHessian(q, memory), [[] for _ in range(count)]
    for _ in range(7):
        rows = torch.randperm(count)[:3]
        steps, changes = torch.randn(2, 3, d)
        estimate.update(steps, changes, rows)
        for row, s, y in zip(rows.tolist(), steps, changes, strict=True):
            if s @ y > 0:
                pairs[row].append((s, y))
    assert {len(kept) for kept in pairs} != {7}  # some pairs were dropped
    rows, vectors = torch.tensor([4, 0, 2]), torch.randn(3, d)
    found = estimate.times(vectors, rows)
    for row, vector, product in zip(rows.tolist(), vectors, found, strict=True):
        dense = q.covariance_matrix[row]
        for s, y in pairs[row][-memory:]:
            left = torch.eye(d) - torch.outer(s, y) / (s @ y)
            dense = left @ dense @ left.T + torch.outer(s, s) / (s @ y)
        torch.testing.assert_close(product, dense @ vector)


# Exact posteriors ---------------------------------------------------------------------------------


def test_gradients_alone_find_the_exact_posterior_of_a_linear_model(double):
    truth, vae, x = linear_model()
    q = refiner(gradients=60, steps=0, tolerance=1e-20)(x, vae.encode(x), vae)
    exact = truth.posterior(x)
    torch.testing.assert_close(q.mean, exact.mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(q.covariance_matrix, exact.covariance_matrix.expand_as(q.covariance_matrix))


def test_one_gradient_suffices_where_the_covariance_is_right(double):
    truth, vae, x = linear_model()
    exact = truth.posterior(x)
    start = CholeskyNormal(torch.randn(len(x), 4), exact.scale_tril.expand(len(x), 4, 4))
    torch.testing.assert_close(refiner(gradients=1, steps=0)(x, start, vae).mean, exact.mean)


def test_the_last_linearisation_also_takes_its_step(double, monkeypatch):
    """With the default tolerance the mode of a linear model is exact, at the price of one linearisation each."""
    truth, vae, x = linear_model()
    counts, linearise = [], gauss_newton.linearise
    for module in (gauss_newton, quasi_newton):
        monkeypatch.setattr(module, "linearise", lambda model, x, z: counts.append(len(x)) or linearise(model, x, z))
    for leading in (0, 1):
        counts.clear()
        q = refiner(leading)(x, vae.encode(x), vae)
        torch.testing.assert_close(q.mean, truth.posterior(x).mean)
        assert counts == [len(x)] * (1 + leading)


# The search ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0], ids=["narrow", "right", "far too wide"])
def test_more_gradients_never_lower_the_joint_of_a_banana(spread, double):
    """From anywhere, with a first covariance that is good or bad."""
    vae, x = banana.build("vae"), banana.draw(60)
    q = DiagonalNormal(2 * torch.randn(60, 2), spread * torch.ones(60, 2))
    values = [vae.log_joint(x, q.mean)]
    for gradients in (1, 2, 4, 8, 16, 32):
        values.append(vae.log_joint(x, refiner(gradients=gradients, steps=0, tolerance=1e-6)(x, q, vae).mean))
        assert (values[-1] >= values[-2] - 1e-12).all()
    assert (values[-1] > values[0]).float().mean() > 0.9
    z = refiner(tolerance=1e-14)(x, q, vae).mean.requires_grad_()
    (gradient,) = torch.autograd.grad(vae.log_joint(x, z).sum(), z)
    assert (vae.log_joint(x, z) >= values[-1] - 1e-12).all()
    assert gradient.norm(dim=-1).median() < 1e-4


@pytest.mark.parametrize("beyond", [torch.nan, torch.inf, -torch.inf])
def test_a_trial_point_that_is_not_finite_is_rejected(beyond, double):
    vae, x = curved_model(limit=0.3, beyond=beyond)
    q = DiagonalNormal(-torch.rand(20, 3), torch.ones(20, 3))
    tried = q.mean + q.covariance_times(gradients_of(vae, x, q.mean))
    assert (tried[:, 0] > 0.3).any()  # so the first trial of some instances is not finite
    for options in ({}, {"leading_steps": 1}, {"steps": 0}, {"gradients": 0}):
        refined = refiner(**options)(x, q, vae)
        assert (refined.mean[:, 0] <= 0.3).all()
        assert refined.factor.isfinite().all()
        assert (vae.log_joint(x, refined.mean) >= vae.log_joint(x, q.mean)).all()
    assert (refined.mean != q.mean).any(-1).float().mean() > 0.9


def test_an_infinite_density_is_no_improvement(double, monkeypatch):
    vae, x = curved_model()
    q, log_prior = DiagonalNormal(-torch.rand(20, 3), torch.ones(20, 3)), vae.log_prior
    monkeypatch.setattr(vae, "log_prior", lambda z: torch.where(z[..., 0] > 0.3, torch.inf, log_prior(z)))
    tried = q.mean + q.covariance_times(gradients_of(vae, x, q.mean))
    assert vae.log_joint(x, tried).isinf().any()
    for options in ({}, {"leading_steps": 1}, {"gradients": 0}):
        assert vae.log_joint(x, refiner(**options)(x, q, vae).mean).isfinite().all()


def gradients_of(vae, x, z):
    z = z.detach().clone().requires_grad_()
    return torch.autograd.grad(vae.log_joint(x, z).sum(), z)[0]


@pytest.mark.parametrize("options", [{}, {"leading_steps": 1}, {"gradients": 5, "steps": 1}, {"gradients": 0}])
def test_instances_do_not_influence_each_other(options, double):
    vae, x = curved_model()
    q = vae.encode(x)
    whole = refiner(**options)(x, q, vae)
    for rows in (slice(0, 1), slice(5, 12), slice(19, 20)):
        part = refiner(**options)(x[rows], DiagonalNormal(q.mean[rows], q.stddev[rows]), vae)
        torch.testing.assert_close(part.mean, whole.mean[rows])
        torch.testing.assert_close(part.factor, whole.factor[rows])


def test_without_gradients_it_is_gauss_newton_and_without_steps_the_curvature_at_the_mean(double):
    vae, x = curved_model()
    q = vae.encode(x)
    newton = GaussNewton(GaussNewtonConfig(steps=3, tolerance=0.1))(x, q, vae)
    torch.testing.assert_close(refiner(gradients=0, steps=3)(x, q, vae).mean, newton.mean)
    still = refiner(gradients=0, steps=0)(x, q, vae)
    assert torch.equal(still.mean, q.mean)
    torch.testing.assert_close(still.factor, gauss_newton.linearise(vae, x, q.mean)[0])


def test_the_covariance_belongs_to_the_mean_if_steps_run_out(double):
    vae, x = curved_model()
    for options in ({"gradients": 3, "steps": 0}, {"gradients": 2, "steps": 1, "tolerance": 1e-12}):
        q = refiner(**options)(x, vae.encode(x), vae)
        torch.testing.assert_close(q.factor, gauss_newton.linearise(vae, x, q.mean)[0])


def test_only_instances_that_still_move_are_computed(double, monkeypatch):
    vae, x = curved_model()
    exact = refiner(tolerance=1e-14, gradients=500)(x[:15], DiagonalNormal(torch.zeros(15, 3), torch.ones(15, 3)), vae)
    start = torch.cat([exact.mean, torch.randn(5, 3)])
    counts, evaluate = [], quasi_newton.log_joint_and_gradient

    def counted(model, x, z):
        counts.append(len(x))
        return evaluate(model, x, z)

    monkeypatch.setattr(quasi_newton, "log_joint_and_gradient", counted)
    refiner(gradients=9)(x, DiagonalNormal(start, torch.full((20, 3), 0.1)), vae)
    assert counts[0] == 20
    assert len(counts) <= 10
    assert max(counts[1:]) <= 5
    assert counts[1:] == sorted(counts[1:], reverse=True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_parameters_get_no_gradients_and_keep_their_settings(mode):
    vae, x = curved_model()
    vae.train()
    vae.decoder.layers[0].weight.requires_grad_(False)
    settings = [p.requires_grad for p in vae.parameters()]
    with mode():
        q = vae.refine(x)
    assert not q.mean.requires_grad
    assert [p.requires_grad for p in vae.parameters()] == settings
    assert all(p.grad is None for p in vae.parameters())
    assert vae.decoder.training


def test_a_leading_step_is_gauss_newtons_and_its_curvature_the_first_metric(double):
    vae, x = curved_model()
    q = vae.encode(x)
    lead = GaussNewton(GaussNewtonConfig(steps=1))(x, q, vae)
    metric = PrecisionNormal(lead.mean, gauss_newton.linearise(vae, x, q.mean)[0])
    for options in ({"gradients": 3, "steps": 0}, {}):
        found, expected = refiner(1, **options)(x, q, vae), refiner(**options)(x, metric, vae)
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.factor, expected.factor)


def test_a_torch_distribution_with_a_full_covariance_is_a_start(double):
    _, vae, x = linear_model()
    root = torch.randn(4, 4)
    q = MultivariateNormal(torch.zeros(12, 4), root @ root.T + torch.eye(4))
    assert (vae.log_joint(x, refiner(steps=0)(x, q, vae).mean) > vae.log_joint(x, q.mean)).all()


# Wrong use ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"gradients": -1}, "gradients must be a whole number of at least 0, got -1"),
        ({"gradients": 2.5}, "gradients must be a whole number"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"tolerance": 0}, "tolerance must be a positive number, got 0"),
        ({"tolerance": torch.nan}, "tolerance must be a positive number"),
    ],
)
def test_limits_out_of_range_are_refused(arguments, said):
    vae, x = curved_model(3)
    with pytest.raises(gpin.InputError, match=said) as caught:
        vae.refine(x, **arguments)
    assert "\n" not in str(caught.value)


def test_options_out_of_range_are_refused():
    for options in ({"memory": 0}, {"leading_steps": -1}, {"gradients": -1}, {"tolerance": -0.1}, {"halvings": 3}):
        with pytest.raises(ValidationError):
            QuasiNewtonConfig(**options)


def test_a_likelihood_without_gradients_is_refused_in_one_line():
    vae, x = curved_model(3)
    vae.likelihood.log_prob = lambda x, output: (x - output.detach()).square().sum(-1)
    with pytest.raises(gpin.InputError, match="must be differentiable functions of z") as caught:
        vae.refine(x)
    assert "\n" not in str(caught.value)
