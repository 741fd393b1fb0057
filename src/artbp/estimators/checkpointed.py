"""Backpropagation through time in the memory of one window."""

from __future__ import annotations

from contextlib import ExitStack
from math import comb
from typing import Any

import torch
from torch import Tensor

from artbp import _tree
from artbp._law import positive_integer
from artbp._step import Step
from artbp._windows import Windows
from artbp.estimators._segments import Segments
from artbp.laws import Never
from artbp.truncation import Truncation


class CheckpointedBPTT(Segments):
    r"""The exact gradient, in the memory of one window: the states between windows are kept, all else is run again.

    Reference: Gruslys, Munos, Danihelka, Lanctot & Graves 2016, "Memory-Efficient Backpropagation Through Time"; for
    the schedule Griewank & Walther 2000, "Revolve".

    The adjoint is BPTT's, every link one; windows are taken from the last to the first, each run once more *with its
    loss* and backpropagated from the gradient of the state that leaves it.

    Unbiased: exact. Variance: none. Let a graph hold k states' worth of memory a step (an LSTM's some 8), n = T/W
    windows of W steps, and a backward pass cost two forward ones. Then, in states and in forward passes,

    =======================  =====================================  ============================================
    method                   memory                                 time (BPTT: 3)
    =======================  =====================================  ============================================
    BPTT                     k T                                    3
    all states, no `slots`   k W + T/W, least for W = √(T/k)        4 - 1/n
    S `slots`                k W + S                                3 + F(n, S)/n
    Gruslys et al., states   k + S                                  3 + F(T, S)/T
    =======================  =====================================  ============================================

    where F(n, S), windows run without a graph, obeys :math:`F(n, S) = \min_y\; y + F(n-y, S-1) + F(y, S)`, with F(1, S)
    = 0 and F(n, 0) = n(n-1)/2. In closed form, r being how often a window is run at most: F = r n - C(S+1+r, r-1) for
    the r with C(S+r, r-1) < n ≤ C(S+1+r, r). Theirs is the case W = 1; they report 95% of memory saved at one third
    more time for T = 1000, and so does W = 25 without slots: 25 graphs and 40 states. Slots help where T/W states are
    themselves too many: n = 1000 windows take 3.5 extra forward passes with S = 10, and 2.4 with S = 30.

    Args:
        window: W, the steps of one graph.
        slots: S, how many states to hold at once beside the one that is given; None for all T/W.

    Example:
        >>> import torch, artbp
        >>> theta = torch.tensor(0.5, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> loss, state = CheckpointedBPTT(window=2)(step, torch.ones(4), torch.zeros(()))
        >>> theta.grad
        tensor(5.7500)
    """

    def __init__(self, window: int, slots: int | None = None) -> None:
        super().__init__(Truncation(Never(), seed=0), positive_integer(window, "CheckpointedBPTT(window)"))
        self.slots = None if slots is None else positive_integer(slots, "CheckpointedBPTT(slots)")

    def __repr__(self) -> str:
        return f"CheckpointedBPTT({self.window}{'' if self.slots is None else f', slots={self.slots}'})"

    def _backprop(self, step: Step, inputs: Any, state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
        T, window = _tree.length(inputs) or 0, self.window or 1
        if self.slots is None or window >= T:
            return super()._backprop(step, inputs, state, links)
        return _Slots(step, inputs, state, links, [*range(window, T, window), T]).backprop_within(self.slots)


class _Slots(Windows):
    """Windows whose states are not all kept: the optimal schedule says which, and they are a stack."""

    def backprop_within(self, slots: int) -> tuple[Tensor, Any]:
        self.states += [None] * len(self.ends)
        self.losses: list[Tensor] = []
        self.replay.remember(0)
        with self.boundary, ExitStack() as self.closing:
            gradients = self.reverse(slots)
        self.hand_on(gradients)
        return torch.stack(self.losses[::-1]).sum(0), self.states[-1]

    def reverse(self, slots: int) -> list[Tensor | None]:
        """Backpropagates all windows, the last one first."""
        gradients: list[Tensor | None] = []
        todo = [(0, len(self.ends), slots)]  # windows first..end-1, the state before the first held, slots free
        while todo:
            first, end, slots = todo.pop()
            if end > first + 1:
                middle = first + (split(end - first, slots) if slots else end - first - 1)
                self.advance(first, middle)
                todo += [(first, middle, slots), (middle, end, max(slots - 1, 0))]
                continue
            gradients = self.turn(first, gradients)
            if first:
                self.states[first] = None
                self.replay.forget(first)
        return gradients

    def turn(self, k: int, gradients: list[Tensor | None]) -> list[Tensor | None]:
        """Backpropagates window k, from the state before it."""
        live = not self.losses  # the very last window, met for the first time: it is not run twice
        if not live:
            self.replay.rewind(k)
        loss, after, gradients = self.backward(k, gradients, 1.0)
        self.losses.append(loss)
        if live:
            self.states[-1] = after
            self.closing.enter_context(self.replay.replaying())
        return gradients

    def advance(self, first: int, middle: int) -> None:
        if self.losses:
            self.replay.rewind(first)
        for k in range(first, middle):
            self.states[k + 1] = self.forward(k)
            if k > first:
                self.states[k] = None
        self.replay.remember(middle)


def split(n: int, slots: int) -> int:
    """After how many of n windows the next state is kept, for the fewest runs in all; `slots` are free, one or more.

    With c = slots + 1 and β(c, r) = C(c+r, r), r such that β(c, r-1) < n ≤ β(c, r): whatever leaves y ≤ β(c, r-1) on
    the left and n-y ≤ β(c-1, r) on the right runs no window more often than r times, and that is optimal.
    """
    c, r = slots + 1, 1
    while comb(c + r, r) < n:
        r += 1
    return max(1, n - comb(c - 1 + r, r), comb(c + r - 2, r - 2) if r > 1 else 1)
