"""What the commands check in their options before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST = 2**63 - 1  # that torch counts


class OptionError(Exception):
    """An option that cannot work: what was passed and why, and what to pass instead."""


def check_whole(options: Any, least: Mapping[str, int]) -> None:
    """Refuses whole numbers below the least that makes sense, or beyond what torch counts."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value < bound:
            raise OptionError(f"--{name} {value}: it must be at least {bound}.\nPass a whole number from {bound} on.")
        if value > _MOST:
            raise OptionError(f"--{name} {value}: it must be below 2^63.\nPass a whole number from {bound} on.")


def check_lengths(lengths: tuple[int, ...]) -> None:
    """Refuses what is no length of a segment."""
    for length in lengths:
        if not 1 <= length <= _MOST:
            why = "a segment has at least one step" if length < 1 else "no segment has 2^63 steps"
            raise OptionError(f"--lengths {length}: {why}.\nPass whole numbers from 1 on.")


def check_given(options: Any, *names: str) -> None:
    """Refuses lists without an entry."""
    for name in names:
        if not getattr(options, name):
            default = " ".join(map(str, getattr(type(options), name)))
            raise OptionError(f"--{name} names none.\nPass some, such as --{name} {default}, or leave the option out.")


def as_json(value: Any) -> Any:
    """A tuple as the list that it is read back as."""
    return list(value) if isinstance(value, tuple) else value
