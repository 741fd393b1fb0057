"""backprop: the exact gradient under given links, in the memory of one window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from artbp import _tree
from artbp._law import positive_integer
from artbp._link import link
from artbp._replay import Replay

State = TypeVar("State")
Step = Callable[[Any, Any, Tensor | None], tuple[Tensor, Any]]
Cell = Callable[[Any, Any], tuple[Tensor, Any]]


def backprop(
    step: Step,
    inputs: Any,
    state: State,
    links: Tensor | None = None,
    *,
    window: int | None = None,
    scale: float | Tensor = 1.0,
) -> tuple[Tensor, State]:
    r"""The gradient of a segment's loss under its links, added to `.grad`; returns (loss, state), both detached.

    With links :math:`\lambda_t` the adjoint runs backward as

    .. math:: \tilde\delta_t = \lambda_{t+1}\, \tilde\delta_{t+1}
              \frac{\partial F}{\partial s}(x_{t+1}, s_t, \theta) + \frac{\partial \ell_t}{\partial s},
              \qquad g = \text{scale} \cdot \sum_t \tilde\delta_t \frac{\partial F}{\partial\theta}(x_t, s_{t-1},
              \theta) .

    All of it is exact for the links it is given; what it is an unbiased estimate of is the links' matter
    (:class:`artbp.Truncation`).

    Without `window` the whole segment is one graph. With it, memory is that of one window plus the state at every
    `window`-th step, and the gradient is the same: the windows but the last go forward once without saving, then all
    are taken from last to first: the window is run again with its loss, and backpropagated from the gradient of the
    state that leaves it. The last window is not run twice. Time: at most one more forward pass.

    Args:
        step: `step(inputs, state, links) -> (loss, state)`, the loss summed over the steps it was given, a scalar.
            :func:`unroll` makes one from a function of a single time step; any layer of :mod:`artbp.nn` takes links.
        inputs: tensors (T, …) in any tree, time first; or None, where only the links say how many steps there are.
        state: any tree. None is possible where the step makes its own first state.
        links: (T,) or (T, B), or None for all ones. `links[0]` is on the edge from the given state.
        window: how many steps to hold in memory at once.
        scale: what the loss is multiplied by before it is differentiated: 1/(mean · lanes), the loss scaler's factor.

    With windows too, gradients arrive once: parameters' hooks fire once, DistributedDataParallel reduces once, and
    inputs and a state that require grad (an encoder in front, a learned first state) get theirs in the same single
    backward pass. A window that is run again sees the random numbers of its first run, and buffers that a forward
    updates (batch norm's statistics) are updated once: those of every module that `step` is, is bound to, closes over
    or names. Generators of the step's own, and state outside of modules' buffers, it must replay by itself.
    """
    T = _count_steps(inputs, links)
    if window is not None:
        window = positive_integer(window, "backprop(window)")
    if window is None or window >= T:
        with torch.enable_grad():
            loss, state = _run(step, inputs, state, links)
            if not loss.requires_grad:
                raise _no_gradient()
            torch.autograd.backward(loss * scale)
        return loss.detach(), _tree.detach(state)
    return _Windows(step, inputs, state, links, [*range(window, T, window), T]).backprop(scale)


def unroll(cell: Cell, *, dim: int = 0) -> Step:
    """Lifts a function of one time step, `cell(input, state) -> (loss, state)`, to the step that estimators take.

    The state passes through :func:`artbp.link` on its way into every step; losses are summed.

    Args:
        cell: one time step. Its input is row t of the inputs, whatever their tree.
        dim: the dimension of the lanes in the state's tensors, for links (T, B).

    Example:
        >>> def cell(x, s):
        ...     s = 0.5 * s + x
        ...     return s, s
        >>> x = torch.ones(3, requires_grad=True)
        >>> _ = backprop(unroll(cell), x, torch.zeros(()), torch.tensor([1.0, 0.0, 1.0]))
        >>> x.grad
        tensor([1.0000, 1.5000, 1.0000])
    """

    def step(inputs: Any, state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
        T = _count_steps(inputs, links)
        losses = []
        for t, factor in enumerate(_factors(links, T, state)):
            row = _tree.replace(inputs, [leaf[t] for leaf in _tree.tensors(inputs)])
            loss, state = cell(row, link(state, factor, dim))
            losses.append(loss)
        return sum(losses[1:], losses[0]), state

    return step


def _factors(links: Tensor | None, T: int, state: Any) -> list[Any]:
    if links is None:
        return [1.0] * T
    if links.dim() == 1:
        return list(links.unbind()) if torch.compiler.is_compiling() else links.tolist()
    leaves = _tree.tensors(state)
    if leaves:  # one transfer for the whole chunk, not one a step
        links = links.to(leaves[0].device, non_blocking=True)
    return list(links.unbind())


def _count_steps(inputs: Any, links: Tensor | None) -> int:
    T = _tree.length(inputs)
    if T is None:
        if links is None:
            raise ValueError(
                "neither inputs nor links say how many steps there are. Pass inputs with time as dimension 0, or links "
                "(T,)."
            )
        T = links.shape[0]
    if links is not None and (links.dim() not in (1, 2) or links.shape[0] != T):
        raise ValueError(
            f"links have shape {tuple(links.shape)} for inputs of {T} steps: there is one link on the edge into each "
            f"step. Pass links of shape ({T},), or ({T}, B) with one column a lane."
        )
    if T == 0:
        raise ValueError(
            "inputs hold no steps (their dimension 0 is empty), so there is no loss. Stop at a stream's end."
        )
    return T


def _run(step: Step, inputs: Any, state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
    result: Any = step(inputs, state, links)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"the step returned {_tree.structure(result)}: it must return (loss, state), the loss summed over its "
            "steps. A function of a single time step becomes such a step through artbp.unroll(cell)."
        )
    loss, after = result
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        what = f"of shape {tuple(loss.shape)} and {loss.dtype}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(
            f"the step's loss is {what}: a gradient needs a real scalar tensor. Sum over time and lanes (sum, not mean:"
            " a mean over a segment's own random length is biased)."
        )
    return loss, after


def _no_gradient() -> RuntimeError:
    return RuntimeError(
        "the loss does not depend on anything that requires grad, so there is nothing to differentiate. Check that "
        "parameters require grad and that the step does not run under no_grad or detach its result."
    )


class _Windows:
    """One call of backprop with windows: a pass forward without saving, then the windows from last to first.

    What a window's graph takes from outside, its *boundary* (parameters, and whatever else requires grad), gets its
    gradients summed here, window by window, and handed on once, in a single backward pass over all of it at the end.
    """

    def __init__(self, step: Step, inputs: Any, state: Any, links: Tensor | None, ends: list[int]) -> None:
        self.step, self.inputs, self.links = step, inputs, links
        self.starts, self.ends = [0, *ends[:-1]], ends
        self.states = [state]  # before each window
        self.boundary = _Boundary()
        self.input_gradients = [
            torch.zeros_like(leaf) if leaf.requires_grad else None for leaf in _tree.tensors(inputs)
        ]

    def backprop(self, scale: float | Tensor) -> tuple[Tensor, Any]:
        last = len(self.ends) - 1
        replay = Replay(self.step, [*_tree.tensors(self.inputs), *_tree.tensors(self.states[0])])
        with torch.no_grad():
            for k in range(last):
                replay.remember()
                _, after = _run(self.step, *self.window(k))
                self.states.append(self.checked(k, after))
        with self.boundary:
            loss, final, gradients = self.backward(last, [], scale)
            losses, final = [loss], self.checked(last, final)
            with replay.replaying():
                for k in reversed(range(last)):
                    replay.rewind(k)
                    loss, _, gradients = self.backward(k, gradients, scale)
                    losses.append(loss)
        self.hand_on(gradients)
        return torch.stack(losses[::-1]).sum(0), final

    def window(self, k: int) -> tuple[Any, Any, Tensor | None]:
        first, end = self.starts[k], self.ends[k]
        return (
            _tree.window(self.inputs, first, end),
            self.states[k],
            None if self.links is None else self.links[first:end],
        )

    def checked(self, k: int, after: Any) -> Any:
        before = self.states[k]
        if before is not None and _tree.structure(before) != _tree.structure(after):
            raise ValueError(
                f"the state's tree changed in window {k}, from {_tree.structure(before)} to {_tree.structure(after)}: "
                "its gradient cannot be carried from one window to the one before. Return the state in the shape it "
                "came in."
            )
        return _tree.detach(after)

    def backward(
        self, k: int, arriving: list[Tensor | None], scale: float | Tensor
    ) -> tuple[Tensor, Any, list[Tensor | None]]:
        """Runs window k with its graph; returns its loss, its state, and the gradients of the state that came in."""
        inputs, state, links = self.window(k)
        # What comes in stands for itself: its history is the window's before, or the caller's.
        taken = [leaf.detach().requires_grad_(leaf.requires_grad) for leaf in _tree.tensors(inputs)]
        came = [
            leaf.detach().requires_grad_(
                leaf.requires_grad if k == 0 else leaf.is_floating_point() or leaf.is_complex()
            )
            for leaf in _tree.tensors(state)
        ]
        with torch.enable_grad():
            newest = _newest_node()
            loss, after = _run(self.step, _tree.replace(inputs, taken), _tree.replace(state, came), links)
            roots: list[tuple[Tensor, Tensor | None]] = [(loss * scale, None)] if loss.requires_grad else []
        left = _tree.tensors(after) if arriving else []
        for leaf, gradient in zip(left, arriving, strict=True):
            if gradient is not None and leaf.requires_grad:
                roots.append((leaf, gradient))
        gradients = self.boundary.differentiate(roots, [*taken, *came], newest)
        for whole, gradient in zip(self.input_gradients, gradients, strict=False):
            if whole is not None and gradient is not None:
                whole[self.starts[k] : self.ends[k]] = gradient
        return loss.detach(), after, gradients[len(taken) :]

    def hand_on(self, state_gradients: list[Tensor | None]) -> None:
        leaves = [*_tree.tensors(self.inputs), *_tree.tensors(self.states[0])]
        gradients = [*self.input_gradients, *state_gradients]
        self.boundary.hand_on(
            [(leaf, gradient) for leaf, gradient in zip(leaves, gradients, strict=True) if gradient is not None]
        )


class _Boundary:
    """The edges over which graphs of windows take what was made outside of them, and the sums of their gradients."""

    def __init__(self) -> None:
        self.sums: dict[tuple[Any, int], Tensor] = {}
        self.owned: set[tuple[Any, int]] = set()
        self.silenced: list[tuple[dict[int, Any], dict[int, Any]]] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for hooks, saved in self.silenced:
            hooks.update(saved)

    def differentiate(
        self, roots: list[tuple[Tensor, Tensor | None]], leaves: list[Tensor], newest: int
    ) -> list[Tensor | None]:
        """The gradients of `leaves`; those of the boundary are added to the sums."""
        if not roots:
            return [None] * len(leaves)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        edges = self.edges([root for root, _ in roots], newest, {id(leaf) for leaf in wanted})
        sought: list[Any] = [*wanted, *(GradientEdge(*edge) for edge in edges)]
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            [root for root, _ in roots], sought, [gradient for _, gradient in roots], allow_unused=True
        )
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

    def edges(self, roots: list[Tensor], newest: int, own: set[int]) -> list[tuple[Any, int]]:
        """Where the graph behind `roots` ends: at leaves, and at nodes that are older than the window."""
        edges: dict[tuple[Any, int], None] = {}
        starts = [torch.autograd.graph.get_gradient_edge(root) for root in roots]
        stack: list[tuple[Any, int]] = [(edge.node, edge.output_nr) for edge in starts]
        seen = set()
        while stack:
            edge = stack.pop()
            node = edge[0]
            variable = getattr(node, "variable", None)  # of an AccumulateGrad
            if variable is not None:
                if id(variable) not in own:
                    self.silence(variable)
                    edges[edge] = None
            elif node._sequence_nr() <= newest:
                edges[edge] = None
            elif node not in seen:
                seen.add(node)
                stack += [after for after in node.next_functions if after[0] is not None]
        return list(edges)

    def silence(self, variable: Tensor) -> None:
        """A parameter's hooks wait for the sum: autograd.grad would call them in every window."""
        hooks = variable._backward_hooks
        if hooks:
            self.silenced.append((hooks, dict(hooks)))
            hooks.clear()

    def hand_on(self, also: list[tuple[Tensor, Tensor]]) -> None:
        """One backward pass from the boundary on, hooks and all; `also` are more tensors with their gradients."""
        roots: list[Any] = [getattr(node, "variable", None) for node, _ in self.sums]
        roots = [GradientEdge(*edge) if root is None else root for root, edge in zip(roots, self.sums, strict=True)]
        roots += [leaf for leaf, _ in also]
        if not roots:
            raise _no_gradient()
        torch.autograd.backward(roots, [*self.sums.values(), *(gradient for _, gradient in also)])


def _newest_node() -> int:
    """The number of the graph's newest node: autograd counts them as they are made."""
    node: Any = torch.zeros((), requires_grad=True).view(()).grad_fn
    return int(node._sequence_nr())
