"""What a segment takes in memory, whole and in windows: bytes of tensors at the highest moment, and steps run twice.

    python benchmarks/memory.py [--out results/memory]

A character model (one-hot symbols, LSTM, softmax; `artbp train`'s own) goes forward and backward over segments as long
as those of PowerLaw(mean=50, alpha=4): the median, the mean, some quantiles, and the median of the longest of 1,570,
which is how many the paper's pass over Penn Treebank takes. Bytes are counted from the storages that operations make,
so that they are the same on every machine; a device's allocator, and what a kernel takes and gives back, come on top.
Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from environment import environment
from torch import Tensor

import artbp
from artbp.diagnostics._peak import peak
from artbp.train.model import CharacterModel

SYMBOLS, UNITS, LANES = 50, 256, 16
MEAN, ALPHA, SEGMENTS = 50, 4, 1570
WINDOWS = (None, 256, 64, 16)


def lengths(law: artbp.PowerLaw) -> dict[str, int]:
    """The lengths that are looked at; a quantile is the shortest length that so large a part does not exceed."""

    def quantile(part: float) -> int:
        n = 1
        while law.survival(n) > 1 - part:
            n += 1
        return n

    parts = {"median": 0.5, "90%": 0.9, "99%": 0.99, "99.9%": 0.999, "longest of 1,570": 0.5 ** (1 / SEGMENTS)}
    found = {name: quantile(part) for name, part in parts.items()}
    return dict(sorted({**found, "mean": MEAN}.items(), key=lambda item: item[1]))


def measure(model: CharacterModel, links: Tensor, window: int | None) -> dict[str, int]:
    """The highest moment of one segment, and how many steps were run."""
    text = torch.randint(SYMBOLS, (len(links) + 1, LANES), generator=torch.Generator().manual_seed(0))
    steps = 0

    def step(inputs: tuple[Tensor, Tensor], state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
        nonlocal steps
        characters, targets = inputs
        steps += len(characters)
        logits, state = model(characters, state, links)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), state

    def call() -> None:
        artbp.backprop(step, (text[:-1], text[1:]), model.initial_state(LANES), links, window=window)

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # there before, as in training
    call()  # what is made once, kernels and their probes, is not counted
    steps = 0
    return {"bytes": peak(call, torch.device("cpu")), "steps": steps}


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for memory.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    torch.manual_seed(0)
    law = artbp.PowerLaw(mean=MEAN, alpha=ALPHA)
    model = CharacterModel(SYMBOLS, hidden=UNITS)
    rows = []
    for name, length in lengths(law).items():
        for window in WINDOWS:
            row = {"segment": name, "length": length, "window": window, **measure(model, law.links(length), window)}
            rows.append(row)
            print(f"{name:>18} {length:5} window {window!s:>5}: {row['bytes'] / 2**20:8.1f} MiB, {row['steps']} steps")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        command = " ".join(["python", *sys.argv])
        model_is = {"symbols": SYMBOLS, "units": UNITS, "lanes": LANES, "cell": "lstm", "dtype": "float32"}
        result = {"command": command, "environment": environment(), "model": model_is, "law": repr(law), "rows": rows}
        (out / "memory.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
