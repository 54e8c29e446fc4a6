"""Annealed importance sampling where log p(x) is known, and the sandwich of forward and reverse chains."""

import math

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch import nn

import gpin
from gpin._core.errors import InputError
from gpin._core.modes import differentiable
from gpin.evaluation import annealed
from gpin.evaluation.annealed import AnnealingOptions, Path, standard_start, widened
from gpin.inference import METHODS
from gpin.likelihoods import LIKELIHOODS


def exact(latent_dim=3, variance=0.05):
    """A model with known log p(x), in which the columns of the decoder are not orthogonal."""
    return LinearGaussian(torch.randn(6, latent_dim) + 1, torch.randn(6), variance)


def deviation(values, truth, error):
    """The mean of values − truth in units of its stated error √(Σ error²)/n."""
    return ((values - truth).sum() / error.square().sum().sqrt()).abs().item()


@pytest.mark.parametrize(
    ("start", "temperatures"), [pytest.param("refined", 6, marks=pytest.mark.slow), ("refined", 20), ("prior", 40)]
)
def test_forward_chains_meet_the_exact_likelihood_within_their_stated_error(start, temperatures, double):
    model = exact(variance=0.5 if start == "prior" else 0.05)
    x = model.sample(40)
    vae = model.vae("vae", known=True).eval()
    found = vae.log_likelihood(x, estimator="annealed", temperatures=temperatures, chains=100, start=start, leapfrog=3)
    truth = model.log_prob(x)
    # The log of a mean is too low by half its relative variance.
    assert deviation(found.values + 0.5 * found.mc_error.square(), truth, found.mc_error) < 4
    assert 0.005 < found.mc_error.mean() < 0.3  # the start is not the posterior: there is something to estimate
    z = (found.values - truth) / found.mc_error
    assert z.var().item() == pytest.approx(1, abs=0.6)  # of 40 values
    assert found.elbo.mean() < truth.mean()
    assert (found.samples, found.proposal) == (100, "annealed")


@pytest.mark.parametrize("start", ["refined", "prior"])
def test_forward_and_reverse_chains_meet(start, double):
    model = exact(variance=0.3)
    vae = model.vae("vae", known=True).eval()
    found = vae.sandwich(60, temperatures=30, chains=20, start=start, leapfrog=3)
    truth = model.log_prob(found.x)
    lower, upper = found.lower - truth, found.upper - truth
    spread = [part.std().item() / math.sqrt(60) for part in (lower, upper)]
    assert abs(lower.mean()) < 4 * spread[0] + 0.02
    assert abs(upper.mean()) < 4 * spread[1] + 0.02
    assert found.width == pytest.approx((upper - lower).mean().item())
    assert found.width_error > 0


def test_with_few_temperatures_the_bounds_lie_on_their_sides(double):
    model = exact(variance=0.01)
    vae = model.vae("vae", known=True).eval()
    found = vae.sandwich(100, temperatures=3, chains=2, start="prior")
    truth = model.log_prob(found.x)
    assert (found.lower - truth).mean() < -1
    assert (found.upper - truth).mean() > 1


@pytest.mark.parametrize(("temperatures", "leapfrog"), [(2, 1), (4, 2)])
def test_weights_are_unbiased_whatever_the_transitions_do(temperatures, leapfrog, double):
    """E[w] = p(x) exactly, with few temperatures and large steps, for a posterior that is not Gaussian."""

    class Bent(nn.Module):
        def forward(self, z):
            return torch.cat([z, z.square() - 1, z.prod(-1, keepdim=True)], dim=-1)

    vae = exact(2).vae("vae", known=True).eval()
    vae.decoder = Bent()
    vae.likelihood = gpin.likelihoods.Gaussian((5,), gpin.likelihoods.GaussianOptions(initial_variance=0.5))
    x = vae.sample(4, noise=True)
    axis = torch.linspace(-6, 6, 301)
    grid = torch.cartesian_prod(axis, axis)
    log_joint = vae.log_joint(x, grid.unsqueeze(1).expand(-1, 4, -1)).detach()
    truth = torch.logsumexp(log_joint, 0) + 2 * math.log(axis[1] - axis[0])
    found = vae.log_likelihood(
        x, estimator="annealed", temperatures=temperatures, chains=20_000, start="prior", leapfrog=leapfrog
    )
    torch.testing.assert_close(found.values, truth, rtol=0, atol=4 * found.mc_error.max().item())
    assert found.mc_error.max() < 0.05


def test_transitions_leave_every_density_of_the_path_invariant(double):
    model = exact(2, variance=0.4)
    vae, x = model.vae("vae", known=True).eval(), model.sample(1)
    with differentiable():
        path = Path(vae, x, widened(vae.refine(x)), AnnealingOptions.of(temperatures=10), 10_000)
        # f_β of two Gaussians is Gaussian: precision (1 − β) I + β Fᵀ Λ F in u, by which exact draws are made.
        beta = 0.7
        posterior = model.posterior(x)
        inverse = path.inverse[0]
        precision = (1 - beta) * torch.eye(2) + beta * inverse @ posterior.precision_matrix[0] @ inverse.T
        shift = beta * inverse @ posterior.precision_matrix[0] @ (posterior.mean[0] - path.q.mean[0])
        exact_draws = torch.distributions.MultivariateNormal(
            torch.linalg.solve(precision, shift), precision_matrix=precision
        )
        before = path._at(exact_draws.sample((20_000, 1)))
        after, probability = path._transition(before, beta, torch.tensor([0.5]))
    assert 0.3 < probability.mean() < 0.99
    assert (after.u != before.u).double().mean() > 0.3
    torch.testing.assert_close(after.u.mean(0)[0], exact_draws.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(torch.cov(after.u[:, 0].T), exact_draws.covariance_matrix, rtol=0.04, atol=0.01)


def test_the_pilot_tunes_the_acceptance_of_every_instance():
    vae = gpin.build((6,), "vae", 4, seed=0, architecture={"width": 16}).eval()
    x = 3 * torch.rand(5, 6)
    vae.prepare(x)
    found = vae.log_likelihood(x, estimator="annealed", temperatures=60, chains=8, start="prior", leapfrog=3)
    assert (found.annealing.acceptance > 0.5).all()
    assert (found.annealing.acceptance < 0.99).all()  # tiny steps would always be accepted


def test_one_temperature_is_importance_sampling_from_the_start(double):
    model = exact()
    vae, x = model.vae("vae", known=True).eval(), model.sample(3)
    torch.manual_seed(1)
    found = vae.log_likelihood(x, estimator="annealed", temperatures=1, chains=50, return_weights=True)
    q = widened(vae.refine(x))
    torch.manual_seed(1)
    z = q.mean + torch.linalg.solve_triangular(q.factor.mT, torch.randn(50, 3, 3).permute(1, 2, 0), upper=True).permute(
        2, 0, 1
    )
    torch.testing.assert_close(found.log_weights, (vae.log_joint(x, z) - q.log_prob(z)).detach())


def test_the_widened_start_reduces_the_likelihoods_precision(double):
    q = exact().vae("vae", known=True).eval().refine(torch.randn(4, 6))
    precision = q.factor @ q.factor.mT
    wide = widened(q)
    torch.testing.assert_close(wide.factor @ wide.factor.mT, 0.1 * precision + 0.9 * torch.eye(3).expand(4, 3, 3))
    standard = standard_start(torch.randn(4, 6), 3)
    torch.testing.assert_close(widened(standard).factor, standard.factor)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_annealed(method):
    vae = gpin.build((5,), method, 2, seed=0, architecture={"width": 8})
    x = torch.rand(6, 5)
    vae.prepare(x)
    before = vae.training
    found = vae.log_likelihood(x, estimator="annealed", temperatures=5, chains=3)
    assert vae.training is before
    assert found.values.shape == found.ess.shape == found.annealing.acceptance.shape == (6,)
    assert found.values.isfinite().all()
    assert not found.values.requires_grad


@pytest.mark.parametrize(
    ("likelihood", "dtype"), [*((name, torch.float32) for name in LIKELIHOODS), ("gaussian", torch.float64)]
)
def test_every_likelihood_agrees_with_importance_sampling(likelihood, dtype):
    vae = gpin.build((4,), "vae", 1, likelihood=likelihood, seed=0, dtype=dtype, architecture={"width": 8}).eval()
    x = vae.sample(3, noise=True)
    vae.prepare(x)
    with torch.inference_mode():
        found = vae.log_likelihood(x.clone(), estimator="annealed", temperatures=10, chains=50)
        other = vae.log_likelihood(x, 2000, "refined")
    assert (found.values - other.values).abs().max() < 5 * found.mc_error.max() + 0.05


@pytest.mark.parametrize("chunk_size", [1, 7])
def test_the_chunk_size_does_not_change_the_result(chunk_size, double):
    vae = gpin.build((4,), "vae", 2, seed=0, dtype=torch.float64, architecture={"width": 8}).eval()
    x = torch.rand(1, 4)
    results = []
    for size in (512, chunk_size):
        torch.manual_seed(3)
        results.append(vae.log_likelihood(x, chunk_size=size, estimator="annealed", temperatures=4, chains=8).values)
    torch.testing.assert_close(*results, rtol=1e-9, atol=0)


def test_a_seed_repeats_the_result_and_batches_cover_all_instances():
    vae = gpin.build((4,), "vae", 2, seed=0, architecture={"width": 8}).eval()
    x = torch.rand(130, 4)
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append(vae.log_likelihood(x, estimator="annealed", temperatures=3, chains=2, return_weights=True))
    assert torch.equal(found[0].values, found[1].values)
    assert found[0].log_weights.shape == (2, 130)
    assert found[0].annealing.acceptance.shape == (130,)
    assert "2 chains annealed through 3 temperatures" in str(found[0])


def test_a_trajectory_that_is_not_finite_is_rejected():
    vae = gpin.build((4,), "vae", 2, seed=0, architecture={"width": 8}).eval()

    class Steep(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, z):
            return self.inner(z) + torch.where(z[..., :1] > 1, z[..., :1] * math.inf, 0.0)

    vae.decoder = Steep(vae.decoder)
    found = vae.log_likelihood(torch.rand(3, 4), estimator="annealed", start="prior", temperatures=10, chains=20)
    assert found.values.isfinite().all()


def test_the_sandwich_says_how_far_importance_sampling_is_off():
    model = exact(4, variance=0.02)
    vae = model.vae("vae", known=True).eval()
    found = vae.sandwich(20, samples=10, steps=(0, 2), temperatures=20)
    assert list(found.others) == ["encoder", "encoder, 0 steps", "encoder, 2 steps", "refined"]
    truth = model.log_prob(found.x)
    for name, bias in found.biases.items():
        actual = (truth - found.others[name].values).mean().item()
        assert bias.at_least - 0.3 < actual < bias.at_most + 0.3
    assert found.biases["encoder"].at_least > 10 > found.biases["refined"].at_most
    text = str(found)
    assert "importance sampling (encoder, K = 10) is at least" in text
    assert "too low here" in text
    record = found.record()
    assert record["too_low"]["refined"]["samples"] == 10
    assert record["width"] == pytest.approx(record["upper"] - record["lower"])
    with pytest.raises(InputError, match="each of the 20 instances"):
        found.bias(torch.zeros(3))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperatures": 0}, "temperatures must be a whole number of at least 1, got 0"),
        ({"chains": 1}, "chains must be at least 2, got 1"),
        ({"chains": 0}, "chains must be a whole number of at least 1, got 0"),
        ({"start": "encoder"}, "unknown start 'encoder': choose 'refined' or 'prior'"),
        ({"leapfrog": 0}, "leapfrog must be"),
        ({"samples": 100}, "for estimator='annealed' choose temperatures, chains"),
        ({"proposal": "refined"}, "for estimator='annealed' choose temperatures, chains"),
        ({"start": "prior", "steps": 3}, "steps applies to start='refined' only"),
        ({"estimator": "exact"}, "unknown estimator 'exact': choose 'importance' or 'annealed'"),
        ({"estimator": "importance", "chains": 4}, "chains applies to estimator='annealed' only"),
    ],
)
def test_unusable_options_are_refused_in_a_sentence(options, says):
    vae = gpin.build((4,), "vae", 2, seed=0, architecture={"width": 8}).eval()
    with pytest.raises(InputError, match=says):
        vae.log_likelihood(torch.rand(3, 4), **{"estimator": "annealed", **options})


@pytest.mark.parametrize(
    ("free", "options", "says"),
    [
        (10, {}, "for one pair"),
        (100_000, {"chains": 10**6}, r"chains=1000000 need 91\.6 MiB for one .* at most 1041 chains fit"),
        (50_000, {"chains": 300, "chunk_size": 10**6}, "chunk_size=1000000 needs .* a chunk_size of at most .* fits"),
        (None, {}, None),
    ],
)
def test_what_does_not_fit_into_memory_is_refused_with_what_would(free, options, says, monkeypatch):
    monkeypatch.setattr(annealed, "available_memory", lambda device: free)
    vae = gpin.build((4,), "vae", 2, seed=0, architecture={"width": 8}).eval()
    call = {"estimator": "annealed", "temperatures": 2, **options}
    if says is None:
        assert vae.log_likelihood(torch.rand(3, 4), **call).values.isfinite().all()
        return
    with pytest.raises(InputError, match=says):
        vae.log_likelihood(torch.rand(3, 4), **call)


def test_a_decoder_without_a_gradient_is_refused():
    vae = gpin.build((4,), "vae", 2, seed=0, architecture={"width": 8}).eval()

    class Constant(nn.Module):
        def forward(self, z):
            return torch.zeros(*z.shape[:-1], 4)

    vae.decoder = Constant()
    with pytest.raises(InputError, match="differentiable functions of z"):
        vae.log_likelihood(torch.rand(3, 4), estimator="annealed", start="prior")
