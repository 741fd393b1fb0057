"""cuDNN's own recurrences, told of the links through weights.

The forward is the operator that torch.nn calls, the backward its raw backward on weighted arguments, once a window
(see :mod:`artbp.ops._weights`). Five things need care. The backward overwrites part of the reserve that it is given, so
it gets a copy. The bias gradient that cuDNN returns is the unweighted sum of the weighted adjoints; the one we want
comes as the weight gradient of a column of ones in x. It reads h_{t-1} for the weights' gradient from the output that
is handed back to it, which is why that is scaled. It knows no zero factor: a cut ends a window. And a GRU's b_hn is no
column of W_ih, so a GRU with links is not served.

It serves float32 only: in bf16 the adjoint inside a window would be bf16, and what is scaled is rounded at that. It is
the path to fall back on where Triton is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from artbp.ops import naive
from artbp.ops._types import Gradients, Tensors, Weights, in_full_precision
from artbp.ops._weights import Window, windows

_LSTM = 2  # cuDNN's number for it
_backends: Any = torch.backends.cudnn


def recurrence(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The contract of :class:`artbp.ops._types.Path`, for what `serves` names."""
    links = torch.ones(x.shape[0], dtype=torch.float64) if links is None else links
    y, h, c = _apply(links, x, *hx, *weights)
    return y, (h, c)


def serves(mode: str, x: Tensor, weights: Weights) -> bool:
    """Whether cuDNN has an operator for this layer to which links can be told."""
    return (
        mode == "LSTM"
        and len(weights) == 4
        and x.device.type == "cuda"
        and x.dtype == torch.float32
        and available()
        and x.numel() > 0
    )


def available() -> bool:
    """Whether cuDNN is there, and not switched off."""
    return bool(torch.version.cuda is not None and _backends.is_available() and _backends.enabled)


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, links: Tensor, *inputs: Any) -> Tensors:
        ctx.set_materialize_grads(False)
        ctx.links = links
        ctx.windows = windows(links, inputs[0].device)
        x, h, c = (tensor.detach().contiguous() for tensor in inputs[:3])
        flat = [weight.detach().clone() for weight in inputs[3:] if weight is not None]  # cuDNN's buffer takes over
        ctx.biased = len(flat) == 4 and any(window.weights is not None for window in ctx.windows)
        if ctx.biased:
            x, flat[0] = pad(x, (0, 1), value=1.0), pad(flat[0], (0, 1))
        saved, outputs = [], []
        with torch.autocast("cuda", enabled=False):
            buffer = torch.ops.aten._cudnn_rnn_flatten_weight(
                flat, len(flat), x.shape[2], _LSTM, h.shape[1], 0, 1, False, False
            )
            for window in ctx.windows:
                part = x[window.first : window.last]
                y, h_next, c_next, reserve, _ = torch.ops.aten._cudnn_rnn(
                    part, flat, len(flat), buffer, h[None], c[None], _LSTM, h.shape[1], 0, 1, False, 0.0, True, False,
                    [], None,
                )  # fmt: skip
                saved += [part, h, c, reserve]
                outputs.append(y)
                h, c = h_next[0], c_next[0]
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        ctx.count = len(flat)
        ctx.save_for_backward(*inputs, y, buffer, *flat, *saved)
        return y, h, c

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, (y, buffer, *rest) = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
        if torch.is_grad_enabled():
            return None, *naive.gradients("LSTM", inputs[0], inputs[1:3], inputs[3:], ctx.links, incoming)
        flat, saved = rest[: ctx.count], rest[ctx.count :]
        d_y, d_h, d_c = incoming
        if d_y is None:
            d_y = torch.zeros_like(y)
        parts: list[Tensor] = []
        total: list[Tensor] = []
        with torch.autocast("cuda", enabled=False):
            for k in range(len(ctx.windows) - 1, -1, -1):
                window = ctx.windows[k]
                span = slice(window.first, window.last)
                d_x, found, d_h, d_c = _backward(
                    window, flat, buffer, saved[4 * k : 4 * k + 4], y[span], (d_y[span], d_h, d_c), ctx.biased
                )
                parts.append(d_x)
                total = [a.add_(b) for a, b in zip(total, found, strict=True)] if total else found
        d_x = parts[0] if len(parts) == 1 else torch.cat(parts[::-1])
        biases = (total[2], total[2].clone()) if len(total) == 3 else (None, None)
        return None, d_x, d_h, d_c, total[0], total[1], *biases


_apply: Any = _Weighted.apply


def _backward(
    window: Window,
    weights: Sequence[Tensor],
    buffer: Tensor,
    saved: Sequence[Tensor],
    y: Tensor,
    incoming: Gradients,
    ones_column: bool,
) -> tuple[Tensor, list[Tensor], Tensor | None, Tensor | None]:
    """The gradients of one window: of x, of the weights (summed by the caller), and of the states that entered it."""
    x, h, c, reserve = saved
    d_y, d_h, d_c = incoming
    w, inverse = window.weights, window.inverse
    if w is not None and inverse is not None and d_y is not None:
        # Scaled in float32 and rounded once: mixed products are formed in float32.
        x = torch.mul(x, inverse, out=torch.empty_like(x))
        scaled = torch.empty_like(y)
        torch.mul(y[:-1], inverse[1:], out=scaled[:-1])
        scaled[-1] = 0.0  # not read, but it may not be nan
        y = scaled
        d_y = torch.mul(d_y, w, out=torch.empty_like(y))
        d_h = None if d_h is None else (d_h * w[-1]).to(y.dtype)
        d_c = None if d_c is None else (d_c * w[-1]).to(y.dtype)
    d_x, d_h, d_c, found = torch.ops.aten._cudnn_rnn_backward(
        x, weights, len(weights), buffer, h[None], c[None], y, d_y,
        None if d_h is None else d_h[None], None if d_c is None else d_c[None],
        _LSTM, h.shape[1], 0, 1, False, 0.0, True, False, [], None, reserve.clone(), [True, True, True, True],
    )  # fmt: skip
    found = list(found[:3])
    if ones_column:
        d_x, d_w_ih = d_x[:, :, :-1], found[0]
        found[0] = d_w_ih[:, :-1]
        if w is not None:
            found[2] = d_w_ih[:, -1]
    if inverse is not None:
        d_x = torch.mul(d_x, inverse, out=torch.empty_like(d_x))
    if isinstance(window.edge, float) and window.edge == 0.0:
        d_h, d_c = torch.zeros_like(h), torch.zeros_like(c)
        return d_x, found, d_h, d_c
    return d_x, found, window.scale_entering(d_h[0]).to(h.dtype), window.scale_entering(d_c[0]).to(c.dtype)
