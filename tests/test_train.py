"""The trainer against loops written by hand, and against itself when it is stopped, resumed, or several processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import artbp
from artbp.data import Lanes
from artbp.train.corpus import Corpus, from_file
from artbp.train.group import Group
from artbp.train.model import CharacterModel
from artbp.train.options import Options
from artbp.train.training import Training

CPU = torch.device("cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """A made-up language of some thousand characters, with an order to learn."""
    generator = torch.Generator().manual_seed(0)
    words = ["the cat ", "sat on ", "a mat, ", "and then ", "it ran.\n"]
    text = "".join(words[i] for i in torch.randint(len(words), (380,), generator=generator).tolist())
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    return from_file(path)


def options(**changes: Any) -> Options:
    small = {"hidden": 7, "lanes": 4, "mean": 6, "length": 6, "precision": "float64", "epochs": 2, "window": 0}
    return Options(**{**small, **changes})


def twin(model: CharacterModel, symbols: int) -> tuple[nn.LSTM, nn.Linear]:
    """torch.nn's layers with the model's parameters, copied by hand."""
    recurrent = nn.LSTM(symbols, model.recurrent.hidden_size, model.recurrent.num_layers).double()
    decoder = nn.Linear(model.recurrent.hidden_size, symbols).double()
    recurrent.load_state_dict(model.recurrent.state_dict())
    decoder.load_state_dict(model.decoder.state_dict())
    return recurrent, decoder


def by_hand(method: str, model: CharacterModel, corpus: Corpus, options: Options) -> list[float]:
    """Two passes of online training, from nothing but torch.nn.LSTM, one step of time after the other."""
    symbols = len(corpus.vocabulary)
    recurrent, decoder = twin(model, symbols)
    optimizer = torch.optim.Adam([*recurrent.parameters(), *decoder.parameters()], lr=options.lr)
    text = torch.from_numpy(corpus.splits["train"].astype("int64"))
    S = (len(text) - 1) // options.lanes
    cut = artbp.Truncation(artbp.PowerLaw(mean=6, alpha=4), seed=options.seed, compensate=method == "artbp")
    found = []
    for _ in range(options.epochs):
        state = (torch.zeros(options.layers, options.lanes, options.hidden, dtype=torch.float64),) * 2
        position = 0
        while position < S:
            length = 6 if method == "tbptt" else None
            links = torch.ones(min(6, S - position)) if length else cut.segment(S - position)
            loss = torch.zeros((), dtype=torch.float64)
            state = tuple(leaf.detach() for leaf in state)
            for t, factor in enumerate(links.tolist()):
                if t:
                    state = artbp.link(state, factor)
                lanes = [text[b * S + position + t] for b in range(options.lanes)]
                following = [text[b * S + position + t + 1] for b in range(options.lanes)]
                x = F.one_hot(torch.stack(lanes), symbols).double()
                output, state = recurrent(x[None], state)
                loss = loss + F.cross_entropy(decoder(output[0]), torch.stack(following), reduction="sum")
            optimizer.zero_grad()
            (loss / (6 * options.lanes)).backward()
            optimizer.step()
            found.append(loss.item())
            position += len(links)
    return found


def losses(training: Training) -> list[float]:
    found = []
    while training.epoch < training.options.epochs:
        found += [update.loss.item() for update in training.updates()]
    return found


@pytest.mark.parametrize("method", ["tbptt", "artbp", "random"])
@pytest.mark.parametrize(("layers", "window", "piece"), [(1, 0, 64), (2, 4, 64), (1, 0, 4), (2, 9, 3)])
def test_every_loss_is_that_of_a_loop_written_by_hand(method, layers, window, piece, corpus, monkeypatch):
    monkeypatch.setattr("artbp.train.training._PIECE", piece)
    chosen = options(method=method, layers=layers, window=window)
    training = Training(chosen, corpus, Group(), CPU)
    expected = by_hand(method, training.model, corpus, chosen)
    found = losses(training)
    assert len(found) == len(expected) > 100
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, [1]), (20, [20]), (64, [64]), (96, [96]), (97, [64, 33]), (256, [64] * 4), (250, [64, 64, 64, 58])],
)
def test_a_long_segment_goes_through_the_model_in_pieces(steps, expected, corpus):
    training = Training(options(), corpus, Group(), CPU)
    found = []
    training.model.register_forward_pre_hook(lambda model, inputs: found.append(len(inputs[0])))
    symbols = torch.zeros(steps, 4, dtype=torch.int64)
    training.step((symbols, symbols), training.state, None)
    assert found == expected


def test_the_dropout_of_a_weight_is_one_for_a_whole_window(corpus):
    training = Training(options(weight_dropout=0.5), corpus, Group(), CPU)
    found = []
    training.model.register_forward_pre_hook(lambda model, inputs: found.append(len(inputs[0])))
    symbols = torch.zeros(256, 4, dtype=torch.int64)
    training.step((symbols, symbols), training.state, None)
    assert found == [256]


def test_the_three_methods_differ(corpus):
    ends = {
        method: losses(Training(options(method=method), corpus, Group(), CPU))[-1] for method in ("artbp", "random")
    }
    assert abs(ends["artbp"] - ends["random"]) > 1e-3


def test_bptt_has_one_update_a_pass(corpus):
    training = Training(options(method="bptt", window=50), corpus, Group(), CPU)
    assert len(losses(training)) == 2


def test_the_forget_gates_start_at_two_on_one_of_the_biases(corpus):
    model = Training(options(layers=2), corpus, Group(), CPU).model
    for layer in range(2):
        both = [getattr(model.recurrent, f"bias_{name}_l{layer}")[7:14] for name in ("ih", "hh")]
        assert both[0].tolist() == [2.0] * 7
        assert both[1].tolist() == [0.0] * 7


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "artbp", "window": 5, "dropout": 0.3, "layers": 2, "layer_norm": True, "schedule": "cosine"},
        {"method": "random", "cell": "gru", "embedding": 5, "weight_dropout": 0.4, "optimizer": "rmsprop"},
        {"method": "tbptt", "cell": "rnn", "optimizer": "sgd", "clip": 0.01, "schedule": "linear"},
    ],
)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_resumed_training_is_the_one_left_alone_bit_for_bit(changes, precision, corpus):
    chosen = options(**changes, precision=precision)
    alone = Training(chosen, corpus, Group(), CPU)
    expected = losses(alone)
    found, training = [], Training(chosen, corpus, Group(), CPU)
    stops = {3, 40, len(expected) // 2, len(expected) // 2 + 1, len(expected) - 1}
    while training.epoch < chosen.epochs:
        for update in training.updates():
            found.append(update.loss.item())
            if training.update in stops:
                saved = training.state_dict()
                torch.manual_seed(99)
                training = Training(chosen, corpus, Group(), CPU)
                training.load_state_dict(saved)
                break
    assert found == expected
    for name, value in alone.model.state_dict().items():
        assert torch.equal(training.model.state_dict()[name], value), name


def test_the_clip_shortens_the_gradient_and_says_how_long_it_was(corpus):
    free, clipped = (Training(options(optimizer="sgd", clip=clip), corpus, Group(), CPU) for clip in (None, 1e-3))
    before = [parameter.detach().clone() for parameter in clipped.model.parameters()]
    norms = [next(training.updates()).gradient_norm.item() for training in (free, clipped)]
    assert norms[0] == norms[1] > 1e-3
    moved = math.sqrt(sum(((p - q) ** 2).sum().item() for p, q in zip(clipped.model.parameters(), before, strict=True)))
    assert moved == pytest.approx(clipped.options.lr * 1e-3, rel=1e-4)


SCHEDULES = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}


@pytest.mark.parametrize("method", ["artbp", "bptt"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_is_that_of_where_a_segment_begins(schedule, method, corpus):
    training = Training(options(schedule=schedule, lr=0.01, method=method, window=50), corpus, Group(), CPU)
    rates, before = [], 0
    while training.epoch < 2:
        for update in training.updates():
            assert update.rate == pytest.approx(0.01 * SCHEDULES[schedule](before / training.total_steps), rel=1e-12)
            assert {group["lr"] for group in training.optimizer.param_groups} == {update.rate}
            before += update.steps
            rates.append(update.rate)
    assert before == training.total_steps
    assert rates[0] == 0.01
    assert rates[-1] > 0  # or the last update would be none


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0.4, "layers": 2},
        {"weight_dropout": 0.4},
        {"dropout": 0.3, "weight_dropout": 0.3, "layers": 2, "cell": "gru", "layer_norm": True},
    ],
)
def test_a_window_that_is_run_again_drops_what_it_dropped_before(changes, corpus):
    training = Training(options(window=5, **changes), corpus, Group(), CPU)
    training.model.train()
    inputs, targets = training.stream.take(17)
    links = artbp.PowerLaw(mean=6, alpha=4).links(17)
    state = training.model.initial_state(4)
    torch.manual_seed(3)
    loss, after = artbp.backprop(training.step, (inputs, targets), state, links, window=5)
    found = [parameter.grad.clone() for parameter in training.model.parameters()]
    training.model.zero_grad()

    torch.manual_seed(3)  # the same windows as one graph, in which nothing is run again
    expected, carried = torch.zeros((), dtype=torch.float64), state
    for first in range(0, 17, 5):
        rows = slice(first, first + 5)
        of_window, carried = training.step((inputs[rows], targets[rows]), carried, links[rows])
        expected = expected + of_window
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for one, parameter in zip(found, training.model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-10, atol=1e-15)
    for one, other in zip(*(s if isinstance(s, tuple) else (s,) for s in (after, carried)), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-12, atol=0)


class Halves(Group):
    """Two processes as one sees them whose partner's part is known beforehand."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, 2


def test_the_lanes_of_a_group_are_those_of_one_process(corpus):
    whole = Lanes(corpus.splits["train"], 4)
    parts = [Training(options(), corpus, Halves(rank), CPU) for rank in (0, 1)]
    expected, _ = whole.take(9)
    assert torch.equal(torch.cat([part.stream.take(9)[0] for part in parts], 1), expected)
    weights = [next(iter(part.model.parameters())) for part in parts]
    assert torch.equal(*weights)
