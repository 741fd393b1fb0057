"""Backpropagation through time in the memory of one window."""

from __future__ import annotations

from artbp.estimators._segments import Segments
from artbp.laws import Never
from artbp.truncation import Truncation


class CheckpointedBPTT(Segments):
    """The exact gradient in the memory of one window.

    Reference: Gruslys et al. 2016, "Memory-Efficient Backpropagation Through Time".
    """

    def __init__(self, window: int) -> None:
        super().__init__(Truncation(Never(), seed=0), window)

    def __repr__(self) -> str:
        return f"CheckpointedBPTT({self.window})"
