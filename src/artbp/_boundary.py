"""Where the graph of one window ends, and what arrives there."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

Edge = tuple[Any, int]  # a node of the graph, and which of its outputs
_ACCUMULATE: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


class Boundary:
    """The edges over which graphs of windows take what was made outside of them, and the sums of their gradients."""

    def __init__(self, known: list[Tensor]) -> None:
        self.sums: dict[Edge, Tensor] = {}
        self.owned: set[Edge] = set()  # sums in memory of our own
        self.silenced: list[tuple[Tensor, dict[int, Any], Tensor | None]] = []
        # Tensors with a history, in sight of the step: they are outside whatever their node says of itself.
        self.known = {_edge(tensor): tensor for tensor in known if tensor.grad_fn is not None}
        self.older: set[Any] = set()  # nodes found to be outside for good: a graph does not grow at its roots

    def __enter__(self) -> None:
        """From here on the hooks of the boundary's tensors wait; they are called once, by :meth:`hand_on`."""

    def __exit__(self, *_: object) -> None:
        for tensor, hooks, gradient in self.silenced:
            if hooks and tensor._backward_hooks is not None:
                tensor._backward_hooks.update(hooks)
            if not tensor.is_leaf and tensor.retains_grad:
                tensor.grad = gradient

    def differentiate(
        self, roots: list[tuple[Tensor, Tensor | None]], leaves: list[Tensor], newest: int
    ) -> list[Tensor | None]:
        """The gradients of `leaves`; those of the boundary are added to the sums."""
        if not roots:
            return [None] * len(leaves)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        edges = self.edges([root for root, _ in roots], newest, {id(leaf) for leaf in wanted})
        sought: list[Any] = [*wanted, *(GradientEdge(*edge) for edge in edges)]
        # Where one edge lies behind another (a weight that the step uses, and its transpose made outside), the engine
        # would go on through the outer graph, in every window: nothing passes, and nothing there is freed.
        stops = [edge[0].register_prehook(_nothing) for edge in edges if _leaf(edge[0]) is None]
        try:
            gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
                [root for root, _ in roots],
                sought,
                [gradient for _, gradient in roots],
                allow_unused=True,
                retain_graph=bool(stops),
            )
        finally:
            for stop in stops:
                stop.remove()
        for edge, gradient in zip(edges, gradients[len(wanted) :], strict=True):
            if gradient is None:
                continue
            if edge in self.owned:
                self.sums[edge] += gradient
            elif edge in self.sums:
                self.sums[edge] = self.sums[edge] + gradient  # the first one may be memory that autograd shares
                self.owned.add(edge)
            else:
                self.sums[edge] = gradient
        found = iter(gradients)
        return [next(found) if leaf.requires_grad else None for leaf in leaves]

    def edges(self, roots: list[Tensor], newest: int, own: set[int]) -> list[Edge]:
        """Where the graph behind `roots` ends: at leaves, and at nodes that are older than the window."""
        edges: list[Edge] = []
        stack = [_edge(root) for root in roots]
        seen: set[Edge] = set()
        entered: set[Any] = set()
        while stack:
            edge = stack.pop()
            if edge in seen:
                continue
            seen.add(edge)
            node = edge[0]
            leaf = _leaf(node)
            if leaf is not None:
                if id(leaf) not in own:
                    self.silence(leaf)
                    edges.append(edge)
            elif edge in self.known:
                self.silence(self.known[edge])
                edges.append(edge)
            elif _number(node) <= newest and self.is_older(node, own):
                edges.append(edge)
            elif node not in entered:
                entered.add(node)
                stack += [after for after in node.next_functions if after[0] is not None]
        return edges

    def is_older(self, node: Any, own: set[int]) -> bool:
        """Whether nothing of the window's own lies behind a node: other threads count their nodes from elsewhere."""
        if node in self.older:
            return True
        seen, stack = {node}, [node]
        while stack:
            leaf = _leaf(stack[-1])
            if leaf is not None and id(leaf) in own:
                return False
            for after, _ in stack.pop().next_functions:
                if after is not None and after not in seen and after not in self.older:
                    seen.add(after)
                    stack.append(after)
        self.older |= seen
        return True

    def silence(self, tensor: Tensor) -> None:
        """autograd.grad would call a tensor's hooks, and fill the .grad that it retains, in every window."""
        hooks = tensor._backward_hooks
        retains = not tensor.is_leaf and tensor.retains_grad
        if (hooks or retains) and not any(tensor is silenced for silenced, _, _ in self.silenced):
            self.silenced.append((tensor, dict(hooks or {}), tensor.grad if retains else None))
            if hooks:
                hooks.clear()

    def hand_on(self, also: list[tuple[Tensor, Tensor]]) -> bool:
        """One backward pass from the boundary on, hooks and all; `also` are more tensors with their gradients."""
        roots: list[Any] = [_leaf(edge[0]) for edge in self.sums]
        roots = [GradientEdge(*edge) if leaf is None else leaf for leaf, edge in zip(roots, self.sums, strict=True)]
        roots += [leaf for leaf, _ in also]
        if roots:
            torch.autograd.backward(roots, [*self.sums.values(), *(gradient for _, gradient in also)])
        return bool(roots)


def _nothing(arriving: tuple[Tensor | None, ...]) -> tuple[None, ...]:
    return tuple(None for _ in arriving)


def _edge(tensor: Tensor) -> Edge:
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _leaf(node: Any) -> Tensor | None:
    """The tensor whose .grad a node adds to, if that is what it does."""
    leaf: Tensor | None = node.variable if type(node) is _ACCUMULATE else None
    return leaf


def _number(node: Any) -> float:
    """Autograd counts its nodes as they are made. Functions in Python do not tell: taken for the window's own."""
    number = getattr(node, "_sequence_nr", None)
    return math.inf if number is None else number()


def newest_node() -> int:
    """The number of the graph's newest node."""
    with torch.enable_grad():
        node: Any = torch.zeros((), requires_grad=True).view(()).grad_fn
    return int(node._sequence_nr())
