"""Properties of laws and blocks over the whole range of their parameters, extremes included, by hypothesis."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import artbp

MEANS = st.floats(1.0 + 1e-9, 1e6) | st.floats(1.0 + 1e-9, 3.0)
ALPHAS = st.floats(2.01, 50.0)
EXAMPLES = settings(max_examples=120, deadline=None, derandomize=True)


def power_law(mean, alpha):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return artbp.PowerLaw(mean=mean, alpha=alpha)


def hazards(law, ages):
    return np.array([law.hazard(age) for age in range(1, ages + 1)])


@EXAMPLES
@given(MEANS, ALPHAS)
def test_hazard_and_survival(mean, alpha):
    law = power_law(mean, alpha)
    hazard = hazards(law, 300)
    np.testing.assert_allclose(hazard, (alpha - 1) / ((alpha - 2) * mean + np.arange(1, 301)), rtol=1e-14)
    assert bool(((hazard > 0) & (hazard < 1)).all())
    survival = law.survival(np.arange(301))
    assert survival[0] == 1.0
    # 1 - hazard(1) alone is known to 1e-16 / (1 - hazard(1)) relative, so that is what can be asked where it is tiny
    tolerance = 1e-11 + 1e-15 / (1.0 - hazard[0])
    np.testing.assert_allclose(survival[1:], np.exp(np.cumsum(np.log1p(-hazard))), rtol=tolerance)
    assert bool((np.diff(survival) <= 0).all())


@EXAMPLES
@given(MEANS, ALPHAS, st.integers(1, 10**12))
def test_far_out(mean, alpha, n):
    law = power_law(mean, alpha)
    assert 0.0 <= law.survival(n) <= law.survival(n - 1) <= 1.0
    assert law.pmf(n) >= 0.0
    assert law.pmf(n) == pytest.approx(law.survival(n - 1) * law.hazard(n), rel=1e-9, abs=1e-300)


@EXAMPLES
@given(MEANS, ALPHAS)
def test_the_mean_is_the_sum_of_the_survival(mean, alpha):
    """Σ_{n<N} P(L > n) + P(L > N) ((α-2) L0 + N)/(α-2) = L0: the tail follows from the hazard by induction."""
    law = power_law(mean, alpha)
    head = float(np.sum(law.survival(np.arange(2000))))
    tail = law.survival(2000) * ((alpha - 2) * mean + 2000) / (alpha - 2)
    assert head + tail == pytest.approx(mean, rel=1e-9)
    assert law.mean == pytest.approx(mean, rel=1e-15)


@EXAMPLES
@given(MEANS, ALPHAS, st.integers(1, 3000))
def test_pmf_sums_to_one_with_the_tail(mean, alpha, n):
    law = power_law(mean, alpha)
    assert float(np.sum(law.pmf(np.arange(1, n + 1)))) + law.survival(n) == pytest.approx(1.0, abs=1e-10)


@EXAMPLES
@given(st.floats(1.0 + 1e-6, 1e6), ALPHAS, st.integers(1, 2000))
def test_links_multiply_to_one_over_the_survival(mean, alpha, length):
    law = power_law(mean, alpha)
    links = law.links(length)
    assert links.shape == (length,)
    weight = links[1:].log().sum().item()
    assert weight == pytest.approx(-math.log(law.survival(length - 1)), rel=1e-9, abs=1e-9)


@EXAMPLES
@given(MEANS, ALPHAS, st.integers(0, 2**31))
def test_draws_are_lengths(mean, alpha, seed):
    law = power_law(mean, alpha)
    lengths = law.sample((100,), generator=torch.Generator().manual_seed(seed))
    assert lengths.dtype == torch.int64
    assert int(lengths.min()) >= 1


@EXAMPLES
@given(MEANS, ALPHAS, st.integers(0, 50), st.integers(1, 40), st.integers(0, 2**31))
def test_a_segment_never_exceeds_the_stream(mean, alpha, remaining, block, seed):
    cut = artbp.Truncation(power_law(mean, alpha), seed=seed, block=block)
    for _ in range(5):
        links = cut.segment(remaining=remaining + 1)
        assert 1 <= len(links) <= remaining + 1
        assert links[0] == 0.0
        assert bool((links[1:] >= 1.0).all())
        assert bool(torch.isfinite(links).all())


@EXAMPLES
@given(st.floats(1.001, 1e6))
def test_geometric(mean):
    law = artbp.Geometric(mean=mean)
    n = np.arange(200)
    np.testing.assert_allclose(law.survival(n), np.exp(n * math.log1p(-1 / mean)), rtol=1e-11)
    assert law.variance == pytest.approx(mean * (mean - 1), rel=1e-12)
    assert law.mean == pytest.approx(mean, rel=1e-15)


@EXAMPLES
@given(st.lists(st.floats(0.0, 0.99), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_tabulated(table, last):
    law = artbp.Tabulated([*table, last])
    survival = np.cumprod([1.0, *(1 - np.array([*table, last]))])
    np.testing.assert_allclose(law.survival(np.arange(len(survival))), survival, rtol=1e-12)
    assert law.mean == pytest.approx(survival[:-2].sum() + survival[-2] / last, rel=1e-12)


@EXAMPLES
@given(MEANS, ALPHAS)
def test_unbiased_laws_keep_everything(mean, alpha):
    law = power_law(mean, alpha)
    assert law.unbiased
    for lag in (0, 1, 10, 10_000):
        assert law.retention(lag) == pytest.approx(1.0, abs=1e-12)


@EXAMPLES
@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_fixed_keeps_a_triangle(length, lag):
    law = artbp.Fixed(length)
    assert law.retention(lag) == pytest.approx(max(0.0, 1 - lag / length), abs=1e-12)
    assert not law.unbiased


# ---- blocks ----------------------------------------------------------------------------------------------------------


def rounded_mean(law, block, scale, alpha, terms=4000):
    """k Σ_m P(L > mk): the head by brute force, the tail as the sum over all n plus half the rounding.

    Between multiples of k the tail is all but straight, so k Σ_{m≥M} P(L > mk) = Σ_{n≥Mk} P(L > n) + (k-1)/2 P(L > Mk)
    + curvature.
    """
    head = block * float(np.sum(law.survival(block * np.arange(terms))))
    edge = terms * block
    tail = law.survival(edge) * (scale + edge) / (alpha - 2) + 0.5 * (block - 1) * law.survival(edge)
    curvature = (block**2 - 1) / (12 * block) * law.pmf(edge) * block
    return head + tail + curvature


@EXAMPLES
@given(st.floats(1.001, 1e4), ALPHAS, st.integers(1, 40))
def test_block_links_and_mean(mean, alpha, block):
    law = power_law(mean, alpha)
    cut = artbp.Truncation(law, seed=0, block=block)
    assert cut.mean == pytest.approx(rounded_mean(law, block, (alpha - 2) * mean, alpha), rel=1e-8)
    assert cut.unbiased
    lengths = 0
    for _ in range(3):
        links = cut.segment(remaining=200)
        lengths += len(links)
        assert len(links) % block == 0 or len(links) == 200
        for age in range(1, len(links)):
            expected = 1.0
            if age % block == 0:
                expected = math.exp(-sum(math.log1p(-law.hazard(a)) for a in range(age - block + 1, age + 1)))
            assert links[age].item() == pytest.approx(expected, rel=1e-9)
    assert lengths >= 3


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(MEANS, ALPHAS, st.integers(1, 10**6))
def test_survival_over_long_stretches(mean, alpha, n):
    """The ratio of two survivals is the product of what lies between: to ten digits, anywhere."""
    law = power_law(mean, alpha)
    between = (alpha - 1) / ((alpha - 2) * mean + np.arange(n + 1, n + 5001))
    expected = np.log1p(-between).sum()
    assert math.log(law.survival(n + 5000) / law.survival(n)) == pytest.approx(expected, rel=1e-6, abs=1e-9)
