"""The heteroscedastic Gaussian against torch.distributions, its Fisher information, and models that use it."""

import math

import pytest
import torch
from torch import distributions as td

import gpin
from gpin.inference import METHODS
from gpin.likelihoods import Heteroscedastic, HeteroscedasticOptions
from gpin.networks import ARCHITECTURES

SHAPE = (2, 3, 4)
LEADING = [(), (5,), (7, 5), (2, 7, 5)]  # of the output; the last is the batch


def likelihood(shape=SHAPE, **options):
    return Heteroscedastic(shape, HeteroscedasticOptions(**options))


def truth(one, output):
    """torch's Normal with the same mean and variance."""
    mean, log_variance = output.unbind(-len(one.shape) - 1)
    return td.Independent(td.Normal(mean, (one.options.min_variance + log_variance.exp()).sqrt()), len(one.shape))


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("floor", [1e-4, 0.3])
def test_the_density_is_that_of_torch(leading, floor, double):
    one = likelihood(min_variance=floor)
    x, output = torch.rand(*leading[-1:], *SHAPE), torch.randn(*leading, *one.output_shape)
    wanted = truth(one, output)
    assert one.output_shape == (2, *SHAPE)
    torch.testing.assert_close(one.log_prob(x, output), wanted.log_prob(x))
    torch.testing.assert_close(one.mean(output), wanted.mean)
    assert one.log_prob(x, output).shape == leading


def test_the_score_is_the_gradient_and_the_precision_its_expected_outer_product(double):
    """W = E[r rᵀ] over x given the output, which equals minus the expected second derivative."""
    one = likelihood((3,), min_variance=0.2)
    output = torch.randn(2, 3)
    x = truth(one, output).sample((400_000,))  # (draws, 3)
    many = output.expand(len(x), 2, 3)
    score, precision = one.score_and_precision(x, many)
    assert score.shape == precision.shape == many.shape
    gradient = torch.func.vmap(torch.func.grad(one.log_prob, argnums=1))(x[:5], many[:5])
    torch.testing.assert_close(score[:5], gradient)
    flat = score.flatten(1)
    outer = flat.T @ flat / len(x)
    torch.testing.assert_close(outer, torch.diag(precision[0].flatten()), rtol=0.02, atol=0.02)
    # Without a floor W would be diag(1/σ², ½).
    plain = likelihood((3,), min_variance=1e-12).score_and_precision(x, many)[1][0]
    torch.testing.assert_close(plain, torch.stack([(-output[1]).exp(), torch.full((3,), 0.5)]))


@pytest.mark.parametrize("log_variance", [-200.0, -30.0, 0.0, 30.0])
def test_the_precision_has_a_root_with_a_gradient_for_any_variance(log_variance):
    one = likelihood((1,))
    output = torch.tensor([[[0.0], [log_variance]]], requires_grad=True)
    score, precision = one.score_and_precision(torch.ones(1, 1), output)
    (precision.sqrt().sum() + score.sum()).backward()
    assert output.grad.isfinite().all()
    assert (one.variance(output) >= 1e-4).all()


def test_samples_have_the_stated_moments():
    one, count = likelihood(), 20_000
    output = torch.randn(2, *SHAPE)
    samples = one.sample(output.expand(count, 2, *SHAPE))
    wanted = truth(one, output)
    assert samples.shape == (count, *SHAPE)
    assert ((samples.mean(0) - wanted.mean).abs() < 4.5 * (wanted.variance / count).sqrt()).all()
    assert ((samples.var(0) - wanted.variance).abs() < 4.5 * wanted.variance * math.sqrt(2 / count)).all()


@pytest.mark.parametrize("start", [0.0, 0.3])
def test_the_output_is_centred_on_the_mean_and_the_variance_of_the_data(start):
    x = torch.randn(500, 6) * torch.linspace(0.1, 2.0, 6) + torch.arange(6.0)
    vae = gpin.build((6,), "vae", 2, likelihood={"kind": "heteroscedastic", "initial_variance": start}, seed=0)
    vae.prepare(x)
    torch.nn.init.zeros_(vae.decoder[4].weight)
    torch.nn.init.zeros_(vae.decoder[4].bias)
    output = vae.decoder(torch.zeros(1, 2))
    torch.testing.assert_close(vae.likelihood.mean(output)[0], x.mean(0), rtol=1e-4, atol=1e-4)
    wanted = start or x.var(0, correction=0).mean().item()
    torch.testing.assert_close(vae.likelihood.variance(output)[0], torch.full((6,), wanted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_with_it(method, tmp_path):
    shape, x = (5,), torch.rand(40, 5)
    vae = gpin.build(shape, method, 2, likelihood="heteroscedastic", architecture={"width": 8}, seed=0)
    history = gpin.fit(vae, x, x[:9], epochs=4, batch_size=16, learning_rate=3e-3, progress=False)
    assert history.train[-1] > history.train[0]
    assert vae.reconstruct(x).shape == vae.sample(40, noise=True).shape == x.shape
    refined = vae.log_likelihood(x[:4], 30, "refined")
    assert refined.values.isfinite().all()
    vae.save(tmp_path)
    again = gpin.load(tmp_path)
    assert again.config == vae.config
    with torch.no_grad():
        torch.manual_seed(0)
        first = vae.elbo(x).value
        torch.manual_seed(0)
        assert torch.equal(again.elbo(x).value, first)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_emits_it(architecture):
    x = torch.rand(30, 1, 9, 8)
    vae = gpin.build((1, 9, 8), "vae", 2, likelihood="heteroscedastic", architecture=architecture, seed=0)
    gpin.fit(vae, x, x[:9], epochs=1, progress=False)
    assert vae.decoder(torch.zeros(3, 4, 2)).shape == (3, 4, 2, 1, 9, 8)
    assert vae.log_likelihood(x[:3], 5, "refined").values.isfinite().all()


@pytest.mark.parametrize("method", ["vae", "vlae"])
def test_refinement_finds_the_mode(method, double):
    vae = gpin.build((5,), method, 2, likelihood="heteroscedastic", architecture={"width": 8}, seed=0)
    vae.decoder[1] = vae.decoder[3] = torch.nn.Tanh()  # the gradient need not vanish at a mode where ReLU has a kink
    x = torch.rand(12, 5)
    vae.prepare(x)
    q = vae.eval().refine(x, steps=200, tolerance=1e-13)
    z = q.mean.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(vae.log_joint(x, z).sum(), z)
    assert gradient.abs().max() < 1e-3
    assert (vae.log_joint(x, z) >= vae.log_joint(x, vae.encode(x).mean)).all()


def test_it_finds_which_pixels_are_noisy_where_one_variance_cannot():
    """x = σ(z) ε with σ from a latent class: the noise depends on z, the mean does not."""
    torch.manual_seed(0)
    noisy = torch.rand(600, 1) < 0.5
    x = torch.where(noisy, 1.0, 0.1) * torch.randn(600, 8)
    scores = {}
    for kind in ("gaussian", "heteroscedastic"):
        vae = gpin.build((8,), "vae", 1, likelihood=kind, architecture={"width": 32}, seed=0)
        gpin.fit(vae, x[:500], x[500:], epochs=40, batch_size=50, learning_rate=3e-3, progress=False)
        scores[kind] = vae.log_likelihood(x[500:], 50).mean
    assert scores["heteroscedastic"] > scores["gaussian"] + 2
