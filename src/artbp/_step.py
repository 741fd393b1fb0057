"""The protocol between a step and whoever differentiates it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from artbp import _tree

Step = Callable[[Any, Any, Tensor | None], tuple[Tensor, Any]]
Cell = Callable[[Any, Any], tuple[Tensor, Any]]


def count_steps(inputs: Any, links: Tensor | None) -> int:
    T = _tree.length(inputs)
    _check_kind(links)
    if T is None and inputs is not None:
        raise TypeError(
            f"inputs are {_tree.structure(inputs)}, in which there is no tensor to take time steps from. Pass tensors "
            "(T, …) in any tree (torch.from_numpy makes one), or None where only the links say how many steps there "
            "are."
        )
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
    _check_lanes(links)
    if T == 0:
        raise ValueError(
            "inputs hold no steps (their dimension 0 is empty), so there is no loss. Stop at a stream's end."
        )
    return T


def _check_kind(links: Any) -> None:
    if links is None:
        return
    if not isinstance(links, Tensor):
        raise TypeError(
            f"links are {links!r}, a {type(links).__name__}: they are a tensor with one number a step. Pass links (T,) "
            "or (T, B), such as torch.tensor([0.0, 1.25]) or what artbp.Truncation draws."
        )
    if links.is_complex() or links.requires_grad:
        what = f"a {links.dtype} tensor" if links.is_complex() else "a tensor that requires grad"
        raise ValueError(f"links are {what}: weights are real numbers, and constants. Pass links.detach(), in float64.")


def _check_lanes(links: Tensor | None) -> None:
    # One by one the numbers of (T,) are link's to check; lanes are looked at once, where that makes no device wait.
    if links is None or links.dim() != 2 or links.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if not bool(((links >= 0) & links.isfinite()).all()):
        raise ValueError(
            "links hold values below 0, or infinite, or nan: a cut is 0, and 1/(1-c) needs c < 1. Draw them with "
            "artbp.Truncation(law).links(T, lanes=...)."
        )


def run(step: Step, inputs: Any, state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
    return loss_and_state(step(inputs, state, links), "step")


def loss_and_state(result: Any, of: str) -> tuple[Tensor, Any]:
    """What a step or a cell returned, checked."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"the {of} returned {_tree.structure(result)}: it must return (loss, state), the loss summed over its "
            "steps. A function of a single time step becomes such a step through artbp.unroll(cell)."
        )
    loss, after = result
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        what = f"of shape {tuple(loss.shape)} and {loss.dtype}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(
            f"the {of}'s loss is {what}: a gradient needs a real scalar tensor. Sum over time and lanes (sum, not mean:"
            " a mean over a segment's own random length is biased)."
        )
    return loss, after


def wide(loss: Tensor) -> Tensor:
    """A loss in a precision that sums do not wear down; its gradient is what it was."""
    return loss.float() if loss.dtype in (torch.bfloat16, torch.float16) else loss


def no_gradient() -> RuntimeError:
    return RuntimeError(
        "the loss does not depend on anything that requires grad, so there is nothing to differentiate. Check that "
        "parameters require grad and that the step does not run under no_grad or inference_mode, or detach its result."
    )
