"""How much memory runs took, over time, beside the window that bounds it."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from artbp._figure import PALE, blank
from artbp.train.arms import Arm, window_name

_LINES = [(0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (7, 2, 1, 2))]


def figure(arms: list[tuple[Arm, str, str]]) -> Figure | None:
    """The peak so far, one line a run."""
    runs = [
        (arm, color, [row for row in run.of_kind("train") if row.get("memory")])
        for arm, color, _ in arms
        for run in arm.runs
    ]
    runs = [each for each in runs if each[2]]
    if not runs:
        return None
    longest = max(rows[-1]["seconds"] for _, _, rows in runs)
    unit, name = (60.0, "minutes") if longest > 300 else (1.0, "seconds")
    result = blank(6.4, 3.8)
    axes = result.add_axes((0.11, 0.14, 0.86, 0.75))
    axes.set_title("Memory: the highest so far")
    most = max(rows[-1]["memory"] for _, _, rows in runs)
    size, bytes_name = (1e9, "GB") if most >= 2e9 else (1e6, "MB")
    named: list[str] = []
    for arm, color, rows in runs:
        if arm.label not in named:
            named.append(arm.label)
            label: str | None = _named(arm)
        else:
            label = None
        axes.plot(
            [row["seconds"] / unit for row in rows],
            [row["memory"] / size for row in rows],
            color=color,
            linestyle=_LINES[named.index(arm.label) % len(_LINES)],
            linewidth=1.4,
            label=label,
            drawstyle="steps-post",
            marker="o" if len(rows) == 1 else "",
        )
    axes.set(xlabel=f"{name} of training", ylabel=bytes_name)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(0, 1.25 * most / size)
    axes.grid(axis="y", color=PALE, linewidth=0.5, alpha=0.6)
    axes.legend(frameon=False, fontsize=9, loc="best")
    return result


def _named(arm: Arm) -> str:
    """The arm's name, with the window if that does not say it."""
    return arm.label if "window" in arm.label else f"{arm.label}, {window_name(arm.config)}"
