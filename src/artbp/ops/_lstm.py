"""The LSTM of the batched path: forward with what the backward needs, and the backward of the loop.

With a_t = W_ih x_t + W_hh h_{t-1} + b, (i, f, g, o) = (σ, σ, tanh, σ)(a), c_t = f c_{t-1} + i g, h_t = o tanh c_t, and
with the link λ_t on the state that enters step t, the adjoints obey

    δh_t = ∂ℓ/∂h_t + λ_{t+1} δa_{t+1} W_hh            δc_t = λ_{t+1} f_{t+1} δc_{t+1} + o (1 - tanh² c_t) δh_t
    δa_t = (g i(1-i) δc_t,  c_{t-1} f(1-f) δc_t,  i (1-g²) δc_t,  tanh c_t o(1-o) δh_t).

All factors that do not depend on an adjoint are formed for all t at once; what is left in a step is one product and
four in-place passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from artbp.ops._carry import Carry
from artbp.ops._product import add_product, product
from artbp.ops._types import Adjoints, Gradients, Tensors, Weights


def forward(preactivation: Tensor, hx: Tensors, weights: Weights) -> tuple[Tensor, Tensors, Tensors]:
    """y, the final states and what `backward` needs, from the input's share of a_t for all t, which is overwritten."""
    h, c = hx
    w_hh = weights[1].t()
    w_hr = weights[4].t() if len(weights) == 5 else None
    T, B, H = preactivation.shape[0], c.shape[0], c.shape[1]
    y = c.new_empty((T, B, h.shape[1]))  # (T, B, P)
    cells = c.new_empty((T + 1, B, H))
    candidates = c.new_empty((T, B, H))  # g; its place among the gates is not used
    hidden = y if w_hr is None else c.new_empty((T, B, H))
    cells[0] = c
    cell = cells.unbind(0)
    i_, f_, g_, o_ = (gate.unbind(0) for gate in preactivation.view(T, B, 4, H).unbind(2))
    steps = zip(
        preactivation.unbind(0), i_, f_, g_, o_, candidates.unbind(0), hidden.unbind(0), y.unbind(0), strict=True
    )
    for t, (a, i, f, pre_g, o, g, hide, out) in enumerate(steps):
        add_product(a, h, w_hh)
        torch.tanh(pre_g, out=g)
        a.sigmoid_()
        c_next = cell[t + 1]
        torch.mul(f, cell[t], out=c_next)
        c_next.addcmul_(i, g)
        torch.tanh(c_next, out=hide)
        hide.mul_(o)
        h = hide if w_hr is None else out.copy_(product(hide, w_hr))
    saved = (preactivation, candidates, cells) if w_hr is None else (preactivation, candidates, cells, hidden)
    return y, (y[-1].clone(), cells[-1].clone()), saved


def backward(saved: Tensors, weights: Weights, incoming: Gradients, carry: Carry) -> Adjoints:
    """The adjoints of all steps; `incoming` are the gradients of y, h_n and c_n, any of them None."""
    gates, g, cells = saved[:3]
    w_hh = weights[1]
    w_hr = weights[4] if len(weights) == 5 else None
    T, B, H = g.shape
    i, f, _, o = gates.view(T, B, 4, H).unbind(2)
    tanh_c = cells[1:].tanh()
    d_gates = gates.new_empty((T, B, 4, H))
    torch.ops.aten.sigmoid_backward.grad_input(g, i, grad_input=d_gates[:, :, 0])
    torch.ops.aten.sigmoid_backward.grad_input(cells[:-1], f, grad_input=d_gates[:, :, 1])
    torch.ops.aten.tanh_backward.grad_input(i, g, grad_input=d_gates[:, :, 2])
    torch.ops.aten.sigmoid_backward.grad_input(tanh_c, o, grad_input=d_gates[:, :, 3])
    h_to_c = torch.ops.aten.tanh_backward(o, tanh_c).unbind(0)
    c_to_c = carry.folded(f).unbind(0)
    d_y, d_last, d_c = incoming
    d_c = None if d_c is None else d_c.clone()  # the loop overwrites it
    d_ys = (cells.new_zeros((1, B, w_hh.shape[1])).expand(T, -1, -1) if d_y is None else d_y).unbind(0)
    all_a = d_gates.view(T, B, 4 * H).unbind(0)
    d_cell_gates, d_o = d_gates[:, :, :3].unbind(0), d_gates[:, :, 3].unbind(0)
    d_hidden = []
    for t in range(T - 1, -1, -1):
        if t == T - 1:
            d_h = d_ys[t] if d_last is None else d_ys[t] + d_last
        elif d_c is None or carry.whole(t + 1):
            d_h, d_c = d_ys[t], None
        else:
            d_h = carry.product(t + 1, d_ys[t], all_a[t + 1], w_hh)
            d_c = carry.clear(t + 1, d_c.mul_(c_to_c[t + 1]))
        through = d_h
        if w_hr is not None:
            d_hidden.append(d_h)
            through = product(d_h, w_hr)
        d_c = through * h_to_c[t] if d_c is None else d_c.addcmul_(through, h_to_c[t])
        d_cell_gates[t].mul_(d_c.unsqueeze(1))
        d_o[t].mul_(through)
    if d_c is None or carry.whole(0):
        first = (torch.zeros_like(d_ys[0]), torch.zeros_like(cells[0]))
    else:
        first = (carry.scaled(0, product(all_a[0], w_hh)), carry.clear(0, d_c * c_to_c[0]))
    flat = d_gates.view(T, B, 4 * H)
    projected = (torch.stack(d_hidden[::-1]), saved[3]) if w_hr is not None else None
    return Adjoints(flat, flat, first, projected)
