"""backprop and unroll: any window gives the gradient of the one graph, in every place where a gradient belongs."""

import dataclasses
from typing import NamedTuple

import pytest
import torch
from enumeration import backprop_gradient, relative_error
from problems import ALL, CELLS, tree_tensors
from recurrent import LINKS, STEPS, Recurrent, close, gradients, random
from torch import nn

import artbp

WINDOWS = [None, 1, 2, 3, 6, 7, 8, 50]


# ---- the same gradient, loss and state for any window --------------------------------------------------------------


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_any_window_gives_the_plain_gradient(problem, window):
    problem = problem(steps=STEPS)
    loss, states = problem.plain()
    step = artbp.unroll(problem.cell, dim=problem.dim)
    found, state = artbp.backprop(step, problem.inputs, problem.state, window=window)
    assert relative_error(problem.gradients(), problem.exact) <= 1e-12
    torch.testing.assert_close(found, loss.detach(), rtol=1e-14, atol=0)
    assert not found.requires_grad
    assert found.shape == ()
    assert all(map(torch.equal, tree_tensors(state), tree_tensors(states[-1])))
    assert not any(tensor.requires_grad for tensor in tree_tensors(state))
    if isinstance(state, dict):
        assert (state["count"], state["name"], state["nothing"]) == (STEPS, "start", None)


@pytest.mark.parametrize("window", WINDOWS[1:])
@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_any_window_gives_the_same_under_links(problem, window):
    problem = problem(steps=STEPS)
    for links in (
        LINKS,
        torch.stack([LINKS, LINKS.flip(0)], dim=1),
    ):  # the shared cut falls on a window's edge, or within
        assert relative_error(backprop_gradient(problem, links, window), backprop_gradient(problem, links)) <= 1e-12


@pytest.mark.parametrize("cut", range(1, STEPS))
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_cut_anywhere_also_exactly_on_an_edge(cut, window):
    problem = CELLS["lstm"](steps=STEPS)
    links = torch.ones(STEPS, dtype=torch.float64)
    links[cut] = 0.0
    assert relative_error(backprop_gradient(problem, links, window), backprop_gradient(problem, links)) <= 1e-12


class Pair(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Record:
    pair: Pair
    extra: dict


@pytest.mark.parametrize("window", [None, 1, 3])
def test_states_of_namedtuples_and_dataclasses(window):
    module, inputs = nn.LSTMCell(2, 3, dtype=torch.float64), random(STEPS, 2, 2)

    def cell(input_t, state):
        h, c = module(input_t, (state.pair.h, state.pair.c))
        trace = 0.5 * state.extra["trace"] + h
        return (h * trace).sum(), Record(Pair(h, c), {"trace": trace, "age": state.extra["age"] + 1, "unused": c * 2})

    zeros = torch.zeros(2, 3, dtype=torch.float64)
    start = Record(Pair(zeros, zeros), {"trace": zeros, "age": 0, "unused": zeros})
    loss, state = artbp.backprop(artbp.unroll(cell), inputs, start, LINKS, window=window)
    assert type(state) is Record
    assert type(state.pair) is Pair
    assert state.extra["age"] == STEPS
    found = gradients(module)
    again, _ = artbp.backprop(artbp.unroll(cell), inputs, start, LINKS)
    assert torch.allclose(loss, again, rtol=1e-14)
    close(found, gradients(module))


class Tagged(tuple):
    """A tuple that is more than one."""

    __slots__ = ()


@pytest.mark.parametrize("window", [None, 1, 3])
def test_states_of_other_tuples(window):
    """torch.Size, what torch's functions return, and tuples of one's own stay what they are."""
    module, inputs = Recurrent(), random(STEPS, 2, 2)

    def cell(input_t, state):
        tagged, size, best = state
        assert type(tagged) is Tagged
        assert type(size) is torch.Size
        assert type(best) is torch.return_types.max
        loss, hidden = module.one(input_t, tagged[0] + best.values[:, None])
        return loss, (Tagged([hidden]), hidden.shape, hidden.max(1))

    hidden = torch.zeros(2, 3, dtype=torch.float64)
    start = (Tagged([hidden]), hidden.shape, hidden.max(1))
    _, state = artbp.backprop(artbp.unroll(cell), inputs, start, LINKS, window=window)
    assert [type(part) for part in state] == [type(part) for part in start]
    found = gradients(module)
    artbp.backprop(artbp.unroll(cell), inputs, start, LINKS)
    close(found, gradients(module))


@pytest.mark.parametrize("window", [None, 1, 2, 4])
def test_no_initial_state(window):
    """A step that takes None at first, as torch.nn's layers do."""
    layer, inputs = nn.LSTM(2, 3, dtype=torch.float64), random(STEPS, 2, 2)

    def step(inputs, state, links):
        loss = 0.0
        for t in range(len(inputs)):
            if state is not None and links is not None:
                state = artbp.link(state, links[t], dim=1)
            output, state = layer(inputs[t : t + 1], state)
            loss = loss + output.square().sum()
        return loss, state

    summed, last = artbp.backprop(step, inputs, None, LINKS, window=window)
    found = gradients(layer)
    loss, state = step(inputs, None, LINKS)
    loss.backward()
    close(found, gradients(layer))
    torch.testing.assert_close((summed, *last), (loss.detach(), *(part.detach() for part in state)))


@pytest.mark.parametrize("window", [None, 2])
def test_inputs_may_be_trees_or_nothing(window):
    module, x, y = Recurrent(), random(STEPS, 2, 1), random(STEPS, 2, 1, seed=1)
    start = torch.zeros(2, 3, dtype=torch.float64)
    artbp.backprop(module, torch.cat([x, y], -1), start, LINKS)
    expected = gradients(module)
    for tree in ((x, y), {"x": x, "y": [y]}):
        cell = lambda parts, state: module.one(torch.cat(tree_tensors(parts), -1), state)  # noqa: E731
        artbp.backprop(artbp.unroll(cell), tree, start, LINKS, window=window)
        close(gradients(module), expected)
    blank = lambda _, state: module.one(torch.ones(2, 2, dtype=torch.float64), state)  # noqa: E731
    artbp.backprop(artbp.unroll(blank), None, start, LINKS, window=window)
    found = gradients(module)
    artbp.backprop(artbp.unroll(blank), torch.zeros(STEPS, 1), start, LINKS)
    close(found, gradients(module))


@pytest.mark.parametrize("links", [None, torch.ones(4, dtype=torch.float64)])
def test_unroll_is_a_step_of_its_own(links):
    problem = CELLS["gru"](steps=4)
    loss, state = artbp.unroll(problem.cell)(problem.inputs, problem.state, links)
    plain, states = problem.plain()
    assert torch.equal(loss, plain)
    assert torch.equal(state, states[-1])
    loss.backward()
    assert relative_error(problem.gradients(), problem.exact) <= 1e-12


def test_unroll_links_along_dim():
    layer = nn.LSTM(2, 3, dtype=torch.float64)
    links = torch.tensor([[1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)

    def cell(input_t, state):
        output, state = layer(input_t[None], state)
        return output.square().sum(), state

    h, c = random(1, 2, 3, grad=True), random(1, 2, 3, grad=True)
    inputs = random(2, 2, 2)
    artbp.backprop(artbp.unroll(cell, dim=1), inputs, (h, c), links)
    loss_0, state = cell(inputs[0], (h, c))
    loss_1, _ = cell(inputs[1], artbp.link(state, links[1], dim=1))
    expected = torch.autograd.grad(loss_0 + loss_1, (h, c))
    assert torch.equal(h.grad, expected[0])
    assert torch.equal(c.grad, expected[1])


def test_lower_precision_links_are_taken_as_they_are():
    problem = CELLS["gru"](steps=STEPS)
    found = backprop_gradient(problem, LINKS.float())  # exactly representable, all of them
    assert relative_error(found, backprop_gradient(problem, LINKS)) <= 1e-15


# ---- inputs and states that want their gradient ----------------------------------------------------------------------


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("first", [0.5, 0.0])
def test_a_learned_initial_state_and_inputs_that_require_grad(window, first):
    module, links = Recurrent(), torch.cat([torch.tensor([first], dtype=torch.float64), LINKS[1:]])
    start, inputs = random(2, 3, grad=True), random(STEPS, 2, 2, grad=True)
    loss, _ = module(inputs, start, links)
    expected = torch.autograd.grad(loss, [start, inputs], allow_unused=True)
    artbp.backprop(module, inputs, start, links, window=window)
    torch.testing.assert_close(inputs.grad, expected[1], rtol=1e-12, atol=1e-13)
    if first:
        torch.testing.assert_close(start.grad, expected[0], rtol=1e-12, atol=1e-13)
    else:
        assert start.grad is None or not start.grad.any()


@pytest.mark.parametrize("window", [None, 1, 2, 5, 9])
def test_an_encoder_in_front_receives_its_gradient_once(window):
    module, encoder, prior = Recurrent(), nn.Linear(2, 2, dtype=torch.float64), nn.Linear(2, 3, dtype=torch.float64)
    raw, calls = random(STEPS, 2, 2), []

    def run(backward):
        inputs, start = (
            encoder(raw).tanh(),
            prior(raw[0]).tanh(),
        )  # saved results: a second backward through them would raise
        inputs.register_hook(lambda gradient: calls.append("inputs"))
        start.register_hook(lambda gradient: calls.append("start"))
        backward(inputs, start)
        return {
            **gradients(module),
            **{f"e{k}": g for k, g in gradients(encoder).items()},
            **{f"p{k}": g for k, g in gradients(prior).items()},
        }

    expected = run(lambda inputs, start: module(inputs, start, LINKS)[0].backward())
    calls.clear()
    close(run(lambda inputs, start: artbp.backprop(module, inputs, start, LINKS, window=window)), expected)
    assert sorted(calls) == ["inputs", "start"]


@pytest.mark.parametrize("window", [None, 1, 2, 5])
def test_tensors_with_a_graph_in_the_closure(window):
    """The step reads something computed before, outside the inputs and the state."""
    module, encoder, raw = Recurrent(), nn.Linear(2, 3, dtype=torch.float64), random(2, 2)

    def run(backward):
        context = encoder(raw).tanh().exp()

        def cell(input_t, state):
            return module.one(input_t, state + context)

        backward(artbp.unroll(cell))
        return {**gradients(module), **{f"e{k}": g for k, g in gradients(encoder).items()}}

    inputs, start = random(STEPS, 2, 2), torch.zeros(2, 3, dtype=torch.float64)
    expected = run(lambda step: step(inputs, start, LINKS)[0].backward())
    close(run(lambda step: artbp.backprop(step, inputs, start, LINKS, window=window)), expected)


@pytest.mark.parametrize("window", [None, 1, 2, 5])
def test_a_parameter_shared_by_encoder_and_cell(window):
    weight, raw, start = random(3, 3, grad=True), random(STEPS, 2, 3), torch.zeros(2, 3, dtype=torch.float64)
    fired = []
    weight.register_hook(fired.append)
    done = []
    weight.register_post_accumulate_grad_hook(done.append)

    def cell(input_t, state):
        state = (input_t + state @ weight).tanh()
        return state.square().sum(), state

    loss, _ = artbp.unroll(cell)((raw @ weight).tanh(), start, LINKS)
    (expected,) = torch.autograd.grad(loss, weight)
    fired.clear()
    artbp.backprop(artbp.unroll(cell), (raw @ weight).tanh(), start, LINKS, window=window)
    torch.testing.assert_close(weight.grad, expected, rtol=1e-12, atol=1e-13)
    assert len(fired) == len(done) == 1
    torch.testing.assert_close(fired[0], expected, rtol=1e-12, atol=1e-13)
