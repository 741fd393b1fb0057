"""Encoded texts on the disk, mapped into memory: one file for each SHA-256, replaced as a whole, so processes may race.

A file begins with one line of JSON, filled up with blanks to a multiple of 64 bytes; then come the symbols.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from artbp.train._corpus_types import CorpusError, Symbols, Vocabulary

FORMAT = 1  # to be raised with every change of the layout, or of how a text is encoded
_ALIGNED = 64


def entry(cache: str | Path | None, digest: str) -> Path:
    """The file for the text of that digest."""
    return (_default_folder() if cache is None else Path(cache)) / f"{digest}.symbols"


def load(path: Path) -> tuple[Vocabulary, Symbols] | None:
    """What `store` put there; None where nothing is, or where it is of another format or not whole."""
    try:
        with path.open("rb") as file:
            line = file.readline(2**25)
            size = os.fstat(file.fileno()).st_size
        header = json.loads(line)
        if header["format"] != FORMAT:
            return None
        vocabulary, length = Vocabulary.from_json(header["vocabulary"]), int(header["length"])
        if size != len(line) + length * vocabulary.dtype.itemsize or not line.endswith(b"\n"):
            return None
        symbols = np.memmap(path, _stored(vocabulary), mode="r", offset=len(line), shape=(length,))
    except (OSError, ValueError, KeyError, TypeError, CorpusError):
        return None
    return vocabulary, symbols


def store(path: Path, vocabulary: Vocabulary, length: int, pieces: Iterable[Symbols]) -> None:
    """Writes the symbols under another name and renames the file when it is complete."""
    header = {"format": FORMAT, "length": length, "vocabulary": vocabulary.to_json()}
    line = json.dumps(header).encode()
    line += b" " * (-(len(line) + 1) % _ALIGNED) + b"\n"
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:12]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(line)
            for piece in pieces:
                file.write(piece.astype(_stored(vocabulary), copy=False).data)
            file.flush()
            os.fsync(file.fileno())  # or a crash might leave the new name with nothing behind it
        os.chmod(temporary, 0o644)  # mkstemp makes files that nobody else may read
        _rename(temporary, path)
    except OSError as error:
        raise CorpusError(
            f"The encoded text cannot be kept in {path.parent}: {error.strerror or error}.",
            f"Pass a folder with --cache that you may write to and that has {_size(length, vocabulary)} free.",
        ) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _rename(temporary: str, path: Path) -> None:
    try:
        os.replace(temporary, path)
    except PermissionError:
        # Windows does not replace a file that another process has mapped; what that one wrote is just as good.
        if load(path) is None:
            raise


def _stored(vocabulary: Vocabulary) -> np.dtype[Any]:
    return vocabulary.dtype.newbyteorder("<")


def _size(length: int, vocabulary: Vocabulary) -> str:
    return f"{length * vocabulary.dtype.itemsize / 2**20:,.0f} MiB"


def _default_folder() -> Path:
    windows = os.environ.get("LOCALAPPDATA") if os.name == "nt" else None
    # A relative path in this variable is to be ignored, says the specification.
    folder = windows or os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(folder):
        return Path(folder) / "artbp"
    try:
        return Path.home() / ".cache" / "artbp"
    except RuntimeError:
        raise CorpusError(
            "This user has no home folder, and a text of this size is encoded into a file.",
            "Pass a folder for it with --cache.",
        ) from None
