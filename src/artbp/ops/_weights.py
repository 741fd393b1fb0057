r"""Links as weights, for kernels that know no links, and the windows in which the weights stay inside float32.

Inside a window let :math:`w_0 = 1,\; w_t = \prod_{1 \le k \le t} \lambda_k`. Then
:math:`\delta'_t = w_t \tilde\delta_t` obeys the ordinary recursion for losses weighted by :math:`w_t`, and
:math:`\partial L/\partial\theta = \sum_t (1/w_t)\, \delta'_t\, \partial F/\partial\theta`: a stock backward does it,
given :math:`w_t\, \partial\ell_t`, :math:`x_t/w_t` and :math:`h_{t-1}/w_t`. A link of zero, and a product that leaves
:math:`2^{\pm 32}`, begin a new window: its first link is the factor on the gradient that leaves it
for the window before.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LIMIT = 2.0**32  # a product beyond it, or below its inverse, splits the window: adjoints keep 2^-94 of room in float32


@dataclass(slots=True)
class Window:
    """Steps first..last-1, whose links inside neither vanish nor leave the range."""

    first: int
    last: int
    edge: float | Tensor  # the link on the state that enters: a number, or (B, 1)
    weights: Tensor | None  # w (n, 1, 1) or (n, B, 1); None where all are one
    inverse: Tensor | None  # 1 / w, float32 like the weights
    following: Tensor | None  # 1 / w of the next step, for what step t hands to step t+1; the last row is one

    def scale_entering(self, gradient: Tensor) -> Tensor:
        """edge · gradient, a new tensor, exactly zero where the edge is."""
        if isinstance(self.edge, Tensor):
            return (gradient * self.edge).masked_fill_(self.edge == 0, 0.0)
        if self.edge == 0.0:
            return torch.zeros_like(gradient)
        return gradient if self.edge == 1.0 else gradient * self.edge


_latest: tuple[weakref.ref[Tensor], int, torch.device, list[Window]] | None = None


def windows(links: Tensor, device: torch.device) -> list[Window]:
    """The windows of float64 links (T,) or (T, B), with float32 weights on `device`.

    The last answer is kept, for the layers of a stack ask for the same links one after the other.
    """
    global _latest  # noqa: PLW0603 - one tuple, read and written whole, so that threads may race for it
    latest = _latest
    if latest is not None and latest[0]() is links and latest[1] == links._version and latest[2] == device:
        return latest[3]
    found = []
    values = links.numpy()
    for first, last, product in _spans(values):
        edge = float(values[first]) if values.ndim == 1 else links[first].to(device, torch.float32).unsqueeze(1)
        if product is None:
            found.append(Window(first, last, edge, None, None, None))
            continue
        rows = np.empty((3, last - first, product.size // (last - first), 1), dtype=np.float32)
        rows[0] = product.reshape(rows.shape[1:])
        np.divide(1.0, rows[0], out=rows[1])
        rows[2, :-1] = rows[1, 1:]
        rows[2, -1] = 1.0
        scales = torch.from_numpy(rows)
        found.append(Window(first, last, edge, *(scales if device.type == "cpu" else scales.to(device)).unbind(0)))
    _latest = weakref.ref(links), links._version, device, found
    return found


def _spans(links: NDArray[np.float64]) -> Iterator[tuple[int, int, NDArray[np.float64] | None]]:
    """(first, last, w over first..last-1, or None where it is one throughout) of each window."""
    first, length = 0, len(links)
    while first < length:
        product = links[first:].copy()
        product[0] = 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply.accumulate(product, axis=0, out=product)
        low, high = np.minimum.reduce(product, axis=None), np.maximum.reduce(product, axis=None)
        if low < 1.0 / LIMIT or not high <= LIMIT:
            outside = ~((product >= 1.0 / LIMIT) & (product <= LIMIT)).reshape(len(product), -1)
            product = product[: int(outside.any(axis=1).argmax())]
            low, high = product.min(), product.max()
        last = first + len(product)
        yield first, last, None if low == 1.0 == high else product
        first = last
