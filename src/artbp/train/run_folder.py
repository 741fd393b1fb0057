"""A run's folder: what stands in it, and how it is read and written.

    config.json      the options, and what they were run on; written before anything slow
    env.json         versions and the kind of machine
    vocabulary.json  the symbols, in the order of the logits
    metrics.jsonl    one row a line, see :class:`Metrics`
    summary.json     where the run stands, or how it ended
    checkpoints/     last.pt, previous.pt, best.pt
    plots/           figures, from `artbp plot`

With `--runs N` the folder holds one such folder for each seed, `seed-0`, `seed-1`, …, and a config.json and a
summary.json over all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from artbp._folder import FolderError, read_json, write_bytes

EXPERIMENT = "train"


class Metrics:
    """metrics.jsonl: rows that are appended as they come, and cut back to where a checkpoint was taken.

    Every row has "kind", "epoch" (from 0), "update", "step" (of time, over all passes) and "characters" (of all lanes).
    Those of kind "train" sum up the updates since the one before: "bpc", "rate" (of learning, at the last of them),
    "lengths" (of their segments), "gradient_norm" (their mean, before clipping), "clipped" (the share of them that was
    clipped), "memory" (the peak so far, in bytes: of the accelerator, or of the process) and "seconds" (of training, so
    far). Those of kind "evaluation" have "split", "bpc", "worst_lane_bpc" and "seconds".
    """

    TIMES = ("seconds", "memory")  # all else is the same, bit for bit, in a run that was stopped and resumed

    def __init__(self, run: Path) -> None:
        self.path = run / "metrics.jsonl"
        self.rows = 0

    def append(self, **row: Any) -> None:
        """Writes one row, and has the system take it before going on."""
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())
        self.rows += 1

    def cut_back(self, rows: int) -> None:
        """Keeps the first `rows` rows: those of the checkpoint that the run goes on from."""
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        if len(lines) < rows:
            raise FolderError(
                f"{self.path} has {len(lines)} rows, and the checkpoint was taken after {rows}: rows were removed.",
                "Restore the file from a copy, or start the run anew with --overwrite.",
            )
        if len(lines) > rows:
            write_bytes(self.path, b"".join(lines[:rows]))
        self.rows = rows


def is_run(folder: Path) -> bool:
    """Whether the folder is that of a single run, finished or not."""
    return (folder / "vocabulary.json").exists()


def runs(folder: Path) -> list[Path]:
    """The folders of single runs that `folder` is or holds, by seed; refused where there are none."""
    if is_run(folder):
        return [folder]
    found = sorted((path for path in folder.glob("seed-*") if is_run(path)), key=lambda path: int(path.name[5:]))
    if not found:
        raise FolderError(
            f"{folder} holds no run of `artbp train`.",
            "Pass the folder that a run was told to write with --out.",
        )
    return found


def read_config(run: Path) -> dict[str, Any]:
    """The run's options."""
    config: dict[str, Any] = read_json(run / "config.json")
    if config.get("experiment") != EXPERIMENT:
        raise FolderError(
            f"{run} holds another experiment, {config.get('experiment')}, and no run of `artbp train`.",
            "Pass the folder that `artbp train` was told to write with --out.",
        )
    return config
