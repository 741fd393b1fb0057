"""What `artbp compare` looks at: a step with its inputs and its state, by name or from the user's own module."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import artbp
from artbp._folder import FolderError
from artbp.estimators import TruncatedBPTT
from artbp.experiments.influence_balancing import InfluenceBalancing

Subject = tuple[Any, Any, Any]  # step, inputs, state


def find(name: str, steps: int, units: int, training: int, seed: int) -> Subject:
    """The subject of that name, or what `module:function` returns."""
    if name == "influence-balancing":
        return influence_balancing(steps)
    if name in CELLS:
        return lorenz(CELLS[name], steps, units, training, seed)
    return _own(name)


def influence_balancing(steps: int) -> Subject:
    """The paper's system at θ = 1/2, at rest in its stationary state: truncated BPTT points the wrong way there."""
    system = InfluenceBalancing()
    state = system.state
    with torch.no_grad():
        for _ in range(1000):
            _, state = system.step(torch.ones(1, dtype=torch.float64), state, None)
    return system.step, torch.ones(steps, dtype=torch.float64), state


class Forecaster(nn.Module):
    """A cell that is told a number at every step and says the next one."""

    def __init__(self, cell: Callable[..., nn.Module], units: int) -> None:
        super().__init__()
        self.cell, self.readout = cell(1, units), nn.Linear(units, 1)

    def one(self, pair: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One time step: pair is (this number, the next one), (2, B, 1)."""
        state = self.cell(pair[0], state)
        hidden = state[0] if isinstance(state, tuple) else state
        return (self.readout(hidden) - pair[1]).square().sum() / 2, state


CELLS: dict[str, Callable[..., nn.Module]] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}


def lorenz(cell: Callable[..., nn.Module], steps: int, units: int, training: int, seed: int) -> Subject:
    """Forecasting a chaotic series: the first coordinate of Lorenz' system, one lane, after some training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Forecaster(cell, units)
    series = _lorenz(50 * training + steps + 1)[:, None, None]  # (·, 1, 1)
    pairs = torch.stack([series[:-1], series[1:]], 1)  # (·, 2, 1, 1)
    step, state = artbp.unroll(model.one), torch.zeros(1, units)
    begin: Any = (state, state) if cell is nn.LSTMCell else state
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    updates = TruncatedBPTT(50).stream(step, pairs[: 50 * training], begin) if training else ()
    for _, state in updates:
        begin = state
        optimizer.step()
        optimizer.zero_grad()
    return step, pairs[50 * training :], begin


def _lorenz(steps: int, dt: float = 0.05, inner: int = 10) -> Tensor:
    """x/10 at every dt, by the midpoint rule in float64, from a point near the attractor."""
    point, h, values = torch.tensor([1.0, 1.0, 20.0], dtype=torch.float64), dt / inner, []

    def flow(p: Tensor) -> Tensor:
        x, y, z = p.tolist()
        return torch.tensor([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], dtype=torch.float64)

    for t in range((steps + 100) * inner):
        point = point + h * flow(point + h / 2 * flow(point))
        if t % inner == 0:
            values.append(float(point[0]) / 10)
    return torch.tensor(values[100:], dtype=torch.float32)


def _own(name: str) -> Subject:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise FolderError(
            f"artbp compare knows no subject {name!r}.",
            f"Pass influence-balancing, {', '.join(CELLS)}, or module:function for a function of your own that returns "
            "(step, inputs, state).",
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module), attribute)
        if not callable(function):
            raise TypeError(f"a {type(function).__name__} is no function")
    except (ImportError, SyntaxError, AttributeError, TypeError) as error:
        raise FolderError(f"{name} cannot be called: {error}.", "Pass module:function as seen from here.") from None
    else:
        subject = _called(name, function)
    finally:
        sys.path.pop(0)
    if not isinstance(subject, tuple) or len(subject) != 3:
        raise FolderError(
            f"{name} returned a {type(subject).__name__}, where (step, inputs, state) is needed.",
            "Return what you would pass to artbp.backprop.",
        )
    return subject


def _called(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise FolderError(
            f"{name} raised {type(error).__name__}: {error} ({where.filename}, line {where.lineno}).",
            "Call it from Python to see more.",
        ) from error
