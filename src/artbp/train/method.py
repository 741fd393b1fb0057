"""The gradient of a run: which estimator, and what its sums are divided by."""

from __future__ import annotations

from typing import Any

from artbp import PowerLaw
from artbp.estimators import ARTBP, BPTT, Estimator, TruncatedBPTT
from artbp.train.options import Options


def estimator(options: Options) -> Estimator:
    """The estimator that the options name; its lengths are drawn by the run's seed, alike in every process."""
    window = options.window or None
    if options.method == "tbptt":
        return TruncatedBPTT(options.length, window if window and window < options.length else None)
    if options.method == "bptt":
        return BPTT(window)
    law = PowerLaw(mean=_plain(options.mean), alpha=_plain(options.alpha))
    return ARTBP(law, window, seed=options.seed, compensate=options.method == "artbp")


def law(options: Options) -> Any:
    """The law of the segments' lengths."""
    chosen: Any = estimator(options)
    return chosen.cut.law


def _plain(number: float) -> float:
    """A whole number without its `.0`, for names that read as they are written."""
    return int(number) if number == int(number) else number
