"""Estimators: peers that leave a gradient of the same loss in `.grad`, each at a price of its own.

Every one is a value, and every one answers to the same two calls on the same `step(inputs, state, links) -> (loss,
state)`, the protocol of :func:`artbp.backprop`:

- `estimator(step, inputs, state) -> (loss, state)`: one whole sequence, from a given state.
- `estimator.stream(step, stream, state)`: online; yields (loss, state) wherever a parameter update belongs.

Memory is that of a stream, beside state and parameters themselves; time is relative to BPTT's; r is how often a window
is run.

=================================  ========  =====================  ===============  ===============================
estimator                          unbiased  memory                 time             its error
=================================  ========  =====================  ===============  ===============================
:class:`BPTT`                      yes       T steps                1                none
:class:`CheckpointedBPTT`          yes       one window + states    4/3, or 1 + r/3  none
:class:`TruncatedBPTT`             **no**    L steps                1                all that lies beyond a cut
:class:`ARTBP`                     yes       a segment, or window   1                noise that fades with memory
:class:`RTRL`                      yes       state × parameters     state ×          none
:class:`UORO`                      yes       state + parameters     3                rank-one noise
:class:`NoBackTrack`               yes       state + parameters     state ×          rank-one noise, somewhat less
=================================  ========  =====================  ===============  ===============================
"""

from __future__ import annotations

from artbp.estimators._estimator import Estimator
from artbp.estimators.artbp import ARTBP
from artbp.estimators.bptt import BPTT
from artbp.estimators.checkpointed import CheckpointedBPTT
from artbp.estimators.nobacktrack import NoBackTrack
from artbp.estimators.rtrl import RTRL
from artbp.estimators.truncated import TruncatedBPTT
from artbp.estimators.uoro import UORO

__all__ = [
    "ARTBP",
    "BPTT",
    "RTRL",
    "UORO",
    "CheckpointedBPTT",
    "Estimator",
    "NoBackTrack",
    "TruncatedBPTT",
]
