"""The forward methods: unbiased by enumeration of all signs and by a z-test, exact for RTRL, and flat in memory."""

import copy
import gc
import itertools
import math
import pickle
import tracemalloc

import pytest
import torch
from enumeration import global_generators, relative_error
from messages import VALUES, check
from problems import ALL, CELLS, scalar_linear

import artbp
from artbp.estimators import RTRL, UORO, NoBackTrack

FORWARD = {"RTRL": RTRL, "UORO": UORO, "NoBackTrack": NoBackTrack}
RANK_ONE = {"UORO": UORO, "NoBackTrack": NoBackTrack}


def step_of(problem):
    return artbp.unroll(problem.cell, dim=problem.dim)


def estimate(estimator, problem):
    estimator(step_of(problem), problem.inputs, problem.state)
    return problem.gradients()


SMALL = {
    "scalar_linear": lambda: scalar_linear(steps=4, lanes=2),
    "rnn": lambda: CELLS["rnn"](steps=3, lanes=1),
    "gru": lambda: CELLS["gru"](steps=3, lanes=1),
}


@pytest.mark.parametrize("problem", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("estimator", RANK_ONE.values(), ids=RANK_ONE)
def test_unbiased_by_enumeration_of_all_signs(estimator, problem):
    """The signs of all steps but the last, which no loss sees. The norms ρ depend on the signs too: no matter."""
    problem, one = problem(), estimator()
    n, steps = sum(leaf.numel() for leaf in [problem.state]), len(problem.inputs)
    mean = {name: torch.zeros_like(leaf) for name, leaf in problem.exact.items()}
    square, patterns = 0.0, list(itertools.product([-1.0, 1.0], repeat=n * (steps - 1)))
    for pattern in patterns:
        drawn = iter([*torch.tensor(pattern, dtype=torch.float64).split(n), torch.ones(n, dtype=torch.float64)])
        one._signs = lambda n, like, drawn=drawn: next(drawn)
        for name, gradient in estimate(one, problem).items():
            mean[name] += gradient / len(patterns)
            square += float(gradient.square().sum()) / len(patterns)
    assert relative_error(mean, problem.exact) < 1e-12
    assert square > 1.01 * sum(float(value.square().sum()) for value in problem.exact.values())  # it is noisy


@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
@pytest.mark.parametrize("estimator", RANK_ONE.values(), ids=RANK_ONE)
def test_unbiased_on_every_problem_by_a_z_test(estimator, problem):
    """n = 150 draws, seed 0, along the exact gradient; error rate 1e-4 a test, 12 tests: 0.0012 in all.

    The smallest bias that it sees with certainty near one is 8 σ/√n, with σ the noise along the gradient.
    """
    n, threshold = 150, 3.89  # P(|z| > 3.89) = 1e-4
    problem, one = problem(steps=4, lanes=1), estimator(seed=0)
    along = []
    for _ in range(n):
        found = estimate(one, problem)
        along.append(sum(float((found[name] * problem.exact[name]).sum()) for name in found))
    size = sum(float(value.square().sum()) for value in problem.exact.values())
    draws = torch.tensor(along, dtype=torch.float64) / size
    assert abs(float(draws.mean()) - 1) < threshold * float(draws.std()) / math.sqrt(n) + 1e-12


def test_signs_come_from_the_estimators_own_generator():
    problem, before = CELLS["rnn"](), global_generators()
    first, again, other = (estimate(UORO(seed=seed), problem)["weight_hh"] for seed in (0, 0, 1))
    shared = estimate(UORO(generator=torch.Generator().manual_seed(0)), problem)["weight_hh"]
    assert global_generators() == before
    assert torch.equal(first, again)
    assert torch.equal(first, shared)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("estimator", FORWARD.values(), ids=FORWARD)
def test_influence_goes_on_with_the_state_it_was_left_with_and_no_other(estimator):
    problem = CELLS["gru"](steps=6)
    step, one, twin = step_of(problem), estimator(), estimator()
    seeds = [torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)]
    one.generator, twin.generator = seeds

    def run(estimator, inputs, state):
        gradients = []
        for _, state in estimator.stream(step, inputs, state):  # noqa: B007, B020 - carried on
            gradients.append(problem.gradients())
        return gradients, state

    whole, _ = run(one, problem.inputs, problem.state)
    head, state = run(twin, problem.inputs[:4], problem.state)
    twin(step, problem.inputs, problem.state)  # a whole sequence in between leaves what a stream remembers alone
    problem.gradients()
    if not isinstance(twin, RTRL):
        twin.generator.set_state(torch.Generator().manual_seed(3).get_state())
        [twin._signs(6, torch.ones(1)) for _ in range(4)]
    tail, _ = run(twin, problem.inputs[4:], state)
    for found, expected in zip([*head, *tail], whole, strict=True):
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    (yielded,) = [state for _, state in one.stream(step, problem.inputs[:1], problem.state)]
    problem.gradients()
    yielded.zero_()
    assert one.at[0].any()  # a state that the caller changes is another one
    anew, _ = run(twin, problem.inputs[4:], problem.state)
    (fresh,) = run(estimator(), problem.inputs[4:5], problem.state)[0]
    assert all(torch.allclose(anew[0][name], fresh[name], rtol=1e-12, atol=1e-12) for name in fresh)


@pytest.mark.parametrize("estimator", FORWARD.values(), ids=FORWARD)
def test_parameters_can_be_given(estimator):
    problem = CELLS["lstm"](steps=3)
    names = ["weight_hh", "readout"]
    estimator(parameters=[problem.parameters[name] for name in names])(step_of(problem), problem.inputs, problem.state)
    found = {name: leaf.grad for name, leaf in problem.parameters.items()}
    assert {name for name, gradient in found.items() if gradient is not None} == set(names)
    if estimator is RTRL:
        for name in names:
            torch.testing.assert_close(found[name], problem.exact[name], rtol=1e-10, atol=1e-10)


def test_a_parameter_that_is_used_now_and_then():
    """One that a later step is the first to use has had no influence; one that it leaves out keeps what it had."""
    early, late = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.7, 0.3))

    def cell(x, s):
        s = 0.5 * s + (early if x < 2 else late) * x
        return s.square(), s

    inputs, state = torch.arange(4.0, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    RTRL()(artbp.unroll(cell), inputs, state)
    found = early.grad, late.grad
    early.grad = late.grad = None
    artbp.backprop(artbp.unroll(cell), inputs, state)
    torch.testing.assert_close(found, (early.grad, late.grad), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("estimator", FORWARD.values(), ids=FORWARD)
def test_layers_of_torch_in_single_precision(estimator, kind):
    """The fused kernels know no forward mode; a first state that the layer makes is None."""
    layer = getattr(torch.nn, kind)(2, 3)

    def step(inputs, state, links):
        out, state = layer(inputs, state)
        return out.square().sum(), state

    inputs = torch.randn(4, 2, 2)
    loss, _ = estimator()(step, inputs, None)
    found = {name: leaf.grad.clone() for name, leaf in layer.named_parameters()}
    layer.zero_grad()
    expected, _ = artbp.backprop(step, inputs, None)
    torch.testing.assert_close(loss, expected)
    if estimator is RTRL:
        for name, leaf in layer.named_parameters():
            torch.testing.assert_close(found[name], leaf.grad, rtol=1e-4, atol=1e-5)
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("estimator", FORWARD.values(), ids=FORWARD)
def test_a_state_of_two_precisions(estimator):
    """An accumulator in float64 beside a model in float32: the influence has the wider one, gradients their own."""
    cell = torch.nn.GRUCell(2, 3)

    def one(x, state):
        hidden, total = state
        hidden = cell(x, hidden)
        total = 0.9 * total + hidden.double().sum()
        return total.square().float() + hidden[:, 0].sum(), (hidden, total)

    inputs, state = torch.randn(5, 2, 2), (torch.zeros(2, 3), torch.zeros((), dtype=torch.float64))
    estimator()(artbp.unroll(one), inputs, state)
    found = {name: leaf.grad.clone() for name, leaf in cell.named_parameters()}
    cell.zero_grad()
    artbp.backprop(artbp.unroll(one), inputs, state)
    for name, leaf in cell.named_parameters():
        assert found[name].dtype == torch.float32
        if estimator is RTRL:
            torch.testing.assert_close(found[name], leaf.grad, rtol=1e-4, atol=1e-4)


def test_an_operation_that_cannot_be_batched():
    class Alone(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return torch.tensor(2 * gradient.numpy())

    problem = scalar_linear(steps=3)
    cell, problem.cell = problem.cell, lambda x, s: cell(x, Alone.apply(s) / 2)
    assert relative_error(estimate(RTRL(), problem), problem.exact) < 1e-12


@pytest.mark.parametrize("estimator", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("updates", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_is_flat(estimator, updates):
    problem = scalar_linear(steps=10, lanes=1)
    inputs = problem.inputs.repeat(updates // 10, 1, 1)
    sizes = {}
    tracemalloc.start()
    try:
        for t, _ in enumerate(estimator().stream(step_of(problem), inputs, problem.state), 1):
            problem.gradients()
            if t in (updates // 3, updates):
                gc.collect()
                live = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
                sizes[t] = live, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    (before, bytes_before), (after, bytes_after) = sizes.values()
    assert after == before
    assert bytes_after - bytes_before < 40_000  # free lists still fill; over 10^4 updates that is 4 bytes each


@pytest.mark.parametrize("estimator", FORWARD.values(), ids=FORWARD)
def test_bad_input(estimator):
    problem = CELLS["rnn"](steps=3)
    step, one = step_of(problem), estimator()
    learned = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    check(lambda: one(step, problem.inputs, learned), VALUES, "a state that requires grad", "Compute it in the step")
    encoded = problem.inputs.clone().requires_grad_() * 2
    check(lambda: one(step, encoded, problem.state), VALUES, "inputs that require grad", "pass it detached")
    spectrum = torch.zeros(2, dtype=torch.complex128)
    check(lambda: one(step, problem.inputs, spectrum), VALUES, "complex", "view_as_real")
    list(one.stream(step, problem.inputs, problem.state))
    saved, other = one.state_dict(), CELLS["lstm"](steps=3)
    fresh = estimator()
    fresh.load_state_dict(saved)
    fresh.at = [leaf.clone() for leaf in other.state]  # as if the other model's state were the saved one
    check(lambda: next(fresh.stream(step_of(other), other.inputs, other.state)), VALUES, "shapes", r"reset\(\)")


def test_rtrl_says_what_memory_a_large_state_would_take():
    layer = torch.nn.LSTM(256, 512)

    def step(inputs, state, links):
        out, state = layer(inputs, state)
        return out.square().sum(), state

    # 64 lanes · 2 · 512 numbers of state, 4·512·(256 + 512 + 2) parameters, 4 bytes each
    expected = 64 * 1024 * 4 * 512 * 770 * 4 / 2**30
    check(lambda: RTRL()(step, torch.zeros(1, 64, 256), None), VALUES, f"{expected:,.1f} GiB", r"UORO\(\)")
    small = CELLS["rnn"](steps=2)
    check(lambda: RTRL(limit=100)(step_of(small), small.inputs, small.state), VALUES, "limit", "limit=")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda estimator: estimator.state_dict()])
def test_no_copy_where_parameters_were_met_in_several_steps(copied):
    """Another order would give each influence to the wrong one, in silence."""
    a, b = (torch.tensor(value, requires_grad=True) for value in (0.5, 0.3))

    def cell(x, state):
        state = b * state + 1 if x < 0 else a * state + b * state
        return state.square(), state

    inputs = torch.tensor([-1.0, 1.0, 1.0])
    estimator = RTRL()
    stream = estimator.stream(artbp.unroll(cell), inputs, torch.ones(()))
    next(stream)
    copied(estimator)  # one step, one order
    next(stream)
    check(lambda: copied(estimator), RuntimeError, r"met its parameters in several steps", r"parameters=list")
    named = RTRL(parameters=[a, b])
    for _ in named.stream(artbp.unroll(cell), inputs, torch.ones(())):
        copied(named)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
@pytest.mark.parametrize("estimator", FORWARD)
def test_a_copy_that_was_given_parameters_needs_its_model(estimator, copied):
    """Without it the gradients would go to copies that no model has, and the model would get none."""
    model = torch.nn.RNNCell(2, 3)
    inputs, state = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(3)

    def run(model, estimator, state):
        def cell(x, state):
            state = model(x, state)
            return state.square().sum(), state

        model.zero_grad()
        *_, (_, state) = estimator.stream(artbp.unroll(cell), inputs, state)
        return state, [parameter.grad for parameter in model.parameters()]

    one = FORWARD[estimator](list(model.parameters()))
    state, _ = run(model, one, state)
    alone, (other, along) = copied(one), copied((model, one))
    shallow, anew = copy.copy(one), FORWARD[estimator](list(model.parameters()))
    anew.load_state_dict(one.state_dict())
    for _ in range(2):  # refused until it has its model
        check(lambda: run(model, alone, state), RuntimeError, r"is a copy.*none of them", r"deepcopy.*load.*state_dict")
    generator = one.generator.get_state()
    _, expected = run(model, one, state)
    expected = [gradient.clone() for gradient in expected]
    assert all(gradient.abs().sum() > 0 for gradient in expected)
    for model_of_it, its in ((other, along), (model, shallow), (model, anew)):
        its.generator.set_state(generator)  # which a shallow copy shares
        _, found = run(model_of_it, its, state)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
