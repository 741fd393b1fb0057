"""Corpora: vocabularies, any UTF-8 text in bounded memory, its cache, the Penn Treebank, and what cannot be read."""

import doctest
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artbp.train import _corpus_cache, _corpus_file, _corpus_ptb, _corpus_types
from artbp.train.corpus import UNKNOWN, CorpusError, Vocabulary, embedded, from_file, penn_treebank

EXAMPLES = settings(deadline=None, derandomize=True)
PTB = os.environ.get("ARTBP_PTB")
ALPHABET = "ab c\n\r_é\u00ff\u0100\u2028漢\ufeff\ufffd\uffff🜁\U0010ffff\0"


def refused(call, what, instead):
    """CorpusError, whose first line says what was passed and whose second line what to do instead."""
    with pytest.raises(CorpusError) as caught:
        call()
    first, _, second = str(caught.value).partition("\n")
    assert re.search(what, first), f"does not say what was passed and why not: {first}"
    assert re.search(instead, second), f"does not say what to do instead: {second}"
    assert "\n" not in second
    return first


def write(folder, text, name="text.txt"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def texts_of(corpus):
    return {split: corpus.vocabulary.decode(symbols) for split, symbols in corpus.splits.items()}


# ---- vocabulary ------------------------------------------------------------------------------------------------------


@EXAMPLES
@given(st.text(), st.text(), st.booleans())
def test_a_vocabulary_is_a_dictionary(known, text, unknown):
    characters = tuple(sorted(set(known)))
    vocabulary, index = Vocabulary(characters, unknown), {c: i for i, c in enumerate(characters)}
    assert len(vocabulary) == len(characters) + unknown
    assert Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary
    assert vocabulary.unseen(text) == sum(c not in index for c in text)
    assert vocabulary.encode(known).tolist() == [index[c] for c in known]
    assert vocabulary.decode(vocabulary.encode(known)) == known
    if unknown:
        assert vocabulary.encode(text).tolist() == [index.get(c, len(characters)) for c in text]
        assert vocabulary.decode(vocabulary.encode(text)) == "".join(c if c in index else UNKNOWN for c in text)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize(("size", "dtype"), [(255, "u1"), (256, "u1"), (257, "u2"), (2**16, "u2"), (2**16 + 1, "u4")])
def test_the_smallest_type_that_holds_all(size, dtype, unknown):
    characters = tuple(map(chr, range(0x10000, 0x10000 + size - unknown)))
    vocabulary = Vocabulary(characters, unknown)
    symbols = vocabulary.encode("".join(characters) + "?" * unknown)
    assert len(vocabulary) == size
    assert symbols.dtype == vocabulary.dtype == np.dtype(dtype)
    assert symbols.tolist() == list(range(size))
    assert vocabulary.decode(symbols) == "".join(characters) + UNKNOWN * unknown
    if not unknown:
        refused(lambda: vocabulary.encode("?"), r"'\?' \(1 times\)", r"Replace")


def test_lone_surrogates_pass():
    """What a terminal hands on when it is given bytes that are not UTF-8."""
    vocabulary = Vocabulary(("a", "\udcff"), unknown=True)
    assert vocabulary.encode("\udcffa\udcfe").tolist() == [1, 0, 2]
    assert vocabulary.decode([1, 0]) == "\udcffa"


def test_characters_without_a_symbol_are_shown_with_their_counts():
    vocabulary = Vocabulary(tuple("abc"), unknown=False)
    message = refused(lambda: vocabulary.encode("abcXYYZZZ123?"), r"10 characters.*vocabulary of 3", r"Replace them")
    assert "'Z' (3 times), 'Y' (2 times), '1' (1 times), '2' (1 times), '3' (1 times) and 2 more" in message


@pytest.mark.parametrize("characters", [("b", "a"), ("a", "a"), ("ab",), ("",), (1,)])
def test_what_is_no_vocabulary(characters):
    with pytest.raises(ValueError, match=r"vocabulary got .*\. Pass "):
        Vocabulary(characters, unknown=True)


@pytest.mark.parametrize(
    "value", [{}, [], None, {"characters": ["b", "a"], "unknown": True}, {"characters": ["a"], "unknown": 1}]
)
def test_a_damaged_vocabulary(value):
    refused(lambda: Vocabulary.from_json(value), r"no vocabulary", r"Restore")


@pytest.mark.parametrize("indices", [[3], [-1], [0.5], np.array([200], np.uint8)])
def test_symbols_of_another_vocabulary(indices):
    with pytest.raises(ValueError, match=r"(?s)0 to 2\. Decode with"):
        Vocabulary(("a", "b"), unknown=True).decode(indices)


def test_the_example():
    assert doctest.testmod(_corpus_types).failed == 0


# ---- the embedded default --------------------------------------------------------------------------------------------


def test_the_embedded_default():
    from pydoc_data.topics import topics

    corpus = embedded()
    text = "\n".join(topics[topic] for topic in sorted(topics))
    assert "".join(texts_of(corpus).values()) == text.translate(
        {ord(c): UNKNOWN for c in set(text) - set(corpus.vocabulary.characters)}
    )
    sizes = [len(symbols) / len(text) for symbols in corpus.splits.values()]
    assert sizes == pytest.approx([0.9, 0.05, 0.05], abs=1e-4)
    assert corpus.digest == hashlib.sha256(text.encode()).hexdigest()
    assert list(corpus.splits) == ["train", "valid", "test"]
    assert "differs between versions" in corpus.notes[0]


# ---- any file --------------------------------------------------------------------------------------------------------


@EXAMPLES
@given(st.text(alphabet=ALPHABET, min_size=40, max_size=200), st.booleans(), st.integers(1, 64), st.booleans())
def test_a_file_is_its_text(text, cached, piece, bom):
    """Read in pieces that cut characters apart, with a cache and without: what slices of the whole text give."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_corpus_file, "_PIECE", piece)
        patch.setattr(_corpus_file, "CACHED_FROM", 0 if cached else 2**60)
        path = write(Path(name), b"\xef\xbb\xbf" * bom + text.encode())
        text = text.removeprefix("\ufeff") if not bom else text
        first, second = len(text) * 90 // 100, len(text) * 95 // 100
        if min(first, second - first, len(text) - second) < 2:
            refused(lambda: from_file(path), "too few", "longer text")
            return
        corpus = from_file(path, cache=Path(name) / "cache")
        assert (Path(name) / "cache").exists() == cached
        parts = {"train": text[:first], "valid": text[first:second], "test": text[second:]}
        known = set(parts["train"])
        assert corpus.vocabulary == Vocabulary(tuple(sorted(known)), unknown=True)
        assert texts_of(corpus) == {
            split: "".join(c if c in known else UNKNOWN for c in part) for split, part in parts.items()
        }
        assert corpus.digest == hashlib.sha256(path.read_bytes()).hexdigest()
        assert corpus.name == "text.txt"
        for split in ("valid", "test"):
            count = sum(c not in known for c in parts[split])
            said = [note for note in corpus.notes if f"the {split} split" in note]
            assert [note.startswith(f"{count:,} of the {len(parts[split]):,} ") for note in said] == [True] * (
                count > 0
            )
        assert any("NUL" in note for note in corpus.notes) == ("\0" in known)


def test_line_ends_stay_as_they_are(tmp_path):
    text = "one\r\ntwo\rthree\n" * 10
    assert "".join(texts_of(from_file(write(tmp_path, text))).values()) == text


def generated(path, megabytes, seed=0):
    """A text with characters of one to four bytes; the same for the same seed."""
    rng = np.random.default_rng(seed)
    block = "".join(rng.choice(list("etaoin shrdlu\né漢🜁"), 2**18)).encode()
    with path.open("wb") as file:
        while file.tell() < megabytes * 1e6:
            file.write(block)
    return path


def test_memory_is_bounded_whatever_the_size(tmp_path):
    """40 MB of text, first read and then found: below 24 MiB both times, of which tables of code points take 10."""
    path = generated(tmp_path / "text.txt", 40)
    for _ in range(2):
        tracemalloc.start()
        try:
            corpus = from_file(path, cache=tmp_path / "cache")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 24 * 2**20
        assert isinstance(corpus.splits["train"], np.memmap)
        assert not corpus.splits["train"].flags.writeable
    text = path.read_text(encoding="utf-8")
    assert corpus.splits["test"].base is not None
    assert texts_of(corpus)["test"] == text[len(text) * 95 // 100 :]


# ---- the cache -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cached(monkeypatch):
    """Everything is cached, however small."""
    monkeypatch.setattr(_corpus_file, "CACHED_FROM", 0)
    return monkeypatch


def test_a_text_is_encoded_once_and_a_changed_one_again(cached, tmp_path):
    stored = []
    store = _corpus_cache.store
    cached.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # nothing goes by way of another file system
    cached.setattr(_corpus_cache, "store", lambda path, *rest: (stored.append(path.name), store(path, *rest)))
    path, cache = write(tmp_path, "first " * 20), tmp_path / "deep" / "cache"
    first, again = from_file(path, cache=cache), from_file(str(path), cache=str(cache))
    assert len(stored) == 1
    assert texts_of(first) == texts_of(again)
    assert (first.vocabulary, first.notes, first.digest) == (again.vocabulary, again.notes, again.digest)
    other = from_file(write(tmp_path, "other " * 20), cache=cache)
    assert texts_of(other)["train"].startswith("other")
    assert texts_of(first)["train"].startswith("first")
    assert len(stored) == 2
    assert sorted(os.listdir(cache)) == sorted(stored) == sorted(f"{c.digest}.symbols" for c in (first, other))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: content[:30],
        lambda content: b"",
        lambda content: b"\xff" * len(content),
        lambda content: content.replace(b'"format": 1', b'"format": 0'),
        lambda content: b"[1]\n" + content,
        lambda content: content.replace(b'"length": 120', b'"length": -20'),
        lambda content: content.replace(b'"f", "i"', b'"i", "f"'),
    ],
    ids=["shorter", "longer", "cut in its header", "empty", "bytes", "format", "no header", "negative", "disorder"],
)
def test_a_damaged_entry_is_written_anew(damage, cached, tmp_path):
    path = write(tmp_path, "first " * 20)
    expected = texts_of(from_file(path, cache=tmp_path))
    (entry,) = tmp_path.glob("*.symbols")
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert entry.read_bytes() != whole
    assert texts_of(from_file(path, cache=tmp_path)) == expected
    assert entry.read_bytes() == whole


def test_processes_may_race_for_an_entry(tmp_path):
    """Two at once, three times over; all see the whole text, and one file is left."""
    path, cache = generated(tmp_path / "text.txt", 17), tmp_path / "cache"
    code = (
        "import hashlib, sys; from artbp.train.corpus import from_file\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "corpus = from_file(sys.argv[1], cache=sys.argv[2])\n"
        "print(*(hashlib.sha256(part.tobytes()).hexdigest() for part in corpus.splits.values()))"
    )
    expected = None
    for _ in range(3):
        for entry in cache.glob("*"):
            entry.unlink()
        command = [sys.executable, "-W", "error", "-c", code, str(path), str(cache)]
        racing = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for process in racing:
            assert process.stdout.readline() == "ready\n"
        for process in racing:
            process.stdin.write("\n")
            process.stdin.flush()
        found = {process.communicate(timeout=120)[0] for process in racing}
        assert [process.returncode for process in racing] == [0, 0]
        expected = expected or found
        assert found == expected
        assert len(found) == 1
        assert len(list(cache.iterdir())) == 1
    splits = from_file(path, cache=cache).splits.values()
    assert expected == {" ".join(hashlib.sha256(part.tobytes()).hexdigest() for part in splits) + "\n"}


def test_a_small_text_is_not_cached(monkeypatch, tmp_path):
    monkeypatch.setattr(_corpus_cache, "entry", None)
    assert not isinstance(from_file(write(tmp_path, "small " * 20)).splits["train"], np.memmap)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_CACHE_HOME": "{home}/xdg", "HOME": "{home}"}, "xdg/artbp"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "{home}"}, ".cache/artbp"),
        ({"XDG_CACHE_HOME": "", "HOME": "{home}"}, ".cache/artbp"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="another folder on Windows")
def test_where_the_cache_is(environment, folder, cached, tmp_path):
    for name, value in environment.items():
        cached.setenv(name, value.format(home=tmp_path))
    from_file(write(tmp_path, "first " * 20))
    assert len(list((tmp_path / folder).glob("*.symbols"))) == 1


def test_a_cache_that_cannot_be_written(cached, tmp_path):
    path = write(tmp_path, "first " * 20)
    refused(lambda: from_file(path, cache=path), r"cannot be kept in .*text\.txt: ", r"--cache")
    refused(lambda: from_file(path, cache=path / "below"), r"cannot be kept in .*below: Not a directory", r"--cache")


def test_a_full_disk_leaves_nothing_behind(cached, tmp_path):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, cache = write(tmp_path, "first " * 20), tmp_path / "cache"
    cached.setattr(os, "fsync", full)
    refused(lambda: from_file(path, cache=cache), r"No space left", r"--cache .* MiB free")
    assert list(cache.iterdir()) == []


def test_a_user_without_a_home(cached, tmp_path):
    def homeless():
        raise RuntimeError("no home")

    cached.setenv("XDG_CACHE_HOME", "")
    cached.setattr(Path, "home", homeless)
    refused(lambda: from_file(write(tmp_path, "first " * 20)), r"no home folder", r"--cache")


@pytest.mark.parametrize("limit", [0, 2**60])
def test_a_file_that_changes_while_it_is_read(limit, cached, tmp_path):
    cached.setattr(_corpus_file, "CACHED_FROM", limit)
    path, cache, survey = write(tmp_path, "first " * 20), tmp_path / "cache", _corpus_file._survey

    def disturbed(path, file):
        result = survey(path, file)
        path.write_bytes(b"other " * 20)
        return result

    cached.setattr(_corpus_file, "_survey", disturbed)
    refused(lambda: from_file(path, cache=cache), r"text\.txt was changed while", r"Start again")
    assert not cache.exists() or list(cache.iterdir()) == []


# ---- files that are no text ------------------------------------------------------------------------------------------

LONG = "naïve café " * 50_000  # a megabyte: what is wrong with it comes in a later piece


@pytest.mark.parametrize(
    ("content", "what", "instead"),
    [
        (b"", r"text\.txt is empty", r"--corpus"),
        (b"\xef\xbb\xbf", r"has 0 characters, too few", r"longer text"),
        ("é" * 20, r"has 20 characters, too few", r"longer text with --corpus: 40"),
        (
            "caf\xe9 au lait, s'il vous plaît ".encode("latin-1") * 9,
            r"not UTF-8: byte 3 \(0xE9\).*1252",
            r"iconv -f WIN",
        ),
        (LONG.encode() + b"\xff" + LONG.encode(), r"byte 650,000 \(0xFF\)", r"iconv -f WINDOWS-1252 -t UTF-8"),
        (b"\xef\xbb\xbf" + LONG.encode() + b"\xc3(", r"byte 650,003 \(0xC3\)", r"iconv"),
        ("naïve".encode("utf-16") * 50, r"byte 0 \(0xFF\).*is UTF-16", r"iconv -f UTF-16 -t UTF-8 .*text\.txt > "),
        ("naïve".encode("utf-32") * 50, r"byte 0 .*is UTF-32", r"iconv -f UTF-32 -t UTF-8"),
        ("naïve".encode("utf-16-le") * 50, r"NUL bytes.*UTF-16", r"iconv -f UTF-16LE -t UTF-8"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 99, r"is a gzip archive", r"gunzip"),
        ((LONG + "é").encode()[:-1], r"byte 650,000 \(0xC3\).*cut short", r"iconv -c"),
    ],
)
def test_a_file_that_is_no_text(content, what, instead, tmp_path):
    assert len(LONG.encode()) == 650_000
    path = write(tmp_path, content)
    refused(lambda: from_file(path), what, instead)


@pytest.mark.parametrize("piece", range(1, 9))
def test_the_offset_of_what_is_wrong(piece, monkeypatch, tmp_path):
    """Whichever way the pieces fall: that of Python's own decoder."""
    monkeypatch.setattr(_corpus_file, "_PIECE", piece)
    for content in (b"abc\xc3\xa9\xe2\x82\xac\xe2\x82xyz", b"ab\xf0\x9f\x9c", b"\xef\xbb\xbfab\xff", b"\xef\xbbab"):
        with pytest.raises(UnicodeDecodeError) as caught:
            content.decode()
        refused(lambda content=content: from_file(write(tmp_path, content)), rf"byte {caught.value.start} \(", r"iconv")


def test_what_is_no_file(tmp_path):
    refused(lambda: from_file(tmp_path), r"is a folder", r"--corpus")
    refused(lambda: from_file(tmp_path / "none"), r"There is no file .*none", r"--corpus")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        refused(lambda: from_file(tmp_path / "pipe"), r"no regular file", r"--corpus")


@pytest.mark.parametrize("method", ["is_file", "open"])
def test_a_file_that_may_not_be_read(method, monkeypatch, tmp_path):
    """Root reads everything, so the refusal is put on."""

    def denied(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = write(tmp_path, "first " * 20)
    monkeypatch.setattr(Path, method, denied)
    refused(lambda: from_file(path), r"text\.txt cannot be read: Permission denied", r"--corpus")


def test_a_disk_that_fails(cached, tmp_path):
    """While the text is encoded, it is the text that cannot be read, and not the cache that cannot be written."""
    path = write(tmp_path, "first " * 20)
    encoded = _corpus_file._encoded

    class Failing:
        def seek(self, _):
            pass

        def read(self, _):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    cached.setattr(_corpus_file, "_encoded", lambda path, file, *rest: encoded(path, Failing(), *rest))
    refused(lambda: from_file(path, cache=tmp_path / "cache"), r"text\.txt cannot be read: Input/output", r"--corpus")


# ---- the Penn Treebank -----------------------------------------------------------------------------------------------

MADE_UP = {
    "train": " the cat <unk> N \n a dog 's tail \n",
    "valid": " a cat \n",
    "test": " the dog \n the tail \n",
}
CONVERTED = {"train": "the_cat_<unk>_N\na_dog_'s_tail\n", "valid": "a_cat\n", "test": "the_dog\nthe_tail\n"}


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """A small text of our own in the place of the licensed one: its files, and the sums they are checked by."""
    for split, text in MADE_UP.items():
        write(tmp_path, text, f"ptb.{split}.txt")
    sums = {split: hashlib.sha256(text.encode()).hexdigest() for split, text in MADE_UP.items()}
    monkeypatch.setattr(_corpus_ptb, "WORD_SHA256", sums)
    monkeypatch.setattr(_corpus_ptb, "COUNTS", {split: len(text) for split, text in CONVERTED.items()})
    monkeypatch.setattr(_corpus_ptb, "VOCABULARY", len(set(CONVERTED["train"])))
    monkeypatch.setattr(_corpus_ptb, "TEXT_SHA256", hashlib.sha256("".join(CONVERTED.values()).encode()).hexdigest())
    return tmp_path


def spaced(folder, words=False):
    """The same text in Mikolov's other format, symbols separated by blanks; the word-level files go."""
    for split, text in CONVERTED.items():
        write(folder, "".join(" " + " ".join(line) + " \n" for line in text.splitlines()), f"ptb.char.{split}.txt")
        if not words:
            (folder / f"ptb.{split}.txt").unlink()


def test_penn_treebank_from_words_and_from_characters(made_up):
    words = penn_treebank(made_up)
    assert texts_of(words) == CONVERTED
    assert words.vocabulary == Vocabulary(tuple(sorted(set("".join(CONVERTED.values())))), unknown=False)
    assert all(symbols.dtype == np.uint8 for symbols in words.splits.values())
    assert words.name == "Penn Treebank"
    (note,) = words.notes
    assert "word level, checked by SHA-256" in note
    assert f"{len(CONVERTED['train'])} / 6 / 17 symbols, a vocabulary of {len(words.vocabulary)}" in note
    spaced(made_up)
    characters = penn_treebank(str(made_up))
    assert texts_of(characters) == CONVERTED
    assert characters.digest == words.digest == hashlib.sha256("".join(CONVERTED.values()).encode()).hexdigest()
    (note,) = characters.notes
    assert "character level, checked by the number of symbols" in note


def test_characters_of_another_text_of_the_same_size(made_up):
    spaced(made_up)
    write(made_up, "a _ t a c\n", "ptb.char.valid.txt")
    corpus = penn_treebank(made_up)
    assert "not the one that the word-level files give" in corpus.notes[1]
    assert corpus.digest != _corpus_ptb.TEXT_SHA256


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_wrong_checksum(split, made_up):
    wrong = MADE_UP[split].replace("a", "o", 1)
    path = write(made_up, wrong, f"ptb.{split}.txt")
    message = refused(lambda: penn_treebank(made_up), rf"ptb\.{split}\.txt is another text", r"original.*--corpus")
    assert hashlib.sha256(path.read_bytes()).hexdigest() in message
    assert _corpus_ptb.WORD_SHA256[split] in message
    assert "Mikolov's version (10,000 words" in message


def test_changed_line_ends(made_up):
    write(made_up, MADE_UP["valid"].replace("\n", "\r\n"), "ptb.valid.txt")
    refused(lambda: penn_treebank(made_up), r"ptb\.valid\.txt is another text", r"CRLF.*dos2unix")


@pytest.mark.parametrize(
    ("text", "what", "instead"),
    [
        ("a _ c a t s\n", r"has 7 symbols to valid instead of 6\.", r"original.*--corpus"),
        ("a _ z a t\n", r"has 1 characters to valid that train does not have", r"original.*--corpus"),
        ("a cat\n", r"ptb\.char\.valid\.txt has 'cat' in line 1", r"ptb\.valid\.txt"),
        ("a _ c \xe4 t\n", r"byte at 6 that is not ASCII", r"Mikolov"),
    ],
)
def test_character_files_that_are_not_the_ones(text, what, instead, made_up):
    spaced(made_up)
    write(made_up, text, "ptb.char.valid.txt")
    refused(lambda: penn_treebank(made_up), what, instead)


def test_a_vocabulary_of_another_size(made_up, monkeypatch):
    spaced(made_up)
    monkeypatch.setattr(_corpus_ptb, "VOCABULARY", 50)
    refused(lambda: penn_treebank(made_up), r"a vocabulary of \d+ instead of 50", r"original")


def test_missing_files(made_up):
    (made_up / "ptb.valid.txt").unlink()
    first = refused(
        lambda: penn_treebank(made_up), r"lacks ptb\.valid\.txt; what is there: ", r"ptb\.char\.\*.*licensed"
    )
    assert "ptb.test.txt, ptb.train.txt" in first
    spaced(made_up, words=True)
    assert texts_of(penn_treebank(made_up)) == CONVERTED  # the other format is complete
    (made_up / "ptb.char.test.txt").unlink()
    refused(lambda: penn_treebank(made_up), r"lacks ptb\.valid\.txt; ", r"--ptb")
    for split in ("train", "test"):
        (made_up / f"ptb.{split}.txt").unlink()
    refused(lambda: penn_treebank(made_up), r"lacks ptb\.char\.test\.txt; ", r"--ptb")


def test_folders_that_hold_nothing(tmp_path):
    refused(lambda: penn_treebank(tmp_path), r"lacks ptb\.train\.txt, .*it is empty", r"simple-examples")
    refused(lambda: penn_treebank(tmp_path / "none"), r"no folder that exists", r"--ptb")
    refused(lambda: penn_treebank(write(tmp_path, "text")), r"text\.txt is a file", r"--ptb")
    for number in range(12):
        write(tmp_path, "", f"file{number:02}")
    refused(lambda: penn_treebank(tmp_path), r"file07 and 5 more", r"--ptb")


def test_a_treebank_that_may_not_be_read(made_up, monkeypatch):
    def denied(_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_bytes", denied)
    refused(lambda: penn_treebank(made_up), r"ptb\.train\.txt cannot be read: Permission denied", r"--ptb")


@pytest.mark.skipif(not PTB, reason="needs ARTBP_PTB, a folder with the Penn Treebank")
def test_the_real_penn_treebank():
    """The convention of every published number: 50 symbols, 4.334 bits of unigram entropy on the training text."""
    corpus = penn_treebank(PTB)
    assert {split: len(symbols) for split, symbols in corpus.splits.items()} == _corpus_ptb.COUNTS
    assert len(corpus.vocabulary) == 50
    assert not corpus.vocabulary.unknown
    assert {"\n", "_", "<", "N"} < set(corpus.vocabulary.characters)
    assert " " not in corpus.vocabulary.characters
    texts = texts_of(corpus)
    probabilities = np.array(list(Counter(texts["train"]).values())) / len(texts["train"])
    assert -(probabilities * np.log2(probabilities)).sum() == pytest.approx(4.334, abs=5e-4)
    assert len(corpus.notes) == 1
    with tempfile.TemporaryDirectory() as name:  # gone at once: the text is licensed
        for split, text in texts.items():
            write(Path(name), "".join(" ".join(line) + "\n" for line in text.splitlines()), f"ptb.char.{split}.txt")
        spaced_out = penn_treebank(name)
    assert spaced_out.digest == corpus.digest
    assert len(spaced_out.notes) == 1
