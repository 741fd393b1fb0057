"""The plain recurrent network of the batched path: h_t = φ(W_ih x_t + W_hh h_{t-1} + b), φ = tanh or relu.

With the link λ_t on the state that enters step t,

    δh_t = ∂ℓ/∂h_t + λ_{t+1} δa_{t+1} W_hh            δa_t = φ'(a_t) δh_t.
"""

from __future__ import annotations

import torch
from torch import Tensor

from artbp.ops._carry import Carry
from artbp.ops._product import add_product, product
from artbp.ops._types import Adjoints, Gradients, Tensors, Weights


def forward(mode: str, preactivation: Tensor, hx: Tensors, weights: Weights) -> tuple[Tensor, Tensors]:
    """y and the final state, from the input's share of a_t for all t; the very same memory becomes y."""
    (h,) = hx
    w_hh = weights[1].t()
    activate = torch.tanh_ if mode == "RNN_TANH" else torch.relu_
    for a in preactivation.unbind(0):
        h = activate(add_product(a, h, w_hh))
    return preactivation, (h.clone(),)


def backward(mode: str, y: Tensor, h0: Tensor, weights: Weights, incoming: Gradients, carry: Carry) -> Adjoints:
    """The adjoints of all steps; `incoming` are the gradients of y and h_n, either of them None."""
    w_hh = weights[1]
    d_y, d_h = incoming
    d_ys = (torch.zeros_like(y[:1]).expand_as(y) if d_y is None else d_y).unbind(0)
    d_a = (1 - y * y) if mode == "RNN_TANH" else (y > 0).to(y.dtype)
    all_a = d_a.unbind(0)
    last = y.shape[0] - 1
    for t in range(last, -1, -1):
        if t == last:
            d_h = d_ys[t] if d_h is None else d_ys[t] + d_h
        elif carry.whole(t + 1):
            d_h = d_ys[t]
        else:
            d_h = carry.product(t + 1, d_ys[t], all_a[t + 1], w_hh)
        all_a[t].mul_(d_h)
    first = torch.zeros_like(h0) if carry.whole(0) else carry.scaled(0, product(all_a[0], w_hh))
    return Adjoints(d_a, d_a, (first,))
