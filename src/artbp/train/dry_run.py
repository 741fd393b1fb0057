"""How large and how long a run would be, by a look at its first updates."""

from __future__ import annotations

import dataclasses
import math
import time
from itertools import islice
from typing import Any

from artbp.diagnostics._peak import peak
from artbp.train.corpus import Corpus
from artbp.train.group import Group
from artbp.train.options import Options
from artbp.train.training import Training

_WARM_UP, _TIMED = 3, 12  # updates


def dry_run(options: Options, corpus: Corpus, group: Group, device: Any) -> str:
    """Parameters, steps, time and memory, in words; nothing is written."""
    training = Training(options, corpus, group, device)
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    steps, mean = training.stream.steps, training.estimator.mean
    updates = options.epochs * (steps / mean if math.isfinite(mean) else 1)
    lines = [
        f"{corpus.name}: {len(corpus.splits['train']):,} characters, {len(corpus.vocabulary)} symbols",
        *corpus.notes,
        f"parameters    {parameters:,}",
        f"steps         {options.epochs} passes of {steps:,} in {options.lanes} lanes "
        f"({training.stream.remainder} left over)",
        f"updates       about {updates:,.0f}",
    ]
    if not math.isfinite(mean):
        return "\n".join([*lines, "time, memory  not probed: an update of bptt is a whole pass"])
    list(islice(training.updates(), _WARM_UP))
    done, start = training.steps, time.perf_counter()
    for update in islice(training.updates(), _TIMED):
        update.loss.item()
    seconds = (time.perf_counter() - start) / max(training.steps - done, 1) * training.total_steps
    longest = _longest_step(options, steps)
    probe = Training(dataclasses.replace(options, method="tbptt", length=longest), corpus, group, device)
    bytes_at_peak = peak(lambda: list(islice(probe.updates(), 1)), device)
    bound = f", and no more for any longer: --window {options.window}" if 0 < options.window < longest else ""
    return "\n".join(
        [
            *lines,
            f"time          about {_words(seconds)} on {device}, evaluations left out",
            f"peak memory   about {bytes_at_peak / 2**20:,.1f} MiB for a segment of {longest:,} steps{bound}",
        ]
    )


def _longest_step(options: Options, steps: int) -> int:
    """The length that a pass exceeds once or so; no more than a few windows, for memory is flat beyond."""
    if options.method == "tbptt":
        return min(options.length, steps)
    from artbp.train.method import law

    drawn, length = law(options), int(options.mean)
    expected = steps / options.mean
    while expected * float(drawn.survival(length)) > 1 and length < steps:
        length = math.ceil(1.1 * length)
    bound = 4 * options.window if options.window else length
    return max(1, min(length, steps, bound))


def _words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
