r"""Truncation laws: where the gradient is cut, and by what the edges that survive are multiplied.

The index convention, once for the whole library
    Steps are counted from 0. `links[t]` sits on the edge that brings the state :math:`s_{t-1}` into step t, so
    `links[0]` joins a chunk to what came before it. The paper's truncation :math:`X_t`, a cut *between t and t+1*, is
    our `links[t+1]`. A segment's *age* is the number of steps taken since its cut, counted from 1: after the first step
    of a segment the age is 1, and `hazard(1)` is the probability that the very next edge is cut. A segment of length n
    has n steps; its first edge is the cut (link 0), and the edge into its j-th step (j = 1..n-1) carries
    1/(1-hazard(j)).

    Five steps, worked by hand: lengths 3 and 2 drawn from a law with hazards c(1), c(2), …

    ====  =  ==========  ==========  =  ==========
    step  0  1           2           3  4
    age   –  1           2           3  1            of the segment behind the edge
    link  0  1/(1-c(1))  1/(1-c(2))  0  1/(1-c(1))   on the edge into the step
    ====  =  ==========  ==========  =  ==========

A law is one function, the hazard :math:`c(a) = P(\text{length} = a \mid \text{length} \ge a)`; everything else follows:

.. math:: S(n) = P(\text{length} > n) = \prod_{a \le n} (1 - c(a)), \qquad
          \text{links}_j = \frac{1}{1-c(j)}, \qquad \prod_{i \le j} \text{links}_i = \frac{1}{S(j)} .

Each link is 0 with probability c and 1/(1-c) otherwise: given the past its mean is one, and that is all that
unbiasedness needs (Tallec & Ollivier 2017, "Unbiasing Truncated Backpropagation Through Time").
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from artbp._beta_geometric import moment_in_blocks, survival
from artbp._law import (
    FOREVER,
    Array,
    Formula,
    Law,
    check_hazard,
    geometric,
    moment_of_rest,
    positive_integer,
    real,
    written,
)

__all__ = ["Fixed", "Geometric", "Law", "Never", "PowerLaw", "Tabulated"]

_FEW = 4096  # survivals to sum where there is a closed form: it is for the many, and loses digits on the few


class Never(Formula):
    """No cut ever: all links one, which is backpropagation through time.

    Example:
        >>> Never().mean, Never().hazard(1), Never().unbiased
        (inf, 0.0, True)
    """

    @property
    def mean(self) -> float:
        return math.inf

    @property
    def variance(self) -> float:
        return math.nan  # of a length that is infinite with certainty

    def _at(self, age: Array) -> Array:
        return np.zeros_like(age)

    def _survival(self, n: Array) -> Array:
        return np.ones_like(n)

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.full(shape, FOREVER)

    def _limited_mean(self, n: Array) -> Array:
        return np.maximum(n, 0)


class Fixed(Formula):
    """A cut every `length` steps: truncated backpropagation. Its hazard is 0 and then one, so it is biased.

    Example:
        >>> Fixed(3).links(3).tolist(), Fixed(3).unbiased
        ([0.0, 1.0, 1.0], False)
    """

    def __init__(self, length: int) -> None:
        self.length = positive_integer(length, "Fixed(length)")

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def mean(self) -> float:
        return float(self.length)

    @property
    def variance(self) -> float:
        return 0.0

    def links(self, length: int) -> Tensor:
        if positive_integer(length, "links(length)") > self.length:
            raise ValueError(
                f"Fixed({self.length}) has no segment of length {length}: it cuts after {self.length} steps. "
                f"Ask for a length up to {self.length}."
            )
        return super().links(length)

    def _at(self, age: Array) -> Array:
        return (age >= self.length).astype(np.float64)

    def _survival(self, n: Array) -> Array:
        return (n < self.length).astype(np.float64)

    def _retention(self, lag: Array) -> Array:
        kept: Array = (1 - lag / self.length).clip(0.0, 1.0)
        return kept

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.full(shape, self.length)

    def _limited_mean(self, n: Array) -> Array:
        return np.clip(n, 0, self.length)

    def __repr__(self) -> str:
        return f"Fixed({self.length})"


class Geometric(Formula):
    """A cut with the same probability 1/mean after every step.

    The paper's first idea, and its counterexample: the links multiply to (1-1/mean)^-j, exponentially in the age, so
    that the estimate's variance stays finite only where the adjoint fades faster than that.

    Example:
        >>> Geometric(mean=4).links(3).tolist(), Geometric(mean=4).variance
        ([0.0, 1.3333333333333333, 1.3333333333333333], 12.0)
    """

    _near = _FEW

    def __init__(self, mean: float) -> None:
        mean = real(mean, "Geometric(mean)")
        if not 1 < mean < math.inf:
            raise ValueError(
                f"Geometric(mean={mean}): the hazard 1/mean must be in (0, 1), and a cut that is certain after every "
                "step cannot be compensated. Pass a mean above 1; for no cut at all use Never(), for a cut every step "
                "Fixed(1)."
            )
        self._mean = mean

    def __repr__(self) -> str:
        return f"Geometric(mean={written(self._mean)})"

    @property
    def mean(self) -> float:
        return self._mean

    @property
    def variance(self) -> float:
        return self.mean * (self.mean - 1)

    def _at(self, age: Array) -> Array:
        return np.full_like(age, 1 / self.mean)

    def _survival(self, n: Array) -> Array:
        survival: Array = np.exp(np.maximum(n, 0) * math.log1p(-1 / self.mean))
        return survival

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return geometric(torch.full(shape, -math.log1p(-1 / self.mean), dtype=torch.float64), generator)

    def _tail(self, first: float, block: int, power: int = 1) -> float:
        return moment_of_rest(self._survival(np.array([float(first)])), block, _geometric(1 / self.mean, block), power)


class PowerLaw(Formula):
    r"""The paper's law: lengths that decay like length^-alpha, around the mean L0.

    .. math:: c(a) = \frac{\alpha - 1}{(\alpha - 2) L_0 + a}

    This is a beta-geometric law: with :math:`p \sim \mathrm{Beta}(\alpha-1, (\alpha-2)(L_0-1))` and then
    :math:`\text{length} \sim \mathrm{Geometric}(p)` the hazard :math:`E[p(1-p)^{a-1}] / E[(1-p)^{a-1}]` is exactly the
    one above. Hence lengths are drawn exactly and at once however long they are, the mean is exactly L0 (the paper says
    approximately), and the moments are closed forms. The links' product grows like a power of the age, not
    exponentially.

    Args:
        mean: L0, above 1.
        alpha: above 2. The variance of the *length* is finite above 3: below, memory without a window is unsteady, as a
            warning says. The gradient's variance is another matter (:mod:`artbp.diagnostics`).

    Example:
        >>> law = PowerLaw(mean=16, alpha=6)
        >>> law.hazard(1), law.mean, law.variance
        (0.07692307692307693, 16.0, 400.0)
    """

    _near = _FEW

    def __init__(self, mean: float, alpha: float) -> None:
        mean, alpha = real(mean, "PowerLaw(mean)"), real(alpha, "PowerLaw(alpha)")
        if not 2 < alpha < math.inf:
            raise ValueError(
                f"PowerLaw(alpha={alpha}): the exponent must be above 2 (and finite), for at 2 and below the mean "
                "length is infinite. The paper uses alpha=4 and alpha=6; a large alpha approaches Geometric(mean)."
            )
        if not 1 < mean < math.inf:
            raise ValueError(
                f"PowerLaw(mean={mean}): the mean must be above 1 (and finite), for at 1 every cut is certain and "
                "cannot be compensated. Pass a mean above 1; for no cut at all use Never(), for a cut every step "
                "Fixed(1)."
            )
        self._mean, self.alpha = mean, alpha
        self._a = alpha - 1  # p ~ Beta(a, b)
        self._b = (alpha - 2) * (mean - 1)
        self._origin = (alpha - 2) * mean
        if alpha <= 3:
            warnings.warn(
                f"{self!r}: with alpha <= 3 the variance of the segment length is infinite, so that now and then a "
                "segment is as long as the stream. The gradient stays unbiased; pass window= to bound memory, or take "
                "alpha > 3.",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"PowerLaw(mean={written(self._mean)}, alpha={written(self.alpha)})"

    @property
    def mean(self) -> float:
        return self._mean

    @property
    def variance(self) -> float:
        a, b = self._a, self._b
        if a <= 2:
            return math.inf
        return a * b * (a + b - 1) / ((a - 1) ** 2 * (a - 2))

    def _at(self, age: Array) -> Array:
        return self._a / (self._origin + age)

    def _survival(self, n: Array) -> Array:
        return survival(self._a, self._b, n)

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        # p = x/(x+y) with x ~ Gamma(a), y ~ Gamma(b): then -log(1-p) = log(1 + x/y), exact for the smallest p.
        shapes = torch.tensor([self._a, self._b], dtype=torch.float64).expand(*shape, 2)
        x, y = torch._standard_gamma(shapes, generator=generator).unbind(-1)
        return geometric(torch.log1p(x / y), generator)

    def _tail(self, first: float, block: int, power: int = 1) -> float:
        # What has lasted `first` steps goes on with p ~ Beta(a, b + first).
        rest = moment_in_blocks(self._a, self._b + first, block, power)
        return float(self._survival(np.array(float(first)))) * rest


class Tabulated(Formula):
    """Hazards from a table, age 1 first; the last one repeats, so it must be above 0 for segments to end.

    Example:
        >>> Tabulated([0.0, 0.5]).mean
        3.0
    """

    _near = _FEW

    def __init__(self, hazards: Sequence[float] | Tensor) -> None:
        try:
            values = np.asarray(hazards, dtype=np.float64)
        except ValueError:
            values = np.zeros(())  # words, or rows of different lengths
        if values.ndim != 1:
            raise ValueError(
                f"Tabulated(hazards) got {hazards!r}: it takes one hazard for each age, in a row. Pass a list."
            )
        self.hazards = tuple(check_hazard(c, age, self) for age, c in enumerate(values, 1))
        if not self.hazards or self.hazards[-1] == 0:
            raise ValueError(
                f"Tabulated({list(self.hazards)}): the last hazard repeats for all later ages, and with "
                f"{'none' if not self.hazards else 'zero'} a segment would never end. End the table with a hazard above"
                " 0."
            )

    def _at(self, age: Array) -> Array:
        at: Array = np.asarray(self.hazards)[np.minimum(age, len(self.hazards)).astype(np.int64) - 1]
        return at

    def _survival(self, n: Array) -> Array:
        last, n = len(self.hazards), np.maximum(n, 0)
        log_survival = np.append(0.0, np.log1p(-np.asarray(self.hazards)).cumsum())
        beyond = np.maximum(n - last, 0) * math.log1p(-self.hazards[-1])
        survival: Array = np.exp(log_survival[np.minimum(n, last).astype(np.int64)] + beyond)
        return survival

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        budget = torch.empty(shape, dtype=torch.float64).exponential_(generator=generator)
        spent = -torch.log1p(-torch.tensor(self.hazards, dtype=torch.float64)).cumsum(0)
        beyond = ((budget - spent[-1]) / -math.log1p(-self.hazards[-1])).floor().clamp(0, FOREVER)
        return torch.searchsorted(spent, budget, right=True) + 1 + beyond.long()

    def _tail(self, first: float, block: int, power: int = 1) -> float:
        blocks = max(0, math.ceil((len(self.hazards) - first) / block))
        survival = self._survival(first + block * np.arange(blocks + 1.0))
        return moment_of_rest(survival, block, _geometric(self.hazards[-1], block), power)


def _geometric(hazard: float, block: int) -> tuple[float, float]:
    """The mean and the second moment of a geometric length rounded up to blocks."""
    cut = -math.expm1(block * math.log1p(-hazard))  # within a block
    return block / cut, block**2 * (2 - cut) / cut**2
