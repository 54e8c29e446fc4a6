"""The gaps, in a linear-Gaussian model in which log p(x), every ELBO and the best of the family are known."""

import math

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

import gpin
from gpin._core.seeding import seeded
from gpin.distributions import sample_and_log_prob
from gpin.evaluation.gaps import Gaps, grid_gaps, posterior_elbo, refined_gaps
from gpin.evaluation.grid import grid_scores
from gpin.inference import METHODS


def correlated(variance=0.2):
    """Columns that are not orthogonal, so that no diagonal Gaussian is the posterior."""
    return LinearGaussian(torch.randn(6, 2) + torch.tensor([[1.0, 1.0]]), torch.randn(6), variance)


def encoder_kl(model, vae, x):
    """KL of a diagonal encoder's posterior to the true one, by the formula for Gaussians."""
    q = vae.encode(x)
    return kl_divergence(MultivariateNormal(q.mean, torch.diag_embed(q.variance)), model.posterior(x)).detach()


def least_kl(model, x):
    """min over diagonal q of KL(q ‖ N(m, Λ⁻¹)) = ½ (Σ log Λᵢᵢ − log det Λ)."""
    precision = model.posterior(x).precision_matrix
    return 0.5 * (precision.diagonal(dim1=-2, dim2=-1).log().sum(-1) - torch.logdet(precision))


def test_the_gaps_of_a_diagonal_encoder_are_the_known_divergences(double):
    model = correlated()
    vae, x = model.vae("vae", known=True).eval(), model.sample(6)
    kl, least, evidence = encoder_kl(model, vae, x), least_kl(model, x), model.log_prob(x)
    # An ELBO from its definition, E_q[log p(x|z)] − KL(q‖p(z)), not from the divergence to the posterior.
    q = vae.encode(x)
    best = Independent(
        Normal(model.posterior(x).mean, model.posterior(x).precision_matrix.diagonal(0, -2, -1) ** -0.5), 1
    )
    elbo, best_elbo = (bound(model, x, one).detach() for one in (q, best))
    found = Gaps.of(evidence, best_elbo, elbo)
    torch.testing.assert_close(found.inference, kl)
    torch.testing.assert_close(found.approximation, least)
    torch.testing.assert_close(found.amortization, kl - least)
    torch.testing.assert_close(found.inference, found.amortization + found.approximation)


def bound(model, x, q):
    """ELBO of a diagonal Gaussian in closed form, `(batch,)`."""
    error = (x - model.offset - q.mean @ model.matrix.T).square().sum(-1)
    spread = (q.variance @ model.matrix.square().T).sum(-1)
    size = len(model.offset)
    fit = -0.5 * ((error + spread) / model.variance + size * torch.tensor(2 * torch.pi * model.variance).log())
    prior = Independent(Normal(torch.zeros_like(q.mean), torch.ones_like(q.mean)), 1)
    return fit - kl_divergence(q, prior)


def test_refined_gaussians_are_the_posterior_here_so_that_all_is_amortization(double):
    model = correlated()
    vae, x = model.vae("vae", known=True).eval(), model.sample(4)
    torch.manual_seed(1)
    encoder, refined = (vae.log_likelihood(x, 20_000, proposal) for proposal in ("encoder", "refined"))
    found = refined_gaps(encoder, refined)
    kl = encoder_kl(model, vae, x)
    # log p(x, z) − log q(z|x) is the same for all z under the true posterior; only the encoder's ELBO has noise.
    assert found.approximation.abs().max() < 1e-6
    torch.testing.assert_close(found.inference, kl, rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.amortization, found.inference, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variance", [1.0, 0.1])
def test_in_a_latent_plane_the_grid_knows_all_three(variance, double):
    model = correlated(variance)
    vae, x = model.vae("vae", known=True).eval(), model.sample(3)
    kl, least = encoder_kl(model, vae, x), least_kl(model, x)
    scores = grid_scores(vae, x)
    found = grid_gaps(scores["kl"], scores["best_kl"])
    torch.testing.assert_close(found.inference, kl, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.approximation, least, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.amortization, kl - least, rtol=1e-3, atol=1e-3)


def test_a_refined_gaussian_that_is_worse_than_the_encoder_has_a_gap_below_zero():
    found = Gaps.of(torch.tensor([5.0]), torch.tensor([1.0]), torch.tensor([2.0]))
    assert (found.inference.item(), found.amortization.item(), found.approximation.item()) == (3.0, -1.0, 4.0)


def test_the_split_with_annealed_truth_is_the_known_divergence(double):
    model = correlated()
    vae, x = model.vae("vae", known=True).eval(), model.sample(5)
    found = vae.gaps(x, samples=2000, temperatures=20, chains=200)
    kl, error = encoder_kl(model, vae, x), found.log_likelihood.mc_error
    # The refined Gaussian is the posterior, so that all of the gap is amortization.
    assert (found.approximation.abs() < 5 * error + 0.02).all()
    torch.testing.assert_close(found.amortization, kl, rtol=0.1, atol=0.1)
    torch.testing.assert_close(found.inference, found.amortization + found.approximation)
    torch.testing.assert_close(found.log_likelihood.values, model.log_prob(x), rtol=0, atol=5 * error.max().item())
    assert str(found).startswith(f"inference gap {found.inference.mean():.2f} = amortization")


def test_steps_close_the_amortization_gap(double):
    model = correlated()
    vae, x = model.vae("vae", known=True), model.sample(5)
    none, some = (vae.gaps(x, steps=k, samples=1000, temperatures=2, chains=2) for k in (0, 30))
    assert some.amortization.mean() < 0.9 * none.amortization.mean()
    assert vae.training


def test_the_gaps_of_batches_are_joined(double):
    model = correlated()
    vae, x = model.vae("vae", known=True).eval(), model.sample(130)
    found = vae.gaps(x, samples=2, temperatures=1, chains=2)
    assert found.inference.shape == found.log_likelihood.values.shape == (130,)
    assert Gaps.join([Gaps.of(*torch.ones(3, 4))]).log_likelihood is None


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_control_variate_leaves_the_elbo_of_every_method_unbiased(method, double):
    """Against the plain mean of log p(x, z) − log q(z|x); the mean of a flow is not its expectation."""
    vae, x, samples = gpin.build((6,), method, 3, seed=0, architecture={"width": 8}).eval(), torch.rand(4, 6), 4000
    vae.prepare(x)
    with torch.no_grad(), seeded(1):
        for parameter in vae.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        q = vae.encode(x)
        z, log_prob = sample_and_log_prob(q, samples, samples)
        terms = vae.log_joint(x, z) - log_prob
        found = posterior_elbo(vae, x, q, samples)
    error = terms.std(0) / math.sqrt(samples)
    assert ((found - terms.mean(0)).abs() < 5 * math.sqrt(2) * error).all()
