r"""Influence balancing, the first experiment of Tallec & Ollivier 2017, "Unbiasing Truncated Backpropagation Through
Time".

p + n agents stand in a row. At every step each keeps half of what it has and takes over half of its right neighbour's;
one parameter θ pushes the first p of them up and the last n down; the first agent should stand at 1:

.. math:: s_{t+1} = A s_t + \theta\, (\underbrace{1, \ldots, 1}_{p}, \underbrace{-1, \ldots, -1}_{n})^\top, \qquad
          A_{k,k} = A_{k,k+1} = \tfrac12, \qquad \ell_t = \tfrac12 (s^1_t - 1)^2 .

The p positive influences are near and arrive first; the n negative ones are more, and arrive later. In the long run
:math:`s^1 = 2 (p-n)\, \theta`, so that θ has to be :math:`1 / (2 (p-n))`, -1/6 for p = 10 and n = 13. Who looks back
over few steps sees the positive ones only, takes θ to work the other way round, and drives it away from there.

Learning is online: one step of plain gradient descent after every segment, with the gradient of the *sum* of its
losses, at the rate :math:`\eta_0 / \sqrt{1 + t}`, t being the number of steps taken by then. The paper leaves θ at the
start open; we take 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from artbp import link
from artbp.estimators import Estimator
from artbp.experiments import influence_theory as theory


class InfluenceBalancing:
    """The system and its one parameter.

    Args:
        p: how many agents θ pushes up, those nearest to the first.
        n: how many it pushes down, behind them.
        theta0: θ at the start.
        s0: where every agent stands at the start.
    """

    def __init__(self, p: int = 10, n: int = 13, *, theta0: float = 0.5, s0: float = 0.0) -> None:
        self.A = torch.from_numpy(theory.matrix(p, n))  # (p+n, p+n)
        self.signs = torch.from_numpy(theory.signs(p, n))  # (p+n,)
        self.theta = torch.tensor(theta0, dtype=torch.float64, requires_grad=True)
        self.state = torch.full((p + n,), s0, dtype=torch.float64)

    def step(self, targets: Tensor, state: Tensor, links: Tensor | None) -> tuple[Tensor, Tensor]:
        """As many time steps as there are targets: the sum of their losses, and the state after them."""
        push = self.theta * self.signs
        first = []
        for factor in [1.0] * len(targets) if links is None else links.tolist():
            state = torch.addmv(push, self.A, link(state, factor))  # s = A s + θ (1, …, 1, -1, …, -1)
            first.append(state[:1])
        return (torch.cat(first) - targets).square().sum() / 2, state


class Targets:
    """What the first agent should be, step by step: 1, or 1 with noise around it. A stream, never in memory as a whole.

    Args:
        steps: where the stream ends.
        noise: the standard deviation.
        seed: of the noise, which does not depend on how many targets are taken at a time.
    """

    def __init__(self, steps: int, noise: float = 0.0, seed: int | None = None) -> None:
        self.steps, self.noise, self.position = steps, noise, 0
        # A stream of numbers of its own: that of `seed` alone may be the one that draws the lengths.
        self.random = np.random.default_rng(None if seed is None else [seed, 1])

    def take(self, n: int) -> Tensor:
        """The next n targets, fewer at the end: (n,)."""
        n = min(n, self.steps - self.position)
        self.position += n
        if not self.noise:
            return torch.ones(n, dtype=torch.float64)
        return torch.from_numpy(1 + self.noise * self.random.standard_normal(n))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands."""
        return {"position": self.position, "random": self.random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.position = state["position"]
        self.random.bit_generator.state = state["random"]


class Descent:
    """Online gradient descent, with whatever estimator: one plain gradient step at each of its updates.

    Iterating runs it and yields, after every update, the number of steps so far, the average loss over them, and θ.

    Example:
        >>> from artbp.estimators import TruncatedBPTT
        >>> for step, average_loss, theta in Descent(InfluenceBalancing(), TruncatedBPTT(10), Targets(1000)):
        ...     pass
        >>> step, round(average_loss, 1), round(theta, 2)  # from 0.5, and the optimum is at -1/6
        (1000, 11.1, 0.81)
    """

    def __init__(
        self, problem: InfluenceBalancing, estimator: Estimator, targets: Targets, *, rate: float = 3e-4
    ) -> None:
        self.problem, self.estimator, self.targets, self.rate = problem, estimator, targets, rate
        self.total_loss = 0.0

    def __iter__(self) -> Iterator[tuple[int, float, float]]:
        problem, theta = self.problem, self.problem.theta
        updates = self.estimator.stream(problem.step, self.targets, problem.state)
        for loss, problem.state in updates:
            t = self.targets.position
            self.total_loss += loss.item()
            if theta.grad is not None:
                theta.data -= self.rate / math.sqrt(1 + t) * theta.grad
                theta.grad = None
            yield t, self.total_loss / t, theta.item()

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on."""
        return {
            "theta": self.problem.theta.detach().clone(),
            "state": self.problem.state,
            "total_loss": self.total_loss,
            "targets": self.targets.state_dict(),
            "estimator": self.estimator.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, between two updates: bit for bit as if it had never stopped."""
        self.problem.theta.data.copy_(state["theta"])
        self.problem.state = state["state"]
        self.total_loss = state["total_loss"]
        self.targets.load_state_dict(state["targets"])
        self.estimator.load_state_dict(state["estimator"])
