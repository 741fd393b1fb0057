"""`artbp plot DIR…`: draws the figures of folders of results, from their files alone."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from artbp._folder import FolderError, read_config

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
    experiments = {folder: str(read_config(folder).get("experiment")) for folder in folders}
    for folder, experiment in experiments.items():
        if experiment not in [*DRAWERS, TRAINING]:
            raise FolderError(
                f"{folder} holds the experiment {experiment!r}, for which there are no figures.",
                f"There are some for {', '.join([*DRAWERS, TRAINING])}.",
            )
    kinds = set(experiments.values())
    if kinds == {TRAINING}:
        trained = importlib.import_module("artbp.train.figures")
        return _drawn(folders[0], lambda: trained.draw(folders, out))
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
        for figure in _drawn(folder, partial(importlib.import_module(DRAWERS[experiment]).draw, folder))
    ]


def _drawn(folder: Path, drawer: Callable[[], list[Path]]) -> list[Path]:
    """What it draws; files that are valid JSON but hold something else are an error in words."""
    try:
        return drawer()
    except OSError as error:
        raise FolderError(
            f"{folder} cannot be written to: {error.strerror}.", "Copy it to where you may write, and draw there."
        ) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FolderError(
            f"{folder} holds files that no run has written so: {type(error).__name__}, {error}.",
            "They were changed after the run, or are another version's. Restore them, or run again.",
        ) from error
