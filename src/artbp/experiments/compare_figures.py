"""The figures of `artbp compare`, drawn from its files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from artbp._figure import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, blank, keep, styled
from artbp._folder import read_json

MARKED = (0, 1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300)  # lags
MARKS = [(BLUE, "o", "-"), (GREEN, "s", "--"), (PURPLE, "^", "-."), (ORANGE, "D", ":"), (BLACK, "v", "-")]


def draw(folder: Path) -> list[Path]:
    """trade-off: bias against L beside noise against the mean length; retention: what is kept over a lag."""
    curves, config = read_json(folder / "curves.json"), read_json(folder / "config.json")
    with styled():
        trade = blank(8.4, 3.9)
        left, right = trade.add_axes((0.085, 0.14, 0.38, 0.74)), trade.add_axes((0.595, 0.14, 0.38, 0.74))
        _bias(left, curves["bias"])
        _noise(right, curves["noise"], config["steps"])
        retention = blank(6.4, 4.4)
        _retention(retention.add_axes((0.11, 0.27, 0.86, 0.64)), curves["retention"])
        return [*keep(trade, folder, "trade-off"), *keep(retention, folder, "retention")]


def _plain_ticks(axes: Axes, places: list[float]) -> None:
    labels = [f"{place:g}" for place in places]
    for i, (one, other) in enumerate(itertools.pairwise(places)):
        if other < 1.4 * one:
            labels[i + 1] = ""  # no room
    axes.set_xticks(places, labels)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if axes.get_ylim()[1] < 30 * axes.get_ylim()[0]:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def _bias(axes: Axes, points: list[dict[str, float]]) -> None:
    axes.set_title("Truncated BPTT: bias, no noise")
    axes.set(xlabel="L, steps of memory", ylabel="|bias| / |exact gradient|", xscale="log", yscale="log")
    lengths, values = [p["length"] for p in points], [max(p["bias"], 1e-16) for p in points]
    axes.plot(lengths, values, color=ORANGE, linewidth=1.4)
    for right, label in ((True, "points along the gradient"), (False, "points against it")):
        chosen = [(x, y) for p, x, y in zip(points, lengths, values, strict=True) if (p["cosine"] > 0) == right]
        if chosen:
            face = ORANGE if right else "white"
            x, y = zip(*chosen, strict=True)
            axes.scatter(x, y, s=34, facecolor=face, edgecolor=ORANGE, linewidth=1.4, zorder=3, label=label)
    _plain_ticks(axes, lengths)
    axes.legend(frameon=False, fontsize=9)


def _noise(axes: Axes, points: list[dict[str, float]], steps: int) -> None:
    axes.set_title("ARTBP: noise, no bias")
    axes.set(xlabel="mean length, steps of memory", xscale="log", yscale="log")
    axes.set_ylabel(f"deviation / |exact gradient|, {steps} steps")
    for (color, marker, line), alpha in zip(
        itertools.cycle(MARKS), dict.fromkeys(p["alpha"] for p in points), strict=False
    ):
        own = [p for p in points if p["alpha"] == alpha and p["deviation"] > 0]
        axes.errorbar(
            [p["mean"] for p in own],
            [p["deviation"] for p in own],
            [1.96 * p["error"] for p in own],
            color=color,
            marker=marker,
            markersize=5,
            linestyle=line,
            linewidth=1.4,
            capsize=2,
            label=f"α = {alpha:g}",
        )
    _plain_ticks(axes, list(dict.fromkeys(p["mean"] for p in points)))
    axes.legend(frameon=False, fontsize=9)


def _retention(axes: Axes, points: list[dict[str, Any]]) -> None:
    axes.set_title("What is kept, on average, of the gradient over a lag")
    axes.set(xlabel="lag k, steps", ylabel="expected product of k links", ylim=(-0.03, 1.05))
    axes.set_xscale("symlog", linthresh=5)
    looks = [(ORANGE, "s", "--"), (GREEN, "^", "-."), (PURPLE, "D", ":"), (BLUE, "o", "-")]
    for (color, marker, line), name in zip(looks, dict.fromkeys(p["method"] for p in points), strict=False):
        own = [p for p in points if p["method"] == name]
        axes.plot(
            [p["lag"] for p in own],
            [p["retention"] for p in own],
            color=color,
            marker=marker,
            markersize=4,
            markevery=[i for i, p in enumerate(own) if p["lag"] in MARKED],
            linestyle=line,
            linewidth=1.4,
            label=name.replace(", not", ",\nnot"),
        )
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.set_xticks([0, 5, 10, 50, 100, 300], ["0", "5", "10", "50", "100", "300"])
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left", bbox_to_anchor=(-0.02, -0.17))  # on no line
