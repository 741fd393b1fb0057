"""What the core costs: the link, the draw of a segment, windows, and the import. Ratios taken in one run.

    python benchmarks/core.py [--out results/core]

Variants are interleaved and their medians compared, for machines are noisy; absolute times belong to the machine named
in the JSON, the ratios less so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import torch
from environment import environment

import artbp

ROUNDS = 41


def interleaved(variants: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median time of each variant, in seconds; one call of each per round."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values():
        call()
    for _ in range(rounds):
        for name, call in variants.items():
            start = perf_counter()
            call()
            times[name].append(perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def link_cost(lanes: int, size: int, steps: int) -> dict[str, float]:
    """A loop over an LSTMCell, forward and backward, with and without a link on its pair of states; per step."""
    cell, x = torch.nn.LSTMCell(size, size), torch.randn(lanes, size)
    numbers, drawn = [1.25] * steps, torch.full((steps,), 1.25, dtype=torch.float64)
    per_lane = torch.full((steps, lanes), 1.25, dtype=torch.float64)

    def loop(factors: Sequence[float] | torch.Tensor | None) -> None:
        state = torch.zeros(lanes, size), torch.zeros(lanes, size)
        for t in range(steps):
            if factors is not None:
                state = artbp.link(state, factors[t])
            state = cell(x, state)
        state[0].sum().backward()

    times = interleaved(
        {
            "plain": lambda: loop(None),
            "link": lambda: loop(numbers),
            "drawn": lambda: loop(drawn),
            "lanes": lambda: loop(per_lane),
        }
    )
    return {
        "step_microseconds": times["plain"] / steps * 1e6,
        "link_ratio": times["link"] / times["plain"],
        "link_from_a_tensor_ratio": times["drawn"] / times["plain"],
        "link_per_lane_ratio": times["lanes"] / times["plain"],
    }


def draw_cost() -> dict[str, float]:
    """Drawing a length and making its links, less the tensor itself, in microseconds."""
    result = {}
    for mean, alpha in ((16, 6), (50, 4), (1e6, 4)):
        cut = artbp.Truncation(artbp.PowerLaw(mean=mean, alpha=alpha), seed=0)
        calls = 200

        def draw(cut: artbp.Truncation = cut, calls: int = calls) -> None:
            for _ in range(calls):
                cut.reset()
                cut.segment(remaining=16)

        def length(cut: artbp.Truncation = cut, calls: int = calls) -> None:
            for _ in range(calls):
                cut.law.sample((), generator=cut.generator)

        times = interleaved({"segment": draw, "length": length})
        result[f"segment of at most 16 steps, mean {mean:g}"] = times["segment"] / calls * 1e6
        result[f"length alone, mean {mean:g}"] = times["length"] / calls * 1e6
    return result


def window_cost(size: int, steps: int = 2000, window: int = 50) -> dict[str, float]:
    """One backprop over 2,000 steps of an LSTMCell, whole and in windows: time, and bytes saved for backward."""
    cell, x = torch.nn.LSTMCell(32, size), torch.randn(steps, 4, 32)
    state = torch.zeros(4, size), torch.zeros(4, size)
    links = artbp.Truncation(artbp.PowerLaw(mean=50, alpha=4), seed=0).links(steps)

    def one(x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, object]:
        state = cell(x, state)
        return state[0].sum(), state

    def call(width: int | None) -> None:
        artbp.backprop(artbp.unroll(one), x, state, links, window=width)

    def saved(width: int | None) -> int:
        held = peak = 0

        def pack(tensor: torch.Tensor) -> Held:
            nonlocal held, peak
            held += tensor.nbytes
            peak = max(peak, held)
            return Held(tensor)

        class Held:
            def __init__(self, tensor: torch.Tensor) -> None:
                self.tensor = tensor

            def __del__(self) -> None:
                nonlocal held
                held -= self.tensor.nbytes

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
            call(width)
        return peak

    times = interleaved({"plain": lambda: call(None), "window": lambda: call(window)}, rounds=9)
    plain, windowed = saved(None), saved(window)
    return {
        "plain_seconds": times["plain"],
        "time_ratio": times["window"] / times["plain"],
        "plain_saved_bytes": plain,
        "window_saved_bytes": windowed,
        "saved_ratio": windowed / plain,
    }


def import_cost(rounds: int = 9) -> dict[str, float]:
    """`import torch`, and with it every module of the core, each in a fresh interpreter; seconds."""
    core = "import artbp; [getattr(artbp, name) for name in artbp.__all__]"
    program = (
        f"import time; s = time.perf_counter(); import torch; m = time.perf_counter(); {core}; e = time.perf_counter()"
    )
    runs = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", f"{program}; print(m - s, e - m)"], capture_output=True, text=True, check=True
        )
        runs.append([float(word) for word in done.stdout.split()])
    return {
        "torch_seconds": statistics.median(r[0] for r in runs),
        "artbp_seconds": statistics.median(r[1] for r in runs),
    }


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for core.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result = {
        "link on a small LSTMCell": link_cost(lanes=4, size=64, steps=50),
        "link on a large LSTMCell": link_cost(lanes=64, size=256, steps=20),
        "drawing, microseconds": draw_cost(),
        "window=50 over 2,000 steps, 64 units": window_cost(64),
        "window=50 over 2,000 steps, 256 units": window_cost(256),
        "import": import_cost(),
    }
    for title, numbers in result.items():
        print(title)
        for name, value in numbers.items():
            print(f"    {name:40} {value:.4g}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        command = " ".join(["python", *sys.argv])
        (out / "core.json").write_text(
            json.dumps({"command": command, "environment": environment(), "result": result}, indent=2)
        )


if __name__ == "__main__":
    main()
