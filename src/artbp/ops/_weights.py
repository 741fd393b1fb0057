r"""Links as weights, for kernels that know no links, and the windows in which the weights stay inside float32.

Inside a window let :math:`w_t = w_0 \prod_{1 \le k \le t} \lambda_k`. Then
:math:`\delta'_t = w_t \tilde\delta_t` obeys the ordinary recursion for losses weighted by :math:`w_t`, and
:math:`\partial L/\partial\theta = \sum_t (1/w_t)\, \delta'_t\, \partial F/\partial\theta`: a stock backward does it,
given :math:`w_t\, \partial\ell_t`, :math:`x_t/w_t` and :math:`h_{t-1}/w_t`. A link of zero, and a product that leaves
:math:`2^{\pm 32}`, begin a new window: its first link is the factor on the gradient that leaves it
for the window before.

With a link for each lane some lane is cut at almost every step, and windows that end at every cut would be too short
for a kernel. :func:`coded_windows` writes such a cut as a factor :math:`2^{-48}` instead, and lets all weights begin at
:math:`2^{48}`, for cuts only lower them: a window holds three cuts in every lane. What then crosses a cut is
:math:`2^{-48}` of what lies behind it: lost in float32's rounding where the step before the cut has an adjoint of its
own, a leak where it has none. The window says which steps those are; whoever uses it has to look
(:mod:`artbp.ops.onednn`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LIMIT = 2.0**32  # a product beyond it, or below its inverse, splits the window: adjoints keep 2^-94 of room in float32
CUT = 2.0**-48  # what stands for a zero in coded windows
START = 2.0**48  # w_0 there
LOW, HIGH = 2.0**-96, 2.0**64  # between which w stays there: three cuts down, and 2^16 up for compensations in between


@dataclass(slots=True)
class Window:
    """Steps first..last-1, whose links inside neither vanish nor leave the range."""

    first: int
    last: int
    edge: float | NDArray[np.float64]  # the link on the state that enters: a number, or (B,)
    weights: Tensor | None  # w (n, 1, 1) or (n, B, 1), float32; None where all are one
    following: Tensor | None  # w of the next step, for what step t hands to step t+1; the last row is one
    start: float = 1.0  # w_0; another than one where cuts are coded
    before: tuple[NDArray[np.intp], NDArray[np.intp]] | None = (
        None  # if coded: steps, from first on, and lanes before cuts
    )

    @property
    def inverse(self) -> Tensor | None:
        """1 / w."""
        return None if self.weights is None else self.weights.reciprocal()

    def scale_entering(self, gradient: Tensor) -> Tensor:
        """edge · gradient, a new tensor, exactly zero where the edge is."""
        if isinstance(self.edge, float):
            if self.edge == 0.0:
                return torch.zeros_like(gradient)
            return gradient if self.edge == 1.0 else gradient * self.edge
        column = torch.from_numpy(self.edge).to(gradient.device, torch.float32).unsqueeze(1)
        scaled = gradient * column
        return scaled if self.edge.all() else scaled.masked_fill_(column == 0, 0.0)


_known: dict[tuple[int, bool, torch.device], tuple[weakref.ref[Tensor], int, list[Window]]] = {}


def windows(links: Tensor, device: torch.device) -> list[Window]:
    """The windows of float64 links (T,) or (T, B), with float32 weights on `device`; no weight leaves 2^±32.

    The answer is kept as long as the links live: layers of a stack, and calls of one length, ask for the same ones.
    """
    return _remembered(False, links, device)


def coded_windows(links: Tensor, lanes: int, device: torch.device) -> list[Window]:
    """As `windows`, but where lanes are cut one by one, cuts are coded as small factors; see the head of this module.

    So are those of a single lane, whatever the shape of its links: its steps are so short that each call weighs.
    """
    return _remembered(links.dim() == 2 or lanes == 1, links, device)


def _remembered(coded: bool, links: Tensor, device: torch.device) -> list[Window]:
    key = id(links), coded, device
    known = _known.get(key)  # tuples, read and written whole, so that threads may race for them
    if known is not None and known[0]() is links and known[1] == links._version:
        return known[2]
    values = links.numpy()
    if coded:
        found = _coded(values.reshape(len(values), -1), device)
    else:
        found = [_window(values, *span, device) for span in _spans(values)]
    _known[key] = weakref.ref(links, lambda _: _known.pop(key, None)), links._version, found
    return found


def only_first(links: Tensor, lanes: int) -> bool:
    """Whether all links but the first are one, so that there is nothing to scale inside."""
    if links.dim() == 1:
        spans = coded_windows(links, lanes, links.device)  # known, mostly
        return len(spans) == 1 and spans[0].weights is None
    rest = links.numpy()[1:]
    if rest.size and rest.item(-1) != 1.0:  # mostly
        return False
    return bool((rest == 1.0).all())


def _window(
    links: NDArray[np.float64], first: int, last: int, product: NDArray[np.float64] | None, device: torch.device
) -> Window:
    edge = _edge(links[first])
    if product is None:
        return Window(first, last, edge, None, None)
    return Window(first, last, edge, *_scales(product, device))


def _edge(links: Any) -> float | NDArray[np.float64]:
    """One step's links, as a number where that is enough."""
    return float(np.max(links)) if links.size == 1 or not links.any() else links.copy()


def _scales(product: NDArray[np.float64], device: torch.device) -> tuple[Tensor, Tensor]:
    """w, and w of the next step, each (n, 1 or B, 1)."""
    steps = len(product)
    rows = np.empty((steps + 1, product.size // steps, 1), dtype=np.float32)
    rows[:steps] = product.reshape(steps, -1, 1)
    rows[steps] = 1.0
    if device.type == "cpu":
        return torch.from_numpy(rows[:steps]), torch.from_numpy(rows[1:])  # cheaper than views of torch's
    scales = torch.from_numpy(rows).to(device)
    return scales[:steps], scales[1:]


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


def _coded(links: NDArray[np.float64], device: torch.device) -> list[Window]:
    """The coded windows of links (T, B): each as long as the weights of its most restless lane allow."""
    cut = links == 0.0
    if not np.logical_or.reduce(cut[1:], None):
        first, last, product = next(_spans(links))
        if last == len(links):
            return [_window(links, first, last, product, device)]
    factors = np.where(cut, CUT, links)
    found = []
    first = 0
    with np.errstate(over="ignore"):
        while first < len(links):
            factors[first] = START
            product = np.multiply.accumulate(factors[first:])
            if np.minimum.reduce(product, None) < LOW or np.maximum.reduce(product, None) > HIGH:
                outside = np.logical_or.reduce((product < LOW) | (product > HIGH), 1)
                product = product[: int(outside.argmax())]
            last = first + len(product)
            steps, lanes = cut[first + 1 : last].nonzero()
            before = (steps, lanes) if len(steps) else None
            found.append(Window(first, last, links[first], *_scales(product, device), START, before))
            first = last
    return found
