"""What the frameworks are compared with: the same training in a loop of a few lines."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import artbp
from artbp.data import Lanes

TEXT = np.random.default_rng(0).integers(0, 256, 1201).astype(np.uint8)
LANES = 4
LAW = artbp.PowerLaw(mean=15, alpha=4)


def train(model: Any, *, passes: int | None = None, updates: int | None = None, every: int = 1) -> list[int]:
    """Trains anything with an embedding, an lstm and a readout; returns the lengths of the segments."""
    cut, optimizer = artbp.Truncation(LAW, seed=0), torch.optim.Adam(model.parameters(), lr=0.002)
    lengths: list[int] = []
    for _ in range(passes) if passes else itertools.count():
        state = None
        for (inputs, targets), links in cut.segments(Lanes(TEXT, LANES)):
            output, state = model.lstm(model.embedding(inputs), state, links=links)
            state = artbp.detach(state)
            loss = cross_entropy(model.readout(output).flatten(0, 1), targets.flatten(), reduction="sum")
            (loss / (15 * LANES * every)).backward()
            lengths.append(len(links))
            if len(lengths) % every == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if len(lengths) == updates:
                return lengths
    return lengths


def forget(model: Any) -> None:
    """Other parameters, which nothing but a checkpoint is to bring back."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)


def parameters(model: Any) -> dict[str, Tensor]:
    return {name.removeprefix("module."): parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(model: Any, expected: Any) -> bool:
    return all(torch.equal(here, there) for here, there in zip(model.parameters(), expected.parameters(), strict=True))


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
