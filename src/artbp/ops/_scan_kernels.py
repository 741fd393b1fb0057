# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"
"""The whole recurrence in one launch: Triton kernels that hold the loop over time inside.

A program owns BLOCK_B lanes and BLOCK_H hidden units for the whole sequence and keeps what a gated cell carries (or its
adjoint) in registers. The programs of one block of lanes exchange h (backward: the adjoints of the gates) through
memory and meet at a counter once per step, so all of them have to be resident: the launch is cooperative and the grid
no larger than the chip. T and B are plain run-time numbers: a new length costs neither a compilation nor a capture.

GATES is 4, 3 or 1 (see `_scan_products`), PART the length of a part of a sum there, MODE the cell. What a mode has not
is None: c0, c, cn and their adjoints but for an LSTM, and the gates of a plain cell, whose pre-activations stand in y.
"""

import triton
import triton.language as tl

from artbp.ops._cell_kernels import gated_adjoints, gated_cell, gated_slopes, linked, plain_adjoint, plain_cell
from artbp.ops._scan_products import (
    arrive,
    gate_products,
    load_gate_weight,
    load_parts_weight,
    operand,
    product_in_parts,
    wait,
)


@triton.jit(do_not_specialize=["T", "B"])
def forward_scan(  # noqa: PLR0915 (one kernel: what is split off is compiled back in)
    gates,
    weight,
    h0,
    c0,
    y,
    c,
    hn,
    cn,
    counters,
    T,
    B,
    MODE: tl.constexpr,
    GATES: tl.constexpr,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PART: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUND: tl.constexpr,
    SYNC: tl.constexpr,
    HOLD: tl.constexpr,
):
    """gates (T, B, 4H): in, the input's share of the pre-activations (of a GRU: and b_hn); out, the slots.

    y, c (T+1, B, H): out, the initial states and those of all steps; hn, cn (B, H): out, the last ones once more.
    """
    hidden = tl.program_id(0)
    lanes = tl.program_id(1)
    programs = tl.num_programs(0)
    rows = lanes * BLOCK_B + tl.arange(0, BLOCK_B)
    units = hidden * BLOCK_H + tl.arange(0, BLOCK_H)
    state = rows[:, None] * H + units[None, :]
    gate = rows[:, None] * (4 * H) + units[None, :]
    mask = (rows < B)[:, None] & (units < H)[None, :]
    initial = tl.load(h0 + state, mask=mask, other=0.0)
    tl.store(y + state, initial, mask=mask)
    if MODE == "LSTM":
        carried = tl.load(c0 + state, mask=mask, other=0.0).to(tl.float32)
        tl.store(c + state, carried.to(c.dtype.element_ty), mask=mask)
    elif MODE == "GRU":
        carried = initial.to(tl.float32)
    k = tl.arange(0, BLOCK_K)
    held = 0.0
    if HOLD:  # the weight stays in registers, if the whole of k fits in one block
        if GATES == 1:
            held = operand(load_parts_weight(weight, k, units, H, PART, GATES, True), ROUND)
        else:
            held = operand(load_gate_weight(weight, k, hidden, H, BLOCK_H, GATES), ROUND)
    here = gates  # the addresses walk, so that no product of T overflows
    h = h0
    for t in range(T):
        if GATES == 1:
            a = tl.load(y + B * H + state, mask=mask, other=0.0).to(tl.float32)
            wait(counters + lanes, t * programs, SYNC)
            a += product_in_parts(
                h, weight, held, rows, units, B, H, BLOCK_B, BLOCK_H, BLOCK_K, PART, GATES, True, PRECISION, ROUND, HOLD
            )
            out = plain_cell(a, MODE)
        else:
            first = tl.load(here + gate, mask=mask, other=0.0).to(tl.float32)
            second = tl.load(here + gate + H, mask=mask, other=0.0).to(tl.float32)
            third = tl.load(here + gate + 2 * H, mask=mask, other=0.0).to(tl.float32)
            fourth = tl.load(here + gate + 3 * H, mask=mask, other=0.0).to(tl.float32)
            wait(counters + lanes, t * programs, SYNC)
            to_first, to_second, to_third, to_fourth = gate_products(
                h, weight, held, k, hidden, rows, B, H, BLOCK_B, BLOCK_H, BLOCK_K, GATES, PRECISION, ROUND, HOLD
            )
            first, second, third, fourth, carried, out = gated_cell(
                first + to_first, second + to_second, third + to_third, fourth + to_fourth, carried, MODE
            )
        y += B * H
        h = y
        tl.store(h + state, out.to(y.dtype.element_ty), mask=mask)
        if SYNC:
            arrive(counters + lanes)
        if t == T - 1:
            tl.store(hn + state, out.to(hn.dtype.element_ty), mask=mask)
            if MODE == "LSTM":
                tl.store(cn + state, carried.to(cn.dtype.element_ty), mask=mask)
        if MODE == "LSTM":
            c += B * H
            tl.store(c + state, carried.to(c.dtype.element_ty), mask=mask)
        if GATES != 1:
            tl.store(here + gate, first.to(gates.dtype.element_ty), mask=mask)
            tl.store(here + gate + H, second.to(gates.dtype.element_ty), mask=mask)
            tl.store(here + gate + 2 * H, third.to(gates.dtype.element_ty), mask=mask)
            tl.store(here + gate + 3 * H, fourth.to(gates.dtype.element_ty), mask=mask)
            here += 4 * B * H


@triton.jit(do_not_specialize=["T", "B", "link_step", "link_lane", "has_dh", "has_dc"])
def backward_scan(  # noqa: C901, PLR0915
    gates,
    weight,
    states,
    dy,
    dgates,
    dhn,
    dcn,
    dh0,
    dc0,
    links,
    counters,
    T,
    B,
    link_step,
    link_lane,
    has_dh,
    has_dc,
    MODE: tl.constexpr,
    GATES: tl.constexpr,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PART: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUND: tl.constexpr,
    SYNC: tl.constexpr,
    HOLD: tl.constexpr,
):
    """dgates (T, B, 4H or H) and dh0, dc0 (B, H): out. dhn, dcn are read only where has_dh, has_dc are not zero.

    states (T+1, B, H) is what the cell looks back on: an LSTM's c, y of the others.
    """
    hidden = tl.program_id(0)
    lanes = tl.program_id(1)
    programs = tl.num_programs(0)
    rows = lanes * BLOCK_B + tl.arange(0, BLOCK_B)
    units = hidden * BLOCK_H + tl.arange(0, BLOCK_H)
    state = rows[:, None] * H + units[None, :]
    gate = rows[:, None] * (4 * H) + units[None, :]
    mask = (rows < B)[:, None] & (units < H)[None, :]
    held = 0.0
    if HOLD:
        held = operand(load_parts_weight(weight, tl.arange(0, BLOCK_K), units, H, PART, GATES, False), ROUND)
    dh = tl.load(dhn + state, mask=mask & (has_dh != 0), other=0.0).to(tl.float32)
    if MODE == "LSTM":
        dcarried = tl.load(dcn + state, mask=mask & (has_dc != 0), other=0.0).to(tl.float32)
    elif MODE == "GRU":
        dcarried = tl.zeros((BLOCK_B, BLOCK_H), dtype=tl.float32)
    last = tl.cast(T, tl.int64) - 1  # the addresses walk back from the last step
    here = gates
    there = dgates
    if GATES == 1:
        there += last * (B * H)
    else:
        here += last * (4 * B * H)
        there += last * (4 * B * H)
    past = states + last * (B * H)
    outside = dy + last * (B * H)
    edge = links + last * link_step
    now = tl.load(past + B * H + state, mask=mask, other=0.0).to(tl.float32)
    for step in range(T):
        if GATES != 1:
            first = tl.load(here + gate, mask=mask, other=0.0).to(tl.float32)
            second = tl.load(here + gate + H, mask=mask, other=0.0).to(tl.float32)
            third = tl.load(here + gate + 2 * H, mask=mask, other=0.0).to(tl.float32)
            fourth = tl.load(here + gate + 3 * H, mask=mask, other=0.0).to(tl.float32)
        previous = tl.load(past + state, mask=mask, other=0.0).to(tl.float32)
        outer = tl.load(outside + state, mask=mask, other=0.0).to(tl.float32)
        if GATES != 1:
            to_first, to_second, to_third, to_fourth, to_carried = gated_slopes(
                first, second, third, fourth, now, previous, MODE
            )
        if step > 0:
            factor = tl.load(edge + rows * link_lane, mask=rows < B, other=0.0)[:, None]
            wait(counters + lanes, step * programs, SYNC)
            dh = product_in_parts(
                there, weight, held, rows, units, B, H, BLOCK_B, BLOCK_H, BLOCK_K, PART, GATES, False, PRECISION, ROUND,
                HOLD,
            )  # fmt: skip
            dh = linked(dh, factor)
            if GATES == 1:
                there -= B * H
            else:
                dcarried = linked(dcarried, factor)
                there -= 4 * B * H
            edge -= link_step
        dh += outer
        if GATES == 1:
            tl.store(there + state, plain_adjoint(dh, now, MODE).to(dgates.dtype.element_ty), mask=mask)
        else:
            to_first, to_second, to_third, to_fourth, dcarried = gated_adjoints(
                dh, dcarried, to_first, to_second, to_third, to_fourth, to_carried, second, third, MODE
            )
            tl.store(there + gate, to_first.to(dgates.dtype.element_ty), mask=mask)
            tl.store(there + gate + H, to_second.to(dgates.dtype.element_ty), mask=mask)
            tl.store(there + gate + 2 * H, to_third.to(dgates.dtype.element_ty), mask=mask)
            tl.store(there + gate + 3 * H, to_fourth.to(dgates.dtype.element_ty), mask=mask)
            here -= 4 * B * H
        now = previous
        if SYNC:
            arrive(counters + lanes)
        past -= B * H
        outside -= B * H
    factor = tl.load(edge + rows * link_lane, mask=rows < B, other=0.0)[:, None]
    wait(counters + lanes, T * programs, SYNC)
    dh = product_in_parts(
        there, weight, held, rows, units, B, H, BLOCK_B, BLOCK_H, BLOCK_K, PART, GATES, False, PRECISION, ROUND, HOLD
    )
    dh = linked(dh, factor)
    if MODE == "GRU":
        dh += linked(dcarried, factor)
    tl.store(dh0 + state, dh.to(dh0.dtype.element_ty), mask=mask)
    if MODE == "LSTM":
        tl.store(dc0 + state, linked(dcarried, factor).to(dc0.dtype.element_ty), mask=mask)
