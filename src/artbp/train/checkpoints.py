"""Checkpoints that survive whatever ends a run: written atomically, checksummed, the last two kept."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import torch

from artbp._folder import FolderError, sync
from artbp._version import __version__

FORMAT = 1  # of what a run saves; to be raised when an older version could not go on with it, or this one with an older
_MARK = b"sha256:"
_COMMENT = len(_MARK) + 64


class DamagedError(Exception):
    """A checkpoint that is not what was written: what is wrong with it."""


def encode(state: dict[str, Any]) -> bytes:
    """What torch.save writes, with its SHA-256 in the comment that ends a zip file; torch.load reads it as it is."""
    file = io.BytesIO()
    torch.save(state, file)
    content = file.getvalue()
    comment = _MARK + hashlib.sha256(content).hexdigest().encode()
    return content[:-2] + struct.pack("<H", len(comment)) + comment  # the last two bytes are the comment's length: 0


def decode(content: bytes, device: Any = "cpu") -> dict[str, Any]:
    """The state that :func:`encode` was given, or DamagedError."""
    body, comment = content[:-_COMMENT], content[-_COMMENT:]
    if not comment.startswith(_MARK):
        raise DamagedError("it has no checksum at its end: it is cut short, or no checkpoint of artbp's")
    if _MARK + hashlib.sha256(body[:-2] + b"\0\0").hexdigest().encode() != comment:
        raise DamagedError("its content does not have the checksum that it was written with")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise DamagedError(f"torch cannot read it ({str(error).splitlines()[0]})") from None
    return state


def read(path: Path, device: Any = "cpu") -> dict[str, Any]:
    """The state in the file; DamagedError where it is not what was written, FolderError where it is no use here."""
    try:
        state = decode(path.read_bytes(), device)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}.", "Make it readable, or restore it.") from None
    written = state.get("format", FORMAT)
    if written != FORMAT:
        raise FolderError(
            f"{path} was written by artbp {state.get('artbp')} in format {written}, and artbp {__version__} reads "
            f"format {FORMAT}.",
            f"Use artbp {state.get('artbp')} for this run, or start a new one with --out.",
        )
    return state


class Checkpoints:
    """The folder `checkpoints` of a run: last.pt, previous.pt (the one before it), and best.pt.

    A file appears under its name only when all of it is on the disk, and at every moment one whole checkpoint stands
    under last.pt or previous.pt, so that neither a kill nor a full disk nor a power cut can leave the run without one.
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoints"

    def save(self, state: dict[str, Any], *, best: bool = False) -> None:
        """Writes last.pt, after which the one before is previous.pt; with `best`, the same content as best.pt too."""
        content = encode({**state, "format": FORMAT, "artbp": __version__, "torch": str(torch.__version__)})
        self.folder.mkdir(parents=True, exist_ok=True)
        if best:
            self._write("best.pt", content)
        last, previous = self.folder / "last.pt", self.folder / "previous.pt"
        temporary = self._temporary("last.pt", content)
        if last.exists():
            os.replace(last, previous)
        os.replace(temporary, last)
        sync(self.folder)

    def load(self, device: Any = "cpu") -> tuple[dict[str, Any] | None, list[str]]:
        """(the newest whole state or None where there is none yet, what there is to say about damaged ones)."""
        notes: list[str] = []
        for name in ("last.pt", "previous.pt"):
            path = self.folder / name
            if not path.exists():
                continue
            try:
                return read(path, device), notes
            except DamagedError as error:
                notes.append(f"{path} is damaged: {error}.")
        if notes:
            raise FolderError("\n".join(notes), self._way_out())
        return None, notes

    def take_up(self) -> tuple[dict[str, Any] | None, list[str]]:
        """What `load` returns, for the process that is to write here: it tidies what the one before it left."""
        found = self.load()
        for path in self.folder.glob(".*.new"):
            path.unlink()
        if found[1]:
            # Out of the way of the next checkpoint, which would put it in place of the whole one.
            os.replace(self.folder / "last.pt", self.folder / "damaged.pt")
            sync(self.folder)
        return found

    def load_best(self, device: Any = "cpu") -> dict[str, Any]:
        """The checkpoint of the best evaluation, or the last one where there was no evaluation yet."""
        path = self.folder / "best.pt"
        if path.exists():
            try:
                return read(path, device)
            except DamagedError as error:
                raise FolderError(
                    f"{path} is damaged: {error}.",
                    "Restore it from a copy, pass --checkpoint last to take the last one instead (`artbp evaluate`, "
                    "`sample` and `export` take it), or train anew.",
                ) from None
        state, _ = self.load(device)
        if state is None:
            raise FolderError(
                f"{self.folder.parent} has no checkpoint: nothing was trained there yet.",
                "Pass the folder of a run, as `artbp train` was told to write it with --out.",
            )
        return state

    def _way_out(self) -> str:
        best, anew = self.folder / "best.pt", "or start the run anew with --overwrite."
        try:
            epoch = read(best)["epoch"]
        except (DamagedError, FolderError):
            return f"There is no older one. Restore one of them from a copy, {anew}"
        return f"{best}, from after pass {epoch}, is whole: copy it to last.pt to go on from there, {anew}"

    def _write(self, name: str, content: bytes) -> None:
        os.replace(self._temporary(name, content), self.folder / name)

    def _temporary(self, name: str, content: bytes) -> Path:
        """The content on the disk under another name: a full disk shows here, and leaves all files as they were."""
        path = self.folder / f".{name}.new"
        try:
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path
