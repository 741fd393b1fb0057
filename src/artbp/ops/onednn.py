"""The LSTM of the CPU in float32 and bfloat16: oneDNN's own operators, told of the links through weights.

The forward is the operator that torch.nn calls. The backward is its raw backward on weighted arguments (see
:mod:`artbp.ops._weights`), once a window. Three things need care. The operator picks its inference form where grad mode
is off, as it is inside an autograd.Function. It reads h_{t-1} for the weights' gradient from the output that is handed
back to it, which is why that is scaled. And the bias gradient it returns is the weighted sum; the one we want comes as
the weight gradient of a column of ones in x.

Cost beside torch.nn's: four passes over tensors of the size of x or y where links differ from one, none where they are
one throughout a window; a copy of y where there are several windows.

With a link for each lane, or one lane alone, the windows are coded ones, in which a cut is a factor of 2^-48. The
backward looks whether that is as good as a cut: at first, whether what arrives just before every cut is within 2^-20 of
the largest that arrives anywhere; in the end, by the gradient of x, whether what came back to every cut, however it
grew on its way, is below 2^-24 of what lies before it, and whether all is finite. Where it is not (a loss on few of the
steps, adjoints that grow, inf or nan behind a cut, inputs that no weight reads), the batched path, whose cuts are exact
zeros, computes the gradient instead, at some three times the price. The looks are at rows of x: a cell state whose
gates are all saturated shows nothing there, and would have to grow by 2^24 to matter. Inputs that are all below 1e-18
lose precision in the gradient of their weight, for w reaches 2^64; and some above 1e9 are left to the batched path.

Between two calls of the operator little of Python, numpy or torch stays in a core's caches, and a call of any of them
costs many times what it costs in a loop. Hence one look for all windows rather than one for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, constant_pad_nd

from artbp.ops import batched, naive
from artbp.ops._types import Gradients, Tensors, Weights, in_full_precision
from artbp.ops._weights import Window, coded_windows

_LSTM = 2  # oneDNN's number for it
CONTRAST = 2.0**20  # how far below the largest adjoint the one before a coded cut may be
LEAST = 2.0**24  # how far below what lies before a coded cut that has to be which comes back to it
LEVEL = 24  # log2 of what the largest adjoint is scaled to in a coded window, the middle of what its weights leave free


def recurrence(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The contract of :class:`artbp.ops._types.Path`, for an LSTM without projection in float32 or bfloat16."""
    links = torch.ones(x.shape[0], dtype=torch.float64) if links is None else links
    y, h, c = _apply(links, x, *hx, *weights)
    return y, (h, c)


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, links: Tensor, *inputs: Any) -> Tensors:
        ctx.set_materialize_grads(False)
        ctx.links = links
        ctx.spans = spans = coded_windows(links, inputs[0].shape[1], inputs[0].device)
        # The operators read raw memory.
        contiguous: list[Any] = [None if tensor is None else tensor.contiguous() for tensor in inputs]
        x, h, c, w_ih, *others = contiguous
        needed = ctx.needs_input_grad
        ones = (needed[6] or needed[7]) and any(window.weights is not None for window in spans)
        ctx.width = x.shape[2] if ones else None
        if ones:
            x, w_ih = constant_pad_nd(x, (0, 1), 1.0), constant_pad_nd(w_ih, (0, 1))
        if len(spans) == 1:
            y, h_last, c_last, workspace = _forward(x, h, c, w_ih, *others)
            saved = [h, c, c_last, workspace]
        else:
            saved, outputs, h_last, c_last = [], [], h, c
            for window in spans:
                h, c = h_last, c_last
                y, h_last, c_last, workspace = _forward(x[window.first : window.last], h, c, w_ih, *others)
                saved += [h, c, c_last, workspace]
                outputs.append(y)
            y = torch.cat(outputs)
        ctx.save_for_backward(*inputs, y, x, w_ih, *saved)
        return y, h_last, c_last

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        inputs = tensors[:7]
        if torch.is_grad_enabled():
            return None, *naive.gradients("LSTM", inputs[0], inputs[1:3], inputs[3:], ctx.links, incoming)
        found = _gradients(ctx, tensors, incoming)
        if found is None:
            found = batched.gradients("LSTM", inputs[0], inputs[1:3], inputs[3:], ctx.links, incoming)
        return None, *found


# What Function.apply calls in the end, but for its look for functorch, which `dispatch` has had.
_apply: Any = super(torch.autograd.Function, _Weighted).apply


def _forward(x: Tensor, h: Tensor, c: Tensor, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Tensors:
    """The training forward: y (n, B, H), h_n, c_n and the workspace that its backward reads."""
    biases = b_ih is not None
    result: Tensors
    # Grad mode on, for the operator to pick its training form; but below autograd, which would record a second graph.
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)
    try:
        with torch._C._AutoDispatchBelowAutograd():
            result = torch.ops.aten.mkldnn_rnn_layer.default(
                x, w_ih, w_hh, b_ih if biases else w_ih, b_hh if biases else w_hh, h, c,
                False, [], _LSTM, h.shape[1], 1, biases, False, False, True,
            )  # fmt: skip
    finally:
        torch._C._set_grad_enabled(before)
    return result


def _gradients(ctx: Any, tensors: Tensors, incoming: Gradients) -> Sequence[Tensor | None] | None:
    """The gradients of what the forward was given, window by window; None where a coded cut would not be one."""
    spans, needed = ctx.spans, ctx.needs_input_grad
    inputs, (y, x, w_ih), saved = tensors[:7], tensors[7:10], tensors[10:]
    others: tuple[Any, ...] = inputs[4:]
    weights = [w_ih, *[None if weight is None else weight.contiguous() for weight in others]]
    d_y, d_h, d_c = incoming
    largest, before = _arriving(spans, d_y)
    raw: list[Tensor | None] = []  # the gradients of x, still weighted
    parts: list[Tensor | None] = []
    total: list[Tensor] = []
    unit = 1.0  # what the total is to be divided by
    for k in range(len(spans) - 1, -1, -1):
        window, here = spans[k], (x, y, d_y)
        if len(spans) > 1:
            span = slice(window.first, window.last)
            here = x[span], y[span], None if d_y is None else d_y[span]
        if d_y is None and d_h is None and d_c is None:
            raw.append(None)
            parts.append(None)
            continue
        scale = 1.0 if window.start == 1.0 else _scale(max(largest, _size(d_h), _size(d_c)), before[k])
        if scale is None:
            return None
        w = window.weights if scale == 1.0 or window.weights is None else window.weights * scale
        d_x, d_h, d_c, *found = _backward(window, w, *here, weights, saved[4 * k : 4 * k + 4], (d_h, d_c))
        raw.append(d_x)
        if needed[1]:
            parts.append(_unweighted(d_x, w, ctx.width))
        d_h, d_c = _entering(d_h, d_c, window, scale) if k or needed[2] or needed[3] else (None, None)
        if ctx.width is not None:
            del found[2]  # the sum of what is weighted; the bias is a column of W_ih
        ratio = unit / scale if total else 1.0
        unit = unit if total else scale
        total = [a.add_(b, alpha=ratio) for a, b in zip(total, found, strict=True)] if total else found
    if spans[0].start != 1.0 and not (_cut(spans, raw[::-1]) and _finite([*total, *parts, d_h, d_c])):
        return None
    d_x = _joined(parts[::-1], spans, inputs[0]) if total and needed[1] else None
    gradients = [d_x, d_h, d_c, *_of_weights(total, unit, inputs[5] is not None, ctx.width)]
    if inputs[0].dtype is not torch.float32:
        gradients = [None if gradient is None else gradient.to(inputs[0].dtype) for gradient in gradients]
    return gradients


def _arriving(spans: Sequence[Window], d_y: Tensor | None) -> tuple[float, list[float]]:
    """The largest of what arrives at coded windows, and the least in each of what arrives just before a cut."""
    if spans[0].start == 1.0:
        return 0.0, []
    before = []
    for window in spans:
        if window.before is None:
            before.append(math.inf)
        elif d_y is None:
            before.append(0.0)
        else:
            steps, lanes = window.before
            before.append(float(np.minimum.reduce(_heights(d_y, steps + window.first, lanes))))
    return _size(d_y), before


def _scale(largest: float, before: float) -> float | None:
    """The power of two by which to multiply what arrives at a window; None where a coded cut would not be one."""
    if largest == 0.0:
        return 1.0
    if before * CONTRAST < largest or not 2.0**-64 <= largest <= 2.0**64:
        return None
    return 2.0 ** min(56, max(-24, LEVEL - math.frexp(largest)[1]))


def _size(gradient: Tensor | None) -> float:
    """The largest of the absolute values; nan where one is, and 0 for None."""
    if gradient is None:
        return 0.0
    low, high = gradient.aminmax()
    return max(-low.item(), high.item())


def _cut(spans: Sequence[Window], raw: Sequence[Tensor | None]) -> bool:
    """Whether what came back to every coded cut, however it grew on its way, is nothing beside what lies before it."""
    for window, d_x in zip(spans, raw, strict=True):
        if window.before is not None and d_x is not None:
            steps, lanes = window.before
            before, behind = _heights(d_x, steps, lanes), _heights(d_x, steps + 1, lanes)
            if not np.logical_and.reduce(behind < before * (1.0 / LEAST)):
                return False
    return True


def _finite(gradients: Sequence[Tensor | None]) -> bool:
    """Whether inf or nan was anywhere: behind a coded cut, which it crosses, or where a weight had too little room."""
    return math.isfinite(sum(gradient.sum().item() for gradient in gradients if gradient is not None))


def _heights(gradient: Tensor, steps: NDArray[np.intp], lanes: NDArray[np.intp]) -> NDArray[np.float32]:
    """The largest of the absolute values in each of some rows of a gradient (n, B, ·)."""
    # By numpy, whose calls cost less than torch's on so little.
    if gradient.dtype is torch.float32:
        rows = gradient.numpy()[steps, lanes]
    else:
        rows = gradient[torch.from_numpy(steps), torch.from_numpy(lanes)].float().numpy()
    heights: NDArray[np.float32] = np.maximum.reduce(np.abs(rows, out=rows), -1)
    return heights


def _backward(
    window: Window,
    w: Tensor | None,
    x: Tensor,
    y: Tensor,
    d_y: Tensor | None,
    weights: Sequence[Any],
    saved: Sequence[Tensor],
    incoming: Gradients,
) -> tuple[Any, ...]:
    """The operator's gradients of one window: of x, the states, W_ih, W_hh and a bias, all still weighted.

    w: the window's weights, times the scale of what arrives.
    """
    h, c, c_last, workspace = saved
    w_ih, w_hh, b_ih, b_hh = weights
    d_h, d_c = incoming
    if w is not None and window.weights is not None and window.following is not None:
        x, y = x / window.weights, y / window.following
        if window.start != 1.0:
            h = h * (1.0 / window.start)
        if w_hh.dtype is not torch.float32:  # scaled in float32 and rounded once
            x, y, h = x.to(w_hh.dtype), y.to(w_hh.dtype), h.to(w_hh.dtype)
        d_y = None if d_y is None else d_y * w
        d_h = None if d_h is None else d_h * w[-1]
        d_c = None if d_c is None else d_c * w[-1]
    biases = b_ih is not None
    d_x, d_w_ih, d_w_hh, d_b, _, d_h, d_c = torch.ops.aten.mkldnn_rnn_layer_backward.default(
        x, w_ih, w_hh, b_ih if biases else w_ih, b_hh if biases else w_hh, h, c, y, h, c_last, d_y, d_h, d_c,
        False, _LSTM, h.shape[1], 1, biases, True, False, [], False, workspace,
    )  # fmt: skip
    return d_x, d_h, d_c, d_w_ih, d_w_hh, d_b


def _unweighted(d_x: Tensor, w: Tensor | None, width: int | None) -> Tensor:
    """The gradient of x, without the column of ones that follows `width` others, if any."""
    if width is not None:
        d_x = d_x.narrow(2, 0, width)
    return d_x if w is None else d_x / w


def _entering(d_h: Any, d_c: Any, window: Window, scale: float) -> tuple[Tensor | None, Tensor | None]:
    """What the window hands to the one before, or to the states that came in; None where every lane is cut."""
    edge = window.edge
    if isinstance(edge, float) and edge == 0.0:
        return None, None
    if isinstance(edge, float) or window.start == 1.0:
        return window.scale_entering(d_h), window.scale_entering(d_c)
    if not np.logical_or.reduce(edge):
        return None, None
    column = (edge * (1.0 / (scale * window.start))).astype(np.float32).reshape(-1, 1)  # (B, 1)
    factor = torch.from_numpy(column)
    return d_h * factor, d_c * factor  # zero where the edge is, or nan, which sends all to the batched path


def _of_weights(total: Sequence[Tensor], unit: float, biases: bool, width: int | None) -> list[Tensor | None]:
    """The gradients of W_ih, W_hh and the biases from the sums over all windows, which are `unit` times as large."""
    if not total:
        return [None] * 4
    d_w_ih, d_w_hh, *others = total if unit == 1.0 else [gradient.mul_(1.0 / unit) for gradient in total]
    if not biases:
        return [d_w_ih, d_w_hh, None, None]
    if width is None:
        return [d_w_ih, d_w_hh, *others, *others]
    d_b = d_w_ih.select(1, width)
    return [d_w_ih.narrow(1, 0, width), d_w_hh, d_b, d_b]


def _joined(parts: Sequence[Tensor | None], spans: Sequence[Window], x: Tensor) -> Tensor | None:
    """The gradient of x over all windows, zero where nothing arrived."""
    if len(parts) == 1:
        return parts[0]
    zeros = [x.new_zeros((span.last - span.first, *x.shape[1:])) for span in spans]
    return torch.cat([zero if part is None else part for part, zero in zip(parts, zeros, strict=True)])
