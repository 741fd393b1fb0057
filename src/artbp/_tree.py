"""State trees: tensors in any nesting of tuples, lists, dicts, namedtuples and dataclasses.

What is no tensor is left alone: it comes back as the very same object.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

Tree = TypeVar("Tree")
_SEQUENCE = (tuple, list)


def _children(tree: Any) -> Collection[Any] | None:
    """The parts of one node, or None where it is a leaf."""
    if isinstance(tree, _SEQUENCE):
        return tree
    if isinstance(tree, dict):
        return tree.values()
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    return None


def tensors(tree: Any) -> list[Tensor]:
    """Every tensor of the tree, in the order in which it stands there."""
    leaves: list[Tensor] = []
    _collect(tree, leaves)
    return leaves


def _collect(tree: Any, leaves: list[Tensor]) -> None:
    for part in (tree,) if isinstance(tree, Tensor) else _children(tree) or ():
        if isinstance(part, Tensor):  # not by a call of its own: every step of a recurrence passes here
            leaves.append(part)
        else:
            _collect(part, leaves)


def replace(tree: Tree, leaves: Iterable[Tensor], *, fresh: bool = False) -> Tree:
    """The same tree with its tensors replaced, in order.

    A part without tensors stays the same object; with `fresh` every container is a new one, safe from changes to the
    old.
    """
    replaced: Tree = _replace(tree, iter(leaves), fresh)
    return replaced


def _replace(tree: Any, leaves: Iterator[Tensor], fresh: bool) -> Any:
    if isinstance(tree, Tensor):
        return next(leaves)
    children = _children(tree)
    if children is None:
        return tree
    changed = [next(leaves) if isinstance(child, Tensor) else _replace(child, leaves, fresh) for child in children]
    # A tuple cannot be changed, so that one whose parts stay stays, however fresh; torch.Size is such a one.
    if (not fresh or isinstance(tree, tuple)) and all(map(operator.is_, changed, children)):
        return tree
    if isinstance(tree, tuple):
        return tree._make(changed) if hasattr(tree, "_make") else type(tree)(changed)
    if type(tree) is list:
        return changed
    if type(tree) is dict:
        return dict(zip(tree, changed, strict=True))
    # A copy keeps what a constructor may not take: a default factory, fields that are not init, a subclass's own state.
    twin = copy.copy(tree)
    if isinstance(tree, dict):
        twin.update(zip(tree, changed, strict=True))
    elif isinstance(tree, list):
        twin[:] = changed
    else:
        for field, value in zip(dataclasses.fields(tree), changed, strict=True):
            object.__setattr__(twin, field.name, value)  # frozen dataclasses too
    return twin


def transform(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The same tree with `function` applied to every tensor."""
    return replace(tree, [function(leaf) for leaf in tensors(tree)])


def structure(tree: Any) -> str:
    """The tree in words: equal for trees that differ only in their tensors' values, shapes and dtypes."""
    if isinstance(tree, Tensor):
        return "Tensor"
    children = _children(tree)
    if children is None:
        return type(tree).__name__
    parts = [structure(child) for child in children]
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(tree, parts, strict=True)) + "}"
    inside = ", ".join(parts)
    if type(tree) is tuple:
        return f"({inside},)" if len(parts) == 1 else f"({inside})"
    return f"[{inside}]" if type(tree) is list else f"{type(tree).__name__}({inside})"


def length(tree: Any) -> int | None:
    """The number of time steps: the common size of dimension 0 of all tensors; None where there are none."""
    leaves = tensors(tree)
    if not leaves:
        return None
    sizes = {leaf.shape[0] if leaf.dim() else None for leaf in leaves}
    if len(sizes) > 1 or None in sizes:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise ValueError(
            f"inputs hold tensors of shapes {shapes}: dimension 0 is time, and must be there and of one size in all of "
            "them. Put what does not change with time into the step (a closure, a module), not into its inputs."
        )
    return leaves[0].shape[0]


def window(tree: Tree, first: int, last: int) -> Tree:
    """The time steps first..last-1 of every tensor."""
    return transform(lambda leaf: leaf[first:last], tree)


def detach(state: Tree) -> Tree:
    """The same state without its history: every tensor detached, anything else left alone.

    Example:
        >>> h, c = detach((torch.ones(2, requires_grad=True) * 2, None))
        >>> h.requires_grad, c
        (False, None)
    """
    return transform(torch.Tensor.detach, state)
