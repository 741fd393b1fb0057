"""The link: the identity forward, a factor on the gradient backward."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from artbp import _tree

State = TypeVar("State")
Factor = float | Tensor

_NUMBER = (float, int, numbers.Real)
_LOW_PRECISION = (torch.bfloat16, torch.float16)
_DOUBLE = (torch.float64, torch.complex128)
_backward_calls = itertools.count(1)  # `next` on it is atomic: backward passes run in threads of their own


def link(state: State, factor: Factor, dim: int = 0) -> State:
    r"""The factor on the gradient that crosses a step boundary; forward, the identity.

    With :math:`y = \mathrm{link}(s, \lambda)`,

    .. math:: y = s, \qquad \frac{\partial L}{\partial s} = \lambda \, \frac{\partial L}{\partial y} .

    Put it on the edge that brings :math:`s_{t-1}` into step t, and only there: the loss at t-1 must read the state
    *before* the link, so that the recurrent path is scaled and :math:`\partial \ell_{t-1}/\partial s` is not. All one
    is backpropagation through time; 0 every L steps is truncated; 0 with probability c and 1/(1-c) otherwise has mean
    one, and leaves the expected gradient what it was (Tallec & Ollivier 2017; :class:`artbp.Truncation` draws such
    factors).

    Args:
        state: a tensor, or any nesting of tuples, lists, dicts, namedtuples and dataclasses of them. Leaves that are no
            floating-point or complex tensors pass through untouched.
        factor: a number for all, or a tensor (B,) with one factor a lane along `dim`; on the CPU in float64, as
            `Truncation` draws them, for a state on any device and of any dtype. A number 0 detaches, so that the graph
            behind it is freed; a zero in a tensor gives an exactly zero gradient, even when inf or nan arrives.
        dim: the dimension of the lanes in every tensor of the state: 1 for the states of torch.nn's layers.

    Cost: no copy forward; backward one multiplication a tensor. A bfloat16 or float16 gradient is multiplied in float32
    and rounded *stochastically*, for rounding to nearest would undo every factor below 1 + 2^-9 (2^-12) in silence. The
    rounding is unbiased. It draws on no generator of torch's, but on a count of its own calls, so that two runs in one
    process differ by rounding (compiled, it uses the graph's generator).

    Works under double backward, forward mode, `torch.func`, autocast and `torch.compile`.

    Example:
        >>> s = torch.ones(3, requires_grad=True)
        >>> link(s, 1.25).sum().backward()
        >>> s.grad
        tensor([1.2500, 1.2500, 1.2500])
    """
    factor = _checked(factor)
    if not isinstance(factor, Tensor):
        if factor == 1.0:
            return state
        if factor == 0.0:
            return _tree.detach(state)
    leaves = _tree.tensors(state)
    flowing = [leaf for leaf in leaves if leaf.is_floating_point() or leaf.is_complex()]
    if not flowing:
        return state
    if isinstance(factor, Tensor) and factor.dim():
        for leaf in flowing:
            _check_lanes(leaf, factor, dim)
    # One Function for the whole state, not one a tensor: the Python call is what a link costs.
    linked: Iterable[Tensor] = _apply(factor, dim, *flowing)
    if len(flowing) < len(leaves):
        passed = iter(linked)
        linked = [next(passed) if leaf.is_floating_point() or leaf.is_complex() else leaf for leaf in leaves]
    return _tree.replace(state, linked)


def _checked(factor: Any) -> Any:
    if isinstance(factor, Tensor):
        if factor.requires_grad:
            raise ValueError(
                "link's factor requires grad: the estimator's weights are constants, and a gradient through them would "
                "not be the loss's. Pass factor.detach()."
            )
        if factor.is_complex():
            raise ValueError(
                f"link's factor is a {factor.dtype} tensor: a weight is a real number. Pass factors in float64."
            )
        if factor.dim() > 1:
            raise ValueError(
                f"link's factor has shape {tuple(factor.shape)}: one boundary takes a number, or one factor a lane "
                "(B,). Pass one step's row, links[t]."
            )
        if factor.dim() == 1 or not factor.is_cpu or _is_traced():
            return factor  # reading its value would synchronise, or break the graph
        factor = factor.item()
    if not isinstance(factor, _NUMBER):
        raise TypeError(
            f"link's factor is {factor!r}, a {type(factor).__name__}: it multiplies the gradient, so it must be a "
            "number or a tensor with one number a lane (B,). Pass a float such as 1.25, or links[t]."
        )
    if not 0.0 <= float(factor) < math.inf:
        raise ValueError(
            f"link's factor is {factor}: it must be finite and at least 0 (a cut is 0, and 1/(1-c) needs c < 1). "
            "Draw links with artbp.Truncation, or pass 1.0 to leave the gradient alone."
        )
    return factor


def _is_traced() -> bool:
    """Whether values are not to be looked at: in a compiler, a transform, or a mode that sees every operation."""
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return transformed or torch._C._len_torch_dispatch_stack() > 0


def _check_lanes(leaf: Tensor, factor: Tensor, dim: int) -> None:
    if not -leaf.dim() <= dim < leaf.dim() or leaf.shape[dim] != factor.shape[0]:
        raise ValueError(
            f"link got {factor.shape[0]} factors along dim {dim}, but a tensor of the state has shape "
            f"{tuple(leaf.shape)}. Pass one factor a lane, and as `dim` the dimension that counts lanes (1 for "
            "torch.nn's states, 0 for those of its cells)."
        )


class _Link(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, factor: Factor, dim: int, *leaves: Tensor) -> tuple[Tensor, ...]:
        _keep(ctx, factor, dim)
        # Views: no copy, and torch refuses an in-place operation on them, which would undo the link or rewrite a leaf.
        return tuple([leaf.view_as(leaf) for leaf in leaves])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *_scaled(ctx, gradients)


_apply_eagerly: Any = super(torch.autograd.Function, _Link).apply  # where `_Link.apply` ends, some microseconds later


class _LinkTransformed(torch.autograd.Function):
    """The link under forward mode and torch.func, which ask for copies and a context set up apart.

    A class of its own: torch.compile does not trace `jvp`, and binding arguments for `setup_context` costs more than
    all else that a link does.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(factor: Factor, dim: int, *leaves: Tensor) -> tuple[Tensor, ...]:
        return tuple([leaf.clone() for leaf in leaves])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _keep(ctx, *inputs[:2])

    backward = _Link.backward

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(_scaled(ctx, tangents[2:]))


def _keep(ctx: Any, factor: Factor, dim: int) -> None:
    ctx.dim = dim
    ctx.factor = None if isinstance(factor, Tensor) else factor
    if isinstance(factor, Tensor):
        ctx.save_for_backward(factor)
        ctx.save_for_forward(factor)
    ctx.set_materialize_grads(False)


def _scaled(ctx: Any, gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    if ctx.factor is not None:
        return [None if gradient is None else _scale(gradient, ctx.factor, None) for gradient in gradients]
    scaled: list[Tensor | None] = []
    shaped: dict[Any, tuple[Tensor, Tensor | None]] = {}  # the tensors of a state are mostly alike
    for gradient in gradients:
        if gradient is None:
            scaled.append(None)
            continue
        kind = gradient.dtype, gradient.dim(), gradient.device
        if kind not in shaped:
            factor = _broadcast(ctx.saved_tensors[0], gradient, ctx.dim)
            shaped[kind] = factor, _cut(factor)
        scaled.append(_scale(gradient, *shaped[kind]))
    return scaled


def _apply(factor: Factor, dim: int, *leaves: Tensor) -> tuple[Tensor, ...]:
    function: Any = _Link.apply
    if torch.compiler.is_compiling():
        if not (torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)):
            return leaves  # there torch up to 2.11 miscounts the arguments of a Function
    elif torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        function = _LinkTransformed.apply
    elif torch.is_grad_enabled():
        function = _apply_eagerly
    else:
        return tuple([leaf.detach() for leaf in leaves])
    linked: tuple[Tensor, ...] = function(factor, dim, *leaves)
    return linked


def _scale(gradient: Tensor, factor: Factor, cut: Tensor | None) -> Tensor:
    """factor · gradient, exactly zero at the `cut`."""
    if gradient.dtype is torch.complex32:
        return torch.view_as_complex(_scale_low_precision(torch.view_as_real(gradient), factor))
    if gradient.dtype in _LOW_PRECISION:
        return _scale_low_precision(gradient, factor)
    product = gradient * factor
    if cut is None:
        return product
    return product.masked_fill(cut, 0) if _is_traced() else product.masked_fill_(cut, 0)


def _cut(factor: Factor) -> Tensor | None:
    """Where the factor is zero; None where it is seen, without waiting for a device, that it is zero nowhere."""
    if not isinstance(factor, Tensor):
        return None
    seen = type(factor) is Tensor and factor.is_cpu and not _is_traced()
    return None if seen and bool(factor.all()) else factor == 0


def _broadcast(factor: Tensor, gradient: Tensor, dim: int) -> Tensor:
    real = torch.float64 if gradient.dtype in _DOUBLE else torch.float32
    factor = factor.to(real).to(gradient.device, non_blocking=True)
    if not factor.dim():
        return factor
    shape = [1] * gradient.dim()
    shape[dim] = -1
    if gradient.dtype is torch.complex32:
        shape.append(1)  # for its real and imaginary parts
    return factor.reshape(shape)


class _ScaleLowPrecision(torch.autograd.Function):
    """factor · gradient in float32, rounded once, stochastically; linear, hence its own derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, factor: Factor) -> Tensor:
        return _round_stochastically(_scale(gradient.float(), factor, _cut(factor)), gradient.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.factor = inputs[1]
        if isinstance(ctx.factor, Tensor):
            ctx.save_for_backward(ctx.factor)
            ctx.factor = None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        factor = ctx.saved_tensors[0] if ctx.factor is None else ctx.factor
        return _scale_low_precision(gradient, factor), None


def _scale_low_precision(gradient: Tensor, factor: Factor) -> Tensor:
    if torch.compiler.is_compiling():  # a Function within a backward is beyond torch.compile
        return _round_stochastically(_scale(gradient.float(), factor, _cut(factor)), gradient.dtype)
    function: Any = _ScaleLowPrecision
    scaled: Tensor = function.apply(gradient, factor)
    return scaled


def _round_stochastically(value: Tensor, dtype: torch.dtype) -> Tensor:
    """One of the two neighbours, such that the mean is exact: floor(value / ulp + u) · ulp, u uniform on [0, 1)."""
    digits, smallest = (8, -100) if dtype is torch.bfloat16 else (11, -24)
    exponent = torch.frexp(value.detach()).exponent - digits
    exponent = exponent.clamp(min=smallest)  # a coarser grid near zero, on which the mean is as exact
    ulp = torch.ldexp(torch.ones_like(value), exponent)
    rounded = torch.floor(value / ulp + _uniform(value)) * ulp
    return torch.where(value.isfinite(), rounded, value).to(dtype)


def _uniform(like: Tensor) -> Tensor:
    """Uniform on [0, 1), a hash of the position and of this call's number, so that no generator moves."""
    if torch.compiler.is_compiling():
        return torch.rand_like(like)  # a call's number would be frozen into the graph, and the same elements stay stuck
    key = (next(_backward_calls) * 0x9E3779B1 + 0x7F4A7C15) % 2**32 - 2**31
    bits = torch.arange(like.numel(), device=like.device, dtype=torch.int32) * -1640531527 + key
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * 0x7FEB352D  # lowbias32, an integer hash without visible bias
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * -2073254261
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    return ((bits >> 8) & 0xFFFFFF).to(like.dtype).reshape(like.shape) * 2.0**-24
