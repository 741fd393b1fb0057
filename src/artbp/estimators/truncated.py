"""Truncated backpropagation through time."""

from __future__ import annotations

from artbp.estimators._segments import Segments
from artbp.laws import Fixed
from artbp.truncation import Truncation


class TruncatedBPTT(Segments):
    r"""The gradient without what lies beyond a cut every `length` steps. Links are 0 there, and one between.

    Reference: Williams & Peng 1990, "An Efficient Gradient-Based Algorithm for On-Line Training of Recurrent Network
    Trajectories".

    .. math:: \tilde\delta_t = [\,L \nmid t+1\,]\; \tilde\delta_{t+1}
              \frac{\partial F}{\partial s}(x_{t+1}, s_t, \theta) + \frac{\partial \ell_t}{\partial s}

    Biased, and in the same direction at every update: of the gradient that spans k steps max(0, 1 - k/L) is kept. Where
    short and long range pull apart, it has the wrong sign. Memory: `length` steps of a stream; a whole sequence is one
    graph, unless `window` is given. Time: one forward and one backward pass. Variance: none, for a given sequence.

    Args:
        length: L, the steps from one cut to the next.
        window: how many steps to hold in memory at once.

    Example:
        >>> import torch, artbp
        >>> theta = torch.tensor(0.5, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> loss, state = TruncatedBPTT(2)(step, torch.ones(4), torch.zeros(()))
        >>> theta.grad
        tensor(5.)
    """

    def __init__(self, length: int, window: int | None = None) -> None:
        law = Fixed(length)
        self.length = law.length
        super().__init__(Truncation(law, seed=0), window)

    def __repr__(self) -> str:
        return f"TruncatedBPTT({self.length}{'' if self.window is None else f', window={self.window}'})"
