"""`artbp plot DIR`: draws the figures of a folder of results, from its files alone."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from artbp._folder import FolderError, read_json

# What a folder's config.json calls its experiment, and the module whose draw(folder) draws it.
DRAWERS = {
    "compare": "artbp.experiments.compare_figures",
    "influence-balancing": "artbp.experiments.influence_figures",
    "lengths": "artbp.experiments.lengths_figures",
}


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="artbp plot", description="Draw the figures of a folder of results again, without running anything."
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="what a run was told to write with --out")
    folder = parser.parse_args(arguments).folder
    try:
        figures = draw(folder)
    except FolderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for figure in figures:
        print(figure)
    return 0


def draw(folder: Path) -> list[Path]:
    """Draws all figures of a folder of results, and says which."""
    experiment = read_json(folder / "config.json").get("experiment")
    if experiment not in DRAWERS:
        raise FolderError(
            f"{folder} holds the experiment {experiment!r}, for which there are no figures.",
            f"There are some for {', '.join(DRAWERS)}.",
        )
    figures: list[Path] = importlib.import_module(DRAWERS[experiment]).draw(folder)
    return figures
