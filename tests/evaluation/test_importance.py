"""The importance-weighted estimate where log p(x) is known, and its diagnostics."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats
from torch.distributions import Distribution, Normal

import gpin
from gpin._core.errors import InputError
from gpin.distributions import DiagonalNormal
from gpin.evaluation.importance import LogLikelihood, effective_sample_size, importance_weighted, pareto_khat

SIGMA = 0.5


class Conjugate:
    """z ~ N(0, 1), x|z ~ N(z, σ²): log p(x) and p(z|x) are known."""

    def __init__(self, x):
        self.x = x
        self.calls = []

    def log_joint(self, z):
        self.calls.append(len(z))
        return Normal(0.0, 1.0).log_prob(z).sum(-1) + Normal(z, SIGMA).log_prob(self.x).sum(-1)

    def log_marginal(self):
        return Normal(0.0, math.sqrt(1 + SIGMA**2)).log_prob(self.x).sum(-1)

    def proposal(self, shift=0.0, widen=1.0):
        precision = 1 + 1 / SIGMA**2
        std = torch.full_like(self.x, precision**-0.5)
        return DiagonalNormal(self.x / SIGMA**2 / precision + shift * std, widen * std)


class Counting(Distribution):
    """A distribution that notes how many samples were drawn and scored."""

    def __init__(self, base):
        self.base, self.drawn, self.scored = base, [], []
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    def rsample(self, sample_shape=()):
        self.drawn.append(math.prod(sample_shape))
        return self.base.rsample(sample_shape)

    def log_prob(self, value):
        self.scored.append(len(value))
        return self.base.log_prob(value)


def conjugate(instances):
    return Conjugate(1.2 * torch.randn(instances, 1))


@pytest.mark.parametrize(("samples", "chunk"), [(1, 1), (1, 10), (7, 3), (100, 7), (100, 100), (100, 1000), (101, 100)])
def test_exactly_k_samples_are_drawn_and_scored(samples, chunk):
    model = conjugate(3)
    q = Counting(model.proposal())
    result = importance_weighted(model.log_joint, q, samples, chunk, proposal="refined")
    assert sum(q.drawn) == sum(q.scored) == sum(model.calls) == samples
    assert max(model.calls) <= chunk
    assert (result.samples, result.proposal) == (samples, "refined")
    assert result.values.shape == result.ess.shape == result.khat.shape == result.mc_error.shape == (3,)


def test_chunk_size_does_not_change_the_result(double):
    model = conjugate(5)
    results = []
    for chunk in (1, 7, 50, 1000):
        torch.manual_seed(1)
        results.append(importance_weighted(model.log_joint, model.proposal(0.5), 50, chunk))
    for result in results[1:]:
        for name in ("values", "ess", "khat", "mc_error"):
            torch.testing.assert_close(getattr(result, name), getattr(results[0], name), rtol=1e-12, atol=0)


def test_estimate_is_the_log_of_the_mean_weight(double):
    model, samples = conjugate(4), 30
    q = model.proposal(0.3, 1.5)
    torch.manual_seed(1)
    result = importance_weighted(model.log_joint, q, samples, 8)
    torch.manual_seed(1)
    z = q.sample((samples,))
    weights = (model.log_joint(z) - q.log_prob(z)).exp()
    torch.testing.assert_close(result.values, weights.mean(0).log())
    torch.testing.assert_close(result.ess, weights.sum(0) ** 2 / weights.square().sum(0))
    torch.testing.assert_close(result.mc_error, weights.std(0) / math.sqrt(samples) / weights.mean(0))
    torch.testing.assert_close(result.elbo, weights.log().mean(0))


@pytest.mark.parametrize("enabled", [True, False])
def test_gradients_are_neither_needed_nor_kept(enabled):
    model = conjugate(3)
    model.x.requires_grad_()
    with torch.set_grad_enabled(enabled):
        result = importance_weighted(model.log_joint, model.proposal(), 30, 8)
        assert torch.is_grad_enabled() is enabled
    assert not result.values.requires_grad
    assert model.x.grad is None


def test_one_sample_gives_an_estimate_without_an_error_bar():
    result = importance_weighted((model := conjugate(3)).log_joint, model.proposal(1.0), 1, 10)
    assert result.values.isfinite().all()
    assert torch.equal(result.ess, torch.ones(3).double())
    assert result.mc_error.isnan().all()
    assert result.khat.isnan().all()
    assert math.isnan(result.mean_mc_error)


def test_the_exact_posterior_is_exact(double):
    model = conjugate(50)
    result = importance_weighted(model.log_joint, model.proposal(), 40, 40)
    torch.testing.assert_close(result.values, model.log_marginal())
    torch.testing.assert_close(result.ess, torch.full((50,), 40.0))
    assert result.mc_error.max() < 1e-6


@pytest.mark.parametrize(("shift", "widen"), [(0.3, 1.0), (0.0, 1.4), (0.5, 1.2), (0.2, 0.9)])
def test_estimate_and_its_error_bar_are_right_where_the_answer_is_known(shift, widen, double):
    model, samples = conjugate(2000), 2000
    result = importance_weighted(model.log_joint, model.proposal(shift, widen), samples, samples)
    assert result.ess.min() > samples / 4
    z = (result.values - model.log_marginal()) / result.mc_error
    # The mean of the instances is off by its Monte-Carlo error, plus the bias of −½ mc_error² a instance.
    bias = -0.5 * result.mc_error.square().mean().item()
    assert abs(result.mean - model.log_marginal().mean().item() - bias) < 4 * result.mean_mc_error
    # The variance of 2000 standard normals is 1 ± 0.032; the delta method costs a little more.
    assert z.var().item() == pytest.approx(1, abs=0.15)
    assert (z.abs() > 5).sum() == 0


def test_the_estimate_is_a_lower_bound_that_rises_with_k(double):
    model = conjugate(20_000)
    truth = model.log_marginal().mean().item()
    means = []
    for samples in (1, 4, 16):
        result = importance_weighted(model.log_joint, model.proposal(1.5), samples, samples)
        gap = (result.values - model.log_marginal()).std().item() / math.sqrt(20_000)
        means.append((result.mean, gap))
    for (low, low_error), (high, high_error) in zip(means, [*means[1:], (truth, 0.0)], strict=True):
        assert high - low > 4 * math.hypot(low_error, high_error)


@pytest.mark.parametrize(("samples", "chunk", "says"), [(0, 1, "samples .* got 0"), (5, 0, "chunk .* got 0")])
def test_nonsense_counts_are_refused(samples, chunk, says):
    model = conjugate(2)
    with pytest.raises(InputError, match=says):
        importance_weighted(model.log_joint, model.proposal(), samples, chunk)


TAILS = {
    "uniform": lambda u: np.log(u),
    "light": lambda u: 0.3 * np.log(-np.log(u)),
    "normal": lambda u: np.sqrt(-2 * np.log(u)),
    "pareto 0.3": lambda u: -0.3 * np.log(u),
    "pareto 0.7": lambda u: -0.7 * np.log(u),
    "pareto 1.5": lambda u: -1.5 * np.log(u),
    "far away": lambda u: -0.5 * np.log(u) - 1e4,
}


@pytest.mark.parametrize("samples", [25, 26, 29, 30, 100, 101, 225, 226, 1000, 5000])
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_khat_is_that_of_arviz(samples, tail):
    weights = tail(np.random.default_rng(samples).uniform(size=(samples, 4)))
    wanted = [float(array_stats.psislw(-column)[1]) for column in weights.T]
    assert pareto_khat(torch.from_numpy(weights)).tolist() == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("shape", [0.2, 0.5, 1.0])
def test_khat_finds_the_shape_of_a_pareto_tail(shape, double):
    log_pareto = -shape * torch.rand(10_000, 50).log()  # weights u^{−k}: a Pareto tail of shape k
    khat = pareto_khat(log_pareto)
    error = khat.std().item() / math.sqrt(50)
    # The prior pulls a tail of 300 towards ½ by ten observations.
    wanted = (300 * shape + 10 * 0.5) / 310
    assert khat.mean().item() == pytest.approx(wanted, abs=4 * error + 0.02)


@pytest.mark.parametrize("samples", [1, 2, 24])
def test_khat_is_unknown_below_25_samples(samples):
    khat = pareto_khat(torch.randn(samples, 3))
    assert khat.shape == (3,)
    assert khat.isnan().all()


@pytest.mark.parametrize("level", [0.0, -700.0, 1e5])
def test_khat_of_equal_weights_is_zero(level):
    assert torch.equal(pareto_khat(torch.full((100, 2), level)), torch.zeros(2))


def test_khat_of_one_weight_that_outweighs_all_is_large():
    log_weights = 1000 * torch.randn(500, 3)
    khat = pareto_khat(log_weights)
    assert khat.isfinite().all()
    assert (khat > 0.7).all()


def test_khat_of_the_exact_posterior_is_small_in_float32():
    log_weights = 600 + 1e-4 * torch.randn(100, 50)  # log p(x, z) of an image: float32 keeps 6e-5
    assert (pareto_khat(log_weights) < 0.7).all()


def test_effective_sample_size_is_its_formula(double):
    log_weights = 2 * torch.randn(50, 6)
    weights = log_weights.exp()
    ess = effective_sample_size(log_weights)
    torch.testing.assert_close(ess, weights.sum(0) ** 2 / weights.square().sum(0))
    torch.testing.assert_close(effective_sample_size(log_weights - 5000), ess)  # no underflow
    torch.testing.assert_close(effective_sample_size(torch.zeros(50, 1)), torch.tensor([50.0]))
    one = torch.full((50, 1), -1e4)
    one[7] = 0
    torch.testing.assert_close(effective_sample_size(one), torch.tensor([1.0]))


def estimate(values, samples=100):
    values = torch.tensor(values)
    one = torch.ones_like(values)
    return LogLikelihood(values, 20 * one, 0.4 * one, 0.3 * one, values - one, samples, "encoder")


def test_the_mean_is_over_instances_not_batches():
    parts = [estimate([1.0, 2.0, 3.0, 4.0]), estimate([10.0])]
    whole = LogLikelihood.join(iter(parts))
    assert whole.values.tolist() == [1.0, 2.0, 3.0, 4.0, 10.0]
    assert whole.mean == 4.0  # the mean of the batches' means is 6.25
    assert whole.stderr == pytest.approx(np.std([1, 2, 3, 4, 10], ddof=1) / math.sqrt(5))
    assert whole.mean_mc_error == pytest.approx(0.3 / math.sqrt(5))
    assert (whole.samples, whole.proposal) == (100, "encoder")
    assert len(whole.ess) == len(whole.khat) == len(whole.mc_error) == 5
    assert math.isnan(parts[1].stderr)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.5], [-1234.5]])
def test_a_printed_estimate_is_one_line_with_its_diagnostics(values):
    text = str(estimate(values))
    assert "\n" not in text
    mean = sum(values) / len(values)
    for part in (f"{mean:.2f}", "K=100", "encoder", "Monte-Carlo error", "ESS 20.0", "0 % of"):
        assert part in text


def test_a_printed_estimate_does_not_vouch_for_an_unknown_khat():
    model = conjugate(4)
    assert "k̂ > 0.7 for 0 %" not in str(importance_weighted(model.log_joint, model.proposal(3.0), 10, 10))


@pytest.mark.parametrize("deviation", [0.0065, 0.01])
def test_khat_is_not_alarmed_by_weights_that_rounding_made_equal(deviation, double):
    step = 2.0**-10  # of float32 at the log density of a large image
    log_weights = (deviation * torch.randn(100, 2000) / step).round() * step
    assert (pareto_khat(log_weights) < 0.7).all()


def test_khat_of_two_weights_that_outweigh_all_others_alike_is_large():
    log_weights = torch.zeros(100, 1)
    log_weights[:2] = 30.0
    assert (pareto_khat(log_weights) > 0.7).all()


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000])
def test_a_flow_takes_its_samples_in_chunks_and_gives_the_same(chunk, double):
    vae = gpin.build((3,), "iaf", 2, seed=0).eval()
    x = torch.randn(4, 3)
    wanted = []
    for size in (50, chunk):
        torch.manual_seed(1)
        wanted.append(importance_weighted(partial(vae.log_joint, x), vae.encode(x), 50, size).values)
    torch.testing.assert_close(*wanted)
