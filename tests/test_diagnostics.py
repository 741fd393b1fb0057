"""Diagnostics against enumeration, Monte Carlo, and problems built so that the answer is known."""

import itertools
import json
import math

import pytest
import torch
from enumeration import age_only, backprop_gradient, expectation, patterns, relative_error
from messages import VALUES, check
from problems import ALL, CELLS, Problem, influence_balancing, scalar_linear, scalar_linear_variance

import artbp
from artbp import diagnostics
from artbp.diagnostics import Comparison, Measured, Moments
from artbp.diagnostics._adjoints import crossings, states_of
from artbp.diagnostics._report import brief
from artbp.diagnostics._subject import Subject
from artbp.diagnostics._variance import Crossing
from artbp.estimators import ARTBP, BPTT, RTRL, UORO, NoBackTrack, TruncatedBPTT

LAW = artbp.PowerLaw(mean=3, alpha=6)


def of(problem):
    return artbp.unroll(problem.cell, dim=problem.dim), problem.inputs, problem.state


def as_vector(problem, gradient):
    """In the order in which the step uses its parameters, by comparing what is found."""
    return torch.cat([gradient[name].reshape(-1) for name in problem.parameters])


def test_all_that_is_exported():
    public = {name for name in vars(diagnostics) if not name.startswith("_")} - {"annotations"}
    assert public == set(diagnostics.__all__)


# ---- expectation and variance ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_expectation_and_variance_are_those_of_all_patterns(problem):
    problem = problem(steps=5)
    mean, expected = expectation(problem, patterns(age_only(LAW), 5), backprop_gradient)
    found = diagnostics.expectation(LAW, *of(problem))
    assert found.patterns == 16
    assert found.bias < 1e-12
    assert found.cosine == pytest.approx(1.0)
    assert found.variance == pytest.approx(expected, rel=1e-10)
    assert float(found.mean.norm()) == pytest.approx(float(as_vector(problem, mean).norm()), rel=1e-12)
    identity = diagnostics.variance(LAW, *of(problem))
    assert identity.variance == pytest.approx(expected, rel=1e-10)
    assert identity.error == 0.0
    assert all(leaf.grad is None for leaf in problem.parameters.values())


@pytest.mark.parametrize(
    "law",
    [
        artbp.Truncation(LAW, compensate=False, seed=0),
        artbp.Truncation(LAW, cap=2, seed=0),
        artbp.Fixed(2),
    ],
    ids=repr,
)
def test_expectation_shows_bias(law):
    assert diagnostics.expectation(law, *of(CELLS["lstm"](steps=5))).bias > 0.01


@pytest.mark.parametrize("law", [artbp.Tabulated([0.0, 0.7, 0.1]), artbp.Truncation(LAW, block=2, seed=0)], ids=repr)
def test_the_identity_for_other_laws(law):
    problem = CELLS["gru"](steps=7)
    enumerated = diagnostics.expectation(law, *of(problem))
    assert diagnostics.variance(law, *of(problem)).variance == pytest.approx(enumerated.variance, rel=1e-10)


def test_a_law_that_looks_at_the_state_is_enumerated():
    class Looks(artbp.Law):
        needs_state = True

        def hazard(self, age, state):
            return float(0.5 * torch.exp(-state.detach().abs().mean()))

    found = diagnostics.expectation(Looks(), *of(scalar_linear(steps=6)))
    assert found.bias < 1e-12
    assert found.variance > 0


def test_lanes_that_are_cut_each_on_their_own():
    """Independent, so that their variances add up; against all pairs of patterns of two lanes."""
    problem, steps = CELLS["gru"](steps=4, lanes=2), 4
    mean, square = dict.fromkeys(problem.parameters, 0.0), 0.0
    for (one, left), (other, right) in itertools.product(patterns(age_only(LAW), steps), repeat=2):
        found = backprop_gradient(problem, torch.stack([left, right], 1))
        mean = {name: mean[name] + one * other * found[name] for name in found}
        square += one * other * sum(float((found[name] - problem.exact[name]).square().sum()) for name in found)
    assert relative_error(mean, problem.exact) < 1e-12
    step, inputs, state = of(problem)
    each = [diagnostics.variance(LAW, step, inputs[:, i : i + 1], state[i : i + 1]).variance for i in (0, 1)]
    assert sum(each) == pytest.approx(square, rel=1e-10)
    assert sum(each) != pytest.approx(diagnostics.variance(LAW, step, inputs, state).variance, rel=1e-3)


def test_the_sampled_identity_agrees_with_the_closed_form():
    """n = 3000 pairs, seed 1; |z| > 3.89 has probability 1e-4. It sees a bias of 8 standard errors, about 40%."""
    problem = scalar_linear(steps=30, lanes=1)
    exact = scalar_linear_variance(problem, LAW.hazard)
    found = diagnostics.variance(LAW, *of(problem), samples=3000, seed=1)
    assert found.variance == pytest.approx(diagnostics.variance(LAW, *of(problem)).variance, abs=3.89 * found.error)
    assert diagnostics.variance(LAW, *of(problem)).variance == pytest.approx(exact, rel=1e-10)
    assert 0 < found.error < 0.06 * exact


def test_the_identity_agrees_with_monte_carlo():
    """n = 500 gradients, seed 0, an LSTM of 8 steps; error rate 1e-4."""
    problem, estimator = CELLS["lstm"](steps=8), ARTBP(LAW, seed=0)
    found = diagnostics.compare([estimator], *of(problem), draws=500).rows[0].moments
    exact = diagnostics.variance(LAW, *of(problem)).variance
    assert found.variance == pytest.approx(exact, abs=3.89 * found.variance_error)
    assert found.variance_error < 0.2 * exact


# ---- retention -------------------------------------------------------------------------------------------------------

CUTS = {
    "unbiased": artbp.Truncation(artbp.PowerLaw(mean=6, alpha=4), seed=0),
    "truncated": artbp.Truncation(artbp.Fixed(7), seed=0),
    "uncompensated": artbp.Truncation(artbp.PowerLaw(mean=6, alpha=5), compensate=False, seed=0),
    "capped": artbp.Truncation(artbp.PowerLaw(mean=6, alpha=4), cap=9, seed=0),
    "in_blocks": artbp.Truncation(artbp.PowerLaw(mean=6, alpha=6), block=2, compensate=False, seed=0),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_retention_against_monte_carlo(cut):
    """One stream of 6·10^4 links, in 40 batches for the error; 5 laws, 4 lags; error rate 2e-4 for each."""
    links = torch.cat([cut.segment() for _ in range(int(60_000 / cut.mean))])[1:]
    for lag in (1, 3, 6, 12):
        products = torch.stack([links[i : len(links) - lag + 1 + i] for i in range(lag)]).prod(0)
        batches = torch.stack([batch.mean() for batch in products.chunk(40)])
        error = float(batches.std()) / math.sqrt(len(batches))
        assert float(products.mean()) == pytest.approx(cut.retention(lag), abs=3.99 * error + 1e-4)


def test_retention_in_closed_form():
    assert all(CUTS["unbiased"].retention(lag) == 1.0 for lag in (1, 10, 1000))
    assert CUTS["truncated"].retention(3) == pytest.approx(1 - 3 / 7)
    law = artbp.PowerLaw(mean=6, alpha=5)
    tail = float(law.survival(torch.arange(4, 100_000)).sum())
    assert CUTS["uncompensated"].retention(4) == pytest.approx(tail / 6, rel=1e-6)
    assert CUTS["uncompensated"].retention(4) < CUTS["capped"].retention(4) < 1.0


# ---- compare ---------------------------------------------------------------------------------------------------------


def test_compare_measures_what_is_known():
    problem = CELLS["rnn"](steps=9)
    estimators = [BPTT(), RTRL(), TruncatedBPTT(3), ARTBP(LAW, seed=0), UORO(seed=0), NoBackTrack(seed=0)]
    found = diagnostics.compare(estimators, *of(problem), draws=40)
    rows = {row.estimator: row for row in found.rows}
    assert list(rows) == [repr(estimator) for estimator in estimators]
    assert rows["BPTT()"].error < 1e-12
    assert rows["RTRL()"].error < 1e-12
    biased = rows["TruncatedBPTT(3)"]
    TruncatedBPTT(3)(*of(problem))
    assert biased.bias == pytest.approx(relative_error(problem.gradients(), problem.exact), rel=1e-10)
    assert (biased.deviation, biased.draws) == (0.0, 1)
    exact = diagnostics.expectation(LAW, *of(problem)).relative_deviation
    low, high = rows[repr(ARTBP(LAW))].deviation_interval
    assert low < exact < high
    assert rows["UORO()"].bias <= 4 * rows["UORO()"].bias_error
    assert 0 < rows["UORO()"].draw_cosine_error < 1 / math.sqrt(39)
    assert biased.draw_cosine_error == 0.0
    assert all(row.microseconds > 0 and row.bytes > 0 for row in found.rows)
    assert all(leaf.grad is None for leaf in problem.parameters.values())


def test_memory_is_counted():
    """A graph of T steps holds at least T times what one step saves; a window's, that of a window and the states."""
    problem = CELLS["gru"](steps=60)
    whole, window, forward = diagnostics.compare([BPTT(), BPTT(window=10), UORO(seed=0)], *of(problem), draws=2).rows
    assert window.bytes < 0.4 * whole.bytes
    longest, constant = diagnostics.compare([BPTT(), UORO(seed=0)], *of(CELLS["gru"](steps=120)), draws=2).rows
    assert longest.bytes > 1.8 * whole.bytes
    assert constant.bytes < 1.3 * forward.bytes


def test_moments_merge():
    generator = torch.Generator().manual_seed(0)
    draws, exact = torch.randn(50, 4, generator=generator, dtype=torch.float64) + 1, torch.zeros(4, dtype=torch.float64)
    one, other, whole = Moments(exact), Moments(exact), Moments(exact)
    for i, draw in enumerate(draws):
        (one if i < 20 else other).add(draw)
        whole.add(draw)
    merged = one + other
    assert (merged.n, merged.variance) == (50, pytest.approx(whole.variance))
    assert merged.variance == pytest.approx(float(draws.var(0).sum()))
    torch.testing.assert_close(merged.mean, draws.mean(0))
    assert merged.bias == pytest.approx(math.sqrt(float(draws.mean(0).square().sum()) - whole.variance / 50))
    check(lambda: one + Moments(exact + 1), VALUES, "two different exact", "Merge")


def test_the_interval_holds_the_deviation_as_often_as_it_says():
    """Independent Gaussian draws around the exact gradient, 1000 times 30 of them: within 3.3σ of 93.5%, seed 0.

    An interval from 30 draws takes the spread of the squares from them too, and so covers a little less than 95%.
    """

    exact = torch.zeros(5, dtype=torch.float64)
    generator, covered = torch.Generator().manual_seed(0), 0
    for _ in range(1000):
        moments = Moments(exact)
        for draw in torch.randn(30, 5, generator=generator, dtype=torch.float64):
            moments.add(draw)
        low, high = moments.deviation_interval
        covered += low < math.sqrt(5) < high
    assert covered / 1000 == pytest.approx(0.935, abs=3.3 * math.sqrt(0.95 * 0.05 / 1000))


def test_the_interval_of_draws_that_all_but_agree():
    """Their variance is rounding, and its error a large multiple of it: no overflow."""

    class Agreeing(Moments):
        variance, variance_error = 1e-30, 1.0

    low, high = Agreeing(torch.zeros(2)).deviation_interval
    assert low < 1e-15 < high < math.inf


# ---- influence balancing at stationarity -----------------------------------------------------------------------------


def stationary(steps):
    problem = influence_balancing(steps=1000)
    with torch.no_grad():
        _, state = of(problem)[0](problem.inputs, problem.state, None)
    return of(problem)[0], torch.zeros(steps, 1, dtype=torch.float64), state, problem


@pytest.mark.parametrize(
    ("length", "sign"), [(10, -1), (50, -1), (100, -1), (108, -1), (109, -1), (110, 1), (111, 1), (200, 1)]
)
def test_truncated_bptt_has_the_wrong_sign_below_110(length, sign):
    """With p = 10 and n = 13, at stationarity; over whole segments, so that every lag counts max(0, 1 - k/L)."""
    step, inputs, state, problem = stationary(length * max(10, 1000 // length))
    TruncatedBPTT(length)(step, inputs, state)
    truncated = float(problem.gradients()["theta"])
    BPTT()(step, inputs, state)
    assert truncated * float(problem.gradients()["theta"]) * sign > 0


# ---- probe -----------------------------------------------------------------------------------------------------------


def linear(decay, steps=400, still=False):
    step, inputs, state = of(scalar_linear(steps=steps, lanes=4, decay=decay))
    return step, inputs * 0 if still else inputs, state


def with_resets():
    """Nothing fades inside an episode of three steps; nothing survives its end."""
    problem = scalar_linear(steps=400, lanes=4, decay=1.0)
    keep = torch.ones(400, 4, 1, dtype=torch.float64)
    keep[::3] = 0.0
    inputs = torch.cat([problem.inputs, keep], 2)
    reset = Problem(
        "resets",
        lambda x, s: problem.cell(x[:, :2], s * x[:, 2]),
        inputs,
        problem.state,
        problem.parameters,
    )
    return of(reset)


KNOWN = {
    "short memory": (lambda: linear(0.3), r"Keep L = 10\b"),
    "somewhat longer memory": (lambda: linear(0.8), "Raise L to 20:"),
    "long memory": (lambda: linear(0.97), r"Use ARTBP\(PowerLaw\(mean=10, alpha=\d+\)\).*% off"),
    "sign reversal": (lambda: stationary(600)[:3], r"Use ARTBP\(PowerLaw\(mean=10, alpha=\d+\)\).*wrong sign"),
    "no fading": (lambda: linear(1.0), "does not fade.*CheckpointedBPTT"),
    "growth": (lambda: linear(1.02), "does not fade.*CheckpointedBPTT"),
    "memory beyond the window": (lambda: linear(0.99), "do not show the end.*14% is left after 199.*longer window"),
    "alternating": (lambda: linear(-0.97), r"Use ARTBP\(PowerLaw\(mean=10, alpha=\d+\)\).*% off"),
    "no gradient": (lambda: linear(0.5, still=True), "gradient of this window is zero.*another window"),
    "resets": (with_resets, r"Keep L = 10\b"),
}


@pytest.mark.parametrize(("subject", "advice"), KNOWN.values(), ids=KNOWN)
def test_advice_where_the_answer_is_known(subject, advice):
    import re

    found = diagnostics.probe(*subject(), artbp.PowerLaw(mean=10, alpha=6), samples=32)
    assert re.search(advice, found.advice), found.advice
    assert found.advice.count(". ") == 0  # one sentence


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.97])
def test_probe_finds_the_rate_at_which_memory_fades(decay):
    found = diagnostics.probe(*linear(decay), artbp.PowerLaw(mean=10, alpha=6), samples=8)
    assert found.fading == pytest.approx(decay, rel=1e-6)
    assert found.fading_error < 1e-6
    assert found.fades


def test_probe_sees_the_truth_about_truncated_bptt():
    step, inputs, state = linear(0.9, steps=300)
    law = artbp.PowerLaw(mean=10, alpha=6)
    found = diagnostics.probe(step, inputs, state, law, samples=100)
    rows = diagnostics.compare([TruncatedBPTT(L) for L in (10, 20, 40)], step, inputs, state).rows
    assert [found.bias[L] for L in (10, 20, 40)] == pytest.approx([row.bias for row in rows])
    assert [found.cosine[L] for L in (10, 20, 40)] == pytest.approx([row.cosine for row in rows])
    sampled = diagnostics.variance(law, step, inputs, state, samples=400, seed=5)
    error = math.hypot(found.truncation_noise_error, sampled.error / 2 / math.sqrt(sampled.variance) * 0.2)
    assert found.truncation_noise == pytest.approx(sampled.relative_deviation, abs=4 * error + 0.02)
    assert 0.1 < found.beyond[10] < 0.9


def test_variances_from_shared_samples_are_the_exact_ones():
    """400 seeds of 8 pairs: off by more than 5 standard errors of their mean with probability 6e-7, each."""
    subject = Subject(*of(influence_balancing(steps=12)))
    crossing = Crossing(subject, states := states_of(subject), crossings(subject, states))
    laws = [artbp.PowerLaw(mean=3, alpha=4), artbp.Geometric(mean=5), artbp.Tabulated([0.0, 0.5, 0.1])]
    cuts = [artbp.Truncation(law) for law in laws]
    found = torch.tensor([crossing.variances(cuts, 8, seed) for seed in range(400)], dtype=torch.float64)[..., 0]
    for cut, values in zip(cuts, found.T, strict=True):
        exact, error = crossing.variance(cut, None, None)[0], values.std() / 20
        assert abs(values.mean() - exact) < 5 * error
        assert error < 0.05 * exact  # it could see a bias of a quarter


def test_the_advised_exponent_does_not_depend_on_the_seed():
    """Of what the page on truncation shows; with samples of its own for every law half the seeds chose another."""
    decay = torch.tensor(0.97, requires_grad=True)

    def cell(x, state):
        state = decay * state + x[:, 0]
        return (state - x[:, 1]).square().sum(), state

    inputs = torch.randn(200, 4, 2, generator=torch.Generator().manual_seed(0))
    step, law = artbp.unroll(cell), artbp.PowerLaw(mean=10, alpha=6)
    found = [diagnostics.probe(step, inputs, torch.zeros(4), law, seed=seed).noise_by_alpha for seed in range(8)]
    assert {min(noise, key=noise.get) for noise in found} == {4.0}


# ---- reports ---------------------------------------------------------------------------------------------------------


def test_every_report_prints_as_a_table_and_goes_to_json():
    problem = CELLS["lstm"](steps=12)
    reports = [
        diagnostics.expectation(LAW, *of(problem)),
        diagnostics.variance(LAW, *of(problem)),
        diagnostics.compare([BPTT(), UORO(seed=0)], *of(problem), draws=3),
        diagnostics.probe(*of(problem), LAW, samples=4),
    ]
    for report in reports:
        values = json.loads(report.to_json())
        assert values
        assert json.dumps(values) == json.dumps(report.to_dict())
        lines = str(report).splitlines()
        assert len(lines) >= 4
        assert "tensor" not in str(report) + report.to_json()
    comparison = str(reports[2]).splitlines()
    assert comparison[2].split()[:2] == ["estimator", "bias"]
    assert [line.split()[0] for line in comparison[4:]] == ["BPTT()", "UORO()", "Noise:"]


def test_a_comparison_fits_a_hundred_columns_whatever_its_numbers():
    names = ["ARTBP(PowerLaw(mean=16, alpha=10))", "UORO()"]
    values = {"sign": 1, "draws": 3, "draw_cosine_error": 0.1, "deviation_interval": (0.1, 0.2)}
    rows = [
        Measured(**values, estimator=name, bias=bias, bias_error=0.012345, cosine=-0.99876, draw_cosine=-0.5,
                 deviation=12345.6, error=1.23456e-16, error_at_equal_compute=math.inf, microseconds=98765.4,
                 bytes=2**30, moments=None)
        for name, bias in zip(names, (1234.5, 0.0), strict=True)
    ]  # fmt: skip
    title, above, header, rule, first, second, legend = str(Comparison(100, 1, 1.0, 1.0, rows)).splitlines()
    assert max(map(len, (title, above, header, rule, first, second, legend))) <= 100
    assert title.startswith("100 steps, 1 parameter;")
    shown = ["1234", "0.012", "-0.999", "-0.500", "12346", "1e-16", "inf", "98765", "1e+06"]
    assert first.split()[2:] == shown
    assert second.split() == ["UORO()", "0", *shown[1:]]
    assert [len(line) for line in (header, first, second)] == [len(rule)] * 3
    assert above.index("mean of draws") > rule.index(" ")
    assert "standard deviation" in legend


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0.0, "0"), (-0.0, "0"), (0.0123, "0.012"), (0.99949, "0.999"), (0.9999, "1.00"), (9.996, "10.0")),
        *((2.72, "2.72"), (-99.96, "-100"), (999.7, "1000"), (99999.4, "99999"), (99999.6, "1e+05"), (math.nan, "nan")),
        *((0.0005, "0.001"), (0.00049, "5e-04"), (4.9e-16, "5e-16"), (-math.inf, "-inf")),
    ],
)
def test_numbers_in_five_characters(value, shown):
    assert brief(value) == shown


# ---- bad input -------------------------------------------------------------------------------------------------------


def everything(step, inputs, state):
    return [
        lambda: diagnostics.expectation(LAW, step, inputs, state),
        lambda: diagnostics.variance(LAW, step, inputs, state),
        lambda: diagnostics.compare([BPTT()], step, inputs, state),
        lambda: diagnostics.probe(step, inputs, state, LAW),
    ]


def test_a_step_that_is_not_deterministic():
    problem = CELLS["rnn"](steps=12)
    step = artbp.unroll(lambda x, s: problem.cell(x, torch.nn.functional.dropout(s, 0.5)))
    for call in everything(step, problem.inputs, problem.state):
        check(call, VALUES, "not deterministic", r"eval\(\)")


def test_a_state_that_does_not_reach_the_loss():
    problem = CELLS["rnn"](steps=12)
    step = artbp.unroll(lambda x, s: problem.cell(x, torch.zeros_like(s)))
    for call in everything(step, problem.inputs, problem.state):
        check(call, VALUES, "state does not reach the loss", "Check that the step returns")


def test_a_loss_without_parameters():
    step = artbp.unroll(lambda x, s: ((s + x).square().sum(), s + x))
    for call in everything(step, torch.ones(12, 2), torch.zeros(2)):
        check(call, RuntimeError, "does not depend on anything that requires grad", "Check that parameters")


def test_a_gradient_that_is_none():
    step, inputs, state = linear(0.5, steps=12)
    inputs = inputs.clone()
    inputs[5] = math.nan
    for call in everything(step, inputs, state):
        check(call, VALUES, "not finite", "Look for that step")
    still = diagnostics.compare([TruncatedBPTT(3)], *linear(0.5, steps=12, still=True))
    assert still.rows[0].sign == 0


def test_too_long_too_short_or_biased():
    long = of(CELLS["rnn"](steps=70))
    check(lambda: diagnostics.expectation(LAW, *long), VALUES, r"2\^69.*limit is 13", r"compare\(")
    check(lambda: diagnostics.variance(LAW, *long), VALUES, "2,415 pairs", "samples=1000")
    check(lambda: diagnostics.variance(artbp.Fixed(3), *long), VALUES, "biased", r"expectation\(law")
    check(lambda: diagnostics.probe(*long, artbp.PowerLaw(mean=20, alpha=4)), VALUES, "70 steps", "four times")
    check(lambda: diagnostics.probe(*long, artbp.Fixed(3)), VALUES, "probe got.*biased", r"expectation\(law")
    check(lambda: diagnostics.compare([], *long), VALUES, "no estimators", "Pass a list")
    check(lambda: diagnostics.compare([BPTT()], *long, draws=0), VALUES, "got 0", "Pass an int")
