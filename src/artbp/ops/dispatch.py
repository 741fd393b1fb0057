"""Which path runs: one table, read from the top; every path is probed against the specification before it is used."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from artbp.ops import _probe, naive
from artbp.ops._types import MODES, Path, Tensors, Weights
from artbp.ops._weights import windows


@dataclass(frozen=True, slots=True)
class Problem:
    """What the choice may depend on, for one layer."""

    mode: str
    device: str
    dtype: torch.dtype
    projected: bool
    x: Tensor  # (T, B, I)
    hidden: int
    links: Tensor | None

    def steps_a_window(self) -> float:
        """Steps over the windows a weighted kernel would be called for (see :mod:`artbp.ops._weights`)."""
        steps = self.x.shape[0]
        return steps if self.links is None else steps / len(windows(self.links, self.x.device))


@dataclass(frozen=True)
class Rule:
    """One row of the table: a path, what it serves, and from where on it is the fastest that does.

    Args:
        path: its name in `PATHS`.
        device: the type of device, or None for any.
        dtypes: of the input.
        modes: see `MODES`.
        projected: whether it serves projections too.
        pays: the measured condition.
        evidence: what was measured, in a sentence.
    """

    path: str
    device: str | None
    dtypes: tuple[torch.dtype, ...]
    modes: tuple[str, ...]
    projected: bool
    pays: Callable[[Problem], bool]
    evidence: str

    def serves(self, mode: str, device: str, dtype: torch.dtype, projected: bool) -> bool:
        """Whether the path can compute this at all, whatever its size."""
        return (
            self.device in (None, device)
            and dtype in self.dtypes
            and mode in self.modes
            and (self.projected or not projected)
        )


PATHS = {
    "naive": "artbp.ops.naive",
    "batched": "artbp.ops.batched",
    "onednn": "artbp.ops.onednn",
}

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

TABLE: tuple[Rule, ...] = (
    Rule(
        "onednn",
        "cpu",
        (torch.float32, torch.bfloat16),
        ("LSTM",),
        projected=False,
        pays=lambda problem: problem.steps_a_window() >= 4,
        evidence="oneDNN's LSTM takes 0.3 to 0.6 of the batched path's time, but packs its weights once a window.",
    ),
    Rule(
        "batched",
        None,
        FLOATS,
        MODES,
        projected=True,
        pays=lambda problem: True,
        evidence="0.4 to 0.95 of torch.nn's time for GRU and RNN in float32; it serves every mode, dtype and device.",
    ),
)


def recurrence(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The contract of :class:`artbp.ops._types.Path`, by the first path of the table that serves, pays and is right."""
    return load(choose(mode, x, weights, links))(mode, x, hx, weights, links)


def choose(mode: str, x: Tensor, weights: Weights, links: Tensor | None) -> str:
    """The name of the path for this call."""
    problem = Problem(mode, x.device.type, x.dtype, len(weights) == 5, x, weights[1].shape[0], links)
    for rule in TABLE:
        if (
            rule.serves(mode, problem.device, x.dtype, problem.projected)
            and rule.pays(problem)
            and trusted(rule.path, mode, x.device, x.dtype)
        ):
            return rule.path
    return "naive"


def load(name: str) -> Path:
    """The path of that name, imported at first use."""
    path = _loaded.get(name)
    if path is None:
        path = _loaded[name] = importlib.import_module(PATHS[name]).recurrence
    return path


def trusted(name: str, mode: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the path agrees with the specification here; found out once, and said once where it does not."""
    key = (name, mode, device.type, dtype)
    verdict = _verdicts.get(key)
    if verdict is None:
        verdict = _verdicts[key] = _probe.examine(load, name, mode, device, dtype)
        if not verdict.passed:
            warnings.warn(
                f"artbp's {name} path for {mode} in {dtype} on {device.type} is not used: {verdict.words}. Another path"
                " takes its place, with the same results, perhaps more slowly; `artbp doctor` lists what is used.",
                RuntimeWarning,
                stacklevel=2,
            )
    return verdict.passed


def forget() -> None:
    """Probe every path anew at its next use, as in a new process."""
    _verdicts.clear()


_loaded: dict[str, Path] = {"naive": naive.recurrence}
_verdicts: dict[tuple[str, str, str, torch.dtype], _probe.Verdict] = {}
