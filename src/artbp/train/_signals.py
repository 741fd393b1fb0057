"""Ctrl-C and SIGTERM as questions that a run answers between two updates."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Ctrl-C under torchrun, or another program that hands signals on, comes twice: from the terminal, and from there.
_ECHO = 1.0  # seconds


@contextmanager
def signals() -> Iterator[list[int]]:
    """Inside, SIGINT and SIGTERM raise nothing and are put into the list; a second Ctrl-C is as usual."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and came and now - first[0] > _ECHO:
            signal.signal(number, before[number])
            signal.raise_signal(number)
        came.append(number)
        first.append(now)

    first: list[float] = []
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
