"""Real-time recurrent learning."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from artbp.estimators._forward import Forward, Moment
from artbp.estimators._graph import pullback, rows


class RTRL(Forward):
    r"""The exact gradient of every step's loss, forward only: the influence of all parameters on the state.

    Reference: Williams & Zipser 1989, "A Learning Algorithm for Continually Running Fully Recurrent Neural Networks".

    .. math:: G_t = \frac{\partial F}{\partial s}(x_t, s_{t-1}, \theta)\, G_{t-1}
              + \frac{\partial F}{\partial\theta}(x_t, s_{t-1}, \theta), \qquad
              g_t = \frac{\partial \ell_t}{\partial s_{t-1}}\, G_{t-1} + \frac{\partial \ell_t}{\partial\theta},
              \qquad G_t = \frac{\mathrm{d} s_t}{\mathrm{d}\theta}

    Here :math:`\ell_t` is the loss as the step computes it from the state that comes in. Unbiased: exact, for frozen
    parameters; with an update after each step G is that of a path of parameters. Memory: state × parameters, whatever
    T. Time: a batch of n backward passes (vmapped), and a product (n, n) · (n, P), for n numbers of state in all lanes.
    Variance: none.

    Args:
        parameters: the leaves to estimate a gradient for; by default those of the step's own graph.
        limit: the most bytes that the influence may take.

    Example:
        >>> import torch, artbp
        >>> theta = torch.tensor(0.5, requires_grad=True)
        >>> step = artbp.unroll(lambda x, s: (theta * s + x, theta * s + x))
        >>> loss, state = RTRL()(step, torch.ones(4), torch.zeros(()))
        >>> theta.grad
        tensor(5.7500)
    """

    def __init__(self, parameters: Iterable[Tensor] | None = None, *, limit: int = 2**30) -> None:
        self.limit = limit
        self._n = 0
        super().__init__(parameters)

    def _estimate(self, moment: Moment) -> list[Tensor]:
        parameters, n, dtype = moment.parameters, moment.state.numel(), moment.state.dtype
        self._check_size(moment)
        direct = pullback(moment.loss, [*parameters, *moment.before])
        reaching = [part.flatten() for part in direct[len(parameters) :]]
        delta = torch.cat(reaching).to(dtype) if reaching else moment.state.new_zeros(0)  # ∂ℓ/∂s
        zeros = [delta.new_zeros(delta.numel(), leaf.numel()) for leaf in parameters[len(self.influence) :]]
        known = [*self.influence, *zeros]
        influence = [part.new_empty(n, part.shape[1]) for part in known]
        for places, parts in rows(moment.state, [*parameters, *moment.before]):
            F, J = parts[: len(parameters)], parts[len(parameters) :]
            jacobian = torch.cat(J, 1).to(dtype) if J else moment.state.new_zeros(len(F[0]), 0)
            for after, before, local in zip(influence, known, F, strict=True):
                after[places] = torch.addmm(local.to(dtype), jacobian, before)
        self.influence, self._n = influence, n
        past = [(delta @ G).view_as(own).to(own.dtype) for own, G in zip(direct[: len(parameters)], known, strict=True)]
        return [own + part for own, part in zip(direct[: len(parameters)], past, strict=True)]

    def _shape(self, leaf: Tensor) -> tuple[int, ...]:
        return sum(part.numel() for part in self.at if part.is_floating_point()), leaf.numel()

    def _check_size(self, moment: Moment) -> None:
        n, P = moment.state.numel(), sum(leaf.numel() for leaf in moment.parameters)
        needed = n * P * moment.state.element_size()
        if needed > self.limit:
            raise ValueError(
                f"{self!r} would remember the influence of {P:,} parameters on {n:,} numbers of state: "
                f"{needed / 2**30:,.1f} GiB, above its limit of {self.limit / 2**30:,.1f}. Use UORO() or ARTBP(law), "
                "whose memory is that of the state and the parameters, or pass limit= in bytes."
            )
