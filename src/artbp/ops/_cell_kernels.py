# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"
"""The LSTM's arithmetic as Triton functions: what the kernels of whole sequences and of single steps share.

Links live in fp32 beside an fp32 adjoint, whatever the storage type: a bf16 adjoint would swallow factors below
1 + 2^-9 (design fact 9).
"""

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
def lstm_cell(i, f, g, o, cell):
    """The activated gates, the new cell and the new h, from pre-activations and the cell before."""
    i = _sigmoid(i)
    f = _sigmoid(f)
    g = _tanh(g)
    o = _sigmoid(o)
    cell = f * cell + i * g
    return i, f, g, o, cell, o * _tanh(cell)


@triton.jit
def lstm_slopes(i, f, g, o, cell, previous):
    """What the adjoints of the pre-activations and of c are multiples of: all that can be had before they arrive."""
    squashed = _tanh(cell)
    to_cell = o * (1.0 - squashed * squashed)
    return g * i * (1.0 - i), previous * f * (1.0 - f), i * (1.0 - g * g), squashed * o * (1.0 - o), to_cell


@triton.jit
def linked(adjoint, factor):
    """factor · adjoint; a zero selects an exact zero, so that inf or nan behind a cut does not cross it."""
    return tl.where(factor == 0.0, 0.0, adjoint * factor)
