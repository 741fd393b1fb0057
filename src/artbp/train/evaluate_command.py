"""`artbp evaluate`: how many bits a character of a text costs a trained model, and where it lost its way."""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from artbp._folder import FolderError, write_json
from artbp.train.options import OptionError

if TYPE_CHECKING:
    from artbp.train.lane_trace import Derailment, Trace
    from artbp.train.loading import Trained

_SHOWN = 3  # derailed lanes that are told at length


@dataclass(frozen=True)
class Options:
    """Bits per character of a trained model, its state carried from end to end."""

    run: Annotated[Path, tyro.conf.Positional]
    """what `artbp train` was told to write with --out"""
    split: Literal["train", "valid", "test"] = "test"
    """which part of the run's text"""
    text: Path | None = None
    """a UTF-8 file to evaluate on instead of a split"""
    lanes: int | None = None
    """parallel rows, by default as many as the run was evaluated with; 1: the text in one go, from its first character
    to its last"""
    reset: int | None = None
    """set the state to zero every so many steps, to see what carrying it is worth"""
    checkpoint: Literal["best", "last"] = "best"
    """the one that was best on the validation text, or the last"""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU where there is one"""
    corpus: Path | None = None
    """where the run's text is now, if it was moved"""
    ptb: Path | None = None
    """where the run's Penn Treebank is now, if it was moved"""
    cache: Path | None = None
    """where large texts are kept as symbols, as told to `artbp train`"""
    trace: Path | None = None
    """write to this file, as JSON: bits of every lane by stretches, and norms and largest units of its state there"""
    json: bool = False
    """print the result as JSON"""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    options = tyro.cli(Options, args=arguments, prog="artbp evaluate", config=config)
    try:
        _check(options)
    except OptionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from artbp.train.corpus import CorpusError  # what is slow begins here

    try:
        return _command(options)
    except (OptionError, FolderError) as error:
        print(f"error: {error}", file=sys.stderr)
    except CorpusError as error:
        print(
            f"error: {str(error) if options.text is None else str(error).replace('--corpus', '--text')}",
            file=sys.stderr,
        )
    return 2


def _check(options: Options) -> None:
    for name in ("lanes", "reset"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionError(f"--{name} {value}: it must be at least 1.\nPass a whole number from 1 on.")
    if options.corpus is not None and options.ptb is not None:
        raise OptionError("--corpus and --ptb both name the text of the run.\nPass the one it was trained with.")
    if options.trace is not None and not options.trace.absolute().parent.is_dir():
        raise OptionError(
            f"--trace {options.trace}: there is no folder {options.trace.absolute().parent}.\nMake it, or pass another."
        )


def _command(options: Options) -> int:
    from artbp.train.evaluation import fitting_lanes
    from artbp.train.lane_trace import trace
    from artbp.train.loading import load_model

    trained = load_model(options.run, options.checkpoint, options.device)
    for note in trained.notes:
        print(f"note: {note}", file=sys.stderr)
    name, symbols = _symbols(options, trained)
    unknown = trained.vocabulary.unknown and _count(symbols, len(trained.vocabulary) - 1)
    lanes = fitting_lanes(symbols, trained.config["evaluation_lanes"]) if options.lanes is None else options.lanes
    if len(symbols) <= lanes:
        raise OptionError(
            f"{name} has {len(symbols):,} characters, too few for {lanes:,} lanes: each takes one, and one to follow.\n"
            "Pass a longer text" + (", or fewer --lanes." if lanes > 1 else ".")
        )
    with trained.autocast():
        found = trace(trained.model, symbols, lanes=lanes, device=trained.device, reset=options.reset)
    if not math.isfinite(found.bpc):
        raise FolderError(
            f"the {options.checkpoint} checkpoint of {options.run} gives {found.bpc} bits per character: numbers in it "
            "have overflown.",
            "Pass --checkpoint best, or train again with a lower --lr.",
        )
    if options.trace is not None:
        write_json(options.trace, {"run": str(options.run), "text": name, **found.to_json()})
    derailed = found.derailments()
    longer = found.characters - found.steps * found.lanes
    if options.json:
        head = {"run": str(options.run), "checkpoint": options.checkpoint, "epoch": trained.epoch, "text": name}
        numbers: dict[str, Any] = {
            "bpc": found.bpc,
            "characters": found.characters,
            "unknown_characters": int(unknown),
            "lanes": found.lanes,
            "reset": options.reset,
            "steps": found.steps,
            "median_lane_bpc": statistics.median(found.lane_bpc.tolist()),
            "worst_lane_bpc": max(found.lane_bpc.tolist()),
            "lane_bpc": found.lane_bpc.tolist(),
            "derailed": [_as_json(one, found) for one in derailed],
        }
        print(json.dumps({**head, **numbers}, ensure_ascii=False, indent=2))
        return 0
    print(f"{found.bpc:.4f} bits per character on {name}")
    rows = f"{found.lanes} lanes of {found.steps:,} steps" if found.lanes > 1 else "one lane, from beginning to end"
    print(f"{found.characters:,} characters, in {rows}" + (f", the last one {longer} longer" if longer else ""))
    if found.lanes > 1:
        print(f"lane by lane: {_spread(found.lane_bpc.tolist())}")
    if options.reset:
        print(f"The state was set to zero every {options.reset:,} steps.")
    print(f"{options.checkpoint} checkpoint of {trained.run}, after pass {trained.epoch}")
    if unknown:
        print(
            f"{unknown:,} of the characters ({unknown / len(symbols):.2%}) were never seen in training. They count as "
            "one unknown symbol, of which the model has learned nothing."
        )
    for line in _told(derailed, found, symbols, trained, options):
        print(line)
    if options.trace is not None:
        print(f"Lanes and stretches: {options.trace}")
    return 0


def _symbols(options: Options, trained: Trained) -> tuple[str, Any]:
    """(what to call the text, its symbols)."""
    import numpy as np

    from artbp.train._corpus_file import read_pieces
    from artbp.train.loading import load_corpus

    if options.text is not None:
        pieces = [trained.vocabulary.encode(text) for text in read_pieces(options.text)]
        return str(options.text), np.concatenate(pieces) if pieces else np.empty(0, trained.vocabulary.dtype)
    corpus = load_corpus(trained, corpus=options.corpus, ptb=options.ptb, cache=options.cache)
    return f"the {options.split} split of {corpus.name}", corpus.splits[options.split]


def _spread(lanes: list[float]) -> str:
    return f"best {min(lanes):.3f}, median {statistics.median(lanes):.3f}, worst {max(lanes):.3f}"


def _count(symbols: Any, symbol: int) -> int:
    block = 2**20  # a text in a memory map is never in memory as a whole
    return sum(int((symbols[at : at + block] == symbol).sum()) for at in range(0, len(symbols), block))


def _as_json(one: Derailment, found: Trace) -> dict[str, Any]:
    from artbp.train.lane_trace import STRETCH

    return {
        "lane": one.lane,
        "bpc": one.bpc,
        "from_step": one.first * STRETCH,
        "to_step": min(one.end * STRETCH, found.steps),
        "bpc_before": one.bpc_before,
        "bpc_inside": one.bpc_inside,
    }


def _told(derailed: list[Derailment], found: Trace, symbols: Any, trained: Trained, options: Options) -> list[str]:
    """What there is to say of lanes that lost their way."""
    import numpy as np

    from artbp.train.lane_trace import STRETCH

    if not derailed:
        return []
    number = "a lane" if len(derailed) == 1 else f"{len(derailed)} lanes"
    lines = ["", f"derailed: {number} of {found.lanes}; the median lane has {np.median(found.lane_bpc):.3f} bpc."]
    for one in derailed[:_SHOWN]:
        first, end = one.first * STRETCH, min(one.end * STRETCH, found.steps)
        at = one.lane * found.steps + first  # in the text
        until = "its end" if end == found.steps else f"step {end:,}, where it comes back"
        before = "" if one.bpc_before is None else f"; {one.bpc_before:.3f} before"
        around = trained.vocabulary.decode(symbols[max(at - 25, 0) : at + 25])
        lines += [
            f"  lane {one.lane}, counted from 0: {one.bpc:.3f} bpc",
            f"    {one.bpc_inside:.3f} bpc from step {first:,} to {until}{before}",
            f"    step {first:,} is character {at:,} of the text, in {around!r}",
            f"    {_bar(found.stretch_bpc[:, one.lane])}",
        ]
    if len(derailed) > _SHOWN:
        lines.append(f"  and {len(derailed) - _SHOWN} more: --json lists all.")
    if options.reset is None:
        lines.append("--reset 1000 tells whether the state or the text is to blame; --trace FILE writes both down.")
    return lines


def _bar(values: Any) -> str:
    """The values as at most 60 blocks, each the largest of its share."""
    import numpy as np

    blocks = "▁▂▃▄▅▆▇█"
    shares = np.array([share.max() for share in np.array_split(values, min(len(values), 60))])
    height = (shares - shares.min()) / ((shares.max() - shares.min()) or 1)
    return (
        "".join(blocks[round(h * 7)] for h in height)
        + f"  {shares.min():.2f} to {shares.max():.2f} bpc, stretch by stretch"
    )
