"""A trained model out of a run's folder, and the text that it was trained on."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from artbp._folder import FolderError
from artbp.train.checkpoints import Checkpoints
from artbp.train.corpus import Corpus, CorpusError, Vocabulary, embedded, from_file, penn_treebank
from artbp.train.devices import choose
from artbp.train.model import CharacterModel
from artbp.train.options import Options
from artbp.train.run_folder import runs


@dataclass(frozen=True)
class Trained:
    """A model as a checkpoint has it, ready to be used.

    Attributes:
        run: the folder.
        model: in eval mode, on `device`.
        vocabulary: which character is which symbol.
        config: the run's options, "estimator" and "digest".
        epoch: how many passes over the training text it has seen.
        device: where it is.
        notes: what there is to say about checkpoints that could not be read.
    """

    run: Path
    model: CharacterModel
    vocabulary: Vocabulary
    config: dict[str, Any]
    epoch: int
    device: torch.device
    notes: list[str]

    def autocast(self) -> AbstractContextManager[Any]:
        """What the run was evaluated under: its numbers are those of its precision."""
        if self.config["precision"] != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def load_model(run: Path, which: str = "best", device: str = "auto") -> Trained:
    """The model of the run's best or last checkpoint, in the run's precision where the device has it."""
    found = runs(run)
    if len(found) > 1:
        raise FolderError(
            f"{run} holds {len(found)} runs, one for each seed.", f"Pass one of them, such as {found[0]}."
        )
    run, notes, checkpoints = found[0], list[str](), Checkpoints(found[0])
    if which == "best":
        state = checkpoints.load_best()
    else:
        last, notes = checkpoints.load()
        state = checkpoints.load_best() if last is None else last  # which says that there is none
    try:
        config, vocabulary = state["config"], Vocabulary.from_json(state["vocabulary"])
        place = _place(device, config["precision"])
        model = build(config, len(vocabulary)).to(_dtype(config))
        model.load_state_dict(state["model"])
        epoch = state["epoch"]
    except (KeyError, TypeError, RuntimeError, CorpusError) as error:
        raise FolderError(
            f"the {which} checkpoint of {run} does not hold a model as this version of artbp writes it: "
            f"{type(error).__name__}, {str(error).splitlines()[0]}",
            "Use the version of artbp that env.json names, or train it again.",
        ) from None
    return Trained(run, model.to(place).eval(), vocabulary, config, epoch, place, notes)


def build(config: dict[str, Any], symbols: int) -> CharacterModel:
    """The model that the options describe, as it was before training."""
    names = ("cell", "hidden", "layers", "embedding", "dropout", "weight_dropout", "layer_norm", "forget_bias")
    return CharacterModel(symbols, **{name: config[name] for name in names})


def load_corpus(
    trained: Trained, *, corpus: Path | None = None, ptb: Path | None = None, cache: Path | None = None
) -> Corpus:
    """The text that the run was trained on, from where it was or, if it was moved, from where `corpus` or `ptb` say."""
    config = trained.config
    if corpus is None and ptb is None:
        corpus, ptb = (None if config[name] is None else Path(config[name]) for name in ("corpus", "ptb"))
    moved = corpus if ptb is None else ptb
    flag = "--corpus FILE" if ptb is None else "--ptb DIR"
    if moved is not None and not moved.exists():
        raise CorpusError(
            f"{moved}, the text that {trained.run} was trained on, is not there any more.",
            f"Pass its new place with {flag}, or any other text with --text.",
        )
    if ptb is not None:
        found = penn_treebank(ptb)
    else:
        found = embedded() if corpus is None else from_file(corpus, cache=cache)
    if found.digest != config["digest"] or found.vocabulary != trained.vocabulary:
        what = "The text of this Python's help()" if moved is None else str(moved)
        how = (
            "It differs between versions of Python: use that of env.json"
            if moved is None
            else f"Restore it, or pass its place with {flag}"
        )
        raise CorpusError(
            f"{what} is not the text that {trained.run} was trained on: its SHA-256 is {found.digest[:12]}… and was "
            f"{config['digest'][:12]}….",
            f"{how}. A text that the run knows nothing of goes to --text.",
        )
    return found


def _dtype(config: dict[str, Any]) -> torch.dtype:
    return torch.float64 if config["precision"] == "float64" else torch.float32


def _place(device: str, precision: Any) -> torch.device:
    """The device, and its precision set as it was for the run; on a CPU, which has no TF32, float32."""
    place, _ = choose(dataclasses.replace(Options(), device=device, precision="auto"))
    if place.type == "cuda":
        choose(dataclasses.replace(Options(), device=str(place), precision=precision))
    return place
