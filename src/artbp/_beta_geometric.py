"""Numbers of the beta-geometric law, p ~ Beta(a, b) and length ~ Geometric(p), to full precision at its extremes."""

from __future__ import annotations

import math

import numpy as np

from artbp._law import Array, moment_of_rest


def survival(a: float, b: float, n: Array) -> Array:
    """S(n) = B(a, b+n) / B(a, b) = Γ(b+n)/Γ(a+b+n) · Γ(a+b)/Γ(b)."""
    start = np.full_like(n, b)
    ratio = np.exp(log_gamma_ratio(start + np.maximum(n, 0), a) - log_gamma_ratio(start, a))
    return np.where(n <= 0, 1.0, ratio)


def moment_in_blocks(a: float, b: float, block: int, power: int) -> float:
    r"""The mean (power 1) or the second moment (2) of the length rounded up to blocks, its tail in closed form.

    Having survived N steps, the length goes on with p ~ Beta(a, b+N), and passes a block with probability 1-q =
    (1-p)^block: what remains has the mean block/q and the second moment 2 (block/q)² - block · block/q. Lubbock's
    formula has block/q = 1/p + (block-1)/2 + (block²-1)/12 p + (block²-1)/24 p² - …; where p · block is small a few
    moments of p are all that is needed, and those of 1/p, which are of the length that remains.
    """
    if power >= a:
        return math.inf
    if block == 1:
        terms = 0
    else:
        terms, ends = max(1, math.ceil((50 * block * (a + 4) - b) / block)), 1
        while ends < terms and survival(a, b, np.array(float(ends * block))) > 1e-20:
            ends *= 2
        terms = min(terms, ends)
    passed = survival(a, b, block * np.arange(terms + 1.0))
    b += terms * block
    k, k2 = block, block**2
    series = np.array(
        [1, (k - 1) / 2, (k2 - 1) / 12, (k2 - 1) / 24, -(k2 - 1) * (k2 - 19) / 720, -(k2 - 1) * (k2 - 9) / 480]
    )
    mean = float(series @ _moments(a, b, -1))
    if power == 1:
        return moment_of_rest(passed, block, (mean, math.nan), 1)
    square = float(np.convolve(series, series)[: len(series)] @ _moments(a, b, -2))
    return moment_of_rest(passed, block, (mean, 2 * square - block * mean), 2)


def _moments(a: float, b: float, first: int) -> Array:
    """E[p^first], E[p^(first+1)], … six of them."""
    start = math.prod((a + b + j) / (a + j) for j in range(first, 0))
    j = np.arange(first, first + 5)
    return start * np.append(1.0, ((a + j) / (a + b + j)).cumprod())


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
