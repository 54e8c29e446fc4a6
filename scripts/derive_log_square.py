"""Derive the Chebyshev coefficients of gpin.inference.gp.log_square.expected_log_square with mpmath.

E[log h²] for h ~ N(m, v) is log v + g(m/√v) with g(x) = −γ − log 2 + x²·₂F₂(1, 1; 3/2, 2; −x²/2).
Its difference from log(m² + 4v) is a smooth function of y = (m² − 24v)/(m² + 24v) on [−1, 1], whose Chebyshev
coefficients are a discrete cosine transform of its values at the nodes.

    python scripts/derive_log_square.py            # prints the coefficients
"""

import mpmath
from mpmath import mp, mpf

TERMS = 41
NODES = 256  # far more than TERMS, so that aliasing stays below the last digit


def expected_log_square(mean, variance):
    """E[log h²], h ~ N(mean, variance), to the working precision."""
    if variance == 0:
        return mpmath.log(mean**2)
    half = mean**2 / (2 * variance)
    if half > 2000:  # the hypergeometric series cancels too much; the asymptotic series is exact here
        term, total, k = mpf(1), mpf(0), 1
        while k < 60:
            # E log(1 + ε/x)² = −Σ (2k−1)!!/(k x^{2k})
            term *= mpf(2 * k - 1) / (2 * half)
            total += term / k
            k += 1
        return mpmath.log(mean**2) - total
    series = mpmath.hyp2f2(1, 1, mpf(3) / 2, 2, -half) if half else mpf(1)
    return mpmath.log(variance) - mpmath.euler - mpmath.log(2) + 2 * half * series


def coefficients(terms=TERMS, nodes=NODES):
    """The first `terms` Chebyshev coefficients of E − log(m² + 4v) in y, with v = 1."""
    angles = [mpmath.pi * (mpf(k) + mpf(1) / 2) / nodes for k in range(nodes)]
    values = []
    for angle in angles:
        y = mpmath.cos(angle)
        square = 24 * (1 + y) / (1 - y)
        values.append(expected_log_square(mpmath.sqrt(square), mpf(1)) - mpmath.log(square + 4))
    return [
        (1 if j == 0 else 2) * mpmath.fsum(f * mpmath.cos(j * a) for f, a in zip(values, angles, strict=True)) / nodes
        for j in range(terms)
    ]


if __name__ == "__main__":
    mp.dps = 50
    for a in coefficients():
        print(mpmath.nstr(a, 17))
