"""The one piece of the backprop family: segments, their links, and backpropagation under them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from artbp import _tree
from artbp._backprop import backprop
from artbp._law import positive_integer
from artbp._step import Step
from artbp.estimators._estimator import Estimator
from artbp.laws import Never
from artbp.truncation import Truncation


class Segments(Estimator):
    """Backpropagation through segments. Which one of the family it is, its links say.

    Args:
        cut: draws the links.
        window: how many steps to hold in memory at once (:func:`artbp.backprop`).

    Attributes:
        cut: the :class:`artbp.Truncation` that draws, with the law and the options really drawn from.
    """

    def __init__(self, cut: Truncation, window: int | None) -> None:
        self.cut = cut
        self.window = None if window is None else positive_integer(window, f"{type(self).__name__}(window)")

    def __call__(self, step: Step, inputs: Any, state: Any) -> tuple[Tensor, Any]:
        """One whole sequence, under links that are drawn for it: (loss, state)."""
        T = _tree.length(inputs)
        if T is None:
            raise ValueError(
                f"{self!r} got inputs without a tensor, so nothing says how many steps to take. Pass inputs with time "
                "as dimension 0; where a step needs none, torch.zeros(T)."
            )
        return self._backprop(step, inputs, state, self._links(step, inputs, state, T) if T else None)

    def stream(self, step: Step, stream: Any, state: Any) -> Iterator[tuple[Tensor, Any]]:
        """Online: (loss, state) after every segment."""
        for inputs, links in self.cut.segments(stream):
            uncut = isinstance(self.cut.law, Never)  # then the step need not know of links
            loss, state = self._backprop(step, inputs, _tree.detach(state), None if uncut else links)
            yield loss, state

    @property
    def unbiased(self) -> bool:
        return self.cut.unbiased

    @property
    def mean(self) -> float:
        return self.cut.mean

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "cut": self.cut.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.cut.load_state_dict(state["cut"])

    def _backprop(self, step: Step, inputs: Any, state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
        return backprop(step, inputs, state, links, window=self.window)

    def _links(self, step: Step, inputs: Any, state: Any, T: int) -> Tensor | None:
        if isinstance(self.cut.law, Never):
            return None
        return self._looking(step, inputs, state, T) if self.cut.law.needs_state else self.cut.links(T)

    def _looking(self, step: Step, inputs: Any, state: Any, T: int) -> Tensor:
        """The links of a law that looks at the states: they are met one by one, in a pass that saves nothing."""
        self.cut.reset()
        links = torch.ones(T, dtype=torch.float64)
        with torch.no_grad():
            for t in range(T):
                factor = self.cut.step(state)
                if t:  # the edge from the given state is no cut
                    links[t] = factor
                _, state = step(_tree.window(inputs, t, t + 1), state, None)
        self.cut.reset()
        return links
