"""Truncation: the same cuts at every altitude; options, streams, whole sequences, lanes and resets."""

import dataclasses
import math
import time
import warnings

import numpy as np
import pytest
import torch
from cuts import LAWS, OPTIONS, AnyObject, Custom, make, steps
from enumeration import allowed_gap, distribution_gap

import artbp

# ---- one law of cuts at every altitude -------------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("law", LAWS)
def test_step_segment_segments_and_links_agree(law, option):
    total = 120
    by_step = torch.tensor(steps(make(law, option), total), dtype=torch.float64)
    assert by_step[0] == 0.0

    cut, pieces = make(law, option), []
    while (passed := sum(map(len, pieces))) < total:
        pieces.append(cut.segment(remaining=total - passed))
    assert torch.equal(torch.cat(pieces), by_step)

    cut, free = make(law, option), []
    while sum(map(len, free)) < total:
        free.append(cut.segment())
    assert torch.equal(torch.cat(free)[:total], by_step)

    stream = torch.arange(total * 2.0).reshape(total, 2)
    yielded = list(make(law, option).segments(stream))
    assert torch.equal(torch.cat([links for _, links in yielded]), by_step)
    assert torch.equal(torch.cat([inputs for inputs, _ in yielded]), stream)

    whole = make(law, option).links(total)
    assert whole[0] == 1.0
    assert torch.equal(whole[1:], by_step[1:])


@pytest.mark.parametrize("law", LAWS)
def test_segments_begin_with_a_cut_and_hold_no_other(law):
    cut = make(law)
    for _ in range(30):
        links = cut.segment()
        assert links.dtype == torch.float64
        assert links.device.type == "cpu"
        assert links.ndim == 1
        assert links[0] == 0.0
        assert bool((links[1:] > 0).all())
        torch.testing.assert_close(links, LAWS[law]().links(len(links)), rtol=1e-13, atol=0)


def test_step_returns_floats():
    cut = make()
    assert all(type(factor) is float for factor in steps(cut, 20))


def test_any_object_with_a_hazard_is_a_law():
    by_class, by_object = artbp.Truncation(Custom(), seed=3), artbp.Truncation(AnyObject(), seed=3)
    assert steps(by_class, 50) == steps(by_object, 50)
    assert by_object.unbiased
    assert by_object.mean == pytest.approx(by_class.mean)


@pytest.mark.parametrize("option", ["plain", "block", "cap"])
@pytest.mark.parametrize("law", ["power", "geometric", "custom"])
def test_lengths_follow_the_law_that_the_options_make(law, option):
    """n = 20,000 segments, fixed seed, error rate 1e-6: the distribution function is known to 0.019."""
    cut, n = make(law, option), 20_000
    lengths = torch.tensor([len(cut.segment()) for _ in range(n)])
    hazard = LAWS[law]().hazard
    survival = np.cumprod([1.0] + [1.0 - float(hazard(age)) for age in range(1, int(lengths.max()) + 4)])
    if option == "cap":
        survival[6:] = 0.0
    if option == "block":  # P(rounded > n) = P(length > n rounded down to a multiple)
        survival = survival[np.arange(len(survival)) // 3 * 3]
    exact = torch.from_numpy(survival)
    assert distribution_gap(lengths, lambda n: exact[n]) < allowed_gap(n, 1e-6)
    if option == "block":
        assert not (lengths % 3).any()


# ---- options: what the mean is, and whether it is unbiased -----------------------------------------------------------


@pytest.mark.parametrize("law", ["power", "geometric", "tabulated", "custom"])
def test_mean_and_unbiased(law):
    hazard = LAWS[law]().hazard
    survival = np.cumprod([1.0] + [1.0 - float(hazard(age)) for age in range(1, 60_000)])
    expected = {
        "plain": survival.sum(),
        "bare": survival.sum(),
        "block": 3 * survival[::3].sum(),
        "cap": survival[:6].sum(),
        "both": 3 * survival[0:9:3].sum(),
    }
    for option, mean in expected.items():
        cut = make(law, option)
        assert cut.mean == pytest.approx(mean, rel=1e-7)
        assert cut.unbiased is (option in ("plain", "block"))
    assert not make("fixed").unbiased
    assert make("fixed").mean == 4
    assert make("fixed", "block").mean == 6
    assert artbp.Truncation(artbp.Never(), seed=0).mean == math.inf
    assert artbp.Truncation(artbp.Never(), seed=0).unbiased


def test_uncompensated_links_are_zero_or_one():
    links = torch.cat([make("power", "bare").segment() for _ in range(3)])
    assert set(links.tolist()) <= {0.0, 1.0}
    compensated, bare = make(), make("power", "bare")
    for _ in range(50):
        assert torch.equal(compensated.segment() == 0, bare.segment() == 0)  # the same cuts


def test_a_cap_leaves_the_links_below_it_alone():
    capped, law, longest = make("power", "cap"), LAWS["power"](), 0
    for _ in range(200):
        links = capped.segment()
        longest = max(longest, len(links))
        torch.testing.assert_close(links, law.links(len(links)), rtol=1e-13, atol=0)
    assert longest == 6


# ---- streams ---------------------------------------------------------------------------------------------------------


class Takes:
    """A stream with `take(n)` that ends in one of three ways."""

    def __init__(self, total, ending):
        self.data, self.position, self.ending, self.asked = torch.arange(total), 0, ending, []

    def take(self, n):
        self.asked.append(n)
        piece = self.data[self.position : self.position + n]
        self.position += len(piece)
        return None if self.ending == "none" and not len(piece) else {"x": piece, "y": (piece * 2.0,)}


@pytest.mark.parametrize("ending", ["none", "empty"])
@pytest.mark.parametrize("law", ["power", "fixed"])
def test_streams_that_are_taken_from(law, ending):
    for total in (1, 7, 8, 40):
        stream = Takes(total, ending)
        yielded = list(make(law).segments(stream))
        assert torch.equal(torch.cat([inputs["x"] for inputs, _ in yielded]), stream.data)
        assert all(len(inputs["y"][0]) == len(links) > 0 for inputs, links in yielded)
        assert torch.cat([links for _, links in yielded]).tolist() == steps(make(law), total)


@dataclasses.dataclass
class Holds:
    """A stream that is a tree of tensors as well: its own `take` is what it means."""

    data: torch.Tensor
    position: int = 0

    def take(self, n):
        self.position += n
        return self.data[self.position - n : self.position] * 2.0


def test_a_dataclass_that_is_a_stream():
    yielded = [inputs for inputs, _ in make("fixed").segments(Holds(torch.arange(10.0)))]
    assert torch.equal(torch.cat(yielded), 2.0 * torch.arange(10.0))


def test_streams_that_are_trees_of_tensors():
    tree = (torch.arange(10.0).reshape(10, 1), {"y": torch.arange(10)})
    yielded = list(make("fixed").segments(tree))
    assert [len(links) for _, links in yielded] == [4, 4, 2]
    assert [inputs[1]["y"].tolist() for inputs, _ in yielded] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(make("fixed").segments(torch.zeros(0, 2))) == []


def test_a_shortened_segment_is_finished():
    cut, again = make("fixed"), make("fixed")
    assert len(cut.segment(remaining=2)) == 2
    assert cut.segment().tolist() == again.segment().tolist() == [0.0, 1.0, 1.0, 1.0]
    assert cut.step() == 0.0


def test_nothing_is_held_that_the_stream_cannot_fill():
    """Lengths of 1e10 occur at alpha 2.01; a tensor of them would take 80 GB."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cut = artbp.Truncation(artbp.PowerLaw(mean=1e12, alpha=2.01), seed=0)
    begin = time.perf_counter()
    assert len(cut.segment(remaining=5)) == 5
    assert [len(links) for _, links in cut.segments(torch.zeros(9, 1))] == [9]
    assert cut.links(7).shape == (7,)
    assert cut.links(7, lanes=3).shape == (7, 3)
    assert len(steps(cut, 10)) == 10
    assert time.perf_counter() - begin < 20.0  # not a timing: it would take hours
    assert artbp.Truncation(artbp.Never(), seed=0).segment(remaining=4).tolist() == [0.0, 1.0, 1.0, 1.0]
    assert artbp.Truncation(artbp.Fixed(10**15), seed=0).segment(remaining=3).tolist() == [0.0, 1.0, 1.0]


# ---- whole sequences, lanes, resets ----------------------------------------------------------------------------------


def test_lanes_are_cut_independently():
    links = artbp.Truncation(artbp.Geometric(mean=2), seed=0).links(4000, lanes=3)
    assert links.shape == (4000, 3)
    assert links.dtype == torch.float64
    assert torch.equal(links[0], torch.ones(3, dtype=torch.float64))
    cuts = (links[1:] == 0).double()
    assert bool(((cuts.mean(0) - 0.5).abs() < 5 * 0.5 / math.sqrt(3999)).all())  # 5 sigma
    agree = (cuts[:, 0] == cuts[:, 1]).double().mean().item()
    assert abs(agree - 0.5) < 5 * 0.5 / math.sqrt(3999)


def test_every_call_of_links_is_a_new_sequence():
    cut = artbp.Truncation(artbp.Geometric(mean=3), seed=0)
    first, second = cut.links(50), cut.links(50)
    assert first[0] == second[0] == 1.0
    assert not torch.equal(first, second)
    assert cut.links(1).tolist() == [1.0]


@pytest.mark.parametrize("law", ["power", "fixed", "tabulated"])
def test_resets_cut_without_compensation_and_restart_the_age(law):
    resets = torch.zeros(60, dtype=torch.bool)
    resets[[7, 8, 30]] = True
    hazard = LAWS[law]().hazard
    cut, drawn = make(law), 0
    for _ in range(20):
        links, age = cut.links(60, resets=resets), 0
        for t in range(60):
            age = age + 1 if t else 0
            if resets[t] or (t and links[t] == 0.0):
                assert links[t] == 0.0
                drawn += not resets[t]
                age = 0
            elif t:
                assert links[t].item() == pytest.approx(
                    1.0 / (1.0 - float(hazard(age))) if float(hazard(age)) < 1 else 0.0, rel=1e-13
                )
        assert links[0] == 1.0
    assert drawn > 20  # the law still cuts of its own


def test_resets_per_lane():
    resets = torch.zeros(12, 2, dtype=torch.bool)
    resets[5, 0] = resets[0, 1] = resets[9, 1] = True
    links = artbp.Truncation(artbp.Never(), seed=0).links(12, lanes=2, resets=resets)
    assert torch.equal(links, (~resets).double())
    shared = artbp.Truncation(artbp.Never(), seed=0).links(12, lanes=2, resets=resets[:, 0])
    assert torch.equal(shared, (~resets[:, :1]).double().expand(12, 2))
    fixed = artbp.Truncation(artbp.Fixed(4), seed=0).links(12, lanes=2, resets=resets)
    assert (fixed[:, 0] == 0).nonzero().flatten().tolist() == [4, 5, 9]
    assert (fixed[:, 1] == 0).nonzero().flatten().tolist() == [0, 4, 8, 9]


def test_no_resets_are_no_change():
    none = torch.zeros(40, dtype=torch.bool)
    assert torch.equal(make().links(40, resets=none), make().links(40))
