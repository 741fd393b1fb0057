"""What `artbp train` can be told, and what of it cannot work."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from artbp.train.run_folder import EXPERIMENT

Method = Literal["artbp", "tbptt", "random", "bptt"]

# What says where and how a run is done, and not what comes out of it: it may change from one resume to the next.
_NOT_OF_THE_RUN = (
    *("out", "runs", "resume", "overwrite", "dry_run", "device", "cache", "tensorboard", "checkpoint_every", "timeout"),
)


class OptionError(Exception):
    """An option that cannot work: what was passed and why, and what to pass instead."""


@dataclass(frozen=True)
class Options:
    """Train a recurrent character model online on any text, by ARTBP or its peers.

    Without arguments: a small LSTM on the text of Python's own help(), in minutes.

    The paper's second experiment, but for the size of its LSTM, which is not given:

        artbp train --ptb DIR --hidden 1000 --mean 50 --alpha 4 --lr 1e-4 --runs 6

    A run that was stopped goes on with `artbp train --resume RUN`, bit for bit.
    """

    corpus: Path | None = None
    """train on this file, any UTF-8 text: 90% of it to train, 5% to validate, 5% to test"""
    ptb: Path | None = None
    """train on Penn Treebank: the folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt"""
    cache: Path | None = None
    """where large texts are kept as symbols; by default a folder of the user's"""

    method: Method = "artbp"
    """artbp; tbptt: truncated BPTT, cut every --length steps; random: cut likewise, not compensated; bptt: a pass"""
    mean: float = 50
    """artbp, random: mean length of a segment"""
    alpha: float = 4
    """artbp, random: exponent of the lengths' law, PowerLaw"""
    length: int = 50
    """tbptt: length of a segment"""
    window: int = 256
    """steps to hold in memory at once, however long a segment is; the gradient is the same. 0: whole segments"""

    cell: Literal["lstm", "gru", "rnn"] = "lstm"
    """the recurrent layer"""
    hidden: int = 256
    """units of each layer"""
    layers: int = 1
    """recurrent layers"""
    embedding: int = 0
    """width of a learned embedding; 0: one-hot symbols"""
    forget_bias: float = 2.0
    """what an LSTM's forget gates start at"""
    dropout: float = 0.0
    """on what enters each layer but the first, and on what leaves the last"""
    weight_dropout: float = 0.0
    """on the recurrent weights, one mask for each window or segment"""
    layer_norm: bool = False
    """normalise what leaves the last layer"""

    lanes: int = 64
    """parallel rows of text"""
    epochs: int = 10
    """passes over the training text"""
    patience: int = 0
    """end after so many passes in a row that are not better on the validation text; 0: all --epochs"""
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """how parameters are updated, after every segment"""
    lr: float = 5e-3
    """the rate of learning"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """how the rate goes down to 0 over the run, if it does"""
    weight_decay: float = 0.0
    """decay of all weights; decoupled with adamw"""
    clip: float | None = None
    """the largest norm of a gradient; longer ones are shortened, which is a bias, and how many were is reported"""

    seed: int = 0
    """of the parameters, the lengths and the dropout"""
    runs: int = 1
    """runs, of seeds --seed, --seed + 1, ..."""
    evaluation_lanes: int = 64
    """parallel rows when the model is evaluated"""
    log_every: int = 50
    """updates from one row of metrics to the next"""
    checkpoint_every: float = 60.0
    """seconds from one checkpoint to the next, beside that at the end of each pass"""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU where there is one"""
    precision: Literal["auto", "float64", "float32", "tf32", "bf16"] = "auto"
    """auto: tf32 on a GPU that has it, else float32; bf16: autocast"""
    compile: bool = False
    """torch.compile the model; the recurrent layers are left as they are"""
    timeout: float = 300.0
    """with several processes: seconds to wait for one that does not answer"""

    out: Path = Path("runs") / "train"
    """the folder to write; with --runs, one folder in it for each seed"""
    resume: Path | None = None
    """go on with the run in this folder, with the options it was begun with; --corpus, --ptb: where its text is now"""
    overwrite: bool = False
    """start anew in a folder that holds a run"""
    dry_run: bool = False
    """say how large and how long the run would be, and stop"""
    tensorboard: bool = False
    """write the metrics for TensorBoard too, under RUN/tensorboard"""

    def config(self) -> dict[str, Any]:
        """All that the results depend on, as it stands in config.json."""
        values = {name: getattr(self, name) for name in _names() if name not in _NOT_OF_THE_RUN}
        return {
            "experiment": EXPERIMENT,
            **{name: str(value.absolute()) if isinstance(value, Path) else value for name, value in values.items()},
        }


def from_config(config: dict[str, Any], given: Options) -> Options:
    """The options that a run was begun with, and of those given now the ones that may change."""
    values = {name: config[name] for name in _names() if name in config}
    moved = given.corpus is not None or given.ptb is not None  # on another machine, say; its digest tells the text
    for name in ("corpus", "ptb"):
        place = getattr(given, name) if moved else values.get(name)
        values[name] = None if place is None else Path(place)
    return Options(**values, **{name: getattr(given, name) for name in _NOT_OF_THE_RUN})


def check_resume(given: Options) -> None:
    """Refuses options that a run that goes on cannot take."""
    plain = Options()
    allowed = {"resume", "corpus", "ptb", "device", "cache", "tensorboard", "checkpoint_every", "timeout"}
    for name in _names():
        if name not in allowed and getattr(given, name) != getattr(plain, name):
            raise OptionError(
                f"--resume with {flag(name)} {getattr(given, name)}: a run goes on with the options it was begun with."
                f"\nLeave {flag(name)} out, or start a new run with --out."
            )


def check(options: Options) -> None:
    """Refuses what cannot run, before anything is written."""
    least = {"length": 1, "hidden": 1, "layers": 1, "lanes": 1, "epochs": 1, "runs": 1, "log_every": 1}
    nothing = {"embedding": 0, "window": 0, "seed": 0, "patience": 0}
    for name, smallest in {**least, "evaluation_lanes": 1, **nothing}.items():
        value = getattr(options, name)
        if value is not None and value < smallest:
            raise OptionError(
                f"{flag(name)} {value}: it must be at least {smallest}.\nPass a whole number from {smallest} on."
            )
    for name in ("dropout", "weight_dropout"):
        if not 0 <= getattr(options, name) < 1:
            raise OptionError(f"{flag(name)} {getattr(options, name)}: it is a probability.\nPass a number in [0, 1).")
    for name in ("lr", "clip", "checkpoint_every", "timeout"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise OptionError(f"{flag(name)} {value}: it must be above 0, and finite.\nPass a positive number.")
    if not 0 <= options.weight_decay < math.inf:
        raise OptionError(f"--weight-decay {options.weight_decay}: it must not be negative.\nPass 0 for none.")
    if options.corpus is not None and options.ptb is not None:
        raise OptionError(
            "--corpus and --ptb both name a text: a run has one.\nPass --ptb DIR for Penn Treebank in its usual "
            "convention, or --corpus FILE for a text as it stands."
        )
    _check_law(options)


def flag(name: str) -> str:
    """An option as it is typed."""
    return "--" + name.replace("_", "-")


def _check_law(options: Options) -> None:
    from artbp.train.method import estimator  # torch, which --help does not wait for

    try:
        estimator(options)
    except (ValueError, TypeError) as error:
        what, _, instead = str(error).partition(". ")
        raise OptionError(f"--mean {options.mean:g} --alpha {options.alpha:g}: {what}.\n{instead}") from None


def _names() -> list[str]:
    return [field.name for field in fields(Options)]
