"""The exact expectation and variance of a random truncation, by enumeration."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from artbp import _tree
from artbp._backprop import backprop
from artbp._step import Step
from artbp.diagnostics._report import Report
from artbp.diagnostics._subject import Subject, cosine, ratio
from artbp.truncation import Truncation

_LONGEST = 13  # 4096 cut patterns


@dataclass
class Expectation(Report):
    """What a law's links make of the gradient of one sequence, on average and around it; exact.

    Attributes:
        law: what was drawn from.
        steps: T.
        patterns: the cut patterns that have a probability.
        bias: relative to the exact gradient's norm.
        cosine: between the expected and the exact gradient.
        variance: total (the trace of the covariance).
        relative_deviation: the square root of the variance, relative to the exact gradient's norm.
        mean: the expected gradient (P,).
        exact: BPTT's (P,).
    """

    law: str
    steps: int
    patterns: int
    bias: float
    cosine: float
    variance: float
    relative_deviation: float
    mean: Tensor
    exact: Tensor


def expectation(law: Any, step: Step, inputs: Any, state: Any) -> Expectation:
    """The exact expectation and variance of the gradient under a law's links, from all 2^(T-1) cut patterns.

    Args:
        law: a law, one that looks at the state too, or a :class:`artbp.Truncation` with its options.
        step: `step(inputs, state, links) -> (loss, state)`, as for :func:`artbp.backprop`.
        inputs: tensors (T, …) in any tree, T up to 13.
        state: where the sequence begins.

    Cost: a forward and a backward pass for each pattern.

    Example:
        >>> import artbp
        >>> theta = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> x, start = torch.ones(6, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        >>> found = expectation(artbp.PowerLaw(mean=3, alpha=4), step, x, start)
        >>> found.patterns, found.bias < 1e-12
        (32, True)
        >>> round(expectation(artbp.Fixed(2), step, x, start).bias, 3)
        0.224
    """
    cut = law if isinstance(law, Truncation) else Truncation(law, seed=0)
    T = _tree.length(inputs) or 0
    if T > _LONGEST:
        raise ValueError(
            f"expectation got {T} steps, which have 2^{T - 1} cut patterns; the limit is {_LONGEST} steps, 4096 "
            "patterns. Shorten the sequence, or sample: compare([ARTBP(law)], step, inputs, state, draws=1000), and "
            "variance(law, step, inputs, state, samples=1000)."
        )
    subject = Subject(step, inputs, state)
    exact = subject.exact()
    mean, square, patterns = torch.zeros_like(exact), 0.0, 0
    for probability, links in _patterns(cut, subject):
        gradient = subject.gradient(functools.partial(backprop, links=links))
        mean += probability * (gradient - exact)  # deviations: no digits are lost
        square += probability * float((gradient - exact).square().sum())
        patterns += 1
    size, variance = float(exact.norm()), max(0.0, square - float(mean.square().sum()))
    return Expectation(
        repr(law),
        subject.T,
        patterns,
        ratio(float(mean.norm()), size),
        cosine(exact + mean, exact),
        variance,
        ratio(variance**0.5, size),
        exact + mean,
        exact,
    )


def _patterns(cut: Truncation, subject: Subject) -> Iterator[tuple[float, Tensor]]:
    """(probability, links) of every pattern; what a law sees of the states does not depend on the links."""
    states = [subject.state]
    if cut.law.needs_state:
        with torch.no_grad():
            for t in range(subject.T - 1):
                _, after = subject.run(t, t + 1, states[-1])
                states.append(_tree.detach(after))

    def hazard(edge: int, age: int) -> float:
        looks = [states[edge]] if cut.law.needs_state else []
        return float(cut.law.hazard(age, *looks))

    def walk(edge: int, age: int, probability: float, links: list[float]) -> Iterator[tuple[float, Tensor]]:
        if edge == subject.T:
            yield probability, torch.tensor(links, dtype=torch.float64)
            return
        c = hazard(edge, age)
        if c > 0:
            yield from walk(edge + 1, 1, probability * c, [*links, 0.0])
        if c < 1:
            kept = 1 / (1 - c) if cut.compensate else 1.0
            yield from walk(edge + 1, age + 1, probability * (1 - c), [*links, kept])

    return walk(1, 1, 1.0, [1.0])
