"""The runs of influence balancing: which ones there are, and how one goes from its first step to its last."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from artbp import estimators
from artbp.estimators import Estimator
from artbp.experiments.influence_balancing import Descent, InfluenceBalancing, Targets
from artbp.experiments.influence_options import Options, law

ROWS_PER_DECADE = 40
_REPORT_EVERY = 0.2  # seconds
_SAVE_EVERY = 10.0
_RANDOM = ("ARTBP", "UORO", "NoBackTrack")


class Run(NamedTuple):
    """One run: a method and its seed."""

    method: str
    """as it is written in Python"""
    seed: int | None
    """None for a method without random numbers"""
    kind: str
    length: int | None


class Task(NamedTuple):
    """What a process is given: a run, and where it stood when it was stopped, if it was."""

    run: Run
    options: Options
    saved: bytes | None


@dataclass
class Report:
    """Where a run stands, and the rows that came since the last report."""

    step: int
    average_loss: float
    theta: float
    seconds: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    saved: bytes | None = None
    finished: bool = False


def plan(options: Options) -> list[Run]:
    """All runs that the options ask for, in the order of the table."""
    runs = []
    for kind in dict.fromkeys(options.estimators):
        lengths = dict.fromkeys(options.lengths) if kind == "TruncatedBPTT" else [None]
        seeds = range(options.seeds) if kind in _RANDOM or options.noise else [None]
        for length in lengths:
            method = repr(build(Run("", None, kind, length), options))
            runs += [Run(method, seed, kind, length) for seed in seeds]
    return runs


def build(run: Run, options: Options) -> Estimator:
    """The run's estimator."""
    kind: Any = getattr(estimators, run.kind)
    arguments: tuple[Any, ...] = ()
    if run.kind == "TruncatedBPTT":
        arguments = (run.length,)
    elif run.kind == "ARTBP":
        arguments = (law(options),)
    elif run.kind in ("BPTT", "CheckpointedBPTT"):
        arguments = (options.window,)
    keywords = {"seed": run.seed} if run.kind in _RANDOM else {}
    estimator: Estimator = kind(*arguments, **keywords)
    return estimator


def perform(task: Task, asked_to_stop: Callable[[], bool]) -> Iterator[Report]:
    """Does the run, and reports; the last report says whether it finished, or was asked to stop."""
    torch.set_num_threads(1)
    run, options, saved = task
    problem = InfluenceBalancing(options.p, options.n, theta0=options.theta0, s0=options.s0)
    targets = Targets(options.steps, options.noise, run.seed)
    descent = Descent(problem, build(run, options), targets, rate=options.lr)
    if saved is not None:
        descent.load_state_dict(torch.load(io.BytesIO(saved), weights_only=True))
    mark = next_mark(targets.position)
    rows: list[dict[str, Any]] = []
    begin = reported = kept = time.perf_counter()
    for step, average_loss, theta in descent:
        now = time.perf_counter()
        finished = step == options.steps or not (math.isfinite(average_loss) and math.isfinite(theta))
        if step >= mark or finished:
            rows.append(_row(run, step, average_loss, theta))
            mark = next_mark(step)
        stop = False
        if now - reported > _REPORT_EVERY or finished:
            stop = not finished and asked_to_stop()
            keep = stop or (now - kept > _SAVE_EVERY and not finished)
            state = _saved(descent) if keep else None
            yield Report(step, average_loss, theta, now - begin, rows, state, finished)
            rows, reported, begin = [], now, now
            kept = now if keep else kept
        if stop or finished:
            return


def next_mark(step: int) -> int:
    """The first step after `step` that is to be recorded: as many in every decade."""
    k = math.floor(ROWS_PER_DECADE * math.log10(step) + 1e-9) if step else -1
    while (mark := round(10 ** (k / ROWS_PER_DECADE))) <= step:
        k += 1
    return max(mark, 1)


def _row(run: Run, step: int, average_loss: float, theta: float) -> dict[str, Any]:
    return {
        "method": run.method,
        "seed": run.seed,
        "step": step,
        "average_loss": finite(average_loss),
        "theta": finite(theta),
    }


def finite(value: float) -> float | None:
    """JSON has no number for what has overflown."""
    return value if math.isfinite(value) else None


def _saved(descent: Descent) -> bytes:
    file = io.BytesIO()
    torch.save(descent.state_dict(), file)
    return file.getvalue()
