"""One exact pass, backward step by step, that keeps what crosses every edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from artbp import _tree
from artbp.diagnostics._subject import Subject
from artbp.estimators._graph import pullback


def states_of(subject: Subject) -> list[Any]:
    """The state before each of the steps: states[t] comes into step t."""
    states = [subject.state]
    for t in range(subject.T - 1):
        with torch.no_grad():
            _, after = subject.run(t, t + 1, states[-1])
        states.append(_tree.detach(after))
    return states


class OneStep:
    """Step t, run once with its graph, from leaves."""

    def __init__(self, subject: Subject, t: int, state: Any) -> None:
        leaves = [leaf.detach() for leaf in _tree.tensors(state)]
        self.before = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
        self.loss, after = subject.run(t, t + 1, _tree.replace(state, leaves))
        parts = [leaf.reshape(-1) for leaf in _tree.tensors(after) if leaf.is_floating_point()]
        self.after = torch.cat(parts)  # (n,)
        self.parameters = subject.parameters

    def back(self, adjoint: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """From the step's loss, and what comes back over the edge behind it: (∂θ of this step, what goes on back)."""
        root = self.loss if adjoint is None else self.loss + adjoint @ self.after
        gradients = pullback(root, [*self.parameters, *self.before])
        return gradients[: len(self.parameters)], vector(gradients[len(self.parameters) :], self.loss)


def vector(parts: list[Tensor], like: Tensor) -> Tensor:
    """Parts of a state as one vector."""
    return torch.cat([part.reshape(-1) for part in parts]) if parts else like.new_zeros(0)


def crossings(subject: Subject, states: list[Any]) -> list[Tensor]:
    """For each edge u = 1..T-1 the gradient (n,) that crosses it into the state before; at 0 for the first state."""
    crossing: list[Tensor] = []
    adjoint: Tensor | None = None
    for t in reversed(range(subject.T)):
        _, adjoint = OneStep(subject, t, states[t]).back(adjoint)
        crossing.append(adjoint)
    return crossing[::-1]
