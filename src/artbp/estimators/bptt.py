"""Backpropagation through time."""

from __future__ import annotations

from artbp.estimators._segments import Segments
from artbp.laws import Never
from artbp.truncation import Truncation


class BPTT(Segments):
    r"""The exact gradient, by one graph over all steps. Every link is one.

    Reference: Rumelhart, Hinton & Williams 1986; Werbos 1990, "Backpropagation Through Time: What It Does and How to
    Do It".

    .. math:: \delta_t = \delta_{t+1} \frac{\partial F}{\partial s}(x_{t+1}, s_t, \theta)
              + \frac{\partial \ell_t}{\partial s}, \qquad
              \frac{\partial L}{\partial\theta} = \sum_t \delta_t \frac{\partial F}{\partial\theta}(x_t, s_{t-1},\theta)

    Unbiased: exact, for the loss of the whole sequence. Memory: T steps; with `window` that of
    :class:`CheckpointedBPTT`. Time: one forward and one backward pass. Variance: none.

    A stream has one update, at its end: no gradient is exact before the last loss is known.

    Args:
        window: how many steps to hold in memory at once; None for all.

    Example:
        >>> import torch, artbp
        >>> theta = torch.tensor(0.5, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> loss, state = BPTT()(step, torch.ones(4), torch.zeros(()))
        >>> theta.grad
        tensor(5.7500)
    """

    def __init__(self, window: int | None = None) -> None:
        super().__init__(Truncation(Never(), seed=0), window)

    def __repr__(self) -> str:
        return "BPTT()" if self.window is None else f"BPTT(window={self.window})"
