"""Products of float32 matrices on the CPU by oneDNN, where it is the faster of the two libraries that torch carries.

MKL's products reach half the speed of oneDNN's on AMD's processors with AVX-512, where this was measured (64 x 256 by
256 x 1024 on one thread: 327 and 165 µs). Small ones are faster with MKL, for a call of oneDNN takes 12 µs.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

SMALLEST = 1_500_000  # multiplications in a product, from which on oneDNN is faster

_usable: bool | None = None


def onednn_is_faster(a: Tensor, b: Tensor) -> bool:
    """Whether a @ b, a (M, K) and b (K, N), is one for oneDNN."""
    return (
        a.shape[0] * b.numel() >= SMALLEST
        and a.dtype is torch.float32
        and a.device.type == "cpu"
        and bool(torch._C._get_mkldnn_enabled())
        and _is_usable()
    )


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a @ b (+ bias)."""
    if onednn_is_faster(a, b):
        return _linear(a, b.t(), bias)
    return a @ b if bias is None else torch.addmm(bias, a, b)


def add_product(out: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """out += a @ b."""
    return out.add_(_linear(a, b.t())) if onednn_is_faster(a, b) else out.addmm_(a, b)


def product_of_transposed(a: Tensor, b: Tensor) -> Tensor:
    """a.t() @ b, for a (K, M) with M the larger side: what a weight's gradient is."""
    if onednn_is_faster(a.t(), b):
        # oneDNN takes a dense left operand, and any strides on the right: the smaller of the two is copied.
        return _linear(b.t().contiguous(), a.t()).t()
    return a.t() @ b


def _linear(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(a, weight, bias, "none", [], "")
    return result


def _is_usable() -> bool:
    """Whether the operator, which is private to torch, exists and multiplies: found out once."""
    global _usable  # noqa: PLW0603 - a fact about the process; threads that race find the same
    if _usable is None:
        _usable = torch._C._has_mkldnn and _multiplies()
    return _usable


def _multiplies() -> bool:
    generator = torch.Generator().manual_seed(0)
    a, weight = (torch.randn(33, size, generator=generator) for size in (48, 48))
    strided: Any = weight.t().contiguous().t()
    try:
        found = [_linear(a, weight), _linear(a, strided, a[0, :33].contiguous())]
    except (AttributeError, RuntimeError, TypeError) as problem:
        words = f"raised {type(problem).__name__}"
    else:
        expected = a.double() @ weight.double().t()
        wrong = [found[0] - expected, found[1] - a[0, :33] - expected]
        if max(float(error.abs().max()) for error in wrong) < 1e-4:
            return True
        words = "is wrong"
    warnings.warn(
        f"oneDNN's product {words} in this torch: artbp's layers use MKL's, perhaps more slowly.",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
