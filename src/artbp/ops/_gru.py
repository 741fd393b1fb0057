"""The GRU of the batched path: forward with what the backward needs, and the backward of the loop.

With m_t = W_hn h_{t-1} + b_hn, (r, z) = σ(…), n = tanh(W_in x_t + b_in + r m_t), h_t = n + z (h_{t-1} - n), and the
link λ_t on the state that enters step t,

    δh_t = ∂ℓ/∂h_t + λ_{t+1} (δq_{t+1} W_hh + z_{t+1} δh_{t+1})
    δq_t = (m ν r(1-r),  (h_{t-1} - n) z(1-z),  ν r) δh_t        with ν = (1-z)(1-n²)

where q_t = W_hh h_{t-1} + b_hh. Every adjoint is δh_t times a factor known beforehand, so a step of the backward is one
product and two in-place passes. The input's share differs from δq in the last third only: there it is ν δh_t.
"""

from __future__ import annotations

import torch
from torch import Tensor

from artbp.ops._carry import Carry
from artbp.ops._product import product
from artbp.ops._types import Adjoints, Gradients, Tensors, Weights


def forward(preactivation: Tensor, hx: Tensors, weights: Weights) -> tuple[Tensor, Tensors, Tensors]:
    """y, the final state and what `backward` needs, from W_ih x_t + b_ih for all t, which is overwritten."""
    (h,) = hx
    w_hh, b_hh = weights[1].t(), weights[3]
    T, B, H = preactivation.shape[0], h.shape[0], h.shape[1]
    y = h.new_empty((T, B, H))
    recurrent = h.new_empty((T, B, 3 * H))  # q; its last third, m, is kept for the backward
    gates_x, gates_q = preactivation[:, :, : 2 * H].unbind(0), recurrent[:, :, : 2 * H].unbind(0)
    r_, z_, n_ = (gate.unbind(0) for gate in preactivation.view(T, B, 3, H).unbind(2))
    steps = zip(
        recurrent.unbind(0), gates_x, gates_q, r_, z_, n_, recurrent[:, :, 2 * H :].unbind(0), y.unbind(0), strict=True
    )
    for q, gate_x, gate_q, r, z, n, m, out in steps:
        q.copy_(product(h, w_hh, b_hh))
        gate_x.add_(gate_q).sigmoid_()
        n.addcmul_(r, m).tanh_()
        h = torch.lerp(n, h, z, out=out)
    return y, (h.clone(),), (preactivation, recurrent[:, :, 2 * H :], hx[0])


def backward(saved: Tensors, y: Tensor, weights: Weights, incoming: Gradients, carry: Carry) -> Adjoints:
    """The adjoints of all steps; `incoming` are the gradients of y and h_n, either of them None."""
    gates, m, h0 = saved
    w_hh = weights[1]
    T, B, H = m.shape
    r, z, n = gates.view(T, B, 3, H).unbind(2)
    nu = torch.ops.aten.tanh_backward(1 - z, n)
    d_q = gates.new_empty((T, B, 3, H))
    torch.mul(nu, m, out=d_q[:, :, 0])
    torch.ops.aten.sigmoid_backward.grad_input(d_q[:, :, 0].clone(), r, grad_input=d_q[:, :, 0])
    previous = torch.cat((h0.unsqueeze(0), y[:-1]))
    torch.ops.aten.sigmoid_backward.grad_input(previous.sub_(n), z, grad_input=d_q[:, :, 1])
    torch.mul(nu, r, out=d_q[:, :, 2])
    through = carry.folded(z).unbind(0)
    d_y, d_last = incoming
    d_ys = (y.new_zeros((1, B, H)).expand(T, -1, -1) if d_y is None else d_y).unbind(0)
    flat = d_q.view(T, B, 3 * H)
    all_q, parts = flat.unbind(0), d_q.unbind(0)
    d_n = nu.unbind(0)  # turned into the input's share of the last third, step by step
    for t in range(T - 1, -1, -1):
        if t == T - 1 or carry.whole(t + 1):
            d_h = d_ys[t] if d_last is None or t < T - 1 else d_ys[t] + d_last
        else:
            past = carry.clear(t + 1, d_h * through[t + 1]).add_(d_ys[t])
            d_h = carry.product(t + 1, past, all_q[t + 1], w_hh)
        parts[t].mul_(d_h.unsqueeze(1))
        d_n[t].mul_(d_h)
    if carry.whole(0):
        first = torch.zeros_like(h0)
    else:
        first = carry.product(0, carry.clear(0, d_h * through[0]), all_q[0], w_hh)
    d_x = torch.cat((flat[:, :, : 2 * H], nu), dim=2)
    return Adjoints(d_x, flat, (first,))
