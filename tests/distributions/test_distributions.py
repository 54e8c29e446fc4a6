"""The Gaussian with random moments: its density, its samples, and its limits."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from gpin.distributions import DiagonalNormal, RandomMomentsNormal

MEAN, SCALE_STD = 0.3, 0.7
REGIMES = list(product((0.0, 0.3, 1.0, 2.0, 5.0, 8.5, 20.0), (0.05, 0.3, 1.0, 10.0)))  # h̄/s_h and s_f/s_h


def make(regime, dtype=torch.float64, **options):
    """One-dimensional, from h̄/s_h and s_f/s_h."""
    scale, mean_std = (SCALE_STD * ratio for ratio in regime)
    parameters = (torch.tensor([p], dtype=dtype) for p in (MEAN, mean_std, scale, SCALE_STD))
    return RandomMomentsNormal(*parameters, **options)


def spread_points(q, count):
    """Points z, and their weights dz, that are dense around the mean and reach 80 standard deviations."""
    t = torch.linspace(-12, 12, count, dtype=torch.float64)
    unit = 1e-3 * q.variance.sqrt()
    return q.mean + unit * torch.sinh(t), unit * torch.cosh(t) * (t[1] - t[0])


def integral(z, q):
    """q(z) by adaptive quadrature over h, in pieces that separate its scales."""
    scale, mean_std = q.scale.item(), q.mean_std.item()
    distance = abs(z - MEAN)

    def integrand(h):
        variance, u = mean_std**2 + h**2, (h - scale) / SCALE_STD
        return math.exp(-0.5 * (u**2 + distance**2 / variance)) / (2 * math.pi * SCALE_STD * math.sqrt(variance))

    low, high = scale - 12 * SCALE_STD, scale + 12 * SCALE_STD
    edges = (low, scale, 0.0, -mean_std, mean_std, -distance, distance, high)
    pieces = pairwise(sorted({min(max(edge, low), high) for edge in edges}))
    return sum(integrate.quad(integrand, *piece, epsrel=1e-10, limit=200)[0] for piece in pieces)


@pytest.mark.parametrize("regime", REGIMES)
def test_density_integrates_to_one(regime):
    q = make(regime)
    z, weights = spread_points(q, 2001)
    assert (q.log_prob(z.unsqueeze(-1)).exp() * weights).sum().item() == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("regime", REGIMES)
def test_density_is_the_integral_over_the_scale(regime):
    q = make(regime)
    z = q.mean + q.variance.sqrt() * torch.tensor([0.0, 0.03, -0.3, 1.0, -4.0], dtype=torch.float64)
    wanted = [math.log(integral(point, q)) for point in z.tolist()]
    assert q.log_prob(z.unsqueeze(-1)).tolist() == pytest.approx(wanted, abs=5e-7)


@pytest.mark.parametrize("regime", [(0.0, 0.05), (0.0, 1.0), (1.0, 0.3), (3.0, 0.05), (20.0, 1.0)])
def test_samples_follow_the_density(regime):
    count = 50_000
    q = make(regime)
    samples = q.rsample((count,)).squeeze(-1)
    z, weights = spread_points(q, 4001)
    distribution = (q.log_prob(z.unsqueeze(-1)).exp() * weights).cumsum(0)
    distance = stats.kstest(samples.numpy(), lambda s: np.interp(s, z, distribution)).statistic
    # Kolmogorov: √n·D exceeds 2.2 with probability 1.3e-4
    assert distance * math.sqrt(count) < 2.2

    standard_error = samples.std() / math.sqrt(count)
    assert (samples.mean() - q.mean).abs().item() < 4 * standard_error
    squares = (samples - q.mean).square()
    assert (squares.mean() - q.variance).abs().item() < 4 * squares.std() / math.sqrt(count)


def test_dimensions_and_instances_are_independent():
    ones = torch.ones(2, 3, dtype=torch.float64)
    samples = RandomMomentsNormal(0 * ones, 0.5 * ones, ones, 0.8 * ones).sample((100_000,)).flatten(1)
    # Dependence through a shared f shows in the products, through a shared h in the products of squares.
    for values in (samples, samples.square()):
        correlation = torch.corrcoef(values.T) - torch.eye(6)
        assert correlation.abs().max() < 4.5 / math.sqrt(len(samples))


@pytest.mark.parametrize("regime", [(0.0, 0.3), (0.7, 1.0), (-3.0, 0.5), (12.0, 0.1), (0.5, 10.0)])
def test_gradients_of_the_density_are_right(regime):
    q = make(regime)
    value = torch.tensor([[-0.4], [0.31], [2.0]], dtype=torch.float64)
    inputs = [t.clone().requires_grad_() for t in (q.loc, q.mean_std, q.scale, q.scale_std, value)]
    # Finite differences move the nodes too, and so see the quadrature's error: below 1e-7.
    assert torch.autograd.gradcheck(lambda *p: RandomMomentsNormal(*p[:4]).log_prob(p[4]), inputs, eps=1e-4, atol=2e-6)


def test_reparametrised_samples_carry_the_gradient_of_every_parameter():
    count, values = 200_000, (0.3, 0.4, 1.2, 0.5)
    parameters = [torch.full((count, 1), p, dtype=torch.float64, requires_grad=True) for p in values]
    # E z² = f̄² + s_f² + h̄² + s_h², whose gradient is twice each parameter
    slopes = torch.autograd.grad(RandomMomentsNormal(*parameters).rsample().square().sum(), parameters)
    for slope, value in zip(slopes, values, strict=True):
        assert (slope.mean() - 2 * value).abs() < 4 * slope.std() / math.sqrt(count)


@pytest.mark.parametrize("scale_std", [0.0, 1e-30, 1e-12])
@pytest.mark.parametrize("mean_std", [0.0, 0.5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
def test_certain_scale_is_the_plain_normal(mean_std, scale_std, dtype, tolerance):
    scale = torch.cat([torch.linspace(-3, -0.3, 20, dtype=dtype), torch.linspace(0.3, 3, 20, dtype=dtype)])
    one = torch.ones_like(scale)
    parameters = [p.unsqueeze(-1).requires_grad_() for p in (MEAN * one, mean_std * one, scale, scale_std * one)]
    value = torch.linspace(-2, 2, 7, dtype=dtype).reshape(-1, 1, 1)
    log_prob = RandomMomentsNormal(*parameters).log_prob(value)
    mean, mean_std, scale, _ = (p.detach().double() for p in parameters)
    wanted = Normal(mean, (mean_std.square() + scale.square()).sqrt()).log_prob(value.double()).sum(-1)
    torch.testing.assert_close(log_prob.double(), wanted, rtol=tolerance, atol=tolerance)
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(log_prob.sum(), parameters))


def test_certain_scale_of_zero_is_the_normal_of_the_mean():
    zero = torch.zeros(1, dtype=torch.float64)
    value = torch.linspace(-3, 3, 7, dtype=torch.float64).unsqueeze(-1)
    q = RandomMomentsNormal(zero + MEAN, zero + 0.5, zero, zero)
    torch.testing.assert_close(q.log_prob(value), Normal(zero + MEAN, zero + 0.5).log_prob(value).sum(-1))


def test_certain_mean_with_a_far_scale_is_nearly_normal():
    # s_f = 0 and s_h → 0: the log-density differs from the Normal's by O(s_h²)
    one = torch.ones(1, dtype=torch.float64)
    value = torch.tensor([[-1.0], [0.2], [2.0]], dtype=torch.float64)
    normal = Normal(0 * one, one).log_prob(value).sum(-1)
    small, smaller = (
        (RandomMomentsNormal(0 * one, 0 * one, one, std * one).log_prob(value) - normal).abs().max()
        for std in (1e-2, 1e-3)
    )
    assert small < 1e-3
    assert (smaller / small).item() == pytest.approx(1e-2, rel=1e-2)


@pytest.mark.parametrize("batch", [(), (3,), (4, 3)])
@pytest.mark.parametrize("sample", [(), (5,), (2, 5)])
def test_shapes_and_sums_over_the_last_dimension(batch, sample):
    parameters = [torch.rand(*batch, 2) + 0.1 for _ in range(4)]
    q = RandomMomentsNormal(*parameters)
    assert (q.batch_shape, q.event_shape) == (batch, (2,))
    z = q.rsample(sample)
    assert z.shape == (*sample, *batch, 2)
    log_prob = q.log_prob(z)
    assert log_prob.shape == (*sample, *batch)
    columns = zip(*(p.split(1, dim=-1) for p in parameters), z.split(1, dim=-1), strict=True)
    parts = [RandomMomentsNormal(*column[:4]).log_prob(column[4]) for column in columns]
    torch.testing.assert_close(log_prob, parts[0] + parts[1])


def test_parameters_broadcast():
    q = RandomMomentsNormal(torch.zeros(3, 2), torch.tensor(0.1), torch.ones(2), torch.tensor([[0.2]]))
    same = RandomMomentsNormal(*(torch.ones(3, 2) * p for p in (0.0, 0.1, 1.0, 0.2)))
    value = torch.linspace(-1, 1, 6).reshape(3, 2)
    torch.testing.assert_close(q.log_prob(value), same.log_prob(value))


@pytest.mark.parametrize("regime", REGIMES)
def test_float32_is_as_good_as_its_rounding(regime):
    q = make(regime, torch.float32)
    z = (q.mean + q.variance.sqrt() * torch.tensor([0.0, -0.1, 1.0, 5.0])).unsqueeze(-1)
    assert q.log_prob(z).dtype == torch.float32
    torch.testing.assert_close(q.log_prob(z).double(), make(regime).log_prob(z.double()), rtol=0, atol=5e-6)


def test_more_nodes_are_more_exact():
    hard = (2.0, 0.02)
    errors = []
    for nodes in (32, 64, 128):
        q = make(hard, nodes=nodes)
        errors.append(abs(q.log_prob(q.mean).item() - math.log(integral(MEAN, q))))
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


def test_diagonal_normal_is_a_vector_distribution():
    mean, std, value = torch.randn(3, 2), torch.rand(3, 2) + 0.1, torch.randn(5, 3, 2)
    q = DiagonalNormal(mean, std)
    dense = MultivariateNormal(mean, torch.diag_embed(std.square()))
    torch.testing.assert_close(q.log_prob(value), dense.log_prob(value))
    standard = Independent(Normal(torch.zeros(3, 2), torch.ones(3, 2)), 1)
    dense_standard = MultivariateNormal(torch.zeros(3, 2), torch.eye(2))
    torch.testing.assert_close(kl_divergence(q, standard), kl_divergence(dense, dense_standard))
