"""The figures of training runs, drawn from their metrics alone; also of runs that are still going."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from artbp._figure import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, SKY, blank, keep, styled
from artbp._folder import FolderError
from artbp.train import lengths_figure, memory_figure
from artbp.train.arms import Arm, arms
from artbp.train.curves import Curve, reach, training, validation

LOOKS = [(BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (SKY, "v"), (BLACK, "P")]
_ROW = 0.058  # the height of a line of labels, as a share of the axes
_BEGINNING = 0.04  # of the whole way: what lies there may leave the frame at its top


@dataclass(frozen=True)
class Drawn:
    """An arm with its curves and how it looks."""

    arm: Arm
    color: str
    marker: str
    valid: Curve
    train: Curve


def draw(folders: list[Path], out: Path | None = None) -> list[Path]:
    """All figures of the runs in the folders, into `out` or the first folder's plots; says which.

    learning-curves: bits per character over passes, validation and training, the mean over seeds with the band that
    they fill. validation-and-training: several arms, in two panels, as in the paper. segment-lengths: drawn lengths
    against their law. memory: the peak so far, over time.
    """
    found = arms(folders)
    if not any(run.rows for arm in found for run in arm.runs):
        names = ", ".join(str(run.folder) for arm in found for run in arm.runs)
        raise FolderError(
            f"{names}: nothing was trained yet.", "Draw it again once the first rows of metrics are there."
        )
    place = folders[0] / "plots" if out is None else out
    try:
        place.mkdir(parents=True, exist_ok=True)
        with styled():
            return _all(found, place)
    except OSError as error:
        raise FolderError(f"{place} cannot be written: {error.strerror}.", "Pass another folder with --out.") from None


def _all(found: list[Arm], place: Path) -> list[Path]:
    counted = all(run.characters_per_pass for arm in found for run in arm.runs if run.rows)
    unit = None if counted else 1e6
    end = max(reach(run, unit) for arm in found for run in arm.runs if run.rows)
    looks = itertools.cycle(LOOKS)
    drawn = [
        Drawn(arm, *look, validation(arm, unit), training(arm, unit, end))
        for arm, look in zip(found, looks, strict=False)
    ]
    across = "passes over the text" if counted else "million characters"
    figures: dict[str, Figure | None] = {"learning-curves": learning_curves(drawn, end, across)}
    if len(drawn) > 1:
        figures["validation-and-training"] = two_panels(drawn, end, across)
    colors = [(each.arm, each.color, each.marker) for each in drawn]
    figures["segment-lengths"] = lengths_figure.figure(colors)
    figures["memory"] = memory_figure.figure(colors)
    return [path for name, figure in figures.items() if figure is not None for path in keep(figure, place, name)]


def learning_curves(drawn: list[Drawn], end: float, across: str) -> Figure:
    """Validation solid, training dashed; one colour an arm."""
    figure = blank(7.6, 4.3)
    axes = figure.add_axes((0.085, 0.125, 0.665, 0.79))
    labels = []
    for each in drawn:
        _line(axes, each.valid, each, "-")
        _line(axes, each.train, each, (0, (4, 2)), marker="")
        labels += _ends(each, alone=len(drawn) == 1)
    _frame(axes, [curve for each in drawn for curve in (each.valid, each.train)], end, across)
    axes.set_title("Bits per character" + ("" if len(drawn) > 1 else f": {drawn[0].arm.label}"))
    _label(axes, labels)
    if len(drawn) > 1:
        for style, name in (("-", "validation"), ((0, (4, 2)), "training")):
            axes.plot([], [], color=GREY, linestyle=style, label=name)
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    return figure


def two_panels(drawn: list[Drawn], end: float, across: str) -> Figure:
    """Left validation, right training: the paper's figure of its second experiment."""
    figure = blank(10.4, 4.0)
    for left, name in ((0.06, "valid"), (0.445, "train")):
        axes = figure.add_axes((left, 0.13, 0.325, 0.77))
        curves: list[Curve] = [getattr(each, name) for each in drawn]
        for each, curve in zip(drawn, curves, strict=True):
            _line(axes, curve, each, "-")
        _frame(axes, curves, end, across)
        axes.set_title({"valid": "Validation, bits per character", "train": "Training, bits per character"}[name])
        if name == "train":
            _label(axes, [(c.mean[-1], [*_named(e.arm)], e.color) for e, c in zip(drawn, curves, strict=True) if c.x])
    return figure


def _line(axes: Axes, curve: Curve, each: Drawn, style: Any, *, marker: str | None = None) -> None:
    if not curve.x:
        return
    every = max(1, len(curve.x) // 8)
    axes.plot(
        *(curve.x, curve.mean),
        color=each.color,
        linestyle=style,
        linewidth=1.5,
        marker=each.marker if marker is None else marker,
        markersize=4,
        markevery=(every // 2, every),
    )
    if len(each.arm.runs) > 1:
        axes.fill_between(curve.x, curve.low, curve.high, color=each.color, alpha=0.18, linewidth=0)


def _ends(each: Drawn, *, alone: bool) -> list[tuple[float, list[str], str]]:
    """What stands beside the ends of an arm's lines: (height, text, colour)."""
    if not alone:
        curve = each.valid if each.valid.x else each.train
        return [(curve.mean[-1], _named(each.arm), each.color)] if curve.x else []
    named = [("validation", each.valid), ("training", each.train)]
    return [(c.mean[-1], [f"{name} {c.mean[-1]:.3f}"], each.color) for name, c in named if c.x]


def _named(arm: Arm) -> list[str]:
    """An arm's name in lines that are not too long, and how many runs it is."""
    lines = [""]
    for part in arm.label.split(", "):
        joined = f"{lines[-1]}, {part}" if lines[-1] else part
        if len(joined) > 26 and lines[-1]:
            lines[-1] += ","
            lines.append(part)
        else:
            lines[-1] = joined
    return [*lines, f"{len(arm.runs)} seeds"] if len(arm.runs) > 1 else lines


def _frame(axes: Axes, curves: list[Curve], end: float, across: str) -> None:
    """Limits that leave the first moments of training out, where a curve falls from far above."""
    points = [(x, y) for curve in curves for x, y in zip(curve.x, curve.high, strict=True) if math.isfinite(y)]
    lowest = min((y for curve in curves for y in curve.low), default=0.0)
    highest = max((y for x, y in points if x > _BEGINNING * end), default=lowest + 1)
    room = (highest - lowest) or 0.1
    axes.set(xlabel=across, xlim=(0, end * 1.01), ylim=(lowest - 0.05 * room, highest + 0.05 * room))
    axes.xaxis.set_major_locator(MaxNLocator(integer=end >= 2))
    axes.grid(axis="y", color=PALE, linewidth=0.5, alpha=0.6)


def _label(axes: Axes, labels: list[tuple[float, list[str], str]]) -> None:
    """Names beside the lines' ends, none over another."""
    bottom, top = axes.get_ylim()
    places = sorted(((y - bottom) / (top - bottom), lines, color) for y, lines, color in labels)
    heights = [_ROW * len(lines) for _, lines, _ in places]
    room = [sum(heights[number:]) for number in range(len(places))]  # what this one and those above it take
    floor = 0.0
    for (y, lines, color), height, above in zip(places, heights, room, strict=True):  # from the bottom up
        low = max(floor, min(y - height / 2, 1.0 - above))
        floor = low + height + 0.012
        text = "\n".join(lines)
        axes.text(1.02, low + height / 2, text, transform=axes.transAxes, color=color, va="center", fontsize=9)
