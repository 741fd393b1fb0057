"""How gradients flow back over a time line under BPTT, truncated BPTT and ARTBP: the paper's first figure.

The links are real ones, drawn by :class:`artbp.Truncation` and kept as data. What shows them is
:mod:`artbp.experiments.gradient_flow_figure`.
"""

from __future__ import annotations

from typing import Any

STEPS = 16


def flows(steps: int = STEPS, seed: int = 3) -> list[dict[str, Any]]:
    """Three methods and the links that they put on the edges of one sequence."""
    from artbp import Fixed, Never, PowerLaw, Truncation

    law = PowerLaw(mean=4, alpha=6)
    cuts = {
        "BPTT()": Truncation(Never(), seed=seed),
        "TruncatedBPTT(4)": Truncation(Fixed(4), seed=seed),
        f"ARTBP({law!r})": Truncation(law, seed=seed),
    }
    return [{"method": method, "links": cut.links(steps).tolist()} for method, cut in cuts.items()]
