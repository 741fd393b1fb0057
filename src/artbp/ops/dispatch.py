"""Which path runs: one table, read from the top; every path is probed against the specification before it is used."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from artbp.ops import _probe, naive
from artbp.ops._types import MODES, Path, Tensors, Weights
from artbp.ops._weights import Window, coded_windows, windows

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(slots=True)
class Problem:
    """What the choice among the paths that serve may depend on, for one layer."""

    x: Tensor  # (T, B, I)
    hidden: int  # H
    links: Tensor | None

    def steps_a_window(self, windows: Callable[[Tensor], list[Window]]) -> float:
        """Steps for each window that a weighted kernel would be called for (see :mod:`artbp.ops._weights`)."""
        steps = self.x.shape[0]
        return steps if self.links is None else steps / len(windows(self.links))


def _onednn_enabled() -> bool:
    return bool(torch._C._get_mkldnn_enabled())  # what torch.backends.mkldnn.flags sets


def _onednn_here(problem: Problem) -> bool:
    if not _onednn_enabled() or problem.x.numel() == 0:
        return False
    steps = problem.steps_a_window(lambda links: coded_windows(links, problem.x.shape[1], problem.x.device))
    several = 16 if problem.x.shape[1] == 1 else 8
    return steps >= (4 if steps == problem.x.shape[0] else several)


def _fused_here(problem: Problem) -> bool:
    from artbp.ops import fused

    return problem.x.numel() > 0 and fused.available(problem.x.device)


def _cudnn_here(problem: Problem) -> bool:
    from artbp.ops import cudnn

    return (
        problem.x.numel() > 0
        and cudnn.available()
        and problem.steps_a_window(lambda links: windows(links, problem.x.device)) >= 8
    )


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

    def serves(self, mode: str, device: torch.device, dtype: torch.dtype, projected: bool) -> bool:
        """Whether the path can compute this at all, whatever its size."""
        return (
            self.device in (None, device.type)
            and dtype in self.dtypes
            and mode in self.modes
            and (self.projected or not projected)
        )


PATHS = {
    "batched": "artbp.ops.batched",
    "cudnn": "artbp.ops.cudnn",
    "fused": "artbp.ops.fused",
    "naive": "artbp.ops.naive",
    "onednn": "artbp.ops.onednn",
}

TABLE = (
    Rule(
        "onednn",
        "cpu",
        (torch.float32, torch.bfloat16),
        ("LSTM",),
        projected=False,
        pays=_onednn_here,
        evidence="oneDNN's LSTM takes 0.2 to 0.8 of the batched path's time for one window of 64 steps, 0.4 to 1.0 for"
        " one of 16, 0.6 to 1.3 for 8, 0.7 to 1.7 for 4; of several windows, 0.7 to 1.1 at 8 steps each and 1.0 to 1.5"
        " at 4, but for a single lane 0.8 to 1.3 at 16 and 1.2 to 1.9 at 8. A window holds a stretch between shared"
        " cuts, or some three cuts of every lane.",
    ),
    Rule(
        "fused",
        "cuda",
        (torch.float32, torch.bfloat16),
        ("LSTM",),  # it serves all MODES; GRU and RNN: right in the interpreter, not yet timed on a GPU
        projected=False,
        pays=_fused_here,
        evidence="On an H200 0.2 to 0.8 of cuDNN's time, 1.0 to 1.2 where cuDNN keeps a small weight on the chip.",
    ),
    Rule(
        "cudnn",
        "cuda",
        (torch.float32,),
        ("LSTM",),
        projected=False,
        pays=_cudnn_here,
        evidence="On an H200 1.05 to 2.2 times cuDNN's own time; for where Triton is missing. It calls once a window.",
    ),
    Rule(
        "batched",
        None,
        FLOATS,
        MODES,
        projected=True,
        pays=lambda problem: True,
        evidence="On a CPU 0.4 to 0.8 of torch.nn's time for GRU and RNN in float32. It serves every mode, dtype and"
        " device.",
    ),
)


def recurrence(mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor | None) -> tuple[Tensor, Tensors]:
    """The contract of :class:`artbp.ops._types.Path`, by the first path of the table that serves, pays and is right."""
    path = load(choose(mode, x, hx[-1].shape[1], len(weights) == 5, links))
    if torch.is_inference_mode_enabled() and torch.is_grad_enabled():
        with (
            torch.no_grad()
        ):  # what is made in inference mode cannot be saved for a backward, whatever enable_grad says
            return path(mode, x, hx, weights, links)
    return path(mode, x, hx, weights, links)


def choose(mode: str, x: Tensor, hidden: int, projected: bool, links: Tensor | None) -> str:
    """The name of the path for this call: x (T, B, I), H hidden units."""
    if transformed():
        return "naive"
    key = (mode, x.device, x.dtype, projected)
    rules = _serving.get(key)
    if rules is None:
        rules = _serving[key] = [rule for rule in TABLE if rule.serves(mode, x.device, x.dtype, projected)]
    problem = Problem(x, hidden, links)
    for rule in rules:
        if rule.pays(problem) and verdict(rule.path, mode, x.device, x.dtype).passed:
            return rule.path
    return "naive"


def transformed() -> bool:
    """Whether a transform of torch.func, or forward mode, looks on: only the specification knows those."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def load(name: str) -> Path:
    """The path of that name, imported at first use."""
    path = _loaded.get(name)
    if path is None:
        path = _loaded[name] = importlib.import_module(PATHS[name]).recurrence
    return path


def verdict(name: str, mode: str, device: torch.device, dtype: torch.dtype) -> _probe.Verdict:
    """Whether the path agrees with the specification here: found out once, and said once where it does not."""
    key = (name, mode, device.type, dtype)
    found = _verdicts.get(key)
    if found is None:
        found = _verdicts[key] = _probe.examine(load, name, mode, device, dtype)
        if not found.passed:
            warnings.warn(
                f"artbp's {name} path for {mode} in {dtype} on {device.type} is not used: {found.words}. Another path"
                " takes its place, with the same results, perhaps more slowly; `artbp doctor` lists what is used.",
                RuntimeWarning,
                stacklevel=2,
            )
    return found


def forget() -> None:
    """Read the table and probe every path anew at the next use, as in a new process."""
    _serving.clear()
    _loaded.clear()
    _verdicts.clear()
    _loaded["naive"] = naive.recurrence


_serving: dict[tuple[str, torch.device, torch.dtype, bool], list[Rule]] = {}
_loaded: dict[str, Path] = {"naive": naive.recurrence}
_verdicts: dict[tuple[str, str, str, torch.dtype], _probe.Verdict] = {}
