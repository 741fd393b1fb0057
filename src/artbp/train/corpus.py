"""Texts to train a character model on: any file, the Penn Treebank, or what every Python carries."""

from __future__ import annotations

import hashlib
import platform

from artbp.train._corpus_file import from_file
from artbp.train._corpus_ptb import penn_treebank
from artbp.train._corpus_types import UNKNOWN, Corpus, CorpusError, Vocabulary, bounds, cut

__all__ = ["UNKNOWN", "Corpus", "CorpusError", "Vocabulary", "embedded", "from_file", "penn_treebank"]


def embedded() -> Corpus:
    """The text that Python's help() shows, half a million characters: a corpus that needs no file."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[topic] for topic in sorted(topics))
    first, last = bounds(len(text))["train"]
    vocabulary = Vocabulary(tuple(sorted(set(text[first:last]))), unknown=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    note = (
        f"The text of Python {platform.python_version()}'s help(), which differs between versions. Some paragraphs "
        "occur in several of its topics, so that evaluation is a little easier than on a text of another kind."
    )
    return cut("pydoc_data.topics", vocabulary.encode(text), vocabulary, digest, note)
