"""The refinements behind one interface: what version 0.1.0 computed, and what any posterior can expect of them."""

import json
from pathlib import Path

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch.distributions import Independent, MultivariateNormal, Normal

import gpin
from gpin.distributions import DiagonalNormal, PrecisionNormal
from gpin.generative import Generative
from gpin.inference import RefinedEncoder
from gpin.inference.gaussian import GaussianEncoder
from gpin.networks import Dense, DenseOptions
from gpin.refinement import (
    GaussNewton,
    GaussNewtonConfig,
    Gradient,
    GradientConfig,
    Laplace,
    LaplaceConfig,
    Natural,
    NaturalConfig,
    QuasiNewton,
    Refinement,
)

PINNED = json.loads((Path(__file__).parents[1] / "golden" / "refinement.json").read_text())

REFINEMENTS = {
    "gradient": Gradient(),
    "gradient, fixed steps": Gradient(GradientConfig(line_search="none", momentum=0.5, clip=1.0, inner_samples=3)),
    "Laplace": Laplace(),
    "Gauss-Newton": GaussNewton(),
    "quasi-Newton": QuasiNewton(),
    "natural": Natural(NaturalConfig(steps=2)),
}
every = pytest.mark.parametrize("refinement", REFINEMENTS.values(), ids=REFINEMENTS)


@pytest.mark.parametrize("case", PINNED.values(), ids=PINNED)
def test_numbers_are_those_of_version_0_1_0(case, double):
    """Of q(z|x), of the loss with every gradient through the steps, and of Gauss–Newton after training."""
    vae = gpin.build(
        (5,), case["method"], 2, architecture={"width": 6}, likelihood=case["likelihood"], seed=0, **case["options"]
    )
    x = torch.rand(7, 5)
    vae.prepare(x)
    vae.eval()
    torch.manual_seed(1)
    q = vae.encode(x)
    torch.manual_seed(2)
    loss = vae.loss(x, samples=2)
    loss.backward()
    torch.manual_seed(3)
    refined = GaussNewton(GaussNewtonConfig(steps=5, tolerance=1e-6))(x, vae.encode(x), vae)
    found = {
        "mean": q.mean,
        "variance": q.variance,
        "loss": loss,
        "refined_mean": refined.mean,
        "refined_factor": refined.factor,
    }
    for name, value in found.items():
        # A search of several steps amplifies the rounding of a processor: by 1e-8 from an Intel Xeon to an AMD EPYC.
        torch.testing.assert_close(value.detach(), torch.tensor(case[name]), rtol=1e-7, atol=1e-7, msg=name)
    gradients = {name: p.grad.norm().item() for name, p in vae.named_parameters() if p.grad is not None}
    assert gradients == pytest.approx(case["gradient"], rel=1e-5, abs=1e-9)


def model_and_data():
    truth = LinearGaussian.random(size=6, latent_dim=2, variance=0.3)
    vae, x = truth.vae("vae", known=True).eval(), truth.sample(20)
    assert isinstance(vae, Generative)
    return vae, x


def posteriors_for(vae, x):
    """The same moments in several classes of distributions: torch's own, gpin's, and one with a full precision."""
    with torch.no_grad():
        q = vae.encode(x)
    factor = torch.diag_embed(1 / q.stddev)
    return [
        q,
        Independent(Normal(q.mean, q.stddev), 1),
        MultivariateNormal(q.mean, torch.diag_embed(q.variance)),
        PrecisionNormal(q.mean, factor),
    ]


@every
def test_any_posterior_can_be_refined_and_only_its_moments_matter(refinement):
    vae, x = model_and_data()
    found = []
    for q in posteriors_for(vae, x):
        torch.manual_seed(1)
        refined = refinement(x, q, vae)
        assert (refined.batch_shape, refined.event_shape) == (q.batch_shape, q.event_shape)
        found.append(refined)
    for other in found[1:]:
        torch.testing.assert_close(other.mean, found[0].mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other.variance, found[0].variance, rtol=1e-4, atol=1e-5)


@every
def test_a_refined_posterior_has_the_higher_bound(refinement):
    vae, x = model_and_data()

    def bound(q):
        z = q.sample((2000,))
        return (vae.log_joint(x, z) - q.log_prob(z)).mean().item()

    q = vae.encode(x)
    assert bound(refinement(x, q, vae)) > bound(q)


@every
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off_and_leaves_the_posterior_alone(refinement, mode):
    vae, x = model_and_data()
    torch.manual_seed(1)
    expected = refinement(x, vae.encode(x), vae)
    with mode():
        q = vae.encode(x)
        mean = q.mean.clone()
        torch.manual_seed(1)
        found = refinement(x, q, vae)
        assert torch.equal(q.mean, mean)
    assert not found.mean.requires_grad
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


@every
def test_an_instance_is_refined_as_it_would_be_alone(refinement, monkeypatch):
    vae, x = model_and_data()
    noise = torch.randn(3, len(x), 2)
    q = vae.encode(x)
    rows = slice(0, len(x))
    monkeypatch.setattr(torch, "randn", lambda shape, **_: noise[: shape[0], rows])
    together = refinement(x, q, vae).mean
    for i in (0, 7):
        rows = slice(i, i + 1)
        alone = refinement(x[rows], DiagonalNormal(q.mean[rows], q.stddev[rows]), vae).mean
        torch.testing.assert_close(together[rows], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gradient", "gradient, fixed steps", "Laplace", "natural"])
def test_gradients_pass_through_to_the_posterior_that_was_given(name, double):
    """Against finite differences, with respect to the mean and the standard deviation that came in."""
    vae, x = model_and_data()
    x = x[:3]
    parameters = vae.encode(x).mean.detach().requires_grad_(), vae.encode(x).stddev.detach().requires_grad_()

    def refined(mean, std):
        torch.manual_seed(1)
        q = REFINEMENTS[name](x, DiagonalNormal(mean, std), vae)
        return q.mean, q.variance

    assert torch.autograd.gradcheck(refined, parameters, rtol=1e-4, atol=1e-6)


def test_the_search_takes_no_more_steps_than_its_options_say():
    vae, x = model_and_data()
    q = vae.encode(x)
    still = GaussNewton(GaussNewtonConfig(steps=0))(x, q, vae)
    assert torch.equal(still.mean, q.mean)
    one = GaussNewton(GaussNewtonConfig(steps=1))(x, q, vae)
    exact = LinearGaussian.of(vae).posterior(x)
    torch.testing.assert_close(one.mean, exact.mean, rtol=1e-4, atol=1e-4)  # a linear decoder needs one


class Halfway(Refinement[DiagonalNormal]):
    """A refinement from outside: the mean moves half of the way to zero."""

    def refine(self, x, q, model):
        return DiagonalNormal(q.mean / 2, q.stddev)


class HalfwayEncoder(RefinedEncoder):
    """And an inference model made of an encoder and that refinement."""

    name, Options = "halfway", LaplaceConfig

    def __init__(self, make_trunk, latent_dim, options=None):
        super().__init__(make_trunk, latent_dim, options)
        self.base, self.refinement = GaussianEncoder(make_trunk, latent_dim), Halfway()

    def encode(self, x, model):
        return self.base(x, model)


def test_an_inference_model_is_an_encoder_and_a_refinement():
    vae, x = model_and_data()
    inference = HalfwayEncoder(Dense((6,), DenseOptions(width=4)).trunk, 2)
    composed = gpin.VAE(inference, vae.decoder, vae.likelihood)
    torch.testing.assert_close(composed.encode(x).mean, inference.base(x, composed).mean / 2)
    composed.loss(x).backward()
    assert inference.base.head.weight.grad.abs().sum() > 0
