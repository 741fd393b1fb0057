"""The LSTM of the GPU: our own recurrence between large products, in one kernel or in CUDA graphs.

Forward: one product for the inputs of all steps; then per step h_{t-1} W_hh^T and one fused pointwise pass. Backward:
per step one fused pointwise pass, which meets the link, and δa_{t+1} W_hh; then all weight gradients as large products.
Saved: the activated gates (in place of the pre-activations), the cells and y.

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
from typing import Any

import torch
from torch import Tensor

from artbp.ops import _scan, naive
from artbp.ops._types import Gradients, Tensors, Weights, in_full_precision

# Up to which H the one-kernel form is the faster one (H200, results/layers-h200).
SCAN_LIMIT = {"bf16": 1024, "tf32": 512, "fp32": 512}


def recurrence(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The contract of :class:`artbp.ops._types.Path`, for what `serves` names, in the form that suits the size."""
    return _run(None, x, hx, weights, links)


def scan(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The form in one kernel, whatever the size; a batch that does not fit the chip is refused."""
    return _run("scan", x, hx, weights, links)


def graphs(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The form under CUDA graphs, whatever the size."""
    return _run("graphs", x, hx, weights, links)


def serves(mode: str, x: Tensor, weights: Weights) -> bool:
    """Whether this path computes the layer: an LSTM without projection on an NVIDIA GPU from Ampere on, with Triton."""
    return (
        mode == "LSTM"
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


def _run(form: str | None, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    y, h, c = _apply(form, links, x, *hx, *weights)
    return y, (h, c)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: str | None, links: Tensor | None, *inputs: Any) -> Tensors:
        ctx.set_materialize_grads(False)
        x, h0, c0, w_ih, w_hh, b_ih, b_hh = inputs
        T, B, _ = x.shape
        H = h0.shape[1]
        ctx.links = links
        ctx.kind = kind = _kind(x)
        ctx.form = form = form or _form(kind, B, H, x.device)
        y = x.new_empty((T + 1, B, H))
        c = torch.empty((T + 1, B, H), device=x.device, dtype=torch.float32)
        # The last states are copies: two outputs of one memory would change together under in-place use.
        hn, cn = _rows_like(h0), _rows_like(c0)
        with _arithmetic(kind, x.device):
            rows = x.reshape(T * B, -1)
            gates = rows @ w_ih.t() if b_ih is None else torch.addmm(b_ih + b_hh, rows, w_ih.t())
            gates = gates.view(T, B, 4 * H)
            arguments = gates, w_hh.contiguous(), h0.contiguous(), c0.contiguous(), y, c, hn, cn
            (_scan.forward if form == "scan" else _graphs_forward)(*arguments, kind)
        ctx.save_for_backward(*inputs, gates, y, c)
        return y[1:], hn, cn

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        *inputs, gates, y, c = ctx.saved_tensors
        if torch.is_grad_enabled():
            x, hx, weights = inputs[0], tuple(inputs[1:3]), tuple(inputs[3:])
            return None, None, *naive.gradients("LSTM", x, hx, weights, ctx.links, incoming)
        d_y, d_h, d_c = (None if gradient is None else gradient.contiguous() for gradient in incoming)
        d_y = torch.zeros_like(y[1:]) if d_y is None else d_y
        dh, dc = _rows_like(inputs[1]), _rows_like(inputs[2])
        with _arithmetic(ctx.kind, y.device):
            links = _on_device(ctx.links, c)  # (T+1, 1 or B)
            dgates = torch.empty_like(gates)
            arguments = gates, inputs[4].contiguous(), c, d_y, d_h, d_c, dgates, dh, dc, links
            (_scan.backward if ctx.form == "scan" else _graphs_backward)(*arguments, ctx.kind)
            return None, None, *_products(dgates, dh, dc, y, inputs, ctx.needs_input_grad[2:])


_apply: Any = _Fused.apply


def _products(
    dgates: Tensor, dh: Tensor, dc: Tensor, y: Tensor, inputs: list[Any], needed: tuple[bool, ...]
) -> Gradients:
    """The gradients of x, hx and the weights, each one product over all steps."""
    x, w_ih, b_ih = inputs[0], inputs[3], inputs[5]
    T, B, G = dgates.shape
    rows = dgates.view(T * B, G)
    d_x = (rows @ w_ih).view(x.shape) if needed[0] else None
    columns = rows.t()
    d_w_ih = columns @ x.reshape(T * B, -1) if needed[3] else None
    d_w_hh = columns @ y[:-1].view(T * B, -1) if needed[4] else None
    d_b = None
    if b_ih is not None and (needed[5] or needed[6]):
        d_b = torch.mv(columns, _ones(rows.device, rows.dtype, T * B))  # a sum(0) would take four times their memory
    return d_x, dh, dc, d_w_ih, d_w_hh, d_b, None if d_b is None else d_b.clone()


def _on_device(links: Tensor | None, like: Tensor) -> Tensor:
    """Links as (T+1, 1 or B) fp32; the last row, for the final states' own gradients, is one."""
    T = like.shape[0] - 1
    if links is None:
        return _ones(like.device, torch.float32, 1).view(1, 1).expand(T + 1, 1)
    # Pinned: a copy from pageable memory waits for whatever the stream is doing.
    host = torch.empty((T + 1, 1 if links.dim() == 1 else links.shape[1]), dtype=torch.float32, pin_memory=True)
    host[:T] = links.view(T, -1)
    host[T] = 1.0
    if torch.cuda.is_current_stream_capturing():
        _captured.append(host)  # the graph will read it at every replay
    return host.to(like.device, non_blocking=True)


_captured: list[Tensor] = []
_all_ones: dict[tuple[torch.device, torch.dtype], Tensor] = {}


def _ones(device: torch.device, dtype: torch.dtype, count: int) -> Tensor:
    ones = _all_ones.get((device, dtype))
    if ones is None or ones.shape[0] < count:
        ones = torch.ones(1 << (count - 1).bit_length(), device=device, dtype=dtype)
        if not torch.cuda.is_current_stream_capturing():
            _all_ones[device, dtype] = ones
    return ones[:count]


def _rows_like(state: Tensor) -> Tensor:
    """Room for a state, row by row as the kernels write it, however the given one lies in memory."""
    return torch.empty_like(state, memory_format=torch.contiguous_format)


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
def _form(kind: str, B: int, H: int, device: torch.device) -> str:
    fits = _scan.blocks("forward", kind, B, H, device) is not None
    if fits and SCAN_LIMIT[kind] >= H:
        return "scan"
    return "graphs"


def _graphs_forward(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, y: Tensor, c: Tensor, hn: Tensor, cn: Tensor, kind: str
) -> None:
    from artbp.ops import _graphs

    y[0], c[0] = h0, c0
    _graphs.forward(gates, weight, y, c, kind == "tf32")
    hn.copy_(y[-1])
    cn.copy_(c[-1])


def _graphs_backward(
    gates: Tensor,
    weight: Tensor,
    c: Tensor,
    dy: Tensor,
    dhn: Tensor | None,
    dcn: Tensor | None,
    dgates: Tensor,
    dh0: Tensor,
    dc0: Tensor,
    links: Tensor,
    kind: str,
) -> None:
    from artbp.ops import _graphs

    dh, dc = _graphs.backward(gates, weight, c, dy, dhn, dcn, dgates, links, kind == "tf32")
    first = links[0].unsqueeze(1)  # (1 or B, 1)
    dh0.copy_(torch.where(first == 0, 0.0, dh * first))
    dc0.copy_(torch.where(first == 0, 0.0, dc * first))
