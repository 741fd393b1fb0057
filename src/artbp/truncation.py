"""Truncation: a law's draws, as links. Step by step, segment by segment, or for a whole sequence at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from artbp import _tree
from artbp._derived import capped, in_blocks
from artbp._law import as_law, check_hazard, elementwise, fresh_generator, positive_integer
from artbp.laws import Never

_LONGEST_SEGMENT = 2**26  # half a gigabyte of links; a longer one is drawn only against what the stream has left


class Truncation:
    r"""Draws links from a law. One length is drawn per segment, so every altitude gives the same cuts for the same
    seed.

    Theorem (Tallec & Ollivier 2017). Let the links have, given the past, mean one: 0 with probability c, 1/(1-c)
    otherwise, for any c < 1 that depends on past cuts and states only. Then for frozen parameters the gradient that
    crosses them has the expectation of the full one. Proof, backward in time: let :math:`\tilde\delta_t` be the adjoint
    with links, and suppose :math:`E[\tilde\delta_{t+1} \mid \text{past}] = \delta_{t+1}`. Then

    .. math:: E[\tilde\delta_t \mid \text{past}]
              = (1-c_t) \tfrac{1}{1-c_t}\, \delta_{t+1} \tfrac{\partial F}{\partial s} + c_t \cdot 0
                + \tfrac{\partial \ell_t}{\partial s} = \delta_t . \qquad \square

    Unbiased for what: the loss of the sequence that is cut, at the parameters of the moment. Where a stream ends and
    its state is carried on nevertheless, that last edge is an ordinary cut, uncompensated. Sum the losses of a segment
    and divide by the *constant* `mean` (times lanes), never by the segment's own length: length and links depend on
    each other.

    Args:
        law: a law, or any object with `hazard(age)`.
        seed, generator: where the draws come from; at most one of them. With neither, an own generator seeded from the
            system's entropy. The global generator is never touched.
        block: round each length up to a multiple of this many steps; the links are those of the rounded law.
        compensate: False leaves the surviving gradient as it is (links 0 or 1): random truncation, biased.
        cap: the longest length. Its cut is certain and cannot be compensated, so `unbiased` is False.

    Attributes:
        law: the law that is really drawn, with `block` and `cap` in it.

    Example:
        >>> from artbp import Fixed
        >>> cut = Truncation(Fixed(3), seed=0)
        >>> cut.segment().tolist(), cut.links(5).tolist()
        ([0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0, 1.0])
    """

    def __init__(
        self,
        law: Any,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        block: int = 1,
        compensate: bool = True,
        cap: int | None = None,
    ) -> None:
        if seed is not None and generator is not None:
            raise ValueError(
                "Truncation got both a seed and a generator: the draws come from one place. Pass seed= for a generator "
                "of its own, or generator= to share yours."
            )
        self.law = in_blocks(as_law(law), positive_integer(block, "Truncation(block)"))
        if cap is not None:
            self.law = capped(self.law, positive_integer(cap, "Truncation(cap)"), block)
        if not isinstance(generator, torch.Generator | None):
            raise TypeError(
                f"Truncation got the generator {generator!r}: links are drawn by torch, from a generator of its kind. "
                "Pass a torch.Generator(), or seed=."
            )
        if generator is not None and generator.device.type != "cpu":
            raise ValueError(
                f"Truncation got a generator on {generator.device}: links are drawn on the CPU, so that no device has "
                "to wait for them. Pass a torch.Generator() of the CPU, or seed=."
            )
        self.compensate = bool(compensate)
        self.generator = generator if generator is not None else fresh_generator(seed)
        self._age = 0  # steps taken in the present segment
        self._length = 0  # of the present segment; it is over at age == length
        self._budget = 0.0  # of summed hazard, for a law that looks at the state: the segment is over where it is spent
        self._factors = [0.0]  # links(age) as numbers, as far as a segment has reached

    def __repr__(self) -> str:
        return f"Truncation({self.law!r}{'' if self.compensate else ', compensate=False'})"

    @property
    def mean(self) -> float:
        """The mean length of what is really drawn: divide summed losses by it (times lanes)."""
        return self.law.mean

    @property
    def unbiased(self) -> bool:
        """Whether every link has mean one."""
        return self.law.unbiased and (self.compensate or isinstance(self.law, Never))

    def retention(self, lag: Any) -> Any:
        """The expected product of the links over `lag` steps (:meth:`Law.retention`), for what is really drawn."""
        if self.compensate or isinstance(self.law, Never):
            return self.law.retention(lag)
        return elementwise(lambda lag: np.maximum(0.0, 1 - self.law._limited_mean(lag) / self.law.mean), lag)

    # Step by step

    def step(self, state: Any = None) -> float:
        """The link on the edge into the next step: 0.0 where a segment begins (on the first call too), else 1/(1-c)."""
        if self.law.needs_state:
            return self._step_with(state)
        if self._age == self._length:
            self._length, self._age = self._draw(), 0
        if self._age >= len(self._factors):
            self._factors = self._inside(min(2 * self._age, self._length)).tolist()
        factor = self._factors[self._age]
        self._age += 1
        return factor

    def _step_with(self, state: Any) -> float:
        if self._age:
            # Cut where the summed hazard -log(1-c) passes an exponential variate: probability c, given the past.
            hazard = self.law.hazard(self._age, state)
            if not self.law._is_certain(self._age):
                hazard = check_hazard(hazard, self._age, self.law)
            self._budget += math.log1p(-hazard) if hazard < 1 else -math.inf
            if self._budget > 0:
                self._age += 1
                return 1 / (1 - hazard) if self.compensate else 1.0
        self._budget = torch.empty((), dtype=torch.float64).exponential_(generator=self.generator).item()
        self._age = 1
        return 0.0

    # Segment by segment

    def segment(self, remaining: int | None = None) -> Tensor:
        """The links of the next segment of a stream: (length,), the first one 0.

        `remaining` is what the stream has left: the segment ends there at the latest, and with it the stream.
        """
        if remaining is not None:
            remaining = positive_integer(remaining, "segment(remaining)")
        length = self._next_length()
        if remaining is None and length > _LONGEST_SEGMENT:
            drawn = "one that never ends" if self.mean == math.inf else f"one of {length:,} steps"
            raise ValueError(
                f"segment() drew {drawn} from {self.law!r}, too long to hold. Say what the stream has left: "
                "segment(remaining=...); this draw is kept for it."
            )
        self._age = length
        return self._inside(length if remaining is None else min(length, remaining))

    def segments(self, stream: Any) -> Iterator[tuple[Any, Tensor]]:
        """(inputs, links) of one segment after another, until the stream ends.

        `stream` is a tree of tensors (T, …), or anything with `take(n)`: the next n steps, fewer or none (None, or an
        empty tree) at its end. Saved between two segments, its position and this `state_dict` resume the run.
        """
        # A tensor has a `take` of another kind; a stream of the user's may be a dataclass that holds tensors.
        own = None if isinstance(stream, Tensor) else getattr(stream, "take", None)
        take = own if callable(own) else _taker(stream)
        while True:
            length = self._next_length()
            inputs = take(length)
            taken = _count(inputs)
            if taken > length:
                raise ValueError(
                    f"the stream's take({length}) returned {taken} steps, more than were asked for. Return at most n "
                    "steps, with time as dimension 0 of every tensor."
                )
            if not taken:
                return  # the length that was drawn stays, for the stream that comes next
            self._age = length
            yield inputs, self._inside(taken)
            if taken < length:
                return

    def _next_length(self) -> int:
        self._refuse_state("segment")
        if 0 < self._age < self._length:
            raise RuntimeError(
                f"step() has a segment open, at {self._age} of its {self._length} steps, and a segment's links begin "
                "with its cut. Go on with step() until it returns 0.0, or drop what is open with reset()."
            )
        if self._age == self._length:
            self._length, self._age = self._draw(), 0
        return self._length

    # Whole sequences

    def links(self, T: int, lanes: int | None = None, resets: Tensor | None = None) -> Tensor:
        """Links for a new whole sequence held in memory: (T,), or (T, lanes) with cuts of their own for every lane.

        links[0] is 1: the edge from the given state is no cut. `resets`, booleans of (T,) or (T, lanes), marks the
        steps whose state is made anew: nothing flows over the edge into them, so their link is 0 at no price, nothing
        before is compensated for it, and the age starts anew.
        """
        self._refuse_state("links")
        T = positive_integer(T, "links(T)")
        shape: tuple[int, ...] = (T,) if lanes is None else (T, positive_integer(lanes, "links(lanes)"))
        starts = torch.zeros(T, lanes or 1, dtype=torch.bool)  # where a segment begins
        resets = None if resets is None else torch.as_tensor(resets)
        following = _following_reset(resets, shape)  # (T+1, lanes): the first reset at t or later, else T
        lane = torch.arange(starts.shape[1])
        start = torch.zeros_like(lane)
        while len(lane):
            starts[start, lane] = True
            lengths = self.law.sample((len(lane),), generator=self.generator).clamp(max=T)
            start = torch.minimum(start + lengths, following[start + 1, lane])
            start, lane = start[start < T], lane[start < T]
        steps = torch.arange(T).unsqueeze(1)  # (T, 1)
        begun = torch.where(starts, steps, 0).cummax(0).values
        age = steps - begun  # (T, lanes)
        links = self._inside(int(age.max()) + 1)[age]
        links[0] = 1.0 if resets is None else (~resets[0]).to(links.dtype)
        return links.reshape(shape)

    # Memory

    def reset(self) -> None:
        """Drop the segment that is open: the next step is a segment's first."""
        self._age = self._length = 0

    def state_dict(self) -> dict[str, Any]:
        """Age, length and generator: enough to go on bitwise, in the middle of a segment too."""
        return {
            "truncation": self._identity(),
            "age": self._age,
            "length": self._length,
            "budget": self._budget,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; refused for another law or other options, whose links would not fit."""
        missing = self.state_dict().keys() - state.keys()
        if missing:
            raise ValueError(
                f"this state has no {', '.join(sorted(missing))}: it was not saved by a Truncation's state_dict(), or "
                "not whole. Pass what state_dict() returned."
            )
        if state["truncation"] != self._identity():
            raise ValueError(
                f"this state was saved by {state['truncation']} and cannot go on as {self!r}: the links of the open "
                "segment would be another law's. Build the Truncation that was saved, or start anew without loading."
            )
        age, length = int(state["age"]), int(state["length"])
        if not (age >= 0 and (age <= length or self.law.needs_state)):
            raise ValueError(
                f"this state says age {age} in a segment of {length} steps, which no state_dict() returned. "
                "Pass one as it was saved."
            )
        self._age, self._length, self._budget = age, length, float(state["budget"])
        self.generator.set_state(state["generator"].cpu())

    def _identity(self) -> str:
        # Of an object without a repr of its own no two processes name the same address.
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self))

    def _draw(self) -> int:
        return int(self.law.sample((), generator=self.generator))

    def _inside(self, length: int) -> Tensor:
        """The links of a segment's first `length` steps."""
        if self.compensate:
            return self.law.links(length)
        links = torch.ones(length, dtype=torch.float64)
        links[0] = 0.0
        return links

    def _refuse_state(self, method: str) -> None:
        if self.law.needs_state:
            raise TypeError(
                f"{method}() draws ahead, but {self.law!r} looks at the state, and the states to come do not exist "
                "yet. Ask for one link at a time: step(state)."
            )


def _count(inputs: Any) -> int:
    """How many steps a stream gave: none at its end, where it returns None or what is empty."""
    if inputs is None or (isinstance(inputs, tuple | list | dict) and not inputs):
        return 0
    steps = _tree.length(inputs)
    if steps is None:
        raise TypeError(
            f"the stream's take(n) returned {type(inputs).__name__}, in which there is no tensor to count steps by. "
            "Return tensors (n, …) in any tree (torch.from_numpy makes one), and None at the end."
        )
    return steps


def _taker(stream: Any) -> Callable[[int], Any]:
    T, position = _tree.length(stream), 0
    if T is None:
        raise TypeError(
            f"segments() got a {type(stream).__name__} that holds no tensor and has no take(n): there is nothing to "
            "cut. Pass tensors (T, …), or an object whose take(n) returns the next n steps."
        )

    def take(n: int) -> Any:
        nonlocal position
        first, position = position, min(position + n, T)
        return _tree.window(stream, first, position)

    return take


def _following_reset(resets: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    T, lanes = shape[0], shape[1] if len(shape) > 1 else 1
    following = torch.full((T + 1, lanes), T)
    if resets is None:
        return following
    if resets.dtype != torch.bool or tuple(resets.shape) not in {(T,), shape}:
        instead = f"links(T, lanes={resets.shape[1]}, resets=...)" if resets.dim() == 2 else "resets.bool()"
        raise ValueError(
            f"resets is a {resets.dtype} tensor of shape {tuple(resets.shape)} for links of shape {shape}: it must be "
            f"booleans, of shape ({T},) for all lanes or ({T}, lanes) for each. Pass {instead}."
        )
    marks = resets.cpu().reshape(T, -1)  # (T, 1) or (T, lanes)
    positions = torch.where(marks, torch.arange(T).unsqueeze(1), T).expand(T, lanes)
    following[:T] = positions.flip(0).cummin(0).values.flip(0)
    return following
