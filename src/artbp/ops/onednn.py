"""The LSTM of the CPU in float32 and bfloat16: oneDNN's own operators, told of the links through weights.

The forward is the operator that torch.nn calls. The backward is its raw backward on weighted arguments (see
:mod:`artbp.ops._weights`), once a window. Three things need care. The operator picks its inference form where grad mode
is off, as it is inside an autograd.Function. It reads h_{t-1} for the weights' gradient from the output that is handed
back to it, which is why that is scaled. And the bias gradient it returns is the weighted sum; the one we want comes as
the weight gradient of a column of ones in x.

Cost beside torch.nn's: four passes over tensors of the size of x or y where links differ from one, none where they are
one throughout a window; a copy of y where there are several windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from artbp.ops import naive
from artbp.ops._types import Gradients, Tensors, Weights
from artbp.ops._weights import Window, windows

_LSTM = 2  # oneDNN's number for it


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
        ctx.windows = windows(links, inputs[0].device)
        # Detached, or the operators record a graph of their own; contiguous, for they read raw memory.
        plain: list[Any] = [None if tensor is None else tensor.detach().contiguous() for tensor in inputs]
        x, h, c, *weights = plain
        biased = any(ctx.needs_input_grad[6:8]) and any(window.weights is not None for window in ctx.windows)
        padded = pad(weights[0], (0, 1)) if biased else None
        saved, outputs = [], []
        for window in ctx.windows:
            given, used = x[window.first : window.last], weights
            if padded is not None and window.weights is not None:
                given, used = pad(given, (0, 1), value=1.0), [padded, *weights[1:]]
            y, h_next, c_next, workspace = _forward(given, h, c, used)
            saved += [given, h, c, c_next, workspace]
            outputs.append(y)
            h, c = h_next, c_next
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        ctx.save_for_backward(*inputs, y, padded, *saved)
        return y, h, c

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, (y, padded, *saved) = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
        if torch.is_grad_enabled():
            x, hx, weights = inputs[0], inputs[1:3], inputs[3:]
            return None, *naive.gradients("LSTM", x, hx, weights, ctx.links, incoming)
        weights = [None if weight is None else weight.contiguous() for weight in inputs[3:]]
        d_y, d_h, d_c = incoming
        parts: list[Tensor | None] = []
        total: list[Tensor] | None = None
        for k in range(len(ctx.windows) - 1, -1, -1):
            window = ctx.windows[k]
            used = weights
            if padded is not None and window.weights is not None:
                used = [padded, *weights[1:]]
            d_outputs = (None if d_y is None else d_y[window.first : window.last], d_h, d_c)
            if all(gradient is None for gradient in d_outputs):
                parts.append(None)
                continue
            d_x, found, d_h, d_c = _backward(
                window, used, saved[5 * k : 5 * k + 5], y[window.first : window.last], d_outputs, padded is not None
            )
            parts.append(d_x)
            total = found if total is None else [a.add_(b) for a, b in zip(total, found, strict=True)]
        return None, *_gathered(parts[::-1], ctx.windows, inputs, (d_h, d_c), total)


_apply: Any = _Weighted.apply


def _forward(x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Any]) -> Tensors:
    """The training forward: y (n, B, H), h_n, c_n and the workspace that its backward reads."""
    w_ih, w_hh, b_ih, b_hh = weights
    biases = b_ih is not None
    with torch.enable_grad():
        result: Tensors = torch.ops.aten.mkldnn_rnn_layer(
            x, w_ih, w_hh, b_ih if biases else w_ih, b_hh if biases else w_hh, h, c,
            False, [], _LSTM, h.shape[1], 1, biases, False, False, True,
        )  # fmt: skip
    return result


def _backward(
    window: Window, weights: Sequence[Any], saved: Sequence[Tensor], y: Tensor, incoming: Gradients, ones_column: bool
) -> tuple[Tensor, list[Tensor], Tensor | None, Tensor | None]:
    """The gradients of one window: of x, of the weights (summed by the caller), and of the states that entered it."""
    x, h, c, c_next, workspace = saved
    d_y, d_h, d_c = incoming
    w, inverse = window.weights, window.inverse
    if w is not None and inverse is not None:
        # Scaled in float32 and rounded once: mixed products are formed in float32.
        x = torch.mul(x, inverse, out=torch.empty_like(x))
        scaled = torch.empty_like(y)  # its last row is not read
        torch.mul(y[:-1], inverse[1:], out=scaled[:-1])
        y = scaled
        d_y = None if d_y is None else d_y * w
        d_h = None if d_h is None else d_h * w[-1]
        d_c = None if d_c is None else d_c * w[-1]
    w_ih, w_hh, b_ih, b_hh = weights
    biases = b_ih is not None
    d_x, d_w_ih, d_w_hh, d_b, _, d_h, d_c = torch.ops.aten.mkldnn_rnn_layer_backward(
        x, w_ih, w_hh, b_ih if biases else w_ih, b_hh if biases else w_hh, h, c, y, h, c_next, d_y, d_h, d_c,
        False, _LSTM, h.shape[1], 1, biases, True, False, [], False, workspace,
    )  # fmt: skip
    if w is not None and inverse is not None:
        if ones_column:
            d_x, d_b, d_w_ih = d_x[:, :, :-1], d_w_ih[:, -1], d_w_ih[:, :-1]
        d_x = d_x * inverse
    if isinstance(window.edge, float) and window.edge == 0.0:
        return d_x, [d_w_ih, d_w_hh, d_b], None, None
    return d_x, [d_w_ih, d_w_hh, d_b], window.scale_entering(d_h), window.scale_entering(d_c)


def _gathered(
    parts: Sequence[Tensor | None],
    spans: Sequence[Window],
    inputs: Sequence[Any],
    entering: Gradients,
    total: list[Tensor] | None,
) -> list[Tensor | None]:
    """The gradients of x, h0, c0 and the weights, in the dtypes of the inputs."""
    x = inputs[0]
    if total is None:
        return [None] * len(inputs)
    d_w_ih, d_w_hh, d_b = total
    if len(parts) == 1:
        d_x = parts[0]
    else:
        zeros = [x.new_zeros((span.last - span.first, *x.shape[1:])) for span in spans]
        d_x = torch.cat([zero if part is None else part for part, zero in zip(parts, zeros, strict=True)])
    found = [d_x, *entering, d_w_ih, d_w_hh, d_b, d_b]
    return [
        None if gradient is None or tensor is None else gradient.to(tensor.dtype)
        for gradient, tensor in zip(found, inputs, strict=True)
    ]
