"""The figure of `artbp lengths`, drawn from its files."""

from __future__ import annotations

import itertools
from pathlib import Path

from artbp._figure import BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, blank, keep, styled
from artbp._folder import read_json

MARKS = [(BLUE, "o"), (GREEN, "s"), (PURPLE, "^"), (ORANGE, "D")]


def draw(folder: Path) -> list[Path]:
    """lengths: how often a segment is that long; drawn as points, exact as lines."""
    laws, config = read_json(folder / "lengths.json"), read_json(folder / "config.json")
    with styled():
        figure = blank(6.4, 4.2)
        axes = figure.add_axes((0.12, 0.13, 0.85, 0.77))
        axes.set_title(f"Segment lengths of PowerLaw(mean={config['mean']:g}, alpha=α)")
        axes.set(xlabel="length, steps", ylabel="probability of that length", xscale="log", yscale="log")
        for (color, marker), law in zip(MARKS, laws, strict=False):
            edges = law["edges"]
            middles = [(a * (b - 1)) ** 0.5 for a, b in itertools.pairwise(edges)]
            axes.plot(middles, law["density_exact"], color=color, linewidth=1.2)
            seen = [(x, y) for x, y in zip(middles, law["density"], strict=True) if y > 0]
            x, y = zip(*seen, strict=True)
            axes.plot(x, y, color=color, marker=marker, markersize=4, linestyle="none", label=f"α = {law['alpha']:g}")
        axes.axvline(config["mean"], color=PALE, linewidth=0.8, zorder=0)
        axes.text(config["mean"], 0.97, " mean", transform=axes.get_xaxis_transform(), va="top", fontsize=9, color=GREY)
        axes.legend(frameon=False, title="lines: closed form\npoints: drawn", title_fontsize=9, loc="lower left")
        return keep(figure, folder, "lengths")
