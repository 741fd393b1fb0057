"""The training itself: a model, a stream, an estimator and an optimizer, update after update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from artbp.data import Lanes
from artbp.train.corpus import Corpus
from artbp.train.evaluation import losses
from artbp.train.group import Group
from artbp.train.method import estimator
from artbp.train.model import CharacterModel
from artbp.train.options import Options

_OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}
# Steps that go through the model at once on a CPU, more or less. What a kernel needs beside its tensors grows with
# them, to several times their size, and pieces of one size find the memory of the piece before.
_PIECE = 64


class Update(NamedTuple):
    """One update of the parameters."""

    loss: Tensor
    """the segment's loss in nats, summed over time and all lanes; a scalar on the device, not waited for"""
    steps: int
    """the length of the segment"""
    rate: float
    gradient_norm: Tensor
    """before clipping"""
    asked: Tensor
    """how many processes were asked to stop, and how many for a checkpoint: (2,)"""


class Training:
    r"""Online training over passes of one text: a segment, its gradient, an update, and on with the state carried.

    The loss is the *sum* over a segment, divided by the constant mean length times lanes. It is never divided by the
    segment's own length, which its links depend on: that mean would be biased. The state is zero at the start of a pass
    and never reset inside; every pass draws lengths of its own. With ARTBP the estimate is unbiased for the summed loss
    of the pass at frozen parameters; updating in between makes it stochastic approximation, and clipping biases it.

    With a group each process has its share of the lanes and all have the same lengths; gradients are summed once an
    update, in one reduction, with windows too.
    """

    def __init__(self, options: Options, corpus: Corpus, group: Group, device: torch.device) -> None:
        self.options, self.group, self.device = options, group, device
        torch.manual_seed(options.seed)
        self.model = CharacterModel(
            len(corpus.vocabulary),
            cell=options.cell,
            hidden=options.hidden,
            layers=options.layers,
            embedding=options.embedding,
            dropout=options.dropout,
            weight_dropout=options.weight_dropout,
            layer_norm=options.layer_norm,
            forget_bias=options.forget_bias,
        ).to(device, torch.float64 if options.precision == "float64" else torch.float32)
        self.parameters = list(self.model.parameters())
        self._draw_apart(0)
        part = (group.rank, group.size)
        self.stream = Lanes(corpus.splits["train"], options.lanes, part=part, device=device)
        self.estimator = estimator(options)
        self.optimizer = _optimizer(self.model, options)
        mean = self.estimator.mean if self.estimator.mean < math.inf else self.stream.steps
        self.normaliser = mean * options.lanes
        self.total_steps = options.epochs * self.stream.steps
        self.epoch = self.update = self.steps = 0
        self.state = self.model.initial_state(self.stream.lanes)
        self.asked = torch.zeros(2)  # to stop, and for a checkpoint: what this process says with its next gradient
        # A weight's dropout is one for a whole window; on a GPU a call costs more than memory does.
        whole = device.type != "cpu" or options.weight_dropout > 0
        self._piece = self.stream.steps if whole else _PIECE
        self._forward: Any = torch.compile(self.model, dynamic=True) if options.compile else self.model

    def updates(self) -> Iterator[Update]:
        """The updates of the present pass, from where it stands to its end."""
        self.model.train()
        before = self.stream.position
        for loss, state in self.estimator.stream(self.step, self.stream, self.state):
            self.state = state
            steps, before = self.stream.position - before, self.stream.position
            loss, asked = self._reduce(loss)
            norm = self._clip()
            rate = self._set_rate()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.update += 1
            self.steps += steps
            yield Update(loss * self.normaliser, steps, rate, norm, asked)
        self.epoch += 1
        self.stream.rewind()
        self.state = self.model.initial_state(self.stream.lanes)

    def step(self, inputs: tuple[Tensor, Tensor], state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
        """The protocol of :func:`artbp.backprop`: (the scaled loss of some steps, the state after them)."""
        parts, steps = [], len(inputs[0])
        # The last piece is between half and one and a half of the others: a very short one would cost like a long one.
        starts = range(0, max(1, steps - self._piece // 2), self._piece)
        for first, last in zip(starts, [*starts[1:], steps], strict=True):
            rows = slice(first, last)
            characters, targets = (symbols[rows] for symbols in inputs)
            part, state = self._go(characters, targets, state, None if links is None else links[rows])
            parts.append(part)
        loss = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        return loss / self.normaliser, state

    def _go(self, characters: Tensor, targets: Tensor, state: Any, links: Tensor | None) -> tuple[Tensor, Any]:
        """(the summed loss of some steps in nats, the state after them), for symbols (T, B)."""
        if not torch.is_grad_enabled() and not self.options.compile:
            # The way to a later window: it wants the state alone. (Compiled, dropout would be drawn in another way.)
            with self.autocast():
                _, state = self.model.features(characters, state, links)
            return torch.zeros((), device=characters.device), state
        with self.autocast():
            logits, state = self._forward(characters, state, links)  # (T, B, V)
        return losses(logits, targets, "sum"), state

    def autocast(self) -> AbstractContextManager[Any]:
        """What bf16 is computed under."""
        if self.options.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def _reduce(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Sums gradients, loss and requests over the group, in one reduction."""
        asked, self.asked = self.asked, torch.zeros(2)
        if self.group.size == 1:
            return loss, asked
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        bucket = torch.cat([*(part.flatten() for part in parts), loss.reshape(1), asked.to(loss.device)])
        self.group.sum(bucket)
        *gradients, loss, asked = torch.split(bucket, [*(p.numel() for p in self.parameters), 1, 2])
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)
        return loss[0], asked

    def _clip(self) -> Tensor:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.options.clip is not None:
            torch._foreach_mul_(gradients, (self.options.clip / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def _set_rate(self) -> float:
        """The rate at the segment's beginning: one that knew the segment's own length would weight it by it."""
        left = 1 - min(self.steps / self.total_steps, 1.0)
        factor = {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}[self.options.schedule]
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.lr * factor
        return self.options.lr * factor

    # Memory

    def state_dict(self) -> dict[str, Any]:
        """All that the updates to come depend on, of all processes."""
        states = self.group.gather(_leaves(self.state))
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "estimator": self.estimator.state_dict(),
            "stream": self.stream.state_dict(),
            "state": [torch.cat(parts, 1) for parts in zip(*states, strict=True)],  # (layers, all lanes, H)
            "random": self.group.gather(_random_states(self.device)),
            "epoch": self.epoch,
            "update": self.update,
            "step": self.steps,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken; by as many processes as there were then, bit for bit."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.estimator.load_state_dict(saved["estimator"])
        self.stream.load_state_dict(saved["stream"])
        first = self.group.rank * self.stream.lanes
        mine = [leaf[:, first : first + self.stream.lanes].to(self.device) for leaf in saved["state"]]
        self.state = tuple(mine) if isinstance(self.state, tuple) else mine[0]
        self.epoch, self.update, self.steps = saved["epoch"], saved["update"], saved["step"]
        if len(saved["random"]) == self.group.size:
            _restore_random(saved["random"][self.group.rank], self.device)
        else:
            self._draw_apart(self.update)  # other processes than before: dropout cannot be what it would have been

    def _draw_apart(self, update: int) -> None:
        """Lets every process draw a dropout of its own, and none that was drawn before; the parameters were alike."""
        if self.group.size > 1 or update:
            torch.manual_seed(hash((self.options.seed, update, self.group.size, self.group.rank)) % 2**63)


def _optimizer(model: CharacterModel, options: Options) -> torch.optim.Optimizer:
    make: Any = _OPTIMIZERS[options.optimizer]
    fused = {"fused": True} if options.optimizer in ("adam", "adamw") else {}
    optimizer: torch.optim.Optimizer = make(
        model.parameters(), lr=options.lr, weight_decay=options.weight_decay, **fused
    )
    return optimizer


def _leaves(state: Any) -> list[Tensor]:
    return [leaf.detach().cpu() for leaf in (state if isinstance(state, tuple) else (state,))]


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _restore_random(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
