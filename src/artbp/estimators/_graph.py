"""Derivatives of one step's graph, as the forward methods ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_CHUNK = 2**24  # numbers that a batch of rows of ∂F/∂θ may take


def leaves_of(roots: list[Tensor]) -> list[Tensor]:
    """The leaves that require grad in the graph behind `roots`, in the order of their use."""
    stack: list[Any] = [
        torch.autograd.graph.get_gradient_edge(root).node for root in reversed(roots) if root.requires_grad
    ]
    seen, leaves = set(), []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves.append(node.variable)
        stack += [after for after, _ in reversed(node.next_functions)]
    return leaves


@contextmanager
def silenced(leaves: list[Tensor]) -> Iterator[None]:
    """Hooks wait until gradients are handed on: torch.autograd.grad would call them at each of its passes."""
    waiting = [(leaf._backward_hooks, dict(leaf._backward_hooks)) for leaf in leaves if leaf._backward_hooks]
    for hooks, _ in waiting:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, saved in waiting:
            hooks.update(saved)


def pullback(outputs: Tensor, inputs: list[Tensor], weights: Tensor | None = None) -> list[Tensor]:
    """weights · ∂outputs/∂inputs, zeros where nothing arrives; the graph is kept."""
    if not outputs.requires_grad or not inputs:
        return [torch.zeros_like(leaf) for leaf in inputs]
    gradients: Any = torch.autograd.grad(outputs, inputs, weights, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(inputs, gradients, strict=True)
    ]


def rows(state: Tensor, inputs: list[Tensor]) -> Iterator[tuple[slice, list[Tensor]]]:
    """∂state/∂inputs, some rows at a time: their places, and for each input a tensor (rows, numel)."""
    n, width = state.numel(), sum(leaf.numel() for leaf in inputs)
    chunk = max(1, _CHUNK // max(width, 1))
    for first in range(0, n, chunk):
        places = slice(first, min(first + chunk, n))
        weights = torch.zeros(places.stop - first, n, dtype=state.dtype, device=state.device)
        weights[:, places].fill_diagonal_(1)
        yield places, [part.reshape(len(weights), -1) for part in _batched(state, inputs, weights)]


def _batched(state: Tensor, inputs: list[Tensor], weights: Tensor) -> list[Tensor]:
    if not state.requires_grad:
        return [leaf.new_zeros(len(weights), *leaf.shape) for leaf in inputs]
    try:
        found: Any = torch.autograd.grad(
            state, inputs, weights, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    except RuntimeError:  # an operation that cannot be vmapped: one row after another
        single = [pullback(state, inputs, weight) for weight in weights]
        return [torch.stack(parts) for parts in zip(*single, strict=True)]
    return [
        leaf.new_zeros(len(weights), *leaf.shape) if part is None else part
        for leaf, part in zip(inputs, found, strict=True)
    ]


def norm(parts: list[Tensor]) -> Tensor:
    """The Euclidean norm of all parts together."""
    whole: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
    return whole


def balance(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """ρ = √(right/left) and 1/ρ, which leave the product of two factors of those norms, and make the factors alike.

    Where one of the two is zero there is nothing to carry, and both are zero. (The papers add a small ε instead.)
    """
    there = (left > 0) & (right > 0)
    ratio = right.sqrt() / left.sqrt()
    return torch.where(there, ratio, 0.0), torch.where(there, 1 / ratio, 0.0)
