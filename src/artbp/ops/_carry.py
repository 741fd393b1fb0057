"""What links do to an adjoint on its way back from step t to step t-1, inside a hand-written loop."""

from __future__ import annotations

import torch
from torch import Tensor

from artbp.ops._product import onednn_is_faster, product


class Carry:
    """The factors of one layer, in the form in which a step costs least.

    Shared links are plain numbers: `addmm` takes them as its alpha, so they cost no pass, and a zero leaves the product
    out. Per-lane links are columns; a row with zeros in it also clears those lanes, because 0 · inf is not 0.

    Args:
        links: (T,) or (T, B), or None.
        like: a tensor of the dtype and device of the adjoints.
    """

    def __init__(self, links: Tensor | None, like: Tensor) -> None:
        self.shared: list[float] | None = None
        self._columns: tuple[Tensor, ...] = ()
        self._cuts: list[Tensor | None] = []
        self._factors: Tensor | None = None  # (T, 1, 1) or (T, B, 1)
        if links is None:
            return
        if links.dim() == 1:
            self.shared = links.tolist()
            self._factors = links.to(like).view(-1, 1, 1)
            return
        self._factors = links.to(like).unsqueeze(2)
        self._columns = self._factors.unbind(0)
        zero = links == 0
        anywhere = zero.any(dim=1).tolist()
        masks = zero.to(like.device).unsqueeze(2)
        self._cuts = [masks[t] if cut else None for t, cut in enumerate(anywhere)]

    def whole(self, t: int) -> bool:
        """Whether the edge into step t is cut for every lane at once."""
        return self.shared is not None and self.shared[t] == 0.0

    def folded(self, factors: Tensor) -> Tensor:
        """links[t] · factors[t] for all t: the link inside a per-step factor (T, B, H) that is needed anyway."""
        return factors if self._factors is None else factors * self._factors

    def clear(self, t: int, carried: Tensor) -> Tensor:
        """`carried`, exactly zero in the lanes that are cut at t."""
        if self._cuts:
            mask = self._cuts[t]
            if mask is not None:
                carried.masked_fill_(mask, 0.0)
        return carried

    def product(self, t: int, base: Tensor, adjoint: Tensor, weight: Tensor) -> Tensor:
        """base + links[t] · adjoint @ weight, a new tensor. Not for a t that is cut as a whole."""
        if self._columns:
            return self.clear(t, product(adjoint, weight).mul_(self._columns[t])).add_(base)
        factor = 1.0 if self.shared is None else self.shared[t]
        if onednn_is_faster(adjoint, weight):
            return torch.add(base, product(adjoint, weight), alpha=factor)
        return torch.addmm(base, adjoint, weight, alpha=factor)

    def scaled(self, t: int, carried: Tensor) -> Tensor:
        """links[t] · carried, a new tensor."""
        if self.shared is not None:
            return carried * self.shared[t] if self.shared[t] != 0.0 else torch.zeros_like(carried)
        if not self._columns:
            return carried
        return self.clear(t, carried * self._columns[t])
