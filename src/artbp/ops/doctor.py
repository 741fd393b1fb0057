"""`artbp doctor`: which path the recurrent layers would take on this machine, and how exact each one is."""

from __future__ import annotations

import argparse
import platform
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from artbp._version import __version__
from artbp.ops import dispatch
from artbp.ops._types import MODES

SIZES = ((50, 1, 32, 64), (50, 64, 128, 256), (50, 64, 128, 1000))  # (T, B, I, H) for which a choice is shown


def main(arguments: Sequence[str] = ()) -> None:
    """Print the environment, each probe's error, and the path for each device, dtype, mode and a few sizes."""
    parser = argparse.ArgumentParser(prog="artbp doctor", description=__doc__, allow_abbrev=False)
    parser.parse_args(list(arguments))
    for line in report():
        print(line)


def report() -> Iterator[str]:
    """The lines that `main` prints."""
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    yield f"artbp {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    yield platform.platform()
    for device in devices:
        yield ""
        yield from _environment(device)
        yield ""
        yield "  probe: the worst relative error against the specification in float64"
        yield from _probes(device)
        yield ""
        yield "  path for links that are neither all one nor cut, by sizes (T, B, I, H)"
        for first, last in (("T", "B"), ("I", "H")):
            sizes = (dict(zip("TBIH", size, strict=True)) for size in SIZES)
            yield " " * 36 + "".join(f"{f'{first}{size[first]} {last}{size[last]}':>13}" for size in sizes)
        yield from _choices(device)


def _environment(device: torch.device) -> Iterator[str]:
    if device.type == "cuda":
        cudnn: Any = torch.backends.cudnn
        yield f"cuda: {torch.cuda.get_device_name(device)}, cuDNN {cudnn.version()}"
    else:
        capability = torch.backends.cpu.get_cpu_capability()
        onednn = "with" if torch._C._has_mkldnn else "without"
        yield f"cpu: {capability}, threads: {torch.get_num_threads()}, {onednn} oneDNN"


def _probes(device: torch.device) -> Iterator[str]:
    for mode in MODES:
        for dtype in dispatch.FLOATS:
            for path in dict.fromkeys(rule.path for rule in dispatch.TABLE if rule.serves(mode, device, dtype, False)):
                verdict = dispatch.verdict(path, mode, device, dtype)
                label = f"{path} {mode} {str(dtype).removeprefix('torch.')}"
                result = f"{verdict.error:.1e}" if verdict.passed else f"NOT USED: {verdict.words}"
                yield f"  {label:<36}{result}"


def _choices(device: torch.device) -> Iterator[str]:
    links = torch.linspace(1.0, 1.1, SIZES[0][0], dtype=torch.float64)
    for mode, projected in [*((mode, False) for mode in MODES), ("LSTM", True)]:
        for dtype in dispatch.FLOATS:
            chosen = []
            for T, B, I, H in SIZES:
                x = torch.empty((1,), dtype=dtype, device=device).expand(T, B, I)
                chosen.append(dispatch.choose(mode, x, H, projected, links))
            label = f"{mode}{' with a projection' if projected else ''} {str(dtype).removeprefix('torch.')}"
            yield f"  {label:<34}" + "".join(f"{name:>13}" for name in chosen)
    names = dict.fromkeys(rule.path for rule in dispatch.TABLE)
    evidence = {name: next(rule.evidence for rule in dispatch.TABLE if rule.path == name) for name in names}
    yield ""
    for name, sentence in evidence.items():
        yield from textwrap.wrap(f"{name}: {sentence}", 80, initial_indent="  ", subsequent_indent="    ")
