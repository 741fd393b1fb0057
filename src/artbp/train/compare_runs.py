"""Arms in a table: means and spread over seeds, and differences between runs of the same seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from artbp.train.arms import Arm, Run
from artbp.train.student import quantile, two_sided

CONFIDENCE = 0.95
SPLITS = {"train": "train_bpc", "valid": "valid_bpc", "test": "test_bpc"}
_NUMBERS = {**SPLITS, "passes": "epochs", "seconds": "seconds", "memory": "peak_memory"}


@dataclass(frozen=True)
class Spread:
    """A number over the seeds of an arm; without a deviation if there is one seed."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """An arm's bits per character minus those of the first arm, seed by seed.

    The interval covers the mean difference with 95%, and the p-value is that of no difference, if the differences
    between seeds are normal: Student's paired t. Both are None where there is one pair, or all differ alike.
    """

    split: str
    mean: float
    interval: tuple[float, float] | None
    p: float | None
    seeds: list[int]


@dataclass(frozen=True)
class Row:
    """One arm."""

    label: str
    seeds: list[int]
    numbers: dict[str, Spread]
    differences: list[Difference]
    unpaired: list[int]
    """seeds of this arm or the first that the other one does not have"""
    left_out: list[str]
    """runs that are not finished, and where they stand"""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def compare(arms: Sequence[Arm], *, unfinished: bool = False) -> list[Row]:
    """A row for each arm. Runs that are not finished are left out and said, or taken as they stand."""
    chosen = [[run for run in arm.runs if unfinished or run.finished] for arm in arms]
    rows = []
    for number, (arm, runs) in enumerate(zip(arms, chosen, strict=True)):
        pairs, unpaired = _pairs(runs, chosen[0]) if number else ([], [])
        found = (_difference(split, pairs) for split in SPLITS)
        rows.append(
            Row(
                arm.label,
                [run.seed for run in runs],
                {name: spread for name, key in _NUMBERS.items() if (spread := _spread(runs, key)) is not None},
                [difference for difference in found if difference is not None],
                unpaired,
                [f"{run.folder} ({_where(run)})" for run in arm.runs if not run.finished],
            )
        )
    return rows


def _spread(runs: list[Run], key: str) -> Spread | None:
    values = [run.summary[key] for run in runs if run.summary.get(key) is not None]
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def _pairs(runs: list[Run], first: list[Run]) -> tuple[list[tuple[Run, Run]], list[int]]:
    """(runs of both arms with the same seed, the seeds that only one has)."""
    base = {run.seed: run for run in first}
    pairs = [(run, base[run.seed]) for run in runs if run.seed in base]
    return pairs, sorted({run.seed for run in runs} ^ set(base))


def _difference(split: str, pairs: list[tuple[Run, Run]]) -> Difference | None:
    key = SPLITS[split]
    both = [(run.seed, run.summary.get(key), base.summary.get(key)) for run, base in pairs]
    found = [(seed, mine - other) for seed, mine, other in both if mine is not None and other is not None]
    if not found:
        return None
    seeds, differences = [seed for seed, _ in found], [difference for _, difference in found]
    mean, n = statistics.fmean(differences), len(found)
    error = statistics.stdev(differences) / math.sqrt(n) if n > 1 else 0.0
    if error == 0:
        return Difference(split, mean, None, None, seeds)
    half = quantile(n - 1, CONFIDENCE) * error
    return Difference(split, mean, (mean - half, mean + half), two_sided(mean / error, n - 1), seeds)


def _where(run: Run) -> str:
    if not run.summary:
        return "nothing trained yet"
    outcome, passes = run.summary.get("outcome", "running"), run.summary.get("epochs") or 0
    return f"{outcome} after {passes} of {run.config['epochs']} passes"


def table(rows: Sequence[Row]) -> str:
    """What `artbp compare-runs` prints."""
    cells = [["", "runs", "train", "valid", "test", "passes", "seconds", "memory"]]
    for row in rows:
        bpc = [_bpc(row.numbers.get(split)) for split in SPLITS]
        rest = (row.numbers.get(name) for name in ("passes", "seconds", "memory"))
        passes, seconds, memory = (None if spread is None else spread.mean for spread in rest)
        cells.append(
            [
                row.label,
                str(len(row.seeds)),
                *bpc,
                "-" if passes is None else f"{passes:g}",
                "-" if seconds is None else f"{seconds:,.0f}",
                "-" if memory is None else bytes_of(memory),
            ]
        )
    several = any(len(row.seeds) > 1 for row in rows)
    head = "bits per character, mean ± standard deviation over seeds" if several else "bits per character"
    lines = [head, "", *_aligned(cells)]
    if not several:
        lines += ["", "One run per arm: there is no standard deviation. `artbp train --runs 6` trains six seeds."]
    if len(rows) > 1:
        lines += ["", *_differences(rows)]
    left_out = [run for row in rows for run in row.left_out]
    if left_out:
        lines += ["", "Not finished:", *(f"  {run}" for run in left_out)]
    return "\n".join(lines)


def _differences(rows: Sequence[Row]) -> list[str]:
    lines = [f"minus {rows[0].label}, run by run of the same seed (95% interval, p: paired t)"]
    cells = []
    for row in rows[1:]:
        if not row.differences:
            lines.append(f"  {row.label}: no seed in common, so nothing is paired.")
        for number, one in enumerate(row.differences):
            interval = "" if one.interval is None else f"[{one.interval[0]:+.4f}, {one.interval[1]:+.4f}]"
            p = "" if one.p is None else f"p = {one.p:.2g}"
            paired = f"n = {len(one.seeds)}: {_ranges(one.seeds)}"
            cells.append(["" if number else row.label, one.split, f"{one.mean:+.4f}", interval, p, paired])
    lines += _aligned(cells)
    if any(difference.p is None for row in rows for difference in row.differences):
        lines.append("Without an interval: one pair, or differences that are all the same, tell nothing of the spread.")
    for row in rows[1:]:
        if row.unpaired and row.differences:
            lines.append(f"Not paired, because only one of the two has them: {_ranges(row.unpaired)}.")
    return lines


def _aligned(cells: list[list[str]]) -> list[str]:
    """The first column to the left, the others to the right of their columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  "
        + "  ".join(
            f"{cell:<{width}}" if number == 0 or cell.startswith("n =") else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _bpc(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.mean:.4f}" + ("" if spread.deviation is None else f" ± {spread.deviation:.4f}")


def bytes_of(number: float) -> str:
    """Bytes as they are said."""
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def _ranges(seeds: list[int]) -> str:
    """seeds 0-2, 5."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    listed = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return f"seed {listed}" if len(seeds) == 1 else f"seeds {listed}"
