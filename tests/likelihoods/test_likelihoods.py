"""Likelihoods against torch.distributions, their options, and how the Gaussian's σ² is found."""

import json
import math

import pytest
import torch
from torch import distributions as td

from gpin._core.errors import InputError
from gpin.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    BernoulliOptions,
    Gaussian,
    GaussianOptions,
    Heteroscedastic,
    as_likelihood_config,
    make_likelihood,
)

SHAPE = (2, 3, 4)
MODES = ("learnt", "analytic", "fixed", "per_pixel")
LEADING = [(), (5,), (7, 5), (2, 7, 5)]  # of the output; the last is the batch


def gaussian(variance, shape=SHAPE, **options):
    return Gaussian(shape, GaussianOptions(variance=variance, **{"initial_variance": 0.3, **options}))


def vary_pixels(likelihood):
    """Different variances for different pixels, where there are such."""
    with torch.no_grad():
        likelihood.log_variance += 0.3 * torch.randn_like(likelihood.log_variance)


def batch_and_output(leading):
    batch = leading[-1:]
    return torch.rand(*batch, *SHAPE), torch.randn(*leading, *SHAPE)


@pytest.mark.parametrize("variance", MODES)
@pytest.mark.parametrize("leading", LEADING)
def test_gaussian_density_is_that_of_torch(variance, leading, double):
    likelihood = gaussian(variance)
    vary_pixels(likelihood)
    x, output = batch_and_output(leading)
    wanted = td.Independent(td.Normal(output, likelihood.variance.sqrt().expand(SHAPE)), 3).log_prob(x)
    assert wanted.shape == leading
    torch.testing.assert_close(likelihood.log_prob(x, output), wanted)
    assert torch.equal(likelihood.mean(output), output)


@pytest.mark.parametrize("leading", LEADING[1:])
@pytest.mark.parametrize("name", [*MODES, "heteroscedastic", "bernoulli"])
def test_the_density_of_each_value_is_that_of_torch(name, leading, double):
    if name in MODES:
        likelihood = gaussian(name)
        vary_pixels(likelihood)
    else:
        likelihood = LIKELIHOODS[name](SHAPE)
    x, output = torch.rand(*leading[-1:], *SHAPE), torch.randn(*leading, *likelihood.output_shape)
    if name == "bernoulli":
        x = x.round()
        truth = td.Bernoulli(logits=output)
    elif name == "heteroscedastic":
        mean, log_variance = output.unbind(-4)
        truth = td.Normal(mean, (1e-4 + log_variance.exp()).sqrt())
    else:
        truth = td.Normal(output, likelihood.variance.sqrt().expand(SHAPE))
    each = likelihood.log_prob_each(x, output)
    assert each.shape == (*leading, *SHAPE)
    torch.testing.assert_close(each, truth.log_prob(x.expand(each.shape)))
    torch.testing.assert_close(each.flatten(-3).sum(-1), likelihood.log_prob(x, output))


@pytest.mark.parametrize("variance", MODES)
def test_gaussian_density_has_right_gradients_and_leaves_its_inputs_alone(variance, double):
    likelihood = gaussian(variance, (3,))
    vary_pixels(likelihood)
    x, output = torch.rand(2, 3, requires_grad=True), torch.randn(4, 2, 3, requires_grad=True)
    before = x.clone(), output.clone()
    assert torch.autograd.gradcheck(likelihood.log_prob, (x, output))
    assert torch.autograd.gradgradcheck(likelihood.log_prob, (x, output))
    assert torch.equal(x, before[0])
    assert torch.equal(output, before[1])


@pytest.mark.parametrize("variance", ["learnt", "per_pixel"])
def test_gradient_by_the_log_variance_is_right(variance, double):
    likelihood = gaussian(variance)
    vary_pixels(likelihood)
    x, output = batch_and_output((7, 5))
    likelihood.log_prob(x, output).sum().backward()
    # With v = floor + exp(l): ∂/∂l of −½ (e²/v + log v) is ½ (e²/v − 1) exp(l)/v
    v, chain = likelihood.variance, likelihood.log_variance.exp()
    wanted = 0.5 * ((output - x).square() / v - 1) * chain / v
    wanted = wanted.sum((0, 1)) if variance == "per_pixel" else wanted.sum()
    torch.testing.assert_close(likelihood.log_variance.grad, wanted)


@pytest.mark.parametrize("variance", MODES)
def test_only_learnt_variances_are_parameters(variance):
    names = [name for name, _ in gaussian(variance).named_parameters()]
    assert names == (["log_variance"] if variance in ("learnt", "per_pixel") else [])
    assert gaussian(variance).log_variance.shape == (SHAPE if variance == "per_pixel" else ())
    assert "log_variance" in gaussian(variance).state_dict()


@pytest.mark.parametrize("variance", MODES)
@pytest.mark.parametrize("floor", [1e-4, 0.05])
def test_variance_never_falls_below_the_floor(variance, floor):
    likelihood = gaussian(variance, initial_variance=2 * floor, min_variance=floor)
    with torch.no_grad():
        likelihood.log_variance.fill_(-60.0)
    assert (likelihood.variance >= floor).all()
    likelihood.prepare(torch.zeros(SHAPE))
    likelihood.observe(torch.zeros(5, *SHAPE), torch.zeros(5, *SHAPE))
    assert (likelihood.variance >= floor).all()
    with torch.no_grad():
        likelihood.log_variance.fill_(-1000.0)
    assert (likelihood.variance == torch.tensor(floor)).all()
    assert likelihood.log_prob(torch.zeros(5, *SHAPE), torch.zeros(5, *SHAPE)).isfinite().all()


@pytest.mark.parametrize("variance", ["learnt", "analytic", "per_pixel"])
def test_variance_starts_at_the_spread_of_the_data(variance):
    likelihood = gaussian(variance, initial_variance=0.0)
    spread = torch.rand(SHAPE) + 0.01
    likelihood.prepare(spread)
    torch.testing.assert_close(likelihood.variance.detach(), spread if variance == "per_pixel" else spread.mean())


@pytest.mark.parametrize("variance", MODES)
def test_a_given_start_is_kept(variance):
    likelihood = gaussian(variance, initial_variance=0.3)
    likelihood.prepare(torch.rand(SHAPE))
    torch.testing.assert_close(likelihood.variance.detach(), torch.full_like(likelihood.log_variance, 0.3))


@pytest.mark.parametrize("variance", ["learnt", "fixed", "per_pixel"])
def test_only_the_analytic_variance_observes(variance):
    likelihood = gaussian(variance)
    before = likelihood.variance.clone()
    likelihood.observe(*batch_and_output((5,)))
    assert torch.equal(likelihood.variance, before)


def test_analytic_variance_is_the_mean_squared_error_and_the_optimum(double):
    likelihood = gaussian("analytic", initial_variance=40.0)
    batches = [batch_and_output((5,)) for _ in range(likelihood.MEMORY)]
    for x, output in batches:
        likelihood.observe(x, output)
    x, output = (torch.cat(parts) for parts in zip(*batches, strict=True))
    torch.testing.assert_close(likelihood.variance, (x - output).square().mean())

    likelihood.log_variance.requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.log_prob(x, output).mean(), likelihood.log_variance)
    assert slope.item() == pytest.approx(0, abs=1e-10)


def test_analytic_variance_forgets_and_stays_at_its_fixed_point(double):
    likelihood = gaussian("analytic")
    x, output = batch_and_output((5,))
    error = (x - output).square().mean()
    for _ in range(likelihood.MEMORY):  # of ten times the error: an early stage of training
        likelihood.observe(math.sqrt(10) * x, math.sqrt(10) * output)
    torch.testing.assert_close(likelihood.variance, 10 * error)
    for _ in range(10 * likelihood.MEMORY):
        likelihood.observe(x, output)
    torch.testing.assert_close(likelihood.variance, error, rtol=1e-3, atol=0)
    likelihood.log_variance.copy_((error - likelihood.options.min_variance).log())
    likelihood.observe(x, output)
    torch.testing.assert_close(likelihood.variance, error)


def test_observing_a_batch_with_samples_averages_over_them(double):
    likelihood = gaussian("analytic")
    x, output = batch_and_output((7, 5))
    likelihood.observe(x, output)
    torch.testing.assert_close(likelihood.variance, (output - x).square().mean())


@pytest.mark.parametrize("variance", ["learnt", "per_pixel"])
def test_gaussian_samples_have_the_stated_moments(variance):
    likelihood = gaussian(variance)
    vary_pixels(likelihood)
    count = 20_000
    output = torch.randn(SHAPE)
    samples = likelihood.sample(output.expand(count, *SHAPE)).detach()
    assert samples.shape == (count, *SHAPE)
    v = likelihood.variance.detach().expand(SHAPE)
    assert ((samples.mean(0) - output).abs() < 4.5 * (v / count).sqrt()).all()
    assert ((samples.var(0) - v).abs() < 4.5 * v * math.sqrt(2 / count)).all()


@pytest.mark.parametrize("leading", LEADING)
def test_bernoulli_density_is_that_of_torch(leading, double):
    likelihood = Bernoulli(SHAPE)
    x, logits = batch_and_output(leading)
    x = x.round()
    wanted = td.Independent(td.Bernoulli(logits=5 * logits), 3).log_prob(x)
    torch.testing.assert_close(likelihood.log_prob(x, 5 * logits), wanted)
    torch.testing.assert_close(likelihood.mean(logits), td.Bernoulli(logits=logits).mean)


def test_bernoulli_is_finite_for_extreme_logits():
    likelihood = Bernoulli((2,))
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    log_prob = likelihood.log_prob(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), logits)
    assert log_prob.tolist() == [0.0, -2e4]
    (slope,) = torch.autograd.grad(log_prob.sum(), logits)
    assert slope.tolist() == [[0.0, 0.0], [1.0, -1.0]]


def test_bernoulli_samples_are_binary_with_the_stated_mean():
    likelihood = Bernoulli((3,))
    logits = torch.tensor([-2.0, 0.0, 1.0])
    samples = likelihood.sample(logits.expand(20_000, 3))
    assert set(samples.unique().tolist()) == {0.0, 1.0}
    mean = likelihood.mean(logits)
    assert ((samples.mean(0) - mean).abs() < 4 * (mean * (1 - mean) / len(samples)).sqrt()).all()


@pytest.mark.parametrize("make", [*(lambda mode=mode: gaussian(mode, (3,)) for mode in MODES), lambda: Bernoulli((3,))])
def test_score_and_precision_are_the_derivatives_of_the_density(make, double):
    likelihood = make()
    if isinstance(likelihood, Gaussian):
        vary_pixels(likelihood)
    x, output = torch.rand(3), torch.randn(3)
    score, precision = likelihood.score_and_precision(x, output)
    torch.testing.assert_close(score, torch.func.grad(lambda o: likelihood.log_prob(x, o))(output))
    # Here the second derivative does not depend on x, and so is its own expectation.
    hessian = torch.autograd.functional.hessian(lambda o: likelihood.log_prob(x, o), output)
    torch.testing.assert_close(torch.diag(precision), -hessian)


@pytest.mark.parametrize("values", [[0.0, 1.5], [-0.1, 1.0], [0.0, 255.0]])
def test_data_outside_the_unit_interval_are_refused_by_bernoulli_only(values):
    x = torch.tensor([values])
    with pytest.raises(InputError, match=rf"\[0, 1\], got values from {values[0]:.4g} to {values[1]:.4g}$"):
        Bernoulli((2,)).check(x)
    Bernoulli((2,)).check(x.clamp(0, 1))
    Gaussian((2,)).check(x)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "bernoulli", "variance": "analytic"}, "'bernoulli' has no option 'variance'"),
        ({"kind": "bernoulli", "min_variance": 1e-3}, "'bernoulli' has no option 'min_variance'"),
        ({"kind": "heteroscedastic", "variance": "learnt"}, "'heteroscedastic' has no option 'variance'"),
        ({"kind": "heteroscedastic", "initial_variance": 1e-6}, "must exceed the floor min_variance=0.0001"),
        ({"variance": "fixed"}, "variance='fixed' needs initial_variance"),
        ({"initial_variance": 1e-6}, "must exceed the floor min_variance=0.0001"),
        ({"initial_variance": "0.3"}, "initial_variance"),
        ({"variance": "fixed", "initial_variance": 0.0}, "variance='fixed' needs initial_variance"),
        ({"varience": "fixed"}, "no option 'varience': did you mean 'variance'"),
        ({"variance": "learned"}, "'variance'.*'learnt'.*got 'learned'"),
        ({"initial_variance": -1.0}, "'initial_variance'.*got -1"),
        ({"initial_variance": math.nan}, "'initial_variance'.*got nan"),
        ({"min_variance": 0.0}, "'min_variance'.*got 0"),
        ("bernouli", "unknown likelihood 'bernouli': did you mean 'bernoulli'"),
        (3, "the likelihood must be a name, .*got 3"),
    ],
)
def test_options_that_do_not_apply_are_refused_in_one_line(options, says):
    with pytest.raises(InputError, match=says) as caught:
        as_likelihood_config(options)
    assert "\n" not in str(caught.value)
    assert "likelihood" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("bernoulli", Bernoulli),
        ({}, Gaussian),
        (GaussianOptions(), Gaussian),
        ("heteroscedastic", Heteroscedastic),
    ],
)
def test_a_config_makes_its_likelihood(given, kind):
    options = as_likelihood_config(given)
    likelihood = make_likelihood(SHAPE, options)
    assert type(likelihood) is kind
    assert likelihood.options == options
    assert likelihood.shape == SHAPE
    mean, spread = torch.rand(SHAPE), torch.rand(SHAPE)
    center = likelihood.center(mean, spread)
    assert (center is None) is (kind is Bernoulli)
    assert center is None or center.shape == likelihood.output_shape
    assert likelihood.density is (kind is not Bernoulli)


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, {"kind": "gaussian", "variance": "learnt", "initial_variance": 0.0, "min_variance": 1e-4}),
        ("bernoulli", {"kind": "bernoulli", "variance": "learnt", "initial_variance": 0.0, "min_variance": 1e-4}),
        (
            {"variance": "fixed", "initial_variance": 0.1},
            {"kind": "gaussian", "variance": "fixed", "initial_variance": 0.1, "min_variance": 1e-4},
        ),
        ("heteroscedastic", {"kind": "heteroscedastic", "initial_variance": 0.0, "min_variance": 1e-4}),
    ],
)
def test_records_of_likelihoods_stay_readable_and_as_they_were(options, written):
    """The identity of a run is a hash of them; version 0.1 wrote the Gaussian's options for a Bernoulli too."""
    config = as_likelihood_config(options)
    assert config.record() == written
    assert as_likelihood_config(json.loads(json.dumps(written))) == config
    assert BernoulliOptions().model_dump() == {"kind": "bernoulli"}


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_every_likelihood_introduces_itself(kind):
    chosen = LIKELIHOODS[kind]
    assert chosen.name == chosen.Options().kind == kind
    assert chosen.title
    for option in set(chosen.Options.model_fields) - {"kind"}:
        assert f"{option}:" in chosen.Options.__doc__, f"{kind} does not explain its option {option}"


@pytest.mark.parametrize("logit", [0.0, 5.0, 17.0, 30.0, 88.0, 120.0])
def test_the_precision_of_bernoulli_pixels_has_a_root_with_a_gradient(logit):
    likelihood = Bernoulli((2,))
    output = torch.tensor([[logit, -logit]], requires_grad=True)
    score, precision = likelihood.score_and_precision(torch.ones(1, 2), output)
    p = 1 / (1 + math.exp(-logit))
    torch.testing.assert_close(score, torch.tensor([[1 - p, p]]), atol=1e-6, rtol=1e-5)
    wanted = math.exp(-logit) / (1 + math.exp(-logit)) ** 2
    torch.testing.assert_close(precision, torch.full((1, 2), wanted), atol=1e-37, rtol=1e-5)
    precision.sqrt().sum().backward()
    assert output.grad.isfinite().all()
