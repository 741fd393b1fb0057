"""The measurements of `artbp compare`: the table, and the curves of the figures."""

from __future__ import annotations

import itertools
from typing import Any

from artbp import Fixed, PowerLaw, Truncation, detach
from artbp.diagnostics import Comparison, compare, variance
from artbp.estimators import ARTBP, BPTT, UORO, CheckpointedBPTT, Estimator, NoBackTrack, TruncatedBPTT
from artbp.experiments.compare_command import Options
from artbp.experiments.compare_subjects import Subject

LAGS = (*range(21), *range(22, 51, 2), *range(55, 101, 5), *range(110, 301, 10))
MEANS = (4, 8, 16, 32, 64)


def side_by_side(options: Options, subject: Subject) -> Comparison:
    """All estimators, each on the whole sequence."""
    estimators: list[Estimator] = [
        BPTT(),
        CheckpointedBPTT(max(1, round(options.steps**0.5))),
        *(TruncatedBPTT(length) for length in options.lengths),
        *(ARTBP(PowerLaw(options.mean, alpha), seed=options.seed) for alpha in options.alphas),
        UORO(seed=options.seed),
        NoBackTrack(seed=options.seed),
    ]
    return compare(estimators, *subject, draws=options.draws)


def equal_memory(options: Options, subject: Subject) -> Comparison:
    """UORO, and truncated BPTT and ARTBP with the longest segments that fit into the memory that UORO takes."""
    uoro = UORO(seed=options.seed)
    room = compare([uoro], *subject, draws=1, online=True).rows[0].bytes

    def fits(estimator: Estimator) -> bool:
        return compare([estimator], *subject, draws=3, online=True).rows[0].bytes <= room

    length = _longest(lambda L: fits(TruncatedBPTT(L)), options.steps)
    mean = _longest(lambda L: fits(_windowed(L, options.alphas[0], options.seed)), options.steps, least=2)
    estimators: list[Estimator] = [
        uoro,
        NoBackTrack(seed=options.seed),
        TruncatedBPTT(length),
        *(_windowed(mean, alpha, options.seed) for alpha in options.alphas),
    ]
    return compare(estimators, *subject, draws=options.draws, online=True)


def _windowed(mean: int, alpha: float, seed: int) -> ARTBP:
    """A long segment in the memory of one window, of the mean length."""
    return ARTBP(PowerLaw(mean, alpha), window=mean, seed=seed)


def _longest(fits: Any, most: int, least: int = 1) -> int:
    """The largest length that fits, by bisection."""
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def curves(options: Options, subject: Subject) -> dict[str, Any]:
    """Bias against L, variance against the mean length for every alpha, and what laws retain."""
    step, inputs, state = subject
    truncated = compare([TruncatedBPTT(length) for length in options.lengths], step, inputs, detach(state), draws=1)
    noise = []
    for alpha, length in itertools.product(options.alphas, MEANS):
        found = variance(PowerLaw(length, alpha), step, inputs, state, samples=options.samples, seed=options.seed)
        error = found.relative_deviation * found.error / (2 * found.variance) if found.variance else 0.0
        noise.append({"alpha": alpha, "mean": length, "deviation": found.relative_deviation, "error": error})
    return {
        "bias": [
            {"length": length, "bias": row.bias, "cosine": row.cosine}
            for length, row in zip(options.lengths, truncated.rows, strict=True)
        ],
        "noise": noise,
        "retention": retention(options.mean, options.alphas[0]),
    }


def retention(mean: float, alpha: float) -> list[dict[str, Any]]:
    """What four ways to cut keep of a gradient over a lag, on average."""
    kept = {
        f"TruncatedBPTT({round(mean)})": Truncation(Fixed(round(mean)), seed=0),
        f"PowerLaw(mean={mean:g}, alpha={alpha:g}), not compensated": Truncation(
            PowerLaw(mean, alpha), compensate=False, seed=0
        ),
        f"ARTBP, cap={round(4 * mean)}": Truncation(PowerLaw(mean, alpha), cap=round(4 * mean), seed=0),
        "ARTBP": Truncation(PowerLaw(mean, alpha), seed=0),
    }
    return [{"method": name, "lag": lag, "retention": cut.retention(lag)} for name, cut in kept.items() for lag in LAGS]
