"""The covariance families against dense algebra."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, kl_divergence

from gpin.inference.gp.bayesian_linear import (
    COVARIANCES,
    BayesianLinear,
    DeterministicLinear,
    DiagonalLinear,
    FullLinear,
    SharedBasisLinear,
)

FAMILIES = list(COVARIANCES.values())
SIZES = [(1, 1), (3, 2), (8, 1), (9, 4), (13, 2), (16, 3)]  # p < 8, p = 8, and p not divisible by 8


def random(family, features, outputs, seed=0) -> BayesianLinear:
    """A member of the family with every parameter drawn at random, in float64."""
    generator = torch.Generator().manual_seed(seed)
    linear = family(features, outputs).double()
    with torch.no_grad():
        for name, parameter in linear.named_parameters():
            draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            # off-diagonal entries shrink with p, so that the dense algebra stays well conditioned
            parameter.copy_(0.5 * draw - 0.5 if name.startswith("log_") else draw / math.sqrt(features))
    return linear


def dense_moments(linear, features):
    return features @ linear.mean.T, torch.einsum("bp,dpq,bq->bd", features, linear.covariance(), features)


def dense_kl(linear):
    q = MultivariateNormal(linear.mean, linear.covariance())
    size = linear.features
    return kl_divergence(q, MultivariateNormal(linear.mean.new_zeros(size), torch.eye(size).to(linear.mean))).sum()


@settings(deadline=None, max_examples=40)
@given(
    family=st.sampled_from(FAMILIES),
    features=st.integers(1, 20),
    outputs=st.integers(1, 4),
    batch=st.integers(0, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_moments_and_kl_match_dense_algebra(family, features, outputs, batch, seed):
    linear = random(family, features, outputs, seed)
    psi = torch.randn(batch, features, generator=torch.Generator().manual_seed(seed)).double()
    mean, variance = linear.moments(psi)
    assert mean.shape == variance.shape == (batch, outputs)
    torch.testing.assert_close((mean, variance), dense_moments(linear, psi))
    torch.testing.assert_close(linear.kl(), dense_kl(linear))
    trace, log_det = linear.trace_and_log_det()
    covariance = linear.covariance()
    torch.testing.assert_close(trace, covariance.diagonal(dim1=1, dim2=2).sum())
    torch.testing.assert_close(log_det, covariance.logdet().sum())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("features", "outputs"), [(3, 2), (9, 2)])
def test_sampled_weights_have_the_stated_moments(family, features, outputs):
    count = 100_000
    linear = random(family, features, outputs)
    weights = linear.sample_weights(count).detach()
    assert weights.shape == (count, outputs, features)
    flat, wanted_mean = weights.flatten(1), linear.mean.detach().flatten()
    wanted = torch.block_diag(*linear.covariance().detach())  # different outputs are independent
    variances = wanted.diagonal()
    # Monte-Carlo errors of a mean and of a covariance of Gaussians; 5 of them for some 300 entries
    assert ((flat.mean(0) - wanted_mean).abs() < 5 * (variances / count).sqrt()).all()
    error = ((variances.outer(variances) + wanted.square()) / count).sqrt()
    assert ((flat.T.cov() - wanted).abs() < 5 * error).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_weights_carry_gradients_to_every_parameter(family):
    linear = random(family, 10, 2)
    linear.sample_weights(50).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in linear.parameters())


def assert_agree(one, other):
    """Two families that stand for the same distribution say the same."""
    psi = torch.randn(5, one.features, dtype=torch.float64)
    torch.testing.assert_close(one.covariance(), other.covariance())
    torch.testing.assert_close(one.moments(psi), other.moments(psi))
    torch.testing.assert_close(one.kl(), other.kl())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("features", "outputs"), SIZES)
def test_every_family_can_be_written_as_full(family, features, outputs):
    linear = random(family, features, outputs)
    full = FullLinear(features, outputs).double()
    full.set_covariance(linear.covariance())
    full.mean.data.copy_(linear.mean)
    assert_agree(linear, full)


@pytest.mark.parametrize(("features", "outputs"), SIZES)
def test_diagonal_is_the_shared_basis_without_a_basis(features, outputs):
    diagonal, shared = random(DiagonalLinear, features, outputs), SharedBasisLinear(features, outputs).double()
    shared.load_state_dict({**diagonal.state_dict(), "basis": torch.zeros(features, features)})
    assert_agree(diagonal, shared)


@pytest.mark.parametrize("features", [1, 5, 8, 11])
def test_shared_basis_with_one_output_is_every_covariance(features):
    full, shared = random(FullLinear, features, 1), SharedBasisLinear(features, 1).double()
    root = torch.linalg.cholesky(full.covariance()[0])  # Σ = LLᵀ = U diag(a²) Uᵀ with U = L diag(a)⁻¹
    stds = root.diagonal()
    shared.load_state_dict({"mean": full.mean, "log_std": stds.log().unsqueeze(0), "basis": root / stds})
    assert_agree(full, shared)


@pytest.mark.parametrize("family", [SharedBasisLinear, FullLinear])
def test_entries_above_the_diagonal_do_nothing(family):
    linear = random(family, 11, 2)
    before = linear.covariance().clone()
    with torch.no_grad():
        if family is SharedBasisLinear:
            linear.basis += torch.ones_like(linear.basis).triu()
        else:
            for block in linear.blocks:
                size = block.shape[2]
                block[:size] += torch.ones(size, size).triu().unsqueeze(1)
    psi = torch.randn(4, 11, dtype=torch.float64)
    torch.testing.assert_close(linear.covariance(), before)
    torch.testing.assert_close(linear.variance(psi), torch.einsum("bp,dpq,bq->bd", psi, before, psi))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("features", "outputs"), SIZES)
@pytest.mark.parametrize("std", [0.02, 1.0, 0.0])
def test_reset_is_a_scaled_identity(family, features, outputs, std):
    linear = random(family, features, outputs)
    linear.reset(std)
    psi = torch.randn(4, features, dtype=torch.float64, requires_grad=True)
    mean, variance = linear.moments(psi)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=0)
    torch.testing.assert_close(variance, (std * psi).square().sum(-1, keepdim=True).expand_as(variance))
    torch.testing.assert_close(linear.covariance(), std**2 * torch.eye(features).double().expand(outputs, -1, -1))
    if std == 1:  # the prior itself
        assert linear.kl().item() == pytest.approx(0, abs=1e-12)
    if std == 0:
        assert (linear.sample_weights(3) == 0).all()
        slopes = torch.autograd.grad(variance.sum(), [psi, *linear.parameters()], allow_unused=True)
        assert all(slope.isfinite().all() for slope in slopes if slope is not None)


@pytest.mark.parametrize("family", FAMILIES)
def test_construction_starts_at_the_given_std(family):
    linear = family(5, 2, std=0.3)
    torch.testing.assert_close(linear.covariance(), 0.09 * torch.eye(5).expand(2, -1, -1))
    assert (linear.mean == 0).all()


class Call(torch.nn.Module):
    """One method of a module as its forward, so that functional_call can exchange the parameters."""

    def __init__(self, module, method):
        super().__init__()
        self.module, self.method = module, method

    def forward(self, *arguments):
        return getattr(self.module, self.method)(*arguments)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("features", "outputs"), [(1, 1), (3, 2), (9, 2)])
def test_gradients_of_variance_and_kl_are_right(family, features, outputs):
    linear = random(family, features, outputs)
    names = [f"module.{name}" for name, _ in linear.named_parameters()]
    values = [parameter.detach().clone().requires_grad_() for parameter in linear.parameters()]
    psi = torch.randn(2, features, dtype=torch.float64, requires_grad=True)

    def call(method, values, *arguments):
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(Call(linear, method), parameters, arguments)

    assert torch.autograd.gradcheck(lambda psi, *values: call("variance", values, psi), (psi, *values))
    assert torch.autograd.gradcheck(lambda *values: call("kl", values), values)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_follows_float64(family):
    exact = random(family, 37, 3)
    single = random(family, 37, 3).float()
    psi = torch.randn(6, 37, dtype=torch.float64)
    torch.testing.assert_close(single.variance(psi.float()).double(), exact.variance(psi), rtol=1e-5, atol=0)
    torch.testing.assert_close(single.kl().double(), exact.kl(), rtol=1e-5, atol=0)


def test_full_stores_little_more_than_the_triangles():
    # about 1 + 1/8 of d·p(p + 1)/2, where dense factors would be twice that
    linear = FullLinear(256, 10)
    stored = sum(parameter.numel() for parameter in linear.blocks)
    assert stored < 1.13 * 10 * 256 * 257 / 2


def test_certain_weights_have_no_variance_and_no_cost():
    linear = DeterministicLinear(5, 3)
    torch.nn.init.normal_(linear.mean)
    psi = torch.randn(4, 5)
    mean, variance = linear.moments(psi)
    torch.testing.assert_close(mean, psi @ linear.mean.T)
    assert torch.equal(variance, torch.zeros(4, 3))
    assert torch.equal(linear.covariance(), torch.zeros(3, 5, 5))
    assert torch.equal(linear.sample_weights(2), linear.mean.expand(2, -1, -1))
    assert linear.kl() == 0
    assert linear.trace_and_log_det()[0] == 0
    assert linear.trace_and_log_det()[1] == -math.inf
    assert [name for name, _ in linear.named_parameters()] == ["mean"]


def test_names_and_sizes_are_shown():
    assert set(COVARIANCES) == {"full", "diagonal", "shared_basis"}
    assert "features=5, outputs=3" in repr(FullLinear(5, 3))
