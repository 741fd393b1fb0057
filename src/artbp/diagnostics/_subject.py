"""What is diagnosed: a step with its data, whose gradients are read without leaving a trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from artbp import _tree
from artbp._step import Step, count_steps, no_gradient, run
from artbp.estimators import CheckpointedBPTT
from artbp.estimators._graph import leaves_of


class Subject:
    """A step, its inputs and its first state, both detached, and the parameters that it uses.

    Making one costs a forward pass, window by window, in which it is seen whether the step is fit to be diagnosed.
    """

    def __init__(self, step: Step, inputs: Any, state: Any) -> None:
        self.step, self.T = step, count_steps(inputs, None)
        self.inputs, self.state = _tree.detach(inputs), _tree.detach(state)
        self.window = max(1, math.isqrt(self.T))
        found: dict[int, Tensor] = {}
        reached = False
        state = self.state
        for first in range(0, self.T, self.window):
            leaves = [leaf.detach().requires_grad_(leaf.is_floating_point()) for leaf in _tree.tensors(state)]
            loss, after = self.run(first, min(first + self.window, self.T), _tree.replace(state, leaves))
            if first == 0:
                self._refuse_noise(loss, min(self.window, self.T))
            own = {id(leaf) for leaf in leaves}
            used = leaves_of([loss, *_tree.tensors(after)])
            found.update({id(leaf): leaf for leaf in used if id(leaf) not in own})
            reached = reached or (first > 0 and any(id(leaf) in own for leaf in leaves_of([loss])))
            state = _tree.detach(after)
        self.parameters = list(found.values())
        if not self.parameters:
            raise no_gradient()
        if self.window < self.T and not reached:
            raise ValueError(
                "the state does not reach the loss: no loss depends on the state that came into its window, so nothing "
                "crosses the edges and truncation changes nothing. Check that the step returns the state it computed, "
                "with its graph, and reads the one it is given."
            )

    def run(self, first: int, end: int, state: Any, links: Tensor | None = None) -> tuple[Tensor, Any]:
        """Steps first..end-1, with their graph."""
        with torch.enable_grad():
            return run(self.step, _tree.window(self.inputs, first, end), state, links)

    def gradient(self, call: Callable[[Step, Any, Any], Any]) -> Tensor:
        """What `call(step, inputs, state)` leaves in `.grad`, as one vector (P,) in float64."""
        kept = [leaf.grad for leaf in self.parameters]
        try:
            for leaf in self.parameters:
                leaf.grad = None
            call(self.step, self.inputs, self.state)
            return flat([torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self.parameters])
        finally:
            for leaf, gradient in zip(self.parameters, kept, strict=True):
                leaf.grad = gradient

    def exact(self) -> Tensor:
        """The exact gradient (P,), in the memory of one window."""
        return refuse_overflow(self.gradient(CheckpointedBPTT(self.window)))

    def _refuse_noise(self, loss: Tensor, end: int) -> None:
        again, loss = self.run(0, end, self.state)[0].detach(), loss.detach()
        if not torch.allclose(again, loss, rtol=1e-5, atol=0.0, equal_nan=True):
            raise ValueError(
                f"the step is not deterministic: run twice on the same inputs and state, its loss is {float(loss):.6g} "
                f"and then {float(again):.6g}, and that noise would be taken for the estimator's. Put the model in "
                "eval() mode, or fix what the step draws."
            )


def flat(parts: list[Tensor]) -> Tensor:
    """Gradients as one vector, in float64, on the CPU."""
    return torch.cat([part.detach().reshape(-1).double().cpu() for part in parts])


def refuse_overflow(exact: Tensor) -> Tensor:
    """The exact gradient, which all else is held against, where it is one."""
    if not exact.isfinite().all():
        raise ValueError(
            "the exact gradient of this sequence is not finite, and nothing can be held against it: the loss or the "
            "state overflows somewhere, or the inputs hold a nan. Look for that step, or pass a shorter sequence."
        )
    return exact


def cosine(one: Tensor, other: Tensor) -> float:
    """The cosine of the angle between two vectors; nan where one is zero."""
    return float(one @ other / (one.norm() * other.norm()))


def ratio(part: float, whole: float) -> float:
    """part / whole, nan where the whole is zero."""
    return part / whole if whole else math.nan
