"""The specification: each layer as a loop of cells, with `link` on the state that enters every step.

Everything else in this package must agree with this file. It is autograd all the way, so every derivative of every
order is right by construction, at the price of a Python step and some twenty graph nodes for each time step.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from artbp._link import link
from artbp.ops._types import Tensors, Weights


def recurrence(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """s_t = F(x_t, link(s_{t-1}, links[t])) for t = 0..T-1 (the contract: :class:`artbp.ops._types.Path`).

    Unbiased for whatever the links are unbiased for: this is the definition. Cost: T steps of Python.
    """
    step = _STEPS[mode]
    state = hx
    outputs = []
    for t in range(x.shape[0]):
        if links is not None:
            state = link(state, links[t])
        state = step(x[t], state, weights)
        outputs.append(state[0])
    return torch.stack(outputs), state


def gradients(
    mode: str,
    x: Tensor,
    hx: Tensors,
    weights: Weights,
    links: Tensor | None,
    incoming: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    """The gradients of x, hx and the weights for `incoming` ones of y and the final states, themselves differentiable.

    What a hand-written backward returns when it is asked for a graph of itself (double backward).
    """
    inputs = [x, *hx, *weights]
    wanted = [i for i, tensor in enumerate(inputs) if tensor is not None and tensor.requires_grad]
    with torch.enable_grad():
        # Views, so that a weight that is used twice among the inputs keeps its gradients apart.
        inputs = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        states = tuple(inputs[1 : 1 + len(hx)])
        y, final = recurrence(mode, inputs[0], states, tuple(inputs[1 + len(hx) :]), links)
    arriving = [(out, g) for out, g in zip((y, *final), incoming, strict=True) if g is not None and out.requires_grad]
    result: list[Tensor | None] = [None] * len(inputs)
    if arriving and wanted:
        outputs, adjoints = zip(*arriving, strict=True)
        found = torch.autograd.grad(
            outputs, [inputs[i] for i in wanted], adjoints, create_graph=True, allow_unused=True
        )
        for i, gradient in zip(wanted, found, strict=True):
            result[i] = gradient
    return result


def _lstm(x: Tensor, state: Tensors, weights: Weights) -> Tensors:
    h, c = state  # (B, P), (B, H)
    w_ih, w_hh, b_ih, b_hh, *projection = weights
    i, f, g, o = (linear(x, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (linear(h, projection[0]) if projection else h), c


def _gru(x: Tensor, state: Tensors, weights: Weights) -> Tensors:
    (h,) = state
    w_ih, w_hh, b_ih, b_hh = weights
    r_x, z_x, n_x = linear(x, w_ih, b_ih).chunk(3, dim=1)
    r_h, z_h, n_h = linear(h, w_hh, b_hh).chunk(3, dim=1)
    r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
    n = (n_x + r * n_h).tanh()
    return ((1 - z) * n + z * h,)


def _rnn_tanh(x: Tensor, state: Tensors, weights: Weights) -> Tensors:
    return (_preactivation(x, state, weights).tanh(),)


def _rnn_relu(x: Tensor, state: Tensors, weights: Weights) -> Tensors:
    return (_preactivation(x, state, weights).relu(),)


def _preactivation(x: Tensor, state: Tensors, weights: Weights) -> Tensor:
    w_ih, w_hh, b_ih, b_hh = weights
    return linear(x, w_ih, b_ih) + linear(state[0], w_hh, b_hh)


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _rnn_tanh, "RNN_RELU": _rnn_relu}
