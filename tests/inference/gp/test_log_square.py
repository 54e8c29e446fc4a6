"""E[log h²] against mpmath, and where floating point is hardest."""

import math
from functools import cache
from itertools import product

import derive_log_square as reference
import mpmath
import pytest
import torch
from mpmath import mp, mpf

from gpin.inference.gp import log_square as special
from gpin.inference.gp.log_square import expected_log_square

RATIOS = (0.0, 1e-8, 1e-3, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 4.9, 6.0, 10.0, 30.0, 100.0, 1e4, 1e6)
STDS = (1e-6, 1e-3, 0.3, 17.0, 1e3)


@cache
def exact(mean, variance):
    """E, then its derivatives by m, v, mm, mv, vv, each in units of √v: E, E_m √v, E_v v, …"""
    with mp.workdps(40):
        m, v = mpf(mean), mpf(variance)
        x = m / mpmath.sqrt(v)
        # g' = 2√2·Dawson(x/√2), and Dawson(t) = ½√π exp(−t²) erfi(t)
        g1 = mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(-x * x / 2) * mpmath.erfi(x / mpmath.sqrt(2))
        g2 = 2 - x * g1
        g3 = -g1 - x * g2
        exacts = reference.expected_log_square(m, v), g1, g2 / 2, g2, g3 / 2, -g2 / 2 - x * g3 / 4
        return [float(e) for e in exacts]


def points(dtype):
    """Every pair of RATIOS × STDS as mean and variance, rounded to the dtype."""
    means = [ratio * std for ratio, std in product(RATIOS, STDS)]
    variances = [std**2 for _, std in product(RATIOS, STDS)]
    return torch.tensor(means, dtype=dtype), torch.tensor(variances, dtype=dtype)


def value_and_derivatives(mean, variance):
    """What `exact` returns, by autograd: six float64 tensors."""
    mean, variance = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    value = expected_log_square(mean, variance)
    by_m, by_v = torch.autograd.grad(value.sum(), (mean, variance), create_graph=True)
    by_mm, by_mv = torch.autograd.grad(by_m.sum(), (mean, variance), retain_graph=True)
    (by_vv,) = torch.autograd.grad(by_v.sum(), variance)
    v = variance.detach().double()
    powers = (0, 0.5, 1, 1, 1.5, 2)
    return [e.detach().double() * v**k for e, k in zip((value, by_m, by_v, by_mm, by_mv, by_vv), powers, strict=True)]


def test_coefficients_are_the_derived_ones():
    with mp.workdps(50):
        derived = [float(a) for a in reference.coefficients(nodes=128)]  # aliasing is far below the last digit
    assert len(special._COEFFICIENTS) == reference.TERMS
    assert derived == list(special._COEFFICIENTS)


@pytest.mark.parametrize(
    ("dtype", "tolerances"),
    [(torch.float64, (4e-15, 1e-14, 1e-13)), (torch.float32, (1.5e-6, 3e-6, 1e-5))],
    ids=["float64", "float32"],
)
def test_value_and_derivatives_match_mpmath(dtype, tolerances):
    mean, variance = points(dtype)
    pairs = zip(mean.tolist(), variance.tolist(), strict=True)
    wanted = torch.tensor([exact(m, v) for m, v in pairs], dtype=torch.float64).T
    got = value_and_derivatives(mean, variance)
    for order, computed, correct in zip((0, 1, 1, 2, 2, 2), got, wanted, strict=True):
        error = (computed - correct).abs() / correct.abs().clamp(min=1)
        worst = error.argmax()
        assert error[worst] < tolerances[order], f"order {order} at m = {mean[worst]}, v = {variance[worst]}"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_derivatives_far_from_zero_are_right_relative_to_their_size(dtype, tolerance):
    # E ≈ log m² − v/m² where v ≪ m²: there ∂E/∂v is small in units of 1/v and must still be right.
    mean = torch.logspace(-3, 6, 10, dtype=dtype).requires_grad_()
    variance = (1e-10 * mean.detach().square()).requires_grad_()
    by_mean, by_variance = torch.autograd.grad(expected_log_square(mean, variance).sum(), (mean, variance))
    torch.testing.assert_close(by_mean * mean, torch.full_like(mean, 2.0), rtol=1e-6, atol=0)
    torch.testing.assert_close(by_variance * mean.square(), torch.full_like(mean, -1.0), rtol=tolerance, atol=0)


def test_autograd_is_consistent_to_second_order():
    mean = torch.tensor([0.0, 0.3, -1.2, 2.5, -6.0, 1.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([1.0, 0.7, 0.2, 3.0, 0.8, 1e-2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(expected_log_square, (mean, variance))
    assert torch.autograd.gradgradcheck(expected_log_square, (mean, variance))


def test_agrees_with_monte_carlo():
    mean, variance = torch.tensor([0.0, 0.5, -2.0]).double(), torch.tensor([1.0, 2.0, 0.5]).double()
    draws = (mean + variance.sqrt() * torch.randn(1_000_000, 3, dtype=torch.float64)).square().log()
    standard_error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - expected_log_square(mean, variance)).abs() < 4 * standard_error).all()


@pytest.mark.parametrize(
    ("mean_shape", "variance_shape"), [((), (3,)), ((2, 1), (3,)), ((4, 1, 3), (1, 2, 1)), ((0,), (1,))]
)
def test_arguments_broadcast(mean_shape, variance_shape):
    mean, variance = torch.randn(mean_shape), torch.rand(variance_shape)
    whole = torch.broadcast_tensors(mean, variance)
    assert expected_log_square(mean, variance).shape == whole[0].shape
    assert torch.equal(expected_log_square(mean, variance), expected_log_square(*(t.clone() for t in whole)))


# E[log h²] where one argument is nothing to the other, and its derivatives there
BESIDE_VARIANCE = -float(mpmath.euler) - math.log(2)


@pytest.mark.parametrize(
    ("mean", "variance", "value", "by_mean", "by_variance"),
    [
        (2.0, 0.0, math.log(4), 1.0, -0.25),
        (-2.0, 0.0, math.log(4), -1.0, -0.25),
        (1e15, 1e-30, 30 * math.log(10), 2e-15, -1e-30),
        (1e15, 0.0, 30 * math.log(10), 2e-15, -1e-30),
        (1e-15, 0.0, -30 * math.log(10), 2e15, -1e30),
        (0.0, 1.0, BESIDE_VARIANCE, 0.0, 1.0),
        (0.0, 1e-30, BESIDE_VARIANCE - 30 * math.log(10), 0.0, 1e30),
        (0.0, 1e30, BESIDE_VARIANCE + 30 * math.log(10), 0.0, 1e-30),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-10)])
def test_limits_have_finite_values_and_derivatives(mean, variance, value, by_mean, by_variance, dtype, tolerance):
    m = torch.tensor(mean, dtype=dtype, requires_grad=True)
    v = torch.tensor(variance, dtype=dtype, requires_grad=True)
    result = expected_log_square(m, v)
    slopes = torch.autograd.grad(result, (m, v))
    assert result.item() == pytest.approx(value, rel=1e-6 if dtype == torch.float32 else 1e-14)
    assert [s.item() for s in slopes] == pytest.approx([by_mean, by_variance], rel=tolerance, abs=0)


def test_surely_zero_gives_minus_infinity_and_leaves_its_neighbours_alone():
    mean = torch.tensor([0.0, 1.0, 0.0], requires_grad=True)
    variance = torch.tensor([0.0, 0.0, 2.0], requires_grad=True)
    value = expected_log_square(mean, variance)
    assert value[0] == -math.inf
    slopes = torch.autograd.grad(value[1:].sum(), (mean, variance))
    assert all(slope[1:].isfinite().all() for slope in slopes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    # 3e4² overflows float16; the value is its float32 value, rounded once
    mean = torch.tensor([3e4, 0.0, 1.5], dtype=dtype, requires_grad=True)
    variance = torch.tensor([0.0, 1.0, 0.5], dtype=dtype, requires_grad=True)
    value = expected_log_square(mean, variance)
    assert value.dtype == dtype
    assert torch.equal(value, expected_log_square(mean.float(), variance.float()).to(dtype))
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(value.sum(), (mean, variance)))
    assert expected_log_square(mean, variance.float()).dtype == torch.float32


def test_whole_numbers_are_taken_as_reals():
    whole = expected_log_square(torch.tensor(2), torch.tensor(1))
    torch.testing.assert_close(whole, expected_log_square(torch.tensor(2.0), torch.tensor(1.0)))
