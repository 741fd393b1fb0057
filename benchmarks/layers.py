"""The recurrent layers on the CPU: torch.nn's, ours by each path, and a loop over cells, forward and backward.

    python benchmarks/layers.py [--out results/layers-cpu] [--lengths 200] [--seconds 20] [--sizes 50x64x128x256 …]

For each size (T, B, I, H) and mean length L0 a list of lengths is drawn from PowerLaw(L0, alpha=4), the same for all
variants, and all go forward and backward over each length, in random order; once before that untimed, for oneDNN builds
a kernel for every new length (0.4 to 6 ms, torch.nn's too), and keeps it. A variant is first compared with the
specification in float64, and gets no number where it fails. Per-lane rows take chunks of those lengths in which every
lane is cut at its own steps. A row says the total time over torch.nn's total for the same lengths, and the
median of the ratios length by length, which is the steadier of the two on a busy machine. Rows that would take longer
than --seconds go on with fewer lengths, and say how many.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from environment import environment
from torch import Tensor

import artbp
import artbp.nn
from artbp.ops import batched, naive, onednn

SIZES = ["50x64x128x256", "50x64x64x1000", "200x16x64x128", "50x1x32x64", "50x64x512x512", "512x16x512x512"]
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 1.5e-2, torch.float64: 1e-10}
PATHS = {"onednn": onednn.recurrence, "batched": batched.recurrence}
Run = Callable[[Tensor, Tensor | None], None]


@dataclass
class Row:
    """One line of the table; times in microseconds a step, ratios to torch.nn over the same lengths."""

    size: str
    kind: str
    dtype: str
    layers: int
    mean_length: int
    links: str
    variant: str
    lengths: int
    error: float | None
    step: float | None = None
    ratio: float | None = None
    median_ratio: float | None = None


class Case:
    """One size: torch.nn's layer, ours over the same parameters, and inputs as long as the longest segment."""

    def __init__(self, kind: str, size: str, layers: int, dtype: torch.dtype, longest: int) -> None:
        _, self.B, self.I, self.H = (int(number) for number in size.split("x"))
        torch.manual_seed(0)
        self.kind, self.dtype = kind, dtype
        self.stock = getattr(torch.nn, kind)(self.I, self.H, num_layers=layers, dtype=dtype)
        self.ours = getattr(artbp.nn, kind)(self.I, self.H, num_layers=layers, dtype=dtype)
        self.ours.load_state_dict(self.stock.state_dict())
        self.x = torch.randn(longest, self.B, self.I, dtype=dtype)
        self.adjoint = torch.randn(longest, self.B, self.H, dtype=dtype)
        states = [torch.zeros(layers, self.B, self.H, dtype=dtype) for _ in range(2 if kind == "LSTM" else 1)]
        self.hx: Any = tuple(states) if kind == "LSTM" else states[0]

    def variants(self) -> dict[str, Run]:
        """What is timed, by name: from inputs and links to gradients in `.grad`, which are dropped again."""
        found = {"torch.nn": self._layer(self.stock), "artbp.nn": self._layer(self.ours)}
        if self.ours.num_layers == 1:
            for name, path in PATHS.items():
                if name == "batched" or (self.kind == "LSTM" and self.dtype in (torch.float32, torch.bfloat16)):
                    found[f"path {name}"] = self._path(path)
            if self.kind == "LSTM":
                found["loop over cells with link"] = self._path(_loop_over_cells)
        return found

    def _layer(self, layer: Any) -> Run:
        def run(x: Tensor, links: Tensor | None) -> None:
            output = layer(x, self.hx)[0] if layer is self.stock else layer(x, self.hx, links=links)[0]
            output.backward(self.adjoint[: len(x)])
            layer.zero_grad()

        return run

    def _path(self, path: Any) -> Run:
        mode = self.ours.mode

        def run(x: Tensor, links: Tensor | None) -> None:
            hx = tuple(state[0] for state in (self.hx if self.kind == "LSTM" else (self.hx,)))
            path(mode, x, hx, tuple(self.ours._flat_weights), links)[0].backward(self.adjoint[: len(x)])
            self.ours.zero_grad()

        return run

    def error(self, variant: str, links: Tensor | None, steps: int = 12) -> float:
        """The worst relative error of a weight's gradient against the specification in float64, over some steps."""
        steps = min(steps, len(self.x), steps if links is None else len(links))
        layer = self.stock if variant == "torch.nn" else self.ours
        links = None if variant == "torch.nn" or links is None else links[:steps]
        kept: list[Tensor] = []
        zero_grad = layer.zero_grad
        layer.zero_grad = lambda: kept.extend(parameter.grad for parameter in layer.parameters())
        try:
            self.variants()[variant](self.x[:steps], links)
        finally:
            layer.zero_grad = zero_grad
            layer.zero_grad()
        expected = self._specified(steps, links)
        return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(kept, expected, strict=True))

    def _specified(self, steps: int, links: Tensor | None) -> list[Tensor]:
        flat = [parameter.detach().double().requires_grad_() for parameter in self.ours._flat_weights]
        y = self.x[:steps].double()
        for index in range(self.ours.num_layers):
            states = self.hx if self.kind == "LSTM" else (self.hx,)
            hx = tuple(state[index].double() for state in states)
            y, _ = naive.recurrence(self.ours.mode, y, hx, tuple(flat[4 * index : 4 * index + 4]), links)
        return list(torch.autograd.grad(y, flat, self.adjoint[:steps].double()))


def _loop_over_cells(mode: str, x: Tensor, hx: Any, weights: Any, links: Tensor | None) -> Any:
    """What one writes today: torch's own LSTM cell, step by step."""
    outputs, state = [], hx
    for t in range(len(x)):
        state = torch._VF.lstm_cell(x[t], artbp.link(state, 1.0 if links is None else links[t]), *weights)
        outputs.append(state[0])
    return torch.stack(outputs), state


def draw(mean: int, count: int, lanes: int | None, longest: int) -> list[Tensor]:
    """`count` links from one law: whole segments, or chunks of their lengths cut per lane. Giants are drawn again."""
    cut = artbp.Truncation(artbp.PowerLaw(mean=mean, alpha=4), seed=mean)
    chunks = artbp.Truncation(artbp.PowerLaw(mean=mean, alpha=4), seed=mean + 1)
    found: list[Tensor] = []
    while len(found) < count:
        links = cut.segment(remaining=10**9)
        if len(links) <= longest:
            found.append(links if lanes is None else chunks.links(len(links), lanes))
    return found


def measure(case: Case, links: list[Tensor], seconds: float, only: list[str], header: dict[str, Any]) -> list[Row]:
    """One row per variant, or for torch.nn and `only` those."""
    variants = {name: run for name, run in case.variants().items() if not only or name in ("torch.nn", *only)}
    times: dict[str, list[float]] = {}
    rows = {name: Row(**header, variant=name, lengths=0, error=case.error(name, links[0])) for name in variants}
    for name, row in rows.items():
        if row.error is not None and row.error <= TOLERANCE[case.dtype]:
            times[name] = []
    order = random.Random(0)  # whoever comes first finds the caches cold
    start, steps = perf_counter(), 0
    for given in links:
        if perf_counter() - start > seconds and steps:
            break
        steps += len(given)
        for name in times:
            variants[name](case.x[: len(given)], given)
        for name in order.sample(list(times), len(times)):
            begin = perf_counter()
            variants[name](case.x[: len(given)], given)
            times[name].append(perf_counter() - begin)
    for name, taken in times.items():
        stock, row = times["torch.nn"], rows[name]
        row.lengths, row.step = len(taken), sum(taken) / steps * 1e6
        row.ratio = sum(taken) / sum(stock)
        row.median_ratio = statistics.median(a / b for a, b in zip(taken, stock, strict=True))
    return list(rows.values())


def table(rows: list[Row]) -> str:
    """The rows as text."""
    numbers = f"{'µs/step':>9} {'ratio':>7} {'median':>7} {'n':>4}"
    lines = [f"{'size':<15} {'layer':<8} {'dtype':<9} {'L0':>4} {'links':<7} {'variant':<26} {numbers}"]
    for row in rows:
        place = (
            f"{row.size:<15} {row.kind + ' x' + str(row.layers):<8} {row.dtype:<9} {row.mean_length:>4} {row.links:<7}"
        )
        if row.ratio is None:
            lines.append(f"{place} {row.variant:<26} no number: its error is {row.error:.1e}")
        else:
            numbers = f"{row.step:>9.1f} {row.ratio:>7.2f} {row.median_ratio:>7.2f} {row.lengths:>4}"
            lines.append(f"{place} {row.variant:<26} {numbers}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for layers.json and layers.txt")
    parser.add_argument("--lengths", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each table of variants")
    parser.add_argument("--means", type=int, nargs="+", default=[20, 50, 200])
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--kinds", nargs="+", default=["LSTM"], choices=["LSTM", "GRU", "RNN"])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--layers", type=int, nargs="+", default=[1])
    parser.add_argument("--links", nargs="+", default=["shared", "lanes"], choices=["shared", "lanes"])
    parser.add_argument("--variants", nargs="+", default=[], help="beside torch.nn; all by default")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[Row] = []
    grid = [(k, s, d, n) for k in options.kinds for d in options.dtypes for n in options.layers for s in options.sizes]
    for kind, size, dtype, layers in grid:
        for mean in options.means:
            longest = 20 * mean
            case = Case(kind, size, layers, getattr(torch, dtype), longest)
            for links in options.links:
                drawn = draw(mean, options.lengths, case.B if links == "lanes" else None, longest)
                header = {
                    "size": size,
                    "kind": kind,
                    "dtype": dtype,
                    "layers": layers,
                    "mean_length": mean,
                    "links": links,
                }
                fresh = measure(case, drawn, options.seconds, options.variants, header)
                print(table(fresh), flush=True)
                rows += fresh
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        command = " ".join(["python", *sys.argv])
        document = {"command": command, "environment": environment(), "rows": [asdict(row) for row in rows]}
        (options.out / "layers.json").write_text(json.dumps(document, indent=1) + "\n")
        (options.out / "layers.txt").write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
