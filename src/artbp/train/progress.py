"""What a run says while it goes on: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

from artbp.train.training import Training

_LINE_EVERY = 10.0  # seconds from one line to the next, where there is no bar


class Progress:
    """Characters done, bits per character, time left; silent in all processes but the first."""

    def __init__(self, total: int, done: int, epochs: int, *, silent: bool = False) -> None:
        self.epochs, self.silent = epochs, silent
        self.total, self.done, self.begun = total, done, done
        self.start = self.said = time.monotonic()
        self.bar: Any = tqdm(
            total=total,
            initial=done,
            unit="char",
            unit_scale=True,
            **_size(),
            smoothing=0.1,
            disable=True if silent else None,  # None: where there is no terminal
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def advance(self, characters: int) -> None:
        """So many characters more are done."""
        self.done += characters
        self.bar.update(characters)

    def train(self, bpc: float, training: Training) -> None:
        """The bits per character of the last updates."""
        self.bar.set_postfix_str(f"{bpc:.3f} bpc, pass {min(training.epoch + 1, self.epochs)} of {self.epochs}")
        if self.bar.disable and time.monotonic() - self.said > _LINE_EVERY:
            self._say(f"update {training.update:>7,}  train {bpc:.3f} bpc  {self._pace()}")

    def evaluated(self, training: Training, valid: float | None, train: float | None) -> None:
        """A pass is over."""
        parts = [f"pass {training.epoch:>3} of {self.epochs}", f"update {training.update:>7,}"]
        parts += [f"{name} {bpc:.3f} bpc" for name, bpc in (("train", train), ("valid", valid)) if bpc is not None]
        self._say("  ".join([*parts, *([self._pace()] if self.bar.disable else [])]))

    def _pace(self) -> str:
        pace = (self.done - self.begun) / max(time.monotonic() - self.start, 1e-9)
        left = (self.total - self.done) / max(pace, 1e-9)
        return f"{pace:,.0f} char/s  {_clock(left)} left"

    def _say(self, line: str) -> None:
        self.said = time.monotonic()
        if not self.silent:
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()


def _size() -> dict[str, Any]:
    """As large as the terminal is at the moment; a usual size for one that does not know, as in some containers."""
    try:
        known = os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (AttributeError, OSError, ValueError):  # no terminal
        known = True
    if known:
        return {"dynamic_ncols": True}
    columns, lines = shutil.get_terminal_size()
    return {"ncols": columns, "nrows": lines}


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(min(seconds, 359_999)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
