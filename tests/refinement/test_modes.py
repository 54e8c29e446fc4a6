"""Searches from several starts: the modes they find, their weights, and the adaptation of the mixture."""

import math

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

import gpin
from gpin.distributions import PrecisionMixture, PrecisionNormal
from gpin.inference import method_named
from gpin.likelihoods import Gaussian, GaussianOptions
from gpin.networks import Dense
from gpin.refinement.modes import truncated


class Squares(nn.Module):
    """z → z²: the signs of z are lost, and the posterior has a mode in every orthant."""

    def forward(self, z):
        return z.square()


def squares(variance=0.05):
    options = GaussianOptions(variance="fixed", initial_variance=variance)
    inference = method_named("vae")(Dense((2,)).trunk, 2)
    return gpin.VAE(inference, Squares(), Gaussian((2,), options)).double().eval()


def by_quadrature(vae, x, reach=6.0, count=1201):
    """log p(x) on a grid of z."""
    line = torch.linspace(-reach, reach, count, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line).unsqueeze(1)
    values = vae.log_joint(x, grid.expand(-1, len(x), -1))
    return values.logsumexp(0) + 2 * math.log(2 * reach / (count - 1))


def test_all_modes_are_found_and_weighted_alike():
    torch.manual_seed(0)
    vae, x = squares(), torch.tensor([[1.0, 2.0], [0.7, 1.5]], dtype=torch.float64)
    q = vae.modes(x, starts=40)
    for row in range(2):
        orthants = {}
        for weight, mean in zip(q.log_weights[row].exp(), q.components.mean[row], strict=True):
            signs = tuple(mean.sign().int().tolist())
            orthants[signs] = orthants.get(signs, 0.0) + weight.item()
        assert len(orthants) == 4
        assert all(abs(weight - 0.25) < 0.02 for weight in orthants.values()), orthants


def test_the_evidence_needs_all_modes():
    torch.manual_seed(1)
    vae, x = squares(), torch.tensor([[1.0, 2.0], [0.7, 1.5]], dtype=torch.float64)
    exact = by_quadrature(vae, x)
    found = vae.log_likelihood(x, 4000, vae.modes(x, starts=40))
    assert torch.allclose(found.values, exact, atol=5 * found.mc_error.max().item())
    assert found.mc_error.max() < 0.05
    one = vae.log_likelihood(x, 4000, "refined").values
    assert torch.allclose(exact - one, torch.full_like(exact, math.log(4)), atol=0.2)


def test_the_draws_of_a_posterior_may_come_from_all_modes():
    torch.manual_seed(6)
    vae, x = squares(), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    for stage, share in (("refined", {0.0, 1.0}), ("modes", {0.5})):
        draws = vae.posterior(x, samples=2000, stages=stage)
        assert draws.passed.all()
        positive = (draws.resample() > 0).double().mean((0, 1))
        assert all(min(abs(p - one) for one in share) < 0.05 for p in positive.tolist()), (stage, positive)


def test_a_gaussian_posterior_is_exact_from_any_number_of_starts():
    torch.manual_seed(2)
    truth = LinearGaussian.random(latent_dim=3)
    vae, x = truth.vae("vae", known=True).eval(), truth.sample(4)
    q, posterior = vae.modes(x, starts=5), truth.posterior(x)
    z = posterior.sample((7,))
    assert torch.allclose(q.log_prob(z), posterior.log_prob(z), atol=1e-3)
    assert torch.allclose(q.log_weights, torch.full((4, 5), math.log(1 / 5)), atol=1e-3)


def test_rounds_fit_what_is_not_gaussian():
    torch.manual_seed(3)
    vae, x = squares(0.4), torch.tensor([[0.5, 0.2], [0.1, 1.5], [1.0, 1.0]], dtype=torch.float64)
    before = vae.log_likelihood(x, 4000, vae.modes(x, starts=16))
    after = vae.log_likelihood(x, 4000, vae.modes(x, starts=16, rounds=5))
    assert (after.ess > 1.15 * before.ess).all(), (before.ess, after.ess)
    assert torch.allclose(after.values, by_quadrature(vae, x), atol=5 * after.mc_error.max().item())


def test_instances_do_not_influence_each_other_in_rounds(monkeypatch):
    vae, x = squares(), torch.tensor([[1.0, 2.0], [0.7, 1.5]], dtype=torch.float64)
    torch.manual_seed(4)
    together = vae.modes(x, starts=8, rounds=2, draws=500)
    monkeypatch.setattr("gpin.refinement.modes.CHUNK", 1)
    torch.manual_seed(4)
    apart = vae.modes(x, starts=8, rounds=2, draws=500)
    assert together.components.mean.shape == apart.components.mean.shape == (2, 16, 2)  # and wide copies
    assert apart.log_weights.exp().sum(-1).allclose(torch.ones(2, dtype=torch.float64))
    assert (together.components.mean - apart.components.mean).abs().median() < 0.1


def test_weights_are_truncated_at_the_mean_times_the_root_of_their_number():
    weights = torch.tensor([[9.0], [1.0], [1.0], [1.0]])
    assert truncated(weights.log()).exp().flatten().tolist() == pytest.approx([6.0, 1.0, 1.0, 1.0])


def test_the_mixture_is_that_of_torch():
    torch.manual_seed(5)
    mean = torch.randn(2, 3, 2, dtype=torch.float64)
    factor = torch.linalg.cholesky(torch.eye(2, dtype=torch.float64) + 0.5 * torch.ones(2, 2)).expand(2, 3, 2, 2)
    log_weights = torch.randn(2, 3, dtype=torch.float64).log_softmax(-1)
    q = PrecisionMixture(log_weights, PrecisionNormal(mean, factor))
    components = MultivariateNormal(mean, precision_matrix=factor @ factor.mT)
    expected = MixtureSameFamily(Categorical(logits=log_weights), components)
    z = torch.randn(7, 2, 2, dtype=torch.float64)
    assert torch.allclose(q.log_prob(z), expected.log_prob(z))
    assert torch.allclose(q.mean, expected.mean)
    assert torch.allclose(q.variance, expected.variance)
    drawn = q.rsample((40_000,))
    assert torch.allclose(drawn.mean(0), q.mean, atol=0.03)
    assert torch.allclose(drawn.var(0), q.variance, atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"starts": 0}, "starts must be a whole number of at least 1, got 0"),
        ({"rounds": -1}, "rounds must be a whole number of at least 0, got -1"),
        ({"draws": 0}, "draws must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_numbers_are_refused(arguments, said):
    with pytest.raises(gpin.InputError, match=said):
        squares().modes(torch.ones(1, 2), **arguments)
