# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"
"""One step beside a cuBLAS product: the Triton kernels that a captured graph repeats.

They read the step and the tensors' addresses from a table in device memory, so that one graph serves every length and
every call.
"""

import triton
import triton.language as tl

from artbp.ops._cell_kernels import linked, lstm_cell, lstm_slopes

# The table, int64: the step, the addresses of gates, cells, outputs, incoming gradient, dgates and links, and the two
# strides of the links.
TABLE_SIZE = 9


@triton.jit(do_not_specialize=["step", "link_step", "link_lane"])
def write_table(table, step, gates, cells, outputs, outer, dgates, links, link_step, link_lane):
    """Arguments of a launch become device memory: in the order of the stream, and without a copy from the host."""
    tl.store(table, tl.cast(step, tl.int64))
    tl.store(table + 1, tl.cast(gates, tl.int64))
    tl.store(table + 2, tl.cast(cells, tl.int64))
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


@triton.jit(do_not_specialize=["offset", "B"])
def lstm_forward_step(table, offset, product, hidden, B, H: tl.constexpr, BLOCK: tl.constexpr):
    """product (B, 4H) is h_{t-1} W_hh^T; hidden (B, H) receives h_t for the next product."""
    dtype: tl.constexpr = hidden.dtype.element_ty
    t = tl.load(table) + offset
    row = tl.program_id(0)
    units = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = units < H
    gates = _tensor(table, 1, dtype) + (t * B + row) * (4 * H) + units
    c = _tensor(table, 2, tl.float32) + (t * B + row) * H + units
    y = _tensor(table, 3, dtype) + ((t + 1) * B + row) * H + units
    product += row * (4 * H) + units
    i = tl.load(gates, mask=mask, other=0.0).to(tl.float32) + tl.load(product, mask=mask, other=0.0)
    f = tl.load(gates + H, mask=mask, other=0.0).to(tl.float32) + tl.load(product + H, mask=mask, other=0.0)
    g = tl.load(gates + 2 * H, mask=mask, other=0.0).to(tl.float32) + tl.load(product + 2 * H, mask=mask, other=0.0)
    o = tl.load(gates + 3 * H, mask=mask, other=0.0).to(tl.float32) + tl.load(product + 3 * H, mask=mask, other=0.0)
    i, f, g, o, cell, out = lstm_cell(i, f, g, o, tl.load(c, mask=mask, other=0.0))
    tl.store(hidden + row * H + units, out.to(dtype), mask=mask)
    tl.store(y, out.to(dtype), mask=mask)
    tl.store(c + B * H, cell, mask=mask)
    tl.store(gates, i.to(dtype), mask=mask)
    tl.store(gates + H, f.to(dtype), mask=mask)
    tl.store(gates + 2 * H, g.to(dtype), mask=mask)
    tl.store(gates + 3 * H, o.to(dtype), mask=mask)


@triton.jit(do_not_specialize=["offset", "B"])
def lstm_backward_step(table, offset, product, dcell, later, B, H: tl.constexpr, BLOCK: tl.constexpr):
    """product (B, H) is dgates_{t+1} W_hh, dcell (B, H) travels, later (B, 4H) receives dgates_t for the next product.

    The link of the edge into step t+1 is met here, on arrival; links[T] = 1 stands for the final states' own adjoints.
    """
    dtype: tl.constexpr = later.dtype.element_ty
    t = tl.load(table) + offset
    row = tl.program_id(0)
    units = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = units < H
    gates = _tensor(table, 1, dtype) + (t * B + row) * (4 * H) + units
    c = _tensor(table, 2, tl.float32) + (t * B + row) * H + units
    dy = _tensor(table, 4, dtype) + (t * B + row) * H + units
    dgates = _tensor(table, 5, dtype) + (t * B + row) * (4 * H) + units
    links = tl.load(table + 6).to(tl.pointer_type(tl.float32))
    factor = tl.load(links + (t + 1) * tl.load(table + 7) + row * tl.load(table + 8))
    dcell += row * H + units
    dh = linked(tl.load(product + row * H + units, mask=mask, other=0.0), factor)
    dh += tl.load(dy, mask=mask, other=0.0).to(tl.float32)
    dc = linked(tl.load(dcell, mask=mask, other=0.0), factor)
    i = tl.load(gates, mask=mask, other=0.0).to(tl.float32)
    f = tl.load(gates + H, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gates + 2 * H, mask=mask, other=0.0).to(tl.float32)
    o = tl.load(gates + 3 * H, mask=mask, other=0.0).to(tl.float32)
    cell = tl.load(c + B * H, mask=mask, other=0.0)
    di, df, dg, do, to_cell = lstm_slopes(i, f, g, o, cell, tl.load(c, mask=mask, other=0.0))
    dc += dh * to_cell
    di *= dc
    df *= dc
    dg *= dc
    do *= dh
    tl.store(dcell, dc * f, mask=mask)
    later += row * (4 * H) + units
    tl.store(later, di.to(dtype), mask=mask)
    tl.store(later + H, df.to(dtype), mask=mask)
    tl.store(later + 2 * H, dg.to(dtype), mask=mask)
    tl.store(later + 3 * H, do.to(dtype), mask=mask)
    tl.store(dgates, di.to(dtype), mask=mask)
    tl.store(dgates + H, df.to(dtype), mask=mask)
    tl.store(dgates + 2 * H, dg.to(dtype), mask=mask)
    tl.store(dgates + 3 * H, do.to(dtype), mask=mask)
