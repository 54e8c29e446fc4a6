"""The posterior on a grid, against a model in which everything is known, and against brute force."""

import math

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch.distributions import kl_divergence

import gpin
from gpin.distributions import DiagonalNormal, NormalMixture, PrecisionNormal
from gpin.evaluation.grid import Posterior, best_gaussian_kl, grid_scores, kl_to_posterior, posteriors


def correlated(variance):
    """Columns that are not orthogonal, so that the posterior is a tilted Gaussian."""
    return LinearGaussian(torch.randn(6, 2) + torch.tensor([[1.0, 1.0]]), torch.randn(6), variance)


@pytest.mark.parametrize("variance", [1.0, 0.05, 0.0005])
def test_evidence_and_moments_are_those_of_the_known_posterior(variance, double):
    model = correlated(variance)
    vae, x = model.vae("vae", known=True).eval(), model.sample(4)
    truth, evidence = model.posterior(x), model.log_prob(x)
    for i, found in enumerate(posteriors(vae, x)):
        assert found.log_evidence == pytest.approx(evidence[i].item(), abs=1e-6)
        weights = found.log_density.exp() * found.side**2
        mean = weights @ found.points
        spread = found.points - mean
        torch.testing.assert_close(mean, truth.mean[i], atol=1e-6, rtol=1e-6)
        covariance = (weights.unsqueeze(1) * spread).T @ spread
        torch.testing.assert_close(covariance, truth.covariance_matrix[i], atol=1e-8, rtol=1e-4)


@pytest.mark.parametrize("variance", [1.0, 0.05])
def test_kl_is_the_formula_between_gaussians(variance, double):
    model = correlated(variance)
    vae, x = model.vae("vae", known=True).eval(), model.sample(5)
    truth = model.posterior(x)
    q = DiagonalNormal(truth.mean + 0.3 * truth.stddev, 0.7 * truth.stddev)
    full = torch.distributions.MultivariateNormal(q.mean, torch.diag_embed(q.variance))
    evidence = [found.log_evidence for found in posteriors(vae, x)]
    torch.testing.assert_close(kl_to_posterior(vae, x, q, evidence), kl_divergence(full, truth), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("variance", [1.0, 0.05, 0.0005])
def test_the_best_diagonal_gaussian_has_the_diagonal_of_the_precision(variance, double):
    model = correlated(variance)
    vae, x = model.vae("vae", known=True).eval(), model.sample(3)
    precision = model.posterior(x).precision_matrix
    # min over diagonal q of KL(q‖N(m, Λ⁻¹)) is ½ (Σ log Λᵢᵢ − log det Λ).
    least = 0.5 * (precision.diagonal(dim1=-2, dim2=-1).log().sum(-1) - torch.logdet(precision))
    for found, expected in zip(posteriors(vae, x), least, strict=True):
        assert best_gaussian_kl(found) == pytest.approx(expected.item(), abs=1e-4, rel=1e-3)


def test_a_likelihood_with_several_outputs_per_value_has_its_evidence_too(double):
    vae = gpin.build((3, 3), "vae", 2, seed=0, likelihood="heteroscedastic").eval()
    x = vae.sample(3, noise=True)
    ticks = torch.arange(-7.975, 8, 0.05)
    points = torch.cartesian_prod(ticks, ticks)
    with torch.no_grad():
        for one, posterior in zip(x, posteriors(vae, x), strict=True):
            log_joint = torch.cat([vae.log_joint(one[None], z[:, None]) for z in points.split(1000)])
            expected = torch.logsumexp(log_joint.flatten(), 0).item() + 2 * math.log(0.05)
            assert posterior.log_evidence == pytest.approx(expected, abs=1e-3)


def test_scores_of_a_nonlinear_model_agree_with_importance_sampling(double):
    vae = gpin.build((3, 3), "vae", 2, seed=0, likelihood={"initial_variance": 0.05}).eval()
    with torch.no_grad():
        for p in vae.decoder.parameters():
            p.mul_(3)
    x = vae.sample(4, noise=True)
    found = grid_scores(vae, x)
    reference = vae.log_likelihood(x, samples=20_000, proposal="refined")
    error = (found["log_evidence"] - reference.values).abs()
    assert (error < 6 * reference.mc_error + 1e-3).all(), (error, reference.mc_error)
    # KL(q‖p) = log p(x) − ELBO, by sampling: its error is that of the mean of log w.
    sampled = vae.log_likelihood(x, samples=20_000)
    q = vae.encode(x)
    with torch.no_grad():
        z = q.sample((20_000,))
        spread = (vae.log_joint(x, z) - q.log_prob(z)).std(0)
    tolerance = 6 * spread / math.sqrt(20_000) + 6 * reference.mc_error + 1e-3
    assert ((found["kl"] - (reference.values - sampled.elbo)).abs() < tolerance).all()
    assert (found["best_kl"] > -1e-6).all()
    assert (found["best_kl"] <= found["kl"] + 1e-6).all()


def test_the_best_gaussian_of_two_modes_takes_one_of_them():
    """Equal modes far apart: a Gaussian on one of them is log 2 from the whole, and one over both is much farther."""
    ticks = torch.arange(-2.5, 2.5, 0.02, dtype=torch.float64)
    points = torch.cartesian_prod(ticks, ticks)
    modes = torch.stack([((points - torch.tensor([at, 0.0])) / 0.1).square().sum(-1) for at in (-1.5, 1.5)])
    log_joint = torch.logsumexp(-modes / 2, 0)
    kept = log_joint > -30
    found = best_gaussian_kl(Posterior(points[kept], log_joint[kept], 0.02))
    assert found == pytest.approx(math.log(2), abs=1e-3)


def test_a_posterior_far_out_is_found_there(double):
    model = correlated(0.01)
    vae = model.vae("vae", known=True).eval()
    x = vae.decode(torch.tensor([[0.0, 0.0], [8.0, -7.0]]))
    near, far = posteriors(vae, x)
    expected = model.log_prob(x)
    assert [near.log_evidence, far.log_evidence] == pytest.approx(expected.tolist(), abs=1e-3)
    with pytest.raises(gpin.InputError, match="extends beyond 50 standard deviations"):
        posteriors(vae, vae.decode(torch.full((1, 2), 1000.0)))


@pytest.mark.parametrize("kind", ["mixture", "correlated"])
def test_kl_of_what_a_coarse_grid_would_miss_is_that_of_many_samples(kind, double):
    model = correlated(1.0)
    vae, x = model.vae("vae", known=True).eval(), model.sample(4)
    truth = model.posterior(x)
    if kind == "mixture":
        means = truth.mean.unsqueeze(-2) + torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
        q = NormalMixture(torch.full((4, 2), 0.5).log(), means, torch.full_like(means, 0.03))
    else:
        q = PrecisionNormal(
            truth.mean, torch.linalg.cholesky(torch.tensor([[500.0, 499.0], [499.0, 500.0]])).expand(4, 2, 2)
        )
    evidence = model.log_prob(x).tolist()
    z = q.sample((200_000,))
    differences = q.log_prob(z) - truth.log_prob(z)
    found = kl_to_posterior(vae, x, q, evidence)
    error = (differences.var(0) * (1 / len(z) + 1 / 41**2)).sqrt()
    assert ((found - differences.mean(0)).abs() < 5 * error).all()
    assert (error < 0.2).all()


@pytest.mark.parametrize(("place", "held"), [(48.0, True), (60.0, False)])
def test_a_posterior_is_held_as_far_as_is_said(place, held, double):
    model = LinearGaussian(torch.eye(2), torch.zeros(2), 0.01)
    vae, x = model.vae("vae", known=True).eval(), torch.full((1, 2), place * 1.01)
    if held:
        assert posteriors(vae, x)[0].log_evidence == pytest.approx(model.log_prob(x).item(), abs=1e-4)
    else:
        with pytest.raises(gpin.InputError, match="extends beyond 50 standard deviations"):
            posteriors(vae, x)
