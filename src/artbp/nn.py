"""torch.nn's recurrent layers with one argument more: `links`, the factors on the gradient between steps."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from artbp._link import link
from artbp.ops import _check, _stack, dispatch
from artbp.ops._weights import only_first

__all__ = ["GRU", "LSTM", "RNN", "convert", "linked"]

_Model = TypeVar("_Model", bound=torch.nn.Module)


class _Linked(torch.nn.RNNBase):
    """What the three layers share: the argument, and the choice between torch.nn's forward and a path with links."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _refuse_bidirectional(self, f"{type(self).__name__}(bidirectional=True)")

    def forward(self, input: Any, hx: Any = None, *, links: Tensor | None = None) -> Any:  # noqa: A002
        """torch.nn's forward; backward, what enters step t from step t-1 is multiplied by links[t].

        Args:
            input: as torch.nn takes it: (T, B, I), (B, T, I) with batch_first, (T, I), or a PackedSequence.
            hx: the initial state, or None for zeros.
            links: (T,) for all lanes, or one for each: (T, B), with batch_first or a PackedSequence (B, T), in the
                order in which the sequences were packed. float64 (or float32) on the CPU, wherever the input is.
                links[0] sits on the edge that brings hx in. None: what :func:`linked` says, or else all one.

        Returns:
            What torch.nn returns: the output and the final state.
        """
        around = _links_around()
        links = around if links is None else links
        if links is None:
            return super().forward(input, hx)
        return _out_of_sight(_forward)(self, super().forward, input, hx, links)


class LSTM(_Linked, torch.nn.LSTM):
    r"""torch.nn.LSTM, its constructor, parameters and `state_dict`, and `forward(input, hx=None, *, links=None)`.

    The adjoint of the whole state :math:`(h, c)` of every layer is multiplied by links[t] on its way from step t to
    step t-1; depth is not scaled, nor is the loss at t-1. With ARTBP's links the gradient is unbiased for that of the
    sequence the links were drawn for; with zeros every L steps it is that of truncated backpropagation.

    Cost: torch.nn's forward where links are None, all one, or cut at the first step alone; otherwise a kernel that
    takes the links along (`artbp doctor` says which). Bidirectional layers are refused: their second direction runs
    from the future, where no link can cut.

    Example:
        >>> lstm = LSTM(3, 5)
        >>> x, links = torch.randn(4, 2, 3), torch.tensor([0.0, 1.1, 1.2, 1.3], dtype=torch.float64)
        >>> output, (h, c) = lstm(x, links=links)
        >>> output.shape
        torch.Size([4, 2, 5])
    """


class GRU(_Linked, torch.nn.GRU):
    """torch.nn.GRU, its constructor, parameters and `state_dict`, and `forward(input, hx=None, *, links=None)`.

    As :class:`LSTM`, with one state.

    Example:
        >>> output, h = GRU(3, 5)(torch.randn(4, 2, 3), links=torch.tensor([0.0, 1.1, 1.2, 1.3], dtype=torch.float64))
        >>> h.shape
        torch.Size([1, 2, 5])
    """


class RNN(_Linked, torch.nn.RNN):
    """torch.nn.RNN, its constructor, parameters and `state_dict`, and `forward(input, hx=None, *, links=None)`.

    As :class:`LSTM`, with one state; `nonlinearity` is "tanh" or "relu".

    Example:
        >>> links = torch.tensor([[1.0, 1.0], [0.0, 1.25], [1.25, 1.5]], dtype=torch.float64)  # each lane its own
        >>> output, h = RNN(3, 5, nonlinearity="relu")(torch.randn(3, 2, 3), links=links)
        >>> output.shape
        torch.Size([3, 2, 5])
    """


def _forward(layer: _Linked, plain: Any, source: Any, hx: Any, given: Tensor) -> Any:
    layer._update_flat_weights()
    sequences = _stack.arrange(layer, source, hx)
    packed = isinstance(source, PackedSequence)
    lanes = sequences.lanes if packed or source.dim() == 3 else None
    transformed = dispatch.transformed()
    with torch._C._DisableFuncTorch() if transformed else nullcontext():  # links are constants to every transform
        links = _check.links(given, sequences.steps, lanes, packed or layer.batch_first)
    if sequences.data.is_meta or not _wants_gradient(layer, sequences):
        return plain(source, hx)
    if transformed:
        return _stack.run(layer, sequences, links)
    if only_first(links, sequences.lanes):  # the edge into the call is all there may be to scale, or to cut
        edge_is_one = bool((links[0] == 1).all())
        return plain(source, hx if hx is None or edge_is_one else link(hx, links[0], dim=1))
    return _stack.run(layer, sequences, links)


def _wants_gradient(layer: _Linked, sequences: _stack.Sequences) -> bool:
    if dispatch.transformed():
        return True
    if not torch.is_grad_enabled():
        return False
    weights: list[Any] = layer._flat_weights
    return any(tensor.requires_grad for tensor in (*weights, sequences.data, *(sequences.hx or ())))


def _out_of_sight(function: Any) -> Any:
    """`function` as torch.compile leaves it alone: a graph break, as torch.nn's own layers are one.

    torch._dynamo is slow to import, and so is touched only where someone has imported it.
    """
    if "torch._dynamo" not in sys.modules:
        return function
    disabled = _disabled.get(function)
    if disabled is None:
        disable: Any = torch.compiler.disable
        disabled = _disabled[function] = disable(function)
    return disabled


_disabled: dict[Any, Any] = {}


class _Feed:
    """Links on their way to layers one cannot reach, and whether any has taken them."""

    def __init__(self, links: Tensor) -> None:
        self.links = links
        self.taken = False


_around: ContextVar[_Feed | None] = ContextVar("artbp.nn.linked", default=None)


def _links_around() -> Tensor | None:
    feed = _around.get()
    if feed is None:
        return None
    feed.taken = True
    return feed.links


@contextmanager
def linked(links: Tensor | None) -> Iterator[None]:
    """Feed links to the layers of a model whose forward one cannot change.

    Inside, every layer of this module that is called without `links=` behaves as if it had got these, each in its own
    layout (`batch_first`); an explicit `links=` goes before. Nested, the inner one counts; `linked(None)` is plain
    backpropagation again. Only this thread (this task) is concerned, and what was before is restored, on errors too.

    Example:
        >>> model = convert(torch.nn.Sequential(torch.nn.LSTM(3, 5)))
        >>> with linked(torch.tensor([0.0, 1.1, 1.2, 1.3], dtype=torch.float64)):
        ...     output, state = model(torch.randn(4, 2, 3))
    """
    if links is not None and not isinstance(links, Tensor):
        raise TypeError(
            f"linked got a {type(links).__name__}: the layers take a tensor with one factor a step. "
            "Pass what artbp.Truncation draws, or None for plain backpropagation."
        )
    feed = None if links is None else _Feed(links)
    before = _around.set(feed)
    try:
        yield
    finally:
        _around.reset(before)
    if feed is not None and not feed.taken:
        warnings.warn(
            "no layer of artbp.nn ran inside linked(...), so the links had no effect. Convert the model first "
            "(artbp.nn.convert), and call it inside the `with`, in the same thread.",
            stacklevel=3,
        )


_TWINS: dict[type[torch.nn.Module], type[_Linked]] = {torch.nn.LSTM: LSTM, torch.nn.GRU: GRU, torch.nn.RNN: RNN}


def convert(model: _Model) -> _Model:
    """`model` with its torch.nn.LSTM, GRU and RNN replaced, in place, by the layers of this module.

    The new layers hold the very parameters, buffers, hooks and settings of the old ones, so optimizers stay valid. A
    model that is such a layer itself cannot be replaced in place: use what is returned. Bidirectional layers, and
    subclasses with a forward of their own, are refused.

    Example:
        >>> type(convert(torch.nn.Sequential(torch.nn.GRU(3, 5)))[0])
        <class 'artbp.nn.GRU'>
    """
    twins: dict[torch.nn.Module, _Linked] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.LSTM | torch.nn.GRU | torch.nn.RNN) and not isinstance(module, _Linked):
            twins[module] = _twin(module, name or "the model itself")
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in twins:
                parent._modules[name] = twins[child]
    return cast(_Model, twins.get(model, model))


def _twin(module: torch.nn.RNNBase, where: str) -> _Linked:
    kind = _TWINS.get(type(module))
    if kind is None:
        raise ValueError(
            f"{where} is a {type(module).__name__}, a subclass of torch.nn's layer that may do anything in its forward."
            " Derive it from artbp.nn's layer instead, convert before it is parametrized, or convert the other parts "
            "of the model one by one."
        )
    _refuse_bidirectional(module, where)
    twin = kind.__new__(kind)
    twin.__dict__.update(module.__dict__)
    for name, value in module.__dict__.items():
        if name.startswith("_") and isinstance(value, dict | list | set):
            twin.__dict__[name] = value.copy()  # registries of its own, of the same parameters and hooks
    return twin


def _refuse_bidirectional(layer: torch.nn.RNNBase, where: str) -> None:
    if layer.bidirectional:
        raise ValueError(
            f"{where} is bidirectional: its backward direction carries the future into every step, so a cut between two"
            " steps has no meaning for it, and no links make it unbiased. Use one direction here, or torch.nn's layer "
            "without links where the whole sequence is at hand."
        )
