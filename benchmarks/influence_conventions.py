"""What ARTBP's average loss in influence balancing owes to conventions that the paper leaves open.

    python benchmarks/influence_conventions.py [--out results/influence-balancing]

A simulation of 2,000 runs at once in NumPy, by forward sensitivity, cutting at every step with the paper's probability;
it shares no line with the library. Each convention is held against truncated BPTT too, which has no chance in it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from environment import environment

P, N, ETA, START = 10, 13, 3e-4, 0.5
PUSH = np.repeat([1.0, -1.0], [P, N])[:, None]
GROUPS = 20_000  # of 20 and of 60 runs, drawn from those simulated

# What is changed; the first is what the library does.
CONVENTIONS: dict[str, dict[str, Any]] = {
    "as the library": {},
    "ages count from 0 in the hazard": {"first_age": 0},
    "links one age too early": {"shift": -1},
    "links one age too late": {"shift": 1},
    "the loss is read behind the link, that of a segment's last step not at all": {"behind": True},
    "rate of the segment's first step": {"rate": "first"},
    "each step's gradient at that step's rate": {"rate": "each"},
    "rate by the number of updates": {"rate": "updates"},
    "loss without one half": {"half": 1.0},
    "geometric lengths": {"geometric": True},
    "mean 20": {"mean": 20.0},
    "alpha 4": {"alpha": 4.0},
    "no segment above 100 steps": {"cap": 100},
    "the first segment has 16 steps": {"first_length": 16},
}


def simulate(
    runs: int,
    steps: int,
    *,
    length: int | None = None,
    mean: float = 16.0,
    alpha: float = 6.0,
    geometric: bool = False,
    first_age: int = 1,
    shift: int = 0,
    behind: bool = False,
    rate: str = "last",
    half: float = 0.5,
    cap: int | None = None,
    first_length: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(average loss, θ) of every run; of truncated BPTT with `length`."""
    random = np.random.default_rng(0)
    s, G = np.zeros((P + N, runs)), np.zeros((P + N, runs))
    theta, gradient, total, link = np.full(runs, START), np.zeros(runs), np.zeros(runs), np.zeros(runs)
    age, begun, updates = np.zeros(runs, int), np.zeros(runs, int), np.zeros(runs, int)

    def hazard(age: np.ndarray) -> np.ndarray:
        return np.full(runs, 1 / mean) if geometric else (alpha - 1) / ((alpha - 2) * mean + age + first_age - 1)

    for t in range(1, steps + 1):
        s[:-1] += s[1:]
        s = s / 2 + PUSH * theta
        G[:-1] += G[1:]
        G = G * (link / 2) + PUSH
        error = s[0] - 1
        total += half * error**2
        age += 1
        if length is not None:
            cut, following = age == length, np.ones(runs)
        else:
            cut, following = random.random(runs) < hazard(age), 1 / (1 - hazard(age + shift))
        if cap is not None:
            cut |= age == cap
        if first_length is not None:
            cut = np.where(begun == 0, age == first_length, cut)
        link = np.where(cut, 0.0, following)
        now = 1 / math.sqrt(1 + t)
        gradient += 2 * half * error * G[0] * (link if behind else 1.0) * (now if rate == "each" else 1.0)
        update = np.ones(runs, bool) if t == steps else cut
        factor = {"last": now, "each": 1.0, "first": 1 / np.sqrt(1.0 + begun), "updates": 1 / np.sqrt(1.0 + updates)}
        theta -= np.where(update, ETA * factor[rate] * gradient, 0.0)
        gradient[update], begun[update], age[update] = 0.0, t, 0
        updates += update
    return total / steps, theta


def measure(runs: int, steps: int, convention: dict[str, Any]) -> dict[str, Any]:
    """Quantiles over the runs, and how often groups of them look as it is said elsewhere."""
    losses, theta = simulate(runs, steps, **convention)
    far = np.abs(theta + 1 / 6)
    own = {name: value for name, value in convention.items() if name in ("behind", "rate", "half")}
    truncated = {str(L): float(simulate(1, steps, length=L, **own)[0][0]) for L in (10, 100, 200)}
    random = np.random.default_rng(1)
    twenty, sixty = (random.integers(runs, size=(GROUPS, n)) for n in (20, 60))
    issue = (losses[twenty].max(1) < 0.6) & (np.median(losses[twenty], 1) < 0.1)
    note = (losses[sixty].max(1) < 0.455) & (np.median(losses[sixty], 1) < 0.075)
    levels = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
    return {
        "truncated_bptt": truncated,
        "average_loss_quantiles": {f"{q:g}": float(np.quantile(losses, q)) for q in levels},
        "share_above_0.6": float((losses > 0.6).mean()),
        "distance_of_theta_quantiles": {f"{q:g}": float(np.quantile(far, q)) for q in (0.5, 0.95, 0.99, 1.0)},
        "share_of_twenties_all_below_0.6_with_median_below_0.1": float(issue.mean()),
        "share_of_sixties_all_below_0.455_with_median_below_0.075": float(note.mean()),
        "share_of_sixties_with_theta_within_0.002": float((far[sixty].max(1) < 0.002).mean()),
    }


def main() -> None:
    """Simulate, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for conventions.json")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=2000)
    options = parser.parse_args()
    found = {}
    for name, convention in CONVENTIONS.items():
        found[name] = measure(options.runs, options.steps, convention)
        median, worst = (found[name]["average_loss_quantiles"][q] for q in ("0.5", "1"))
        truncated = ", ".join(f"{value:.3g}" for value in found[name]["truncated_bptt"].values())
        print(f"{name}: truncated {truncated}; ARTBP median {median:.3f}, worst {worst:.3g}", flush=True)
    if options.out is not None:
        written = {
            "command": " ".join(["python", *sys.argv]),
            "environment": environment(),
            "steps": options.steps,
            "runs": options.runs,
            "conventions": found,
        }
        (options.out / "conventions.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
