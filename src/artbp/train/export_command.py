"""`artbp export`: a trained model as a file that torch.nn alone can use."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from artbp._folder import FolderError, write_bytes


@dataclass(frozen=True)
class Options:
    """Write the weights of a trained model as safetensors, named as torch.nn's own."""

    run: Annotated[Path, tyro.conf.Positional]
    """what `artbp train` was told to write with --out"""
    out: Path
    """the file to write, such as model.safetensors"""
    checkpoint: Literal["best", "last"] = "best"
    """the one that was best on the validation text, or the last"""
    overwrite: bool = False
    """write it over a file that is there"""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = tyro.cli(Options, args=arguments, prog="artbp export", config=(tyro.conf.FlagCreatePairsOff,))
    from artbp.train.export import exported  # what is slow begins here, and what may not be installed
    from artbp.train.loading import load_model

    out = options.out
    try:
        if out.is_dir() or not out.absolute().parent.is_dir():
            what = "is a folder" if out.is_dir() else f"cannot be written: there is no folder {out.absolute().parent}"
            raise FolderError(f"{out} {what}.", "Pass a file with --out, such as model.safetensors.")
        if out.exists() and not options.overwrite:
            raise FolderError(f"{out} is there already.", "Pass another file with --out, or --overwrite to replace it.")
        trained = load_model(options.run, options.checkpoint, "cpu")
        for note in trained.notes:
            print(f"note: {note}", file=sys.stderr)
        content = exported(trained)
        try:
            write_bytes(out, content)
        except OSError as error:
            raise FolderError(f"{out} cannot be written: {error.strerror}.", "Pass another file with --out.") from None
    except FolderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    print(f"{out}: {parameters:,} parameters, {len(content):,} bytes, after pass {trained.epoch} of {trained.run}")
    return 0
