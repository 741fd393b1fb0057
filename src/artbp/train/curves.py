"""Curves over seeds: what the figures of runs draw, as numbers."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from artbp.train.arms import Arm, Run

_PASSES = 8  # from so many on, a training curve has one point a pass, as a validation curve has
_BINS = 40  # of a training curve with fewer passes


@dataclass(frozen=True)
class Curve:
    """The mean over seeds, and the least and the largest of them, at each x: those of the runs that came so far."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def validation(arm: Arm, unit: float | None) -> Curve:
    """Bits per character on the validation text, after each pass."""
    points = (
        (
            (row["characters"] / _unit(run, unit), row["bpc"])
            for row in run.of_kind("evaluation")
            if row["split"] == "valid"
        )
        for run in arm.runs
    )
    return _over_seeds(points)


def training(arm: Arm, unit: float | None, end: float) -> Curve:
    """Bits per character in training, weighed by characters: pass by pass, or finer if those are few."""
    by_pass = unit is None and end >= _PASSES
    edges = (
        [number + 1.0 for number in range(math.ceil(end))] if by_pass else [end * (k + 1) / _BINS for k in range(_BINS)]
    )
    return _over_seeds(_binned(run, unit, edges) for run in arm.runs)


def reach(run: Run, unit: float | None) -> float:
    """How far a run has come."""
    return float(run.rows[-1]["characters"]) / _unit(run, unit) if run.rows else 0.0


def _unit(run: Run, unit: float | None) -> float:
    """How many characters x is counted in: those of a pass, unless told."""
    return unit or run.characters_per_pass or math.nan


def _binned(run: Run, unit: float | None, edges: list[float]) -> Iterable[tuple[float, float]]:
    before, size = 0.0, _unit(run, unit)
    sums = [[0.0, 0.0, 0.0] for _ in edges]  # characters, their bits, and their places
    for row in run.of_kind("train"):
        at, characters = (before + row["characters"]) / 2 / size, row["characters"] - before
        before = row["characters"]
        share = sums[min(bisect.bisect_left(edges, at), len(edges) - 1)]
        for number, value in enumerate((1.0, row["bpc"], at)):
            share[number] += characters * value
    for weight, bits, places in sums:
        if weight:
            yield places / weight, bits / weight


def _over_seeds(runs: Iterable[Iterable[tuple[float, float]]]) -> Curve:
    """Runs on the union of their places, each between its first and its last point."""
    lines = [sorted(points) for points in runs]
    places = sorted({round(x, 9) for line in lines for x, _ in line})
    found = [(x, [y for line in lines if (y := _at(line, x)) is not None]) for x in places]
    found = [(x, values) for x, values in found if values]
    return Curve(
        [x for x, _ in found],
        [math.fsum(values) / len(values) for _, values in found],
        [min(values) for _, values in found],
        [max(values) for _, values in found],
    )


def _at(line: list[tuple[float, float]], x: float) -> float | None:
    near = 1e-6 * max(1.0, abs(x))  # places were rounded
    for (x0, y0), (x1, y1) in itertools.pairwise(line):
        if x0 - near <= x <= x1 + near:
            return y0 + (y1 - y0) * min(max((x - x0) / ((x1 - x0) or 1.0), 0.0), 1.0)
    return line[0][1] if len(line) == 1 and abs(line[0][0] - x) <= near else None
