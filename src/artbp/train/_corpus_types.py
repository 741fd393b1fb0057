"""What every corpus is made of: characters as symbols, and three splits of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Symbols = npt.NDArray[np.unsignedinteger[Any]]

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
SPLITS = ("train", "valid", "test")
_CODE_POINTS = 0x110000
_BLOCK = 2**20  # symbols looked at together, so that a text in a memory map is never in memory as a whole


class CorpusError(Exception):
    """A text that cannot serve: what is wrong with it, and what to do instead."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what}\n{instead}")


@dataclass(frozen=True)
class Vocabulary:
    """Characters and their symbols: the index in `characters`.

    Args:
        characters: each once, by code point.
        unknown: whether there is one symbol more, the last, for every character that is not among them. Training
            never meets it, so what a model says of it was not learned.

    Example:
        >>> vocabulary = Vocabulary(("a", "b"), unknown=True)
        >>> vocabulary.encode("abba!").tolist(), vocabulary.decode([1, 0, 2])
        ([0, 1, 1, 0, 2], 'ba�')
    """

    characters: tuple[str, ...]
    unknown: bool

    def __post_init__(self) -> None:
        given: tuple[object, ...] = self.characters
        if any(not isinstance(character, str) or len(character) != 1 for character in given):
            raise ValueError("a vocabulary got what is no single character. Pass a tuple of strings of length 1.")
        if list(self.characters) != sorted(set(self.characters)):
            raise ValueError("a vocabulary got characters in disorder or twice. Pass tuple(sorted(set(text))).")

    def __len__(self) -> int:
        return len(self.characters) + self.unknown

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every symbol: uint8, uint16 or uint32."""
        return np.min_scalar_type(max(len(self) - 1, 0))

    def encode(self, text: str) -> Symbols:
        """The symbols of a text; a character that has none becomes the unknown symbol or, without it, CorpusError."""
        symbols = self._table[code_points(text)]
        if not self.unknown:
            unseen = symbols == len(self.characters)
            if unseen.any():
                raise self._refusal(text, int(np.count_nonzero(unseen)))
        return symbols.astype(self.dtype, copy=False)

    def decode(self, indices: Any) -> str:
        """The text of symbols, in any sequence of integers; UNKNOWN for the unknown symbol."""
        indices = np.asarray(indices).reshape(-1)
        if indices.size == 0:
            return ""
        if indices.dtype.kind not in "iu" or indices.min() < 0 or indices.max() >= len(self):
            raise ValueError(
                f"decode got {indices.min()} to {indices.max()}, and the symbols of this vocabulary are the whole "
                f"numbers 0 to {len(self) - 1}. Decode with the vocabulary that the symbols were encoded with."
            )
        points = code_points("".join(self.characters) + UNKNOWN * self.unknown)
        encoded: bytes = points[indices].astype("<u4", copy=False).tobytes()
        return encoded.decode("utf-32-le", "surrogatepass")

    def unseen(self, text: str) -> int:
        """How many characters of the text are not in `characters`."""
        return int(np.count_nonzero(self._table[code_points(text)] == len(self.characters)))

    def to_json(self) -> dict[str, Any]:
        """As plain things, for a file."""
        return {"characters": list(self.characters), "unknown": self.unknown}

    @classmethod
    def from_json(cls, value: Any) -> Vocabulary:
        """What `to_json` returned."""
        try:
            characters, unknown = value["characters"], value["unknown"]
            if not isinstance(unknown, bool):
                raise TypeError(f"unknown is {unknown!r}")
            return cls(tuple(characters), unknown)
        except (KeyError, TypeError, ValueError) as error:
            raise CorpusError(
                f"This is no vocabulary, or a damaged one: {error}.", "Restore the file it was read from."
            ) from None

    @cached_property
    def _table(self) -> Symbols:
        """The symbol of each code point; len(characters) for those that have none."""
        none = len(self.characters)
        table = np.full(_CODE_POINTS, none, np.min_scalar_type(none))
        table[code_points("".join(self.characters))] = np.arange(none)
        return table

    def _refusal(self, text: str, count: int) -> CorpusError:
        known, found = set(self.characters), dict[str, int]()
        for character in text:
            if character not in known:
                found[character] = found.get(character, 0) + 1
        most = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{character!r} ({times:,} times)" for character, times in most[:5])
        return CorpusError(
            f"The text has {count:,} characters for which this vocabulary of {len(self)} has no symbol: {shown}"
            + (f" and {len(most) - 5} more." if len(most) > 5 else "."),
            "Replace them in the text, or train on a text in which they occur.",
        )


@dataclass
class Corpus:
    """A text to train on, as symbols.

    Attributes:
        name: what to call it.
        vocabulary: of the training split.
        splits: "train", "valid" and "test", each a 1-D array of symbols, possibly in a memory map.
        notes: what there is to say of it, in sentences.
        digest: the SHA-256 of its text, to tell it from any other.
    """

    name: str
    vocabulary: Vocabulary
    splits: dict[str, Symbols]
    notes: tuple[str, ...]
    digest: str


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The code point of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


def bounds(characters: int) -> dict[str, tuple[int, int]]:
    """Where each split begins and ends: 90%, 5% and 5% of so many characters."""
    marks = [characters * percent // 100 for percent in (0, 90, 95, 100)]
    return dict(zip(SPLITS, pairwise(marks), strict=True))


def cut(name: str, symbols: Symbols, vocabulary: Vocabulary, digest: str, *more: str) -> Corpus:
    """A corpus of one text, whose splits are the first 90% of it and twice 5%."""
    splits = {split: symbols[first:last] for split, (first, last) in bounds(len(symbols)).items()}
    return Corpus(name, vocabulary, splits, (*more, *_notes(vocabulary, splits)), digest)


def _notes(vocabulary: Vocabulary, splits: dict[str, Symbols]) -> list[str]:
    unknown, notes = len(vocabulary.characters), []
    for split in SPLITS[1:]:
        symbols = splits[split]
        count = sum(
            int(np.count_nonzero(symbols[first : first + _BLOCK] == unknown))
            for first in range(0, len(symbols), _BLOCK)
        )
        if count:
            notes.append(
                f"{count:,} of the {len(symbols):,} characters in the {split} split ({count / len(symbols):.2%}) are "
                "ones that training never sees; all of them count as one unknown symbol."
            )
    if "\0" in vocabulary.characters:
        notes.append("The text holds NUL characters: is it text at all, or perhaps in UTF-16?")
    return notes
