"""The distributions behind flows, mixtures and Laplace, against dense algebra and autograd."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal

from gpin.distributions import (
    CholeskyNormal,
    DiagonalNormal,
    FlowNormal,
    LowRankNormal,
    NormalMixture,
    PrecisionNormal,
    ReflectedNormal,
    TemperedDistribution,
    as_normal,
    rsample_and_log_prob,
    sample_and_log_prob,
    tempered,
)
from gpin.inference.iaf import GatedAffine

BATCH, D = 3, 4
pytestmark = pytest.mark.usefixtures("double")


def random_precision():
    root = torch.randn(BATCH, D, D)
    return root @ root.mT + torch.eye(D)


def assert_moments(q, mean, covariance, count=100_000):
    z = q.rsample((count,)).detach()
    centred = z - mean
    sampled = torch.einsum("nbi,nbj->bij", centred, centred) / count
    spread = (
        covariance.diagonal(dim1=1, dim2=2).unsqueeze(2) * covariance.diagonal(dim1=1, dim2=2).unsqueeze(1)
    ).sqrt()
    assert ((z.mean(0) - mean).abs() < 5 * covariance.diagonal(dim1=1, dim2=2).sqrt() / math.sqrt(count)).all()
    assert ((sampled - covariance).abs() < 5 * math.sqrt(2 / count) * spread).all()


def test_a_normal_from_its_precision_is_the_dense_one():
    mean, precision = torch.randn(BATCH, D), random_precision()
    q = PrecisionNormal(mean, torch.linalg.cholesky(precision))
    dense = MultivariateNormal(mean, precision_matrix=precision)
    z = torch.randn(5, BATCH, D)
    torch.testing.assert_close(q.log_prob(z), dense.log_prob(z))
    torch.testing.assert_close(q.covariance_matrix, dense.covariance_matrix)
    torch.testing.assert_close(q.variance, dense.variance)
    torch.testing.assert_close(q.entropy(), dense.entropy())
    assert_moments(q, mean, dense.covariance_matrix)


def some_normals():
    """One Gaussian of each class with a covariance of its own, all different."""
    mean, std = torch.randn(BATCH, D), torch.rand(BATCH, D) + 0.1
    lower = torch.diag_embed(std) + torch.randn(BATCH, D, D).tril(-1)
    return [
        DiagonalNormal(mean, std),
        CholeskyNormal(mean, lower),
        CholeskyNormal(mean, lower, std.log()),
        LowRankNormal(mean, std, torch.randn(BATCH, D, 2)),
        PrecisionNormal(mean, torch.linalg.cholesky(random_precision())),
        ReflectedNormal(DiagonalNormal(mean, std), torch.randn(3, BATCH, D)),
    ]


def test_the_root_of_a_low_rank_covariance_is_differentiable_and_fails_for_single_instances():
    directions = torch.zeros(3, D, 2, requires_grad=True)
    q = LowRankNormal(torch.zeros(3, D), torch.ones(3, D), directions)
    q.root_times(torch.randn(4, 3, D)).sum().backward()
    assert directions.grad.isfinite().all()
    huge = torch.zeros(3, D, 2)
    huge[1] = 1e30
    root = LowRankNormal(torch.zeros(3, D), torch.ones(3, D), huge).root_times(torch.ones(3, D))
    assert root[[0, 2]].isfinite().all()
    assert not root[1].isfinite().all()


@pytest.mark.parametrize("index", range(6))
def test_every_normal_agrees_with_the_dense_one(index):
    q = some_normals()[index]
    covariance = getattr(q, "covariance_matrix", torch.diag_embed(q.variance))
    dense = MultivariateNormal(q.mean, covariance)
    z, vector = torch.randn(5, BATCH, D), torch.randn(BATCH, D)
    torch.testing.assert_close(q.log_prob(z), dense.log_prob(z))
    torch.testing.assert_close(q.variance, dense.variance)
    torch.testing.assert_close(q.covariance_times(vector), (covariance @ vector.unsqueeze(-1)).squeeze(-1))
    root = torch.stack([q.root_times(e.expand(2, BATCH, D))[1] for e in torch.eye(D)], -1)
    torch.testing.assert_close(root @ root.mT, covariance)
    standard = MultivariateNormal(torch.zeros(D), torch.eye(D)).expand([BATCH])
    torch.testing.assert_close(q.standard_normal_kl(), torch.distributions.kl_divergence(dense, standard))
    moved = q.with_mean(vector)
    torch.testing.assert_close(moved.mean, vector)
    torch.testing.assert_close(moved.log_prob(z), MultivariateNormal(vector, covariance).log_prob(z))
    assert as_normal(q) is q


@pytest.mark.parametrize("index", [1, 3])
def test_samples_of_full_and_low_rank_normals_have_their_moments(index):
    q = some_normals()[index]
    assert_moments(q, q.mean, q.covariance_matrix)
    assert q.rsample().shape == (BATCH, D)
    torch.testing.assert_close(q.entropy(), MultivariateNormal(q.mean, q.covariance_matrix).entropy())


def test_other_distributions_are_represented_by_their_means_and_variances():
    q = NormalMixture(torch.randn(BATCH, 3).log_softmax(-1), torch.randn(BATCH, 3, D), torch.rand(BATCH, 3, D) + 0.1)
    for other in (q, Independent(Normal(q.mean, q.stddev), 1)):
        normal = as_normal(other)
        torch.testing.assert_close(normal.mean, q.mean)
        torch.testing.assert_close(normal.variance, q.variance)


def test_reflections_are_orthogonal_matrices():
    mean, std, v = torch.randn(BATCH, D), torch.rand(BATCH, D) + 0.1, torch.randn(3, BATCH, D)
    q = ReflectedNormal(DiagonalNormal(mean, std), v)
    matrix = torch.eye(D).expand(BATCH, D, D)
    for one in v:
        outer = one.unsqueeze(2) @ one.unsqueeze(1)
        matrix = (torch.eye(D) - 2 * outer / one.square().sum(-1)[:, None, None]) @ matrix
    covariance = matrix @ torch.diag_embed(std.square()) @ matrix.mT
    dense = MultivariateNormal((matrix @ mean.unsqueeze(-1)).squeeze(-1), covariance)
    z = torch.randn(5, BATCH, D)
    torch.testing.assert_close(q.mean, dense.mean)
    torch.testing.assert_close(q.covariance_matrix, covariance)
    torch.testing.assert_close(q.log_prob(z), dense.log_prob(z))
    assert_moments(q, dense.mean, covariance)


def test_a_reflector_of_length_zero_does_no_harm():
    v = torch.zeros(1, BATCH, D, requires_grad=True)
    q = ReflectedNormal(DiagonalNormal(torch.zeros(BATCH, D), torch.ones(BATCH, D)), v)
    total = q.rsample((4,)).square().sum()
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(v.grad).all()


def test_a_mixture_is_the_dense_mixture():
    log_weights = torch.randn(BATCH, 3).log_softmax(-1)
    means, stds = torch.randn(BATCH, 3, D), torch.rand(BATCH, 3, D) + 0.1
    q = NormalMixture(log_weights, means, stds)
    dense = MixtureSameFamily(Categorical(logits=log_weights), Independent(Normal(means, stds), 1))
    z = torch.randn(5, BATCH, D)
    torch.testing.assert_close(q.log_prob(z), dense.log_prob(z))
    torch.testing.assert_close(q.mean, dense.mean)
    torch.testing.assert_close(q.variance, dense.variance)
    draws = q.rsample((100_000,))
    assert ((draws.mean(0) - dense.mean).abs() < 5 * dense.stddev / math.sqrt(len(draws))).all()
    by_component = q.component_rsample(50_000)
    assert by_component.shape == (50_000, 3, BATCH, D)
    assert ((by_component.mean(0).transpose(0, 1) - means).abs() < 5 * stds / math.sqrt(50_000)).all()


def test_the_variance_of_a_mixture_does_not_cancel():
    means = torch.tensor([[[3.0], [3.0]]]).float()
    q = NormalMixture(torch.tensor([[0.5, 0.5]]).log().float(), means, torch.full((1, 2, 1), 5e-4).float())
    torch.testing.assert_close(q.variance, torch.full((1, 1), 2.5e-7).float())


def test_a_gated_affine_step_inverts_and_knows_its_jacobian():
    shift, gate, z = torch.randn(7), 5 * torch.randn(7), torch.randn(7)
    step = GatedAffine(shift, gate)
    torch.testing.assert_close(step.inv(step(z)), z)
    jacobian = torch.autograd.functional.jacobian(step, z)
    torch.testing.assert_close(step.log_abs_det_jacobian(z, step(z)), jacobian.diagonal().log())
    start = GatedAffine(torch.zeros(7), torch.zeros(7))
    torch.testing.assert_close(start(z), z / (1 + math.exp(-2)))  # σ = sigmoid(2) at the start


def test_a_flow_knows_the_density_of_its_samples_without_inverting():
    base = DiagonalNormal(torch.randn(BATCH, D), torch.rand(BATCH, D) + 0.2)
    transforms = [_Shear(torch.randn(D, D)) for _ in range(3)]
    q = FlowNormal(base, transforms)
    z, log_prob = q.rsample_and_log_prob((5,))
    for transform in transforms:
        transform.allow_inverse = True
    torch.testing.assert_close(q.log_prob(z), log_prob)
    plain, density = rsample_and_log_prob(base, (5,))
    torch.testing.assert_close(density, base.log_prob(plain))


class _Shear(torch.distributions.Transform):
    """y = (I + strictly lower) x, with a warning bell on the inverse."""

    bijective = True
    domain = codomain = torch.distributions.constraints.real_vector

    def __init__(self, matrix):
        super().__init__()
        self.matrix, self.allow_inverse = matrix.tril(-1) + 2 * torch.eye(D), False

    def _call(self, x):
        return x @ self.matrix.T

    def call_and_ladj(self, x):
        return self(x), torch.full(x.shape[:-1], D * math.log(2))

    @property
    def inv(self):
        assert self.allow_inverse, "the inverse was used"
        return _Unshear(self.matrix)


class _Unshear:
    def __init__(self, matrix):
        self.matrix = matrix

    def call_and_ladj(self, y):
        return torch.linalg.solve(self.matrix, y.unsqueeze(-1)).squeeze(-1), torch.full(y.shape[:-1], -D * math.log(2))


def test_a_tempered_normal_has_its_covariance_multiplied():
    for q in some_normals():
        found = tempered(q, 2.5)
        assert type(found) is type(q)
        covariance = torch.stack([q.covariance_times(e.expand(BATCH, D)) for e in torch.eye(D)], -1)
        dense = MultivariateNormal(q.mean, 2.5 * covariance)
        z = torch.randn(5, BATCH, D)
        torch.testing.assert_close(found.log_prob(z), dense.log_prob(z))
        torch.testing.assert_close(found.variance, dense.variance)
        torch.testing.assert_close(TemperedDistribution(q, 2.5).log_prob(z), dense.log_prob(z))
        assert_moments(TemperedDistribution(q, 2.5), dense.mean, dense.covariance_matrix)


@pytest.mark.parametrize("kind", ["mixture", "flow", "torch"])
def test_any_other_distribution_is_tempered_about_its_mean(kind):
    mean, std = torch.randn(BATCH, D), torch.rand(BATCH, D) + 0.1
    if kind == "mixture":
        means = mean.unsqueeze(1) + torch.randn(BATCH, 2, D)
        q = NormalMixture(torch.tensor([0.3, 0.7]).log().expand(BATCH, 2), means, torch.rand(BATCH, 2, D) + 0.1)
    elif kind == "flow":
        q = FlowNormal(DiagonalNormal(mean, std), [torch.distributions.ExpTransform()])
        q.transforms[0].call_and_ladj = lambda z: (z.exp(), z.sum(-1))
    else:
        q = MultivariateNormal(mean, torch.diag_embed(std))
    q.ascent = "the steps that led to it"
    found = tempered(q, 0.25)
    assert found.ascent == q.ascent
    torch.manual_seed(1)
    z, log_prob = sample_and_log_prob(q, 7, 3)
    torch.manual_seed(1)
    moved, density = sample_and_log_prob(found, 7, 3)
    torch.testing.assert_close(moved, q.mean + 0.5 * (z - q.mean))
    torch.testing.assert_close(density, log_prob + D * math.log(2))  # the volume shrinks by 2 in every dimension
    torch.testing.assert_close(found.variance, q.variance / 4)
    torch.manual_seed(1)
    torch.testing.assert_close(rsample_and_log_prob(found, (7,))[0], moved)
    if kind != "flow":
        torch.testing.assert_close(found.log_prob(moved), density)
