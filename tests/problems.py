"""Small recurrent problems in float64, each of which carries its own exact answer.

A problem is a one-time-step `cell(input_t, state) -> (loss_t, state)`, its inputs, its initial state and its leaf
parameters; `exact` is the gradient of the whole sequence's loss, found without this library: in closed form where there
is one, otherwise by torch's autograd on a plain loop. Every estimator meets every problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

Cell = Callable[[Any, Any], tuple[Tensor, Any]]


def tree_map(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply a function to the tensors of a tuple, list or dict; the tests' own, to check the library's."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(tree_map(function, value) for value in tree)
    return tree


def tree_tensors(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in order."""
    found: list[Tensor] = []
    tree_map(found.append, tree)
    return found


@dataclass
class Problem:
    """A sequence whose gradient is known; `parameters` are leaves, `dim` is the batch dimension of the state."""

    name: str
    cell: Cell
    inputs: Tensor  # (T, B, …)
    state: Any
    parameters: dict[str, Tensor]
    dim: int = 0
    exact: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.exact:
            loss, _ = self.plain()
            gradients = torch.autograd.grad(loss, list(self.parameters.values()))
            self.exact = dict(zip(self.parameters, gradients, strict=True))

    def plain(self) -> tuple[Tensor, list[Any]]:
        """The loss of the whole sequence as one graph, and the state after every step."""
        state, states, loss = self.state, [], torch.zeros((), dtype=torch.float64)
        for input_t in self.inputs:
            loss_t, state = self.cell(input_t, state)
            loss = loss + loss_t
            states.append(tree_map(Tensor.detach, state))
        return loss, states

    def gradients(self) -> dict[str, Tensor]:
        """What stands in `.grad`, zero where nothing arrived; the slots are emptied."""
        found = {}
        for name, parameter in self.parameters.items():
            found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            parameter.grad = None
        return found


def _leaf(generator: torch.Generator, *shape: int, scale: float = 0.6) -> Tensor:
    return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).requires_grad_()


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# ---- closed forms ----------------------------------------------------------------------------------------------------


def scalar_linear(steps: int = 6, lanes: int = 2, seed: int = 0, decay: float = 0.8, theta: float = 0.7) -> Problem:
    """s_t = a s_{t-1} + θ x_t, loss ½ Σ (s_t - y_t)². The inputs stack x and y: (T, B, 2)."""
    generator = torch.Generator().manual_seed(seed)
    inputs = _normal(generator, steps, lanes, 2)
    parameters = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in (("a", decay), ("theta", theta))
    }

    def cell(input_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = parameters["a"] * state + parameters["theta"] * input_t[:, 0]
        return 0.5 * (state - input_t[:, 1]).square().sum(), state

    errors, influences = _linear_parts(inputs.numpy(), decay, theta)
    exact = {"a": 0.0, "theta": 0.0}
    for t in range(steps):  # ds_t/dφ = Σ_{k≤t} a^{t-k} e_k, with e_k the direct effect of φ on s_k
        for k in range(t + 1):
            for name, direct in influences.items():
                exact[name] += float(decay ** (t - k) * (errors[t] * direct[k]).sum())
    answers = {name: torch.tensor(value, dtype=torch.float64) for name, value in exact.items()}
    return Problem("scalar_linear", cell, inputs, torch.zeros(lanes, dtype=torch.float64), parameters, exact=answers)


def _linear_parts(inputs: np.ndarray, decay: float, theta: float) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The errors s_t - y_t, and what each parameter does directly to s_t: s_{t-1} for a, x_t for θ. All (T, B)."""
    state, states = np.zeros(inputs.shape[1]), [np.zeros(inputs.shape[1])]
    for input_t in inputs:
        state = decay * state + theta * input_t[:, 0]
        states.append(state)
    return np.array(states[1:]) - inputs[:, :, 1], {"a": np.array(states[:-1]), "theta": inputs[:, :, 0]}


def scalar_linear_variance(problem: Problem, hazard: Callable[[int], float]) -> float:
    """Var(g̃) = Σ_u E[c_u/(1-c_u) |G_u|²] for `scalar_linear`, one law shared by the lanes: O(T³), not O(2^T).

    Given that the segment open at edge u began j steps before, everything in G_u is fixed: the remaining adjoint
    a Σ_{t≥u} a^{t-u} (s_t - y_t), times Σ_k a^{u-1-k} e_k weighted by the links already passed. The chance of that
    beginning is the renewal probability of a cut at u - j times the chance of living to age j.
    """
    decay, theta = (float(problem.parameters[name].detach()) for name in ("a", "theta"))
    errors, influences = _linear_parts(problem.inputs.numpy(), decay, theta)
    steps = len(errors)
    survival = np.cumprod([1.0] + [1.0 - hazard(age) for age in range(1, steps + 1)])
    renewal = [1.0]  # renewal[m]: the probability that a segment begins at step m
    for m in range(1, steps):
        renewal.append(sum(renewal[m - j] * survival[j - 1] * hazard(j) for j in range(1, m + 1)))
    variance = 0.0
    for u in range(1, steps):
        adjoint = sum(decay ** (t - u + 1) * errors[t] for t in range(u, steps))  # (B,)
        for j in range(1, u + 1):
            begin, chance = u - j, renewal[u - j] * survival[j - 1]
            square = 0.0
            for direct in influences.values():
                carried = sum(
                    decay ** (u - 1 - k) * survival[k - begin] / survival[j - 1] * direct[k] for k in range(begin, u)
                )
                square += float((adjoint * carried).sum()) ** 2
            variance += chance * hazard(j) / (1.0 - hazard(j)) * square
    return variance


def influence_balancing(steps: int = 9, lanes: int = 1, seed: int = 0, ones: int = 10, minus_ones: int = 13) -> Problem:
    """The paper's system: s_t = A s_{t-1} + θ (1,…,1,-1,…,-1), A_kk = A_k,k+1 = ½, loss ½ (s¹_t - 1)², θ = ½, s = 0."""
    del seed  # nothing random in it; the argument is there because every factory takes it
    size = ones + minus_ones
    matrix = 0.5 * (torch.eye(size, dtype=torch.float64) + torch.diag(torch.ones(size - 1, dtype=torch.float64), 1))
    signs = torch.cat([torch.ones(ones, dtype=torch.float64), -torch.ones(minus_ones, dtype=torch.float64)])
    theta = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    def cell(_: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = state @ matrix.T + theta * signs
        return 0.5 * (state[:, 0] - 1.0).square().sum(), state

    state, influence, exact = np.zeros(size), np.zeros(size), 0.0
    for _ in range(steps):  # the state is θ times its own derivative, s_0 being zero
        state, influence = matrix.numpy() @ state + 0.5 * signs.numpy(), matrix.numpy() @ influence + signs.numpy()
        exact += (state[0] - 1.0) * influence[0] * lanes
    start = torch.zeros(lanes, size, dtype=torch.float64)
    answer = {"theta": torch.tensor(exact, dtype=torch.float64)}
    return Problem(
        "influence_balancing",
        cell,
        torch.zeros(steps, lanes, dtype=torch.float64),
        start,
        {"theta": theta},
        exact=answer,
    )


# ---- cells whose answer is plain autograd's --------------------------------------------------------------------------


def _torch_cell(kind: str, steps: int, lanes: int, seed: int, size: int = 3) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        module = getattr(torch.nn, kind)(2, size, dtype=torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.6 * _normal(generator, *parameter.shape))
    readout = _leaf(generator, size)

    def cell(input_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        state = module(input_t[:, :2], state)
        hidden = state[0] if isinstance(state, tuple) else state
        return (hidden @ readout - input_t[:, 2]).square().sum(), state

    start: Any = _normal(generator, lanes, size)
    if kind == "LSTMCell":
        start = (start, _normal(generator, lanes, size))
    parameters: dict[str, Tensor] = {**dict(module.named_parameters()), "readout": readout}
    return Problem(kind, cell, _normal(generator, steps, lanes, 3), start, parameters)


def tiny_rnn(steps: int = 6, lanes: int = 2, seed: int = 0) -> Problem:
    """torch.nn.RNNCell, three units."""
    return _torch_cell("RNNCell", steps, lanes, seed)


def tiny_gru(steps: int = 6, lanes: int = 2, seed: int = 0) -> Problem:
    """torch.nn.GRUCell, three units."""
    return _torch_cell("GRUCell", steps, lanes, seed)


def tiny_lstm(steps: int = 6, lanes: int = 2, seed: int = 0) -> Problem:
    """torch.nn.LSTMCell, three units; the state is a pair."""
    return _torch_cell("LSTMCell", steps, lanes, seed)


def dict_state(steps: int = 6, lanes: int = 2, seed: int = 0) -> Problem:
    """A nested state: a fast and a slow trace and their product; a counter, a name and None carry no gradient."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {"mix": _leaf(generator, 3, 3), "slow": _leaf(generator, 3), "readout": _leaf(generator, 3)}

    def cell(input_t: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        trace, (product,) = state["memory"]["trace"], state["memory"]["products"]
        fast = torch.tanh(state["fast"] @ parameters["mix"] + input_t[:, :1] + 0.3 * product[:, None])  # (B, 3)
        trace = torch.sigmoid(parameters["slow"]) * trace + (1.0 - torch.sigmoid(parameters["slow"])) * fast  # (B, 3)
        product = (fast * trace).sum(1)  # (B,)
        memory = {"trace": trace, "products": [product]}
        following = {
            "fast": fast,
            "memory": memory,
            "count": state["count"] + 1,
            "name": state["name"],
            "nothing": None,
        }
        return ((fast + trace) @ parameters["readout"] - input_t[:, 1]).square().sum(), following

    memory = {"trace": _normal(generator, lanes, 3), "products": [_normal(generator, lanes)]}
    start = {"fast": _normal(generator, lanes, 3), "memory": memory, "count": 0, "name": "start", "nothing": None}
    return Problem("dict_state", cell, _normal(generator, steps, lanes, 2), start, parameters)


CLOSED_FORMS: dict[str, Callable[..., Problem]] = {
    "scalar_linear": scalar_linear,
    "influence_balancing": influence_balancing,
}
CELLS: dict[str, Callable[..., Problem]] = {
    "rnn": tiny_rnn,
    "gru": tiny_gru,
    "lstm": tiny_lstm,
    "dict_state": dict_state,
}
ALL: dict[str, Callable[..., Problem]] = {**CLOSED_FORMS, **CELLS}
