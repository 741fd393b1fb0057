"""Does a path agree with the specification, here, on this device, in this dtype?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from artbp.ops import naive
from artbp.ops._types import GATES, Path, Tensors, Weights

# Relative errors, in norm, that rounding can explain at the sizes probed; a wrong formula is off by 1e-1 or more.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 5e-6, torch.bfloat16: 4e-2, torch.float16: 5e-3}
TENSOR_FLOAT = 5e-3  # float32 where products may be rounded to TF32
SIZES = ((7, 3, 5, 8), (6, 2, 16, 32), (5, 17, 33, 20))  # (T, B, I, H)


@dataclass(frozen=True)
class Verdict:
    """What a probe found: the worst relative error of any output or gradient, or what went wrong."""

    passed: bool
    error: float | None
    words: str


def examine(load: Callable[[str], Path], name: str, mode: str, device: torch.device, dtype: torch.dtype) -> Verdict:
    """Compare outputs and gradients with the specification in float64 on the CPU, cuts and final states included."""
    tolerance = TENSOR_FLOAT if dtype is torch.float32 and device.type == "cuda" else TOLERANCE[dtype]
    try:
        path = load(name)
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            worst = max(
                error(path, mode, size, per_lane, device, dtype) for size in SIZES for per_lane in (False, True)
            )
    except (ImportError, AttributeError, RuntimeError, TypeError, ValueError) as problem:
        # Whatever a foreign operator that has changed its ways may raise.
        return Verdict(False, None, f"its probe raised {type(problem).__name__} ({str(problem).splitlines()[0][:200]})")
    words = f"its gradients differ from the specification's by {worst:.1e} (relative; {tolerance:.0e} is allowed)"
    return Verdict(worst <= tolerance, worst, words)


def error(
    path: Path,
    mode: str,
    size: tuple[int, int, int, int],
    per_lane: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> float:
    """The worst relative error, in norm, among y, the final states and the gradients of x, hx and the weights."""
    inputs, states, links, adjoints = _problem(mode, size, per_lane, dtype)
    expected = _evaluate(naive.recurrence, mode, inputs, states, links, adjoints)
    moved = [tensor.to(device, dtype) for tensor in inputs]
    found = _evaluate(path, mode, moved, states, links, [tensor.to(device, dtype) for tensor in adjoints])
    return max(
        float((a.to("cpu", torch.float64) - b).norm() / b.norm().clamp_min(1e-30))
        for a, b in zip(found, expected, strict=True)
    )


def _problem(
    mode: str, size: tuple[int, int, int, int], per_lane: bool, dtype: torch.dtype
) -> tuple[list[Tensor], int, Tensor, list[Tensor]]:
    """Inputs (x, states, weights) in float64 but representable in `dtype`, how many states, links and adjoints."""
    T, B, I, H = size
    generator = torch.Generator().manual_seed(T * B * H)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        sample = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return sample.to(dtype).to(torch.float64)

    rows, scale = GATES[mode] * H, H**-0.5
    states = 2 if mode == "LSTM" else 1
    inputs = [draw(T, B, I), *[draw(B, H) for _ in range(states)]]
    inputs += [draw(rows, I, scale=scale), draw(rows, H, scale=scale), draw(rows, scale=scale), draw(rows, scale=scale)]
    if mode == "RNN_RELU":
        # Away from the kink, on whose other side the derivative is another one: rounding may push a unit across.
        inputs[2:5] = [inputs[2] / 8, inputs[3] / 8, inputs[4].sign() * 4]
    shape = (T, B) if per_lane else (T,)
    links = 0.8 + 0.6 * torch.rand(shape, generator=generator, dtype=torch.float64)
    links[T // 2 if not per_lane else (T // 2, 0)] = 0.0
    return inputs, states, links, [draw(T, B, H), *[draw(B, H) for _ in range(states)]]


def _evaluate(
    path: Path, mode: str, inputs: list[Tensor], states: int, links: Tensor, adjoints: list[Tensor]
) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    hx: Tensors = tuple(leaves[1 : 1 + states])
    weights: Weights = tuple(leaves[1 + states :])
    y, final = path(mode, leaves[0], hx, weights, links)
    gradients = torch.autograd.grad((y, *final), leaves, adjoints)
    return [*[output.detach() for output in (y, *final)], *gradients]
