"""The GPU paths of the layers against the specification in float64, and the Triton kernels in interpreter mode."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from recurrences import beside
from torch import Tensor

from artbp.ops import naive
from artbp.ops._types import GATES, MODES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="these paths run on a CUDA GPU, and none is here")

TOLERANCE = {"fp32": 2e-6, "tf32": 1e-3, "bf16": 1e-2}
# T, B, I, H: odd in every place, one of everything, several blocks of lanes and of units.
SIZES = [(1, 1, 1, 1), (7, 3, 5, 17), (33, 65, 30, 64), (50, 16, 20, 128), (20, 33, 64, 250), (12, 64, 16, 512)]
LARGE = [(9, 5, 8, 1030), (17, 64, 32, 1000)]
# What exists: the two forms of our own for every mode, cuDNN for the LSTM.
FUSED = list(product(["scan", "graphs"], MODES))
every_path = pytest.mark.parametrize(("name", "mode"), [*FUSED, ("cudnn", "LSTM")])
fused_paths = pytest.mark.parametrize(("name", "mode"), FUSED)


@pytest.fixture(params=["fp32", "tf32", "bf16"])
def kind(request):
    rnn = torch.backends.cudnn.rnn
    if hasattr(rnn, "fp32_precision"):
        before = rnn.fp32_precision
        rnn.fp32_precision = "tf32" if request.param == "tf32" else "ieee"
        yield request.param
        rnn.fp32_precision = before
        return
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = request.param == "tf32"
    yield request.param
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(autouse=True)
def poisoned():
    """Whatever torch.empty hands out is nan: a kernel that leaves a hole cannot pass."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def path(name: str):
    from artbp.ops import cudnn, fused

    return {"scan": fused.scan, "graphs": fused.graphs, "cudnn": cudnn.recurrence, "auto": fused.recurrence}[name]


def problem(size, kind: str, seed: int = 0, mode: str = "LSTM"):
    """x, hx and weights on the GPU, leaves, with values that bf16 represents where bf16 is what is tested."""
    T, B, I, H = size
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to("cuda", dtype).requires_grad_()

    scale, rows = H**-0.5, GATES[mode] * H
    if rows == H:
        scale /= 3**0.5  # that of torch.nn's initial weights; beyond it a plain network is chaotic, and rounding grows
    x, hx = draw(T, B, I), tuple(draw(B, H) for _ in range(2 if mode == "LSTM" else 1))
    weights = tuple(draw(*shape, scale=scale) for shape in ((rows, I), (rows, H), (rows,), (rows,)))
    return x, hx, weights


def draw_links(which: str, T: int, B: int, seed: int = 0) -> Tensor | None:
    generator = torch.Generator().manual_seed(seed)
    if which == "none":
        return None
    if which == "ones":
        return torch.ones(T, dtype=torch.float64)
    if which == "large":  # as in a segment of 20 times the mean
        return torch.full((T,), 1.0, dtype=torch.float64) + 2.0 / (1 + torch.arange(T, dtype=torch.float64))
    shape = (T,) if which == "shared" else (T, B)
    links = 1.0 + 0.2 * torch.rand(*shape, generator=generator, dtype=torch.float64)
    links[torch.rand(*shape, generator=generator) < 0.15] = 0.0
    return links


def run(function, x, hx, weights, links, seed: int = 1, mode: str = "LSTM", double: bool = False):
    """y, the final states and all gradients of a random linear loss of both."""
    inputs = [x, *hx, *weights]
    leaves = [t.detach().double().requires_grad_() if double else t for t in inputs]
    y, final = function(mode, leaves[0], tuple(leaves[1 : 1 + len(hx)]), tuple(leaves[1 + len(hx) :]), links)
    generator = torch.Generator().manual_seed(seed)
    outputs = [y, *final]
    arriving = [torch.randn(out.shape, generator=generator).to(x.dtype).to(out.device, out.dtype) for out in outputs]
    gradients = torch.autograd.grad(outputs, leaves, arriving, allow_unused=True)
    filled = [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, leaves, strict=True)]
    return [out.detach() for out in outputs], filled


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp_min(1e-300))


def compare(name: str, size, kind: str, which: str, mode: str = "LSTM") -> dict[str, float]:
    x, hx, weights = problem(size, kind, mode=mode)
    links = draw_links(which, size[0], size[1])
    outputs, gradients = run(path(name), x, hx, weights, links, mode=mode)
    exact_outputs, exact_gradients = run(beside(outputs[0]), x, hx, weights, links, mode=mode, double=True)
    states = ["h", "c"][: len(hx)]
    names = ["y", *(f"{state}_n" for state in states), "x", *(f"{state}_0" for state in states)]
    names += ["w_ih", "w_hh", "b_ih", "b_hh"]
    return {
        key: error(a, b)
        for key, a, b in zip(names, outputs + gradients, exact_outputs + exact_gradients, strict=True)
        if b.abs().sum() > 0 or a.abs().sum() > 0
    }


@pytest.mark.parametrize("which", ["none", "ones", "shared", "lanes", "large"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", ["scan", "graphs", "cudnn"])
def test_every_gradient_agrees_with_the_specification(name, size, which, kind):
    if (name, kind) == ("cudnn", "bf16"):
        pytest.skip("the path over cuDNN serves float32 only: inside a window the adjoint would be bf16")
    check(name, size, kind, which, "LSTM")


@pytest.mark.parametrize("which", ["shared", "lanes"])
@pytest.mark.parametrize("size", [(1, 1, 3, 5), SIZES[1], SIZES[4], SIZES[5]], ids=str)
@pytest.mark.parametrize(("name", "mode"), [each for each in FUSED if each[1] != "LSTM"])
def test_every_gradient_of_gru_and_rnn_agrees_with_the_specification(name, mode, size, which, kind):
    check(name, size, kind, which, mode)


def check(name: str, size, kind: str, which: str, mode: str) -> None:
    errors = compare(name, size, kind, which, mode)
    allowed = TOLERANCE[kind]
    if size[:2] == (1, 1):
        allowed *= 30  # single numbers, with little of a norm over which rounding could average
    if (name, kind) == ("cudnn", "fp32"):
        allowed = max(allowed, 1e-5)  # cuDNN's own error against float64 is 7e-6 at these sizes, without any links
    assert max(errors.values()) <= allowed, errors


@every_path
def test_states_may_lie_in_memory_as_they_like(name, mode):
    x, hx, weights = problem((7, 3, 5, 17), "fp32", mode=mode)
    links = draw_links("lanes", 7, 3)
    turned = tuple(state.detach().t().contiguous().t().requires_grad_() for state in hx)
    assert not turned[0].is_contiguous()
    expected = run(path(name), x, hx, weights, links, mode=mode)
    found = run(path(name), x, turned, weights, links, mode=mode)
    for a, b in zip(found[0] + found[1], expected[0] + expected[1], strict=True):
        assert torch.equal(a, b)


@fused_paths
def test_a_gradient_may_begin_anywhere_in_memory(name, mode):
    """As a view into that of a concatenation: at an address that is no multiple of what a vector load takes."""
    x, hx, weights = problem((7, 3, 5, 16), "fp32", mode=mode)
    y, _ = path(name)(mode, x, hx, weights, None)
    arriving = torch.randn(y.numel() + 3, device="cuda")
    odd = arriving[3:].view_as(y)
    assert odd.data_ptr() % 16
    expected = torch.autograd.grad(y, [x, *hx], odd.clone(), retain_graph=True)
    for a, b in zip(torch.autograd.grad(y, [x, *hx], odd), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("which", ["shared", "lanes"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", LARGE, ids=str)
def test_large_layers_agree_with_the_specification(size, mode, which, kind):
    errors = compare("auto", size, kind, which, mode)
    assert max(errors.values()) <= TOLERANCE[kind], errors


@pytest.mark.parametrize("mode", MODES)
def test_a_long_sequence_agrees_with_the_specification(mode, kind):
    errors = compare("auto", (513, 4, 16, 48), kind, "lanes", mode)
    assert max(errors.values()) <= TOLERANCE[kind], errors


@pytest.mark.filterwarnings("ignore:RNN module weights are not part")
@fused_paths
@pytest.mark.parametrize("size", [(50, 64, 40, 256), (64, 16, 40, 128)], ids=str)
def test_errors_are_no_worse_than_those_of_torch(name, mode, size, kind):
    x, hx, weights = problem(size, kind, mode=mode)

    def stock(mode, x, hx, weights, links):
        operator = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}[mode]
        first = tuple(state[None] for state in hx)
        y, *last = operator(x, first if mode == "LSTM" else first[0], weights, True, 1, 0.0, True, False, False)
        return y, tuple(state[0] for state in last)

    def worst(function) -> float:
        outputs, gradients = run(function, x, hx, weights, None, mode=mode)
        exact = run(beside(outputs[0]), x, hx, weights, None, mode=mode, double=True)
        return max(error(a, b) for a, b in zip(outputs + gradients, exact[0] + exact[1], strict=True))

    assert worst(path(name)) <= 1.5 * worst(stock)


@every_path
def test_the_expectation_over_all_cuts_is_the_gradient(name, mode):
    T, c = 5, 0.4
    x, hx, weights = problem((T, 3, 4, 16), "fp32", mode=mode)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        _, exact = run(naive.recurrence, x, hx, weights, None, mode=mode, double=True)
        mean = [torch.zeros_like(g) for g in exact]
        for pattern in range(2**T):
            cut = [(pattern >> t) & 1 == 1 for t in range(T)]
            links = torch.tensor([0.0 if cut_here else 1 / (1 - c) for cut_here in cut], dtype=torch.float64)
            probability = c ** sum(cut) * (1 - c) ** (T - sum(cut))
            _, found = run(path(name), x, hx, weights, links, mode=mode)
            for total, g in zip(mean, found, strict=True):
                total += probability * g.double()
    finally:
        torch.backends.cudnn.allow_tf32 = before
    worst = max(error(a, b) for a, b in zip(mean, exact, strict=True))
    assert worst < (2e-5 if name == "cudnn" else 1e-6)  # cuDNN's own rounding; a bias would be of order one


@fused_paths
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_nothing_crosses_a_cut_not_even_nan(name, mode, bad, kind):
    x, hx, weights = problem((6, 3, 4, 20), kind, mode=mode)
    links = torch.ones(6, 3, dtype=torch.float64)
    links[3, 1] = 0.0
    links[0, 2] = 0.0
    y, _ = path(name)(mode, x, hx, weights, links)
    arriving = torch.ones_like(y)
    arriving[4, 1] = bad
    arriving[2, 2] = bad
    d_x, *d_states = torch.autograd.grad(y, [x, *hx], arriving)
    assert d_x[:3, 1].isfinite().all()
    assert not d_x[3:5, 1].isfinite().all()
    assert d_x[:, 0].isfinite().all()
    assert all((d_state[2] == 0).all() for d_state in d_states)


@fused_paths
@pytest.mark.parametrize("T", [2000])
def test_links_near_one_are_not_swallowed(name, mode, T, kind):
    """A state that keeps its content passes its adjoint on, times 1.0015 at each of 2,000 steps."""
    H, B = 16, 2
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    rows, content = GATES[mode] * H, 0.5
    x = torch.zeros(T, B, 1, device="cuda", dtype=dtype)
    bias = torch.zeros(rows, device="cuda", dtype=dtype)
    w_hh = torch.zeros(rows, H, device="cuda", dtype=dtype)
    if mode == "LSTM":
        bias[:H], bias[H : 2 * H] = -40.0, 40.0
    elif mode == "GRU":
        bias[H : 2 * H] = 40.0
    else:  # the identity, which passes on unrounded what is representable; the slope of tanh is one at zero
        w_hh, content = torch.eye(H, device="cuda", dtype=dtype), 0.0 if mode == "RNN_TANH" else 0.5
    weights = torch.zeros(rows, 1, device="cuda", dtype=dtype), w_hh, bias, torch.zeros_like(bias)
    states = 2 if mode == "LSTM" else 1
    hx = tuple(torch.full((B, H), content, device="cuda", dtype=dtype, requires_grad=True) for _ in range(states))
    links = torch.full((T,), 1.0015, dtype=torch.float64)
    _, final = path(name)(mode, x, hx, weights, links)
    (found,) = torch.autograd.grad(final[-1].float().sum(), [hx[-1]])
    assert torch.allclose(found.double(), torch.full_like(found, 1.0).double() * 1.0015**T, rtol=1e-2)


@fused_paths
def test_a_new_length_costs_neither_a_compilation_nor_a_capture(name, mode):
    from artbp.ops import _graphs, _scan_kernels

    x, hx, weights = problem((40, 3, 4, 20), "fp32", mode=mode)

    def known() -> tuple[int, ...]:
        compiled = [
            sum(len(cache[0]) for cache in kernel.device_caches.values())
            for kernel in (_scan_kernels.forward_scan, _scan_kernels.backward_scan)
        ]
        return *compiled, sum(len(runner.graphs) for runner in _graphs._runners.values())

    def go(T: int) -> None:
        y, _ = path(name)(mode, x[:T], hx, weights, torch.ones(T, dtype=torch.float64))
        y.sum().backward()

    for T in (1, 16, 24, 39, 40):  # together they take a graph of each size
        go(T)
    before = known()
    for T in range(2, 40):
        go(T)
    assert known() == before


@every_path
def test_the_same_graph_may_be_walked_twice_and_differentiated_twice(name, mode):
    x, hx, weights = problem((4, 2, 3, 16), "fp32", mode=mode)
    links = draw_links("shared", 4, 2)
    y, _ = path(name)(mode, x, hx, weights, links)
    (first,) = torch.autograd.grad(y.sum(), [x], retain_graph=True)
    (again,) = torch.autograd.grad(y.sum(), [x], retain_graph=True)
    assert torch.equal(first, again)
    (d_x,) = torch.autograd.grad(y.square().sum(), [x], create_graph=True)
    (second,) = torch.autograd.grad(d_x.square().sum(), [x])
    leaves = [t.detach().double().requires_grad_() for t in (x, *hx, *weights)]
    exact, _ = naive.recurrence(mode, leaves[0], tuple(leaves[1 : 1 + len(hx)]), tuple(leaves[1 + len(hx) :]), links)
    (exact,) = torch.autograd.grad(exact.square().sum(), leaves[:1], create_graph=True)
    (exact,) = torch.autograd.grad(exact.square().sum(), leaves[:1])
    assert error(second, exact) < 2e-3


@fused_paths
def test_an_output_changed_in_place_is_refused_by_backward(name, mode):
    x, hx, weights = problem((4, 2, 3, 16), "fp32", mode=mode)
    y, _ = path(name)(mode, x, hx, weights, None)
    loss = y.sum()
    y.detach().add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@fused_paths
def test_several_streams_do_not_meet_in_one_buffer(name, mode):
    problems = [problem((30, 8, 16, 96), "fp32", seed, mode) for seed in range(3)]
    links = draw_links("lanes", 30, 8)
    alone = [run(path(name), *each, links, mode=mode)[1] for each in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    together = []
    torch.cuda.synchronize()
    for _ in range(5):
        together = []
        for stream, each in zip(streams, problems, strict=True):
            with torch.cuda.stream(stream):
                together.append(run(path(name), *each, links, mode=mode)[1])
    torch.cuda.synchronize()
    for a, b in zip(alone, together, strict=True):
        assert all(error(p, q.double()) < 1e-6 for p, q in zip(b, a, strict=True))


@fused_paths
def test_it_can_be_captured_by_the_user(name, mode):
    x, hx, weights = problem((20, 4, 8, 64), "fp32", mode=mode)
    function = path(name)
    eager, _ = function(mode, x, hx, weights, None)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function(mode, x, hx, weights, None)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            y, _ = function(mode, x, hx, weights, None)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert error(y, eager.detach().double()) < 1e-5
