"""The figure of `artbp lengths`, drawn from its files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from artbp._figure import BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, blank, keep, styled
from artbp._folder import read_json

FEW = 10  # draws, of which a point says little
MARKS = [(BLUE, "o"), (GREEN, "s"), (PURPLE, "^"), (ORANGE, "D")]


def draw(folder: Path) -> list[Path]:
    """lengths: how often a segment is that long; drawn as points, exact as lines."""
    laws, config = read_json(folder / "lengths.json"), read_json(folder / "config.json")
    with styled():
        figure = blank(6.4, 4.2)
        axes = figure.add_axes((0.12, 0.13, 0.85, 0.77))
        axes.set_title(f"Segment lengths of PowerLaw(mean={config['mean']:g}, alpha=α)")
        axes.set(xlabel="length, steps", ylabel="probability of that length", xscale="log", yscale="log")
        for (color, marker), law in zip(itertools.cycle(MARKS), laws, strict=False):
            edges = law["edges"]
            middles = [(a * (b - 1)) ** 0.5 for a, b in itertools.pairwise(edges)]
            axes.plot(middles, law["density_exact"], color=color, linewidth=1.2)
            widths = [b - a for a, b in itertools.pairwise(edges)]
            counts = [y * width * config["draws"] for y, width in zip(law["density"], widths, strict=True)]
            look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 4, "linestyle": "none"}
            for few, face in ((False, color), (True, "white")):
                seen = [
                    (x, y)
                    for x, y, count in zip(middles, law["density"], counts, strict=True)
                    if y > 0 and (count < FEW) == few
                ]
                label = f"α = {law['alpha']:g}" if not few else None
                axes.plot(*zip(*seen, strict=True) if seen else ([], []), markerfacecolor=face, label=label, **look)
        axes.axvline(config["mean"], color=PALE, linewidth=0.8, zorder=0)
        axes.text(config["mean"], 0.97, " mean", transform=axes.get_xaxis_transform(), va="top", fontsize=9, color=GREY)
        axes.legend(
            frameon=False,
            title=f"lines: closed form\npoints: drawn\n(hollow: fewer than {FEW} draws)",
            title_fontsize=9,
            loc="lower left",
        )
        return keep(figure, folder, "lengths")
