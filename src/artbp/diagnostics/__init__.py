"""Does truncation hurt *you*? Exact expectations, the exact variance, comparisons, and a probe with advice.

Every function returns a small dataclass that prints as a table and goes to JSON (`report.to_json()`). Gradients are
those of the parameters which the step uses; what stands in their `.grad` is put back. How much of a gradient over some
lag a law keeps on average is the law's own business: :meth:`artbp.Law.retention`, :meth:`artbp.Truncation.retention`.
"""

from __future__ import annotations

from artbp.diagnostics._compare import Comparison, Measured, compare
from artbp.diagnostics._expectation import Expectation, expectation
from artbp.diagnostics._moments import Moments
from artbp.diagnostics._probe import Probe, probe
from artbp.diagnostics._variance import Variance, variance

__all__ = [
    "Comparison",
    "Expectation",
    "Measured",
    "Moments",
    "Probe",
    "Variance",
    "compare",
    "expectation",
    "probe",
    "variance",
]
