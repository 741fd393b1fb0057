"""What truncation does to the gradient of a trained character model: its bias, the noise of ARTBP, that of the data.

    artbp train --ptb DIR --method tbptt --hidden 128 --epochs 5 --lr 0.003 --out runs/ptb-tbptt
    python benchmarks/language_bias.py runs/ptb-tbptt [--out results/language-bias]

At the parameters of the run's best checkpoint some stretches of the training text, of 1,500 steps and as many lanes as
the run had, are gone through by the exact gradient, by truncated BPTT of several lengths, and by ARTBP several times,
with cuts that all lanes share and with cuts of their own. All norms are relative to the exact gradient's of the
stretch, and averaged over the stretches. The data's own noise is the spread of the stretches' exact gradients around
their mean, on the same scale: what an estimate from one such stretch is off by, truncated or not. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from environment import environment
from torch import Tensor

from artbp import PowerLaw
from artbp.data import Lanes
from artbp.diagnostics import compare
from artbp.estimators import ARTBP, CheckpointedBPTT, TruncatedBPTT
from artbp.train.loading import load_corpus, load_model

LENGTHS = (10, 20, 50, 100, 200)
DRAWS = 6


class PerLane(ARTBP):
    """ARTBP with cuts of its own for every lane."""

    def __repr__(self) -> str:
        return f"{super().__repr__()}, a cut for each lane"

    def _links(self, step: Any, inputs: Any, state: Any, T: int) -> Tensor:
        return self.cut.links(T, lanes=inputs[0].shape[1])


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished `artbp train`")
    parser.add_argument("--steps", type=int, default=1500, help="steps of a stretch")
    parser.add_argument("--stretches", type=int, default=5, help="how many, evenly over the pass")
    parser.add_argument("--out", type=Path, help="a folder for language-bias.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trained = load_model(options.run, device="cpu")
    corpus, lanes = load_corpus(trained), trained.config["lanes"]
    model = trained.model

    def step(inputs: tuple[Tensor, Tensor], state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
        characters, targets = inputs
        logits, state = model(characters, state, links)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), state

    laws = [PowerLaw(mean=50, alpha=alpha) for alpha in (4, 6, 10)]
    estimators = [
        *[TruncatedBPTT(length, window=100) for length in LENGTHS],
        *[ARTBP(law, window=100, seed=0) for law in laws],
        PerLane(laws[0], window=100, seed=0),
        CheckpointedBPTT(100),
    ]
    stream = Lanes(corpus.splits["train"], lanes)
    exact, bits, found = [], [], []
    for i in range(options.stretches):
        inputs, state = _stretch(stream, model, options.steps, i * (stream.steps // options.stretches))
        compared = compare(estimators, step, inputs, state, draws=DRAWS)
        exact.append(compared.rows[-1].moments.mean)
        found.append(compared.rows[:-1])
        with torch.no_grad():
            bits.append(float(step(inputs, state, None)[0]) / (inputs[0].numel() * math.log(2)))
        print(compared, flush=True)
    mean = torch.stack(exact).mean(0)
    size = statistics.fmean(float(one.norm()) for one in exact)
    data = math.sqrt(sum(float((one - mean).square().sum()) for one in exact) / (len(exact) - 1)) / size
    rows = [
        {
            "estimator": column[0].estimator,
            **{
                name: statistics.fmean(getattr(row, name) for row in column)
                for name in ("bias", "deviation", "cosine", "draw_cosine", "error")
            },
        }
        for column in zip(*found, strict=True)
    ]
    result = {
        "command": " ".join(["python", *sys.argv]),
        "environment": environment(),
        "corpus": corpus.name,
        "model": {name: trained.config[name] for name in ("cell", "hidden", "layers", "lanes", "method", "lr")},
        "passes": trained.epoch,
        "bits": statistics.fmean(bits),
        "steps": options.steps,
        "stretches": options.stretches,
        "draws": DRAWS,
        "data_deviation": data,
        "rows": rows,
    }
    print(json.dumps(rows, indent=2), f"data {data:.3f}", f"bits {result['bits']:.3f}")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "language-bias.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _stretch(stream: Lanes, model: Any, steps: int, first: int) -> tuple[Any, Any]:
    """Some steps from `first` on, and the state that a pass has there, as 500 steps before it make it."""
    stream.rewind()
    before = max(0, first - 500)
    if before:
        stream.take(before)
    state = model.initial_state(stream.lanes)
    if first > before:
        with torch.no_grad():
            _, state = model(stream.take(first - before)[0], state)
    return stream.take(steps), state


if __name__ == "__main__":
    main()
