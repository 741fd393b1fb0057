"""Where a run computes, and how precisely."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import sys

import torch

from artbp.train.options import OptionError, Options

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


def choose(options: Options) -> tuple[torch.device, Options]:
    """(the device, the options with a precision in words); sets what torch has for the whole process."""
    device = _device(options.device)
    precision = options.precision
    if precision == "auto":
        precision = "tf32" if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8 else "float32"
    if precision == "tf32" and device.type != "cuda":
        raise OptionError(f"--precision tf32 on {device}: only CUDA GPUs have it.\nPass float32 or bf16.")
    if device.type == "cpu":
        _keep_memory()
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    return device, dataclasses.replace(options, precision=precision)


def _keep_memory() -> None:
    """Has glibc keep the memory of tensors that are gone, as torch does on a GPU.

    It returns large blocks to the system at once, which then clears every page anew for the next segment: with tensors
    of some megabytes that takes a good part of a segment's time, and the more the longer the segment is.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"--device {name}: torch knows no such device.\nPass cpu, cuda, or cuda:1.") from None
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"--device {name}: artbp trains on cpu and cuda.\nPass one of them.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise OptionError(f"--device {name}: torch finds no CUDA GPU here.\nPass --device cpu.")
        numbered: int | None = device.index  # None for "cuda", whatever torch's types say
        index = int(os.environ.get("LOCAL_RANK", "0")) if numbered is None else numbered
        if index >= torch.cuda.device_count():
            raise OptionError(
                f"--device {name}: there are {torch.cuda.device_count()} GPUs, numbered from 0, and process {index} "
                "would have none.\nStart fewer processes, or pass another number."
            )
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device
