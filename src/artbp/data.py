"""Contiguous lanes of one long sequence of symbols, position and all. Laws and their cuts are none of its business."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Lanes"]

_Integers = npt.NDArray[np.integer[Any]]
# What NumPy has and torch computes little with is gathered as the next type that holds it. Most text is uint8.
_CARRIER = {np.dtype(np.uint16): torch.int32, np.dtype(np.uint32): torch.int64, np.dtype(np.uint64): torch.int64}


class Lanes:
    """Contiguous parallel lanes of one long sequence of symbols: each symbol is input, and the next one its target.

    With N symbols and B lanes, lane b goes through ``symbols[b*S : b*S + S]``, S = (N-1) // B steps; its targets are
    the same, one symbol on. So a lane's state can be carried from its first step to its last, and where lane b ends
    lane b + 1 began. What is left over at the end, less than a step of all lanes, is `remainder`.

    `take(n)` is all that :meth:`artbp.Truncation.segments` and an estimator's `stream` ask for. They take trees of
    tensors (T, B, …) directly as well: for real values, or several tensors that run side by side, pass
    ``cut.segments({"sound": x, "pitch": y})``, or an object of your own whose `take(n)` returns the next n steps of
    such a tree, and None at the end.

    Cost: n·B symbols are copied per call. The sequence stays where it is, neither copied nor read ahead, so a text in
    an `np.memmap` may be larger than memory, and processes share it. On a CUDA device the symbols travel in their own
    compact type, from pinned memory, and are widened there.

    Args:
        symbols: a 1-D tensor or NumPy array of integers, np.memmap included.
        lanes: how many lanes there are, B.
        part: (rank, of): only the lanes ``rank*B/of, …, (rank+1)*B/of - 1``, for one process of several. Together the
            parts are the whole, and a state that one of them saved is good for any other way to part the same lanes.
        device: where inputs and targets go; the CPU, or that of `symbols`, unless told.

    Attributes:
        steps: S, how many steps there are in a pass.
        lanes: how many lanes are served here: B, or B/of with `part`.
        remainder: how many symbols at the end are in no lane, N - 1 - B·S.
        position: how many steps have been taken.

    Example:
        >>> stream = Lanes(np.arange(12), 2)
        >>> stream.steps, stream.remainder
        (5, 1)
        >>> inputs, targets = stream.take(3)
        >>> inputs.T.tolist(), targets.T.tolist()
        ([[0, 1, 2], [5, 6, 7]], [[1, 2, 3], [6, 7, 8]])
        >>> inputs, targets = stream.take(100)
        >>> inputs.T.tolist(), stream.take(100)
        ([[3, 4], [8, 9]], None)
    """

    def __init__(self, symbols: Any, lanes: int, *, part: tuple[int, int] = (0, 1), device: Any = None) -> None:
        self._symbols = _sequence(symbols)
        self._all = _whole(lanes, "lanes", "They go through the text side by side: pass an int such as 64.")
        rank, of = _part(part, self._all)
        length = len(self._symbols)
        self.steps = (length - 1) // self._all
        if self.steps < 1:
            raise ValueError(
                f"Lanes got {length:,} symbols for {self._all:,} lanes: each lane needs a symbol and the one that "
                f"follows it, so that {self._all:,} lanes take {self._all + 1:,} symbols at least. Pass "
                + (f"at most {length - 1:,} lanes, or a longer text." if length > 1 else "a longer text.")
            )
        self.lanes = self._all // of
        self._first = rank * self.lanes * self.steps  # where the first lane served here begins
        self.remainder = length - 1 - self._all * self.steps
        self.position = 0
        here = symbols.device if isinstance(symbols, Tensor) else "cpu"
        self.device = torch.device(here if device is None else device)

    def __repr__(self) -> str:
        return f"Lanes({len(self._symbols):,} symbols, lanes={self.lanes}, position={self.position} of {self.steps})"

    def take(self, n: int) -> tuple[Tensor, Tensor] | None:
        """(inputs, targets) of the next n steps, int64 (n, lanes); fewer at the end, None once nothing is left."""
        n = min(_whole(n, "take(n)", "It counts time steps: pass an int such as 50."), self.steps - self.position)
        if n == 0:
            return None
        block = self._gather(self._first + self.position, n + 1)  # (n+1, lanes)
        # Each is a tensor of its own, so that who masks the inputs in place leaves the targets alone.
        inputs, targets = (
            torch.empty(n, self.lanes, dtype=torch.int64, device=self.device).copy_(rows)
            for rows in (block[:-1], block[1:])
        )
        self.position += n
        return inputs, targets

    def rewind(self) -> None:
        """Begins the next pass: back to the first step."""
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """The position, and the shape it is a position in; the same in every part."""
        return {
            "position": self.position,
            "steps": self.steps,
            "lanes": self._all,
            "symbols": len(self._symbols),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, by whichever part; refused for another length or number of lanes."""
        for name, here, instead in (
            ("symbols", len(self._symbols), "Pass the text that the state was saved with"),
            ("lanes", self._all, f"Build Lanes with lanes={state.get('lanes')}"),
            ("steps", self.steps, "Pass the text that the state was saved with"),
        ):
            if state.get(name) != here:
                raise ValueError(
                    f"this state was saved in a stream of {_shown(state.get(name))} {name} and cannot go on in one of "
                    f"{_shown(here)} {name}: its position would be another place. {instead}, or begin without loading."
                )
        position = state.get("position")
        if not isinstance(position, int) or not 0 <= position <= self.steps:
            raise ValueError(
                f"this state says position {position!r} in a pass of {self.steps:,} steps, which no state_dict() "
                "returned. Pass one as it was saved."
            )
        self.position = position

    def _gather(self, first: int, rows: int) -> Tensor:
        """Rows `first`, first+1, … of all lanes served here, in a compact type, on the device: (rows, lanes)."""
        if isinstance(self._symbols, Tensor):  # on a device already
            stride = self._symbols.stride(0)
            place = self._symbols.storage_offset() + first * stride
            block = self._symbols.as_strided((rows, self.lanes), (stride, self.steps * stride), place)
            return block.to(self.device)
        stride = self._symbols.strides[0]
        view = np.lib.stride_tricks.as_strided(
            self._symbols[first:], (rows, self.lanes), (stride, self.steps * stride), writeable=False
        )
        dtype = view.dtype.newbyteorder("=")
        carrier = _CARRIER.get(dtype) or torch.from_numpy(np.empty(0, dtype)).dtype
        pinned = self.device.type == "cuda"
        block = torch.empty(rows, self.lanes, dtype=carrier, pin_memory=pinned)
        np.copyto(block.numpy(), view, casting="unsafe")
        return block.to(self.device, non_blocking=pinned)


def _sequence(symbols: Any) -> _Integers | Tensor:
    """The symbols as they lie in memory, without a copy."""
    if not isinstance(symbols, Tensor | np.ndarray):
        raise TypeError(
            f"Lanes got symbols of type {type(symbols).__name__}: it serves the integers that stand for symbols. Pass "
            "a 1-D NumPy array or tensor of them; a text has to be encoded first."
        )
    if symbols.ndim != 1:
        raise ValueError(
            f"Lanes got symbols of shape {tuple(symbols.shape)}: it cuts one long sequence, (N,), into lanes itself. "
            "Pass symbols.reshape(-1) if that is its order; what is in lanes already, (T, B), goes to "
            "Truncation.segments as it is."
        )
    if isinstance(symbols, Tensor):
        if symbols.is_floating_point() or symbols.is_complex() or symbols.dtype == torch.bool:
            raise _no_integers(symbols.dtype)
        return symbols if symbols.device.type != "cpu" else symbols.numpy()
    if symbols.dtype.kind not in "iu":
        raise _no_integers(symbols.dtype)
    return symbols


def _no_integers(dtype: Any) -> TypeError:
    return TypeError(
        f"Lanes got symbols of {dtype}: a symbol is a whole number, the index of its row in an embedding. Pass "
        "integers (uint8 is enough for 256 of them); real values in lanes, (T, B, …), go to Truncation.segments as "
        "they are."
    )


def _whole(value: Any, name: str, instead: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 1:
        raise ValueError(f"{name} got {value!r}: it must be a whole number of at least 1. {instead}")
    return int(value.__index__())


def _part(part: tuple[int, int], lanes: int) -> tuple[int, int]:
    try:
        rank, of = (value.__index__() for value in part)
    except (TypeError, ValueError, AttributeError):
        rank, of = 0, 0
    if not 0 <= rank < of:
        raise ValueError(
            f"part got {part!r}: it says which part of how many, and the first one is 0. Pass (rank, world size), such "
            "as (0, 2) and (1, 2)."
        )
    if lanes % of:
        raise ValueError(
            f"part got {part!r} for {lanes} lanes: {lanes} cannot be dealt out evenly to {of}. Pass a number of lanes "
            f"that {of} divides, such as {-(-lanes // of) * of}, or as many processes as divide {lanes}."
        )
    return rank, of


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else repr(value)
