# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"
"""What the programs of a scan do together: meet at a counter, and multiply what all of them have written.

GATES is the number of the weight's rows for each hidden unit: 4 in an LSTM, 3 in a GRU, whose product has no share in
the first of the four slots, and 1 in a plain cell.
"""

# ruff: noqa: RET505 - without the else, Triton would compile what stands behind the return too
import triton
import triton.language as tl


@triton.jit
def arrive(counter):
    tl.debug_barrier()  # the stores of every thread come before the one release below
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter, target, SYNC: tl.constexpr):
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
def operand(x, ROUND: tl.constexpr):
    """x as TF32 sees it, rounded to nearest: the hardware drops bits, and so an adjoint would shrink at every step."""
    if ROUND:
        x = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    return x


@triton.jit
def round_weight(weight, rounded, count, BLOCK: tl.constexpr):
    """For a weight that is read anew at every step."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(rounded + at, operand(tl.load(weight + at, mask=at < count, other=0.0), True), mask=at < count)


@triton.jit
def load_gate_weight(weight, k, hidden, H: tl.constexpr, BLOCK_H: tl.constexpr, GATES: tl.constexpr):
    """weight^T for the rows of these units, the four slots of a unit side by side: (K, 4 BLOCK_H)."""
    wide = tl.arange(0, 4 * BLOCK_H)
    unit = hidden * BLOCK_H + wide // 4
    rows = (wide % 4 - (4 - GATES)) * H + unit
    mask = (unit < H)[None, :] & (k < H)[:, None]
    if GATES < 4:
        mask = mask & (wide % 4 >= 4 - GATES)[None, :]
    return tl.load(weight + rows[None, :] * H + k[:, None], mask=mask, other=0.0)


@triton.jit
def _load_lanes(h, k, rows, B, H: tl.constexpr):
    """Columns k of h: (BLOCK_B, K)."""
    return tl.load(h + rows[:, None] * H + k[None, :], mask=(rows < B)[:, None] & (k < H)[None, :], other=0.0)


@triton.jit
def gate_products(
    h,
    weight,
    held,
    k,
    hidden,
    rows,
    B,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATES: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUND: tl.constexpr,
    HOLD: tl.constexpr,
):
    """h @ weight^T in the four slots of these units, (BLOCK_B, BLOCK_H) each."""
    if HOLD:
        product = tl.dot(operand(_load_lanes(h, k, rows, B, H), ROUND), held, input_precision=PRECISION)
    else:
        product = tl.zeros((BLOCK_B, 4 * BLOCK_H), dtype=tl.float32)
        for start in range(0, H, BLOCK_K):
            a = operand(_load_lanes(h, start + k, rows, B, H), ROUND)
            w = load_gate_weight(weight, start + k, hidden, H, BLOCK_H, GATES)
            product = tl.dot(a, w, product, input_precision=PRECISION)
    even, odd = tl.split(tl.reshape(product, (BLOCK_B, BLOCK_H, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def load_parts_weight(weight, k, units, H: tl.constexpr, PART: tl.constexpr, GATES: tl.constexpr, TURNED: tl.constexpr):
    """The columns of these units (TURNED: their rows) of each part's rows k: (4, K, BLOCK_H)."""
    part = tl.arange(0, 4)[:, None, None]
    at = part * PART + k[None, :, None]
    mask = (at < H if GATES == 1 else part < GATES) & (k < PART)[None, :, None] & (units < H)[None, None, :]
    if TURNED:
        return tl.load(weight + units[None, None, :] * H + at, mask=mask, other=0.0)
    else:
        return tl.load(weight + at * H + units[None, None, :], mask=mask, other=0.0)


@triton.jit
def _load_parts(left, k, rows, B, H: tl.constexpr, PART: tl.constexpr, GATES: tl.constexpr):
    """Columns k of each part, behind the slot in which the product of a GRU has no share: (4, BLOCK_B, K)."""
    SLOTS: tl.constexpr = 1 if GATES == 1 else 4
    part = tl.arange(0, 4)[:, None, None]
    inside = part * PART + k[None, None, :] < H if GATES == 1 else part < GATES
    mask = inside & (rows < B)[None, :, None] & (k < PART)[None, None, :]
    left += (SLOTS - GATES) * H
    return tl.load(left + rows[None, :, None] * (SLOTS * H) + part * PART + k[None, None, :], mask=mask, other=0.0)


@triton.jit
def product_in_parts(
    left,
    weight,
    held,
    rows,
    units,
    B,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PART: tl.constexpr,
    GATES: tl.constexpr,
    TURNED: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUND: tl.constexpr,
    HOLD: tl.constexpr,
):
    """left @ weight (TURNED: weight^T) for these units: (BLOCK_B, BLOCK_H).

    The sum over GATES · H goes in four parts, each one batch of the product and so one warp's. A part is a gate, of
    length PART = H; for a plain cell it is a quarter of the units.
    """
    k = tl.arange(0, BLOCK_K)
    if HOLD:
        total = tl.dot(operand(_load_parts(left, k, rows, B, H, PART, GATES), ROUND), held, input_precision=PRECISION)
    else:
        total = tl.zeros((4, BLOCK_B, BLOCK_H), dtype=tl.float32)
        for start in range(0, PART, BLOCK_K):
            a = operand(_load_parts(left, start + k, rows, B, H, PART, GATES), ROUND)
            w = load_parts_weight(weight, start + k, units, H, PART, GATES, TURNED)
            total = tl.dot(a, w, total, input_precision=PRECISION)
    return tl.sum(total, axis=0)
