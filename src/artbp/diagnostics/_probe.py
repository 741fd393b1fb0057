"""A look at one window of a user's own model and data: does truncation hurt, and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from artbp._law import positive_integer
from artbp._step import Step
from artbp.diagnostics._adjoints import OneStep, states_of, vector
from artbp.diagnostics._report import Report
from artbp.diagnostics._subject import Subject, cosine, flat, ratio, refuse_overflow
from artbp.diagnostics._variance import Crossing, refuse_biased
from artbp.estimators import TruncatedBPTT
from artbp.estimators._graph import pullback
from artbp.laws import PowerLaw
from artbp.truncation import Truncation

ANCHORS = 16  # losses whose adjoint is followed back, each alone
BLOCKS = 16  # stretches of the window that the data's own noise is estimated from
RAISES = (1, 2, 4)  # multiples of L that are looked at before a random law is advised
STAYS = 0.9  # of the adjoint, at the largest lag that is looked at: more than that is no fading
SMALL = 0.1  # a bias, relative to the gradient, that is not worth a change


@dataclass
class Probe(Report):
    """What one window says about truncation; norms are relative to the exact gradient's.

    Attributes:
        steps: T, the length of the window.
        length: L, the truncated BPTT that the law is compared with: its mean.
        law: as given.
        fading: the factor by which the adjoint shrinks a step, fitted over the lags that the window shows.
        fading_error: the standard error of its logarithm, over the losses followed.
        fades: whether memory fades within the window: by a factor of ten or more.
        beyond: for each multiple of L, how much of the gradient lies at that many steps or more.
        bias: for each length, the relative error of truncated BPTT.
        cosine: for each length, the cosine of truncated BPTT with the exact gradient.
        wrong_sign: whether truncated BPTT(L) points against the exact gradient.
        truncation_noise: standard deviation under the law's links, by the exact variance identity.
        truncation_noise_error: its standard error, or less: that of as many independent samples.
        data_noise: standard deviation of the window's exact gradient over data like it, from the spread of its parts.
        noise_by_alpha: the truncation noise of PowerLaw(mean=L, alpha) for other alpha, from the same samples. Each is
            as uncertain as `truncation_noise`; which is the least, and is advised, is much less so.
        advice: one sentence.
    """

    steps: int
    length: int
    law: str
    fading: float
    fading_error: float
    fades: bool
    beyond: dict[int, float]
    bias: dict[int, float]
    cosine: dict[int, float]
    wrong_sign: bool
    truncation_noise: float
    truncation_noise_error: float
    data_noise: float
    noise_by_alpha: dict[float, float]
    advice: str


def probe(
    step: Step,
    inputs: Any,
    state: Any,
    law: Any,
    *,
    samples: int = 64,
    alphas: Sequence[float] = (4.0, 6.0, 10.0),
    seed: int | None = 0,
) -> Probe:
    """How fast memory fades, what truncated BPTT of the law's mean would get wrong, what ARTBP would pay; and advice.

    Args:
        step: `step(inputs, state, links) -> (loss, state)`, as for :func:`artbp.backprop`.
        inputs: tensors (T, …) in any tree: a window of several times the law's mean, from where training stands.
        state: where the window begins; what lies before it is out of sight.
        law: an unbiased law, or a :class:`artbp.Truncation`.
        samples: pairs of an edge and a beginning, the same for every law that is weighed.
        alphas: of the power laws of the same mean that are weighed too.
        seed: of the samples.

    Cost: two forward passes and one backward pass of one step at a time (the exact gradient, in the memory of a step
    and T states), some more passes back for the losses that are followed, and segments for the samples.

    Example:
        >>> import artbp
        >>> theta = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> x, start = torch.ones(50, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        >>> found = probe(step, x, start, artbp.PowerLaw(mean=4, alpha=6))
        >>> round(found.fading, 3), found.fades, found.wrong_sign
        (0.5, True, False)
        >>> found.advice
        'Raise L to 16: truncated BPTT(4) is 23% off, at 16 6%.'
    """
    cut = law if isinstance(law, Truncation) else Truncation(law, seed=0)
    refuse_biased(law, cut, "probe")
    subject = Subject(step, inputs, state)
    T = subject.T
    if not math.isfinite(cut.mean) or 4 * cut.mean > T:
        raise ValueError(
            f"probe got {T} steps for {law!r}, whose segments have {cut.mean:g} steps on average: too short a window "
            f"to see what lies beyond them. Pass at least four times as many, or a law of a smaller mean."
        )
    length = max(1, round(cut.mean))
    states = states_of(subject)
    sweep = _Sweep(subject, [length * k for k in RAISES])
    sweep.run(states)
    exact, size = refuse_overflow(sweep.exact), float(sweep.exact.norm())
    truncated = {L: subject.gradient(TruncatedBPTT(L)) for L in sweep.lengths if L < T}
    crossing = Crossing(subject, states, sweep.crossing)
    powers = {alpha: Truncation(PowerLaw(length, alpha)) for alpha in alphas if length > 1}
    samples = positive_integer(samples, "probe(samples)")
    (noise, noise_error), *others = crossing.variances([cut, *powers.values()], samples, seed)
    by_alpha = {alpha: ratio(math.sqrt(other[0]), size) for alpha, other in zip(powers, others, strict=True)}
    deviation = math.sqrt(noise)
    rate, rate_error, fades = sweep.fading()
    report = Probe(
        steps=T,
        length=length,
        law=repr(law),
        fading=math.exp(rate),
        fading_error=rate_error,
        fades=fades,
        beyond=sweep.beyond(),
        bias={L: ratio(float((gradient - exact).norm()), size) for L, gradient in truncated.items()},
        cosine={L: cosine(gradient, exact) for L, gradient in truncated.items()},
        wrong_sign=bool(truncated[length] @ exact < 0),
        truncation_noise=ratio(deviation, size),
        truncation_noise_error=ratio(noise_error / (2 * deviation), size) if deviation else 0.0,
        data_noise=ratio(sweep.data_deviation(), size),
        noise_by_alpha=by_alpha,
        advice="",
    )
    report.advice = _advice(report)
    return report


def _advice(found: Probe) -> str:
    L, bias = found.length, found.bias
    floor = max(SMALL, 0.5 * found.data_noise if not found.wrong_sign else 0.0)
    if math.isnan(bias[L]):
        return "The gradient of this window is zero, and no truncation changes that: look at another window."
    lags = found.steps // 2 - 1
    left = found.fading**lags
    if not found.fades and left < STAYS:
        return (
            f"These {found.steps} steps do not show the end of memory, of which {left:.0%} is left after {lags}: look "
            "at a longer window, or use CheckpointedBPTT over whole sequences."
        )
    if not found.fades:
        return (
            f"Memory does not fade within these {found.steps} steps, so that the noise of any random truncation grows "
            "without bound: use CheckpointedBPTT over whole sequences, or mark where the state starts anew (resets)."
        )
    if bias[L] <= floor and not found.wrong_sign:
        return f"Keep L = {L}: truncated BPTT is {bias[L]:.0%} off, and no more is to be gained than noise hides."
    enough = [longer for longer in bias if bias[longer] <= SMALL]
    if enough:
        return (
            f"Raise L to {enough[0]}: truncated BPTT({L}) is {bias[L]:.0%} off, at {enough[0]} {bias[enough[0]]:.0%}."
        )
    alpha = min(found.noise_by_alpha, key=lambda alpha: found.noise_by_alpha[alpha])
    wrong = f"has the wrong sign (cosine {found.cosine[L]:.2f})" if found.wrong_sign else f"is {bias[L]:.0%} off"
    return (
        f"Use ARTBP(PowerLaw(mean={L}, alpha={alpha:g})): truncated BPTT({L}) {wrong} and at {max(bias)} still "
        f"{bias[max(bias)]:.0%} off; the price is noise of {found.noise_by_alpha[alpha]:.0%} over {found.steps} steps, "
        f"beside {found.data_noise:.0%} of the data's own."
    )


class _Sweep:
    """From the last step to the first: the exact gradient, what crosses each edge, and some losses followed alone."""

    def __init__(self, subject: Subject, lengths: list[int]) -> None:
        self.subject, self.lengths = subject, lengths
        T = subject.T
        self.anchors = sorted({T - 1 - round(i * (T // 2) / ANCHORS) for i in range(ANCHORS)})
        self.far = dict.fromkeys([0, *lengths], torch.zeros(()))  # of the anchors' gradient, what lies that far back
        self.crossing: list[Tensor] = []
        self.blocks = [torch.zeros(())] * min(BLOCKS, T)
        self.norms = torch.zeros(len(self.anchors), T + 1, dtype=torch.float64)  # of the adjoint, by edges crossed

    def run(self, states: list[Any]) -> None:
        subject, adjoint = self.subject, None
        carried: dict[int, Tensor] = {}  # anchor -> (n,), where it stands
        for t in reversed(range(subject.T)):
            one = OneStep(subject, t, states[t])
            gradients, adjoint = one.back(adjoint)
            self.crossing.append(adjoint)
            block = t * len(self.blocks) // subject.T
            self.blocks[block] = self.blocks[block] + flat(gradients)
            self._follow(one, t, carried)
        self.crossing.reverse()
        self.exact = torch.stack(self.blocks).sum(0)

    def _follow(self, one: OneStep, t: int, carried: dict[int, Tensor]) -> None:
        for distance in self.far:
            arrived = [adjoint for anchor, adjoint in carried.items() if anchor - t >= distance]
            if arrived:
                part = pullback(one.after, one.parameters, torch.stack(arrived).sum(0))
                self.far[distance] = self.far[distance] + flat(part)
        for anchor in list(carried):
            carried[anchor] = vector(pullback(one.after, one.before, carried[anchor]), one.after)
        if t in self.anchors:
            own = pullback(one.loss, [*one.parameters, *one.before])
            self.far[0] = self.far[0] + flat(own[: len(one.parameters)])
            carried[t] = vector(own[len(one.parameters) :], one.after)
        for anchor in list(carried):
            i, lag = self.anchors.index(anchor), anchor - t + 1
            self.norms[i, lag] = float(carried[anchor].norm())
            if self.norms[i, lag] <= 1e-12 * self.norms[i].max():
                del carried[anchor]  # nothing of it is left

    def fading(self) -> tuple[float, float, bool]:
        """(the logarithm of the factor a step, its standard error over the anchors, whether memory fades)."""
        lags = self.subject.T // 2 - 1  # as many as every anchor has
        norms = self.norms[:, 1 : lags + 1]
        typical = norms.square().mean(0).sqrt()
        start = float(typical.max())
        if not start:
            return -math.inf, 0.0, True
        seen = int((typical > 1e-8 * start).nonzero().max()) + 1
        slopes = [_slope(row[:seen] / start) for row in norms]
        rate = _slope(typical[:seen] / start)
        error = float(torch.tensor(slopes).std()) / math.sqrt(len(slopes)) if len(slopes) > 1 else math.nan
        late = float(typical[-max(1, lags // 8) :].square().mean().sqrt())
        return rate, error, late < 0.1 * start

    def beyond(self) -> dict[int, float]:
        """How much of the followed losses' gradient lies L steps or more behind them."""
        size = float(self.far[0].norm())
        return {length: ratio(float(self.far[length].norm()), size) for length in self.lengths}

    def data_deviation(self) -> float:
        """Of the window's gradient, over windows like it: its blocks being alike and nearly independent."""
        n = len(self.blocks)
        spread = sum(float((block - self.exact / n).square().sum()) for block in self.blocks) / (n - 1)
        return math.sqrt(n * spread)


def _slope(values: Tensor) -> float:
    """Of the logarithm, by least squares; what has vanished stands at its floor."""
    if len(values) < 2:
        return -math.inf
    y = values.clamp(min=1e-12).log()
    x = torch.arange(len(values), dtype=torch.float64)
    x = x - x.mean()
    return float(x @ y / (x @ x))
