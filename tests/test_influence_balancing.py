"""Influence balancing: every trajectory against an independent one, and what theory says against brute force."""

from __future__ import annotations

import doctest
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from influence_reference import power_law_links, rank_one_trajectory, trajectory

from artbp import Fixed, Geometric, Never, PowerLaw, Truncation
from artbp.estimators import ARTBP, BPTT, RTRL, UORO, NoBackTrack, TruncatedBPTT
from artbp.experiments import influence_balancing, influence_theory
from artbp.experiments.influence_balancing import Descent, InfluenceBalancing, Targets
from artbp.experiments.influence_theory import expected_gradient, impulse_response, shortest_right_length

# Of the import of torch.autograd.forward_ad.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

STEPS = 10_000
LAW = PowerLaw(mean=16, alpha=6)
RESULTS = Path(__file__).parent.parent / "results" / "influence-balancing"


def descend(estimator, steps=STEPS, problem=None, **options):
    targets = Targets(steps, options.pop("noise", 0.0), options.pop("seed", None))
    return list(Descent(problem or InfluenceBalancing(), estimator, targets, **options))


def drawn_segments(seed, mean=16, alpha=6):
    """The lengths that a seed draws, as the paper's links."""
    cut = Truncation(PowerLaw(mean=mean, alpha=alpha), seed=seed)
    while True:
        yield power_law_links(len(cut.segment()), mean, alpha)


def fixed_segments(length):
    return itertools.repeat([0.0] + [1.0] * (length - 1))


def assert_equal(found, expected, tolerance=1e-10):
    assert [step for step, _, _ in found] == [step for step, _, _ in expected]
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=tolerance)


@pytest.mark.parametrize("length", [7, 10, 100, 200])
def test_truncated_bptt_equals_the_paper_in_numpy(length):
    assert_equal(descend(TruncatedBPTT(length)), trajectory(fixed_segments(length), STEPS))


@pytest.mark.parametrize("seed", range(5))
def test_artbp_equals_the_paper_in_numpy(seed):
    assert_equal(descend(ARTBP(LAW, seed=seed)), trajectory(drawn_segments(seed), STEPS))


def test_bptt_equals_the_paper_in_numpy():
    whole = [[1.0] * 2000]
    assert_equal(descend(BPTT(window=100), 2000), trajectory(whole, 2000))


FORWARD_STEPS = [500, pytest.param(STEPS, marks=pytest.mark.slow)]


@pytest.mark.parametrize("steps", FORWARD_STEPS)
def test_rtrl_equals_the_paper_in_numpy(steps):
    assert_equal(descend(RTRL(), steps), trajectory(itertools.repeat([1.0]), steps))


@pytest.mark.parametrize("steps", FORWARD_STEPS)
@pytest.mark.parametrize("kind", [UORO, NoBackTrack])
def test_rank_one_methods_equal_the_papers_in_numpy(kind, steps):
    generator = torch.Generator().manual_seed(3)
    coins = (torch.empty(23).bernoulli_(0.5, generator=generator).numpy() for _ in itertools.count())
    signs = (2.0 * coin.astype(np.float64) - 1 for coin in coins)
    expected = rank_one_trajectory(signs, steps, by_row=kind is NoBackTrack)
    assert_equal(descend(kind(seed=3), steps), expected)


def test_another_start_another_size_another_rate_and_noise():
    noise = 1 + 0.3 * np.random.default_rng([7, 1]).standard_normal(3000)
    problem = InfluenceBalancing(4, 3, theta0=-0.2, s0=2.0)
    found = descend(ARTBP(PowerLaw(mean=9, alpha=5), seed=3), 3000, problem, rate=1e-3, noise=0.3, seed=7)
    options = {"p": 4, "n": 3, "theta": -0.2, "s0": 2.0, "rate": 1e-3, "targets": noise}
    assert_equal(found, trajectory(drawn_segments(3, 9, 5), 3000, **options))


def test_the_last_segment_ends_with_the_stream():
    assert descend(TruncatedBPTT(7), 10)[-1][0] == 10


@pytest.mark.parametrize("kind", [lambda: ARTBP(LAW, seed=1), lambda: TruncatedBPTT(9), lambda: UORO(seed=1), RTRL])
def test_stopped_between_two_updates_it_goes_on_with_the_same_bits(kind):
    def make():
        return Descent(InfluenceBalancing(), kind(), Targets(200, 0.5, seed=1))

    whole, first, second = make(), make(), make()
    expected = list(whole)
    begun = list(itertools.islice(first, 30))
    second.load_state_dict(first.state_dict())
    assert begun + list(second) == expected


def test_noise_does_not_depend_on_how_many_targets_are_taken_at_a_time():
    one, other = Targets(100, 1.0, seed=4), Targets(100, 1.0, seed=4)
    taken = torch.cat([other.take(n) for n in (1, 30, 2, 60, 40)])
    assert torch.equal(one.take(1000), taken)
    assert len(other.take(1)) == 0


def test_noise_is_not_the_numbers_that_draw_the_lengths():
    assert Targets(1, 1.0, seed=0).take(1) != Targets(1, 1.0, seed=1).take(1)


# What theory says


def gradient_at_rest(p, n, theta, length):
    """The gradient of truncated BPTT over one segment, from the state where this θ brings the system to rest."""
    problem = InfluenceBalancing(p, n, theta0=theta)
    rest = torch.linalg.solve(torch.eye(p + n, dtype=torch.float64) - problem.A, theta * problem.signs)
    TruncatedBPTT(length)(problem.step, torch.ones(length, dtype=torch.float64), rest)
    return problem.theta.grad.item() / length


@pytest.mark.parametrize(("p", "n"), [(10, 13), (13, 10), (2, 3), (0, 4)])
@pytest.mark.parametrize("length", [1, 2, 10, 57, 109, 110, 300])
def test_the_expected_gradient_is_what_autograd_finds_at_rest(p, n, length):
    theta = 0.5
    exact = (2 * (p - n) * theta - 1) * 2 * (p - n)
    multiple = expected_gradient(p, n, Fixed(length))
    assert gradient_at_rest(p, n, theta, length) / exact == pytest.approx(multiple, rel=1e-10, abs=1e-12)


def test_the_sign_turns_at_110():
    assert shortest_right_length(10, 13) == 110
    assert expected_gradient(10, 13, Fixed(109)) < 0 < expected_gradient(10, 13, Fixed(110))


@pytest.mark.parametrize(("p", "n"), [(10, 13), (13, 10), (10, 11), (3, 4), (0, 2), (30, 31)])
def test_the_sign_is_right_from_there_on_and_wrong_before(p, n):
    length = shortest_right_length(p, n)
    assert all(expected_gradient(p, n, Fixed(longer)) > 0 for longer in range(length, length + 500))
    assert length == 1 or expected_gradient(p, n, Fixed(length - 1)) <= 1e-15


@pytest.mark.parametrize("law", [LAW, Geometric(mean=16), Never()])
def test_an_unbiased_law_keeps_the_whole_gradient(law):
    assert expected_gradient(10, 13, law) == pytest.approx(1, rel=1e-12)


def test_the_response_adds_up():
    assert impulse_response(10, 13).sum() == pytest.approx(-6, rel=1e-12)


def test_examples_in_docstrings():
    for module in (influence_balancing, influence_theory):
        assert doctest.testmod(module).failed == 0


# The claims


def losses(found):
    return {step: loss for step, loss, _ in found}


@pytest.mark.slow
def test_truncated_bptt_diverges_below_110_and_converges_above():
    final = {}
    for length in (10, 100, 200):
        found = losses(descend(TruncatedBPTT(length), 100_000))
        final[length] = found[100_000]
        assert (found[100_000] > found[50_000]) == (length < 110)
    assert final[10] > 1e4
    assert final[200] < 1


@pytest.mark.slow
def test_artbp_converges_for_every_seed():
    # Fixed seeds: this holds or does not. How far the first long segments throw a run off varies much:
    # of 2,000 runs of benchmarks/influence_conventions.py the median is 0.099, one in 25 is above 0.6, the worst 2.7.
    ends = [descend(ARTBP(LAW, seed=seed), 100_000)[-1] for seed in range(20)]
    assert np.median([loss for _, loss, _ in ends]) < 0.1
    assert sum(loss > 0.6 for _, loss, _ in ends) <= 1
    assert max(loss for _, loss, _ in ends) < 2
    assert max(abs(theta + 1 / 6) for _, _, theta in ends) < 0.01


@pytest.mark.parametrize("folder", [RESULTS, RESULTS / "long"])
def test_the_committed_run_shows_what_is_claimed(folder):
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert summary["complete"]
    last = {(row["method"], row["seed"]): row for row in rows}
    for run in summary["runs"]:
        row = last[run["method"], run["seed"]]
        assert (row["step"], row["average_loss"], row["theta"]) == (run["steps"], run["average_loss"], run["theta"])
        if run["method"].startswith("ARTBP"):
            assert run["average_loss"] < 0.6
            assert abs(run["theta"] + 1 / 6) < 0.01
    outcomes = {run["method"]: run["outcome"] for run in summary["runs"]}
    assert outcomes["TruncatedBPTT(10)"] == outcomes["TruncatedBPTT(100)"] == "diverged"
    assert outcomes["TruncatedBPTT(200)"] == outcomes[repr(ARTBP(LAW))] == "converged"


def test_the_committed_rows_are_the_runs_of_today():
    rows = [json.loads(line) for line in (RESULTS / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    for method, segments, seed in [
        ("TruncatedBPTT(10)", fixed_segments(10), None),
        (repr(ARTBP(LAW)), drawn_segments(2), 2),
    ]:
        expected = {step: (loss, theta) for step, loss, theta in trajectory(segments, STEPS)}
        early = [row for row in rows if (row["method"], row["seed"]) == (method, seed) and row["step"] < STEPS]
        assert len(early) > 50
        for row in early:
            assert (row["average_loss"], row["theta"]) == pytest.approx(expected[row["step"]], rel=1e-9)
