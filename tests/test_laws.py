"""Truncation laws: identities against closed forms, and draws against the distribution function.

Sampled tests draw a fixed n from a fixed seed. Unless said otherwise the error rate is 1e-6 per test: with n = 200,000
the distribution function may be off by no more than 0.0060 (Dvoretzky-Kiefer-Wolfowitz), and a bias of that size would
be seen.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from enumeration import allowed_gap, chi_square_probability, distribution_gap, global_generators
from messages import check

import artbp

N, RATE = 200_000, 1e-6


def power_law(mean, alpha):
    """A PowerLaw without the warning about its infinite variance, which has a test of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return artbp.PowerLaw(mean=mean, alpha=alpha)


class ByHand(artbp.Law):
    """The paper's hazard again, with everything else derived from it."""

    def __init__(self, mean, alpha):
        self.scale, self.alpha = (alpha - 2.0) * mean, alpha

    def hazard(self, age):
        assert type(age) is int  # a custom law is asked one Python int at a time
        return (self.alpha - 1.0) / (self.scale + age)


class Bathtub(artbp.Law):
    """High, low, high: nothing with a closed form."""

    def hazard(self, age):
        return 0.4 if age <= 2 else 0.05 if age <= 10 else 0.5


FINITE = {
    "power": lambda: artbp.PowerLaw(mean=16, alpha=6),
    "power_near_one": lambda: artbp.PowerLaw(mean=1.01, alpha=4),
    "power_heavy": lambda: power_law(5, 2.2),
    "power_sharp": lambda: artbp.PowerLaw(mean=40, alpha=50),
    "geometric": lambda: artbp.Geometric(mean=7),
    "geometric_short": lambda: artbp.Geometric(mean=1.25),
    "tabulated": lambda: artbp.Tabulated([0.0, 0.3, 0.0, 0.9, 0.2]),
    "tabulated_one": lambda: artbp.Tabulated([0.2]),
    "fixed": lambda: artbp.Fixed(5),
    "custom": lambda: ByHand(16, 6),
    "bathtub": Bathtub,
}


def brute(law, ages):
    """survival(0 … ages) from the hazards alone."""
    return np.cumprod([1.0] + [1.0 - float(law.hazard(age)) for age in range(1, ages + 1)])


# ---- identities ------------------------------------------------------------------------------------------------------


def test_power_law_hazard_is_the_papers():
    law = artbp.PowerLaw(mean=16, alpha=6)
    for age in (1, 2, 7, 1000, 10**9):
        assert law.hazard(age) == pytest.approx(5 / (4 * 16 + age), rel=1e-15)


@pytest.mark.parametrize("law", FINITE.values(), ids=FINITE)
def test_survival_and_pmf_follow_from_the_hazard(law):
    law = law()
    survival = brute(law, 60)
    for n in range(61):
        assert law.survival(n) == pytest.approx(survival[n], rel=1e-12, abs=1e-300)
    for n in range(1, 61):
        assert law.pmf(n) == pytest.approx(survival[n - 1] * float(law.hazard(n)), rel=1e-12, abs=1e-300)
    assert law.survival(0) == 1.0
    assert law.pmf(0) == 0.0


@pytest.mark.parametrize("law", FINITE.values(), ids=FINITE)
def test_links_are_one_over_the_chance_of_no_cut(law):
    law = law()
    for length in (1, 2, 5) if isinstance(law, artbp.Fixed) else (1, 2, 3, 50):
        links = law.links(length)
        assert links.dtype == torch.float64
        assert links.shape == (length,)
        assert links.device.type == "cpu"
        assert links[0] == 0.0
        expected = [1.0 / (1.0 - float(law.hazard(age))) for age in range(1, length)]
        torch.testing.assert_close(links[1:], torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
        if law.unbiased:  # the weight carried over a whole segment undoes the chance of its being so long
            assert links[1:].prod().item() == pytest.approx(1.0 / float(law.survival(length - 1)), rel=1e-12)


@pytest.mark.parametrize("law", FINITE.values(), ids=FINITE)
def test_moments_are_the_sums(law):
    law = law()
    if law.variance == math.inf:  # no sum converges to it; alpha <= 3 has a test of its own
        assert law.alpha <= 3
        return
    survival = brute(law, 40_000)
    mean = survival.sum()
    second = (survival * (2 * np.arange(len(survival)) + 1)).sum()  # E[L²] = Σ (2n+1) P(L > n)
    assert law.mean == pytest.approx(mean, rel=1e-7)
    assert law.variance == pytest.approx(second - mean**2, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(("mean", "alpha"), [(16, 6), (50, 4), (1.5, 3.5), (1e6, 50), (1e5, 3.01)])
def test_power_law_moments_are_the_beta_geometrics(mean, alpha):
    """p ~ Beta(a, b), length ~ Geometric(p): mean (a+b-1)/(a-1), variance ab(a+b-1)/((a-1)²(a-2))."""
    law = artbp.PowerLaw(mean=mean, alpha=alpha)
    a, b = alpha - 1, (alpha - 2) * (mean - 1)
    assert law.mean == pytest.approx(mean, rel=1e-15)
    assert (a + b - 1) / (a - 1) == pytest.approx(mean, rel=1e-12)
    assert law.variance == pytest.approx(a * b * (a + b - 1) / ((a - 1) ** 2 * (a - 2)), rel=1e-11)


def test_known_numbers_of_the_design_notes():
    assert artbp.PowerLaw(mean=16, alpha=6).variance == pytest.approx(400, rel=1e-12)
    law = artbp.PowerLaw(mean=50, alpha=4)
    for quantile, length in ((0.5, 26), (0.9, 115), (0.99, 361), (0.999, 891)):
        assert law.survival(length) <= 1 - quantile < law.survival(length - 1)


@pytest.mark.parametrize("alpha", [2.01, 2.5, 3.0])
def test_infinite_variance_is_infinite_and_said_once_in_words(alpha):
    with pytest.warns(UserWarning, match=r"(?is)varian.*(memor|long|segment)") as record:
        law = artbp.PowerLaw(mean=10, alpha=alpha)
    assert len(record) == 1
    assert law.variance == math.inf
    assert law.mean == 10
    assert law.unbiased


def test_geometric_never_and_fixed_in_closed_form():
    law = artbp.Geometric(mean=7)
    assert (law.mean, law.variance) == (7, pytest.approx(42))
    assert law.hazard(1) == law.hazard(10**6) == pytest.approx(1 / 7)
    never = artbp.Never()
    assert (never.hazard(5), never.survival(10**6), never.pmf(3), never.mean) == (0.0, 1.0, 0.0, math.inf)
    assert math.isnan(never.variance)
    assert never.unbiased
    assert never.links(4).tolist() == [0.0, 1.0, 1.0, 1.0]
    fixed = artbp.Fixed(5)
    assert [fixed.hazard(age) for age in range(1, 6)] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert [fixed.survival(n) for n in (0, 4, 5, 6)] == [1.0, 1.0, 0.0, 0.0]
    assert (fixed.mean, fixed.variance, fixed.unbiased) == (5, 0, False)
    assert artbp.Fixed(1).links(1).tolist() == [0.0]  # a cut at every step


@pytest.mark.parametrize(
    "law",
    [
        artbp.Never(),
        artbp.Fixed(5),
        artbp.Geometric(mean=7),
        artbp.Tabulated([0.1, 0.2]),
        artbp.PowerLaw(mean=7, alpha=4),
    ],
    ids=lambda law: type(law).__name__,
)
def test_closed_forms_walk_nowhere(law):
    """At an age of 10^15 a table would take petabytes."""
    expected = 1.0 if isinstance(law, artbp.Never) else 0.0
    assert law.survival(10**15) == pytest.approx(expected, abs=1e-30)
    assert law.pmf(10**15) == pytest.approx(0.0, abs=1e-30)
    assert law.retention(10**15) == pytest.approx(0.0 if isinstance(law, artbp.Fixed) else 1.0)


def test_tabulated_repeats_its_last_hazard():
    law = artbp.Tabulated([0.5, 0.0, 0.25])
    assert [law.hazard(age) for age in (1, 2, 3, 4, 1000)] == [0.5, 0.0, 0.25, 0.25, 0.25]
    assert law.mean == pytest.approx(1 + 0.5 + 0.5 / 0.25, rel=1e-12)


def test_which_laws_are_unbiased():
    for name, law in FINITE.items():
        assert law().unbiased is (name != "fixed")


@pytest.mark.parametrize("law", FINITE.values(), ids=FINITE)
def test_numbers_arrays_and_tensors(law):
    law = law()
    for function in (law.hazard, law.survival, law.pmf):
        if function == law.hazard and isinstance(law, (ByHand, Bathtub)):
            continue  # the user's own function
        assert type(function(3)) is float
        ages = np.array([[1, 2, 5], [4, 3, 1]])
        array = function(ages)
        assert isinstance(array, np.ndarray)
        assert array.shape == ages.shape
        tensor = function(torch.from_numpy(ages))
        assert tensor.dtype == torch.float64
        assert tensor.shape == ages.shape
        for index, age in np.ndenumerate(ages):
            assert array[index] == pytest.approx(function(int(age)), rel=1e-14)
            assert tensor[index].item() == pytest.approx(function(int(age)), rel=1e-14)


def test_a_law_that_looks_at_the_state_derives_its_links_from_what_it_saw():
    class Looks(artbp.Law):
        needs_state = True

        def hazard(self, age, state):
            return 0.5 if state > 0 else 0.0

    law = Looks()
    assert law.hazard(1, 1.0) == 0.5
    assert law.unbiased


# ---- retention: what part of the gradient over `lag` edges survives, on average over a long stream -------------------


@pytest.mark.parametrize("law", FINITE.values(), ids=FINITE)
def test_retention_of_laws(law):
    law = law()
    for lag in (0, 1, 3, 5, 40):
        expected = max(0.0, 1 - lag / 5) if isinstance(law, artbp.Fixed) else 1.0
        assert law.retention(lag) == pytest.approx(expected, abs=1e-12)
    assert artbp.Never().retention(7) == 1.0


def stationary_retention(hazard, lag, compensate, longest):
    """Σ over the stationary age of the product of the links over `lag` edges, edge by edge."""
    survival = np.cumprod([1.0] + [1.0 - hazard(age) for age in range(1, longest + lag + 2)])
    total = 0.0
    for age in range(longest):
        kept = 1.0
        for passed in range(age + 1, age + lag + 1):
            open_ = 1.0 - hazard(passed)
            kept *= 0.0 if open_ == 0.0 else (1.0 if compensate else open_)  # P(open) · 1/P(open), or P(open) · 1
        total += survival[age] * kept
    return total / survival[:longest].sum()


@pytest.mark.parametrize("lag", [0, 1, 4, 11])
@pytest.mark.parametrize("law", [lambda: artbp.PowerLaw(mean=4, alpha=9), lambda: artbp.Geometric(mean=3), Bathtub])
def test_retention_of_cuts(law, lag):
    law = law()
    capped = artbp.Truncation(law, seed=0, cap=8)
    assert capped.retention(lag) == pytest.approx(
        stationary_retention(lambda age: float(law.hazard(age)) if age < 8 else 1.0, lag, True, 8), rel=1e-9, abs=1e-12
    )
    bare = artbp.Truncation(law, seed=0, compensate=False)
    assert bare.retention(lag) == pytest.approx(
        stationary_retention(lambda a: float(law.hazard(a)), lag, False, 1500), rel=1e-6
    )
    both = artbp.Truncation(law, seed=0, cap=8, compensate=False)
    assert both.retention(lag) == pytest.approx(
        stationary_retention(lambda age: float(law.hazard(age)) if age < 8 else 1.0, lag, False, 8), rel=1e-9, abs=1e-12
    )
    assert artbp.Truncation(law, seed=0, block=3).retention(lag) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("block", [1, 7])
@pytest.mark.parametrize("law", ["power", "power_heavy", "power_sharp", "geometric", "tabulated", "custom"])
def test_long_caps_and_lags_are_the_sums(law, block):
    """Beyond some thousand steps the sums are closed forms; they must go on where adding one by one ends."""
    law, cap = FINITE[law](), 7 * 4000
    survival = brute(law, 3 * cap)
    rounded = survival[np.arange(len(survival)) // block * block]  # P(rounded > n)
    capped = artbp.Truncation(law, seed=0, cap=cap, block=block)
    assert capped.mean == pytest.approx(rounded[:cap].sum(), rel=1e-11)
    bare = artbp.Truncation(law, seed=0, compensate=False, block=block)
    for lag in (4095, 4096, 4097, 4103, 20_001, cap + 5):
        assert capped.retention(lag) == pytest.approx(rounded[: max(0, cap - lag)].sum() / capped.mean, rel=1e-9)
        kept = max(0.0, 1 - rounded[:lag].sum() / bare.mean)
        assert bare.retention(lag) == pytest.approx(kept, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("block", [1, 10])
@pytest.mark.parametrize(
    "law",
    [
        lambda: power_law(1e6, 2.01),
        lambda: artbp.PowerLaw(mean=50, alpha=4),
        lambda: artbp.Geometric(mean=1e6),
        lambda: artbp.Tabulated([0.0, 0.1, 1e-6]),
        lambda: artbp.Fixed(10**12),
        artbp.Never,
    ],
)
def test_nothing_is_summed_one_by_one_to_a_cap_of_1e10(law, block):
    """An array of that length would take 80 GB."""
    law, cap = law(), 10**10
    capped = artbp.Truncation(law, seed=0, cap=cap, block=block)
    assert 1 <= capped.mean <= min(cap, artbp.Truncation(law, seed=0, block=block).mean) * (1 + 1e-12)
    bare = artbp.Truncation(law, seed=0, compensate=False, block=block)
    for cut in (capped, bare, artbp.Truncation(law, seed=0, cap=cap, block=block, compensate=False)):
        first, second, third = (cut.retention(lag) for lag in (3, 10**9, 9 * 10**9))
        assert 1 >= first >= second >= third >= 0


def test_a_heavy_tail_capped_far_out():
    """E[min(L, n)] = L0 - S(n) ((α-2) L0 + n)/(α-2), here with S(n) by Stirling: Γ(B+n)/Γ(A+B+n) ~ n^-A."""
    mean, alpha, n = 1e6, 2.01, 10**10
    a, b = alpha - 1, (alpha - 2) * (mean - 1)
    survival = math.exp(math.lgamma(a + b) - math.lgamma(b) - a * math.log(n + b + (a - 1) / 2))
    expected = mean - survival * ((alpha - 2) * mean + n) / (alpha - 2)
    assert artbp.Truncation(power_law(mean, alpha), seed=0, cap=n).mean == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "law", [artbp.PowerLaw(mean=6, alpha=4), artbp.Geometric(mean=4), artbp.Tabulated([0.1, 0.2]), artbp.Fixed(3)]
)
def test_no_length_is_infinite_or_lies_between_whole_numbers(law):
    assert law.survival(math.inf) == pytest.approx(0.0, abs=1e-30)
    assert law.pmf(math.inf) == pytest.approx(0.0, abs=1e-30)
    assert law.pmf(-math.inf) == law.pmf(2.5) == 0.0
    assert law.survival(2.5) == law.survival(2)
    for function in (law.survival, law.pmf):
        with pytest.raises(ValueError, match=r"nan.*Pass"):
            function(math.nan)


# ---- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", FINITE.values(), ids=FINITE)
def test_draws_follow_the_distribution_function(law):
    law = law()
    slow = isinstance(law, (ByHand, Bathtub))  # one call of the hazard per step
    samples = 20_000 if slow else N
    lengths = law.sample((samples,), generator=torch.Generator().manual_seed(3))
    assert lengths.shape == (samples,)
    assert lengths.dtype == torch.int64
    assert int(lengths.min()) >= 1
    exact = torch.from_numpy(brute(law, min(int(lengths.max()), 50_000)))
    gap = distribution_gap(lengths.clamp(max=len(exact) - 1), lambda n: exact[n.long()])
    assert gap < allowed_gap(samples, RATE)


@pytest.mark.parametrize("law", ["power", "geometric", "tabulated", "power_sharp"])
def test_small_lengths_one_by_one(law):
    """A chi-square over the lengths 1 … 20 and the rest, which sees what a distance does not."""
    law = FINITE[law]()
    lengths = law.sample((N,), generator=torch.Generator().manual_seed(4))
    observed = torch.bincount(lengths.clamp(max=21), minlength=22)[1:].double()
    survival = brute(law, 20)
    expected = torch.tensor([*(survival[:-1] - survival[1:]), survival[-1]], dtype=torch.float64) * N
    observed, expected = observed[expected > 8], expected[expected > 8]
    assert chi_square_probability(observed, expected) > RATE


def test_mean_of_draws_where_the_variance_allows():
    """alpha = 6: variance 400, so the mean of 200,000 draws is within 5 × 0.0447 of 16 (5 sigma, 6e-7)."""
    lengths = artbp.PowerLaw(mean=16, alpha=6).sample((N,), generator=torch.Generator().manual_seed(5)).double()
    assert abs(lengths.mean().item() - 16) < 5 * math.sqrt(400 / N)


def test_extreme_draws_are_whole_numbers_of_sane_size():
    law = power_law(1e6, 2.01)
    lengths = law.sample((N,), generator=torch.Generator().manual_seed(6))
    assert int(lengths.min()) >= 1
    assert int(lengths.max()) > 10**8  # the tail is wild, and is there
    survival = law.survival(lengths.unique())
    assert bool((survival[1:] <= survival[:-1]).all())
    assert distribution_gap(lengths, law.survival) < allowed_gap(N, RATE)


@pytest.mark.parametrize("law", FINITE.values(), ids=FINITE)
def test_the_generator_is_an_argument_and_the_global_one_is_left_alone(law):
    law = law()
    before = global_generators()
    first, second, other = (law.sample((50,), generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert global_generators() == before
    assert torch.equal(first, second)
    all_but_certain = law.pmf(1) > 0.9 or isinstance(law, artbp.Fixed)
    assert all_but_certain or not torch.equal(first, other)
    assert law.sample((2, 3), generator=torch.Generator().manual_seed(0)).shape == (2, 3)


@pytest.mark.parametrize("block", [1, 2, 3, 4, 64])
@pytest.mark.parametrize(
    "law", [artbp.Geometric(mean=3), artbp.PowerLaw(mean=50, alpha=4), artbp.Tabulated([0.0, 0.3])]
)
def test_the_mean_of_blocks_in_blocks(law, block):
    inner = artbp.Truncation(law, block=3).law
    survival = inner.survival(torch.arange(0, 400_000, block)).numpy()
    assert artbp.Truncation(inner, block=block).mean == pytest.approx(block * survival.sum(), rel=1e-6)


def variance_in_blocks(mean, alpha, block):
    """Of PowerLaw's length rounded up: over p ~ Beta(a, b), given which the blocks beyond the first are geometric.

    In x = log(p/(1-p)) the integrand is analytic and dies away on both sides: equal steps converge exponentially.
    """
    a, b = alpha - 1, (alpha - 2) * (mean - 1)
    x = np.arange(-40 / (a - 2) - 30, 40 / b + 60, 0.02)
    rate = np.logaddexp(0, x)  # -log(1-p)
    weight = a * (x - rate) - b * rate
    weight = np.exp(weight - weight.max())
    more = np.exp(-block * rate)  # the probability of one more block
    first, second = (
        (weight * value).sum() / weight.sum()
        for value in (more / -np.expm1(-block * rate), more * (1 + more) / np.expm1(-block * rate) ** 2)
    )
    return block**2 * (second - first**2)


@pytest.mark.parametrize("block", [2, 8, 1000, 10**6])
@pytest.mark.parametrize(
    ("mean", "alpha"), [(50, 4), (50, 3.3), (16, 6), (1.01, 4), (2, 50), (1000, 3.5), (1e6, 4), (1e6, 30)]
)
def test_the_variance_of_the_power_law_in_blocks(mean, alpha, block):
    law = artbp.Truncation(artbp.PowerLaw(mean=mean, alpha=alpha), block=block).law
    assert law.variance == pytest.approx(variance_in_blocks(mean, alpha, block), rel=1e-10)


def test_the_variance_in_blocks_is_infinite_where_the_laws_is():
    for alpha in (2.01, 2.5, 3):
        law = artbp.Truncation(power_law(50, alpha), block=8).law
        assert law.variance == math.inf
        assert math.isfinite(law.mean)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64, 5000])
@pytest.mark.parametrize(
    "law", ["power_sharp", "geometric", "geometric_short", "tabulated", "tabulated_one", "bathtub"]
)
def test_the_variance_in_blocks_is_the_sum(law, block):
    law = FINITE[law]()
    chances = -np.diff(law.survival(np.arange(0, 400_000 + block, block)))
    lengths = block * np.arange(len(chances))  # beyond the first block, lest the difference of large squares is all
    expected = chances @ lengths**2.0 - (chances @ lengths) ** 2
    assert artbp.Truncation(law, block=block).law.variance == pytest.approx(expected, rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("block", [8, 5000])
def test_moments_in_blocks_of_a_law_that_is_a_hazard_and_no_more(block):
    """The same hazards with closed forms and without, where what lies beyond the last age is extrapolated."""
    closed, derived = (artbp.Truncation(law, block=block).law for law in (artbp.PowerLaw(50, 4), ByHand(50, 4)))
    assert derived.mean == pytest.approx(closed.mean, rel=1e-9)
    assert derived.variance == pytest.approx(closed.variance, rel=1e-7)


def test_blocks_too_large_to_sum_over_are_refused_with_a_way_out():
    law = artbp.Truncation(ByHand(50, 4), block=100_000).law
    check(
        lambda: law.variance,
        ValueError,
        r"variance of ByHand.* in blocks of 100000 cannot",
        r"smaller blocks.*PowerLaw",
    )


@pytest.mark.parametrize("block", [2, 4, 5])
@pytest.mark.parametrize("law", ["power_sharp", "geometric", "tabulated"])
def test_the_variance_of_blocks_in_blocks(law, block):
    law = FINITE[law]()
    inner = artbp.Truncation(law, block=3).law
    survival = inner.survival(np.arange(0, 40_000, block))
    second = block**2 * ((2 * np.arange(len(survival)) + 1) @ survival)
    assert artbp.Truncation(inner, block=block).law.variance == pytest.approx(
        second - (block * survival.sum()) ** 2, rel=1e-9
    )


def test_what_is_asked_of_a_law_in_blocks_far_out_takes_no_table():
    """A table of these ages would be of 8 TB."""
    block, age = 8, 8 * 10**11
    whole = artbp.PowerLaw(mean=50, alpha=4)
    law = artbp.Truncation(whole, block=block).law
    within = age - np.arange(block)
    assert law.pmf(age) == pytest.approx(whole.pmf(within).sum(), rel=1e-12)
    assert law.hazard(age) == pytest.approx(whole.hazard(within).sum(), rel=1e-9)
    assert law.pmf(age + 1) == law.hazard(age + 1) == 0
    assert law.survival(age + 5) == whole.survival(age)
    capped = artbp.Truncation(whole, cap=2 * age, block=block).law
    assert capped.pmf(age) == pytest.approx(law.pmf(age), rel=1e-12)
    assert capped.hazard(2 * age) == 1
    assert capped.pmf(2 * age) == pytest.approx(law.survival(2 * age - 1), rel=1e-12)


@pytest.mark.parametrize("block", [1, 8])
def test_the_variance_under_a_cap(block):
    for law, cap in ((artbp.PowerLaw(mean=50, alpha=4), 80_000), (artbp.Geometric(mean=20), 40), (Bathtub(), 16)):
        capped = artbp.Truncation(law, cap=cap, block=block).law
        survival = capped.survival(np.arange(cap))
        expected = (2 * np.arange(cap) + 1) @ survival - survival.sum() ** 2
        assert capped.variance == pytest.approx(expected, rel=1e-10)
    far = artbp.Truncation(artbp.PowerLaw(mean=50, alpha=4), cap=8 * 10**9, block=block).law
    near = artbp.Truncation(artbp.PowerLaw(mean=50, alpha=4), block=block).law
    beyond = 2 * near.survival(8 * 10**9 - 1) * 8e9**2  # E[L² - cap²; L > cap], the index of S being 3 out there
    assert far.variance == pytest.approx(near.variance - beyond, rel=1e-9)
    heavy = artbp.Truncation(power_law(50, 2.5), cap=8 * 10**9, block=block).law
    check(lambda: heavy.variance, ValueError, r"capped at 8000000000 would be a sum", r"alpha > 3|smaller cap")


@pytest.mark.parametrize("age", [0, -3, float("nan")])
@pytest.mark.parametrize("options", [{"block": 3}, {"cap": 30}])
def test_ages_of_derived_laws_count_from_one(options, age):
    law = artbp.Truncation(artbp.PowerLaw(mean=16, alpha=6), **options).law
    check(lambda: law.hazard(age), ValueError, r"ages count from 1", r"Pass ages of at least 1")
