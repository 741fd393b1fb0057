"""Anticipated reweighted truncated backpropagation."""

from __future__ import annotations

from typing import Any

import torch

from artbp.estimators._segments import Segments
from artbp.truncation import Truncation


class ARTBP(Segments):
    r"""The gradient cut at random places, unbiased, because what crosses the edges in between is made larger.

    Reference: Tallec & Ollivier 2017, "Unbiasing Truncated Backpropagation Through Time".

    .. math:: \tilde\delta_t = \lambda_{t+1}\, \tilde\delta_{t+1}
              \frac{\partial F}{\partial s}(x_{t+1}, s_t, \theta) + \frac{\partial \ell_t}{\partial s}, \qquad
              \lambda_{t+1} = \begin{cases} 0 & \text{with probability } c_{t+1} \\
              \frac{1}{1-c_{t+1}} & \text{otherwise} \end{cases}

    Theorem. If :math:`E[\lambda_{t+1} \mid \text{past}] = 1` for every t, the parameters being frozen, the estimate has
    the exact gradient's expectation. Proof, backward in time: at the last step both adjoints are equal; suppose
    :math:`E[\tilde\delta_{t+1} \mid \text{past}] = \delta_{t+1}`, then

    .. math:: E[\tilde\delta_t \mid \text{past}] = E[\lambda_{t+1} \mid \text{past}]\; \delta_{t+1}
              \frac{\partial F}{\partial s} + \frac{\partial \ell_t}{\partial s} = \delta_t. \qquad \square

    Unbiased for the loss of the sequence that is cut, at frozen parameters; updating between segments makes it a
    stochastic approximation, like every online method. Not with `cap` or `compensate=False`, which
    `unbiased` says. Memory: one segment, now and then a long one; with `window` that of one window, and no bias.
    Time: one forward and one backward pass. Variance: :math:`\sum_u E[\frac{c_u}{1-c_u} \|G_u\|^2]`, where
    :math:`G_u` is the gradient that would cross edge u (:mod:`artbp.diagnostics` computes it); without bound where
    memory does not fade.

    Args:
        law: the law of the lengths: `PowerLaw(mean=50, alpha=4)`, or any object with `hazard(age)`. One that looks at
            the state costs a whole sequence one more forward pass, and cannot cut a stream ahead of its states.
        window: how many steps to hold in memory at once.
        seed, generator, block, cap, compensate: as in :class:`artbp.Truncation`.

    Example:
        >>> from artbp import PowerLaw
        >>> ARTBP(PowerLaw(mean=16, alpha=6))
        ARTBP(PowerLaw(mean=16, alpha=6))
    """

    def __init__(
        self,
        law: Any,
        window: int | None = None,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        block: int = 1,
        cap: int | None = None,
        compensate: bool = True,
    ) -> None:
        cut = Truncation(law, seed=seed, generator=generator, block=block, cap=cap, compensate=compensate)
        super().__init__(cut, window)
        options = {"window": window, "block": None if block == 1 else block, "cap": cap}
        parts = [repr(law), *(f"{name}={value}" for name, value in options.items() if value is not None)]
        self._written = ", ".join(parts if compensate else [*parts, "compensate=False"])

    def __repr__(self) -> str:
        return f"ARTBP({self._written})"
