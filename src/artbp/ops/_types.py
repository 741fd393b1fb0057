"""The contract of every path: one layer, one direction, time-major, no dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
Weights = tuple[Any, ...]  # (w_ih, w_hh, b_ih | None, b_hh | None[, w_hr])
Gradients = tuple[Tensor | None, ...]
MODES = ("LSTM", "GRU", "RNN_TANH", "RNN_RELU")
GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}  # rows of W_ih and W_hh for each hidden unit


class Path(Protocol):
    """A recurrence with links, differentiable in the input, the initial state and the weights.

    Args (of the call):
        mode: one of `MODES`.
        x: (T, B, I).
        hx: (h0, c0) for an LSTM, (h0,) otherwise: (B, H) each, h0 (B, P) with a projection.
        weights: (w_ih, w_hh, b_ih | None, b_hh | None[, w_hr]), in torch.nn's layout.
        links: float64 on the CPU, (T,) or (T, B), finite and not negative; None is one everywhere.

    Returns:
        y (T, B, H or P), and the final states in the order of hx.
    """

    def __call__(
        self, mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None
    ) -> tuple[Tensor, Tensors]: ...


@dataclass(frozen=True)
class Adjoints:
    """What a hand-written backward loop hands to the large products after it."""

    input: Tensor  # (T, B, G): of W_ih x_t + b_ih
    recurrent: Tensor  # (T, B, G): of W_hh h_{t-1} + b_hh; the same tensor, but for a GRU
    states: Tensors  # of hx
    projected: tuple[Tensor, Tensor] | None = None  # of h_t (T, B, P), and what was projected (T, B, H)


def in_full_precision(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A Function's backward as its forward ran: outside autocast, even where the user's backward() is called inside."""

    @wraps(backward)
    def run(ctx: Any, *incoming: Tensor | None) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return backward(ctx, *incoming)
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            return backward(ctx, *incoming)

    return run
