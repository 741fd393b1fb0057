"""The Triton kernels on the CPU, in Triton's interpreter: their arithmetic, their masks, and what they leave unwritten.

Not collected by itself: `test_ops_triton.py` runs it in a process of its own, for Triton reads TRITON_INTERPRET when it
is imported. The interpreter runs one program after the other, so a scan gets one program per block of lanes here; the
meeting of several programs is tested where they run (`test_ops_gpu.py`).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from artbp.ops import _scan_kernels, _step_kernels, naive

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # exp of a large number, masked out later

SIZES = [(1, 1, 1, 1), (5, 3, 2, 20), (7, 17, 3, 33), (3, 2, 4, 16)]  # (T, B, I, H)
NAN = float("nan")


@pytest.fixture(autouse=True)
def numpy_2(monkeypatch):
    """NumPy 2 makes no index of an array of one element, which Triton 3.6 still asks for."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


@pytest.fixture(autouse=True)
def masks_stay_bool(monkeypatch):
    """Triton 3.9 spreads a comparison of two numbers over a block as int32, and then takes no such mask."""
    builder = interpreter.InterpreterBuilder
    splat = builder.create_splat

    def patched(self, kind, value):
        block = splat(self, kind, value)
        if value.data.dtype == bool:
            block.data = block.data.astype(bool)
        return block

    monkeypatch.setattr(builder, "create_splat", patched)


class Case:
    """A layer whose x is the pre-activation's share itself (W_ih is the identity), and what float64 says of it."""

    def __init__(self, size: tuple[int, int, int, int], *, cut: bool = True) -> None:
        T, B, _, H = size
        generator = torch.Generator().manual_seed(T * B * H)
        draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
        self.size = T, B, H
        self.x, self.h0, self.c0 = draw(T, B, 4 * H), draw(B, H), draw(B, H)
        self.weight = draw(4 * H, H) * H**-0.5
        self.dy, self.dhn, self.dcn = draw(T, B, H), draw(B, H), draw(B, H)
        self.links = torch.rand(T, B, generator=generator) * 2
        if cut:
            self.links[T // 2, ::2] = 0.0
        leaves = [t.double().requires_grad_() for t in (self.x, self.h0, self.c0)]
        weights = torch.eye(4 * H, dtype=torch.float64), self.weight.double(), None, None
        y, final = naive.recurrence("LSTM", leaves[0], tuple(leaves[1:]), weights, self.links.double())
        arriving = [t.double() for t in (self.dy, self.dhn, self.dcn)]
        self.outputs = [y.detach(), *(t.detach() for t in final)]
        gradients = torch.autograd.grad([y, *final], leaves, arriving, allow_unused=True)
        self.gradients = [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, leaves, strict=True)]


def close(found: Tensor, exact: Tensor) -> bool:
    return torch.allclose(found.double(), exact, rtol=1e-5, atol=2e-6)


def scan(case: Case, *, hold: bool) -> tuple[list[Tensor], list[Tensor]]:
    T, B, H = case.size
    whole = max(16, 1 << (H - 1).bit_length())
    options = {
        "H": H, "BLOCK_B": 16, "BLOCK_H": whole, "BLOCK_K": whole if hold else 16, "PRECISION": "ieee",
        "ROUND": False, "SYNC": False, "HOLD": hold,
    }  # fmt: skip
    grid = (1, -(-B // 16))
    gates, counters = case.x.clone(), torch.zeros(grid[1], dtype=torch.int32)
    y, c = torch.full((T + 1, B, H), NAN), torch.full((T + 1, B, H), NAN)
    hn, cn = torch.full((B, H), NAN), torch.full((B, H), NAN)
    _scan_kernels.lstm_forward_scan[grid](gates, case.weight, case.h0, case.c0, y, c, hn, cn, counters, T, B, **options)
    dgates = torch.full_like(gates, NAN)
    dh, dc = torch.full((B, H), NAN), torch.full((B, H), NAN)
    _scan_kernels.lstm_backward_scan[grid](
        gates, case.weight, c, case.dy, dgates, case.dhn, case.dcn, dh, dc, case.links, counters,
        T, B, case.links.stride(0), 1, 1, 1, **options,
    )  # fmt: skip
    return [y[1:], hn, cn], [dgates, dh, dc]


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_scan_agrees_with_the_specification(size, hold):
    case = Case(size)
    outputs, gradients = scan(case, hold=hold)
    assert all(close(a, b) for a, b in zip(outputs + gradients, case.outputs + case.gradients, strict=True))


def test_a_scan_lets_nothing_across_a_cut():
    case = Case((6, 3, 2, 16), cut=False)
    case.links[3, 1] = 0.0
    case.dy[4, 1] = NAN
    _, (dgates, dh, dc) = scan(case, hold=True)
    assert dgates[:3].isfinite().all()
    assert dh.isfinite().all()
    assert dc.isfinite().all()
    assert dgates[3:5, 1].isnan().any()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_steps_agree_with_the_specification(size):
    case = Case(size)
    T, B, H = case.size
    block = 16
    grid = (B, -(-H // block))
    table = torch.zeros(_step_kernels.TABLE_SIZE, dtype=torch.int64)
    gates, dgates = case.x.clone(), torch.full_like(case.x, NAN)
    y, c = torch.full((T + 1, B, H), NAN), torch.full((T + 1, B, H), NAN)
    y[0], c[0] = case.h0, case.c0
    links = torch.cat([case.links, torch.ones(1, B)])
    hidden = case.h0.clone()
    _step_kernels.write_table[(1,)](table, 0, gates, c, y, case.dy, dgates, links, links.stride(0), 1)
    for offset in range(T):
        _step_kernels.lstm_forward_step[grid](table, offset, hidden @ case.weight.t(), hidden, B, H=H, BLOCK=block)
    _step_kernels.write_table[(1,)](table, T - 1, gates, c, y, case.dy, dgates, links, links.stride(0), 1)
    product, cell, later = case.dhn.clone(), case.dcn.clone(), torch.full((B, 4 * H), NAN)
    for _ in range(T):
        _step_kernels.lstm_backward_step[grid](table, 0, product, cell, later, B, H=H, BLOCK=block)
        product = later @ case.weight
        _step_kernels.advance[(1,)](table, -1)
    first = links[0].unsqueeze(1)
    assert all(close(a, b) for a, b in zip([y[1:], y[-1], c[-1]], case.outputs, strict=True))
    found = [dgates, product * first, cell * first]
    assert all(close(a, b) for a, b in zip(found, case.gradients, strict=True))
