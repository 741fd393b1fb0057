"""The recurrences of the GPU: our own loop between large products, in one kernel or in CUDA graphs.

Forward: one product for the inputs of all steps; then per step h_{t-1} W_hh^T and one fused pointwise pass. Backward:
per step one fused pointwise pass, which meets the link, and δa_{t+1} W_hh; then all weight gradients as large products.
Saved: y; of an LSTM the activated gates (in place of the pre-activations) and the cells; of a GRU the gates and
W_hn h_{t-1} + b_hn, in four slots whose first three the input has a share in, and whose last three the product
(see `_cell_kernels`); of a plain network nothing else, for h takes the place of its pre-activation.

The recurrence itself has two forms. `scan` holds the loop inside one cooperative Triton kernel (`_scan_kernels`): no
launches, no captures, best while a recurrent weight is small against the chip's caches. `graphs` repeats a cuBLAS
product and a pointwise kernel under captured graphs (`_graphs`): best where the product is what takes the time. Neither
pays for a new length. A cut is an exact zero whatever arrives; adjoints and cells of the recurrence are fp32.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from artbp.ops import _scan, naive
from artbp.ops._powers import powers
from artbp.ops._types import GATES, Gradients, Tensors, Weights, in_full_precision

# Up to which H the one-kernel form is the faster one (LSTM on an H200, results/layers-h200; GRU and RNN follow it).
SCAN_LIMIT = {"bf16": 1024, "tf32": 512, "fp32": 512}


def recurrence(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The contract of :class:`artbp.ops._types.Path`, for what `serves` names, in the form that suits the size."""
    return _run(None, mode, x, hx, weights, links)


def scan(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The form in one kernel, whatever the size; a batch that does not fit the chip is refused."""
    return _run("scan", mode, x, hx, weights, links)


def graphs(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The form under CUDA graphs, whatever the size."""
    return _run("graphs", mode, x, hx, weights, links)


def serves(mode: str, x: Tensor, weights: Weights) -> bool:
    """Whether this path computes the layer: one without projection on an NVIDIA GPU from Ampere on, with Triton."""
    return (
        mode in GATES
        and len(weights) == 4
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.numel() > 0
        and available(x.device)
    )


@cache
def available(device: torch.device) -> bool:
    """Whether our kernels run on this device."""
    return (
        device.type == "cuda"
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )


def _run(
    form: str | None, mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None
) -> tuple[Tensor, Tensors]:
    y, *final = _apply(form, mode, links, x, *hx, *weights)
    return y, tuple(final)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: str | None, mode: str, links: Tensor | None, *inputs: Any) -> Tensors:
        ctx.set_materialize_grads(False)
        x, h0, w_hh = inputs[0], inputs[1], inputs[-3]
        T, B, _ = x.shape
        H = h0.shape[1]
        ctx.mode, ctx.links = mode, links
        ctx.kind = kind = _kind(x)
        ctx.form = form = form or _form(mode, kind, B, H, x.device)
        y = x.new_empty((T + 1, B, H))
        # The last states are copies: two outputs of one memory would change together under in-place use.
        hn = _rows_like(h0)
        c0 = c = cn = None
        if mode == "LSTM":
            c0, c = inputs[2].contiguous(), torch.empty((T + 1, B, H), device=x.device, dtype=torch.float32)
            cn = _rows_like(inputs[2])
        with _arithmetic(kind, x.device):
            gates = _input_share(mode, x.reshape(T * B, -1), inputs[-4:], y)
            _loop(form).forward(mode, kind, gates, w_hh.contiguous(), h0.contiguous(), c0, y, c, hn, cn)
        ctx.save_for_backward(*inputs, y, gates, c)
        return (y[1:], hn) if cn is None else (y[1:], hn, cn)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        *inputs, y, gates, c = ctx.saved_tensors
        mode, kind, links, scales = ctx.mode, ctx.kind, ctx.links, None
        if torch.is_grad_enabled():
            x, hx, weights = inputs[0], tuple(inputs[1:-4]), tuple(inputs[-4:])
            return None, None, None, *naive.gradients(mode, x, hx, weights, links, incoming)
        d_y, d_h, *last = (None if gradient is None else _dense(gradient) for gradient in incoming)
        states = [_rows_like(state) for state in inputs[1:-4]]  # filled with their adjoints
        dh, dc = states if mode == "LSTM" else (*states, None)
        if GATES[mode] == 1 and kind != "fp32" and links is not None:  # products alone carry the adjoint
            links, scales = powers(links)
        with _arithmetic(kind, y.device):
            scale = None if scales is None else _on_device(scales, y)[:-1].unsqueeze(2)  # (T, 1 or B, 1)
            if d_y is None:
                d_y = torch.zeros_like(y[1:])
            elif scale is not None:
                d_y = torch.div(d_y, scale, out=torch.empty_like(d_y))
            dgates = torch.empty_like(y[1:] if gates is None else gates)
            looked_back_on, d_c = y if c is None else c, last[0] if last else None
            _loop(ctx.form).backward(
                mode, kind, gates, inputs[-3].contiguous(), looked_back_on, d_y, d_h, d_c, dgates, dh, dc,
                _on_device(links, y),
            )  # fmt: skip
            if scale is not None:
                dgates.mul_(scale)
            return None, None, None, *_products(mode, dgates, states, y, inputs, ctx.needs_input_grad[3:])


_apply: Any = _Fused.apply


def _input_share(mode: str, rows: Tensor, weights: Weights, y: Tensor) -> Tensor | None:
    """The input's share of all pre-activations: (T, B, 4H), of a GRU beside b_hn; of a plain cell in y[1:]."""
    w_ih, _, b_ih, b_hh = weights
    T, B, H = y.shape[0] - 1, y.shape[1], y.shape[2]
    if mode == "GRU":
        gates = y.new_empty((T * B, 4 * H))
        bias = None if b_ih is None else b_ih.roll(H)
        if bias is None:
            gates[:, 3 * H :] = 0.0
        else:
            bias[H:] += b_hh[: 2 * H]
            gates[:, 3 * H :] = b_hh[2 * H :]
        _linear(rows, w_ih.roll(H, 0), bias, gates[:, : 3 * H])
        return gates.view(T, B, 4 * H)
    bias = None if b_ih is None else b_ih + b_hh
    if mode != "LSTM":
        _linear(rows, w_ih, bias, y[1:].view(T * B, H))
        return None
    return (rows @ w_ih.t() if bias is None else torch.addmm(bias, rows, w_ih.t())).view(T, B, 4 * H)


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


def _products(
    mode: str, dgates: Tensor, states: list[Tensor], y: Tensor, inputs: list[Any], needed: tuple[bool, ...]
) -> Gradients:
    """The gradients of x, hx and the weights, each one product over all steps."""
    x, w_ih, b_ih = inputs[0], inputs[-4], inputs[-2]
    T, B, G = dgates.shape
    H = y.shape[2]
    rows = dgates.view(T * B, G)
    from_input, from_hidden = rows, rows
    if mode == "GRU":  # its slots: n, r, z, m
        from_input, from_hidden = rows[:, : 3 * H], rows[:, H:]
        w_ih = w_ih.roll(H, 0)
    d_x = (from_input @ w_ih).view(x.shape) if needed[0] else None
    d_w_ih = from_input.t() @ x.reshape(T * B, -1) if needed[-4] else None
    d_w_hh = from_hidden.t() @ y[:-1].view(T * B, -1) if needed[-3] else None
    d_b_ih = d_b_hh = None
    if b_ih is not None and (needed[-2] or needed[-1]):
        d_b_ih = torch.mv(
            rows.t(), _ones(rows.device, rows.dtype, T * B)
        )  # a sum(0) would take four times their memory
        d_b_hh = d_b_ih[G - w_ih.shape[0] :].clone()
    if mode == "GRU":
        d_w_ih = None if d_w_ih is None else d_w_ih.roll(-H, 0)
        d_b_ih = None if d_b_ih is None else d_b_ih[: 3 * H].roll(-H)
    return d_x, *states, d_w_ih, d_w_hh, d_b_ih, d_b_hh


def _on_device(links: Tensor | None, y: Tensor) -> Tensor:
    """Links as (T+1, 1 or B) fp32; the last row, for the final states' own gradients, is one."""
    T = y.shape[0] - 1
    if links is None:
        return _ones(y.device, torch.float32, 1).view(1, 1).expand(T + 1, 1)
    # Pinned: a copy from pageable memory waits for whatever the stream is doing.
    columns = 1 if links.dim() == 1 else links.shape[1]
    host = torch.empty((T + 1, columns), dtype=torch.float32, pin_memory=y.is_cuda)
    host[:T] = links.view(T, -1)
    host[T] = 1.0
    if torch.cuda.is_current_stream_capturing():
        _captured.append(host)  # the graph will read it at every replay
    return host.to(y.device, non_blocking=True)


_captured: list[Tensor] = []  # what a user's graph reads wherever it is: never freed
_all_ones: dict[tuple[torch.device, torch.dtype], Tensor] = {}


def _ones(device: torch.device, dtype: torch.dtype, count: int) -> Tensor:
    ones = _all_ones.get((device, dtype))
    if ones is None or ones.shape[0] < count:
        more = torch.ones(1 << (count - 1).bit_length(), device=device, dtype=dtype)
        if torch.cuda.is_current_stream_capturing():
            return more[:count]  # a graph's own
        if more.is_cuda:
            torch.cuda.current_stream(device).synchronize()  # from here on any stream may read them
        if ones is not None:
            _captured.append(ones)  # perhaps
        ones = _all_ones[device, dtype] = more
    return ones[:count]


def _rows_like(state: Tensor) -> Tensor:
    """Room for a state, row by row as the kernels write it, however the given one lies in memory."""
    return torch.empty_like(state, memory_format=torch.contiguous_format)


def _dense(gradient: Tensor) -> Tensor:
    """A gradient as the kernels read it: row by row, from an address that is a multiple of 16 (a view's may not be)."""
    gradient = gradient.contiguous()
    return gradient if gradient.data_ptr() % 16 == 0 else gradient.clone()


def _kind(x: Tensor) -> str:
    """The arithmetic of the products. For float32, cuDNN's switch decides, as it does for torch.nn's own layers."""
    if x.dtype == torch.bfloat16:
        return "bf16"
    rnn: Any = getattr(torch.backends.cudnn, "rnn", None)
    if hasattr(rnn, "fp32_precision"):  # torch 2.9
        return "tf32" if rnn.fp32_precision == "tf32" else "fp32"
    return "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"


@contextlib.contextmanager
def _arithmetic(kind: str, device: torch.device) -> Iterator[None]:
    """On this device, products as `kind` says, and no autocast: what comes in has its dtype already."""
    matmul: Any = torch.backends.cuda.matmul
    name: str = "allow_tf32"
    wanted: Any = kind == "tf32"
    if hasattr(matmul, "fp32_precision"):  # torch 2.9
        name, wanted = "fp32_precision", "tf32" if kind == "tf32" else "ieee"
    with contextlib.ExitStack() as stack:
        if torch.cuda.current_device() != device.index:
            stack.enter_context(torch.cuda.device(device))
        if torch.is_autocast_enabled("cuda"):
            stack.enter_context(torch.autocast("cuda", enabled=False))
        before = getattr(matmul, name)
        if kind != "bf16" and before != wanted:
            setattr(matmul, name, wanted)
            stack.callback(setattr, matmul, name, before)
        yield


@cache
def _form(mode: str, kind: str, B: int, H: int, device: torch.device) -> str:
    fits = _scan.blocks(mode, "forward", kind, B, H, device) is not None
    if fits and SCAN_LIMIT[kind] >= H:
        return "scan"
    return "graphs"


def _loop(form: str) -> ModuleType:
    """The module whose `forward` and `backward` are the recurrence in that form."""
    if form == "scan":
        return _scan
    from artbp.ops import _graphs  # imports Triton

    return _graphs
