"""From how many steps a window on is oneDNN's LSTM faster than the batched path? For the table of `artbp.ops.dispatch`.

    python benchmarks/threshold.py [--out results/layers-cpu/threshold] [--rounds 21] [--hidden 64 128 256 512 1000 …]

Forward and backward over so many windows of so many steps each, by either path, called directly. Shared links are cut
at every window's first step and grow a little in between. Links per lane are cut four times as often, in all lanes at
the same steps, so that three cuts lie inside a window (a single lane's links are treated so too, whatever their shape,
and may need fewer windows: the row says how many there were). The two are interleaved, in random order, after one
untimed call of each; a row says both medians and the median and the quartiles of the ratios round by round. A path is
first compared with the specification in float64, and a row has no number where either fails.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from time import perf_counter

import torch
from environment import environment
from layers import TOLERANCE, Case
from torch import Tensor

from artbp.ops._weights import coded_windows

PATHS = ("path onednn", "path batched")


@dataclass
class Row:
    """One line of the table; times in microseconds a step, the ratio is oneDNN's time over the batched path's."""

    lanes: int
    inputs: int
    hidden: int
    links: str
    steps_a_window: int
    windows: int
    rounds: int
    errors: list[float]
    onednn: float | None = None
    batched: float | None = None
    ratio: float | None = None
    quartiles: tuple[float, float] | None = None


def draw(kind: str, steps: int, windows: int, lanes: int) -> Tensor:
    """Links that need so many windows of so many steps."""
    links = torch.full((steps * windows,), 1.05, dtype=torch.float64)
    every = steps if kind == "shared" else steps // 4
    links[every::every] = 0.0
    return links if kind == "shared" else links.unsqueeze(1).repeat(1, lanes)


def measure(case: Case, kind: str, steps: int, links: Tensor, rounds: int) -> Row:
    """Both paths over the same links."""
    runs: dict[str, Callable[[], None]] = {}
    for name in PATHS:
        run, x = case.variants()[name], case.x[: len(links)]
        # Links per lane are new in every call, as they are in life: the price of their windows belongs to it.
        runs[name] = lambda run=run, x=x: run(x, links if kind == "shared" else links.clone())
    errors = [case.error(name, links, steps=len(links)) for name in PATHS]
    windows = len(coded_windows(links, case.B, links.device))
    row = Row(case.B, case.I, case.H, kind, steps, windows, rounds, errors)
    if max(errors) > TOLERANCE[case.dtype]:
        return row
    times: dict[str, list[float]] = {name: [] for name in PATHS}
    order = random.Random(0)
    for name in PATHS:
        runs[name]()
    for _ in range(rounds):
        for name in order.sample(PATHS, len(PATHS)):
            begin = perf_counter()
            runs[name]()
            times[name].append(perf_counter() - begin)
    row.onednn, row.batched = (statistics.median(times[name]) / len(links) * 1e6 for name in PATHS)
    low, row.ratio, high = statistics.quantiles([a / b for a, b in zip(*times.values(), strict=True)], n=4)
    row.quartiles = low, high
    return row


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = [
        f"{'B':>3} {'I':>4} {'H':>5} {'links':<7} {'steps':>5} {'windows':>7} {'onednn':>9} {'batched':>9}"
        f" {'ratio':>6}  quartiles"
    ]
    for row in rows:
        place = (
            f"{row.lanes:>3} {row.inputs:>4} {row.hidden:>5} {row.links:<7} {row.steps_a_window:>5} {row.windows:>7}"
        )
        if row.ratio is None or row.quartiles is None:
            lines.append(f"{place} no number: the errors are {', '.join(f'{error:.1e}' for error in row.errors)}")
        else:
            low, high = row.quartiles
            lines.append(f"{place} {row.onednn:>9.1f} {row.batched:>9.1f} {row.ratio:>6.2f}  {low:.2f} to {high:.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for threshold.json and threshold.txt")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 8, 16, 64], help="of a window, multiples of four")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--inputs", type=int, default=64)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128, 256, 512, 1000])
    parser.add_argument("--links", nargs="+", default=["shared", "lanes"], choices=["shared", "lanes"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[Row] = []
    for hidden, lanes in product(options.hidden, options.lanes):
        longest = max(options.steps) * max(options.windows)
        case = Case("LSTM", f"{longest}x{lanes}x{options.inputs}x{hidden}", 1, torch.float32, longest)
        fresh = [
            measure(case, kind, steps, draw(kind, steps, windows, lanes), options.rounds)
            for kind, steps, windows in product(options.links, options.steps, options.windows)
        ]
        print(table(fresh), flush=True)
        rows += fresh
        if options.out is not None:  # after each group, for the large ones take long
            options.out.mkdir(parents=True, exist_ok=True)
            command = " ".join(["python", *sys.argv])
            document = {"command": command, "environment": environment(), "rows": [asdict(row) for row in rows]}
            (options.out / "threshold.json").write_text(json.dumps(document, indent=1) + "\n")
            (options.out / "threshold.txt").write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
