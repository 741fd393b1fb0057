"""Other people's models: their layers replaced by ours, and links fed to layers one cannot reach."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch

import artbp.nn

LINKS = torch.tensor([1.0, 1.4, 0.0, 1.2, 1.1], dtype=torch.float64)


class Model(torch.nn.Module):
    """A model whose forward no one wrote with links in mind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(2, 3)
        self.encoder = torch.nn.ModuleDict({"lstm": torch.nn.LSTM(3, 4, num_layers=2), "gru": torch.nn.GRU(4, 4)})
        self.rnn = torch.nn.RNN(4, 3, nonlinearity="relu")
        self.tied = self.rnn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.encoder["gru"](self.encoder["lstm"](self.embed(x))[0])[0]
        return self.tied(self.rnn(torch.cat([y[..., :3], y[..., 3:]], dim=-1))[0].repeat(1, 1, 2)[..., :4])[0]


def backward(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(model(x).sum(), list(model.parameters())))


def test_convert_shares_everything_and_changes_nothing_without_links() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(5, 2, 2)
    plain = copy.deepcopy(model)
    parameters = dict(model.named_parameters())
    converted = artbp.nn.convert(model)
    assert converted is model
    assert type(model.encoder["lstm"]) is artbp.nn.LSTM
    assert type(model.encoder["gru"]) is artbp.nn.GRU
    assert type(model.rnn) is artbp.nn.RNN
    assert model.tied is model.rnn
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert str(model) == str(plain)
    assert all(torch.equal(a, b) for a, b in zip(backward(model, x), backward(plain, x), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(backward(artbp.nn.convert(model), x), backward(plain, x), strict=True))
    pickle.loads(pickle.dumps(model))


def test_convert_keeps_hooks_modes_and_flags() -> None:
    layer = torch.nn.LSTM(2, 3, batch_first=True, num_layers=2, dropout=0.5)
    calls: list[str] = []
    layer.register_forward_hook(lambda *_: calls.append("forward"))
    layer.weight_hh_l0.requires_grad_(False)
    layer.eval()
    twin = artbp.nn.convert(torch.nn.ModuleList([layer]))[0]
    assert not twin.training
    assert not twin.weight_hh_l0.requires_grad
    twin(torch.randn(2, 5, 2), links=LINKS)
    assert calls == ["forward"]
    twin.train()
    twin.register_forward_hook(lambda *_: calls.append("twin"))
    assert not layer.training
    layer(torch.randn(2, 5, 2))
    assert calls == ["forward", "forward"]


def test_convert_of_a_layer_itself_returns_the_new_one() -> None:
    layer = torch.nn.GRU(2, 3)
    twin = artbp.nn.convert(layer)
    assert type(twin) is artbp.nn.GRU
    assert twin.weight_ih_l0 is layer.weight_ih_l0
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    twin(torch.randn(5, 2, 2), links=LINKS)[0].sum().backward()
    before = twin.weight_ih_l0.detach().clone()
    optimizer.step()
    assert not torch.equal(twin.weight_ih_l0, before)


def test_convert_follows_a_move_to_another_dtype() -> None:
    twin = artbp.nn.convert(torch.nn.GRU(2, 3)).double()
    assert twin(torch.randn(5, 2, 2, dtype=torch.float64), links=LINKS)[0].dtype is torch.float64


def test_convert_refuses_what_it_cannot_replace() -> None:
    class Own(torch.nn.LSTM):
        pass

    with pytest.raises(ValueError, match=r"^0 is bidirectional: .*Use one direction"):
        artbp.nn.convert(torch.nn.Sequential(torch.nn.LSTM(2, 3, bidirectional=True)))
    with pytest.raises(ValueError, match=r"^0 is a Own, a subclass of torch\.nn's layer.*Derive it from artbp\.nn's"):
        artbp.nn.convert(torch.nn.Sequential(Own(2, 3)))
    with pytest.raises(ValueError, match=r"^the model itself is bidirectional"):
        artbp.nn.convert(torch.nn.GRU(2, 3, bidirectional=True))
    model = torch.nn.ModuleList([torch.nn.LSTM(2, 3), torch.nn.LSTM(2, 3, bidirectional=True)])
    with pytest.raises(ValueError, match=r"^1 is bidirectional"):
        artbp.nn.convert(model)
    assert type(model[0]) is torch.nn.LSTM  # all or nothing


def direct(layer: Any, x: torch.Tensor, links: torch.Tensor | None) -> list[torch.Tensor]:
    return list(torch.autograd.grad(layer(x, links=links)[0].sum(), list(layer.parameters())))


def fed(layer: Any, x: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(layer(x)[0].sum(), list(layer.parameters())))


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_linked_is_links_given_from_outside() -> None:
    layer, x = artbp.nn.GRU(2, 3), torch.randn(5, 2, 2)
    plain = direct(layer, x, None)
    with artbp.nn.linked(LINKS):
        inside = fed(layer, x)
    assert equal(inside, direct(layer, x, LINKS))
    assert not equal(inside, plain)
    assert equal(fed(layer, x), plain)


def test_linked_reaches_every_layer_of_a_model() -> None:
    model, x = artbp.nn.convert(Model()), torch.randn(5, 2, 2)
    zeros = torch.zeros(5, dtype=torch.float64)
    with artbp.nn.linked(zeros):
        found = backward(model, x)
    names = [name for name, _ in model.named_parameters()]
    output = model(x)
    assert not equal(found, backward(model, x))
    # All edges cut: what is left is the gradient of each step by itself, from states that are constants.
    assert output.shape == (5, 2, 3)
    assert len(found) == len(names)


def test_an_explicit_argument_goes_before() -> None:
    layer, x = artbp.nn.LSTM(2, 3), torch.randn(5, 2, 2)
    expected = direct(layer, x, LINKS)
    with artbp.nn.linked(torch.zeros(5)):
        assert equal(direct(layer, x, LINKS), expected)


def test_nested_the_inner_one_counts_and_none_is_plain() -> None:
    layer, x = artbp.nn.GRU(2, 3), torch.randn(5, 2, 2)
    with artbp.nn.linked(torch.zeros(5)):
        outer = fed(layer, x)
        with artbp.nn.linked(LINKS):
            assert equal(fed(layer, x), direct(layer, x, LINKS))
        with artbp.nn.linked(None):
            assert equal(fed(layer, x), fed_outside(layer, x))
        assert equal(fed(layer, x), outer)


def fed_outside(layer: Any, x: torch.Tensor) -> list[torch.Tensor]:
    found: list[list[torch.Tensor]] = []
    thread = threading.Thread(target=lambda: found.append(fed(layer, x)))
    thread.start()
    thread.join()
    return found[0]


def test_errors_restore_what_was_before() -> None:
    layer, x = artbp.nn.GRU(2, 3), torch.randn(5, 2, 2)
    plain = fed(layer, x)
    with pytest.raises(KeyError), artbp.nn.linked(LINKS):
        raise KeyError
    assert equal(fed(layer, x), plain)
    with pytest.raises(ValueError, match="links have shape"), artbp.nn.linked(torch.ones(4)):
        layer(x)
    assert equal(fed(layer, x), plain)


def test_threads_do_not_hear_each_other() -> None:
    layer, x = artbp.nn.GRU(2, 3), torch.randn(5, 2, 2)
    expected = {0: direct(layer, x, LINKS), 1: direct(layer, x, torch.zeros(5)), 2: direct(layer, x, None)}
    links = {0: LINKS, 1: torch.zeros(5), 2: None}
    together = threading.Barrier(3)
    wrong: list[int] = []

    def work(number: int) -> None:
        together.wait()
        for _ in range(20):
            with artbp.nn.linked(links[number]):
                if not equal(fed(layer, x), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_linked_warns_when_no_one_listens() -> None:
    words = r"no layer of artbp\.nn ran inside linked.*Convert the model first"
    with pytest.warns(UserWarning, match=words), artbp.nn.linked(LINKS):
        torch.nn.GRU(2, 3)(torch.randn(5, 2, 2))


def test_linked_refuses_what_is_no_tensor() -> None:
    with (
        pytest.raises(TypeError, match=r"linked got a list: .*Pass what artbp\.Truncation draws"),
        artbp.nn.linked([1.0]),
    ):
        pass
