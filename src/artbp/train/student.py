r"""Student's t, for differences of a few seeds, without SciPy.

With :math:`x = \nu / (\nu + t^2)`, the probability of a value at least as far from zero as t is the regularised
incomplete beta function :math:`I_x(\nu/2, 1/2)`.
"""

from __future__ import annotations

import math


def two_sided(t: float, freedom: float) -> float:
    """P(|T| >= |t|), for T of Student's distribution with so many degrees of freedom."""
    if math.isinf(t):
        return 0.0
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def quantile(freedom: float, confidence: float) -> float:
    """The t with P(|T| <= t) = confidence, by bisection."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if two_sided(middle, freedom) > 1 - confidence else (low, middle)
    return high


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), by its continued fraction (Abramowitz & Stegun 26.5.8), where that converges fast."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(logarithm) / a * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1/(1 + d1/(1 + d2/(1 + …))), by Lentz's method."""
    tiny = 1e-300
    value = upper = 1.0
    lower = 0.0
    for k in range(10_000):
        m = k // 2
        if k == 0:
            d = 1.0
        elif k % 2 == 0:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        lower = 1 / ((1 + d * lower) or tiny)
        upper = (1 + d / upper) or tiny
        value *= upper * lower
        if abs(1 - upper * lower) < 1e-15:
            break
    return value - 1
