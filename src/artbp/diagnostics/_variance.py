"""The exact variance of an unbiased truncation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from artbp import _tree
from artbp._law import Array, fresh_generator, positive_integer
from artbp._step import Step
from artbp.diagnostics._adjoints import crossings, states_of
from artbp.diagnostics._report import Report
from artbp.diagnostics._subject import Subject, ratio
from artbp.estimators._graph import pullback
from artbp.truncation import Truncation

_LONGEST = 64  # 2016 pairs of an edge and a beginning


@dataclass
class Variance(Report):
    """The variance of the gradient under a law's links, for one sequence.

    Attributes:
        law: what is drawn from.
        steps: T.
        variance: total (the trace of the covariance).
        error: its standard error, 0 where it is exact.
        relative_deviation: the square root of the variance, relative to the exact gradient's norm.
        samples: the edges that were looked at.
    """

    law: str
    steps: int
    variance: float
    error: float
    relative_deviation: float
    samples: int


def variance(
    law: Any, step: Step, inputs: Any, state: Any, *, samples: int | None = None, seed: int | None = None
) -> Variance:
    r"""The total variance of an unbiased law's gradient, by the identity

    .. math:: \operatorname{Var}(\tilde g) = \sum_{u=1}^{T-1} E\Bigl[\frac{c_u}{1-c_u} \|G_u\|^2\Bigr]

    where :math:`G_u` is the gradient that would cross edge u: the full adjoint that comes back to it, carried on to the
    beginning of the open segment with the links already passed. No draw of the whole gradient is needed. The hazard
    looks at the age alone, so that the expectation is a sum over the beginning b of the open segment, which is b with
    the renewal probability of a cut there times :math:`S(u-b-1)`.

    Args:
        law: an unbiased law, or a :class:`artbp.Truncation`.
        step: `step(inputs, state, links) -> (loss, state)`, as for :func:`artbp.backprop`.
        inputs: tensors (T, …) in any tree.
        state: where the sequence begins.
        samples: None for all pairs (u, b), exactly, up to 64 steps; else how many pairs to draw, for any T.
        seed: of the samples.

    All lanes share one cut. Where each has its own, the lanes' gradients are independent and their variances add up:
    call it for one lane after another.

    Cost: one exact pass, and a forward and backward pass over a segment for each pair.

    Example:
        >>> import artbp
        >>> theta = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> x, start = torch.ones(6, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        >>> found = variance(artbp.PowerLaw(mean=3, alpha=4), step, x, start)
        >>> found.samples, round(found.relative_deviation, 3)
        (15, 0.202)
    """
    cut = law if isinstance(law, Truncation) else Truncation(law, seed=0)
    refuse_biased(law, cut, "variance")
    T = _tree.length(inputs) or 0
    if samples is None and T > _LONGEST:
        raise ValueError(
            f"variance got {T} steps: that is {T * (T - 1) // 2:,} pairs of an edge and a beginning, and the exact sum "
            f"takes up to {_LONGEST} steps. Pass samples=1000 for an estimate with its error."
        )
    subject = Subject(step, inputs, state)
    states = states_of(subject)
    found = Crossing(subject, states, crossings(subject, states)).variance(cut, samples, seed)
    size = float(subject.exact().norm())
    return Variance(repr(law), subject.T, found[0], found[1], ratio(math.sqrt(found[0]), size), found[2])


def refuse_biased(law: Any, cut: Truncation, caller: str) -> None:
    """Refuses what the identity does not hold for."""
    if not cut.unbiased or cut.law.needs_state:
        why = "looks at the state" if cut.law.needs_state else "is biased: its certain cuts are no noise"
        raise ValueError(
            f"{caller} got {law!r}, which {why}, and the sum over beginnings does not hold for it. Use "
            "expectation(law, …), which enumerates, or compare([ARTBP(law)], …), which samples."
        )


class Crossing:
    """What crosses the edges of one sequence, ready to be weighed by any law."""

    def __init__(self, subject: Subject, states: list[Any], crossing: list[Tensor]) -> None:
        self.subject, self.states, self.crossing = subject, states, crossing

    def variance(self, cut: Truncation, samples: int | None, seed: int | None) -> tuple[float, float, int]:
        """(variance, its standard error, pairs looked at)."""
        if self.subject.T == 1 or math.isinf(cut.mean):
            return 0.0, 0.0, 0
        if samples is None:
            pairs = list(self.all_pairs(cut))
            return sum(weight * self.square(cut, u, b) for weight, u, b in pairs), 0.0, len(pairs)
        values = [weight * self.square(cut, u, b) for weight, u, b in self.drawn_pairs(cut, samples, seed)]
        spread = float(np.std(values, ddof=1)) / math.sqrt(samples) if samples > 1 else math.nan
        return float(np.mean(values)), spread, samples

    def all_pairs(self, cut: Truncation) -> Iterator[tuple[float, int, int]]:
        """(weight, edge u, beginning b): the chance of that beginning times c/(1-c)."""
        T = self.subject.T
        renewal, survival = self.beginnings(cut)
        for u in range(1, T):
            for b in range(u):
                c = float(cut.law.hazard(u - b))
                weight = float(renewal[b] * survival[u - b - 1]) * c / (1 - c)
                if weight:
                    yield weight, u, b

    def beginnings(self, cut: Truncation) -> tuple[Array, Array]:
        """The chance that a segment begins with step b, and the chance that it lasts for so many steps, both (T,)."""
        T = self.subject.T
        pmf = cut.law.pmf(np.arange(T + 1))
        renewal = np.zeros(T)
        renewal[0] = 1.0
        for m in range(1, T):
            renewal[m] = renewal[:m] @ pmf[m:0:-1]
        return renewal, cut.law.survival(np.arange(T))

    def variances(self, cuts: list[Truncation], samples: int, seed: int | None) -> list[tuple[float, float]]:
        """(variance, its standard error) of several laws from the same pairs, which tells them apart far sooner.

        The pairs are those of a law taken at random, weighed by the mixture of all (Veach and Guibas's balance
        heuristic), at edges and ages that are spread evenly, by a Latin hypercube: the error is no larger than if they
        were independent, which is what is returned.
        """
        steps, generator = self.subject.T - 1, fresh_generator(seed)
        beginnings = [self.beginnings(cut) for cut in cuts]
        offsets = torch.rand(samples, 2, generator=generator).tolist()
        values = np.zeros((len(cuts), samples))
        for i, place in enumerate(torch.randperm(samples, generator=generator).tolist()):
            u = 1 + int(steps * (place + offsets[i][0]) / samples)
            own = np.stack([renewal[u - 1 :: -1] * survival[:u] for renewal, survival in beginnings])  # (laws, ages)
            mixed = own.mean(0).cumsum()
            age = min(int(np.searchsorted(mixed, mixed[-1] * (i + offsets[i][1]) / samples, side="right")) + 1, u)
            for law, cut in enumerate(cuts):
                c = float(cut.law.hazard(age))
                weight = steps * own[law, age - 1] / own[:, age - 1].mean() * c / (1 - c)
                values[law, i] = weight * self.square(cut, u, u - age) if weight else 0.0
        errors = values.std(1, ddof=1) / math.sqrt(samples) if samples > 1 else np.full(len(cuts), math.nan)
        return list(zip(values.mean(1).tolist(), errors.tolist(), strict=True))

    def drawn_pairs(self, cut: Truncation, samples: int, seed: int | None) -> Iterator[tuple[float, int, int]]:
        """Each from links of its own, at an edge taken at random: independent."""
        samples = positive_integer(samples, "variance(samples)")
        generator = fresh_generator(seed)
        for _ in range(samples):
            u = int(torch.randint(1, self.subject.T, (), generator=generator))
            b, after = 0, 0
            while after < u:
                b, after = after, after + int(cut.law.sample((), generator=generator))
            c = float(cut.law.hazard(u - b))
            yield (self.subject.T - 1) * c / (1 - c), u, b

    def square(self, cut: Truncation, u: int, b: int) -> float:
        """|G_u|², the segment having begun with step b."""
        if not self.crossing[u].any():
            return 0.0
        _, after = self.subject.run(b, u, self.states[b], cut.law.links(u - b))
        parts = [leaf.reshape(-1) for leaf in _tree.tensors(after) if leaf.is_floating_point()]
        gradients = pullback(torch.cat(parts), self.subject.parameters, self.crossing[u])
        return sum(float(part.double().square().sum()) for part in gradients)
