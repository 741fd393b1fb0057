# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"
"""One step beside a cuBLAS product: the Triton kernels that a captured graph repeats.

They read the step and the tensors' addresses from a table in device memory, so that one graph serves every length and
every call.
"""

import triton
import triton.language as tl

from artbp.ops._cell_kernels import gated_adjoints, gated_cell, gated_slopes, linked, plain_adjoint, plain_cell

# The table, int64: the step, the addresses of gates, states, outputs, incoming gradient, dgates and links, and the two
# strides of the links. The states are an LSTM's c, y of the others; a plain cell has no gates, y stands for them.
TABLE_SIZE = 9


@triton.jit(do_not_specialize=["step", "link_step", "link_lane"])
def write_table(table, step, gates, states, outputs, outer, dgates, links, link_step, link_lane):
    """Arguments of a launch become device memory: in the order of the stream, and without a copy from the host."""
    tl.store(table, tl.cast(step, tl.int64))
    tl.store(table + 1, tl.cast(gates, tl.int64))
    tl.store(table + 2, tl.cast(states, tl.int64))
    tl.store(table + 3, tl.cast(outputs, tl.int64))
    tl.store(table + 4, tl.cast(outer, tl.int64))
    tl.store(table + 5, tl.cast(dgates, tl.int64))
    tl.store(table + 6, tl.cast(links, tl.int64))
    tl.store(table + 7, tl.cast(link_step, tl.int64))
    tl.store(table + 8, tl.cast(link_lane, tl.int64))


@triton.jit(do_not_specialize=["steps"])
def advance(table, steps):
    """The end of a graph: the next one goes on from here."""
    tl.store(table, tl.load(table) + steps)


@triton.jit
def _tensor(table, entry: tl.constexpr, dtype: tl.constexpr):
    return tl.multiple_of(tl.load(table + entry).to(tl.pointer_type(dtype)), 16)


@triton.jit
def _with_share(gates, product, slot: tl.constexpr, H: tl.constexpr, GATES: tl.constexpr, mask):
    """The pre-activation in a slot: the input's share and the product's, which may have none in the first."""
    a = tl.load(gates + slot * H, mask=mask, other=0.0).to(tl.float32)
    if slot >= 4 - GATES:
        a += tl.load(product + (slot - (4 - GATES)) * H, mask=mask, other=0.0)
    return a


@triton.jit(do_not_specialize=["offset", "B"])
def forward_step(
    table,
    offset,
    product,
    hidden,
    carried,
    B,
    MODE: tl.constexpr,
    GATES: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """product (B, GATES · H) is h_{t-1} W_hh^T; hidden (B, H) receives h_t for the next product.

    carried (B, H) is a GRU's h in fp32, which is rounded for the product only.
    """
    dtype: tl.constexpr = hidden.dtype.element_ty
    t = tl.load(table) + offset
    row = tl.program_id(0)
    units = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = units < H
    gates = _tensor(table, 1, dtype) + (t * B + row) * (4 * H) + units
    y = _tensor(table, 3, dtype) + ((t + 1) * B + row) * H + units
    product += row * (GATES * H) + units
    if MODE == "LSTM":
        before = _tensor(table, 2, tl.float32) + (t * B + row) * H + units
        after = before + B * H
    elif MODE == "GRU":
        before = carried + row * H + units
        after = before
    if GATES == 1:
        a = tl.load(y, mask=mask, other=0.0).to(tl.float32) + tl.load(product, mask=mask, other=0.0)
        out = plain_cell(a, MODE)
    else:
        first = _with_share(gates, product, 0, H, GATES, mask)
        second = _with_share(gates, product, 1, H, GATES, mask)
        third = _with_share(gates, product, 2, H, GATES, mask)
        fourth = _with_share(gates, product, 3, H, GATES, mask)
        first, second, third, fourth, state, out = gated_cell(
            first, second, third, fourth, tl.load(before, mask=mask, other=0.0), MODE
        )
    tl.store(hidden + row * H + units, out.to(dtype), mask=mask)
    tl.store(y, out.to(dtype), mask=mask)
    if GATES != 1:
        tl.store(after, state, mask=mask)
        tl.store(gates, first.to(dtype), mask=mask)
        tl.store(gates + H, second.to(dtype), mask=mask)
        tl.store(gates + 2 * H, third.to(dtype), mask=mask)
        tl.store(gates + 3 * H, fourth.to(dtype), mask=mask)


@triton.jit(do_not_specialize=["offset", "B"])
def backward_step(
    table,
    offset,
    product,
    dcarried,
    later,
    B,
    MODE: tl.constexpr,
    GATES: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """product (B, H) is later_{t+1} W_hh, dcarried (B, H) travels, later (B, GATES · H) is for the next product.

    later is what dgates_t has in the slots in which the product has a share. The link of the edge into step t+1 is met
    here, on arrival; links[T] = 1 stands for the final states' own adjoints.
    """
    dtype: tl.constexpr = later.dtype.element_ty
    t = tl.load(table) + offset
    row = tl.program_id(0)
    units = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = units < H
    SLOTS: tl.constexpr = 1 if GATES == 1 else 4
    gates = _tensor(table, 1, dtype) + (t * B + row) * (4 * H) + units
    if MODE == "LSTM":
        states = _tensor(table, 2, tl.float32) + (t * B + row) * H + units
    else:
        states = _tensor(table, 2, dtype) + (t * B + row) * H + units
    dy = _tensor(table, 4, dtype) + (t * B + row) * H + units
    dgates = _tensor(table, 5, dtype) + (t * B + row) * (SLOTS * H) + units
    links = tl.load(table + 6).to(tl.pointer_type(tl.float32))
    factor = tl.load(links + (t + 1) * tl.load(table + 7) + row * tl.load(table + 8))
    later += row * (GATES * H) + units
    dh = linked(tl.load(product + row * H + units, mask=mask, other=0.0), factor)
    dh += tl.load(dy, mask=mask, other=0.0).to(tl.float32)
    if GATES == 1:
        da = plain_adjoint(dh, tl.load(states + B * H, mask=mask, other=0.0).to(tl.float32), MODE)
        tl.store(later, da.to(dtype), mask=mask)
        tl.store(dgates, da.to(dtype), mask=mask)
    else:
        dcarried += row * H + units
        arriving = linked(tl.load(dcarried, mask=mask, other=0.0), factor)
        first = tl.load(gates, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(gates + H, mask=mask, other=0.0).to(tl.float32)
        third = tl.load(gates + 2 * H, mask=mask, other=0.0).to(tl.float32)
        fourth = tl.load(gates + 3 * H, mask=mask, other=0.0).to(tl.float32)
        now = tl.load(states + B * H, mask=mask, other=0.0).to(tl.float32)
        previous = tl.load(states, mask=mask, other=0.0).to(tl.float32)
        to_first, to_second, to_third, to_fourth, to_carried = gated_slopes(
            first, second, third, fourth, now, previous, MODE
        )
        to_first, to_second, to_third, to_fourth, arriving = gated_adjoints(
            dh, arriving, to_first, to_second, to_third, to_fourth, to_carried, second, third, MODE
        )
        tl.store(dcarried, arriving, mask=mask)
        if GATES == 4:
            tl.store(later, to_first.to(dtype), mask=mask)
        tl.store(later + (GATES - 3) * H, to_second.to(dtype), mask=mask)
        tl.store(later + (GATES - 2) * H, to_third.to(dtype), mask=mask)
        tl.store(later + (GATES - 1) * H, to_fourth.to(dtype), mask=mask)
        tl.store(dgates, to_first.to(dtype), mask=mask)
        tl.store(dgates + H, to_second.to(dtype), mask=mask)
        tl.store(dgates + 2 * H, to_third.to(dtype), mask=mask)
        tl.store(dgates + 3 * H, to_fourth.to(dtype), mask=mask)
