"""Where in a text a model finds it hard, lane by lane and stretch by stretch, and what its state was there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from artbp.data import Lanes
from artbp.train.evaluation import CHUNK, lane_losses, last_lane, left_over
from artbp.train.model import CharacterModel

STRETCH = CHUNK  # steps; the chunks of `evaluate`, so that the same sums come out
FAR = 0.5  # bits per character above the median: no lane of ordinary text is that much harder, if it is long
DEVIATIONS = 4.0  # above the median, of the other lanes' spread: short lanes differ by their text
LEAST = 8  # stretches, some 2,000 steps, that a passage inside a lane has to last to be told

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Derailment:
    """A lane that is far worse than the others, and the passage in which it is.

    The passage is the one, from stretch `first` to before `end`, whose bits above ``median + FAR`` sum up to most.
    """

    lane: int
    bpc: float
    first: int
    end: int
    bpc_before: float | None
    bpc_inside: float


@dataclass(frozen=True)
class Trace:
    """An evaluation, kept apart by lane and stretch.

    Attributes:
        bits: what each stretch of each lane costs (S, B).
        lengths: steps of each stretch of each lane (S, B); the last lane is longer by what is left over.
        norms: Euclidean norms of the state at the end of each stretch, by name ("h", "c"), each (S, layers, B).
        reset: the state was set to zero every so many steps, or None.
        largest: the largest magnitude of a unit in the state there, likewise.
        units: which unit that is, likewise.
    """

    bits: Array
    lengths: Array
    norms: dict[str, Array]
    reset: int | None
    largest: dict[str, Array] = field(default_factory=dict)
    units: dict[str, Array] = field(default_factory=dict)

    @property
    def lanes(self) -> int:
        """How many there are."""
        return int(self.bits.shape[1])

    @property
    def steps(self) -> int:
        """Of each lane; of the last one without what is left over."""
        return int(self.lengths[:, 0].sum())

    @property
    def characters(self) -> int:
        """That were predicted."""
        return int(self.lengths.sum())

    @property
    def bpc(self) -> float:
        """Of all lanes."""
        return float(self.bits.sum()) / self.characters

    @property
    def lane_bpc(self) -> Array:
        """Of each lane (B,)."""
        bpc: Array = self.bits.sum(0) / self.lengths.sum(0)
        return bpc

    @property
    def stretch_bpc(self) -> Array:
        """Of each stretch of each lane (S, B)."""
        bpc: Array = self.bits / self.lengths
        return bpc

    def derailments(self) -> list[Derailment]:
        """The lanes that lost their way, worst first.

        A lane counts if it is more than FAR above the median lane, and more than DEVIATIONS of the lanes' spread; or if
        a passage of at least LEAST stretches in it costs more than 2 FAR above the median stretch, which the mean of a
        long lane would hide.
        """
        stretch, lane_bpc = self.stretch_bpc, self.lane_bpc
        usual = float(np.median(stretch))
        above = lane_bpc - np.median(lane_bpc)
        spread = 1.4826 * float(np.median(np.abs(above)))  # a standard deviation, which no outlier makes larger
        far = above > max(FAR, DEVIATIONS * spread)
        found = []
        for lane in range(self.lanes):
            first, end = _heaviest((stretch[:, lane] - usual - FAR) * self.lengths[:, lane])
            inside = self._mean(lane, first, end)
            hidden = end - first >= LEAST and inside - usual > 2 * FAR
            if far[lane] or hidden:
                before = self._mean(lane, 0, first) if first else None
                found.append(Derailment(lane, float(lane_bpc[lane]), first, end, before, inside))
        return sorted(found, key=lambda derailment: -derailment.bpc)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain numbers."""
        return {
            "bpc": self.bpc,
            "lanes": self.lanes,
            "steps": self.steps,
            "characters": self.characters,
            "reset": self.reset,
            "stretch": STRETCH,
            "lane_bpc": self.lane_bpc.tolist(),
            "stretch_bpc": self.stretch_bpc.tolist(),
            "norms": {name: norms.tolist() for name, norms in self.norms.items()},
            "largest": {name: largest.tolist() for name, largest in self.largest.items()},
            "units": {name: units.astype(int).tolist() for name, units in self.units.items()},
        }

    def _mean(self, lane: int, first: int, end: int) -> float:
        return float(self.bits[first:end, lane].sum() / self.lengths[first:end, lane].sum())


def trace(model: CharacterModel, symbols: Any, *, lanes: int, device: torch.device, reset: int | None = None) -> Trace:
    """Runs the model over all of `symbols` as :func:`evaluate` does; with `reset`, from zeros every so many steps."""
    stream = Lanes(symbols, lanes, device=device)
    count = -(-stream.steps // STRETCH)
    nats = torch.zeros(count, lanes, dtype=torch.float64)
    states: list[torch.Tensor] = []
    with torch.no_grad():
        state = None
        while (at := stream.position) < stream.steps:
            if reset is not None and at % reset == 0:
                state = None
            steps = min([STRETCH - at % STRETCH, *([] if reset is None else [reset - at % reset])])
            rows = stream.take(steps)
            if rows is None:
                break
            losses, state = lane_losses(model, *rows, state)
            nats[at // STRETCH] += losses.double().cpu()
            if stream.position % STRETCH == 0 or stream.position == stream.steps:
                states.append(_looks(state))
        rest, state, at = left_over(symbols, stream.remainder, device), last_lane(state), stream.steps
        while at < stream.steps + stream.remainder:
            if reset is not None and at % reset == 0:
                state = None
            first = at - stream.steps
            end = stream.remainder if reset is None else min(first + reset - at % reset, stream.remainder)
            losses, state = lane_losses(model, rest[0][first:end], rest[1][first:end], state)
            nats[-1, -1] += float(losses)
            at = stream.steps + end
    lengths = np.full((count, lanes), float(STRETCH))
    lengths[-1] = stream.steps - STRETCH * (count - 1)
    lengths[-1, -1] += stream.remainder
    looks = torch.stack(states, 1).numpy()  # (3, S, leaves, layers, B)
    names = ("h", "c")[: looks.shape[2]]
    named = ({name: look[:, leaf] for leaf, name in enumerate(names)} for look in looks)
    norms, largest, units = named
    return Trace((nats / math.log(2)).numpy(), lengths, norms, reset, largest, units)


def _looks(state: Any) -> torch.Tensor:
    """At each leaf of the state (layers, B, H): its norm, its largest magnitude, and in which unit: (3, leaves, …)."""
    leaves = [leaf.double() for leaf in (state if isinstance(state, tuple) else (state,))]
    largest = [leaf.abs().max(-1) for leaf in leaves]
    found = [[leaf.norm(dim=-1) for leaf in leaves], [one[0] for one in largest], [one[1].double() for one in largest]]
    return torch.stack([torch.stack(each) for each in found]).cpu()


def _heaviest(excess: Array) -> tuple[int, int]:
    """The bounds of the stretches whose excess sums up to most; never none of them."""
    sums = np.concatenate([[0.0], np.cumsum(excess)])
    lowest = np.minimum.accumulate(sums[:-1])
    end = int(np.argmax(sums[1:] - lowest)) + 1
    return int(np.argmin(sums[:end])), end
