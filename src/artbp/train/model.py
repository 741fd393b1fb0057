"""The character model: symbols in, a recurrent layer with links, logits of the next symbol out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from artbp.nn import GRU, LSTM, RNN

CELLS: dict[str, type[LSTM | GRU | RNN]] = {"lstm": LSTM, "gru": GRU, "rnn": RNN}


class CharacterModel(nn.Module):
    """Embedding or one-hot symbols, layers of :mod:`artbp.nn`, softmax.

    Args:
        symbols: V, the size of the vocabulary.
        cell: "lstm", "gru" or "rnn".
        hidden: H, the units of each layer.
        layers: how many.
        embedding: the width of a learned embedding; 0 for one-hot symbols.
        dropout: on what enters each layer but the first, and on what leaves the last.
        weight_dropout: on the recurrent weights, one mask for each window or segment (Merity et al. 2018).
        layer_norm: normalise what leaves the last layer, before the softmax (outside the recurrence).
        forget_bias: what an LSTM's forget gates start at; on one of torch.nn's two biases, the other being zero there.
    """

    def __init__(
        self,
        symbols: int,
        *,
        cell: str = "lstm",
        hidden: int = 256,
        layers: int = 1,
        embedding: int = 0,
        dropout: float = 0.0,
        weight_dropout: float = 0.0,
        layer_norm: bool = False,
        forget_bias: float = 2.0,
    ) -> None:
        super().__init__()
        self.symbols, self.weight_dropout = symbols, weight_dropout
        self.embedding = nn.Embedding(symbols, embedding) if embedding else None
        between = dropout if layers > 1 else 0.0  # torch.nn warns of a dropout between layers where there is one layer
        self.recurrent = CELLS[cell](embedding or symbols, hidden, layers, dropout=between)
        self.norm = nn.LayerNorm(hidden) if layer_norm else None
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(hidden, symbols)
        if cell == "lstm":
            for layer in range(layers):
                with torch.no_grad():  # torch.nn's order of gates: input, forget, cell, output
                    getattr(self.recurrent, f"bias_ih_l{layer}")[hidden : 2 * hidden] = forget_bias
                    getattr(self.recurrent, f"bias_hh_l{layer}")[hidden : 2 * hidden] = 0.0

    def forward(self, characters: Tensor, state: Any = None, links: Tensor | None = None) -> tuple[Tensor, Any]:
        """(logits (T, B, V), state after the last step), for symbols (T, B) and the state before the first."""
        features, state = self.features(characters, state, links)
        return self.decoder(features), state

    def features(self, characters: Tensor, state: Any = None, links: Tensor | None = None) -> tuple[Tensor, Any]:
        """What the logits are made of, (T, B, H), and the state after the last step."""
        if self.embedding is None:
            x = self.decoder.weight.new_zeros(*characters.shape, self.symbols)  # (T, B, V)
            x.scatter_(-1, characters.unsqueeze(-1), 1.0)
        else:
            x = self.embedding(characters)  # (T, B, E)
        output, state = self._recur(x, state, links)  # (T, B, H)
        if self.norm is not None:
            output = self.norm(output)
        return self.dropout(output), state

    def initial_state(self, lanes: int) -> Any:
        """The state before the first symbol, zeros: what `state=None` stands for, as tensors (layers, lanes, H)."""
        layer = self.recurrent
        h = self.decoder.weight.new_zeros(layer.num_layers, lanes, layer.hidden_size)
        return (h, torch.zeros_like(h)) if isinstance(layer, LSTM) else h

    def _recur(self, x: Tensor, state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
        if not (self.training and self.weight_dropout):
            result: tuple[Tensor, Any] = self.recurrent(x, state, links=links)
            return result
        dropped = {
            name: F.dropout(weight, self.weight_dropout)
            for name, weight in self.recurrent.named_parameters()
            if name.startswith("weight_hh")
        }
        result = torch.func.functional_call(self.recurrent, dropped, (x, state), {"links": links})
        return result
