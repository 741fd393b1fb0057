"""Estimators side by side on one sequence: bias, noise, time, memory."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from artbp._law import positive_integer
from artbp._step import Step
from artbp.diagnostics._moments import Moments
from artbp.diagnostics._peak import peak
from artbp.diagnostics._report import Report, brief, table
from artbp.diagnostics._subject import Subject, cosine, ratio
from artbp.estimators import RTRL, Estimator
from artbp.estimators._segments import Segments
from artbp.laws import Fixed, Never

LEGEND = "Noise: standard deviation. Equal time: error of as many draws as take an exact gradient's time."


@dataclass
class Measured(Report):
    """One estimator on one sequence; norms are relative to the exact gradient's.

    Attributes:
        estimator: as it is written in Python.
        draws: how many gradients were drawn; one for an estimator without noise.
        bias: of the mean over the draws, less what noise alone would show.
        bias_error: the noise of that mean.
        cosine: between the mean gradient and the exact one.
        sign: whether the mean gradient points along the exact one (1) or against it (-1); 0 for neither.
        draw_cosine: the mean over draws of the cosine of one draw.
        draw_cosine_error: its standard error.
        deviation: the standard deviation of a draw.
        deviation_interval: 95% for many draws, from the spread of the squared deviations: too narrow for a few draws
            with heavy tails, and too wide where the bias is larger than the deviation.
        error: the root mean square error of one draw.
        error_at_equal_compute: of the mean of as many draws as take the time of one exact gradient, by
            √(bias² + deviation² · time / time of the exact one); of less than one draw where one takes longer.
        microseconds: a step of the sequence.
        bytes: at the highest moment, above those before.
        moments: to be merged with those of more draws.
    """

    estimator: str
    draws: int
    bias: float
    bias_error: float
    cosine: float
    sign: int
    draw_cosine: float
    draw_cosine_error: float
    deviation: float
    deviation_interval: tuple[float, float]
    error: float
    error_at_equal_compute: float
    microseconds: float
    bytes: int
    moments: Moments = field(repr=False)


@dataclass
class Comparison(Report):
    """Estimators side by side; `rows` holds one :class:`Measured` each, in the order they were given."""

    steps: int
    parameters: int
    exact_norm: float
    exact_microseconds: float
    rows: list[Measured]

    def __str__(self) -> str:
        above = [("", 1), ("mean of draws", 3), ("one draw", 3), ("equal", 1), ("µs a", 1), ("", 1)]
        header = ["estimator", "bias", "noise", "cosine", "cosine", "noise", "error", "time", "step", "KiB"]
        lines = [
            [
                *(row.estimator, row.bias, row.bias_error, row.cosine, row.draw_cosine, row.deviation, row.error),
                *(row.error_at_equal_compute, row.microseconds, row.bytes / 1024),
            ]
            for row in self.rows
        ]
        parameters = f"{self.parameters:,} parameter{'s' if self.parameters != 1 else ''}"
        title = f"{self.steps} steps, {parameters}; relative to the exact gradient, {self.exact_norm:.4g}"
        return f"{title}\n{table(lines, header, above, brief)}\n{LEGEND}"


def compare(
    estimators: Sequence[Estimator], step: Step, inputs: Any, state: Any, *, draws: int = 100, online: bool = False
) -> Comparison:
    """Bias, noise, time and memory of each estimator on one sequence, against the exact gradient.

    Args:
        estimators: values such as `TruncatedBPTT(10)`; give random ones a seed to get the same draws again.
        step: `step(inputs, state, links) -> (loss, state)`, as for :func:`artbp.backprop`.
        inputs: tensors (T, …) in any tree.
        state: where the sequence begins.
        draws: how many gradients of each random estimator.
        online: measure the sequence as a stream, its parts summed: then memory is that of a segment, not of all steps.

    Memory is measured in a run of its own: by the device's allocator, or on the CPU by counting the storages that
    operations make, which leaves out what a kernel takes and gives back within one operation. Time is the median over
    the draws, or over three runs.

    Example:
        >>> import artbp
        >>> theta = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> x, start = torch.ones(50, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        >>> from artbp.estimators import ARTBP, TruncatedBPTT
        >>> estimators = [TruncatedBPTT(2), ARTBP(artbp.PowerLaw(mean=4, alpha=6), seed=0)]
        >>> found = compare(estimators, step, x, start, draws=20)
        >>> [(row.estimator, row.draws) for row in found.rows]
        [('TruncatedBPTT(2)', 1), ('ARTBP(PowerLaw(mean=4, alpha=6))', 20)]
        >>> round(found.rows[0].bias, 3)
        0.363
    """
    draws = positive_integer(draws, "compare(draws)")
    if not estimators:
        raise ValueError(
            "compare got no estimators, so there is nothing to measure. Pass a list such as "
            "[TruncatedBPTT(10), UORO()]."
        )
    subject = Subject(step, inputs, state)
    exact = subject.exact()
    whole = _seconds_of_exact(subject)
    rows = [_measure(estimator, subject, exact, whole, draws, online) for estimator in estimators]
    return Comparison(subject.T, exact.numel(), float(exact.norm()), 1e6 * whole / subject.T, rows)


def _measure(
    estimator: Estimator, subject: Subject, exact: torch.Tensor, whole: float, draws: int, online: bool
) -> Measured:
    def flow(step: Step, inputs: Any, state: Any) -> None:
        if isinstance(estimator, Segments):
            estimator.cut.reset()
        for _ in estimator.stream(step, inputs, state):
            pass

    call = flow if online else estimator
    moments, cosines, seconds = Moments(exact), [], []
    noisy = _is_random(estimator)
    taken = peak(lambda: subject.gradient(call), subject.parameters[0].device)
    for _ in range(draws if noisy else 3):
        start = time.perf_counter()
        gradient = subject.gradient(call)
        seconds.append(time.perf_counter() - start)
        if noisy or not moments.n:
            moments.add(gradient)
            cosines.append(cosine(gradient, exact))
    size, variance = float(exact.norm()), moments.variance if noisy else 0.0
    low, high = moments.deviation_interval if noisy else (0.0, 0.0)
    bias = moments.bias
    used = statistics.median(seconds)
    return Measured(
        estimator=repr(estimator),
        draws=moments.n,
        bias=ratio(bias, size),
        bias_error=ratio(math.sqrt(variance / moments.n), size),
        cosine=cosine(moments.mean, exact),
        sign=int(torch.sign(moments.mean @ exact)),
        draw_cosine=statistics.fmean(cosines),
        draw_cosine_error=statistics.stdev(cosines) / math.sqrt(len(cosines)) if len(cosines) > 1 else 0.0,
        deviation=ratio(math.sqrt(variance), size),
        deviation_interval=(ratio(low, size), ratio(high, size)),
        error=ratio(math.sqrt(moments.squares / moments.n), size),
        error_at_equal_compute=ratio(math.sqrt(bias**2 + variance * used / whole), size),
        microseconds=1e6 * used / subject.T,
        bytes=taken,
        moments=moments,
    )


def _seconds_of_exact(subject: Subject) -> float:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        subject.exact()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _is_random(estimator: Estimator) -> bool:
    if isinstance(estimator, Segments):
        return not isinstance(estimator.cut.law, Never | Fixed)
    return not isinstance(estimator, RTRL)
