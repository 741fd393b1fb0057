"""`artbp sample`: text that a trained model makes up."""

from __future__ import annotations

import io
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from artbp._folder import FolderError
from artbp.train.options import OptionError


@dataclass(frozen=True)
class Options:
    """Let a trained model go on with a text."""

    run: Annotated[Path, tyro.conf.Positional]
    """what `artbp train` was told to write with --out"""
    prompt: str = ""
    """the text to go on with; without it, from the beginning of a line"""
    length: int = 500
    """characters to make up"""
    temperature: float = 0.8
    """below 1 the likely characters are drawn more often, above 1 less often; 0: always the likeliest"""
    seed: int = 0
    """of the draws"""
    checkpoint: Literal["best", "last"] = "best"
    """the one that was best on the validation text, or the last"""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU where there is one"""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = tyro.cli(Options, args=arguments, prog="artbp sample")
    try:
        _check(options)
    except OptionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from artbp.train.corpus import CorpusError  # what is slow begins here

    try:
        _write(options)
    except (OptionError, FolderError, CorpusError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _check(options: Options) -> None:
    if options.length < 0:
        raise OptionError(f"--length {options.length}: it counts characters.\nPass a whole number from 0 on.")
    if not 0 <= options.temperature < math.inf:
        raise OptionError(f"--temperature {options.temperature}: it must be finite, and not negative.\nPass 0 or more.")


def _write(options: Options) -> None:
    from artbp.train.loading import load_model
    from artbp.train.sampling import sample, unseen

    trained = load_model(options.run, options.checkpoint, options.device)
    for note in trained.notes:
        print(f"note: {note}", file=sys.stderr)
    if strange := unseen(trained, options.prompt):
        print(
            f"note: training never met {', '.join(map(repr, strange))}, which the model reads as one unknown symbol",
            file=sys.stderr,
        )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal need not have all the characters of a text
    drawn = sample(trained, options.prompt, length=options.length, temperature=options.temperature, seed=options.seed)
    print(options.prompt, end="", flush=True)
    last = options.prompt
    try:
        for last in drawn:
            print(last, end="", flush=True)
    finally:
        if not last.endswith("\n"):
            print(flush=True)
