"""The batched path: one product for all inputs, hand-written loops, the weight gradients in large products.

It serves every mode, any dtype and any device: float64, GRU, RNN and projections on the CPU, and wherever a foreign
kernel fails its probe. The link is a factor of the recurrent product (its alpha), or folded into a per-step factor that
is multiplied anyway; a cut is an exact zero whatever arrives. bfloat16 and float16 are computed in float32 and rounded
at the boundary once, so neither the adjoint nor the states lose factors of 1.0015 in silence.

Cost: T products and 2 to 7 in-place passes forward, 2 to 5 backward; memory (gates + 2) T·B·H for an LSTM, and the same
again while the backward runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from artbp.ops import _elman, _gru, _lstm, naive
from artbp.ops._carry import Carry
from artbp.ops._product import product, product_of_transposed
from artbp.ops._types import Adjoints, Gradients, Tensors, Weights, in_full_precision


def recurrence(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The contract of :class:`artbp.ops._types.Path`."""
    y, *final = _apply(mode, links, len(hx), x, *hx, *weights)
    return y, tuple(final)


def gradients(
    mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None, incoming: Gradients
) -> list[Tensor | None]:
    """The gradients of x, hx and the weights for `incoming` ones of y and the final states: forward and backward anew.

    What another path's backward returns where its own way would not be exact.
    """
    given = (x, *hx, *weights)
    inputs: list[Any] = [None if tensor is None else tensor.detach() for tensor in given]
    asked = [i for i, tensor in enumerate(given) if tensor is not None and tensor.requires_grad]
    for i in asked:
        inputs[i].requires_grad_()
    with torch.enable_grad():
        y, final = recurrence(mode, inputs[0], tuple(inputs[1 : 1 + len(hx)]), tuple(inputs[1 + len(hx) :]), links)
    arriving = [
        (output, gradient) for output, gradient in zip((y, *final), incoming, strict=True) if gradient is not None
    ]
    outputs, adjoints = zip(*arriving, strict=True)
    found = torch.autograd.grad(outputs, [inputs[i] for i in asked], adjoints, allow_unused=True)
    result: list[Tensor | None] = [None] * len(inputs)
    for i, gradient in zip(asked, found, strict=True):
        result[i] = gradient
    return result


class _Batched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mode: str, links: Tensor | None, states: int, *inputs: Any) -> Tensors:
        ctx.mode, ctx.links, ctx.states = mode, links, states
        ctx.set_materialize_grads(False)
        dtype = inputs[0].dtype
        wide = [_widened(tensor) for tensor in inputs]
        x, hx, weights = wide[0], tuple(wide[1 : 1 + states]), tuple(wide[1 + states :])
        T, B, _ = x.shape
        preactivation = _input_product(mode, x, weights).view(T, B, -1)
        saved: Tensors
        if mode == "LSTM":
            y, final, saved = _lstm.forward(preactivation, hx, weights)
        elif mode == "GRU":
            y, final, saved = _gru.forward(preactivation, hx, weights)
        else:
            y, final = _elman.forward(mode, preactivation, hx, weights)
            saved = ()
        narrow = y.to(dtype)
        # In low precision the loop's own y is kept: the rounded one is for the reader.
        ctx.save_for_backward(*inputs, y if narrow is y else y.detach(), *saved)
        ctx.count = len(inputs)
        return narrow, *[state.to(dtype) for state in final]

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        inputs, (y, *saved) = tensors[: ctx.count], tensors[ctx.count :]
        x, hx, weights = inputs[0], inputs[1 : 1 + ctx.states], inputs[1 + ctx.states :]
        if torch.is_grad_enabled():
            return None, None, None, *naive.gradients(ctx.mode, x, hx, weights, ctx.links, incoming)
        wide = [_widened(tensor) for tensor in inputs]
        x, hx, weights = wide[0], tuple(wide[1 : 1 + ctx.states]), tuple(wide[1 + ctx.states :])
        arriving = tuple(None if gradient is None else _widened(gradient) for gradient in incoming)
        carry = Carry(ctx.links, y)
        if ctx.mode == "LSTM":
            adjoints = _lstm.backward(tuple(saved), weights, arriving, carry)
        elif ctx.mode == "GRU":
            adjoints = _gru.backward(tuple(saved), y, weights, arriving, carry)
        else:
            adjoints = _elman.backward(ctx.mode, y, hx[0], weights, arriving, carry)
        found = _products(adjoints, x, hx[0], y, weights, ctx.needs_input_grad[3:])
        return (
            None,
            None,
            None,
            *[
                None if gradient is None else gradient.to(tensor.dtype)
                for gradient, tensor in zip(found, inputs, strict=True)
            ],
        )


_apply: Any = _Batched.apply


def _widened(tensor: Any) -> Any:
    """Float32 for what is narrower; None and everything else as it is."""
    if isinstance(tensor, Tensor) and tensor.dtype in (torch.bfloat16, torch.float16):
        return tensor.float()
    return tensor


def _input_product(mode: str, x: Tensor, weights: Weights) -> Tensor:
    """W_ih x_t and the biases that can be added for all steps at once (T·B, G); a GRU's b_hh cannot."""
    w_ih, _, b_ih, b_hh = weights[:4]
    bias = b_ih if mode == "GRU" or b_ih is None else b_ih + b_hh
    rows = x.reshape(-1, x.shape[2])
    return product(rows, w_ih.t(), bias)


def _products(
    adjoints: Adjoints, x: Tensor, h0: Tensor, y: Tensor, weights: Weights, needed: tuple[bool, ...]
) -> Gradients:
    """The gradients of x, hx and the weights: each one product over all steps."""
    count = len(adjoints.states)
    weight_needed = needed[1 + count :]
    T, B, G = adjoints.input.shape
    d_x, d_q = adjoints.input.view(T * B, G), adjoints.recurrent.view(T * B, G)
    x_gradient = product(d_x, weights[0]).view(x.shape) if needed[0] else None
    w_ih = product_of_transposed(d_x, x.reshape(T * B, -1)) if weight_needed[0] else None
    w_hh = None
    if weight_needed[1]:
        w_hh = product_of_transposed(d_q, torch.cat((h0.unsqueeze(0), y[:-1])).flatten(0, 1))
    b_ih = d_x.sum(0) if weight_needed[2] else None
    b_hh = None
    if weight_needed[3]:
        b_hh = b_ih.clone() if b_ih is not None and adjoints.recurrent is adjoints.input else d_q.sum(0)
    weight_gradients = [w_ih, w_hh, b_ih, b_hh]
    if adjoints.projected is not None:
        d_h, hidden = adjoints.projected
        w_hr = product_of_transposed(hidden.flatten(0, 1), d_h.flatten(0, 1)).t() if weight_needed[4] else None
        weight_gradients.append(w_hr)
    return x_gradient, *adjoints.states, *weight_gradients
