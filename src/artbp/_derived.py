"""Laws made from another law's lengths: rounded up to whole blocks, or capped."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from artbp._law import Array, Formula, Law, check_hazard
from artbp.laws import Fixed, Never

_MANY, _AT_ONCE = 2**23, 2**16  # terms to sum where a closed form would lose digits, or is infinite; and held at once


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


class _InBlocks(Formula):
    """A law's lengths, rounded up to a multiple of `block`: all hazard gathers at the blocks' ends."""

    def __init__(self, law: Law, block: int) -> None:
        self.law, self.block, self._near = law, block, law._near

    def __repr__(self) -> str:
        return f"{self.law!r} in blocks of {self.block}"

    @property
    def unbiased(self) -> bool:
        return self.law.unbiased

    @property
    def variance(self) -> float:
        return self._variance_in_blocks(self.block)

    def _at(self, age: Array) -> Array:
        ends, hazards = age % self.block == 0, np.zeros_like(age)
        within = self.law._at(age[ends][..., None] - np.arange(self.block))
        with np.errstate(divide="ignore"):  # of a cut that is certain
            hazards[ends] = -np.expm1(np.log1p(-within).sum(-1))
        return hazards

    def _survival(self, n: Array) -> Array:
        return self.law._survival(np.maximum(n, 0) // self.block * self.block)

    def _tail(self, first: float, block: int, power: int = 1) -> float:
        ahead = -first % self.block  # steps to the next end of a block
        if block % self.block == 0 and not ahead:
            return self.law._tail(first, block, power)
        if block > 1:  # a law in blocks, in blocks again: each place within their common period is a sum of its own
            n = math.lcm(block, self.block) // block
            places = [(first + i * block) // self.block * self.block for i in range(n)]
            means = [self.law._tail(place, n * block) / n for place in places]
            if power == 1:
                return sum(means)
            squares = sum(self.law._tail(place, n * block, 2) / n for place in places)
            return squares + block * sum((2 * i + 1 - n) * mean for i, mean in enumerate(means))
        end = first + ahead
        mean, lasting = self.law._tail(end, self.block), float(self.law._survival(np.array(float(end - self.block))))
        if power == 1:
            return mean + ahead * lasting
        return self.law._tail(end, self.block, 2) + 2 * ahead * mean + ahead**2 * lasting

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return (self.law._sample(shape, generator) + self.block - 1) // self.block * self.block


class _Capped(Formula):
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

    @property
    def variance(self) -> float:
        beyond = self.law._tail(self.cap, 1, 2) if self.cap > _MANY else math.inf
        if not math.isfinite(beyond):
            return super().variance
        # Of what goes on after the first step, less what the cap takes away of it.
        mean = self.law._tail(1, 1) - (over := self.law._tail(self.cap, 1))
        return self.law._tail(1, 1, 2) - beyond - 2 * (self.cap - 1) * over - mean**2

    def _at(self, age: Array) -> Array:
        inside = age < self.cap
        hazards = np.ones_like(age)
        hazards[inside] = self.law._at(age[inside])
        return hazards

    def _survival(self, n: Array) -> Array:
        return np.where(n < self.cap, self.law._survival(np.minimum(n, self.cap)), 0.0)

    def _tail(self, first: float, block: int, power: int = 1) -> float:
        blocks, total = math.ceil(max(0.0, self.cap - first) / block), 0.0
        if blocks > _MANY:
            raise ValueError(
                f"a moment of {self!r} would be a sum of {blocks:,} terms: there is no closed form of it, as without "
                "the cap it is infinite. Take alpha > 3 for a PowerLaw, or a smaller cap."
            )
        for start in range(0, blocks, _AT_ONCE):
            m = np.arange(float(start), min(start + _AT_ONCE, blocks))
            total += float(self._survival(first + block * m) @ (2 * m + 1 if power == 2 else np.ones_like(m)))
        return float(block**power) * total

    def _limited_mean(self, n: Array) -> Array:
        return self.law._limited_mean(np.minimum(n, self.cap))

    def _retention(self, lag: Array) -> Array:
        # Over `lag` edges from position i the links multiply to S(i)/S(i+lag), and survive with probability S(i+lag).
        return self._limited_mean(self.cap - lag) / self.mean

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return self.law._sample(shape, generator).clamp_(max=self.cap)
