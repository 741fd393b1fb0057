"""The figure of :mod:`artbp.experiments.gradient_flow`, drawn from its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from artbp._figure import BLACK, BLUE, GREY, ORANGE, blank, keep

_ROW = 1.75  # the height of a method
_MEANING = {
    "BPTT": "every link one: exact, when all is over",
    "TruncatedBPTT": "0 at fixed places, else one: biased",
    "ARTBP": "0 with probability c, else 1/(1−c): unbiased",
}


def draw(folder: Path, flows: list[dict[str, Any]]) -> list[Path]:
    """gradient-flow: one time line a method, with what passes every edge."""
    steps = len(flows[0]["links"])
    left, right, bottom, top = -0.6, steps - 0.4, -_ROW * len(flows) + 0.95, 1.55
    width = 8.0
    figure = blank(width, width * (top - bottom) / (right - left) * 1.12)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    axes.text(
        -0.2, 1.2, "→ the state goes on.   ← The gradient comes back, multiplied by the link on every edge.",
        fontsize=9, color=GREY, va="center",
    )  # fmt: skip
    for number, flow in enumerate(flows):
        _time_line(axes, -_ROW * number, flow["method"], flow["links"])
    return keep(figure, folder, "gradient-flow")


def _time_line(axes: Axes, y: float, method: str, links: list[float]) -> None:
    name = axes.text(-0.2, y + 0.62, method, fontsize=10, color=BLACK, va="center")
    meaning = _MEANING.get(method.partition("(")[0], "")
    axes.annotate(meaning, (1, 0.5), xycoords=name, xytext=(10, 0), textcoords="offset points", fontsize=9, color=GREY,
                  va="center")  # fmt: skip
    axes.scatter(range(len(links)), [y] * len(links), s=52, color=BLACK, zorder=3)
    for t, link in enumerate(links[1:], 1):
        _arrow(axes, (t - 0.86, y + 0.13), (t - 0.14, y + 0.13), GREY, 0.8)
        if link:
            _arrow(axes, (t - 0.14, y - 0.15), (t - 0.86, y - 0.15), BLUE, 1.2 + 3.5 * (link - 1))
        else:
            axes.plot([t - 0.5] * 2, [y - 0.27, y - 0.02], color=ORANGE, linewidth=2.2)
        label = f"{link:.2f}".rstrip("0").rstrip(".")
        axes.text(t - 0.5, y - 0.46, label, ha="center", va="center", fontsize=8, color=BLUE if link else ORANGE,
                  weight="normal" if link else "bold")  # fmt: skip


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str, width: float) -> None:
    look = {"arrowstyle": "-|>", "color": color, "linewidth": width, "mutation_scale": 5 + 2 * width}
    axes.annotate("", end, start, arrowprops={**look, "shrinkA": 0, "shrinkB": 0})
