"""Numbers of the beta-geometric law, p ~ Beta(a, b) and length ~ Geometric(p), to full precision at its extremes."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def survival(a: float, b: float, n: Array) -> Array:
    """S(n) = B(a, b+n) / B(a, b) = Γ(b+n)/Γ(a+b+n) · Γ(a+b)/Γ(b)."""
    start = np.full_like(n, b)
    ratio = np.exp(log_gamma_ratio(start + np.maximum(n, 0), a) - log_gamma_ratio(start, a))
    return np.where(n <= 0, 1.0, ratio)


def mean_in_blocks(a: float, b: float, block: int) -> float:
    r"""The mean of the length rounded up to a multiple of `block`: block · Σ S(m · block), its tail in closed form.

    Having survived N steps, the length goes on with p ~ Beta(a, b+N), and block · Σ (1-p)^(m · block) =
    block / (1 - (1-p)^block) = 1/p + (block-1)/2 + (block²-1)/12 p + (block²-1)/24 p² - … (Lubbock's formula); where
    p · block is small a few moments of p are all that is needed, and E[1/p] is the mean that remains.
    """
    k, k2 = block, block**2
    terms, ends = max(1, math.ceil((50 * k * (a + 4) - b) / k)), 1
    while ends < terms and survival(a, b, np.array(float(ends * k))) > 1e-20:
        ends *= 2
    terms = min(terms, ends)
    head = survival(a, b, k * np.arange(terms + 1.0))
    b += terms * k
    p1 = a / (a + b)
    p2 = p1 * (a + 1) / (a + b + 1)
    p3 = p2 * (a + 2) / (a + b + 2)
    p4 = p3 * (a + 3) / (a + b + 3)
    rest = (a + b - 1) / (a - 1) + (k - 1) / 2 + (k2 - 1) * (p1 / 12 + p2 / 24)
    rest -= (k2 - 1) * ((k2 - 19) * p3 / 720 + (k2 - 9) * p4 / 480)
    return float(k * head[:-1].sum() + head[-1] * rest)


def log_gamma_ratio(z: Array, a: float) -> Array:
    """log Γ(z)/Γ(z+a) to full precision also where both are huge, and differences of it are what counts."""
    shift = np.zeros_like(z)
    for _ in range(10):  # Γ(z)/Γ(z+a) = (z+a)/z · Γ(z+1)/Γ(z+1+a), until Stirling's series is exact
        small = z < 10
        shift += np.where(small, np.log1p(a / z), 0.0)
        z = np.where(small, z + 1, z)
    end = z + a
    stirling = (z - 0.5) * -np.log1p(a / z) - a * np.log(end) + a
    return stirling + _stirling_rest(z) - _stirling_rest(end) + shift


def _stirling_rest(z: Array) -> Array:
    w = 1 / z**2
    return (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w * (1 / 1188 - w * 691 / 360360))))) / z
