"""Small texts and small runs, trained by the command itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from artbp.train import command

WORDS = ["the cat ", "sat on ", "a mat, ", "and then ", "it ran.\n"]


def write_text(path: Path, words: int = 900) -> Path:
    """A made-up language of 7 characters a word, with an order to learn."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(WORDS), (words,), generator=generator).tolist()
    path.write_text("".join(WORDS[i] for i in drawn), encoding="utf-8")
    return path


def arguments(corpus: Path, out: Path, **changes: Any) -> list[str]:
    """A run of a second, as it is typed; True is a flag without a value."""
    small = {"hidden": 8, "lanes": 4, "epochs": 2, "mean": 10, "length": 10, "lr": 0.02, "precision": "float64"}
    typed = ["--corpus", str(corpus), "--out", str(out)]
    for name, value in {**small, **changes}.items():
        typed += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return typed


def train(corpus: Path, out: Path, **changes: Any) -> Path:
    """The folder of a finished run."""
    assert command.main(arguments(corpus, out, **changes)) == 0
    return out


def rows(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return found


def refused(capsys: Any, call: Any, status: int = 2) -> tuple[str, str]:
    """(what was wrong, what to do instead), of a command that ends with an error and leaves no traceback."""
    capsys.readouterr()
    assert call() == status
    printed = capsys.readouterr().err
    first, _, second = printed.partition("\n")
    assert first.startswith("error: ")
    assert second.strip(), f"says nothing of what to do instead: {printed}"
    assert "Traceback" not in printed
    return first.removeprefix("error: "), second.strip()
