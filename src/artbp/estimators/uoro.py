"""Unbiased online recurrent optimization."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from artbp.estimators._forward import Forward, Moment
from artbp.estimators._graph import balance, norm, pullback


class UORO(Forward):
    r"""The influence of all parameters on the state as one random product of two vectors.

    Reference: Tallec & Ollivier 2018, "Unbiased Online Recurrent Optimization" (arXiv 1702.05043, 2017).

    With signs :math:`\nu`, independent and ±1 with equal chance, one for each number of the state,

    .. math:: g_t &= \Bigl(\frac{\partial \ell_t}{\partial s_{t-1}} \cdot \tilde s\Bigr)\, \tilde\theta
              + \frac{\partial \ell_t}{\partial\theta} \\
              \tilde s &\leftarrow \rho_0 \frac{\partial F}{\partial s}\, \tilde s + \rho_1 \nu, \qquad
              \tilde\theta \leftarrow \tilde\theta / \rho_0 + \nu^\top \frac{\partial F}{\partial\theta} / \rho_1

    with :math:`\rho_0^2 = \|\tilde\theta\| / \|\frac{\partial F}{\partial s} \tilde s\|` and :math:`\rho_1^2 =
    \|\nu^\top \frac{\partial F}{\partial\theta}\| / \|\nu\|`, which make the variance least. Proof: if
    :math:`E[\tilde s\, \tilde\theta^\top] = \mathrm{d}s/\mathrm{d}\theta` before the step, then after it too, for
    :math:`E[\nu\nu^\top] = 1`, and the cross terms are odd in :math:`\nu` (both ρ are even) and vanish on average.

    Unbiased for the gradient of each step's loss, for frozen parameters. Memory: one state and one copy of the
    parameters. Time: a forward pass in forward mode and two backward passes, about three times BPTT's step. Variance:
    that of a rank-one estimate of a matrix of rank up to n, growing with the size of the state and with its lanes,
    which share one product.

    Args:
        parameters: the leaves to estimate a gradient for; by default those of the step's own graph.
        seed, generator: where the signs come from; at most one of them, and with neither an own generator seeded from
            the system's entropy.

    Example:
        >>> import torch, artbp
        >>> theta = torch.tensor(0.5, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> for loss, state in UORO(seed=0).stream(step, torch.ones(4), torch.zeros(())):
        ...     updated, theta.grad = theta.grad, None  # an update belongs here, after every step
        >>> state
        tensor(1.8750)
    """

    directed = True

    def __init__(
        self,
        parameters: Iterable[Tensor] | None = None,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(parameters, seed, generator)

    def _estimate(self, moment: Moment) -> list[Tensor]:
        parameters = moment.parameters
        gradients = pullback(moment.loss, parameters)
        theta = [*self.influence, *(torch.zeros_like(leaf) for leaf in parameters[len(self.influence) :])]
        nu = self._signs(moment.state.numel(), moment.state)
        local = pullback(moment.state, parameters, nu)
        rho_1, inverse_1 = balance(norm([nu]), norm(local))
        direction, influence = rho_1 * nu, [inverse_1 * part for part in local]
        if moment.crossing is not None and moment.moved is not None:
            gradients = [own + moment.crossing * part for own, part in zip(gradients, theta, strict=True)]
            rho_0, inverse_0 = balance(norm([moment.moved]), norm(theta))
            direction = direction + rho_0 * moment.moved
            influence = [new + inverse_0 * old for new, old in zip(influence, theta, strict=True)]
        self.direction, self.influence = direction, influence
        return gradients
