"""The recurrence in one kernel: the shape of its programs, and the launch (the kernels: `_scan_kernels`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from artbp.ops._types import GATES


@dataclass(frozen=True, slots=True)
class Blocks:
    """The shape of one program of a scan."""

    lanes: int
    units: int
    inner: int  # of the sum, per turn
    warps: int
    hold: bool  # the weight in registers for the whole sequence


def blocks(mode: str, direction: str, kind: str, B: int, H: int, device: torch.device) -> Blocks | None:
    """The smallest programs of which all fit the chip at once (more, smaller ones read more in parallel), or None."""
    processors = _processors(device)
    for lanes, units in ((16, 16), (32, 16), (16, 32), (64, 16), (32, 32)):
        if -(-B // lanes) * -(-H // units) <= processors:
            break
    else:
        return None
    whole = max(16, 1 << (part(mode, H) - 1).bit_length())
    # A plain cell sums in parts in both directions, as the others do in the backward only.
    room, inner, wide, narrow = _INNER["backward" if GATES[mode] == 1 else direction, kind]
    if lanes == units == 16 and whole <= room:
        return Blocks(lanes, units, whole, wide if whole == room else 4, hold=True)
    return Blocks(lanes, units, min(whole, inner), max(narrow, 8 if lanes == 64 else 4), hold=False)


def part(mode: str, H: int) -> int:
    """How far each of the parts of a product's sum goes: over a gate, or a quarter of the units of a plain cell."""
    return H if GATES[mode] > 1 else -(-H // 64) * 16


# Per direction and arithmetic: up to which length of a part a program holds its share of the weight, the length of a
# turn of the sum beyond it, and the warps of a program in either case. Measured on an H200 for the LSTM
# (results/layers-h200); GRU and RNN take over what was best there.
_INNER = {
    ("forward", "bf16"): (512, 128, 4, 4),
    ("forward", "tf32"): (256, 64, 4, 8),
    ("forward", "fp32"): (128, 64, 4, 8),
    ("backward", "bf16"): (512, 64, 8, 4),
    ("backward", "tf32"): (256, 32, 8, 4),
    ("backward", "fp32"): (64, 32, 4, 4),
}


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _launch(
    mode: str, direction: str, kind: str, B: int, H: int, device: torch.device
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid and the options of a scan."""
    shape = blocks(mode, direction, kind, B, H, device)
    if shape is None:
        raise ValueError(
            f"a batch of {B} and a hidden size of {H} do not fit the {_processors(device)} multiprocessors of this GPU "
            "at once, so the recurrence cannot run in one kernel; leave the choice to the layer, or use form graphs."
        )
    grid = (-(-H // shape.units), -(-B // shape.lanes))
    options: dict[str, Any] = {
        "MODE": mode,
        "GATES": GATES[mode],
        "H": H,
        "BLOCK_B": shape.lanes,
        "BLOCK_H": shape.units,
        "BLOCK_K": shape.inner,
        "PART": part(mode, H),
        "PRECISION": "tf32x3" if kind == "fp32" else "tf32",  # three TF32 products make an fp32 one
        "ROUND": kind == "tf32",
        "SYNC": grid[0] > 1,
        "HOLD": shape.hold,
        "num_warps": shape.warps,
        "num_stages": 4,
    }
    if grid[0] > 1:
        options["launch_cooperative_grid"] = True
    return grid, options


def forward(
    mode: str,
    kind: str,
    gates: Tensor | None,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    y: Tensor,
    c: Tensor | None,
    hn: Tensor,
    cn: Tensor | None,
) -> None:
    """Fill y and c, hn and cn, from the input's share in gates, or in y of a plain cell (see `_scan_kernels`)."""
    from artbp.ops import _scan_kernels as kernels

    T, B, H = y.shape[0] - 1, y.shape[1], y.shape[2]
    grid, options = _launch(mode, "forward", kind, B, H, y.device)
    counters = torch.zeros(grid[1], device=y.device, dtype=torch.int32)
    weight = _rounded(weight, options)
    _start(kernels.forward_scan, grid, (gates, weight, h0, c0, y, c, hn, cn, counters), (T, B), options)


def backward(
    mode: str,
    kind: str,
    gates: Tensor | None,
    weight: Tensor,
    states: Tensor,
    dy: Tensor,
    dhn: Tensor | None,
    dcn: Tensor | None,
    dgates: Tensor,
    dh0: Tensor,
    dc0: Tensor | None,
    links: Tensor,
) -> None:
    """Fill dgates, dh0 and dc0. states: c of an LSTM, y of the others; links: (T+1, 1 or B), the last row one."""
    from artbp.ops import _scan_kernels as kernels

    T, B, H = dy.shape
    grid, options = _launch(mode, "backward", kind, B, H, dy.device)
    counters = torch.zeros(grid[1], device=dy.device, dtype=torch.int32)
    weight = _rounded(weight, options)
    lane = 1 if links.shape[1] > 1 else 0
    has_dh, has_dc = int(dhn is not None), int(dcn is not None)
    arriving = dh0 if dhn is None else dhn, dc0 if dcn is None else dcn
    tensors = gates, weight, states, dy, dgates, *arriving, dh0, dc0, links, counters
    numbers = T, B, links.stride(0), lane, has_dh, has_dc
    _start(kernels.backward_scan, grid, tensors, numbers, options)


_compiled: dict[tuple[Any, ...], Any] = {}


def _start(
    kernel: Any,
    grid: tuple[int, int],
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[int, ...],
    options: dict[str, Any],
) -> None:
    """Launch a scan; from the second time on without Triton's look at each argument, which takes longer than that.

    What it would look for is in the key; numbers are not specialised on, and all addresses are multiples of 16.
    """
    given = [tensor for tensor in tensors if tensor is not None]  # which these are, the mode among the options says
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in given)
    key = (kernel.__name__, given[0].device, *(tensor.dtype for tensor in given), *options.values())
    compiled = _compiled.get(key) if aligned else None
    if compiled is not None:
        constants = [options[name] for name in _CONSTANTS]
        compiled[*grid, 1](*tensors, *numbers, *constants)
        return
    compiled = kernel[grid](*tensors, *numbers, **options)
    if aligned:
        _compiled[key] = compiled


# In the order of the kernels' signatures.
_CONSTANTS = ("MODE", "GATES", "H", "BLOCK_B", "BLOCK_H", "BLOCK_K", "PART", "PRECISION", "ROUND", "SYNC", "HOLD")


def _rounded(weight: Tensor, options: dict[str, Any]) -> Tensor:
    """The weight as TF32 sees it; a program that holds its share rounds that by itself."""
    from artbp.ops import _scan_products as products

    if not options["ROUND"] or options["HOLD"]:
        return weight
    rounded = torch.empty_like(weight)
    products.round_weight[(-(-weight.numel() // 1024),)](weight, rounded, weight.numel(), BLOCK=1024)
    return rounded
