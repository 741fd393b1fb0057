"""How long the segments of runs were, against the laws that they were drawn from."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from artbp import PowerLaw
from artbp._figure import GREY, blank
from artbp.train.arms import Arm

_BINS = 36  # on a logarithmic axis


def figure(arms: list[tuple[Arm, str, str]]) -> Figure | None:
    """Points: the lengths of all updates of all seeds; lines: the law's probabilities, in closed form."""
    found = [(arm, color, marker, counted) for arm, color, marker in arms if (counted := lengths(arm))]
    if not found:
        return None
    result = blank(6.6, 4.2)
    axes = result.add_axes((0.135, 0.13, 0.845, 0.77))
    axes.set_title("Lengths of segments")
    axes.set(xlabel="length, steps", ylabel="probability of that length", xscale="log", yscale="log")
    drawn = [each for each in found if each[0].config["method"] in ("artbp", "random")]
    laws = dict.fromkeys(_law(arm) for arm, *_ in drawn)
    for arm, color, marker, counted in drawn:
        _drawn(axes, arm, counted, color, marker)
    for number, (arm, color, marker, counted) in enumerate(each for each in found if each not in drawn):
        length, times = counted.most_common(1)[0]
        total = counted.total()
        share = times / total
        axes.plot([length], [share], color=color, marker=marker, markersize=7, linestyle="none", label=arm.label)
        others = "" if times == total else f"\n({total - times:,} shorter, at a pass's end)"
        axes.annotate(
            f"{total:,} of {length:,} steps{others}",
            *((length, share), (8, -4 - 26 * number)),
            textcoords="offset points",
            color=color,
            fontsize=9,
            va="top",
        )
    for mean, alpha in laws:
        of_law = [(color, counted) for arm, color, _, counted in drawn if _law(arm) == (mean, alpha)]
        places = _spaced(max(max(counted) for _, counted in of_law), 200)
        color = of_law[0][0] if len(of_law) == 1 else GREY  # a law that arms share has the colour of none
        axes.plot(places, PowerLaw(mean, alpha).pmf(places), color=color, linewidth=1.2, zorder=1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    title = "points: drawn\nline: the law, in closed form" if drawn else None
    axes.legend(
        frameon=False, fontsize=9, title=title, title_fontsize=9, loc="lower left", labelcolor=GREY, alignment="left"
    )
    return result


def lengths(arm: Arm) -> Counter[int]:
    """How often each length occurred."""
    return Counter(int(length) for run in arm.runs for row in run.of_kind("train") for length in row["lengths"])


def _drawn(axes: Axes, arm: Arm, counted: Counter[int], color: str, marker: str) -> None:
    values, counts = (np.array(each) for each in zip(*sorted(counted.items()), strict=True))
    edges = _spaced(values[-1] + 1, _BINS)
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    width, total = np.diff(edges), counts.sum()
    seen = np.histogram(values, edges, weights=counts)[0] / total / width
    some = seen > 0
    label = f"{arm.label}: {total:,} segments"
    axes.plot(middles[some], seen[some], color=color, marker=marker, markersize=4, linestyle="none", label=label)


def _law(arm: Arm) -> tuple[float, float]:
    return arm.config["mean"], arm.config["alpha"]


def _spaced(last: int, count: int) -> Any:
    """Whole numbers from 1 to `last`, evenly on a logarithmic axis."""
    return np.unique(np.geomspace(1, last, count).round().astype(np.int64))
