"""`artbp plot DIR…`: draws the figures of folders of results, from their files alone."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from artbp._folder import FolderError, read_json

# What a folder's config.json calls its experiment, and the module whose draw(folder) draws it into that folder.
DRAWERS = {
    "compare": "artbp.experiments.compare_figures",
    "influence-balancing": "artbp.experiments.influence_figures",
    "lengths": "artbp.experiments.lengths_figures",
}
TRAINING = "train"  # whose figures put several runs side by side: draw(folders, out)


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="artbp plot", description="Draw the figures of folders of results again, without running anything."
    )
    parser.add_argument(
        "folders",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="what a run was told to write with --out; several runs of `artbp train` are drawn side by side",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="where the figures of `artbp train` go (default: the first DIR/plots)",
    )
    options = parser.parse_args(arguments)
    try:
        figures = draw(options.folders, options.out)
    except FolderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for figure in figures:
        print(figure)
    return 0


def draw(folders: list[Path], out: Path | None = None) -> list[Path]:
    """Draws all figures of the folders, and says which."""
    experiments = {folder: read_json(folder / "config.json").get("experiment") for folder in folders}
    for folder, experiment in experiments.items():
        if experiment not in [*DRAWERS, TRAINING]:
            raise FolderError(
                f"{folder} holds the experiment {experiment!r}, for which there are no figures.",
                f"There are some for {', '.join([*DRAWERS, TRAINING])}.",
            )
    kinds = set(experiments.values())
    if kinds == {TRAINING}:
        figures: list[Path] = importlib.import_module("artbp.train.figures").draw(folders, out)
        return figures
    if TRAINING in kinds:
        other = next(folder for folder, experiment in experiments.items() if experiment != TRAINING)
        raise FolderError(
            f"{other} holds the experiment {experiments[other]!r}, which cannot be drawn beside runs of `artbp train`.",
            "Pass the folders of one kind at a time.",
        )
    if out is not None:
        raise FolderError(
            f"--out {out} is for runs of `artbp train`: the figures of the experiment "
            f"{experiments[folders[0]]!r} go into its own folder.",
            "Leave --out away.",
        )
    return [
        figure
        for folder, experiment in experiments.items()
        for figure in importlib.import_module(DRAWERS[experiment]).draw(folder)
    ]
