"""What can be computed about influence balancing without running it (:mod:`artbp.experiments.influence_balancing`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from artbp import Law

Array = npt.NDArray[np.float64]


def matrix(p: int, n: int) -> Array:
    """A: 1/2 on the diagonal and above it."""
    return (np.eye(p + n) + np.eye(p + n, k=1)) / 2


def signs(p: int, n: int) -> Array:
    """What one unit of θ does to each agent."""
    return np.repeat([1.0, -1.0], [p, n])


def optimum(p: int, n: int) -> float:
    """The θ at which the first agent comes to rest at 1: 1 / (2 (p-n))."""
    return 1 / (2 * (p - n))


def impulse_response(p: int, n: int) -> Array:
    """r_m = (A^m (1, …, 1, -1, …, -1))¹: what a push on all agents does to the first one, m steps later.

    To where less than 1e-18 is left of it.
    """
    A, push, responses = matrix(p, n), signs(p, n), []
    while np.abs(push).max() > 1e-18:
        responses.append(push[0])
        push = A @ push
    return np.array(responses)


def expected_gradient(p: int, n: int, law: Law) -> float:
    r"""The expected gradient as a multiple of the exact one, at rest and for a θ that does not change.

    With every state at its resting place each step has the same error :math:`e = s^1 - 1`, and the exact gradient of a
    step's loss is :math:`e \sum_m r_m = 2 (p-n)\, e`. Of what has travelled over m steps the links keep the fraction
    `law.retention(m)` on average, max(0, 1 - m/L) for truncated BPTT and 1 for ARTBP:

    .. math:: \frac{E[\tilde g]}{g} = \frac{\sum_m \mathrm{retention}(m)\, r_m}{\sum_m r_m}

    Negative: gradient descent goes up.
    """
    r = impulse_response(p, n)
    return float(law.retention(np.arange(len(r))) @ r / (2 * (p - n)))


def shortest_right_length(p: int, n: int) -> int:
    """The smallest L from which on truncated BPTT has the sign of the exact gradient, at rest."""
    r, exact = impulse_response(p, n), 2 * (p - n)
    # L times the expected gradient is Σ_{m<L} (L-m) r_m, a running sum of running sums; beyond the response a line.
    kept = r.cumsum().cumsum()
    wrong = np.flatnonzero(kept * exact <= 0) + 1  # lengths
    last = int(wrong.max(initial=0))
    if last == len(r):
        last = max(last, math.floor(np.arange(len(r)) @ r / exact))
    return last + 1
