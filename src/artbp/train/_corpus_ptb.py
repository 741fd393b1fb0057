"""The Penn Treebank as Mikolov split it, in characters, by the convention behind every published number.

A sentence a line: outer blanks stripped, each blank between words written as `_`, a newline at its end, and `<unk>`
spelt out as five characters. That makes 5,017,482 symbols to train on, and a vocabulary of 50. Where the blanks are
kept as they stand there are 5,059,550, and what a model reaches there does not compare.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from artbp.train._corpus_types import SPLITS, Corpus, CorpusError, Vocabulary

WORD_SHA256 = {
    "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}
COUNTS = {"train": 5_017_482, "valid": 393_042, "test": 442_423}
VOCABULARY = 50
TEXT_SHA256 = "b5288f611fa86e6fe1ae516fd13b273882193b44dbed3966bba82c668069beda"  # of all three, converted
_MEANT = "the Penn Treebank in Mikolov's version (10,000 words, rare ones as <unk>, numbers as N)"


def penn_treebank(folder: str | Path) -> Corpus:
    """The character-level Penn Treebank out of a folder that holds ptb.{train,valid,test}.txt, or ptb.char.* instead.

    The word-level files are checked by their SHA-256. Of the character-level ones no sum is published that we know of,
    so their conversion is checked: by its counts, and against that of the word-level ones.
    """
    folder = Path(folder)
    if not folder.is_dir():
        kind = "a file" if folder.exists() else "no folder that exists"
        raise CorpusError(f"{folder} is {kind}.", "Pass the folder that holds ptb.train.txt with --ptb.")
    words = {split: folder / f"ptb.{split}.txt" for split in SPLITS}
    characters = {split: folder / f"ptb.char.{split}.txt" for split in SPLITS}
    if all(path.is_file() for path in words.values()):
        texts = {split: _from_words(_read(path, WORD_SHA256[split])) for split, path in words.items()}
        source = "word level, checked by SHA-256"
    elif all(path.is_file() for path in characters.values()):
        texts = {split: _from_characters(path, _read(path)) for split, path in characters.items()}
        source = "character level, checked by the number of symbols"
    else:
        raise _missing(folder, words, characters)
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()
    vocabulary = Vocabulary(tuple(sorted(set(texts["train"]))), unknown=False)
    _check(folder, texts, vocabulary)
    counts = " / ".join(f"{len(text):,}" for text in texts.values())
    notes = [f"Penn Treebank, from files at {source}: {counts} symbols, a vocabulary of {len(vocabulary)}."]
    if digest != TEXT_SHA256:
        notes.append(
            "The counts are the usual ones, but the text is not the one that the word-level files give: numbers may "
            "not compare with published ones."
        )
    splits = {split: vocabulary.encode(text) for split, text in texts.items()}
    return Corpus("Penn Treebank", vocabulary, splits, tuple(notes), digest)


def _from_words(text: str) -> str:
    return "".join("_".join(line.split()) + "\n" for line in text.splitlines())


def _from_characters(path: Path, text: str) -> str:
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        symbols = line.split()
        if any(len(symbol) != 1 for symbol in symbols):
            longer = next(symbol for symbol in symbols if len(symbol) != 1)
            raise CorpusError(
                f"{path} has {longer[:20]!r} in line {number}, and at character level each symbol stands by itself.",
                f"Is it the word-level text? Then call it {path.name.replace('.char', '')}; else fetch {_MEANT} again.",
            )
        lines.append("".join(symbols) + "\n")
    return "".join(lines)


def _read(path: Path, expected: str | None = None) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CorpusError(
            f"{path} cannot be read: {error.strerror or error}.", "Pass a folder whose files you may read with --ptb."
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if expected is not None and found != expected:
        unix = hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()
        raise CorpusError(
            f"{path} is another text: its SHA-256 is {found}, and that of {_MEANT} is {expected}.",
            "Its line ends were changed to CRLF, and nothing else: convert them back with dos2unix."
            if unix == expected
            else "Put the original file there; to train on this one as it is, pass it with --corpus.",
        )
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path} has a byte at {error.start:,} that is not ASCII, which the Penn Treebank is throughout.",
            f"Fetch {_MEANT} again; to train on this text as it is, pass it with --corpus.",
        ) from None


def _check(folder: Path, texts: dict[str, str], vocabulary: Vocabulary) -> None:
    wrong = [
        f"{len(text):,} symbols to {split} instead of {COUNTS[split]:,}"
        for split, text in texts.items()
        if len(text) != COUNTS[split]
    ]
    if len(vocabulary) != VOCABULARY:
        wrong.append(f"a vocabulary of {len(vocabulary)} instead of {VOCABULARY}")
    wrong += [
        f"{unseen:,} characters to {split} that train does not have"
        for split in SPLITS[1:]
        if (unseen := vocabulary.unseen(texts[split]))
    ]
    if wrong:
        raise CorpusError(
            f"The text in {folder} is not {_MEANT}: converted, it has {'; '.join(wrong)}.",
            "Put the original files there; to train on another text, pass it with --corpus.",
        )


def _missing(folder: Path, words: dict[str, Path], characters: dict[str, Path]) -> CorpusError:
    wanted = characters if any(path.is_file() for path in characters.values()) else words
    wanted = words if any(path.is_file() for path in words.values()) else wanted
    missing = ", ".join(path.name for path in wanted.values() if not path.is_file())
    there = sorted(path.name for path in folder.iterdir())
    shown = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
    return CorpusError(
        f"{folder} lacks {missing}; " + (f"what is there: {shown}." if there else "it is empty."),
        "Pass the folder with --ptb that holds ptb.train.txt, ptb.valid.txt and ptb.test.txt (or ptb.char.*): "
        f"{_MEANT}, in simple-examples/data of his archive. It is licensed, so artbp does not bring it.",
    )
