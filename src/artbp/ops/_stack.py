"""A whole layer of torch.nn's kind: the stack, dropout, layouts, packed sequences, around one path at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from artbp.ops import _check, dispatch
from artbp.ops._types import Tensors, Weights

Block = tuple[int, int, int]  # steps first..last-1 of so many lanes


@dataclass(slots=True)
class Sequences:
    """The input of a call in one layout, and the way back to the caller's.

    Args:
        data: (T, B, I), or packed: (the sum of the lengths, I).
        blocks: stretches of steps in which the lanes are the same; one for what is not packed.
        hx: (layers, B, ·), in the order of the data; None for zeros.
        source: the caller's input.
    """

    data: Tensor
    blocks: list[Block]
    hx: Tensors | None
    source: Tensor | PackedSequence

    @property
    def steps(self) -> int:
        return self.blocks[-1][1]

    @property
    def lanes(self) -> int:
        return self.blocks[0][2]

    def arrange(self, links: Tensor) -> Tensor:
        """Links (T,) or (T, B) in the order of the data."""
        if isinstance(self.source, PackedSequence) and self.source.sorted_indices is not None and links.dim() == 2:
            return links[:, self.source.sorted_indices.cpu()]
        return links


def arrange(layer: torch.nn.RNNBase, source: Any, hx: Any) -> Sequences:
    """The input and state of a call, checked, in the layout in which paths take them."""
    lstm = layer.mode == "LSTM"
    if isinstance(source, PackedSequence):
        states = _check.state_tuple(hx, lstm)
        if states is not None and source.sorted_indices is not None:
            states = tuple(state.index_select(1, source.sorted_indices) for state in states)
        data, batched = source.data, True
        blocks = _blocks(source.batch_sizes.tolist())
        shaped = data.new_empty(()).expand(blocks[-1][1], blocks[0][2], data.shape[-1])
    else:
        states = _check.rank(type(layer).__name__, source, hx, lstm)
        batched = source.dim() == 3
        if not batched:
            data = source.unsqueeze(1)
            states = None if states is None else tuple(state.unsqueeze(1) for state in states)
        else:
            data = source.transpose(0, 1) if layer.batch_first else source
        blocks = [(0, data.shape[0], data.shape[1])]
        shaped = data
    _check.arguments(layer, shaped, states, batched, _autocasts(data.device.type))
    return Sequences(data, blocks, states, source)


def _blocks(batch_sizes: list[int]) -> list[Block]:
    edges = [t for t in range(1, len(batch_sizes)) if batch_sizes[t] != batch_sizes[t - 1]]
    return [
        (first, last, batch_sizes[first]) for first, last in zip([0, *edges], [*edges, len(batch_sizes)], strict=True)
    ]


def run(layer: torch.nn.RNNBase, sequences: Sequences, links: Tensor) -> tuple[Any, Any]:
    """Output and final state of a call with links, in the caller's layout: what torch.nn's forward returns."""
    device = sequences.data.device.type
    links = sequences.arrange(links)
    if _autocasts(device):
        cast = _Cast(layer, sequences, device)
        with torch.autocast(device, enabled=False):
            x, hx = cast.inside(sequences.data), sequences.hx
            hx = None if hx is None else tuple(map(cast.inside, hx))
            weights = [tuple(map(cast.inside, group)) for group in _weights(layer)]
            y, states = _layers(layer, x, hx, weights, links, sequences)
            y, states = y.to(cast.y), cast.final(states)
    else:
        y, states = _layers(layer, sequences.data, sequences.hx, _weights(layer), links, sequences)
    return _returned(layer, sequences.source, y, states)


def _layers(
    layer: torch.nn.RNNBase, x: Tensor, hx: Tensors | None, weights: list[Weights], links: Tensor, sequences: Sequences
) -> tuple[Tensor, Tensors]:
    """The layers one after the other, dropout in between."""
    states = _initial(layer, x, sequences.lanes) if hx is None else hx
    final = []
    for index, group in enumerate(weights):
        if index and layer.dropout and layer.training:
            x = dropout(x, layer.dropout, True)
        x, state = _layer(
            layer.mode, x, tuple([part.select(0, index) for part in states]), group, links, sequences.blocks
        )
        final.append(state)
    if len(final) == 1:
        return x, tuple([part.unsqueeze(0) for part in final[0]])
    return x, tuple(torch.stack(parts) for parts in zip(*final, strict=True))


def _layer(
    mode: str, x: Tensor, hx: Tensors, weights: Weights, links: Tensor, blocks: list[Block]
) -> tuple[Tensor, Tensors]:
    """One layer over all blocks; lanes that end with a block leave their state behind."""
    if x.dim() == 3:
        return dispatch.recurrence(mode, x, hx, weights, links)
    outputs: list[Tensor] = []
    finished: list[Tensors] = []
    rows = torch.split_with_sizes(x, [(last - first) * lanes for first, last, lanes in blocks])
    for part, (first, last, lanes) in zip(rows, blocks, strict=True):
        finished.append(tuple(state[lanes:] for state in hx))
        here = links[first:last] if links.dim() == 1 else links[first:last, :lanes]
        y, hx = dispatch.recurrence(
            mode, part.view(last - first, lanes, -1), tuple(s[:lanes] for s in hx), weights, here.contiguous()
        )
        outputs.append(y.flatten(0, 1))
    ended = [hx, *reversed(finished)]
    return torch.cat(outputs), tuple(torch.cat(parts) for parts in zip(*ended, strict=True))


def _weights(layer: torch.nn.RNNBase) -> list[Weights]:
    flat: list[Any] = layer._flat_weights
    size = len(flat) // layer.num_layers
    groups = [tuple(flat[first : first + size]) for first in range(0, len(flat), size)]
    return groups if layer.bias else [(w_ih, w_hh, None, None, *w_hr) for w_ih, w_hh, *w_hr in groups]


def _initial(layer: torch.nn.RNNBase, x: Tensor, lanes: int) -> Tensors:
    sizes = [layer.proj_size or layer.hidden_size]
    if layer.mode == "LSTM":
        sizes.append(layer.hidden_size)
    return tuple(x.new_zeros((layer.num_layers, lanes, size)) for size in sizes)


def _returned(layer: torch.nn.RNNBase, source: Tensor | PackedSequence, y: Tensor, states: Tensors) -> tuple[Any, Any]:
    if isinstance(source, PackedSequence):
        if source.unsorted_indices is not None:
            states = tuple(state.index_select(1, source.unsorted_indices) for state in states)
        output: Any = PackedSequence(y, source.batch_sizes, source.sorted_indices, source.unsorted_indices)
    elif source.dim() == 2:
        output, states = y.squeeze(1), tuple(state.squeeze(1) for state in states)
    else:
        output = y.transpose(0, 1) if layer.batch_first else y
    return output, states if layer.mode == "LSTM" else states[0]


def _autocasts(device: str) -> bool:
    return (device in ("cpu", "cuda") or torch.amp.is_autocast_available(device)) and torch.is_autocast_enabled(device)


class _Cast:
    """Autocast, as torch.nn's layers see it: which dtype a path computes in, and which the caller gets back.

    An LSTM, and everything on an accelerator, runs in autocast's dtype. What has no such kernel on the CPU (GRU, RNN,
    projections) is computed in float32, and only its outputs have the dtypes that torch.nn's would have.
    """

    def __init__(self, layer: torch.nn.RNNBase, sequences: Sequences, device: str) -> None:
        given = sequences.data.dtype
        low = torch.get_autocast_dtype(device)
        kernel = device != "cpu" or (layer.mode == "LSTM" and not layer.proj_size)
        self.dtype = low if kernel else torch.float32
        self.y = low if kernel or layer.mode != "GRU" else given
        self.c = low if kernel else given

    def inside(self, tensor: Any) -> Any:
        return None if tensor is None else tensor.to(self.dtype)

    def final(self, states: Tensors) -> Tensors:
        return states[0].to(self.y), *[c.to(self.c) for c in states[1:]]
