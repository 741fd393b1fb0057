"""Steps of cuBLAS products and pointwise kernels under CUDA graphs of a few sizes, for any length.

A launch from Python costs some 10 µs, a step of a large layer less than that: without graphs the launches are the
time. A graph holds addresses, so what changes from call to call (tensors, length, links) is read from a table in device
memory, and what a product needs in one place (the weight, h, the adjoints of the gates) is copied to buffers of the
runner. Graphs of 1, 2, 4 … 64 steps are captured when first needed and make up every length.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from artbp.ops import _step_kernels as kernels
from artbp.ops._types import GATES

SIZES = (64, 32, 16, 8, 4, 2, 1)  # steps per graph
RUNNERS = 16  # per process; each holds a copy of one recurrent weight and its captured graphs

_lock = threading.RLock()  # buffers are shared by all calls of one shape: no other call may be issued in between
_runners: OrderedDict[tuple[Any, ...], _Runner] = OrderedDict()
_streams: dict[torch.device, tuple[torch.cuda.Stream, Any]] = {}  # where graphs are captured, and their memory pool
_used: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Event]] = {}  # who ran graphs last, and until when


def forward(
    mode: str,
    kind: str,
    gates: Tensor | None,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    y: Tensor,
    c: Tensor | None,
    hn: Tensor,
    cn: Tensor | None,
) -> None:
    """Fill y and c, hn and cn. gates (T, B, 4H): in, the input's share; out, the slots. A plain cell has them in y."""
    y[0] = h0
    if c is not None and c0 is not None:
        c[0] = c0
    with _runner(mode, "forward", y.shape[1], y.shape[2], weight, kind) as runner:
        runner.weight.copy_(weight)
        runner.hidden.copy_(h0)
        if runner.carried is not None:
            runner.carried.copy_(h0)
        gates, states = y if gates is None else gates, y if c is None else c
        kernels.write_table[(1,)](runner.table, 0, gates, states, y, y, y, states, 0, 0)
        runner.run(y.shape[0] - 1)
    hn.copy_(y[-1])
    if c is not None and cn is not None:
        cn.copy_(c[-1])


def backward(
    mode: str,
    kind: str,
    gates: Tensor | None,
    weight: Tensor,
    states: Tensor,
    dy: Tensor,
    dhn: Tensor | None,
    dcn: Tensor | None,
    dgates: Tensor,
    dh0: Tensor,
    dc0: Tensor | None,
    links: Tensor,
) -> None:
    """Fill dgates, dh0 and dc0. states: c of an LSTM, y of the others; links: (T+1, 1 or B), the last row one."""
    T, B, H = dy.shape
    lane = 1 if links.shape[1] > 1 else 0
    with _runner(mode, "backward", B, H, weight, kind) as runner:
        runner.weight.copy_(weight)
        for buffer, arriving in ((runner.product, dhn), (runner.carried, dcn)):
            if buffer is None:
                continue
            if arriving is None:
                buffer.zero_()
            else:
                buffer.copy_(arriving)
        gates = states if gates is None else gates
        kernels.write_table[(1,)](runner.table, T - 1, gates, states, states, dy, dgates, links, links.stride(0), lane)
        runner.run(T)
        first = links[0].unsqueeze(1)  # (1 or B, 1)
        dh = runner.product
        if mode == "GRU" and runner.carried is not None:
            dh = dh + runner.carried
        dh0.copy_(torch.where(first == 0, 0.0, dh * first))
        if dc0 is not None and runner.carried is not None:
            dc0.copy_(torch.where(first == 0, 0.0, runner.carried * first))


class _Runner:
    """Buffers of one mode, direction, shape and precision, and the graphs over them."""

    def __init__(self, mode: str, direction: str, B: int, H: int, like: Tensor) -> None:
        self.B, self.H = B, H
        device, single = like.device, torch.float32
        rows = like.shape[0]  # of the weight: GATES · H
        self.weight = torch.empty_like(like, memory_format=torch.contiguous_format)  # (rows, H)
        self.table = torch.zeros(kernels.TABLE_SIZE, device=device, dtype=torch.int64)
        self.block = min(512, 1 << (H - 1).bit_length())
        self.options = {
            "MODE": mode, "GATES": GATES[mode], "H": H, "BLOCK": self.block, "num_warps": max(1, self.block // 128)
        }  # fmt: skip
        self.sign = 1 if direction == "forward" else -1
        self.carried: Tensor | None = None  # between steps, beside h: of an LSTM in the backward, of a GRU in both
        self.step: Callable[[int], None]
        if direction == "forward":
            self.hidden = like.new_zeros((B, H))
            self.product = torch.empty((B, rows), device=device, dtype=single)
            if mode == "GRU":
                self.carried = torch.zeros((B, H), device=device, dtype=single)
            self.step = self._forward_step
        else:
            if GATES[mode] > 1:
                self.carried = torch.zeros((B, H), device=device, dtype=single)
            self.later = like.new_zeros((B, rows))
            self.product = torch.zeros((B, H), device=device, dtype=single)
            self.step = self._backward_step
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def run(self, T: int) -> None:
        """T steps from where the table stands."""
        direct = torch.cuda.is_current_stream_capturing()  # inside someone else's graph: become part of it
        for size in SIZES:
            while size <= T:
                T -= size
                if direct:
                    self._steps(size)
                    continue
                if size not in self.graphs:
                    self.graphs[size] = self._capture(size)
                self.graphs[size].replay()

    def _forward_step(self, offset: int) -> None:
        _product(self.hidden, self.weight.t(), self.product)
        kernels.forward_step[self._grid()](
            self.table, offset, self.product, self.hidden, self.carried, self.B, **self.options
        )

    def _backward_step(self, offset: int) -> None:
        kernels.backward_step[self._grid()](
            self.table, -offset, self.product, self.carried, self.later, self.B, **self.options
        )
        _product(self.later, self.weight, self.product)

    def _grid(self) -> tuple[int, int]:
        return self.B, -(-self.H // self.block)

    def _steps(self, size: int) -> None:
        for offset in range(size):
            self.step(offset)
        kernels.advance[(1,)](self.table, self.sign * size)

    def warm_up(self) -> None:
        """One step on scratch: a capture must meet neither a compilation nor a library's first call."""
        B, H = self.B, self.H
        wide = self.weight.new_zeros((1, B, 4 * H))
        narrow = self.weight.new_zeros((2, B, H))
        states = torch.zeros((2, B, H), device=wide.device)  # fp32: large enough for whatever they are
        kernels.write_table[(1,)](self.table, 0, wide, states, narrow, narrow, wide, states, 0, 0)
        self._steps(1)

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        device = self.weight.device
        if device not in _streams:
            _streams[device] = (_new_stream(device), torch.cuda.graph_pool_handle())
        stream, pool = _streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            # One pool for all graphs, in which the products' workspace is allocated at the first capture: it lives, at
            # its address, as long as any graph does.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._steps(size)
            finally:
                graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)
        return graph


@contextmanager
def _runner(mode: str, direction: str, B: int, H: int, weight: Tensor, kind: str) -> Iterator[_Runner]:
    """The runner of a shape for the time of one call: calls are issued one after the other, streams wait in turn."""
    device = weight.device
    if torch.cuda.is_current_stream_capturing():
        yield _Runner(mode, direction, B, H, weight)  # its buffers belong to the graph that is being captured
        return
    with _lock:
        stream = torch.cuda.current_stream(device)
        if device in _used and _used[device][0] != stream:
            stream.wait_event(_used[device][1])
        key = (mode, direction, B, H, kind, device)
        if key not in _runners:
            runner = _Runner(mode, direction, B, H, weight)
            runner.warm_up()
            _runners[key] = runner
        _runners.move_to_end(key)
        while len(_runners) > RUNNERS:
            torch.cuda.synchronize(device)  # the graphs of the oldest may still be running
            _runners.popitem(last=False)
        yield _runners[key]
        _used[device] = (stream, stream.record_event())


def _product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a @ b with out in fp32, whatever a and b are."""
    if a.dtype == torch.float32:
        torch.mm(a, b, out=out)
    elif _WIDE_OUT:
        torch.mm(a, b, out_dtype=torch.float32, out=out)
    else:
        out.copy_(a @ b)


_new_stream: Any = torch.cuda.Stream
_mm: Any = torch.ops.aten.mm
_WIDE_OUT = "dtype_out" in _mm.overloads()  # torch 2.8
