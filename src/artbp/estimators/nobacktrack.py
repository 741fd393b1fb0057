"""NoBackTrack."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from artbp.estimators._forward import Forward, Moment
from artbp.estimators._graph import balance, norm, pullback, rows


class NoBackTrack(Forward):
    r"""The influence of all parameters on the state as one random product, each number of the state balanced by itself.

    Reference: Ollivier, Tallec & Charpiat 2015, "Training recurrent networks online without backtracking"
    (arXiv 1507.07680).

    With :math:`F_i` the i-th number of the new state, :math:`e_i` its unit vector, and signs :math:`\varepsilon_i`,
    independent and ±1 with equal chance,

    .. math:: g_t &= \Bigl(\frac{\partial \ell_t}{\partial s_{t-1}} \cdot v\Bigr)\, w
              + \frac{\partial \ell_t}{\partial\theta} \\
              v &\leftarrow \rho_0 \frac{\partial F}{\partial s}\, v + \sum_i \varepsilon_i \rho_i e_i, \qquad
              w \leftarrow w / \rho_0 + \sum_i \varepsilon_i \frac{\partial F_i}{\partial\theta} / \rho_i

    with :math:`\rho_0^2 = \|w\| / \|\frac{\partial F}{\partial s} v\|` and :math:`\rho_i^2 = \|\frac{\partial
    F_i}{\partial\theta}\|`, which make the variance least. (The first term of the paper has a sign of its own; a sign
    common to all cancels in the product, so that it may be one.) Proof: the rank-one trick,
    :math:`E[(\sum_i \varepsilon_i a_i)(\sum_j \varepsilon_j b_j)^\top] = \sum_i a_i b_i^\top`, applied to the sum that
    :class:`RTRL` computes.

    Unbiased for the gradient of each step's loss, for frozen parameters. Memory: one state and one copy of the
    parameters, and some rows of :math:`\partial F/\partial\theta` at a time. Time: n backward passes a step, vmapped,
    for n numbers of state in all lanes: the norms of the rows ask for them, where :class:`UORO` takes one random
    combination of the rows. Variance: as UORO's, less where the rows differ in size.

    Args:
        parameters: the leaves to estimate a gradient for; by default those of the step's own graph.
        seed, generator: where the signs come from; at most one of them, and with neither an own generator seeded from
            the system's entropy.

    Example:
        >>> import torch, artbp
        >>> theta = torch.tensor(0.5, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> for loss, state in NoBackTrack(seed=0).stream(step, torch.ones(4), torch.zeros(())):
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
        parameters, one = moment.parameters, torch.ones((), dtype=moment.state.dtype, device=moment.state.device)
        gradients = pullback(moment.loss, parameters)
        w = [*self.influence, *(torch.zeros_like(leaf) for leaf in parameters[len(self.influence) :])]
        epsilon = self._signs(moment.state.numel(), moment.state)
        v, influence = torch.zeros_like(epsilon), [torch.zeros_like(leaf) for leaf in parameters]
        for places, local in rows(moment.state, parameters):
            norms = torch.linalg.vector_norm(torch.stack([part.norm(dim=1) for part in local]), dim=0)  # (rows,)
            rho, inverse = balance(one, norms)
            v[places] = epsilon[places] * rho
            for whole, part in zip(influence, local, strict=True):
                whole += ((epsilon[places] * inverse).to(part.dtype) @ part).view_as(whole)
        if moment.crossing is not None and moment.moved is not None:
            gradients = [own + moment.crossing * part for own, part in zip(gradients, w, strict=True)]
            rho_0, inverse_0 = balance(norm([moment.moved]), norm(w))
            v = v + rho_0 * moment.moved
            influence = [new + inverse_0 * old for new, old in zip(influence, w, strict=True)]
        self.direction, self.influence = v, influence
        return gradients
