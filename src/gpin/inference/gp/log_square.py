"""The expectation of log h² under a Gaussian, with exact derivatives."""

import torch
from torch import Tensor

__all__ = ["expected_log_square"]

# Chebyshev coefficients of E[log h²] − log(m² + 4v) in y = (m² − 24v) / (m² + 24v);
# scripts/derive_log_square.py derives them with mpmath; tests/inference/gp/test_log_square.py checks them.
_COEFFICIENTS = (
    -0.6453306594092445, 1.010353061738694, -0.5543968241133721, 0.27567840379253805,
    -0.1189069288359029, 0.041732132790296195, -0.010372017409570541, 8.8530828693787896e-4,
    6.2084775876630369e-4, -3.2226924163075509e-4, 5.5786238488728797e-05, 5.5948856247671441e-06,
    -4.3507754604206931e-07, -3.3856007088280775e-06, 1.5914888225750992e-06, -1.7443268905836575e-07,
    -1.4804639463212351e-09, -6.263597538336307e-08, 3.6413193136812426e-08, -4.2976968468656563e-09,
    2.1848492373420332e-10, -1.913199852609457e-09, 8.7096707273907368e-10, -1.0342371825416059e-11,
    2.9125344585023599e-11, -7.2374143503902039e-11, 1.4129212493535567e-11, 3.4725561527912771e-12,
    3.5498846722368594e-12, -2.2352911833649307e-12, -3.2856919216661543e-13, -1.2017693715588885e-14,
    2.3586331079756532e-13, 2.472414174620236e-15, -2.3563444552406312e-14, -2.0132926520154748e-14,
    3.7018997939983854e-15, 3.9770050217516519e-15, 1.4062223656279964e-15, -7.9592962535345048e-16,
    -5.0438475723945912e-16,
)  # fmt: skip
_TERMS_FLOAT32 = 19


def expected_log_square(mean: Tensor, variance: Tensor) -> Tensor:
    r"""The expectation of log h² under a Gaussian, in closed form.

    .. math:: \mathbb{E}[\log h^2], \quad h \sim \mathcal{N}(m, v)

    With x = m/√v it equals log v + g(x), where g(0) = −γ − log 2 and g'(x) = 2√2·Dawson(x/√2).
    It is evaluated as log(m² + 4v) plus a Chebyshev series in (m² − 24v)/(m² + 24v), one branch-free
    formula that is finite, with its derivatives, wherever mean or variance is not zero.

    Arguments:
        mean: m, any shape.
        variance: v ≥ 0, broadcastable with `mean`.

    Returns:
        The expectation, with the broadcast shape; differentiable any number of times.

    Example:
        >>> expected_log_square(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.0]))
        tensor([-1.2704,  1.3863])
    """
    mean, variance = torch.as_tensor(mean), torch.as_tensor(variance)
    dtype = torch.promote_types(mean.dtype, variance.dtype)
    if not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    mean, variance = torch.broadcast_tensors(mean, variance)
    if dtype not in (torch.float32, torch.float64):
        return expected_log_square(mean.float(), variance.float()).to(dtype)
    mean, variance = mean.to(dtype), variance.to(dtype)

    # E(m, v) = E(m/k, v/k²) + 2 log k for every k > 0. Treating k as a constant keeps all derivatives correct,
    # and squares of m neither overflow nor underflow.
    with torch.no_grad():
        scale = torch.maximum(mean.abs(), variance.clamp(min=0).sqrt())
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    mean, variance = mean / scale, variance / scale / scale

    square = mean.square()
    total = square + 24 * variance
    y = (square - 24 * variance) / torch.where(total == 0, torch.ones_like(total), total)  # log 0 = −∞, not NaN
    coefficients = _COEFFICIENTS[:_TERMS_FLOAT32] if dtype == torch.float32 else _COEFFICIENTS
    return torch.log(square + 4 * variance) + 2 * torch.log(scale) + _chebyshev(coefficients, y)


def _chebyshev(coefficients: tuple[float, ...], y: Tensor) -> Tensor:
    """Σ_j a_j T_j(y) by Clenshaw's recurrence."""
    ahead, behind = torch.zeros_like(y), torch.zeros_like(y)
    for coefficient in reversed(coefficients[1:]):
        ahead, behind = coefficient + 2 * y * ahead - behind, ahead
    return coefficients[0] + y * ahead - behind
