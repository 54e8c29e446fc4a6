"""Weighted draws from the posterior, against posteriors that are known exactly or on a grid."""

import math

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch.distributions import Normal

import gpin
from gpin.evaluation.grid import posteriors
from gpin.evaluation.resampling import escalated, resampled


def assert_moments(draws, mean, variance):
    """The weighted moments agree with the true ones within five Monte-Carlo errors (delta method)."""
    weights = draws.weights.unsqueeze(-1)
    deviation = draws.z - mean
    error = (weights * deviation).square().sum(0).sqrt()
    assert ((draws.mean - mean).abs() < 5 * error).all()
    squares = deviation.square() - variance
    error = (weights * squares).square().sum(0).sqrt() + (draws.mean - mean).square()
    assert ((draws.variance - variance).abs() < 5 * error).all()


def test_moments_are_those_of_the_known_posterior(double):
    model = LinearGaussian(torch.randn(6, 3) + 1.0, torch.randn(6), 0.5)
    vae, x = model.vae("vae", known=True).eval(), model.sample(20)
    truth, draws = model.posterior(x), vae.posterior(x, samples=4000)
    assert draws.z.shape == (4000, 20, 3)
    assert draws.passed.all()
    assert (draws.ess >= 400).all()
    assert (draws.khat <= 0.7).all()
    torch.testing.assert_close(draws.weights.sum(0), torch.ones(20))
    assert_moments(draws, truth.mean, truth.variance)
    torch.testing.assert_close(draws.log_likelihood, model.log_prob(x), atol=0.2, rtol=0)
    again = draws.resample(2000)
    assert again.shape == (2000, 20, 3)
    error = truth.stddev / draws.ess.clamp(max=2000).sqrt().unsqueeze(-1)
    assert ((again.mean(0) - truth.mean).abs() < 6 * error).all()


@pytest.mark.parametrize("stage", ["modes", "annealed"])
def test_the_stages_on_request_have_the_known_moments_too(stage, double):
    model = LinearGaussian(torch.randn(6, 3) + 1.0, torch.randn(6), 0.5)
    vae, x = model.vae("vae", known=True).eval(), model.sample(4)
    truth, draws = model.posterior(x), vae.posterior(x, samples=500, stages=stage)
    assert draws.stage_names == [stage] * 4
    assert draws.passed.all()
    assert_moments(draws, truth.mean, truth.variance)
    torch.testing.assert_close(draws.log_likelihood, model.log_prob(x), atol=0.3, rtol=0)


def test_annealed_draws_find_a_posterior_that_a_gaussian_misses(double):
    """x = z² + noise has two posterior modes in each dimension: four, of which refinement finds one."""

    class Square(torch.nn.Module):
        def forward(self, z):
            return z.square()

    vae = gpin.VAE(
        gpin.build((2,), "vae", latent_dim=2, seed=0).inference,
        Square(),
        gpin.likelihoods.Gaussian((2,), gpin.likelihoods.GaussianOptions(initial_variance=0.15)),
    )
    vae = vae.double().eval()
    x = torch.tensor([[0.7, 0.7]])
    (truth,) = posteriors(vae, x)
    refined = vae.posterior(x, samples=1000, stages="refined")
    annealed = vae.posterior(x, samples=1000, stages="annealed")
    assert refined.log_likelihood.item() < truth.log_evidence - 0.5
    assert annealed.log_likelihood.item() == pytest.approx(truth.log_evidence, abs=0.2)
    weights = truth.log_density.exp() * truth.side**2
    spread = weights @ truth.points.square()
    found = (annealed.weights.unsqueeze(-1) * annealed.z.square()).sum(0)[0]
    torch.testing.assert_close(found, spread, rtol=0.15, atol=0)
    assert annealed.mean.abs().max() < 0.15  # half of the mass is on either side


def test_moments_of_a_curved_posterior_are_those_on_a_grid(double):
    vae = gpin.build((3, 3), "vae", 2, seed=0, likelihood={"initial_variance": 0.05}).eval()
    with torch.no_grad():
        for p in vae.decoder.parameters():
            p.mul_(3)
    x = vae.sample(6, noise=True)
    draws = vae.posterior(x, samples=5000)
    assert draws.passed.sum() >= 4  # the others are known to be unreliable
    for i, truth in enumerate(posteriors(vae, x)):
        if not draws.passed[i]:
            continue
        weights = truth.log_density.exp() * truth.side**2
        mean = weights @ truth.points
        variance = weights @ (truth.points - mean).square()
        one = gpin.evaluation.resampling.PosteriorDraws(
            draws.z[:, i : i + 1], draws.log_weights[:, i : i + 1], *[draws.ess[:1]] * 5, draws.stages
        )
        assert_moments(one, mean, variance)
        assert draws.log_likelihood[i].item() == pytest.approx(truth.log_evidence, abs=0.2)


def test_only_instances_that_fail_go_on(double):
    """log p(x, z) is N(0, 1) in z; x says at which stage the proposal has the right mean."""
    x, samples, asked = torch.tensor([0.0, 2.0, 1.0, 3.0]).unsqueeze(1), 500, []

    def stage(number):
        def propose(batch):
            asked.append(batch.flatten().tolist())
            shift = 30 - number  # a proposal that misses; later ones a little less
            centre = torch.where(batch == number, 0.0, float(shift))
            z = centre + torch.randn(samples, *batch.shape)
            return z, (Normal(0.0, 1.0).log_prob(z) - Normal(centre, 1.0).log_prob(z)).sum(-1)

        return propose

    found = escalated(x, {"first": stage(0), "second": stage(1), "third": stage(2)}, least_ess=100)
    assert asked == [[0, 2, 1, 3], [2, 1, 3], [2, 3]]
    assert found.passed.tolist() == [True, True, True, False]
    assert found.stage.tolist() == [0, 2, 1, 2]  # the last one fails everywhere, and the third stage is nearest
    assert found.stage_names == ["first", "third", "second", "third"]
    torch.testing.assert_close(found.ess[:3], torch.full((3,), 500.0))
    assert found.ess[3] < 100
    assert found.z[:, :3].mean(0).abs().max() < 5 / math.sqrt(samples)
    assert "2 from third; 1 not reliable" in str(found)


def test_a_small_effective_sample_size_fails_too():
    model = LinearGaussian(torch.randn(6, 2), torch.randn(6), 0.5)
    vae, x = model.vae("vae", known=True).eval(), model.sample(10)
    refined = vae.posterior(x, samples=200, least_ess=150)
    assert set(refined.stage_names) == {"refined"}
    assert refined.passed.all()
    alone = vae.posterior(x, samples=200, stages="encoder", least_ess=200)
    assert not alone.passed.any()
    assert set(alone.stage_names) == {"encoder"}


def test_draws_are_chosen_with_the_weights_as_probabilities():
    z = torch.arange(3.0).reshape(3, 1, 1).expand(3, 2, 1)
    weights = torch.tensor([[0.5, 0.0], [0.2, 0.1], [0.3, 0.9]])
    chosen = resampled(z, weights.log() + 7, 20_000)
    shares = torch.stack([(chosen == value).double().mean((0, 2)) for value in range(3)])
    torch.testing.assert_close(shares, weights.double(), atol=0.015, rtol=0)


def test_an_instance_without_a_possible_draw_fails_and_can_still_be_resampled():
    log_weights = torch.zeros(30, 2)
    log_weights[:, 1] = -math.inf
    found = escalated(torch.zeros(2, 3), {"only": lambda x: (torch.randn(30, 2, 1), log_weights)}, least_ess=3)
    assert found.passed.tolist() == [True, False]
    assert found.log_likelihood[1] == -math.inf
    assert found.ess[1] == 1
    assert found.resample(7).shape == (7, 2, 1)
    assert found.mean.isfinite().all()


def test_batches_and_inference_mode():
    model = LinearGaussian(torch.randn(6, 2), torch.randn(6), 0.5)
    vae, x = model.vae("vae", known=True).train(), model.sample(130)
    with torch.inference_mode():
        draws = vae.posterior(x.clone(), samples=50, chunk_size=64)
    assert draws.z.shape == (50, 130, 2)
    assert len(draws.stage_names) == len(draws.passed) == 130
    assert vae.training


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"samples": 24}, "samples must be a whole number of at least 25, got 24"),
        ({"stages": ()}, "stages must be one or more of 'encoder', 'steps', 'refined', 'modes', 'annealed'"),
        ({"stages": ("refined", "best")}, "stages must be one or more of"),
        ({"stages": ("refined", "refined")}, "each at most once"),
        ({"least_ess": 0}, "least_ess must be a positive number, got 0"),
        ({"samples": 100, "least_ess": 101}, "least_ess must be at most the number of samples, 100, got 101"),
        ({"chunk_size": 0}, "chunk_size must be a whole number of at least 1"),
    ],
)
def test_bad_input_is_named_in_one_line(options, said):
    vae = gpin.build((6,), "vae", latent_dim=2, seed=0).eval()
    with pytest.raises(gpin.InputError, match=said) as caught:
        vae.posterior(torch.rand(3, 6), **options)
    assert "\n" not in str(caught.value)
