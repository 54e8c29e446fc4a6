"""The likelihoods of counts, categories and mixed columns against torch.distributions, and missing values in all."""

import pytest
import torch
from torch import distributions as td

import gpin
from gpin._core.errors import InputError
from gpin.likelihoods import (
    LIKELIHOODS,
    Categorical,
    CategoricalOptions,
    Mixed,
    MixedOptions,
    Poisson,
    as_likelihood_config,
)

COLUMNS = ("gaussian", "categorical:3", "poisson", "bernoulli", "negative_binomial", "categorical:2", "gaussian")
WIDTH = 10


def mixed():
    likelihood = Mixed((WIDTH,), MixedOptions(columns=COLUMNS))
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return likelihood


def one(kind, shape=(4,)):
    """A likelihood of this kind with parameters that are not all alike."""
    likelihood = LIKELIHOODS[kind](shape)
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return likelihood


def square_factor(curvature, output):
    """W `(batch, D, D)` from the curvature in any of its forms."""
    if not isinstance(curvature, torch.Tensor):
        eye = torch.eye(output[0].numel()).expand(len(output), -1, -1)
        root = curvature(eye)
        return root @ root.mT
    return torch.diag_embed(curvature.flatten(1))


def test_counts_have_the_densities_of_torch(double):
    x, output = torch.tensor([[0.0, 3.0, 12.0, 2000.0]]), torch.randn(5, 1, 4)
    poisson, negative = Poisson((4,)), one("negative_binomial")
    torch.testing.assert_close(poisson.log_prob_each(x, output), td.Poisson(output.exp()).log_prob(x))
    truth = td.NegativeBinomial(negative.dispersion, logits=output - negative.dispersion.log())
    torch.testing.assert_close(negative.log_prob_each(x, output), truth.log_prob(x))
    torch.testing.assert_close(negative.mean(output), truth.mean)


@pytest.mark.parametrize("kind", ["poisson", "negative_binomial"])
def test_samples_of_counts_are_whole_and_have_the_right_moments(kind):
    torch.manual_seed(0)
    likelihood, output = one(kind, (2,)), torch.tensor([0.0, 1.5])
    drawn = likelihood.sample(output.expand(40_000, 2))
    assert torch.equal(drawn, drawn.round())
    assert (drawn >= 0).all()
    mean = output.exp()
    variance = mean if kind == "poisson" else mean + mean**2 / likelihood.dispersion
    assert ((drawn.mean(0) - mean).abs() < 5 * (variance / len(drawn)).sqrt()).all()
    torch.testing.assert_close(drawn.var(0), variance.detach(), rtol=0.1, atol=0)


def test_categories_have_the_density_of_torch_and_draw_one_level_each(double):
    torch.manual_seed(0)
    likelihood, output = Categorical((5,), CategoricalOptions(levels=(3, 2))), 3 * torch.randn(6, 2, 5)
    x = torch.tensor([[0.0, 0, 1, 1, 0], [1, 0, 0, 0, 1]])
    first = td.OneHotCategorical(logits=output[..., :3]).log_prob(x[:, :3])
    second = td.OneHotCategorical(logits=output[..., 3:]).log_prob(x[:, 3:])
    torch.testing.assert_close(likelihood.log_prob(x, output), first + second)
    drawn = likelihood.sample(output[0, 0].expand(20_000, 5))
    likelihood.check(drawn)
    mean = likelihood.mean(output[0, 0])
    torch.testing.assert_close(mean[:3].sum(), torch.tensor(1.0))
    assert ((drawn.mean(0) - mean).abs() < 5 * (mean * (1 - mean) / len(drawn)).sqrt() + 1e-9).all()


@pytest.mark.parametrize("kind", ["poisson", "negative_binomial", "categorical", "mixed"])
def test_scores_are_gradients_and_curvatures_their_expected_outer_products(kind, double):
    torch.manual_seed(1)
    likelihood = mixed() if kind == "mixed" else one(kind)
    output = 0.5 * torch.randn(1, *likelihood.shape)
    x = likelihood.sample(output.expand(200_000, -1))
    score, _ = likelihood.score_and_precision(x, output.expand_as(x))
    one_score = torch.func.grad(lambda o: likelihood.log_prob(x[:1], o).sum())(output)
    torch.testing.assert_close(score[:1], one_score)
    wanted = square_factor(likelihood.score_and_precision(x[:1], output)[1], output)[0]
    found = score.T @ score / len(x)
    scale = wanted.diagonal().clamp(min=1e-3).sqrt()
    assert ((found - wanted) / (scale[:, None] * scale)).abs().max() < 0.05


def test_a_mixed_likelihood_is_the_sum_over_its_columns(double):
    likelihood, output = mixed(), torch.randn(3, 4, WIDTH)
    x = likelihood.sample(output[0])
    likelihood.check(x)
    gaussian, negative = likelihood.parts["gaussian"], likelihood.parts["negative_binomial"]
    sigma = gaussian.variance.sqrt()
    wanted = td.Normal(output[..., 0], sigma[0]).log_prob(x[:, 0]) + td.Normal(output[..., 9], sigma[1]).log_prob(
        x[:, 9]
    )
    wanted += td.OneHotCategorical(logits=output[..., 1:4]).log_prob(x[:, 1:4])
    wanted += td.Poisson(output[..., 4].exp()).log_prob(x[:, 4]) + td.Bernoulli(logits=output[..., 5]).log_prob(x[:, 5])
    logits = output[..., 6] - negative.dispersion.log()
    wanted += td.NegativeBinomial(negative.dispersion, logits=logits).log_prob(x[:, 6])
    wanted += td.OneHotCategorical(logits=output[..., 7:9]).log_prob(x[:, 7:9])
    torch.testing.assert_close(likelihood.log_prob(x, output), wanted)
    assert likelihood.counts.tolist() == [number in (4, 6) for number in range(WIDTH)]


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_a_missing_value_counts_for_nothing(kind, double):
    torch.manual_seed(2)
    likelihood = mixed() if kind == "mixed" else one(kind, (4,))
    output = torch.randn(2, *likelihood.output_shape, requires_grad=True)
    x = likelihood.sample(output.detach())
    gone = torch.zeros(likelihood.shape, dtype=torch.bool)
    gone[: 4 if kind in ("mixed", "categorical") else 2] = True  # a category as a whole
    holey = x.masked_fill(gone, torch.nan)
    likelihood.check(holey)
    each = likelihood.log_prob_each(x, output)
    torch.testing.assert_close(likelihood.log_prob(holey, output), each[:, ~gone].sum(1))
    assert (likelihood.log_prob_each(holey, output)[:, gone] == 0).all()
    gradient = torch.autograd.grad(likelihood.log_prob(holey, output).sum(), output)[0]
    score, curvature = likelihood.score_and_precision(holey, output)
    torch.testing.assert_close(score, gradient)
    w, complete = square_factor(curvature, output), square_factor(likelihood.score_and_precision(x, output)[1], output)
    outputs = gone.repeat(likelihood.outputs)
    assert w[:, outputs].abs().max() < 1e-30
    torch.testing.assert_close(w[:, ~outputs][:, :, ~outputs], complete[:, ~outputs][:, :, ~outputs])
    parameters = [output, *likelihood.parameters()]
    roots = curvature.sqrt() if isinstance(curvature, torch.Tensor) else curvature(torch.ones(2, 1, output[0].numel()))
    if roots.requires_grad:
        found = torch.autograd.grad(roots.sum(), parameters, allow_unused=True)
        assert all(part is None or part.isfinite().all() for part in found)


def test_the_analytic_variance_is_that_of_the_observed_values():
    vae = gpin.build((3,), "vae", 1, likelihood={"variance": "analytic"}, missing=True)
    x = torch.tensor([[0.0, torch.nan, 2.0], [torch.nan, torch.nan, 4.0]])
    vae.likelihood.observe(x, torch.zeros(2, 3))
    assert vae.likelihood.variance.item() == pytest.approx((0 + 4 + 16) / 3)


@pytest.mark.parametrize(
    ("kind", "x", "says"),
    [
        ("poisson", [[0.5, 1.0]], "whole numbers, got 0.5"),
        ("negative_binomial", [[-1.0, 1.0]], r"\[0, inf\], got values from -1"),
        ("categorical", [[1.0, 1.0]], "variable 0 of instance 0"),
        ("categorical", [[torch.nan, 1.0]], "variable 0 of instance 0"),
        ("bernoulli", [[torch.nan, 2.0]], r"\[0, 1\], got values from 2 to 2"),
    ],
)
def test_values_of_another_kind_are_refused(kind, x, says):
    with pytest.raises(InputError, match=says):
        LIKELIHOODS[kind]((2,)).check(torch.tensor(x))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["gausian"], "unknown kind of column 'gausian': did you mean 'gaussian'"),
        (["categorical"], "'categorical' must be a kind"),
        (["poisson:2"], "'poisson:2' must be a kind"),
    ],
)
def test_unknown_columns_are_refused(columns, says):
    with pytest.raises(InputError, match=says):
        as_likelihood_config({"kind": "mixed", "columns": columns})


def test_columns_that_do_not_fit_the_data_are_refused():
    with pytest.raises(InputError, match="take 3 values, but an instance has shape"):
        gpin.build((4,), likelihood={"kind": "mixed", "columns": ["categorical:3"]})
    with pytest.raises(InputError, match="must be positive and add up to the 4 values"):
        gpin.build((4,), likelihood={"kind": "categorical", "levels": [3]})
