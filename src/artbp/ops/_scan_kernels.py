# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"
"""The whole recurrence in one launch: Triton kernels that hold the loop over time inside.

A program owns BLOCK_B lanes and BLOCK_H hidden units for the whole sequence and keeps their cell (or its adjoint) in
registers. The programs of one block of lanes exchange h (backward: the adjoints of the gates) through memory and meet
at a counter once per step, so all of them have to be resident: the launch is cooperative and the grid no larger than
the chip. T and B are plain run-time numbers: a new length costs neither a compilation nor a capture.
"""

import triton
import triton.language as tl

from artbp.ops._cell_kernels import linked, lstm_cell, lstm_slopes


@triton.jit
def _arrive(counter):
    tl.debug_barrier()  # the stores of every thread come before the one release below
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def _wait(counter, target, SYNC: tl.constexpr):
    if SYNC:
        # A load that acquires; polling with an atomic would queue up behind the arrivals it waits for.
        while (
            tl.inline_asm_elementwise(
                "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l", [counter], dtype=tl.int32, is_pure=False, pack=1
            )
            < target
        ):
            pass
    tl.debug_barrier()


@triton.jit
def _operand(x, ROUND: tl.constexpr):
    """x as TF32 sees it, rounded to nearest: the hardware drops bits, and so an adjoint would shrink at every step."""
    if ROUND:
        x = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    return x


@triton.jit
def round_weight(weight, rounded, count, BLOCK: tl.constexpr):
    """For a weight that is read anew at every step."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(rounded + at, _operand(tl.load(weight + at, mask=at < count, other=0.0), True), mask=at < count)


@triton.jit
def _load_gate_weight(weight, k, hidden, H: tl.constexpr, BLOCK_H: tl.constexpr):
    """weight^T for the 4 BLOCK_H gate rows of these units, the four gates of a unit side by side: (K, 4 BLOCK_H)."""
    wide = tl.arange(0, 4 * BLOCK_H)
    unit = hidden * BLOCK_H + wide // 4
    rows = (wide % 4) * H + unit
    return tl.load(weight + rows[None, :] * H + k[:, None], mask=(unit < H)[None, :] & (k < H)[:, None], other=0.0)


@triton.jit
def _load_lanes(h, k, rows, B, H: tl.constexpr):
    """Columns k of h: (BLOCK_B, K)."""
    return tl.load(h + rows[:, None] * H + k[None, :], mask=(rows < B)[:, None] & (k < H)[None, :], other=0.0)


@triton.jit(do_not_specialize=["T", "B"])
def lstm_forward_scan(
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
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUND: tl.constexpr,
    SYNC: tl.constexpr,
    HOLD: tl.constexpr,
):
    """gates (T, B, 4H): in, the input's share of the pre-activations; out, the activated gates.

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
    tl.store(y + state, tl.load(h0 + state, mask=mask, other=0.0), mask=mask)
    cell = tl.load(c0 + state, mask=mask, other=0.0).to(tl.float32)
    tl.store(c + state, cell.to(c.dtype.element_ty), mask=mask)
    k = tl.arange(0, BLOCK_K)
    if HOLD:  # the weight stays in registers, if the whole of k fits in one block
        held = _operand(_load_gate_weight(weight, k, hidden, H, BLOCK_H), ROUND)
    here = gates  # the addresses walk, so that no product of T overflows
    h = h0
    for t in range(T):
        xi = tl.load(here + gate, mask=mask, other=0.0).to(tl.float32)
        xf = tl.load(here + gate + H, mask=mask, other=0.0).to(tl.float32)
        xg = tl.load(here + gate + 2 * H, mask=mask, other=0.0).to(tl.float32)
        xo = tl.load(here + gate + 3 * H, mask=mask, other=0.0).to(tl.float32)
        _wait(counters + lanes, t * programs, SYNC)
        if HOLD:
            product = tl.dot(_operand(_load_lanes(h, k, rows, B, H), ROUND), held, input_precision=PRECISION)
        else:
            product = tl.zeros((BLOCK_B, 4 * BLOCK_H), dtype=tl.float32)
            for start in range(0, H, BLOCK_K):
                a = _operand(_load_lanes(h, start + k, rows, B, H), ROUND)
                w = _load_gate_weight(weight, start + k, hidden, H, BLOCK_H)
                product = tl.dot(a, w, product, input_precision=PRECISION)
        even, odd = tl.split(tl.reshape(product, (BLOCK_B, BLOCK_H, 2, 2)))
        ri, rg = tl.split(even)
        rf, ro = tl.split(odd)
        i, f, g, o, cell, out = lstm_cell(xi + ri, xf + rf, xg + rg, xo + ro, cell)
        y += B * H
        h = y
        tl.store(h + state, out.to(y.dtype.element_ty), mask=mask)
        if SYNC:
            _arrive(counters + lanes)
        if t == T - 1:
            tl.store(hn + state, out.to(hn.dtype.element_ty), mask=mask)
            tl.store(cn + state, cell.to(cn.dtype.element_ty), mask=mask)
        c += B * H
        tl.store(c + state, cell.to(c.dtype.element_ty), mask=mask)
        tl.store(here + gate, i.to(gates.dtype.element_ty), mask=mask)
        tl.store(here + gate + H, f.to(gates.dtype.element_ty), mask=mask)
        tl.store(here + gate + 2 * H, g.to(gates.dtype.element_ty), mask=mask)
        tl.store(here + gate + 3 * H, o.to(gates.dtype.element_ty), mask=mask)
        here += 4 * B * H


@triton.jit
def _load_state_weight(weight, k, units, H: tl.constexpr):
    """The columns of these units of each gate's rows k: (4, K, BLOCK_H)."""
    gate = tl.arange(0, 4)[:, None, None]
    return tl.load(
        weight + (gate * H + k[None, :, None]) * H + units[None, None, :],
        mask=(gate < 4) & (k < H)[None, :, None] & (units < H)[None, None, :],
        other=0.0,
    )


@triton.jit
def _load_gates(dgates, k, rows, B, H: tl.constexpr):
    """Columns k of each gate: (4, BLOCK_B, K)."""
    gate = tl.arange(0, 4)[:, None, None]
    return tl.load(
        dgates + rows[None, :, None] * (4 * H) + gate * H + k[None, None, :],
        mask=(gate < 4) & (rows < B)[None, :, None] & (k < H)[None, None, :],
        other=0.0,
    )


@triton.jit
def _state_product(
    dgates,
    weight,
    held,
    rows,
    units,
    B,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUND: tl.constexpr,
    HOLD: tl.constexpr,
):
    """dgates @ weight for these units: a sum over 4H, of which each gate is one batch of the product, so one warp's."""
    k = tl.arange(0, BLOCK_K)
    if HOLD:
        total = tl.dot(_operand(_load_gates(dgates, k, rows, B, H), ROUND), held, input_precision=PRECISION)
    else:
        total = tl.zeros((4, BLOCK_B, BLOCK_H), dtype=tl.float32)
        for start in range(0, H, BLOCK_K):
            a = _operand(_load_gates(dgates, start + k, rows, B, H), ROUND)
            w = _load_state_weight(weight, start + k, units, H)
            total = tl.dot(a, w, total, input_precision=PRECISION)
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["T", "B", "link_step", "link_lane", "has_dh", "has_dc"])
def lstm_backward_scan(  # noqa: PLR0915 (one kernel: what is split off is compiled back in)
    gates,
    weight,
    c,
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
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUND: tl.constexpr,
    SYNC: tl.constexpr,
    HOLD: tl.constexpr,
):
    """dgates (T, B, 4H) and dh0, dc0 (B, H): out. dhn, dcn are read only where has_dh, has_dc are not zero."""
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
        held = _operand(_load_state_weight(weight, tl.arange(0, BLOCK_K), units, H), ROUND)
    dh = tl.load(dhn + state, mask=mask & (has_dh != 0), other=0.0).to(tl.float32)
    dcell = tl.load(dcn + state, mask=mask & (has_dc != 0), other=0.0).to(tl.float32)
    last = tl.cast(T, tl.int64) - 1  # the addresses walk back from the last step
    here = gates + last * (4 * B * H)
    there = dgates + last * (4 * B * H)
    past = c + last * (B * H)
    outside = dy + last * (B * H)
    edge = links + last * link_step
    cell = tl.load(past + B * H + state, mask=mask, other=0.0).to(tl.float32)
    for step in range(T):
        i = tl.load(here + gate, mask=mask, other=0.0).to(tl.float32)
        f = tl.load(here + gate + H, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(here + gate + 2 * H, mask=mask, other=0.0).to(tl.float32)
        o = tl.load(here + gate + 3 * H, mask=mask, other=0.0).to(tl.float32)
        previous = tl.load(past + state, mask=mask, other=0.0).to(tl.float32)
        outer = tl.load(outside + state, mask=mask, other=0.0).to(tl.float32)
        di, df, dg, do, to_cell = lstm_slopes(i, f, g, o, cell, previous)
        if step > 0:
            factor = tl.load(edge + rows * link_lane, mask=rows < B, other=0.0)[:, None]
            _wait(counters + lanes, step * programs, SYNC)
            dh = _state_product(
                there, weight, held, rows, units, B, H, BLOCK_B, BLOCK_H, BLOCK_K, PRECISION, ROUND, HOLD
            )
            dh = linked(dh, factor)
            dcell = linked(dcell, factor)
            there -= 4 * B * H
            edge -= link_step
        dh += outer
        dcell += dh * to_cell
        tl.store(there + gate, (di * dcell).to(dgates.dtype.element_ty), mask=mask)
        tl.store(there + gate + H, (df * dcell).to(dgates.dtype.element_ty), mask=mask)
        tl.store(there + gate + 2 * H, (dg * dcell).to(dgates.dtype.element_ty), mask=mask)
        tl.store(there + gate + 3 * H, (do * dh).to(dgates.dtype.element_ty), mask=mask)
        dcell *= f
        cell = previous
        if SYNC:
            _arrive(counters + lanes)
        here -= 4 * B * H
        past -= B * H
        outside -= B * H
    factor = tl.load(edge + rows * link_lane, mask=rows < B, other=0.0)[:, None]
    _wait(counters + lanes, T * programs, SYNC)
    dh = _state_product(there, weight, held, rows, units, B, H, BLOCK_B, BLOCK_H, BLOCK_K, PRECISION, ROUND, HOLD)
    tl.store(dh0 + state, linked(dh, factor).to(dh0.dtype.element_ty), mask=mask)
    tl.store(dc0 + state, linked(dcell, factor).to(dc0.dtype.element_ty), mask=mask)
