"""A figure of what happens in influence balancing: who pushes whom, when that arrives, and who still sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from artbp._figure import BLACK, BLUE, GREY, ORANGE, blank, keep
from artbp.experiments.influence_theory import impulse_response, optimum


def draw(folder: Path, p: int, n: int, lengths: list[int]) -> list[Path]:
    """dynamics: the agents, and what a push of θ does to the first of them."""
    figure = blank(8.0, 4.7)
    _draw_agents(figure.add_axes((0.01, 0.66, 0.98, 0.34)), p, n)
    _draw_response(figure.add_axes((0.075, 0.11, 0.825, 0.43)), p, n, lengths)
    return keep(figure, folder, "dynamics")


def _draw_agents(axes: Axes, p: int, n: int) -> None:
    positive, negative = _shown(1, p), _shown(p + 1, p + n)
    agents = positive + negative
    axes.axis("off")
    axes.set(xlim=(-3.5, len(agents) - 0.2), ylim=(-2.0, 2.2))
    for x, agent in enumerate(agents):
        if agent is not None:
            _draw_agent(axes, x, agent, agent <= p)
        else:
            axes.text(x, 0, "…", ha="center", va="center", fontsize=12)
        if x:
            _arrow(axes, (x - 0.08, 0.47), (x - 0.92, 0.47), curve=0.5)
    _arrow(axes, (-0.5, 0), (-1.1, 0))
    axes.text(-1.2, 0, "loss\n½ (s¹ − 1)²", ha="right", va="center", fontsize=9)
    groups = [
        (0, positive, f"{p} agents that θ pushes up", BLUE),
        (len(positive), negative, f"{n} that it pushes down", ORANGE),
    ]
    for first, members, text, color in groups:
        if members:
            last = first + len(members) - 1
            axes.plot([first - 0.4, last + 0.4], [-1.2, -1.2], color=color, linewidth=1.6)
            axes.text((first + last) / 2, -1.35, text, ha="center", va="top", color=color, fontsize=9)
    rule = "At every step each agent keeps half of what it has, and takes over half of what its right neighbour has."
    axes.text(-0.4, 1.85, rule, ha="left", va="center", fontsize=9, color=GREY)


def _draw_agent(axes: Axes, x: int, agent: int, up: bool) -> None:
    color = BLUE if up else ORANGE
    axes.scatter([x], [0], s=190, facecolor=color if up else "white", edgecolor=color, linewidth=1.6, zorder=3)
    inside = "white" if up else color
    axes.text(x, -0.02, str(agent), ha="center", va="center", fontsize=7, color=inside, zorder=4)
    axes.text(x, -0.8, "+θ" if up else "−θ", ha="center", va="center", fontsize=8, color=color)


def _shown(first: int, last: int, room: int = 13) -> list[int | None]:
    """The agents that are drawn; of a long row the middle is left out."""
    agents: list[int | None] = list(range(first, last + 1))
    return agents if len(agents) <= room else [*agents[:8], None, *agents[-3:]]


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], curve: float = 0.0) -> None:
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 7, "color": GREY, "linewidth": 0.9}
    axes.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={curve}", shrinkA=0, shrinkB=0, **look))


def _draw_response(axes: Axes, p: int, n: int, lengths: list[int]) -> None:
    r = impulse_response(p, n)
    shown = r[: int(np.flatnonzero(np.abs(r) > 0.01)[-1]) + 3]
    m = np.arange(len(shown))
    axes.bar(m[shown > 0], shown[shown > 0], color=BLUE, alpha=0.75, width=0.72)
    axes.bar(
        m[shown <= 0], shown[shown <= 0], facecolor="white", hatch="/////", edgecolor=ORANGE, linewidth=0.8, width=0.72
    )
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(xlabel="m, steps since the push", xlim=(-0.8, len(shown)), ylim=(min(-0.3, 1.15 * r.min()), 1.45))
    axes.set_title("What a push by one unit of θ does to the first agent m steps later, and how much of it truncated\n"
                   "BPTT sees (lines: 1 − m/L)", fontsize=10)  # fmt: skip
    for length in sorted(set(lengths)):
        end = min(length, len(shown))
        axes.plot([0, end], [1, 1 - end / length], color=BLACK, linewidth=1.0, linestyle=(0, (4, 1.5)))
        inside = length < len(shown)
        axes.annotate(f"L = {length}", (end, 1 - end / length), xytext=(4, 3 if inside else 0),
                      textcoords="offset points", va="bottom" if inside else "center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5}, fontsize=9)  # fmt: skip
    up, down = r[r > 0].sum(), r[r < 0].sum()
    if up:
        axes.text(0, 1.08, f"near: {up:+.1f} in all", color=BLUE, va="bottom", fontsize=9)
    if down:
        at = int(np.argmin(shown))
        axes.text(at, 0.06, f"far: {down:+.1f} in all", color=ORANGE, ha="center", va="bottom", fontsize=9)
    note = f"together {r.sum():+.1f}: the first agent comes\nto rest at 1 where θ = {optimum(p, n):+.3f}"
    axes.text(0.995, 0.04, note, transform=axes.transAxes, ha="right", va="bottom", fontsize=9)
