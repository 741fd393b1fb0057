"""backprop: the exact gradient under given links, in the memory of one window."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from artbp import _tree
from artbp._law import positive_integer
from artbp._link import link
from artbp._step import Cell, Step, count_steps, loss_and_state, no_gradient, run, wide
from artbp._windows import Windows

State = TypeVar("State")


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
    updates (batch norm's statistics) are updated once: those of every module that `step` is, is bound to, closes over,
    holds or names. Generators of the step's own, and what else it changes outside of itself, it must replay by itself.
    The first run is under no_grad: a step that takes gradients within itself does so under `torch.enable_grad()`.

    Example:
        >>> theta = torch.tensor(1.0, requires_grad=True)
        >>> step = unroll(lambda x, s: (s + theta * x, s + theta * x))
        >>> loss, state = backprop(step, torch.ones(3), torch.zeros(()), torch.tensor([1.0, 0.0, 1.25]), window=2)
        >>> loss, state, theta.grad
        (tensor(6.), tensor(3.), tensor(4.2500))
    """
    T = count_steps(inputs, links)
    if torch.is_inference_mode_enabled():
        raise no_gradient()
    if window is not None:
        window = positive_integer(window, "backprop(window)")
    if window is None or window >= T:
        with torch.enable_grad():
            loss, state = run(step, inputs, state, links)
            if not loss.requires_grad:
                raise no_gradient()
            torch.autograd.backward(loss * scale)
        return loss.detach(), _tree.detach(state)
    return Windows(step, inputs, state, links, [*range(window, T, window), T]).backprop(scale)


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
        T = count_steps(inputs, links)
        losses = []
        for t, factor in enumerate(_factors(links, T, state)):
            row = _tree.replace(inputs, [leaf[t] for leaf in _tree.tensors(inputs)])
            loss, state = loss_and_state(cell(row, link(state, factor, dim)), "cell")
            losses.append(wide(loss))
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
