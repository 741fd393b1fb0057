"""The exact side of the tests: every cut pattern of a short sequence with its probability, and an oracle for links.

Nothing here calls the code under test, except where a law's own hazard is the input. Edge t (1 ≤ t < T) brings s_{t-1}
into step t; step 0 opens a segment, so edge t has age t until the first cut; links[0] is one, for the edge from the
given state is no cut.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from problems import Problem, tree_map
from torch import Tensor

import artbp

Hazard = Callable[[int, int], float]  # (age, edge) -> probability of a cut
Pattern = tuple[float, Tensor]  # probability, links
Gradient = dict[str, Tensor]


def age_only(law: Any) -> Hazard:
    """The hazard of a law that looks at nothing but the age."""
    return lambda age, _: float(law.hazard(age))


def state_dependent(law: Any, states: list[Any]) -> Hazard:
    """The hazard of a law that looks at the state, which edge t brings from step t-1."""
    return lambda age, edge: float(law.hazard(age, states[edge - 1]))


def rounded(law: Any, block: int) -> Hazard:
    """The hazard of a law's length rounded up to a multiple of the block, from the products of its own hazards."""

    def hazard(age: int, _: int) -> float:
        if age % block:
            return 0.0
        return 1.0 - math.prod(1.0 - float(law.hazard(inner)) for inner in range(age - block + 1, age + 1))

    return hazard


def patterns(hazard: Hazard, steps: int, *, resets: Collection[int] = (), compensate: bool = True) -> Iterator[Pattern]:
    """All cut patterns of a sequence. At a reset the link is zero, nothing is compensated, and the age starts anew."""

    def walk(edge: int, age: int, probability: float, links: list[float]) -> Iterator[Pattern]:
        if edge == steps:
            yield probability, torch.tensor(links, dtype=torch.float64)
            return
        if edge in resets:
            yield from walk(edge + 1, 1, probability, [*links, 0.0])
            return
        cut = hazard(age, edge)
        if cut > 0.0:
            yield from walk(edge + 1, 1, probability * cut, [*links, 0.0])
        if cut < 1.0:
            yield from walk(
                edge + 1, age + 1, probability * (1.0 - cut), [*links, 1.0 / (1.0 - cut) if compensate else 1.0]
            )

    yield from walk(1, 1, 1.0, [0.0 if 0 in resets else 1.0])


def lane_patterns(lanes: Iterable[Iterable[Pattern]]) -> Iterator[Pattern]:
    """All patterns of lanes cut independently: links (T, B)."""
    for combination in itertools.product(*(list(lane) for lane in lanes)):
        yield (
            math.prod(probability for probability, _ in combination),
            torch.stack([links for _, links in combination], dim=1),
        )


def hooked(state: Any, factor: Tensor, dim: int) -> Any:
    """The oracle of `artbp.link`: a tensor hook that multiplies. `factor` is a number () or one per lane (B,)."""

    def one(tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        shape = [1] * tensor.ndim
        if factor.ndim:
            shape[dim] = -1
        shaped = factor.to(tensor.dtype).reshape(shape)
        copy = tensor.clone()
        copy.register_hook(lambda gradient: torch.where(shaped == 0, torch.zeros_like(gradient), gradient * shaped))
        return copy

    return tree_map(one, state)


def oracle_gradient(problem: Problem, links: Tensor) -> Gradient:
    """The gradient under links, by torch's autograd and hooks alone."""
    state, loss = problem.state, torch.zeros((), dtype=torch.float64)
    for input_t, factor in zip(problem.inputs, links, strict=True):
        loss_t, state = problem.cell(input_t, hooked(state, factor, problem.dim))
        loss = loss + loss_t
    leaves = list(problem.parameters.values())
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(problem.parameters.items(), gradients, strict=True)
    }


def backprop_gradient(problem: Problem, links: Tensor | None, window: int | None = None) -> Gradient:
    """The gradient under links, by the code under test."""
    artbp.backprop(artbp.unroll(problem.cell, dim=problem.dim), problem.inputs, problem.state, links, window=window)
    return problem.gradients()


def expectation(
    problem: Problem, weighted: Iterable[Pattern], gradient: Callable[[Problem, Tensor], Gradient]
) -> tuple[Gradient, float]:
    """Mean of the gradient over patterns, and its total variance (the trace of the covariance)."""
    total = 0.0
    mean = {name: torch.zeros_like(leaf, requires_grad=False) for name, leaf in problem.parameters.items()}
    square = 0.0
    for probability, links in weighted:
        total += probability
        for name, value in gradient(problem, links).items():
            mean[name] += probability * value
            square += probability * float(value.square().sum())
    if abs(total - 1.0) > 1e-12:
        raise ValueError(f"the patterns' probabilities sum to {total}, so they are not all of them")
    return mean, square - sum(float(value.square().sum()) for value in mean.values())


def relative_error(estimate: Gradient, exact: Gradient) -> float:
    """|estimate - exact| / |exact| over all parameters together."""
    difference = sum(float((estimate[name] - exact[name]).square().sum()) for name in exact)
    return math.sqrt(difference / sum(float(value.square().sum()) for value in exact.values()))


def global_generators() -> tuple[Any, ...]:
    """The state of every global generator that a careless draw could move."""
    numpy_state = np.random.get_state()[1]  # noqa: NPY002 - the global one is what is watched
    return bytes(torch.get_rng_state().numpy()), bytes(numpy_state), random.getstate()


# ---- the sampled side ------------------------------------------------------------------------------------------------


def distribution_gap(lengths: Tensor, survival: Callable[[Tensor], Tensor]) -> float:
    """Largest distance between the lengths' empirical distribution function and the law's."""
    values, counts = torch.unique(lengths, return_counts=True)
    empirical = counts.cumsum(0).double() / lengths.numel()
    exact = 1.0 - survival(values)
    before = 1.0 - survival(values - 1)  # the empirical function is still at its former height just before each value
    steps_before = torch.cat([torch.zeros(1, dtype=torch.float64), empirical[:-1]])
    return float(torch.maximum((empirical - exact).abs(), (steps_before - before).abs()).max())


def allowed_gap(samples: int, error_rate: float) -> float:
    """Dvoretzky-Kiefer-Wolfowitz with Massart's constant: P(gap > this) ≤ error_rate, for any law and any n."""
    return math.sqrt(math.log(2.0 / error_rate) / (2.0 * samples))


def chi_square_probability(observed: Tensor, expected: Tensor) -> float:
    """P(a chi-square as large as this or larger), with as many degrees of freedom as cells less one."""
    statistic = ((observed - expected).square() / expected).sum()
    freedom = torch.tensor((observed.numel() - 1) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2.0))
