"""The figures of influence balancing, drawn from the files of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from artbp._figure import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, SKY, blank, keep, styled
from artbp._folder import read_json, read_rows
from artbp.experiments import dynamics_figure, gradient_flow_figure

_OTHERS: dict[str, Any] = {
    "RTRL": (BLACK, "-"),
    "UORO": (GREEN, (0, (6, 1))),
    "NoBackTrack": (PURPLE, (0, (2, 1))),
    "BPTT": (GREY, "-"),
    "CheckpointedBPTT": (GREY, "-"),
}
_DASHES: list[Any] = [(0, (1, 1.5)), (0, (5, 2)), (0, (7, 2, 1, 2)), (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1))]
_LARGEST = 1e290  # no axis can hold more
_ROOM = 6.0  # how far above the losses of the start a curve is followed


def draw(folder: Path) -> list[Path]:
    """All figures of a run, from its files alone; says which."""
    config, rows = read_json(folder / "config.json"), read_rows(folder / "runs.jsonl")
    with styled():
        return [
            *average_loss(folder, config, rows),
            *dynamics_figure.draw(folder, config["p"], config["n"], config["lengths"]),
            *gradient_flow_figure.draw(folder, read_json(folder / "gradient-flow.json")),
        ]


def average_loss(folder: Path, config: dict[str, Any], rows: list[dict[str, Any]]) -> list[Path]:
    """influence-balancing: average loss against t, one line a run."""
    curves = _curves(rows)
    figure = blank(8.0, 4.4)
    axes = figure.add_axes((0.085, 0.12, 0.635, 0.79))
    bottom, top = _limits(curves)
    looks = _looks(list(curves))
    for method, runs in curves.items():
        for steps, losses in runs:
            axes.plot(steps, np.minimum(losses, 100 * top), marker="" if len(steps) > 1 else "o", **looks[method])
    axes.set(xscale="log", yscale="log", ylim=(bottom, top), xlabel="step t")
    axes.set_xlim(min(steps[0] for runs in curves.values() for steps, _ in runs) / 1.05, config["steps"])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", color=PALE, linewidth=0.5, alpha=0.6)
    share = config["noise"] * config["noise"] / 2
    if bottom < share < top:
        _mark_noise(axes, share)
    leaving = {method: runs for method, runs in curves.items() if _worst(runs) > top}
    rows_above = _label_leaving(axes, leaving, looks)
    axes.set_position((0.085, 0.12, 0.635, 0.80 - 0.055 * rows_above))
    axes.set_title("Influence balancing: average loss over steps 1…t", pad=8 + 17 * rows_above)
    _label_ends(axes, {method: runs for method, runs in curves.items() if method not in leaving}, looks)
    return keep(figure, folder, "influence-balancing")


def _mark_noise(axes: Axes, loss: float) -> None:
    axes.axhline(loss, color=GREY, linewidth=0.8)
    place = axes.get_yaxis_transform()
    axes.text(0.01, loss, "the noise's own share", transform=place, va="bottom", color=GREY, fontsize=8)


def _curves(rows: list[dict[str, Any]]) -> dict[str, list[tuple[Any, Any]]]:
    """For every method its runs, each as steps and losses; what has overflown is infinite."""
    found: dict[str, dict[Any, list[tuple[int, float]]]] = {}
    for row in rows:
        loss = row["average_loss"]
        loss = math.inf if loss is None or loss > _LARGEST else loss
        found.setdefault(row["method"], {}).setdefault(row["seed"], []).append((row["step"], loss))
    return {
        method: [(np.array(points)[:, 0], np.array(points)[:, 1]) for points in runs.values()]
        for method, runs in found.items()
    }


def _limits(curves: dict[str, list[tuple[Any, Any]]]) -> tuple[float, float]:
    """Where the frame ends, (bottom, top): it holds the runs that stay near the losses of the first half."""
    runs = [losses for runs in curves.values() for _, losses in runs]
    starts = [float(losses[: max(1, len(losses) // 2)].min()) for losses in runs]
    near = _ROOM * max([start for start in starts if math.isfinite(start)], default=1.0)  # some overflow at once
    top = max([near, *(1.3 * float(losses.max()) for losses in runs if losses[-1] <= near)])
    lowest = min(float(losses[np.isfinite(losses)].min(initial=1.0)) for losses in runs)
    return max(lowest, top * 1e-12) / 1.6, top


def _looks(methods: list[str]) -> dict[str, dict[str, Any]]:
    looks: dict[str, dict[str, Any]] = {}
    dashes = iter(_DASHES * len(methods))
    for method in methods:
        kind = method.partition("(")[0]
        if kind == "TruncatedBPTT":
            looks[method] = {"color": ORANGE, "linewidth": 2.0, "linestyle": next(dashes)}
        elif kind == "ARTBP":
            looks[method] = {"color": BLUE, "linewidth": 1.1}
        else:
            color, dashes_of_its_own = _OTHERS.get(kind, (SKY, "-"))
            looks[method] = {"color": color, "linewidth": 1.1, "linestyle": dashes_of_its_own}
    return looks


def _worst(runs: list[tuple[Any, Any]]) -> float:
    return float(max(losses[-1] for _, losses in runs))


def _label_leaving(axes: Axes, curves: dict[str, list[tuple[Any, Any]]], looks: dict[str, dict[str, Any]]) -> int:
    """Names above the places where lines leave the frame, and where they are headed; how many rows they take."""
    first, end = (math.log(limit) for limit in axes.get_xlim())
    top = axes.get_ylim()[1]
    leaving = []
    for method, runs in curves.items():
        steps, losses = max(runs, key=lambda run: float(run[1][-1]))
        at = (math.log(steps[int(np.argmax(losses > top))]) - first) / (end - first)
        where = "overflows" if math.isinf(losses[-1]) else _power(float(losses[-1]))
        leaving.append((at, f"{method} ↑ {where} at t = {int(steps[-1]):,}", looks[method]["color"]))
    for row, (at, text, color) in enumerate(sorted(leaving, reverse=True)):  # the last to leave is the lowest
        axes.text(
            at, 1.02 + 0.062 * row, text, transform=axes.transAxes, color=color, ha="center", va="bottom", fontsize=9
        )
    return len(leaving)


def _power(value: float) -> str:
    exponent = math.floor(math.log10(value))
    return f"{value:,.0f}" if exponent < 4 else rf"${value / 10**exponent:.1f}\cdot10^{{{exponent}}}$"


def _label_ends(axes: Axes, curves: dict[str, list[tuple[Any, Any]]], looks: dict[str, dict[str, Any]]) -> None:
    """Names beside the lines' ends, none over another: no legend is needed."""
    bottom, top = (math.log(limit) for limit in axes.get_ylim())
    texts = []
    for method, runs in curves.items():
        lines = [method] if len(method) < 24 else [f"{method.partition('(')[0]}(", f"  {method.partition('(')[2]}"]
        if len(runs) > 1:
            lines.append(f"{len(runs)} seeds")
        loss = float(np.mean([math.log(losses[-1]) for _, losses in runs]))
        texts.append(((loss - bottom) / (top - bottom), lines, looks[method]["color"]))
    texts.sort(key=lambda text: text[0])
    floor = 0.0
    for y, lines, color in texts:  # from the bottom up
        half = 0.046 * len(lines) / 2  # of the axes' height
        y = max(y, floor + half)
        floor = y + half + 0.02
        axes.text(1.015, y, "\n".join(lines), transform=axes.transAxes, color=color, va="center", fontsize=9)
