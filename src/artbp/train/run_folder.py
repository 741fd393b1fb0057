"""A run's folder: what stands in it, and how it is read and written.

    config.json      the options, and what they were run on; written before anything slow
    env.json         versions and the kind of machine
    vocabulary.json  the symbols, in the order of the logits, and the SHA-256 of the text
    metrics.jsonl    one row a line, see :class:`Metrics`
    summary.json     where the run stands, or how it ended
    checkpoints/     last.pt, previous.pt, best.pt
    plots/           figures, from `artbp plot`

With `--runs N` the folder holds one such folder for each seed, `seed-0`, `seed-1`, …, a config.json with "seeds" in
place of "seed", and a summary.json over all of them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from artbp._folder import FolderError, environment, read_json, refuse_other, write_bytes, write_json

EXPERIMENT = "train"


class Metrics:
    """metrics.jsonl: rows that are appended as they come, and cut back to where a checkpoint was taken.

    Every row has "kind", "epoch" (from 0), "update", "step" (of time, over all passes) and "characters" (of all lanes).
    Those of kind "train" sum up the updates since the one before: "bpc", "rate" (of learning, at the last of them),
    "lengths" (of their segments), "gradient_norm" (their mean, before clipping), "clipped" (the share of them that was
    clipped), "memory" (the peak so far, in bytes: of the accelerator, or of the process) and "seconds" (of training, so
    far). Those of kind "evaluation" have "split", "bpc", "median_lane_bpc", "worst_lane_bpc" and "seconds".
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
    return (folder / "config.json").exists() and "seeds" not in read_config(folder)


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


def read_config(folder: Path) -> dict[str, Any]:
    """The options of a run, or, with "seeds" in place of "seed", those of several."""
    config: dict[str, Any] = read_json(folder / "config.json")
    if config.get("experiment") != EXPERIMENT:
        raise FolderError(
            f"{folder} holds another experiment, {config.get('experiment')}, and no run of `artbp train`.",
            "Pass the folder that `artbp train` was told to write with --out.",
        )
    return config


def prepare(folder: Path, config: dict[str, Any], *, resume: bool, overwrite: bool) -> bool:
    """Makes a folder of a run, or takes up what it holds; returns whether the run in it is finished.

    config.json is written here, before anything slow.
    """
    if (folder / "config.json").exists():
        read_config(folder)
        if overwrite:
            _clear(folder)
        elif resume:
            return _complete(folder)
        else:
            refuse_other(folder, config)
            if not _complete(folder):
                raise FolderError(
                    f"{folder} holds this run, unfinished.",
                    f"`artbp train --resume {folder}` goes on with it; --overwrite starts anew.",
                )
            return True
    elif folder.is_dir() and any(folder.iterdir()):
        raise FolderError(f"{folder} is not empty, and holds no run.", "Pass a new folder with --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", config)
        write_json(folder / "env.json", environment())
    except OSError as error:
        raise FolderError(f"{folder} cannot be written: {error.strerror}.", "Pass another folder with --out.") from None
    return False


def _complete(folder: Path) -> bool:
    return (folder / "summary.json").exists() and bool(read_json(folder / "summary.json")["complete"])


def _clear(folder: Path) -> None:
    """Removes what `artbp train` writes, and nothing else."""
    for path in [folder, *folder.glob("seed-*")]:
        for name in ("config.json", "env.json", "vocabulary.json", "metrics.jsonl", "summary.json"):
            (path / name).unlink(missing_ok=True)
        for name in ("checkpoints", "plots", "tensorboard"):
            shutil.rmtree(path / name, ignore_errors=True)
