"""Running moments of gradients around the exact one, which can be merged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Moments:
    r"""Of draws g, the deviations d = g - exact: their number, their sum, and the sums of \|d\|² and \|d\|⁴.

    Two of them add up to that of both sets of draws, from other processes or other days, as long as `exact` is one and
    the same.

    Example:
        >>> one, other = Moments(torch.zeros(1)), Moments(torch.zeros(1))
        >>> one.add(torch.tensor([1.0]))
        >>> other.add(torch.tensor([3.0]))
        >>> (one + other).variance
        2.0
    """

    exact: Tensor
    n: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: float = 0.0
    fourths: float = 0.0

    def add(self, gradient: Tensor) -> None:
        """One more draw."""
        deviation = gradient - self.exact
        square = float(deviation @ deviation)
        self.n += 1
        self.total = self.total + deviation
        self.squares += square
        self.fourths += square**2

    def __add__(self, other: Moments) -> Moments:
        if not torch.equal(self.exact, other.exact):
            raise ValueError(
                "these moments are about two different exact gradients, so their deviations cannot be added. Merge "
                "draws of one step on one sequence at the same parameters."
            )
        return Moments(
            self.exact,
            self.n + other.n,
            self.total + other.total,
            self.squares + other.squares,
            self.fourths + other.fourths,
        )

    @property
    def mean(self) -> Tensor:
        """The mean gradient (P,)."""
        return self.exact + self.total / self.n

    @property
    def variance(self) -> float:
        """The total variance of one draw: the trace of the covariance."""
        if self.n < 2:
            return math.nan
        drift = float(self.total @ self.total) / self.n
        return max(0.0, (self.squares - drift) / (self.n - 1))

    @property
    def variance_error(self) -> float:
        """The standard error of `variance`, from the spread of the squared deviations."""
        if self.n < 2:
            return math.nan
        return math.sqrt(max(0.0, self.fourths / self.n - (self.squares / self.n) ** 2) / (self.n - 1))

    @property
    def deviation_interval(self) -> tuple[float, float]:
        """95% around the square root of `variance`, on the scale of its logarithm: it is skewed, and above zero."""
        if not self.variance:
            return 0.0, 0.0
        deviation, exponent = math.sqrt(self.variance), 1.96 * self.variance_error / (2 * self.variance)
        factor = math.exp(min(exponent, 700.0))  # draws that all but agree: their variance is rounding
        return deviation / factor, deviation * factor

    @property
    def bias(self) -> float:
        r"""\|E[g] - exact\|, less what the noise of n draws alone would show."""
        drift = float((self.total / self.n).norm() ** 2)
        return math.sqrt(max(0.0, drift - (0.0 if self.n < 2 else self.variance / self.n)))
