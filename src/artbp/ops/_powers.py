"""Links as exact powers of two, with scales between one and two beside them.

The adjoint of a plain cell goes back through the product alone, and the product's operand is rounded to bfloat16 or
TF32 at every step. Where the weight keeps a number on that grid (the identity does, from which networks of rectifiers
often start), a factor of 1.0015 would be rounded away each time. So a low-precision recursion carries δ' = δ / s:

    λ_{t+1} s_{t+1} = p_{t+1} s_t     s_t in [1, 2), p a power of two, s_{T-1} = 1
    δ'h_t = (∂ℓ/∂h_t) / s_t + p_{t+1} δ'a_{t+1} W_hh                   δ_t = s_t δ'_t

Multiplying by p rounds nothing, whatever the precision. What is left is one rounding before the loop and one after it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def powers(links: Tensor) -> tuple[Tensor, Tensor | None]:
    """p and s, float64, for links (T,) or (T, B); s is None where it is one throughout. p_0 is λ_0 s_0, as it is."""
    cut = links == 0.0
    bits = links.masked_fill(cut, 1.0).log2()
    height = (
        bits.flip(0).cumsum(0).flip(0) - bits
    )  # log2 of the product of all later links; sums of logs do not overflow
    if not height.any():
        return links, None
    whole = height.floor()
    scales = (height - whole).exp2()
    result = torch.cat([(links * scales)[:1], (whole[:-1] - whole[1:]).exp2()])
    return result.masked_fill(cut, 0.0), scales
