"""A segment in the memory of one window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from artbp import _tree
from artbp._boundary import Boundary, newest_node
from artbp._replay import Replay
from artbp._step import Step, no_gradient, run, wide


class Windows:
    """One call of backprop with windows: a pass forward without saving, then the windows from last to first.

    What a window's graph takes from outside, its *boundary* (parameters, and whatever else requires grad), gets its
    gradients summed, window by window, and handed on once, in a single backward pass over all of it at the end.
    """

    def __init__(self, step: Step, inputs: Any, state: Any, links: Tensor | None, ends: list[int]) -> None:
        self.step, self.inputs, self.links = step, inputs, links
        self.starts, self.ends = [0, *ends[:-1]], ends
        self.states = [state]  # before each window
        self.replay = Replay(step, [*_tree.tensors(inputs), *_tree.tensors(state)])
        self.boundary = Boundary(self.replay.tensors)
        self.input_gradients = [
            torch.zeros_like(leaf) if leaf.requires_grad else None for leaf in _tree.tensors(inputs)
        ]
        for module in self.replay.modules:
            if isinstance(module, nn.parallel.DistributedDataParallel):
                _refuse_modes(module)

    def backprop(self, scale: float | Tensor) -> tuple[Tensor, Any]:
        """The loss and the state at the end, detached; gradients are in `.grad`."""
        last = len(self.ends) - 1
        for k in range(last):
            self.replay.remember(k)
            self.states.append(self.forward(k))
        with self.boundary:
            loss, final, gradients = self.backward(last, [], scale)
            losses = [loss]
            with self.replay.replaying():
                for k in reversed(range(last)):
                    self.replay.rewind(k)
                    loss, _, gradients = self.backward(k, gradients, scale)
                    losses.append(loss)
        self.hand_on(gradients)
        return torch.stack(losses[::-1]).sum(0), final

    def forward(self, k: int) -> Any:
        """The state after window k, which saves nothing on its way."""
        inputs, links = self.window(k)
        changeable = [leaf for leaf in _tree.tensors(inputs) if not leaf.is_inference()]
        versions = [leaf._version for leaf in changeable]
        given = [leaf.detach().clone() for leaf in _tree.tensors(self.states[k])]
        with torch.no_grad():
            _, after = run(self.step, inputs, _tree.replace(self.states[k], given, fresh=True), links)
        if versions != [leaf._version for leaf in changeable]:
            raise RuntimeError(
                "the step changes its inputs in place, so a window that is run again would not see what it saw at "
                "first. Make the step work on a copy, or leave out window=."
            )
        return self.kept(k, after)

    def hand_on(self, gradients: list[Tensor | None]) -> None:
        """The sums to where they belong, with the gradients of the state that was given."""
        leaves = [*_tree.tensors(self.inputs), *_tree.tensors(self.states[0])]
        arrived = zip(leaves, [*self.input_gradients, *gradients], strict=True)
        if not self.boundary.hand_on([(leaf, gradient) for leaf, gradient in arrived if gradient is not None]):
            raise no_gradient()

    def window(self, k: int) -> tuple[Any, Tensor | None]:
        """Inputs and links of window k."""
        first, end = self.starts[k], self.ends[k]
        return _tree.window(self.inputs, first, end), None if self.links is None else self.links[first:end]

    def kept(self, k: int, after: Any) -> Any:
        """The state after window k, to keep: in containers of its own, for steps that change theirs in place."""
        before = self.states[k]
        if before is not None and _tree.structure(before) != _tree.structure(after):
            raise ValueError(
                f"the state's tree changed in window {k}, from {_tree.structure(before)} to {_tree.structure(after)}: "
                "its gradient cannot be carried from one window to the one before. Return the state in the shape it "
                "came in."
            )
        return _tree.replace(after, [leaf.detach() for leaf in _tree.tensors(after)], fresh=True)

    def backward(
        self, k: int, arriving: list[Tensor | None], scale: float | Tensor
    ) -> tuple[Tensor, Any, list[Tensor | None]]:
        """Runs window k with its graph; returns its loss, its state, and the gradients of the state that came in.

        Nothing that is returned holds on to the graph, which would live on beside the next window's.
        """
        inputs, links = self.window(k)
        state = self.states[k]
        newest = newest_node()
        # What comes in stands for itself: its history is the window's before, or the caller's.
        taken = [leaf.detach().requires_grad_(leaf.requires_grad) for leaf in _tree.tensors(inputs)]
        came = [
            leaf.detach().requires_grad_(leaf.requires_grad if k == 0 else _carries_gradient(leaf))
            for leaf in _tree.tensors(state)
        ]
        torch.clear_autocast_cache()  # weights cast in another window have their history there, or none
        with torch.enable_grad():
            given = [leaf.clone() for leaf in came]  # no leaves: a step may change its state in place
            loss, after = run(self.step, _tree.replace(inputs, taken), _tree.replace(state, given, fresh=True), links)
            roots: list[tuple[Tensor, Tensor | None]] = [(loss * scale, None)] if loss.requires_grad else []
        left = _tree.tensors(after) if arriving else []
        for leaf, gradient in zip(left, arriving, strict=True):
            if gradient is not None and leaf.requires_grad:
                roots.append((leaf, gradient))
        gradients = self.boundary.differentiate(roots, [*taken, *came], newest)
        for whole, gradient in zip(self.input_gradients, gradients, strict=False):
            if whole is not None and gradient is not None:
                whole[self.starts[k] : self.ends[k]] = gradient
        return wide(loss.detach()), self.kept(k, after), gradients[len(taken) :]


def _carries_gradient(leaf: Tensor) -> bool:
    return leaf.is_floating_point() or leaf.is_complex()


def _refuse_modes(module: nn.parallel.DistributedDataParallel) -> None:
    for mode in ("find_unused_parameters", "static_graph"):
        if getattr(module, mode):
            raise ValueError(
                f"DistributedDataParallel({mode}=True) looks at each forward to foresee its backward, and with window= "
                f"there are many forwards to the one backward at the end. Leave {mode} at False: all parameters' "
                "gradients arrive there together, those that only some windows use, too."
            )
