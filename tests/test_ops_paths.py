"""Every path against the specification in float64: outputs, final states and all gradients."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from recurrences import GATES, KINDS, distance, draw, evaluate, specified

from artbp.ops import batched, dispatch, naive, onednn

MODES = tuple(GATES)
SIZES = [(1, 1, 1, 1), (2, 3, 4, 5), (17, 65, 3, 9), (40, 4, 33, 31)]  # (T, B, I, H)
LARGE = [(513, 2, 3, 7), (3, 5, 1030, 40), (2, 16, 7, 1030), (64, 33, 20, 130)]


@pytest.fixture(autouse=True)
def _poisoned_buffers() -> Iterator[None]:
    """torch.empty returns nan, so that what is read before it is written shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES)
def test_batched_agrees_in_float64(mode: str, size: tuple[int, int, int, int], kind: str) -> None:
    problem = draw(mode, *size, links=kind, bias=size[0] != 2)
    assert distance(evaluate(batched.recurrence, problem), specified(problem)) <= 1e-10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_batched_agrees_with_a_projection(bias: bool, kind: str) -> None:
    problem = draw("LSTM", 9, 3, 4, 6, projection=2, links=kind, bias=bias)
    assert distance(evaluate(batched.recurrence, problem), specified(problem)) <= 1e-10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES[1:])
def test_batched_agrees_in_float32(mode: str, size: tuple[int, int, int, int], kind: str) -> None:
    problem = draw(mode, *size, links=kind, dtype=torch.float32)
    assert distance(evaluate(batched.recurrence, problem, torch.float32), specified(problem)) <= 2e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bias", [True, False])
def test_onednn_agrees_in_float32(size: tuple[int, int, int, int], bias: bool, kind: str) -> None:
    problem = draw("LSTM", *size, links=kind, bias=bias, dtype=torch.float32)
    assert distance(evaluate(onednn.recurrence, problem, torch.float32), specified(problem)) <= 2e-6


@pytest.mark.parametrize("path", [onednn.recurrence, batched.recurrence])
@pytest.mark.parametrize("size", LARGE)
def test_large_and_long_layers_agree(path: object, size: tuple[int, int, int, int]) -> None:
    problem = draw("LSTM", *size, links="lanes" if size[0] < 64 else "shared", dtype=torch.float32)
    assert distance(evaluate(path, problem, torch.float32), specified(problem)) <= 2e-6


@pytest.mark.parametrize("kind", ["shared", "lanes", "compensated lanes"])
@pytest.mark.parametrize("mode", MODES)
def test_bfloat16_is_no_worse_than_the_stock_layer(mode: str, kind: str) -> None:
    problem = draw(mode, 40, 16, 32, 64, links=kind, dtype=torch.bfloat16)
    found = distance(evaluate(dispatch.recurrence, problem, torch.bfloat16), specified(problem))
    plain = draw(mode, 40, 16, 32, 64, links=None, dtype=torch.bfloat16)
    stock = distance(evaluate(_stock, plain, torch.bfloat16), specified(plain))
    assert found <= 1e-2
    assert found <= 1.25 * stock


def _stock(mode: str, x: torch.Tensor, hx: tuple, weights: tuple, links: None) -> tuple:
    if mode == "LSTM":
        y, h, c = torch._VF.lstm(x, [state[None] for state in hx], list(weights), True, 1, 0.0, True, False, False)
        return y, (h[0], c[0])
    function = {"GRU": torch._VF.gru, "RNN_TANH": torch._VF.rnn_tanh, "RNN_RELU": torch._VF.rnn_relu}[mode]
    y, h = function(x, hx[0][None], list(weights), True, 1, 0.0, True, False, False)
    return y, (h[0],)


@pytest.mark.parametrize("mode", MODES)
def test_fresh_random_sizes_agree(mode: str) -> None:
    """Sizes and values that no one has looked at; the seed is in the message."""
    seed = int.from_bytes(os.urandom(6))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(6):
        T, B, I, H = (int(torch.randint(1, 40, (), generator=generator)) for _ in range(4))
        kind = KINDS[int(torch.randint(len(KINDS), (), generator=generator))]
        problem = draw(mode, T, B, I, H, links=kind, seed=seed)
        expected = specified(problem)
        assert distance(evaluate(batched.recurrence, problem), expected) <= 1e-10, (seed, T, B, I, H, kind)
        single = draw(mode, T, B, I, H, links=kind, dtype=torch.float32, seed=seed)
        expected = specified(single)
        bound = max(2e-6, 3 * distance(evaluate(naive.recurrence, single, torch.float32), expected))
        found = distance(evaluate(dispatch.recurrence, single, torch.float32), expected)
        assert found <= bound, (seed, T, B, I, H, kind)


@pytest.mark.parametrize("path", [onednn.recurrence, batched.recurrence])
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("per_lane", [False, True])
def test_outputs_no_one_uses_have_no_gradient(path: object, per_lane: bool, used: tuple[int, ...]) -> None:
    """A loss on the final cell alone, on the outputs alone, and so on: missing gradients are zeros."""
    links = torch.tensor([1.0, 1.2, 0.0, 1.1, 1.3, 1.0], dtype=torch.float64)
    problem = draw("LSTM", 6, 2, 3, 4, links=torch.stack((links, links.roll(1)), 1) if per_lane else links)
    leaves = [tensor.float().requires_grad_() for tensor in problem.inputs]
    y, final = path("LSTM", leaves[0], tuple(leaves[1:3]), tuple(leaves[3:]), problem.links)
    outputs = (y, *final)
    adjoints = [problem.adjoints[i].float() for i in used]
    found = torch.autograd.grad([outputs[i] for i in used], leaves, adjoints, materialize_grads=True)
    wide = [tensor.clone().requires_grad_() for tensor in problem.inputs]
    y, final = naive.recurrence("LSTM", wide[0], tuple(wide[1:3]), tuple(wide[3:]), problem.links)
    outputs = (y, *final)
    adjoints = [problem.adjoints[i] for i in used]
    expected = torch.autograd.grad([outputs[i] for i in used], wide, adjoints, materialize_grads=True)
    assert distance(list(found), list(expected)) <= 2e-6


@pytest.mark.parametrize("path", [onednn.recurrence, batched.recurrence])
@pytest.mark.parametrize("kept", range(7))
@pytest.mark.parametrize("kind", ["shared", "lanes"])
def test_only_what_requires_grad_gets_one(path: object, kind: str, kept: int) -> None:
    problem = draw("LSTM", 6, 2, 3, 4, links=kind, seed=3, dtype=torch.float32)
    expected = specified(problem)[3 + kept]
    leaves = [tensor.float().requires_grad_(i == kept) for i, tensor in enumerate(problem.inputs)]
    y, final = path("LSTM", leaves[0], tuple(leaves[1:3]), tuple(leaves[3:]), problem.links)
    adjoints = [adjoint.float() for adjoint in problem.adjoints]
    found = torch.autograd.grad((y, *final), leaves[kept], adjoints)
    assert distance(list(found), [expected]) <= 2e-6


@pytest.mark.parametrize("path", [onednn.recurrence, batched.recurrence])
@pytest.mark.parametrize("kind", ["shared", "lanes"])
def test_tensors_may_lie_in_memory_as_they_like(path: object, kind: str) -> None:
    problem = draw("LSTM", 6, 2, 3, 4, links=kind, seed=3, dtype=torch.float32)
    turned = [torch.stack((tensor, tensor), -1)[..., 0].mT.contiguous().mT if tensor.dim() > 1 else tensor
              for tensor in problem.inputs]  # fmt: skip
    problem = type(problem)("LSTM", turned[0], tuple(turned[1:3]), tuple(turned[3:]), problem.links, problem.adjoints)
    assert not problem.hx[0].is_contiguous()
    assert distance(evaluate(path, problem, torch.float32), specified(problem)) <= 2e-6


@pytest.mark.parametrize("path", [onednn.recurrence, batched.recurrence])
def test_the_backward_can_be_run_twice(path: object) -> None:
    problem = draw("LSTM", 6, 2, 3, 4, links="shared", dtype=torch.float32)
    leaves = [tensor.float().requires_grad_() for tensor in problem.inputs]
    y, final = path("LSTM", leaves[0], tuple(leaves[1:3]), tuple(leaves[3:]), problem.links)
    adjoints = [adjoint.float() for adjoint in problem.adjoints]
    first = torch.autograd.grad((y, *final), leaves, adjoints, retain_graph=True)
    second = torch.autograd.grad((y, *final), leaves, adjoints)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["shared", "lanes"])
def test_double_backward_is_the_specifications(mode: str, kind: str) -> None:
    problem = draw(mode, 4, 2, 3, 2, links=kind, seed=5)
    assert _second_order(batched.recurrence, problem, torch.float64) <= 1e-10


@pytest.mark.parametrize("kind", ["shared", "lanes"])
def test_double_backward_of_onednn_is_the_specifications(kind: str) -> None:
    problem = draw("LSTM", 4, 2, 3, 2, links=kind, seed=5, dtype=torch.float32)
    assert _second_order(onednn.recurrence, problem, torch.float32) <= 2e-6


def _second_order(path: object, problem: object, dtype: torch.dtype) -> float:
    def derivative(run: object, kind: torch.dtype) -> list[torch.Tensor]:
        leaves = [tensor.detach().to(kind).requires_grad_() for tensor in problem.inputs]
        states = len(problem.hx)
        hx, weights = tuple(leaves[1 : 1 + states]), tuple(leaves[1 + states :])
        y, final = run(problem.mode, leaves[0], hx, weights, problem.links)
        adjoints = [adjoint.to(kind).requires_grad_() for adjoint in problem.adjoints]
        first = torch.autograd.grad((y, *final), leaves, adjoints, create_graph=True, materialize_grads=True)
        penalty = sum((gradient.square().sum() for gradient in first), start=torch.zeros((), dtype=kind))
        return list(torch.autograd.grad(penalty, [*leaves, *adjoints], materialize_grads=True))

    return distance(derivative(path, dtype), derivative(naive.recurrence, torch.float64))
