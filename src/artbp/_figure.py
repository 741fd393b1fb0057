"""How all figures look, and how they are kept: PNG and SVG, the same bytes for the same data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from artbp._folder import write_bytes

# Okabe & Ito's colours, which colour-blind eyes tell apart; everything is told apart by more than its colour.
BLACK, BLUE, ORANGE, GREEN, PURPLE, SKY = "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
GREY, PALE = "#555555", "#BBBBBB"

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure looks the same everywhere
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.labelcolor": BLACK,
    "savefig.dpi": 160,
    "svg.hashsalt": "artbp",
    "svg.fonttype": "path",
    "path.simplify": True,
}


def blank(width: float, height: float) -> Figure:
    """A figure of that many inches, without a window or a global state behind it."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def styled() -> Any:
    """A context in which figures are drawn and kept."""
    return matplotlib.style.context(STYLE)


def keep(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes name.png and name.svg; nothing in them tells when."""
    paths = []
    for kind, metadata in {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}.items():
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata=metadata)
        write_bytes(folder / f"{name}.{kind}", content.getvalue())
        paths.append(folder / f"{name}.{kind}")
    return paths
