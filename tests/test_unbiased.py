"""Exact unbiasedness and the exact variance, by enumeration of all cut patterns in float64. Nothing here is sampled."""

import math

import pytest
import torch
from enumeration import (
    age_only,
    allowed_gap,
    backprop_gradient,
    chi_square_probability,
    expectation,
    lane_patterns,
    oracle_gradient,
    patterns,
    relative_error,
    rounded,
    state_dependent,
)
from problems import ALL, CELLS, scalar_linear, scalar_linear_variance, tree_map, tree_tensors

import artbp

STEPS = 6
EXACT = 1e-12

LAWS = {
    "power": lambda: artbp.PowerLaw(mean=3, alpha=4),
    "power_sharp": lambda: artbp.PowerLaw(mean=1.5, alpha=30),
    "geometric": lambda: artbp.Geometric(mean=2.5),
    "tabulated": lambda: artbp.Tabulated([0.0, 0.7, 0.1]),
}


class LooksAtTheState(artbp.Law):
    """Cuts where the state is small; the links follow whatever the hazard was."""

    needs_state = True

    def hazard(self, age, state):
        size = sum(float(tensor.detach().abs().mean()) for tensor in tree_tensors(state))
        return 0.9 * math.exp(-size) / (1.0 + 0.1 * age)


class AnyObject:
    """Not a Law: any object with a hazard will do."""

    def hazard(self, age):
        return 0.5 / age


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_expected_gradient_is_the_full_gradient(problem, law):
    problem = problem(steps=STEPS)
    mean, _ = expectation(problem, patterns(age_only(law()), STEPS), backprop_gradient)
    assert relative_error(mean, problem.exact) <= EXACT


@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_fixed_cuts_are_biased_by_the_same_machinery(problem):
    problem = problem(steps=STEPS)
    mean, variance = expectation(problem, patterns(age_only(artbp.Fixed(3)), STEPS), backprop_gradient)
    assert relative_error(mean, problem.exact) > 0.01
    assert abs(variance) < 1e-9 * sum(float(value.square().sum()) for value in mean.values())  # it is deterministic


@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_uncompensated_random_cuts_are_biased(problem):
    problem = problem(steps=STEPS)
    uncompensated = patterns(age_only(artbp.PowerLaw(mean=3, alpha=4)), STEPS, compensate=False)
    mean, _ = expectation(problem, uncompensated, backprop_gradient)
    assert relative_error(mean, problem.exact) > 0.01


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_windows_keep_it_unbiased(problem, window):
    problem = problem(steps=5)
    mean, _ = expectation(
        problem,
        patterns(age_only(artbp.PowerLaw(mean=3, alpha=4)), 5),
        lambda p, links: backprop_gradient(p, links, window),
    )
    assert relative_error(mean, problem.exact) <= EXACT


@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_a_law_that_looks_at_the_state(problem):
    problem = problem(steps=STEPS)
    _, states = problem.plain()
    hazard = state_dependent(LooksAtTheState(), states)
    assert len({round(hazard(1, edge), 6) for edge in range(1, STEPS)}) > 1  # it does look
    mean, _ = expectation(problem, patterns(hazard, STEPS), backprop_gradient)
    assert relative_error(mean, problem.exact) <= EXACT


@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_lanes_cut_independently(problem):
    problem = problem(steps=4, lanes=2)
    laws = [artbp.PowerLaw(mean=3, alpha=4), artbp.Geometric(mean=2)]
    mean, _ = expectation(problem, lane_patterns(patterns(age_only(law), 4) for law in laws), backprop_gradient)
    assert relative_error(mean, problem.exact) <= EXACT


@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_lanes_with_their_own_hazards_from_the_state(problem):
    problem = problem(steps=4, lanes=2)
    _, states = problem.plain()
    lanes = [[tree_map(lambda tensor, lane=lane: tensor[lane], state) for state in states] for lane in range(2)]
    weighted = lane_patterns(patterns(state_dependent(LooksAtTheState(), lane), 4) for lane in lanes)
    mean, _ = expectation(problem, weighted, backprop_gradient)
    assert relative_error(mean, problem.exact) <= EXACT


@pytest.mark.parametrize("block", [2, 3])
def test_blocks(block):
    problem = CELLS["lstm"](steps=8)
    weighted = list(patterns(rounded(artbp.PowerLaw(mean=3, alpha=4), block), 8))
    assert len(weighted) == 2 ** ((8 - 1) // block)  # cuts at multiples of the block only, as from the start
    mean, _ = expectation(problem, weighted, backprop_gradient)
    assert relative_error(mean, problem.exact) <= EXACT


def test_any_object_with_a_hazard():
    problem = CELLS["gru"](steps=STEPS)
    mean, _ = expectation(problem, patterns(age_only(AnyObject()), STEPS), backprop_gradient)
    assert relative_error(mean, problem.exact) <= EXACT


@pytest.mark.parametrize("resets", [{2}, {0, 3, 4}])
@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_resets_are_free(problem, resets):
    """Where the sequence itself forgets the state, a cut there costs nothing and needs no compensation."""
    problem = problem(steps=STEPS)
    cell = problem.cell
    mask = torch.tensor([float(t in resets) for t in range(STEPS)], dtype=torch.float64)
    columns = problem.inputs.shape[-1]
    problem.inputs = torch.cat([problem.inputs, mask[:, None, None].expand(-1, problem.inputs.shape[1], 1)], dim=-1)

    def forgetful(input_t, state):
        return cell(input_t[:, :columns], tree_map(lambda tensor: tensor * (1.0 - input_t[0, -1]), state))

    problem.cell, problem.exact = forgetful, {}
    problem.__post_init__()
    mean, _ = expectation(problem, patterns(age_only(LAWS["power"]()), STEPS, resets=resets), backprop_gradient)
    assert relative_error(mean, problem.exact) <= EXACT


@pytest.mark.parametrize(
    "law", [LAWS["power"](), LAWS["geometric"](), LAWS["tabulated"]()], ids=["power", "geometric", "tabulated"]
)
def test_variance_is_the_sum_of_the_crossing_gradients(law):
    """Var(g̃) = Σ_u E[c_u/(1-c_u) |G_u|²]: the closed form of `scalar_linear` against all 2^(T-1) patterns."""
    problem = scalar_linear(steps=8)
    mean, variance = expectation(problem, patterns(age_only(law), 8), backprop_gradient)
    assert relative_error(mean, problem.exact) <= EXACT
    assert variance == pytest.approx(scalar_linear_variance(problem, law.hazard), rel=1e-11)


@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_variance_identity_for_any_cell(problem):
    """The same identity with each G_u measured: the gradient with u open, less that with u cut, no cut after."""
    problem, steps, law = problem(steps=5), 5, artbp.PowerLaw(mean=3, alpha=4)
    _, variance = expectation(problem, patterns(age_only(law), steps), backprop_gradient)
    identity = 0.0
    for u in range(1, steps):
        for probability, links in patterns(age_only(law), u):  # the past of edge u
            age = u - max(t for t in range(u) if t == 0 or links[t] == 0)
            full = torch.ones(steps, dtype=torch.float64)
            full[:u] = links
            closed = full.clone()
            closed[u] = 0.0
            open_, shut = backprop_gradient(problem, full), backprop_gradient(problem, closed)
            crossing = sum(float((open_[name] - shut[name]).square().sum()) for name in open_)
            identity += probability * law.hazard(age) / (1.0 - law.hazard(age)) * crossing
    assert variance == pytest.approx(identity, rel=1e-11)


@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_links_of_one_are_plain_autograd_bitwise(problem):
    problem = problem(steps=STEPS)
    loss, states = problem.plain()
    loss.backward()
    plain = problem.gradients()
    for links in (
        None,
        torch.ones(STEPS, dtype=torch.float64),
        torch.ones(STEPS, 1, dtype=torch.float64).expand(-1, problem.inputs.shape[1]),
    ):
        step = artbp.unroll(problem.cell, dim=problem.dim)
        found, state = artbp.backprop(step, problem.inputs, problem.state, links)
        assert torch.equal(found, loss.detach())
        assert all(map(torch.equal, tree_tensors(state), tree_tensors(states[-1])))
        gradients = problem.gradients()
        assert all(torch.equal(gradients[name], plain[name]) for name in plain)


@pytest.mark.parametrize("cuts", [{3}, {2, 4}, {1}, {1, 2, 3, 4, 5}])
@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_links_of_zero_and_one_are_truncated_bptt(problem, cuts):
    """Against a loop that detaches by hand."""
    problem = problem(steps=STEPS)
    state, loss = problem.state, torch.zeros((), dtype=torch.float64)
    for t, input_t in enumerate(problem.inputs):
        loss_t, state = problem.cell(input_t, tree_map(torch.Tensor.detach, state) if t in cuts else state)
        loss = loss + loss_t
    loss.backward()
    truncated = problem.gradients()
    links = torch.tensor([float(t not in cuts) for t in range(STEPS)], dtype=torch.float64)
    found = backprop_gradient(problem, links)
    assert all(torch.equal(found[name], truncated[name]) for name in truncated)
    assert relative_error(truncated, problem.exact) > 1e-3  # the cuts do something


@pytest.mark.parametrize("shape", [(STEPS,), (STEPS, 2)], ids=["shared", "lanes"])
@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_random_links_against_hooks(problem, shape):
    problem = problem(steps=STEPS)
    generator = torch.Generator().manual_seed(1)
    links = 3.0 * torch.rand(shape, generator=generator, dtype=torch.float64)
    links[torch.rand(shape, generator=generator) < 0.3] = 0.0
    expected = oracle_gradient(problem, links)
    for window in (None, 1, 2, 4, 9):
        assert relative_error(backprop_gradient(problem, links, window), expected) <= EXACT


def test_index_convention_by_hand():
    """Five steps of s_t = a s_{t-1} + x_t with losses ℓ_t = s_t, s_{-1} = 1, links (l0, …, l4), dL/ds_{-1} and dL/dx_t
    by hand.

    links[t] sits on the edge that brings s_{t-1} into step t, so with a = 2, x = 0 and links (5, 1, 0, 3, 10):
        δ_4 = 1,  δ_3 = 1 + 10·2·δ_4 = 21,  δ_2 = 1 + 3·2·δ_3 = 127,  δ_1 = 1 + 0 = 1,  δ_0 = 1 + 1·2·δ_1 = 3,
        δ_{-1} = 5·2·δ_0 = 30.
    """
    start = torch.ones(1, dtype=torch.float64, requires_grad=True)
    inputs = torch.zeros(5, 1, dtype=torch.float64, requires_grad=True)
    links = torch.tensor([5.0, 1.0, 0.0, 3.0, 10.0], dtype=torch.float64)

    def cell(input_t, state):
        state = 2.0 * state + input_t
        return state.sum(), state

    loss, state = artbp.backprop(artbp.unroll(cell), inputs, start, links)
    assert loss.item() == 2 + 4 + 8 + 16 + 32
    assert state.item() == 32
    assert inputs.grad.flatten().tolist() == [3.0, 1.0, 127.0, 21.0, 1.0]
    assert start.grad.item() == 30.0


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize(
    ("law", "options"),
    [("power", {}), ("geometric", {}), ("tabulated", {}), ("power", {"block": 2}), ("power", {"compensate": False})],
    ids=["power", "geometric", "tabulated", "block", "uncompensated"],
)
def test_what_truncation_draws_is_what_was_enumerated(law, options, lanes):
    """Every draw is one of the enumerated patterns to the last bits; their frequencies pass a chi-square test.

    n = 4,000 draws, fixed seed, error rate 1e-6 per case; links (T,) of a new sequence, and each lane of (T, lanes).
    """
    law = LAWS[law]()
    hazard = rounded(law, options["block"]) if "block" in options else age_only(law)
    weighted = list(patterns(hazard, 5, compensate=options.get("compensate", True)))
    cut = artbp.Truncation(law, seed=11, **options)
    draws = [cut.links(5, lanes=lanes) for _ in range(4000 // (lanes or 1))]
    columns = torch.stack([draw[:, lane] for draw in draws for lane in range(lanes)] if lanes else draws)  # (n, 5)
    known = torch.stack([links for _, links in weighted])
    gaps, nearest = (columns[:, None] - known).abs().amax(-1).min(1)
    assert float(gaps.max()) <= 1e-12
    expected = torch.tensor([probability for probability, _ in weighted], dtype=torch.float64) * len(columns)
    observed = torch.bincount(nearest, minlength=len(weighted)).double()
    rare = expected < 8.0  # pool the rare ones: chi-square wants some counts in every cell
    if rare.any():
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
        observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
    assert chi_square_probability(observed, expected) > 1e-6
    assert allowed_gap(len(columns), 1e-6) < 0.05  # what a frequency could be off by unseen
