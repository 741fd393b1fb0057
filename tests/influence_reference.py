"""Influence balancing once more, from the paper alone: NumPy, forward sensitivity, no line of the library's.

With G_t the derivative of s_t by θ, as far as it has crossed the links λ, the gradient of a segment's losses is the sum
of (s¹_t - 1) G¹_t, where G_t = λ_t A G_{t-1} + (1, …, 1, -1, …, -1)ᵀ: forward where the library goes backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def power_law_links(length: int, mean: float, alpha: float) -> list[float]:
    """0 at the cut, then 1/(1-c_t) with the paper's c_t = (α-1) / ((α-2) L0 + δt)."""
    return [0.0] + [1 / (1 - (alpha - 1) / ((alpha - 2) * mean + age)) for age in range(1, length)]


def trajectory(
    segments: Iterable[list[float]],
    steps: int,
    *,
    p: int = 10,
    n: int = 13,
    theta: float = 0.5,
    s0: float = 0.0,
    rate: float = 3e-4,
    targets: np.ndarray | None = None,
) -> list[tuple[int, float, float]]:
    """(step, average loss, θ) after every segment, each given by its links; the last one ends with the run."""
    A = np.diag(np.full(p + n, 0.5)) + np.diag(np.full(p + n - 1, 0.5), 1)
    push = np.concatenate([np.ones(p), -np.ones(n)])
    targets = np.ones(steps) if targets is None else targets
    s, G = np.full(p + n, s0), np.zeros(p + n)
    t, total, found = 0, 0.0, []
    for links in segments:
        gradient = 0.0
        for link in links[: steps - t]:
            s = A @ s + theta * push
            G = link * (A @ G) + push
            error = s[0] - targets[t]
            gradient += error * G[0]
            total += error**2 / 2
            t += 1
        theta -= rate / math.sqrt(1 + t) * gradient
        found.append((t, total / t, theta))
        if t == steps:
            return found
    raise ValueError(f"the segments end after {t} of {steps} steps")


def rank_one_trajectory(
    signs: Iterable[np.ndarray], steps: int, *, by_row: bool, p: int = 10, n: int = 13, theta: float = 0.5
) -> list[tuple[int, float, float]]:
    """(step, average loss, θ) under UORO, or NoBackTrack (`by_row`), whose signs are given: dS/dθ ~ direction · weight.

    UORO puts ρ₁ν beside νᵀ∂F/∂θ / ρ₁ with ρ₁² = |νᵀ∂F/∂θ| / |ν|; NoBackTrack balances row by row, and the rows of
    ∂F/∂θ are all ±1 here. ρ₀² = |weight| / |A direction| for both.
    """
    A = np.diag(np.full(p + n, 0.5)) + np.diag(np.full(p + n - 1, 0.5), 1)
    push = np.concatenate([np.ones(p), -np.ones(n)])
    s, direction, weight, total, found = np.zeros(p + n), np.zeros(p + n), 0.0, 0.0, []
    for t, nu in zip(range(1, steps + 1), signs, strict=False):
        s, direction = A @ s + theta * push, A @ direction
        error = s[0] - 1
        gradient = error * (push[0] + direction[0] * weight)
        local = nu @ push
        new = math.sqrt(abs(local) / np.linalg.norm(nu)) if not by_row else 1.0
        old = math.sqrt(abs(weight) / np.linalg.norm(direction)) if direction.any() else 0.0
        direction = new * nu + old * direction
        weight = (local / new if new else 0.0) + (weight / old if old else 0.0)
        total += error**2 / 2
        theta -= 3e-4 / math.sqrt(1 + t) * gradient
        found.append((t, total / t, theta))
    return found
