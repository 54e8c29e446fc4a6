"""Curvatures that are more than a diagonal, against autograd's Hessians."""

import itertools

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch import nn
from torch.distributions import Categorical, MultivariateNormal

import gpin
from gpin.likelihoods import Likelihood
from gpin.refinement import GaussNewton, GaussNewtonConfig
from gpin.refinement.gauss_newton import linearise

D = 2


class Correlated(Likelihood):
    """N(x; output, Σ) with a dense Σ."""

    def __init__(self, shape, covariance):
        super().__init__(shape)
        self.covariance = covariance

    def log_prob(self, x, output):
        return MultivariateNormal(output, self.covariance).log_prob(x)

    def mean(self, output):
        return output

    def sample(self, output):
        return MultivariateNormal(output, self.covariance).sample()

    def score_and_precision(self, x, output):
        precision = torch.linalg.inv(self.covariance)
        factor = torch.linalg.cholesky(precision).mT  # RᵀR = L Lᵀ
        return (x - output) @ precision, factor.expand(len(x), *factor.shape)


class Choices(Likelihood):
    """Every value is one of three, with the output `(..., batch, 3, *shape)` as logits: W = diag(p) − ppᵀ per value."""

    outputs = 3
    density = False

    def log_prob(self, x, output):
        return Categorical(logits=output.movedim(-2, -1)).log_prob(x).sum(-1)

    def mean(self, output):
        return (output.softmax(-2) * torch.arange(3.0).unsqueeze(-1)).sum(-2)

    def sample(self, output):
        return Categorical(logits=output.movedim(-2, -1)).sample()

    def score_and_precision(self, x, output):
        p = output.softmax(-2)
        score = nn.functional.one_hot(x.long(), 3).movedim(-1, -2) - p
        # diag(√p)(I − 1pᵀ) of every value, and nothing between values.
        block = p.sqrt().unsqueeze(2) * (torch.eye(3).unsqueeze(-1) - p.unsqueeze(1))  # (batch, 3, 3, values)
        return score, torch.diag_embed(block).movedim(-2, 2).flatten(1, 2)  # (batch, 3 · values, 3, values)


def smooth(outputs):
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, outputs))


def vae_of(decoder, likelihood):
    return gpin.VAE(gpin.build(likelihood.shape, "vae", D, architecture={"width": 4}).inference, decoder, likelihood)


def hessians(vae, x, z):
    """−∂² log p(x, z)/∂z², `(batch, d, d)`, by autograd."""
    return torch.stack(
        [
            -torch.autograd.functional.hessian(lambda at, i=i: vae.log_joint(x[i : i + 1], at[None])[0], z[i])
            for i in range(len(x))
        ]
    )


def gradients(vae, x, z):
    at = z.clone().requires_grad_()
    return torch.autograd.grad(vae.log_joint(x, at).sum(), at)[0]


@pytest.fixture
def correlated(double):
    root = torch.randn(6, 6)
    return vae_of(smooth(6), Correlated((6,), root @ root.T + torch.eye(6)))


@pytest.fixture
def choices(double):
    return vae_of(nn.Sequential(smooth(12), nn.Unflatten(-1, (3, 4))), Choices((4,)))


def test_a_dense_precision_gives_the_hessian_where_the_residual_is_zero(correlated):
    z = torch.randn(5, D)
    x = correlated.decoder(z).detach()
    factor, gradient = linearise(correlated, x, z)
    torch.testing.assert_close(factor @ factor.mT, hessians(correlated, x, z))
    torch.testing.assert_close(gradient, gradients(correlated, x, z))


def test_a_singular_curvature_per_value_gives_the_expected_hessian(choices):
    """The expectation is a sum over all 3⁴ values that x can take."""
    z = torch.randn(3, D)
    expected = torch.zeros(3, D, D)
    for values in itertools.product(range(3), repeat=4):
        x = torch.tensor(values, dtype=z.dtype).expand(3, 4)
        weight = choices.log_conditional(x, z).exp()
        expected += weight[:, None, None] * hessians(choices, x, z)
    x = torch.randint(3, (3, 4)).to(z.dtype)
    factor, gradient = linearise(choices, x, z)
    torch.testing.assert_close(factor @ factor.mT, expected.detach())
    torch.testing.assert_close(gradient, gradients(choices, x, z))


def test_refinement_with_a_factor_is_exact_for_a_linear_gaussian_model(double):
    truth = LinearGaussian.random(size=6, latent_dim=D)
    vae = truth.vae("vae", known=True)
    root = torch.randn(6, 6)
    covariance = root @ root.T + torch.eye(6)
    vae.likelihood = Correlated((6,), covariance)
    x = truth.sample(7)
    q = vae.refine(x, steps=1)
    precision = truth.matrix.T @ torch.linalg.solve(covariance, truth.matrix) + torch.eye(D)
    mean = torch.linalg.solve(precision, truth.matrix.T @ torch.linalg.solve(covariance, (x - truth.offset).T)).T
    torch.testing.assert_close(q.mean, mean)
    torch.testing.assert_close(q.covariance_matrix, torch.linalg.inv(precision).expand(7, D, D))


def test_the_search_finds_the_mode_of_several_outputs_per_value(choices):
    x = torch.randint(3, (6, 4)).double()
    q = GaussNewton(GaussNewtonConfig(steps=100, tolerance=1e-13))(x, choices.encode(x), choices)
    assert gradients(choices, x, q.mean).abs().max() < 1e-4


def test_chunks_are_laid_by_the_size_of_the_output(choices, monkeypatch):
    from gpin.refinement import gauss_newton

    x, z = torch.randint(3, (6, 4)).double(), torch.randn(6, D)
    whole, sizes, jacobian = linearise(choices, x, z), [], gauss_newton.jacobian
    monkeypatch.setattr(gauss_newton, "CHUNK", 2 * D * 12)  # two Jacobians of twelve outputs
    monkeypatch.setattr(gauss_newton, "jacobian", lambda *parts: sizes.append(len(parts[-1])) or jacobian(*parts))
    for one, other in zip(whole, linearise(choices, x, z), strict=True):
        torch.testing.assert_close(one, other)
    assert sizes == [2, 2, 2]


def test_a_curvature_of_another_shape_is_refused(correlated):
    correlated.likelihood.score_and_precision = lambda x, output: (x - output, torch.ones(len(x), 6, 5))
    with pytest.raises(gpin.InputError, match=r"curvature has shape \(2, 6, 5\)"):
        correlated.refine(torch.rand(2, 6))
