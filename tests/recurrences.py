"""Random problems for recurrences with links, their evaluation by any path, and the distance from the specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from artbp import link
from artbp.ops import naive
from artbp.ops._types import GATES, Path, Tensors, Weights

KINDS = ("none", "shared", "lanes", "uncompensated", "compensated lanes")


@dataclass(frozen=True)
class Problem:
    """One layer with links, all tensors in float64 but representable in the dtype it was drawn for."""

    mode: str
    x: Tensor  # (T, B, I)
    hx: tuple[Tensor, ...]
    weights: tuple[Any, ...]
    links: Tensor | None
    adjoints: tuple[Tensor, ...]  # of y and the final states

    @property
    def inputs(self) -> list[Tensor]:
        return [tensor for tensor in (self.x, *self.hx, *self.weights) if tensor is not None]


def draw_links(kind: str, T: int, B: int, generator: torch.Generator) -> Tensor | None:
    """Links of one of KINDS; the first edge is cut, scaled or left alone by chance."""
    shape = (T, B) if "lanes" in kind else (T,)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    cut = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.15
    if kind == "none":
        return None
    if kind == "uncompensated":
        return (~cut).double()
    links = 0.8 + 0.5 * uniform
    return links if kind == "compensated lanes" else links.masked_fill(cut, 0.0)


def draw(
    mode: str,
    T: int,
    B: int,
    I: int,
    H: int,
    *,
    links: str | Tensor | None = "shared",
    bias: bool = True,
    projection: int = 0,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Problem:
    generator = torch.Generator().manual_seed(seed)

    def sample(*shape: int, scale: float | None = None) -> Tensor:
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        if scale is not None:  # torch.nn's initial weights
            value = (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * scale
        return value.to(dtype).double()

    rows, P, scale = GATES[mode] * H, projection or H, H**-0.5
    sizes = [P, H] if mode == "LSTM" else [H]
    weights: list[Any] = [sample(rows, I, scale=scale), sample(rows, P, scale=scale)]
    weights += [sample(rows, scale=scale), sample(rows, scale=scale)] if bias else [None, None]
    if projection:
        weights.append(sample(P, H, scale=scale))
    return Problem(
        mode,
        sample(T, B, I),
        tuple(sample(B, size) for size in sizes),
        tuple(weights),
        draw_links(links, T, B, generator) if isinstance(links, str) else links,
        (sample(T, B, P), *[sample(B, size) for size in sizes]),
    )


def evaluate(path: Path, problem: Problem, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Output, final states, and the gradients of x, hx and the weights."""

    def leaf(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.detach().to(dtype).requires_grad_()

    x, hx, weights = leaf(problem.x), tuple(map(leaf, problem.hx)), tuple(map(leaf, problem.weights))
    y, final = path(problem.mode, x, hx, weights, problem.links)
    leaves = [tensor for tensor in (x, *hx, *weights) if tensor is not None]
    adjoints = [adjoint.to(dtype) for adjoint in problem.adjoints]
    gradients = torch.autograd.grad((y, *final), leaves, adjoints, materialize_grads=True)
    return [*[tensor.detach() for tensor in (y, *final)], *gradients]


def specified(problem: Problem) -> list[Tensor]:
    """What the specification says, in float64."""
    return evaluate(naive.recurrence, problem)


def beside(y: Tensor) -> Path:
    """The specification, its rectifiers on the side of the kink on which they are in y.

    Rounding may push a unit across, and on the other side the derivative is another one.
    """

    def recurrence(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
        if mode != "RNN_RELU":
            return naive.recurrence(mode, x, hx, weights, links)
        (h,), (w_ih, w_hh, b_ih, b_hh) = hx, weights
        outputs = []
        for t in range(x.shape[0]):
            h = h if links is None else link(h, links[t])
            h = (linear(x[t], w_ih, b_ih) + linear(h, w_hh, b_hh)) * (y[t] > 0)
            outputs.append(h)
        return torch.stack(outputs), (h,)

    return recurrence


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """The worst relative error in norm; where zero is expected, the norm itself; infinite where something is nan."""
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        scale = b.norm().item() or 1.0
        error = (a.double() - b).norm().item() / scale
        worst = max(worst, error if error == error else float("inf"))
    return worst
