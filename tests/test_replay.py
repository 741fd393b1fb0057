"""What backprop with windows finds of a step's modules, and how far it looks."""

# ruff: noqa: PLW0108 - a lambda around a module is where the search begins
import types

import pytest
import torch
from torch import nn

import artbp
from artbp._replay import _FAR_ENOUGH, reachable


def norm():
    return nn.BatchNorm1d(3, dtype=torch.float64)


class Slots:
    __slots__ = ("net", "unset")


class Nested:
    def __init__(self, inside):
        self.inside = inside


class OnTheClass:
    net = norm()

    def one(self, x):
        return self.net(x)


class Chain:
    """A global, named in a method that another method calls."""

    def one(self, x):
        return self.other(x)

    def other(self, x):
        return by_name(x)


by_name, by_module = norm(), types.ModuleType("somebodys")
by_module.net = norm()


def places():
    slots, nested = Slots(), Nested(Nested(Nested(norm())))
    slots.net = norm()
    held = {"key": [norm()]}
    return {
        "slots": (slots.net, lambda x: slots.net(x)),
        "nested": (nested.inside.inside.inside, lambda x: nested.inside.inside.inside(x)),
        "class attribute": (OnTheClass.net, OnTheClass().one),
        "by the class": (OnTheClass.net, lambda x: OnTheClass.net(x)),
        "global": (by_name, lambda x: by_name(x)),
        "another method's global": (by_name, Chain().one),
        "module": (by_module.net, lambda x: by_module.net(x)),
        "containers": (held["key"][0], lambda x: held["key"][0](x)),
        "default": ((default := norm()), lambda x, net=default: net(x)),
    }


@pytest.mark.parametrize("place", places())
def test_buffers_are_updated_once_wherever_the_module_is(place):
    net, call = places()[place]
    net.reset_running_stats()
    theta = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def cell(x, state):
        state = torch.tanh(call(x * theta) + 0.5 * state)
        return state.sum(), state

    inputs = torch.arange(36, dtype=torch.float64).reshape(6, 2, 3).sin()
    artbp.backprop(artbp.unroll(cell), inputs, torch.zeros(2, 3, dtype=torch.float64), window=2)
    assert int(net.num_batches_tracked) == 6


@pytest.mark.parametrize(
    "data",
    [
        list(range(1_000_000)),
        {i: str(i) for i in range(100_000)},
        [(str(i), i) for i in range(100_000)],
        [Nested(i) for i in range(100_000)],
    ],
    ids=["ints", "dict", "tuples", "objects"],
)
def test_a_data_set_in_sight_is_not_searched(data, monkeypatch):
    looked = []
    parts = artbp._replay._parts
    monkeypatch.setattr(artbp._replay, "_parts", lambda thing: looked.append(1) or parts(thing))
    net = norm()
    assert net in reachable(lambda x, state: (net(x), data))
    assert len(looked) <= 2 * _FAR_ENOUGH


def test_no_code_of_the_users_runs_in_the_search():
    class Touchy(dict):
        def values(self):
            raise RuntimeError("boom")

        def __iter__(self):
            raise RuntimeError("boom")

        @property
        def net(self):
            raise RuntimeError("boom")

    touchy, net = Touchy(), norm()
    assert reachable(lambda x: (touchy, net)) == [net]


def test_a_step_without_a_module_name():
    names = {"theta": torch.ones((), dtype=torch.float64, requires_grad=True)}
    exec("def cell(x, s):\n    s = (s + x * theta).tanh()\n    return s.sum(), s", names)
    names["cell"].__module__ = None
    artbp.backprop(artbp.unroll(names["cell"]), torch.ones(4, 2, dtype=torch.float64), torch.zeros(2), window=2)
    assert names["theta"].grad is not None


def test_inputs_made_in_inference_mode():
    theta = torch.ones((), dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        inputs = torch.ones(4, 2, dtype=torch.float64) * 2

    def cell(x, state):
        state = (state + x.clone() * theta).tanh()
        return state.sum(), state

    gradients = []
    for window in (None, 2):
        theta.grad = None
        artbp.backprop(artbp.unroll(cell), inputs, torch.zeros(2, dtype=torch.float64), window=window)
        gradients.append(theta.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-13, atol=0)
