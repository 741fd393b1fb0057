"""What every truncation law shares: all that follows from its hazard (the index convention is in artbp.laws)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]

FOREVER = 2**62  # stands for an infinite length where lengths are integers
_LONGEST_TABLE = 2**22  # a law without closed forms is summed and searched up to this age
_NEAR_ENOUGH = {1: 1e-9, 2: 1e-6}  # such a law's mean, which losses are divided by, and its second moment


class Law(ABC):
    """A distribution of segment lengths, given by its hazard.

    Override `hazard(age)`; it is called with one age at a time, 1, 2, …, and may return anything in [0, 1). All else is
    derived from it, up to an age of 4 million: a longer segment counts as one that never ends. Every age is asked for
    once, so a law must not change after its first use. A law that looks at the state overrides `hazard(age, state)` and
    sets `needs_state = True`; it can be stepped, and has no lengths of its own.

    Example:
        >>> class Linear(Law):
        ...     def hazard(self, age):
        ...         return min(0.5, 0.01 * age)
        >>> Linear().survival(2)
        0.9702
    """

    needs_state: bool = False

    @abstractmethod
    def hazard(self, age: Any, *state: Any) -> Any:
        """The probability that a segment which has lasted `age` steps is cut now."""

    @property
    def unbiased(self) -> bool:
        """Whether the links have mean one, so that the estimate is unbiased."""
        return True

    @property
    def mean(self) -> float:
        """The mean length of a segment."""
        return self._tail(0, 1)

    @property
    def variance(self) -> float:
        """The variance of the length; infinite where it is (memory, not the gradient, is what it makes unsteady)."""
        return self._variance_in_blocks(1)

    def survival(self, n: Any) -> Any:
        """P(length > n)."""
        return elementwise(lambda n: self._survival(_whole(n)), n)

    def pmf(self, n: Any) -> Any:
        """P(length = n)."""
        return elementwise(
            lambda n: np.where((n < 1) | (n != np.floor(n)), 0.0, self._pmf(np.maximum(_whole(n), 1))), n
        )

    def sample(self, shape: Sequence[int] | int = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Independent lengths, int64; without a generator from one of their own, never the global one."""
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._sample(size, generator if generator is not None else fresh_generator())

    def links(self, length: int) -> Tensor:
        """The factors inside a segment of that length: (length,), float64, on the CPU. The first one is the cut, 0."""
        length = positive_integer(length, "links(length)")
        return torch.from_numpy(np.append(0.0, 1 / (1 - self._hazards(length - 1))))

    def retention(self, lag: Any) -> Any:
        r"""How much of the gradient over `lag` steps the estimate keeps on average: the expected product of that many
        links.

        Averaged over the position in a segment, each as likely as it is in a long stream. One for an unbiased law. For
        a law with certain cuts, :math:`\sum_{i < N - \text{lag}} S(i) / \text{mean}`, where N is the longest length:
        max(0, 1 - lag/L) for `Fixed(L)`, which is truncated backpropagation.
        """
        return elementwise(self._retention, lag)

    def __repr__(self) -> str:
        public = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({public})"

    # What is derived. A law with closed forms overrides these; `n` is a float array of whole numbers.

    _near = 2 * _LONGEST_TABLE  # up to here survivals are summed one by one, and beyond it by `_tail`

    def _at(self, age: Array) -> Array:
        """The hazard at each of these ages."""
        return self._hazards(int(age.max(initial=0)))[age.astype(np.int64) - 1]

    def _hazards(self, last: int) -> Array:
        """hazard(1..last), checked; each age of a law of the user's is asked for once."""
        if self.needs_state:
            raise TypeError(
                f"{type(self).__name__} looks at the state, so its segments have no distribution of their own: what "
                "comes later depends on states that do not exist yet. Step it: Truncation(law).step(state)."
            )
        if last > 2 * _LONGEST_TABLE:
            raise self._too_far(last)
        known: Array = self.__dict__.get("_known_hazards", np.empty(0))
        if last > len(known):
            ages = range(len(known) + 1, max(last, min(2 * len(known), _LONGEST_TABLE)) + 1)
            known = np.append(known, [check_hazard(self.hazard(age), age, self) for age in ages])
            self.__dict__["_known_hazards"] = known
        return known[:last]

    def _survival(self, n: Array) -> Array:
        last = int(min(n.max(initial=0), FOREVER))
        table = np.exp(np.append(0.0, np.log1p(-self._hazards(last)).cumsum()))
        survival: Array = table[np.maximum(n, 0).astype(np.int64)]
        return survival

    def _pmf(self, n: Array) -> Array:
        return self._at(n) * self._survival(n - 1)

    def _retention(self, lag: Array) -> Array:
        return np.ones_like(lag)

    def _is_certain(self, age: int) -> bool:
        """Whether the cut at that age is one that no link makes up for, for which alone a hazard may be one."""
        return False

    def _limited_mean(self, n: Array) -> Array:
        """E[min(length, n)] = S(0) + … + S(n-1)."""
        near = np.clip(n, 0, self._near)
        sums = np.append(0.0, self._survival(np.arange(near.max(initial=0))).cumsum())
        far = [self._tail(self._near, 1) - self._tail(age, 1) if age > self._near else 0.0 for age in n.flat]
        limited: Array = sums[near.astype(np.int64)] + np.reshape(far, n.shape)
        return limited

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """The first age at which the summed hazard -log(1-c) passes an exponential variate: one variate a length."""
        budget = torch.empty(shape, dtype=torch.float64).exponential_(generator=generator).numpy()
        largest = budget.max(initial=0)
        last = 64
        while (spent := -np.log1p(-self._hazards(last)).cumsum())[-1] <= largest and last < _LONGEST_TABLE:
            last *= 2
        lengths = np.searchsorted(spent, budget, side="right") + 1
        return torch.from_numpy(np.asarray(np.where(lengths > last, FOREVER, lengths)))

    def _variance_in_blocks(self, block: int) -> float:
        """Of the length rounded up. The first block is in every length: beyond it no large squares cancel."""
        return self._tail(block, block, 2) - self._tail(block, block) ** 2

    def _tail(self, first: float, block: int, power: int = 1) -> float:
        """E[R^power; length > first], R being what then remains of the length, rounded up to blocks; power 1 or 2.

        That is block · Σ S(first + m · block), and block² · Σ (2m+1) S(first + m · block), over m >= 0. It is summed to
        where it no longer changes; what lies beyond is an integral, of S ~ (R + offset)^-index as in the last octaves.
        """
        if first > _LONGEST_TABLE:
            raise self._too_far(int(first))
        total = end = math.nan
        terms = 1024
        while 16 * terms * block > _LONGEST_TABLE and terms > 4:
            terms //= 4
        while first + (last := terms * block) <= 2 * _LONGEST_TABLE:
            survival, before = self._survival(first + block * np.arange(terms + 1.0)), total
            end = float(survival[-1])
            total = moment_of_rest(survival, block, (0.0, 0.0), power)
            if end == 0:
                return total
            earlier, later = (math.log(survival[i] / survival[2 * i]) for i in (terms // 4, terms // 2))
            index = (2 * later - earlier) / math.log(2)
            if index > power:  # Euler and Maclaurin's sum, its first two corrections with it
                far = last * (1 + (later - earlier) / index)  # with the offset
                whole, slope = far / (index - 1), index / far
                if power == 1:
                    total += end * (whole + block / 2 + block**2 / 12 * slope)
                else:
                    whole = 2 * far**2 / (index - 2) - (2 * (far - last) - block) * whole
                    total += end * (whole + (block / 2 + block**2 / 12 * slope) * (2 * last + block) - block**2 / 6)
            if abs(total - before) <= _NEAR_ENOUGH[power] * total and index > power:
                return total
            terms *= 4
        moment, blocks = ("mean", "variance")[power - 1], f" in blocks of {block}"
        formula = f"Define `{moment}` on the law as a property, from its formula."
        raise ValueError(
            f"the {moment} of {self!r}{blocks if block > 1 else ''} cannot be summed: after {last // 4:,} steps a "
            f"segment still goes on with probability {end:.2g}, too slowly less. "
            f"{'Use smaller blocks, or a law with closed forms, such as PowerLaw.' if block > 1 else formula}"
        )

    def _too_far(self, last: int) -> ValueError:
        return ValueError(
            f"{self!r} is asked for what happens after {last:,} steps: a law without closed forms is tabulated, up to "
            f"{2 * _LONGEST_TABLE:,}. Override _survival, or use PowerLaw or Tabulated, which have one."
        )


class Formula(Law):
    """A law whose hazard is known for an array of ages at once, however large: by `_at`."""

    @abstractmethod
    def _at(self, age: Array) -> Array: ...

    def hazard(self, age: Any, *state: Any) -> Any:
        return elementwise(lambda age: self._at(ages(age)), age)

    def _hazards(self, last: int) -> Array:
        return self._at(np.arange(1.0, last + 1))


class _Foreign(Law):
    """Any object with `hazard(age)`, taken for a law."""

    def __init__(self, law: Any) -> None:
        self.law = law
        self.needs_state = bool(getattr(law, "needs_state", False))

    def __repr__(self) -> str:
        return repr(self.law)

    @property
    def unbiased(self) -> bool:
        return bool(getattr(self.law, "unbiased", True))

    @property
    def mean(self) -> float:
        return float(self.law.mean) if hasattr(self.law, "mean") else super().mean

    @property
    def variance(self) -> float:
        return float(self.law.variance) if hasattr(self.law, "variance") else super().variance

    def hazard(self, age: Any, *state: Any) -> Any:
        return self.law.hazard(age, *state)


def as_law(law: Any) -> Law:
    """The law itself, or any object with `hazard(age)` as one."""
    if isinstance(law, Law):
        return law
    if isinstance(law, type) or not callable(getattr(law, "hazard", None)):
        raise TypeError(
            f"{law!r} is no truncation law: it has no hazard(age) that could be called. Pass a law such as "
            "PowerLaw(mean=50, alpha=4) or Fixed(50), or any object with hazard(age)."
        )
    return _Foreign(law)


def check_hazard(value: Any, age: int, law: Any) -> float:
    """A hazard that can be compensated: in [0, 1)."""
    hazard = float(value)
    if not 0 <= hazard < 1:
        why = (
            "a cut that is certain cannot be compensated, 1/(1-c) being infinite"
            if hazard == 1
            else "a probability must be in [0, 1)"
        )
        raise ValueError(
            f"hazard({age}) of {type(law).__name__} is {hazard}: {why}. "
            "Return a value in [0, 1); for cuts at a fixed length use Fixed(length), or Truncation(law, cap=n)."
        )
    return hazard


def positive_integer(value: Any, name: str) -> int:
    """`value` as an int, or an error that names the argument as it was typed."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 1:
        raise ValueError(
            f"{name} got {value!r}: it counts time steps, so it must be a whole number of at least 1. "
            "Pass an int such as 50."
        )
    return int(value)


def fresh_generator(seed: int | None = None) -> torch.Generator:
    """A generator of our own, seeded from the system's entropy unless told; the global one is never touched."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
        return generator
    if not hasattr(seed, "__index__") or not -(2**63) <= seed.__index__() < 2**64:
        kind = ValueError if hasattr(seed, "__index__") else TypeError
        raise kind(f"seed got {seed!r}: a generator is seeded by a whole number of 64 bits. Pass an int such as 0.")
    return generator.manual_seed(seed.__index__())


def real(value: Any, name: str) -> float:
    """`value` as a float, or an error that names the argument as it was typed."""
    if isinstance(value, str) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(
            f"{name} got {value!r}, a {type(value).__name__}: it must be a number. Pass one such as 50 or 4.5."
        )
    return float(value)


def written(value: float) -> str:
    """A number as one would type it: 16, not 16.0."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def elementwise(function: Callable[[Array], Any], n: Any) -> Any:
    """`function` of a number as a number, of an array as an array, of a tensor as a tensor."""
    if isinstance(n, Tensor):
        return torch.from_numpy(np.asarray(function(n.detach().cpu().double().numpy())))
    array = np.asarray(n, dtype=np.float64)
    value = function(array)
    return value if array.ndim else float(value)


def _whole(n: Array) -> Array:
    if np.isnan(n).any():
        raise ValueError("a length of nan steps has no probability: lengths are whole numbers. Pass an int such as 50.")
    return np.clip(np.floor(n), -1, FOREVER)


def ages(age: Array) -> Array:
    if not np.all(age >= 1):  # nan, too
        raise ValueError(
            f"hazard got an age of {np.min(age):g}: ages count from 1, the age after a segment's first step. "
            "Pass ages of at least 1."
        )
    return age


def moment_of_rest(survival: Array, block: int, rest: tuple[float, float], power: int) -> float:
    """E[R^power; R > 0] of what remains, R, in blocks.

    From the chances that 0, 1, … M blocks are passed, and the mean and the second moment of what remains beyond the
    last of them.
    """
    M = len(survival) - 1
    head, end = survival[:-1], float(survival[-1])
    if power == 1:
        return float(block * head.sum() + end * rest[0])
    return float(block**2 * ((2 * np.arange(M) + 1) @ head) + end * (rest[1] + 2 * M * block * rest[0]))


def geometric(rate: Tensor, generator: torch.Generator) -> Tensor:
    """Lengths with P(length > n) = exp(-rate · n), by inversion of an exponential variate."""
    lengths = torch.empty_like(rate).exponential_(generator=generator).div_(rate).floor_()
    return lengths.clamp_(max=FOREVER).long() + 1
