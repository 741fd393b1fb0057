"""What a layer with links refuses, and in which words: what was passed and why it cannot work, then what to do."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from artbp.ops._types import Tensors

SHORT = 1000  # steps up to which checked links are kept: with 512 of them at most some 12 MB with their weights


def links(given: Any, steps: int, lanes: int | None, lanes_first: bool) -> Tensor:
    """A float64 copy of the links, (T,) or (T, B), that no one writes to, so the backward sees what the forward saw.

    Args:
        given: what the caller passed.
        steps: T.
        lanes: B, or None where the input has no dimension for lanes.
        lanes_first: whether per-lane links come as (B, T).
    """
    if not isinstance(given, Tensor):
        raise TypeError(
            f"links is a {type(given).__name__}: a layer takes a tensor with one factor a step. "
            "Pass torch.as_tensor(links, dtype=torch.float64), or what artbp.Truncation draws."
        )
    if given.requires_grad:
        raise ValueError(
            "links require grad: they are the estimator's weights, and a gradient through them would not be the loss's."
            " Pass links.detach()."
        )
    if given.dtype not in (torch.float64, torch.float32):
        raise TypeError(
            f"links are {given.dtype}: narrower floats lose a compensation such as 1.0015, and integers cannot hold it."
            " Pass float64 or float32, whatever the dtype of the input."
        )
    if not given.is_cpu:
        raise ValueError(
            f"links are on {given.device}: their values choose the kernel, and reading them there would stop the device"
            " at every call. Keep them on the CPU, wherever the input is: links.cpu()."
        )
    if lanes == 1 and tuple(given.shape) == ((1, steps) if lanes_first else (steps, 1)):
        given = given.reshape(-1)  # the links of a single lane are shared by all
    if given.dim() == 1 and given.shape[0] == steps <= SHORT:
        return _sequence(given.numpy().tobytes(), given.dtype is torch.float32)
    _check_shape(given, steps, lanes, lanes_first)
    values = given.numpy()
    if values.ndim == 2 and lanes_first:
        values = values.T
    return _kept(_checked(values.astype(np.float64, order="C")))  # a copy


@lru_cache(maxsize=512)
def _sequence(data: bytes, single: bool) -> Tensor:
    """Links (T,) from their bytes. Segments of one length have the same links: those are checked, and kept, once."""
    return _kept(_checked(np.frombuffer(data, np.float32 if single else np.float64).astype(np.float64)))


def _kept(values: NDArray[np.float64]) -> Tensor:
    """A tensor that outlives inference mode: whoever asks first, a backward may be the next."""
    if not torch.is_inference_mode_enabled():
        return torch.from_numpy(values)
    with torch.inference_mode(False):
        return torch.from_numpy(values)


def _checked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = np.minimum.reduce(values, None, initial=1.0), np.maximum.reduce(values, None, initial=1.0)
    if not (low >= 0.0 and high < math.inf):  # written so that nan fails too
        raise ValueError(
            f"links hold values from {low} to {high}: a factor must be finite and at least 0 (a cut is 0, and 1/(1-c) "
            "needs c < 1). Draw them with artbp.Truncation, or use 1.0 where the gradient is to pass as it is."
        )
    return values


def _check_shape(given: Tensor, steps: int, lanes: int | None, lanes_first: bool) -> None:
    allowed: list[tuple[int, ...]] = [(steps,)]
    if lanes is not None:
        allowed.append((lanes, steps) if lanes_first else (steps, lanes))
    if tuple(given.shape) in allowed:
        return
    wanted = " or ".join(str(shape) for shape in allowed)
    layout = "(T,)" if lanes is None else f"(T,) or {'(B, T)' if lanes_first else '(T, B)'}"
    raise ValueError(
        f"links have shape {tuple(given.shape)}, but this input has {steps} steps"
        + ("" if lanes is None else f" of {lanes} lanes")
        + f": one factor for each step is needed, {layout}, here {wanted}. "
        "Take links for the very inputs you pass (`for inputs, links in cut.segments(stream)`), or links[:T] of them."
    )


def arguments(layer: torch.nn.RNNBase, x: Tensor, hx: Tensors | None, batched: bool, widened: bool) -> None:
    """Input and initial state of a call with links, x (T, B, I) and hx (layers, B, ·) already batched and time-major.

    Args:
        layer: the layer that was called.
        x: the input.
        hx: h0 and, for an LSTM, c0; None for zeros.
        batched: whether the caller's input had a dimension for lanes, for the words of the errors.
        widened: whether autocast chooses the dtype, so that none is wrong.
    """
    weight = layer._flat_weights[0]
    if not isinstance(weight, Tensor):
        raise TypeError("the layer has no weights yet: initialise it before it is called.")
    if x.shape[-1] != layer.input_size:
        raise RuntimeError(
            f"input.size(-1) must be equal to input_size. Expected {layer.input_size}, got {x.shape[-1]}: W_ih has as "
            f"many columns. Project the input to {layer.input_size} features, or build the layer for {x.shape[-1]}."
        )
    if x.shape[0] == 0:
        raise RuntimeError(
            "Expected sequence length to be larger than 0: the input has no steps. "
            "Skip the call where the stream has ended."
        )
    _check_kind("input", x, weight, widened)
    for number, state in enumerate(hx or ()):
        size = layer.hidden_size if number or not layer.proj_size else layer.proj_size
        expected = (layer.num_layers, x.shape[1], size)
        if tuple(state.shape) != expected:
            name = f"hidden[{number}]" if layer.mode == "LSTM" else "hidden"
            shown = expected if batched else (expected[0], expected[2])
            got = list(state.shape) if batched else [state.shape[0], *state.shape[2:]]
            raise RuntimeError(
                f"Expected {name} size {shown}, got {got}: one state for each layer and lane is needed. Pass the state "
                "that the last call returned, or None for zeros."
            )
        _check_kind("hx", state, weight, widened)


def _check_kind(name: str, tensor: Tensor, weight: Tensor, widened: bool) -> None:
    if tensor.device != weight.device:
        raise RuntimeError(
            f"{name} is on {tensor.device}, the weights are on {weight.device}: one kernel cannot read both. "
            f"Move it with {name}.to({str(weight.device)!r}), or the layer to the {name}."
        )
    if tensor.dtype != weight.dtype and not widened:
        raise ValueError(
            f"RNN {name} dtype ({tensor.dtype}) does not match weight dtype ({weight.dtype}): they meet in one product."
            f" Convert {name}: {name}.to({weight.dtype}), or convert model: model.to({tensor.dtype})."
        )


def rank(name: str, source: Tensor, hx: Any, lstm: bool) -> Tensors | None:
    """hx as a tuple of tensors, once the ranks of input and hx agree."""
    if source.dim() not in (2, 3):
        raise ValueError(
            f"{name}: Expected input to be 2D or 3D, got {source.dim()}D: it has steps, lanes (if any) and features."
            " Reshape it to (T, B, input_size), (B, T, input_size) with batch_first, or (T, input_size)."
        )
    states = state_tuple(hx, lstm)
    if states is not None and any(state.dim() != source.dim() for state in states):
        ranks = ", ".join(f"{state.dim()}-D" for state in states)
        kind, shape = (
            ("batched 3-D", "(num_layers, B, ·)") if source.dim() == 3 else ("unbatched 2-D", "(num_layers, ·)")
        )
        raise RuntimeError(
            f"For {kind} input, hx should also be {source.dim()}-D but got {ranks}: input and state have lanes both or "
            f"neither. Pass hx of shape {shape}."
        )
    return states


def state_tuple(hx: Any, lstm: bool) -> Tensors | None:
    """hx as a tuple of tensors: (h0, c0) for an LSTM, (h0,) otherwise; None for None."""
    if hx is None:
        return None
    states = tuple(hx) if lstm and isinstance(hx, tuple | list) else (hx,)
    if len(states) != (2 if lstm else 1) or not all(isinstance(state, Tensor) for state in states):
        wanted = "a pair (h0, c0) of tensors" if lstm else "one tensor, h0"
        raise TypeError(
            f"hx is a {type(hx).__name__} of {len(states)}: the state of this layer is {wanted}. "
            "Pass what the last call returned, or None for zeros."
        )
    return states
