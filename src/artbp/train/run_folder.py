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
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from artbp._folder import FolderError, environment, read_json, refuse_other, sync, write_bytes, write_json

if sys.platform != "win32":
    import fcntl

EXPERIMENT = "train"
_FILES = ("env.json", "vocabulary.json", "metrics.jsonl", "summary.json", "config.json")
_FOLDERS = ("checkpoints", "plots", "tensorboard")


class Metrics:
    """metrics.jsonl: rows that are appended as they come, and cut back to where a checkpoint was taken.

    Every row has "kind", "epoch" (from 0), "update", "step" (of time, over all passes) and "characters" (of all lanes).
    Those of kind "train" sum up the updates since the one before: "bpc", "rate" (of learning, at the last of them),
    "lengths" (of their segments), "gradient_norm" (their mean, before clipping), "clipped" (the share of them that was
    clipped), "memory" (the peak so far, in bytes: of training on the accelerator, or of the process) and "seconds" (of
    training, so far). Those of kind "evaluation" have "split", "bpc", "median_lane_bpc", "worst_lane_bpc" and
    "seconds".
    """

    TIMES = ("seconds", "memory")  # all else is the same, bit for bit, in a run that was stopped and resumed

    def __init__(self, run: Path) -> None:
        self.path = run / "metrics.jsonl"
        self.rows = 0

    def append(self, **row: Any) -> None:
        """Writes one row, and has the system take it before going on."""
        line = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab", buffering=0) as file:
                rest = memoryview(line)
                while rest:  # a disk that is filling up takes a part, and fails at the next
                    rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, before)  # no half a line, whoever reads the rows before the run goes on
            raise
        self.rows += 1

    def sync(self) -> None:
        """Puts the rows on the disk, before a checkpoint that counts on them."""
        if self.path.exists():
            with self.path.open("ab") as file:
                os.fsync(file.fileno())

    def cut_back(self, rows: int) -> None:
        """Keeps the first `rows` rows: those of the checkpoint that the run goes on from."""
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        whole = sum(line.endswith(b"\n") for line in lines)  # a last line that was being written is none
        if whole < rows:
            raise FolderError(
                f"{self.path} has {whole} rows, and the checkpoint was taken after {rows}: rows were removed.",
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
    experiment = config.get("experiment") if hasattr(config, "get") else None  # whatever it was edited to
    if experiment != EXPERIMENT:
        raise FolderError(
            f"{folder} holds another experiment, {experiment}, and no run of `artbp train`.",
            "Pass the folder that `artbp train` was told to write with --out.",
        )
    return config


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Inside, no other process trains in the folder, which is made if need be.

    The lock is on the folder itself: no file is left, and the system lets go of it when the process ends, however that
    comes about. Where the system or its file system has no such locks, nothing is refused.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY) if sys.platform != "win32" else None
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        if handle is not None:
            _lock(folder, handle)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock(folder: Path, handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderError(
            f"{folder} is in use: another process is training there.",
            "Wait for its end or stop it, or pass another folder with --out.",
        ) from None
    except OSError:
        pass  # a network's file system, as a rule


def prepare(folder: Path, config: dict[str, Any], *, resume: bool, overwrite: bool) -> bool:
    """Makes a folder of a run, or takes up what it holds; returns whether the run in it is finished.

    config.json is written here, before anything slow.
    """
    try:
        return _prepare(folder, config, resume=resume, overwrite=overwrite)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _prepare(folder: Path, config: dict[str, Any], *, resume: bool, overwrite: bool) -> bool:
    if (folder / "config.json").exists():
        if overwrite:
            _refuse_to_clear_another(folder)
        else:
            read_config(folder)
        if resume and _complete(folder):
            return True
        _remove_temporary(folder)
        if overwrite or not (resume or _trained(folder)):  # where a mistyped --corpus ended a run, nothing is lost
            _clear(folder)
        elif resume:
            if not (folder / "env.json").exists():  # it was killed, or the disk was full, just before
                write_json(folder / "env.json", _environment())
            return False
        else:
            refuse_other(folder, config)
            if not _complete(folder):
                raise FolderError(
                    f"{folder} holds this run, unfinished.",
                    f"`artbp train --resume {folder}` goes on with it; --overwrite starts anew.",
                )
            return True
    elif folder.is_dir():
        _remove_temporary(folder)
        if any(folder.iterdir()):
            raise FolderError(f"{folder} is not empty, and holds no run.", "Pass a new folder with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "env.json", _environment())
    sync(folder)
    return False


def _environment() -> dict[str, Any]:
    """Versions and the kind of machine, with its accelerator."""
    import torch  # which a run imports anyway, and reading folders does not wait for

    cuda = torch.cuda.is_available()
    return {
        **environment(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
    }


def _trained(folder: Path) -> bool:
    """Whether anything came out of the run, or of one of its seeds."""
    places = [folder, *folder.glob("seed-*")]
    return any((place / name).exists() for place in places for name in ("metrics.jsonl", "checkpoints"))


def _complete(folder: Path) -> bool:
    try:
        summary = read_json(folder / "summary.json")
    except FolderError:
        return False  # not there yet, or damaged: the checkpoint says where the run stands
    return isinstance(summary, dict) and bool(summary.get("complete"))


def _refuse_to_clear_another(folder: Path) -> None:
    try:
        read_json(folder / "config.json")
    except FolderError:
        return  # damaged, and --overwrite is the way out
    read_config(folder)


def _clear(folder: Path) -> None:
    """Removes what `artbp train` writes, and nothing else.

    The folder's own config.json stays until another takes its place: a folder without one is nobody's to overwrite.
    """
    for path in [*folder.glob("seed-*"), folder]:
        for name in _FOLDERS:
            if (path / name).exists():
                shutil.rmtree(path / name)
        for name in _FILES:
            if path != folder or name != "config.json":
                (path / name).unlink(missing_ok=True)
        if path != folder and path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _remove_temporary(folder: Path) -> None:
    """What `write_bytes` was about to rename when the process was killed."""
    for name in _FILES:
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)


def _unwritable(folder: Path, error: OSError) -> FolderError:
    return FolderError(
        f"{folder} cannot be written: {error.strerror or error}.",
        "Make it writable or free some space, or pass another folder with --out.",
    )
