"""Laws made from another law's lengths: rounded up to whole blocks, or capped."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from artbp._law import Array, Law, ages, check_hazard, elementwise
from artbp.laws import Fixed, Never


def in_blocks(law: Law, block: int) -> Law:
    if block == 1 or isinstance(law, Never):
        return law
    if law.needs_state:
        raise TypeError(
            f"block={block} rounds a length up when it is drawn, but {law!r} looks at the state and has no lengths. "
            "Let its own hazard be 0 except at multiples of the block."
        )
    return Fixed(-(-law.length // block) * block) if isinstance(law, Fixed) else _InBlocks(law, block)


def capped(law: Law, cap: int, block: int) -> Law:
    if cap % block:
        raise ValueError(
            f"cap={cap} is no multiple of block={block}, so the longest segment would not be made of whole blocks. "
            f"Pass cap={-(-cap // block) * block}."
        )
    if isinstance(law, Never | Fixed):
        return Fixed(cap if isinstance(law, Never) else min(cap, law.length))
    return _Capped(law, cap)


class _Derived(Law):
    """A law made from another one's lengths, given by its table of hazards."""

    def hazard(self, age: Any, *state: Any) -> Any:
        return elementwise(lambda age: self._hazards(int(np.max(ages(age))))[age.astype(np.int64) - 1], age)


class _InBlocks(_Derived):
    """A law's lengths, rounded up to a multiple of `block`: all hazard gathers at the blocks' ends."""

    def __init__(self, law: Law, block: int) -> None:
        self.law, self.block, self._near = law, block, law._near

    def __repr__(self) -> str:
        return f"{self.law!r} in blocks of {self.block}"

    @property
    def unbiased(self) -> bool:
        return self.law.unbiased

    @property
    def mean(self) -> float:
        return self.law._tail(0, self.block)

    def _hazards(self, last: int) -> Array:
        blocks = last // self.block
        within = 1 - self.law._hazards(blocks * self.block).reshape(blocks, self.block)
        hazards = np.zeros(last)
        hazards[self.block - 1 :: self.block] = 1 - within.prod(axis=1)
        return hazards

    def _survival(self, n: Array) -> Array:
        return self.law._survival(np.maximum(n, 0) // self.block * self.block)

    def _tail(self, first: float, block: int) -> float:
        if block > 1:  # a law in blocks, in blocks again: each place within their common period is a sum of its own
            period = math.lcm(block, self.block)
            places = (first + np.arange(0, period, block)) // self.block * self.block
            return block / period * sum(self.law._tail(float(place), period) for place in places)
        ahead = -first % self.block  # steps to the next end of a block
        end = first + ahead
        return self.law._tail(end, self.block) + ahead * float(self.law._survival(np.array(float(end - self.block))))

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return (self.law._sample(shape, generator) + self.block - 1) // self.block * self.block


class _Capped(_Derived):
    """A law's lengths up to `cap`, where a certain cut ends them: no link can make up for that one."""

    def __init__(self, law: Law, cap: int) -> None:
        self.law, self.cap, self.needs_state = law, cap, law.needs_state

    def __repr__(self) -> str:
        return f"{self.law!r} capped at {self.cap}"

    def hazard(self, age: Any, *state: Any) -> Any:
        if self.needs_state:
            return 1.0 if self._is_certain(age) else check_hazard(self.law.hazard(age, *state), age, self.law)
        return super().hazard(age)

    @property
    def unbiased(self) -> bool:
        return False

    def _is_certain(self, age: int) -> bool:
        return age >= self.cap

    @property
    def mean(self) -> float:
        return float(self.law._limited_mean(np.array(float(self.cap))))

    def _hazards(self, last: int) -> Array:
        inside = self.law._hazards(min(last, self.cap - 1))
        return np.append(inside, np.ones(last - len(inside)))

    def _survival(self, n: Array) -> Array:
        return np.where(n < self.cap, self.law._survival(np.minimum(n, self.cap)), 0.0)

    def _limited_mean(self, n: Array) -> Array:
        return self.law._limited_mean(np.minimum(n, self.cap))

    def _retention(self, lag: Array) -> Array:
        # Over `lag` edges from position i the links multiply to S(i)/S(i+lag), and survive with probability S(i+lag).
        return self._limited_mean(self.cap - lag) / self.mean

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return self.law._sample(shape, generator).clamp_(max=self.cap)
