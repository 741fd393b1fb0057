"""What a step of influence balancing costs, beside a plain loop that autograd records operation by operation.

    python benchmarks/influence.py [--out results/influence-balancing]

Both do the same updates with the same links, in one process of one thread; variants are interleaved and medians
compared. "default" is the sum over the eight default runs; that command has as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from environment import environment

import artbp
from artbp.estimators import ARTBP, TruncatedBPTT
from artbp.experiments.influence_balancing import Descent, InfluenceBalancing, Targets

LAW = artbp.PowerLaw(mean=16, alpha=6)
RUNS = {"TruncatedBPTT(10)": 1, "TruncatedBPTT(100)": 1, "TruncatedBPTT(200)": 1, f"ARTBP({LAW!r})": 5}


def plain(law: artbp.Law, steps: int) -> float:
    """One vanilla gradient step a segment, written straight down."""
    problem = InfluenceBalancing()
    A, signs, theta, state, t = problem.A, problem.signs, problem.theta, problem.state, 0
    cut = artbp.Truncation(law, seed=0)
    while t < steps:
        loss: torch.Tensor | float = 0.0
        for factor in cut.segment(steps - t).tolist():
            state = A @ artbp.link(state, factor) + theta * signs
            loss = loss + 0.5 * (state[0] - 1) ** 2
            t += 1
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        assert theta.grad is not None
        theta.data -= 3e-4 / math.sqrt(1 + t) * theta.grad
        theta.grad = None
    return theta.item()


def experiment(law: artbp.Law, steps: int) -> float:
    """The same with the experiment's own step and loop."""
    estimator = TruncatedBPTT(law.length) if isinstance(law, artbp.Fixed) else ARTBP(law, seed=0)
    *_, (_, _, theta) = Descent(InfluenceBalancing(), estimator, Targets(steps))
    return theta


def microseconds(call: Callable[[artbp.Law, int], float], law: artbp.Law, steps: int) -> float:
    """Per time step."""
    start = perf_counter()
    call(law, steps)
    return (perf_counter() - start) / steps * 1e6


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for benchmark.json")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    laws = dict(zip(RUNS, [artbp.Fixed(10), artbp.Fixed(100), artbp.Fixed(200), LAW], strict=True))
    times: dict[str, dict[str, list[float]]] = {name: {"plain": [], "experiment": []} for name in laws}
    for name, law in laws.items():
        difference = plain(law, options.steps) / experiment(law, options.steps) - 1
        assert abs(difference) < 1e-10, f"{name}: not the same run, {difference:.1e}"
    for _ in range(options.rounds):
        for name, law in laws.items():
            times[name]["plain"].append(microseconds(plain, law, options.steps))
            times[name]["experiment"].append(microseconds(experiment, law, options.steps))
    result = {name: {key: statistics.median(values) for key, values in both.items()} for name, both in times.items()}
    result["default"] = {
        key: sum(RUNS[name] * result[name][key] for name in RUNS) / sum(RUNS.values())
        for key in ("plain", "experiment")
    }
    for name, both in result.items():
        both["ratio"] = both["plain"] / both["experiment"]
        print(f"{name:<36}", *(f"{key} {value:.3g}" for key, value in both.items()), sep="  ")
    long = {steps: microseconds(experiment, LAW, steps) for steps in (10_000, 100_000)}
    print("per step over", *(f"{steps:,} steps: {value:.3g}" for steps, value in long.items()), sep="  ")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        written = {
            "command": " ".join(["python", *sys.argv]),
            "environment": environment(),
            "microseconds_per_step": result,
            "artbp_microseconds_per_step_by_steps": long,
        }
        (options.out / "benchmark.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
