"""Any UTF-8 text as a corpus, read in pieces, so that memory stays bounded whatever its size."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from artbp.train import _corpus_cache as caching
from artbp.train._corpus_types import Corpus, CorpusError, Symbols, Vocabulary, bounds, code_points, cut

CACHED_FROM = 16 * 2**20  # bytes; what is smaller is encoded anew at every start, in a fraction of a second
_PIECE = 2**18  # bytes read at a time
_SHORTEST = 2  # characters in a split: one to read and one to predict
_SIGNATURES = (  # what files begin with that are often taken for text
    (codecs.BOM_UTF32_LE, "UTF-32", "iconv -f UTF-32 -t UTF-8"),
    (codecs.BOM_UTF16_LE, "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (codecs.BOM_UTF16_BE, "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\x1f\x8b", "a gzip archive", "gunzip -c"),
    (b"BZh", "a bzip2 archive", "bunzip2 -c"),
    (b"\xfd7zXZ", "an xz archive", "xz -dc"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "zstd -dc"),
    (b"PK\x03\x04", "a zip archive", "unzip -p"),
)


def from_file(path: str | Path, *, cache: str | Path | None = None) -> Corpus:
    r"""Any UTF-8 text: the first 90% of its characters to train on, 5% to validate, 5% to test.

    Characters are those of the training split; what else occurs in the others is one unknown symbol. Line ends stay as
    they are in the file, and a byte order mark at its beginning is dropped.

    From 16 MiB on, the symbols are kept in a file in the folder `cache`, under the SHA-256 of the text, and mapped into
    memory: processes share them, and a text that was encoded once is only hashed the next time. The folder is
    $XDG_CACHE_HOME/artbp unless told, ~/.cache/artbp without that variable, %LOCALAPPDATA%\artbp on Windows.
    """
    path = Path(path)
    with _open(path) as file:
        digest, size = _digest(path, file)
        if size == 0:
            raise CorpusError(f"{path} is empty.", "Pass a file of UTF-8 text with --corpus.")
        if size < CACHED_FROM:
            vocabulary, _ = _survey(path, file)
            symbols = np.concatenate([*_encoded(path, file, vocabulary, digest)])
        else:
            vocabulary, symbols = _cached(path, file, digest, caching.entry(cache, digest))
    return cut(path.name, symbols, vocabulary, digest)


def read_pieces(path: str | Path) -> Iterator[str]:
    """Any UTF-8 text from its beginning to its end, in pieces, for a vocabulary that is there already."""
    with _open(Path(path)) as file:
        yield from _pieces(Path(path), file)


def _cached(path: Path, file: IO[bytes], digest: str, entry: Path) -> tuple[Vocabulary, Symbols]:
    found = caching.load(entry)
    if found is None:
        vocabulary, length = _survey(path, file)
        caching.store(entry, vocabulary, length, _encoded(path, file, vocabulary, digest))
        found = caching.load(entry)
    if found is None:
        raise CorpusError(
            f"{entry} does not hold what was just written there.",
            "Is something else at work in that folder? Pass another one with --cache.",
        )
    return found


def _digest(path: Path, file: IO[bytes]) -> tuple[str, int]:
    """(the SHA-256, the number of bytes)."""
    hashed, size = hashlib.sha256(), 0
    while piece := _read(path, file, _PIECE):
        hashed.update(piece)
        size += len(piece)
    return hashed.hexdigest(), size


def _survey(path: Path, file: IO[bytes]) -> tuple[Vocabulary, int]:
    """(the vocabulary of the training split, the number of characters), in one pass.

    Where that split ends is known only once all is counted; but a character is in it just if it was first seen there.
    """
    first_seen = np.full(0x110000, -1, np.int64)
    length = 0
    for text in _pieces(path, file):
        points = code_points(text)
        new = np.flatnonzero(first_seen[points] < 0)
        fresh, first = np.unique(points[new], return_index=True)
        first_seen[fresh] = length + new[first]
        length += len(points)
    shortest = min(last - first for first, last in bounds(length).values())
    if shortest < _SHORTEST:
        raise CorpusError(
            f"{path} has {length:,} characters, too few to train on 90% of them, validate on 5% and test on 5%.",
            "Pass a longer text with --corpus: 40 characters can be split, and some 100,000 are worth it.",
        )
    _, end = bounds(length)["train"]
    (seen,) = np.nonzero((first_seen >= 0) & (first_seen < end))
    return Vocabulary(tuple(map(chr, seen.tolist())), unknown=True), length


def _encoded(path: Path, file: IO[bytes], vocabulary: Vocabulary, digest: str) -> Iterator[Symbols]:
    """The symbols, piece by piece; refused if they are no longer those of the text that was hashed."""
    hashed = hashlib.sha256()
    for text in _pieces(path, file, hashed):
        yield vocabulary.encode(text)
    if hashed.hexdigest() != digest:
        raise CorpusError(f"{path} was changed while it was read.", "Start again once nothing writes to it.")


def _pieces(path: Path, file: IO[bytes], hashed: hashlib._Hash | None = None) -> Iterator[str]:
    """The text from its beginning, in pieces. A character may straddle two of them."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    file.seek(0)
    position, piece = 0, _read(path, file, len(codecs.BOM_UTF8))
    while True:
        if hashed is not None:
            hashed.update(piece)
        if position or piece != codecs.BOM_UTF8:
            pending, _ = decoder.getstate()
            try:
                text = decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, position - len(pending) + error.start, error) from None
            if text:
                yield text
        if not piece:
            return
        position += len(piece)
        piece = _read(path, file, _PIECE)


def _open(path: Path) -> IO[bytes]:
    try:
        if path.is_file():
            return path.open("rb")
        found = path.exists()
    except OSError as error:
        raise _unreadable(path, error) from None
    if not found:
        raise CorpusError(f"There is no file {path}.", "Pass a text that exists with --corpus.")
    kind = "a folder" if path.is_dir() else "no regular file, and would have to be read more than once"
    raise CorpusError(f"{path} is {kind}.", "Pass one file of UTF-8 text with --corpus.")


def _read(path: Path, file: IO[bytes], size: int) -> bytes:
    try:
        return file.read(size)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> CorpusError:
    return CorpusError(
        f"{path} cannot be read: {error.strerror or error}.", "Pass a file that you may read with --corpus."
    )


def _not_utf8(path: Path, offset: int, error: UnicodeDecodeError) -> CorpusError:
    byte = error.object[error.start]
    what = f"{path} is not UTF-8: byte {offset:,} (0x{byte:02X}) begins no character, or one that is cut off."
    with path.open("rb") as file:
        beginning = file.read(4096)
    for signature, kind, command in _SIGNATURES:
        if beginning.startswith(signature):
            return CorpusError(f"{what} By its first bytes it is {kind}.", f"Convert it: {command} {path} > text.txt")
    if error.reason == "unexpected end of data":
        return CorpusError(
            f"{what} The file ends there, in the middle of a character: it was cut short, as head -c or a download "
            "that broke off does.",
            f"Fetch it again, or drop what is incomplete: iconv -c -f UTF-8 -t UTF-8 {path} > text.txt",
        )
    if b"\0" in beginning:
        return CorpusError(
            f"{what} There are NUL bytes in it: it is no text, or one in UTF-16.",
            f"If it is text, convert it: iconv -f UTF-16LE -t UTF-8 {path} > text.txt",
        )
    return CorpusError(
        f"{what} Most likely it is in an older encoding, Windows-1252 or ISO-8859-1.",
        f"Convert it: iconv -f WINDOWS-1252 -t UTF-8 {path} > text.txt",
    )
