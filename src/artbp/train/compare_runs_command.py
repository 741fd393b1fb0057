"""`artbp compare-runs`: runs in a table, seeds taken together, differences with their interval."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from artbp._folder import FolderError


@dataclass(frozen=True)
class Options:
    """Put runs side by side: runs that differ in their seed alone are one arm."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="")]
    """what `artbp train` was told to write with --out; the first one is what the others are held against"""
    unfinished: bool = False
    """take runs that are still going, or were stopped, as they stand"""
    json: bool = False
    """print everything as JSON"""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = tyro.cli(Options, args=arguments, prog="artbp compare-runs", config=(tyro.conf.FlagCreatePairsOff,))
    from artbp.train.arms import arms
    from artbp.train.compare_runs import compare, table

    try:
        if not options.runs:
            raise FolderError("no run was named.", "Pass the folders of runs: artbp compare-runs RUN RUN ...")
        rows = compare(arms(list(options.runs)), unfinished=options.unfinished)
        if not any(row.seeds for row in rows):
            raise FolderError(
                "none of these runs is finished: " + ", ".join(run for row in rows for run in row.left_out) + ".",
                "Pass --unfinished to take them as they stand, or go on with `artbp train --resume RUN`.",
            )
    except FolderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([row.to_json() for row in rows], ensure_ascii=False, indent=2))
    else:
        print(table(rows))
    return 0
