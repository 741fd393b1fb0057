# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"
"""The arithmetic of the cells as Triton functions: what the kernels of whole sequences and of single steps share.

A gated cell has four slots for each unit, whose pre-activations are the input's share plus the recurrent product's. An
LSTM's are i, f, g, o. A GRU's are n, r, z, m with m = W_hn h + b_hn: the input has a share in the first three, the
product in the last three, and n gets its own from m inside the cell. What a gated cell carries from step to step is c,
or a GRU's h, in fp32; the adjoint of that is carried in fp32 too. A plain cell has one slot, in which h takes the place
of its pre-activation.

Links live in fp32 beside an fp32 adjoint, whatever the storage type: a bf16 adjoint would swallow factors below
1 + 2^-9 (design fact 9).
"""

# ruff: noqa: RET505 - without the else, Triton would compile what stands behind the return too
import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    # The exponential form loses the relative precision of small results; there the series to x^9 is exact in fp32.
    decay = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - decay) / (1.0 + decay)
    large = tl.where(x < 0, -large, large)
    s = x * x
    small = x * (1.0 + s * (-0.33333333333 + s * (0.13333333333 + s * (-0.05396825397 + s * 0.02186948854))))
    return tl.where(tl.abs(x) < 0.25, small, large)


@triton.jit
def _lstm_cell(i, f, g, o, cell):
    i = _sigmoid(i)
    f = _sigmoid(f)
    g = _tanh(g)
    o = _sigmoid(o)
    cell = f * cell + i * g
    return i, f, g, o, cell, o * _tanh(cell)


@triton.jit
def _gru_cell(n, r, z, m, h):
    r = _sigmoid(r)
    z = _sigmoid(z)
    n = _tanh(n + r * m)
    h = n + z * (h - n)
    return n, r, z, m, h, h


@triton.jit
def gated_cell(first, second, third, fourth, carried, MODE: tl.constexpr):
    """What the slots keep for the backward, the new carried state and the new h, from pre-activations."""
    if MODE == "LSTM":
        return _lstm_cell(first, second, third, fourth, carried)
    else:
        return _gru_cell(first, second, third, fourth, carried)


@triton.jit
def _lstm_slopes(i, f, g, o, cell, previous):
    squashed = _tanh(cell)
    to_cell = o * (1.0 - squashed * squashed)
    return g * i * (1.0 - i), previous * f * (1.0 - f), i * (1.0 - g * g), squashed * o * (1.0 - o), to_cell


@triton.jit
def _gru_slopes(n, r, z, m, previous):
    to_n = (1.0 - z) * (1.0 - n * n)
    return to_n, to_n * m * r * (1.0 - r), (previous - n) * z * (1.0 - z), to_n * r, 1.0


@triton.jit
def gated_slopes(first, second, third, fourth, carried, previous, MODE: tl.constexpr):
    """What the adjoints of the pre-activations and of the carried state are multiples of, known before they arrive."""
    if MODE == "LSTM":
        return _lstm_slopes(first, second, third, fourth, carried, previous)
    else:
        return _gru_slopes(first, second, third, fourth, previous)


@triton.jit
def gated_adjoints(
    dh, dcarried, to_first, to_second, to_third, to_fourth, to_carried, second, third, MODE: tl.constexpr
):
    """The adjoints of the pre-activations, and of the carried state before this step."""
    if MODE == "LSTM":
        dcarried += dh * to_carried
        dh_only = to_fourth * dh  # of o, which acts behind the cell
        return to_first * dcarried, to_second * dcarried, to_third * dcarried, dh_only, dcarried * second
    else:
        dh += dcarried
        return to_first * dh, to_second * dh, to_third * dh, to_fourth * dh, dh * third


@triton.jit
def plain_cell(a, MODE: tl.constexpr):
    """h from its pre-activation; nan stays nan."""
    if MODE == "RNN_TANH":
        return _tanh(a)
    else:
        return tl.where(a <= 0.0, 0.0, a)


@triton.jit
def plain_adjoint(dh, h, MODE: tl.constexpr):
    """The adjoint of the pre-activation."""
    if MODE == "RNN_TANH":
        return dh * (1.0 - h * h)
    else:
        return tl.where(h <= 0.0, 0.0, dh)


@triton.jit
def linked(adjoint, factor):
    """factor · adjoint; a zero selects an exact zero, so that inf or nan behind a cut does not cross it."""
    return tl.where(factor == 0.0, 0.0, adjoint * factor)
