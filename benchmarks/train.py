"""The trainer's speed beside a bare loop: truncated BPTT written by hand with torch.nn.LSTM, at equal mean length.

    python benchmarks/train.py --output results/train-cpu/train.json

Each variant goes on over the embedded text by slices of the same number of steps, in turn, so that whatever else the
machine does meets all of them; a variant's speed is its median over the slices, evaluations in none. The first row of
all is the hand-written loop, the others are ratios to it: characters per second, above one is faster.

All of them run in this process, which keeps freed memory as `artbp train` does: the loop by hand gets that, too. Two
more rows say what it gains, and what random lengths cost: the same loop in a process of its own, with the C library's
habits, and the same loop over the lengths that ARTBP draws, uncompensated.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from environment import environment
from torch import nn

from artbp import PowerLaw, Truncation
from artbp.diagnostics._peak import peak
from artbp.train._heap import keep_freed_memory
from artbp.train.corpus import embedded
from artbp.train.devices import choose
from artbp.train.group import Group
from artbp.train.options import Options
from artbp.train.training import Training

VARIANTS: dict[str, dict[str, Any]] = {
    "tbptt": {"method": "tbptt", "window": 0},
    "artbp": {"method": "artbp", "window": 0},
    "artbp, window 64": {"method": "artbp", "window": 64},
    "artbp, window 256": {"method": "artbp", "window": 256},
}


def by_hand(corpus: Any, options: Options, device: torch.device, *, random: bool = False) -> Iterator[int]:
    """The bare loop, endless; yields the steps of each update."""
    symbols = len(corpus.vocabulary)
    recurrent = nn.LSTM(symbols, options.hidden).to(device)
    decoder = nn.Linear(options.hidden, symbols).to(device)
    optimizer = torch.optim.Adam([*recurrent.parameters(), *decoder.parameters()], lr=options.lr, fused=True)
    text = torch.from_numpy(corpus.splits["train"].astype("int64"))
    steps = (len(text) - 1) // options.lanes
    x = text[: steps * options.lanes].view(options.lanes, steps).t().contiguous().to(device)
    y = text[1 : steps * options.lanes + 1].view(options.lanes, steps).t().contiguous().to(device)
    cut = Truncation(PowerLaw(mean=options.mean, alpha=options.alpha), seed=options.seed)
    while True:
        state, start = None, 0
        while start < steps:
            length = len(cut.segment(steps - start)) if random else min(options.length, steps - start)
            rows = slice(start, start + length)
            output, state = recurrent(F.one_hot(x[rows], symbols).float(), state)
            state = tuple(leaf.detach() for leaf in state)
            loss = F.cross_entropy(decoder(output).flatten(0, 1), y[rows].flatten(), reduction="sum")
            optimizer.zero_grad()
            (loss / (options.length * options.lanes)).backward()
            optimizer.step()
            start += length
            yield length


def trained(corpus: Any, options: Options, device: torch.device) -> Iterator[int]:
    training = Training(options, corpus, Group(), device)
    while True:
        for update in training.updates():
            yield update.steps


def slices(updates: Iterator[int], steps: int, synchronise: Callable[[], None]) -> Iterator[tuple[float, float]]:
    """(seconds, page faults) a step, of at least `steps` steps, again and again."""
    while True:
        done, start, faults = 0, time.perf_counter(), _page_faults()
        while done < steps:
            done += next(updates)
        synchronise()
        yield (time.perf_counter() - start) / done, (_page_faults() - faults) / done


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def elsewhere(options: Options, steps: int) -> Iterator[tuple[float, float]]:
    """The slices of the loop by hand in a process of its own, whose memory nobody has seen to; on the CPU."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_apart, args=(theirs, options, steps), daemon=True)
    process.start()
    while True:
        ours.send(None)
        yield ours.recv()


def _apart(pipe: Any, options: Options, steps: int) -> None:
    timer = slices(by_hand(embedded(), options, torch.device("cpu")), steps, lambda: None)
    with suppress(EOFError):  # once the benchmark is over
        while True:
            pipe.recv()
            pipe.send(next(timer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256])
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2000, help="of one slice")
    parser.add_argument("--slices", type=int, default=15)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    keep_freed_memory()
    corpus, rows = embedded(), []
    for hidden in arguments.hidden:
        plain = Options(hidden=hidden, lanes=arguments.lanes, device=arguments.device, precision=arguments.precision)
        device, plain = choose(plain)
        wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        runs, memory = {"by hand": by_hand(corpus, plain, device)}, {}
        for name, changes in VARIANTS.items():
            runs[name] = trained(corpus, Options(**{**vars(plain), **changes}), device)
        runs["by hand, random lengths"] = by_hand(corpus, plain, device, random=True)
        timers = {name: slices(updates, arguments.steps, wait) for name, updates in runs.items()}
        if device.type == "cpu":
            timers["by hand, memory not kept"] = elsewhere(plain, arguments.steps)
        for timer in timers.values():
            next(timer)  # warm
        taken: dict[str, list[float]] = {name: [] for name in timers}
        faults: dict[str, list[float]] = {name: [] for name in timers}
        names = list(timers)
        for k in range(arguments.slices):
            for name in names[k % len(names) :] + names[: k % len(names)]:
                seconds, new = next(timers[name])
                taken[name].append(seconds)
                faults[name].append(new)
        for name, updates in runs.items():
            memory[name] = max(peak(lambda u=updates: next(u), device) for _ in range(200))
        base = statistics.median(taken["by hand"])
        print(f"\nhidden {hidden}, lanes {arguments.lanes}, {device}, {plain.precision}")
        print(
            f"{'':<24}  {'char/s':>10}  {'ratio':>6}  {'mean':>6}  {'page faults a step':>18}  "
            f"{'peak MiB of 200 updates':>24}"
        )
        for name, seconds in taken.items():
            pace, ratio = arguments.lanes / statistics.median(seconds), base / statistics.median(seconds)
            mean = statistics.fmean(taken["by hand"]) / statistics.fmean(seconds)
            new, high = statistics.fmean(faults[name]), memory.get(name, math.nan) / 2**20
            print(f"{name:<24}  {pace:>10,.0f}  {ratio:>6.2f}  {mean:>6.2f}  {new:>18.1f}  {high:>24,.0f}", flush=True)
            rows.append(
                {
                    "hidden": hidden,
                    "lanes": arguments.lanes,
                    "variant": name,
                    "characters_per_second": pace,
                    "ratio_of_medians": ratio,
                    "ratio_of_means": mean,
                    "page_faults_per_step": new,
                    "peak_bytes": memory.get(name),
                    "seconds_per_step": seconds,
                }
            )
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
        result = {"environment": environment(), "options": options, "rows": rows}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
