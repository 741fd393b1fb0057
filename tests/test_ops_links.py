"""What links must never do: leak through a cut, leave float32's range, fade in low precision, or bias the gradient."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from recurrences import GATES, Problem, distance, draw, evaluate, specified

import artbp
from artbp.ops import _weights, batched, naive, onednn

MODES = tuple(GATES)
PATHS = [(mode, batched.recurrence, torch.float64) for mode in MODES] + [("LSTM", onednn.recurrence, torch.float32)]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}


def _unbiasedness(problem: Problem, path: Any, dtype: torch.dtype, patterns: list[tuple[float, torch.Tensor]]) -> float:
    """How far the mean over all patterns of cuts, with their probabilities, is from plain backpropagation."""
    expectation: list[torch.Tensor] | None = None
    for probability, links in patterns:
        found = evaluate(path, Problem(problem.mode, *_parts(problem), links, problem.adjoints), dtype)
        weighted = [probability * gradient.double() for gradient in found]
        expectation = weighted if expectation is None else [a + b for a, b in zip(expectation, weighted, strict=True)]
    assert expectation is not None
    return distance(expectation, specified(problem))


def _parts(problem: Problem) -> tuple[Any, Any, Any]:
    return problem.x, problem.hx, problem.weights


def _patterns(hazards: list[float], lanes: int | None, factor: float = 1.0) -> list[tuple[float, torch.Tensor]]:
    """Every pattern of cuts at steps 1..T-1, compensated by factor / (1 - c); the first edge is no cut."""
    edges = len(hazards) * (lanes or 1)
    chances = torch.tensor(hazards, dtype=torch.float64).repeat_interleave(lanes or 1)
    found = []
    for cuts in itertools.product((False, True), repeat=edges):
        cut = torch.tensor(cuts)
        probability = torch.where(cut, chances, 1 - chances).prod().item()
        links = torch.where(cut, torch.zeros_like(chances), factor / (1 - chances))
        if lanes is not None:
            links = links.view(-1, lanes)
        found.append((probability, torch.cat([torch.ones_like(links[:1]), links])))
    return found


@pytest.mark.parametrize(("mode", "path", "dtype"), PATHS)
def test_exactly_unbiased_over_all_cuts(mode: str, path: Any, dtype: torch.dtype) -> None:
    problem = draw(mode, 7, 2, 3, 4, links=None, dtype=dtype, seed=1)
    patterns = _patterns([0.3, 0.2, 0.5, 0.1, 0.25, 0.4], None)
    assert sum(probability for probability, _ in patterns) == pytest.approx(1)
    assert _unbiasedness(problem, path, dtype, patterns) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("mode", "path", "dtype"), PATHS)
def test_exactly_unbiased_over_all_cuts_of_each_lane(mode: str, path: Any, dtype: torch.dtype) -> None:
    problem = draw(mode, 4, 2, 3, 4, links=None, dtype=dtype, seed=2)
    assert _unbiasedness(problem, path, dtype, _patterns([0.3, 0.2, 0.5], 2)) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("mode", "path", "dtype"), PATHS)
def test_the_enumeration_sees_a_bias(mode: str, path: Any, dtype: torch.dtype) -> None:
    """Compensation one percent short: the tests above would notice."""
    problem = draw(mode, 4, 2, 3, 4, links=None, dtype=dtype, seed=2)
    assert _unbiasedness(problem, path, dtype, _patterns([0.3, 0.2, 0.5], None, factor=0.99)) > 1e-4


@pytest.mark.parametrize("behind", [float("inf"), float("nan")])
@pytest.mark.parametrize("per_lane", [False, True])
@pytest.mark.parametrize(("mode", "path", "dtype"), PATHS)
@pytest.mark.parametrize("output", [0, -1])
def test_a_cut_is_an_exact_zero(
    mode: str, path: Any, dtype: torch.dtype, per_lane: bool, behind: float, output: int
) -> None:
    """Inf or nan arrives behind lane 0's cut at step 3, at an output or a final state: nothing of it before the cut."""
    T, B, cut = 6, 2, 3
    links = torch.full((T, B) if per_lane else (T,), 1.1, dtype=torch.float64)
    links[(cut, 0) if per_lane else cut] = 0.0
    problem = draw(mode, T, B, 3, 4, links=links, seed=4, dtype=dtype)
    clean = specified(problem)
    adjoints = [adjoint.clone() for adjoint in problem.adjoints]
    adjoints[output][(cut + 1, 0) if output == 0 else 0] = behind
    found = evaluate(path, Problem(mode, *_parts(problem), links, tuple(adjoints)), dtype)
    states = len(problem.hx)
    x_gradient, x_clean = found[1 + states], clean[1 + states]
    assert not x_gradient[cut, 0].isfinite().all()
    assert distance([x_gradient[:cut, 0]], [x_clean[:cut, 0]]) <= TOLERANCE[dtype]
    for state, expected in zip(found[2 + states : 2 + 2 * states], clean[2 + states :], strict=False):
        assert distance([state[0]], [expected[0]]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("per_lane", [False, True])
@pytest.mark.parametrize(("mode", "path", "dtype"), PATHS)
def test_nothing_crosses_a_cut(mode: str, path: Any, dtype: torch.dtype, per_lane: bool) -> None:
    """A loss on the last step alone: before the cut every gradient is zero, not merely small."""
    T, B, cut = 6, 3, 2
    links = torch.full((T, B) if per_lane else (T,), 1.5, dtype=torch.float64)
    links[cut] = 0.0
    problem = draw(mode, T, B, 3, 4, links=links, seed=4)
    adjoints = [torch.zeros_like(adjoint) for adjoint in problem.adjoints]
    adjoints[0][-1] = 1e6
    found = evaluate(path, Problem(mode, *_parts(problem), links, tuple(adjoints)), dtype)
    states = len(problem.hx)
    assert (found[1 + states][:cut] == 0).all()
    assert (found[1 + states][cut:] != 0).any()
    assert all((state == 0).all() for state in found[2 + states : 2 + 2 * states])


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize(("mode", "path", "dtype"), PATHS)
def test_nothing_crosses_the_cut_of_one_lane(mode: str, path: Any, dtype: torch.dtype, last_only: bool) -> None:
    """Lane 1 is cut, the others are not; what lies behind is 1e15 times as large as before the cut, or all there is."""
    T, B, cut = 8, 3, 5
    links = torch.full((T, B), 1.5, dtype=torch.float64)
    links[cut, 1] = 0.0
    problem = draw(mode, T, B, 3, 4, links=links, seed=4, dtype=dtype)
    adjoints = [torch.zeros_like(adjoint) for adjoint in problem.adjoints]
    adjoints[0][-1] = 1e15
    if not last_only:
        adjoints[0][:cut] = problem.adjoints[0][:cut]
    found = evaluate(path, Problem(mode, *_parts(problem), links, tuple(adjoints)), dtype)
    adjoints[0][-1, 1] = 0.0
    alone = evaluate(path, Problem(mode, *_parts(problem), links, tuple(adjoints)), dtype)
    states = len(problem.hx)
    x, x_alone = found[1 + states], alone[1 + states]
    assert torch.equal(x[:cut, 1], x_alone[:cut, 1])
    assert (x[:cut, 1] == 0).all() == last_only
    assert mode == "RNN_RELU" or (x[:cut, 0] != 0).any()  # a relu may be shut
    for state, expected in zip(found[2 + states : 2 + 2 * states], alone[2 + states :], strict=False):
        assert torch.equal(state[1], expected[1])
        assert (state[1] == 0).all() == last_only


@pytest.mark.parametrize("links", [1.0, 2.0, 3.0])
def test_nothing_crosses_the_cuts_of_lanes_where_adjoints_grow(links: float) -> None:
    """What arrives is of one size everywhere; what is carried doubles at every step, by the weights or by the links."""
    T, B, cut = 64, 2, 8
    x = torch.zeros(T, B, 1)
    w_ih, w_hh = torch.zeros(4, 1), torch.zeros(4, 1)
    w_ih[2], w_hh[2] = 1.0, 6.0 if links == 1.0 else 1.0
    factors = torch.full((T, B), links, dtype=torch.float64)
    factors[cut] = 0.0

    def gradients(path: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in (x, torch.zeros(B, 1), torch.zeros(B, 1))]
        y, _ = path("LSTM", leaves[0], tuple(leaves[1:]), (w_ih.to(dtype), w_hh.to(dtype), None, None), factors)
        return list(torch.autograd.grad(y.sum(), leaves))

    for found, expected in zip(
        gradients(onednn.recurrence, torch.float32), gradients(naive.recurrence, torch.float64), strict=True
    ):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0.0)


@pytest.fixture
def _without_the_batched_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*arguments: Any) -> Any:
        raise AssertionError("the batched path was asked for a gradient")

    monkeypatch.setattr(batched, "gradients", unexpected)


@pytest.mark.usefixtures("_without_the_batched_path")
@pytest.mark.parametrize("size", [1e-15, 1e-6, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("mean", [10, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coded_cuts_serve_adjoints_of_any_size(dtype: torch.dtype, mean: int, size: float) -> None:
    T, B = 90, 7
    links = artbp.Truncation(artbp.PowerLaw(mean=mean, alpha=4), seed=3).links(T, B)
    problem = draw("LSTM", T, B, 5, 9, links=links, dtype=dtype)
    scaled = tuple((size * adjoint).to(dtype).double() for adjoint in problem.adjoints)
    problem = Problem("LSTM", *_parts(problem), links, scaled)
    assert distance(evaluate(onednn.recurrence, problem, dtype), specified(problem)) <= _COARSE[dtype]


_COARSE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


@pytest.mark.usefixtures("_without_the_batched_path")
@pytest.mark.parametrize("size", [1e-17, 1e8])
def test_coded_cuts_serve_inputs_of_any_size(size: float) -> None:
    links = artbp.Truncation(artbp.PowerLaw(mean=20, alpha=4), seed=3).links(60, 7)
    problem = draw("LSTM", 60, 7, 5, 9, links=links, dtype=torch.float32)
    problem = _with_inputs_of(size, problem)
    assert distance(evaluate(onednn.recurrence, problem, torch.float32), specified(problem)) <= 2e-6


def test_inputs_that_coded_weights_leave_no_room_for_are_exact_all_the_same() -> None:
    links = artbp.Truncation(artbp.PowerLaw(mean=10, alpha=4), seed=3).links(60, 7)
    problem = _with_inputs_of(1e20, draw("LSTM", 60, 7, 5, 9, links=links, dtype=torch.float32))
    assert distance(evaluate(onednn.recurrence, problem, torch.float32), specified(problem)) <= 2e-6


def _with_inputs_of(size: float, problem: Problem) -> Problem:
    """Inputs times size and W_ih over it, in float32: the layer computes the same."""
    x, (w_ih, *others) = (size * problem.x).float().double(), problem.weights
    weights = ((w_ih / size).float().double(), *others)
    return Problem("LSTM", x, problem.hx, weights, problem.links, problem.adjoints)


@pytest.mark.usefixtures("_without_the_batched_path")
def test_windows_whose_adjoints_differ_in_size_add_up() -> None:
    """Lane 0 is cut at every fourth step, lane 1 never; there what is carried grows from window to window."""
    links = torch.full((40, 2), 1.5, dtype=torch.float64)
    links[::4, 0] = 0.0
    problem = draw("LSTM", 40, 2, 5, 9, links=links, dtype=torch.float32)
    w_ih, w_hh, b_ih, b_hh = problem.weights
    b_ih = b_ih.clone()
    b_ih[9:18] += 3.0  # the forget gate is open
    problem = Problem("LSTM", problem.x, problem.hx, (w_ih, w_hh, b_ih, b_hh), links, problem.adjoints)
    assert len(_weights.coded_windows(links, 2, torch.device("cpu"))) == 3
    assert distance(evaluate(onednn.recurrence, problem, torch.float32), specified(problem)) <= 2e-6


def test_what_arrives_is_looked_at_just_before_the_cuts_of_each_window() -> None:
    links = torch.full((9, 2), 1.5, dtype=torch.float64)
    links[2::6, 0], links[3:7, 1] = 0.0, 0.0
    spans = _weights.coded_windows(links, 2, torch.device("cpu"))
    assert [window.first for window in spans] == [0, 6]
    sizes = 100.0 + torch.arange(18.0).view(9, 2)
    d_y = torch.stack((sizes, torch.zeros(9, 2), -sizes), dim=2)
    assert onednn._arriving(spans, d_y) == (117.0, [sizes[1, 0].item(), sizes[7, 0].item()])
    assert onednn._arriving(spans, None) == (0.0, [0.0, 0.0])


@pytest.mark.parametrize("size", [1e-34, 1e25])
def test_sizes_that_coded_weights_leave_no_room_for_are_exact_all_the_same(size: float) -> None:
    problem = draw("LSTM", 20, 3, 4, 5, links="lanes", dtype=torch.float32)
    scaled = tuple((size * adjoint).float().double() for adjoint in problem.adjoints)
    problem = Problem("LSTM", *_parts(problem), problem.links, scaled)
    assert distance(evaluate(onednn.recurrence, problem, torch.float32), specified(problem)) <= 2e-6


def test_a_coded_cut_that_nothing_hides_would_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look before every cut is needed: without it the tests above fail."""
    monkeypatch.setattr(onednn, "CONTRAST", float("inf"))
    links = torch.ones(6, 2, dtype=torch.float64)
    links[3, 0] = 0.0
    problem = draw("LSTM", 6, 2, 3, 4, links=links, dtype=torch.float32)
    adjoint = torch.zeros_like(problem.adjoints[0])
    adjoint[2, :, 0], adjoint[-1] = 1e-30, 1.0
    states = tuple(torch.zeros_like(state) for state in problem.adjoints[1:])
    x = evaluate(onednn.recurrence, Problem("LSTM", *_parts(problem), links, (adjoint, *states)), torch.float32)[3]
    assert 0 < x[1, 0].abs().max() < 2.0**-40


@pytest.mark.parametrize(("mode", "path", "dtype"), PATHS)
@pytest.mark.parametrize("per_lane", [False, True])
def test_the_first_link_scales_what_leaves_for_the_initial_state(
    mode: str, path: Any, dtype: torch.dtype, per_lane: bool
) -> None:
    T, B = 4, 3
    links = torch.ones((T, B) if per_lane else T, dtype=torch.float64)
    links[0] = torch.tensor([2.0, 0.0, 0.5], dtype=torch.float64) if per_lane else 2.0
    problem = draw(mode, T, B, 3, 4, links=links, dtype=dtype)
    assert distance(evaluate(path, problem, dtype), specified(problem)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("per_lane", [False, True])
@pytest.mark.parametrize("case", ["growing", "fading", "one giant link, and one to undo it"])
def test_products_beyond_float32_split_the_window(case: str, per_lane: bool) -> None:
    """Products of 1e76 and 1e-76: the layer forgets fast enough for the adjoints themselves to stay finite."""
    T, B, H = 160, 2, 4
    links = torch.full((T,), {"growing": 3.0, "fading": 1 / 3.0}.get(case, 1.0), dtype=torch.float64)
    if case.startswith("one"):
        links[100], links[90] = 1e12, 1e-12
    links = links.unsqueeze(1).repeat(1, B) if per_lane else links
    problem = draw("LSTM", T, B, 3, H, links=links, dtype=torch.float32, seed=6)
    w_ih, w_hh, b_ih, b_hh = problem.weights
    b_ih = b_ih.clone()
    b_ih[H : 2 * H] -= 3.0  # the forget gate is nearly shut
    problem = Problem("LSTM", problem.x, problem.hx, (w_ih, 0.1 * w_hh, b_ih, b_hh), links, problem.adjoints)
    expected = specified(problem)
    assert all(gradient.abs().max() < 1e12 for gradient in expected)
    assert distance(evaluate(onednn.recurrence, problem, torch.float32), expected) <= 2e-6
    assert distance(evaluate(batched.recurrence, problem, torch.float32), expected) <= 2e-6


def test_windows_hold_the_weights_they_promise() -> None:
    links = torch.tensor([0.0, 1.0, 1.0, 0.0, 2.0, 0.5, 3.0, 0.0, 0.0, 2.0**20, 2.0**20, 1.5], dtype=torch.float64)
    windows = _weights.windows(links, torch.device("cpu"))
    assert [(window.first, window.last, window.edge) for window in windows] == [
        (0, 3, 0.0),
        (3, 7, 0.0),
        (7, 8, 0.0),
        (8, 10, 0.0),
        (10, 12, 2.0**20),
    ]
    assert windows[0].weights is None
    assert windows[2].weights is None
    assert windows[1].weights is not None
    assert windows[1].weights.flatten().tolist() == [1.0, 2.0, 1.0, 3.0]
    assert windows[1].following is not None
    assert windows[1].following.flatten().tolist() == [2.0, 1.0, 3.0, 1.0]
    assert windows[1].inverse is not None
    assert torch.equal(windows[1].inverse, 1 / windows[1].weights)
    assert windows[0].inverse is None
    assert windows[4].weights is not None
    assert windows[4].weights.flatten().tolist() == [1.0, 1.5]


def test_coded_windows_hold_the_weights_they_promise() -> None:
    links = torch.full((9, 2), 1.5, dtype=torch.float64)
    links[0], links[2::6, 0], links[3:7, 1] = torch.tensor([0.0, 2.0]), 0.0, 0.0
    windows = _weights.coded_windows(links, 2, torch.device("cpu"))
    assert [(window.first, window.last) for window in windows] == [(0, 6), (6, 9)]  # lane 1 is cut four times in a row
    for window in windows:
        assert window.weights is not None
        assert window.following is not None
        inside = links[window.first : window.last].clone()
        assert window.before is not None
        steps, lanes = (inside[1:] == 0).nonzero(as_tuple=True)
        assert window.before[0].tolist() == steps.tolist()
        assert window.before[1].tolist() == lanes.tolist()
        inside[inside == 0] = _weights.CUT
        w = window.weights.squeeze(2).double()
        assert torch.allclose(w[1:] / w[:-1], inside[1:], rtol=1e-6)
        assert w.min() >= _weights.LOW
        assert w.max() <= _weights.HIGH
        assert (w[0] == window.start).all()
        assert torch.equal(window.following[:-1], window.weights[1:])
        assert torch.equal(torch.as_tensor(window.edge), links[window.first])


@pytest.mark.usefixtures("_without_the_batched_path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_lane_codes_its_cuts_whatever_the_shape_of_its_links(dtype: torch.dtype) -> None:
    links = artbp.Truncation(artbp.PowerLaw(mean=8, alpha=4), seed=3).links(60)
    cuts = int((links == 0).sum())
    assert len(_weights.windows(links, torch.device("cpu"))) == cuts + 1 > 4
    assert len(_weights.coded_windows(links, 1, torch.device("cpu"))) == cuts // 4 + 1
    assert len(_weights.coded_windows(links, 2, torch.device("cpu"))) == cuts + 1
    found = []
    for given in (links, links.unsqueeze(1)):
        problem = draw("LSTM", 60, 1, 5, 9, links=given, dtype=dtype)
        found.append(evaluate(onednn.recurrence, problem, dtype))
        assert distance(found[-1], specified(problem)) <= _COARSE[dtype]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("behind", [float("inf"), float("nan"), 1e30])
@pytest.mark.parametrize("size", [0.0, 1.0])
def test_nothing_crosses_the_cut_of_a_single_lane(behind: float, size: float) -> None:
    links = torch.full((9,), 1.1, dtype=torch.float64)
    links[5] = 0.0
    problem = draw("LSTM", 9, 1, 3, 4, links=links, dtype=torch.float32)
    adjoints = tuple(size * adjoint for adjoint in problem.adjoints)
    expected = specified(Problem("LSTM", *_parts(problem), links, adjoints))
    adjoints[0][7] = behind
    found = evaluate(onednn.recurrence, Problem("LSTM", *_parts(problem), links, adjoints), torch.float32)
    torch.testing.assert_close(found[3][:5].double(), expected[3][:5], rtol=1e-5, atol=1e-7 * size)
    for state, wanted in zip(found[4:6], expected[4:6], strict=True):
        torch.testing.assert_close(state.double(), wanted, rtol=1e-5, atol=1e-7 * size)


def test_links_per_lane_without_cuts_need_no_code() -> None:
    (window,) = _weights.coded_windows(torch.full((9, 2), 1.5, dtype=torch.float64), 2, torch.device("cpu"))
    assert window.before is None
    assert window.start == 1.0
    assert window.weights is not None
    assert window.weights[0].tolist() == [[1.0], [1.0]]


def test_known_windows_are_forgotten_with_their_links() -> None:
    links = torch.rand(7, 3, dtype=torch.float64)
    before = len(_weights._known)
    _weights.coded_windows(links, 3, torch.device("cpu"))
    _weights.windows(links, torch.device("cpu"))
    assert len(_weights._known) == before + 2
    del links
    assert len(_weights._known) <= before


def test_windows_are_those_of_the_links_given_not_of_the_last() -> None:
    links = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    assert len(_weights.windows(links, torch.device("cpu"))) == 1
    links[1] = 0.0
    assert len(_weights.windows(links, torch.device("cpu"))) == 2
    assert len(_weights.windows(torch.ones(3, dtype=torch.float64), torch.device("cpu"))) == 1


def test_per_lane_windows_end_where_any_lane_does() -> None:
    links = torch.full((6, 2), 1.5, dtype=torch.float64)
    links[2, 0] = links[5, 1] = 0.0
    windows = _weights.windows(links, torch.device("cpu"))
    assert [(window.first, window.last) for window in windows] == [(0, 2), (2, 5), (5, 6)]


def test_the_longest_segment_keeps_its_precision() -> None:
    """Twenty times the mean of PowerLaw(50, 4): 1,000 steps whose links multiply to 1 / P(length > 1000)."""
    ages = torch.arange(1, 1000, dtype=torch.float64)
    hazard = 3.0 / (2.0 * 50.0 + ages)
    links = torch.cat([torch.zeros(1, dtype=torch.float64), 1 / (1 - hazard)])
    problem = draw("LSTM", 1000, 2, 4, 8, links=links, dtype=torch.float32, seed=7)
    expected = specified(problem)
    assert distance(evaluate(onednn.recurrence, problem, torch.float32), expected) <= 2e-6
    assert distance(evaluate(batched.recurrence, problem, torch.float32), expected) <= 2e-6


@pytest.mark.parametrize("per_lane", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["RNN_RELU", "LSTM", "GRU"])
def test_low_precision_carries_factors_below_its_resolution(mode: str, dtype: torch.dtype, per_lane: bool) -> None:
    """Links of 1.0015 over 2,000 steps weigh 20.0 in all; rounded to bfloat16 at every step they would weigh 1."""
    T, B, H = 2000, 2, 2
    hx, weights = _identity(mode, B, H)
    links = torch.full((T, B) if per_lane else (T,), 1.0015, dtype=torch.float64)
    x = torch.zeros(T, B, 1, dtype=dtype)
    for path in (batched.recurrence, *([onednn.recurrence] if mode == "LSTM" and dtype is torch.bfloat16 else [])):
        leaves = [state.to(dtype).requires_grad_() for state in hx]
        _, final = path(mode, x, tuple(leaves), tuple(weight.to(dtype) for weight in weights), links)
        _, plain = naive.recurrence(mode, x.double(), states := tuple(s.double().requires_grad_() for s in hx),
                                    tuple(w.to(dtype).double() for w in weights), None)  # fmt: skip
        carried = torch.autograd.grad(final[-1].sum(), leaves[-1])[0].double()
        unweighted = torch.autograd.grad(plain[-1].sum(), states[-1])[0]
        assert (carried / unweighted / 1.0015**T - 1).abs().max() <= 0.01


def _identity(mode: str, B: int, H: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A layer that hands its state on as it is, so that the gradient of h0 is the product of the links."""
    rows = GATES[mode] * H
    w_hh, b_ih = torch.zeros(rows, H), torch.zeros(rows)
    if mode == "RNN_RELU":
        w_hh = torch.eye(H)
    elif mode == "LSTM":
        b_ih[H : 2 * H] = 30.0  # the forget gate is open
    else:
        b_ih[H : 2 * H] = 30.0  # z = 1: the state is kept
    hx = [torch.ones(B, H) for _ in range(2 if mode == "LSTM" else 1)]
    return hx, [torch.zeros(rows, 1), w_hh, b_ih, torch.zeros(rows)]
