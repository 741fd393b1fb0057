"""How many bits a character costs a model on a text it does not learn from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from artbp.data import Lanes
from artbp.train.group import Group
from artbp.train.model import CharacterModel

CHUNK = 256  # steps at a time; the state is carried over, so the result does not depend on it
_LEAST_STEPS = 200  # of a lane, at whose beginning the model knows nothing


@dataclass(frozen=True)
class Evaluation:
    """Bits per character, and how they spread over the lanes.

    Each lane begins with a state of zeros, in the middle of the text, and carries it to its end: with one lane that is
    the text from its first character to its last. What does not make a whole step of all lanes belongs to the last one,
    so that every character but the first is predicted once. A lane much worse than the others has lost its way: a state
    that training never met can be one that the model does not come back from.
    """

    bpc: float
    characters: int
    lane_bpc: tuple[float, ...]

    @property
    def worst_lane_bpc(self) -> float:
        """That of the lane with the most bits."""
        return max(self.lane_bpc)

    @property
    def median_lane_bpc(self) -> float:
        """That of the lane in the middle, which no single lane can change much."""
        return statistics.median(self.lane_bpc)


def fitting_lanes(symbols: Any, lanes: int) -> int:
    """As many of `lanes` as leave each of them some hundred steps."""
    return max(1, min(lanes, (len(symbols) - 1) // _LEAST_STEPS))


def evaluate(
    model: CharacterModel,
    symbols: Any,
    *,
    lanes: int,
    device: torch.device,
    group: Group | None = None,
    between: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Runs the model over all of `symbols`, in parallel lanes, without a gradient; a group shares the lanes.

    `between` is called every now and then, and may raise to end it.
    """
    group = Group() if group is None or lanes % group.size else group  # where they cannot be dealt, all do all of them
    stream = Lanes(symbols, lanes, part=(group.rank, group.size), device=device)
    was_training = model.training
    model.eval()
    nats = torch.zeros(stream.lanes, dtype=torch.float64)
    try:
        with torch.no_grad():
            state = None
            while (rows := stream.take(CHUNK)) is not None:
                of_lanes, state = lane_losses(model, *rows, state)
                nats += of_lanes.double().cpu()
                between()
            if stream.remainder and group.rank == group.size - 1:
                rows = left_over(symbols, stream.remainder, device)
                of_lanes, _ = lane_losses(model, *rows, last_lane(state))
                nats[-1:] += of_lanes.double().cpu()
    finally:
        model.train(was_training)
    bits = torch.cat(group.gather(nats)) / math.log(2)  # (lanes,)
    steps = torch.full((lanes,), float(stream.steps), dtype=torch.float64)
    steps[-1] += stream.remainder
    characters = len(symbols) - 1
    return Evaluation(float(bits.sum()) / characters, characters, tuple((bits / steps).tolist()))


def left_over(symbols: Any, remainder: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of the steps that follow the last lane's end, (remainder, 1)."""
    rest = torch.from_numpy(np.asarray(symbols[len(symbols) - 1 - remainder :]).astype(np.int64)).to(device)[:, None]
    return rest[:-1], rest[1:]


def last_lane(state: Any) -> Any:
    """The state of the last lane alone, (layers, 1, H)."""
    leaves = [leaf[:, -1:].contiguous() for leaf in (state if isinstance(state, tuple) else (state,))]
    return tuple(leaves) if isinstance(state, tuple) else leaves[0]


def lane_losses(model: CharacterModel, characters: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Any]:
    """(the loss of each lane (B,), summed over time, in nats; the state), for symbols (T, B)."""
    logits, state = model(characters, state)
    return losses(logits, targets, "none").view_as(targets).sum(0), state


def losses(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    """The cross entropy of logits (T, B, V) and symbols (T, B), in nats and in float32 at least."""
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
