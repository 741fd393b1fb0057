"""Bad input to laws and Truncation: what was passed and why it cannot work, and what to do instead.

Each case is a call, the error's type, words of the first part and words of the second, by content and not by exact
text.
"""

import math
import re

import numpy as np
import pytest
import torch
from messages import VALUES, check

import artbp


class Says(artbp.Law):
    """A law whose hazard is whatever it was told."""

    def __init__(self, answer):
        self.answer = answer

    def hazard(self, age):
        return self.answer


def cut(law=None, **options):
    return artbp.Truncation(artbp.PowerLaw(mean=6, alpha=4) if law is None else law, seed=0, **options)


# ---- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "what", "instead"),
    [
        (
            lambda: artbp.PowerLaw(mean=1, alpha=4),
            r"mean.*\b1\b",
            r"above 1|greater than 1|larger|> 1|more than 1|Fixed",
        ),
        (lambda: artbp.PowerLaw(mean=0.5, alpha=4), r"mean.*0\.5", r"above 1|greater than 1|larger|> 1|more than 1"),
        (lambda: artbp.PowerLaw(mean=-3, alpha=4), r"mean.*-3", r"above 1|greater than 1|larger|> 1|more than 1"),
        (
            lambda: artbp.PowerLaw(mean=math.nan, alpha=4),
            r"mean.*nan",
            r"above 1|greater than 1|finite|> 1|more than 1",
        ),
        (lambda: artbp.PowerLaw(mean=math.inf, alpha=4), r"mean.*inf", r"finite|Never"),
        (lambda: artbp.PowerLaw(mean=16, alpha=2), r"alpha.*\b2\b", r"above 2|greater than 2|larger|> 2|more than 2"),
        (lambda: artbp.PowerLaw(mean=16, alpha=-1.0), r"alpha.*-1", r"above 2|greater than 2|larger|> 2|more than 2"),
        (
            lambda: artbp.PowerLaw(mean=16, alpha=math.nan),
            r"alpha.*nan",
            r"above 2|greater than 2|finite|> 2|more than 2",
        ),
        (lambda: artbp.PowerLaw(mean=16, alpha=math.inf), r"alpha.*inf", r"finite|Geometric"),
        (lambda: artbp.Geometric(mean=1), r"mean.*\b1\b", r"above 1|greater than 1|larger|> 1|more than 1|Fixed"),
        (lambda: artbp.Geometric(mean=math.nan), r"mean.*nan", r"above 1|greater than 1|finite|> 1|more than 1"),
        (lambda: artbp.Fixed(0), r"length.*\b0\b", r"1|positive|at least"),
        (lambda: artbp.Fixed(-2), r"length.*-2", r"1|positive|at least"),
        (lambda: artbp.Fixed(2.5), r"length.*2\.5", r"whole|integer|int\b"),
        (
            lambda: artbp.Tabulated([]),
            r"hazard.*(empty|none|no )|(empty|none|no ).*hazard",
            r"at least|pass|give|end the table",
        ),
        (
            lambda: artbp.Tabulated([0.5, 0.0]),
            r"last.*0|0.*last",
            r"> 0|above 0|positive|Never|greater than 0|more than 0",
        ),
        (lambda: artbp.Tabulated([0.5, 1.0]), r"1\.0|\bone\b", r"below 1|Fixed|less than|< 1"),
        (lambda: artbp.Tabulated([1.5, 0.2]), r"1\.5", r"\[0, ?1\)|below 1|< 1|between"),
        (lambda: artbp.Tabulated([-0.1, 0.2]), r"-0\.1", r"\[0, ?1\)|at least 0|between|<="),
        (lambda: artbp.Tabulated([0.1, math.nan]), r"nan", r"\[0, ?1\)|number|between|<="),
    ],
)
def test_laws_that_cannot_be(call, what, instead):
    check(call, VALUES, what, instead)


@pytest.mark.parametrize("use", ["survival", "links", "step", "segment", "sample"])
@pytest.mark.parametrize(("answer", "said"), [(1.0, r"1|one"), (1.5, r"1\.5"), (-0.25, r"-0\.25"), (math.nan, r"nan")])
def test_hazards_of_ones_own_that_are_no_probabilities(answer, said, use):
    """A hazard of one would need an infinite compensation; only Fixed, which owns up to its bias, has it."""
    law = Says(answer)
    calls = {
        "survival": lambda: law.survival(3),
        "links": lambda: law.links(3),
        "step": lambda: [cut(law).step() for _ in range(1)] and [c := cut(law), c.step(), c.step()],
        "segment": lambda: cut(law).segment(5),
        "sample": lambda: law.sample((3,), generator=torch.Generator().manual_seed(0)),
    }
    check(
        calls[use],
        VALUES,
        f"hazard.*({said})|({said}).*hazard",
        r"\[0, ?1\)|below 1|less than|< ?1|between|Fixed|probabilit",
    )


def test_a_hazard_from_the_state_is_checked_as_well():
    class Looks(artbp.Law):
        needs_state = True

        def hazard(self, age, state):
            return state

    stepping = cut(Looks())
    stepping.step(0.5)
    check(
        lambda: stepping.step(1.0),
        VALUES,
        r"hazard.*1|1.*hazard",
        r"\[0, ?1\)|below 1|less than|< ?1|between|Fixed|probabilit",
    )


@pytest.mark.parametrize("hazard", [1.0, 1.5, -0.25, math.nan])
@pytest.mark.parametrize("options", [{}, {"cap": 3}, {"compensate": False}], ids=["plain", "cap", "bare"])
def test_a_law_that_owns_up_to_its_bias_is_checked_as_well(options, hazard):
    """Only a cap's own cut is certain; a negative hazard would make links below one."""

    class Looks(artbp.Law):
        needs_state = True
        unbiased = False

        def hazard(self, age, state):
            return state

    stepping = cut(Looks(), **options)
    stepping.step(0.5)
    check(lambda: stepping.step(hazard), VALUES, f"hazard.*{hazard}", r"\[0, 1\).*Fixed")


def test_a_cap_cuts_a_law_that_looks_at_the_state():
    class Looks(artbp.Law):
        needs_state = True

        def hazard(self, age, state):
            return 0.0

    stepping = cut(Looks(), cap=3)
    assert [stepping.step() for _ in range(7)] == [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]


def test_a_law_that_is_no_law():
    check(lambda: artbp.Truncation(50), VALUES, r"50|int", r"hazard|Law|Fixed|PowerLaw")
    check(lambda: artbp.Truncation(object()), VALUES, r"object", r"hazard|Law")


def test_draws_without_a_generator_do_not_fall_back_on_the_global_one():
    before = torch.get_rng_state()
    try:
        artbp.PowerLaw(mean=6, alpha=4).sample((3,))
    except TypeError as error:
        message = str(error)
        assert "generator" in message
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("length", [0, -1, 2.5])
def test_links_of_no_length(length):
    check(
        lambda: artbp.PowerLaw(mean=6, alpha=4).links(length),
        VALUES,
        f"length.*{re.escape(str(length))}",
        r"1|whole|integer|positive",
    )


def test_fixed_has_no_links_beyond_its_cut():
    check(lambda: artbp.Fixed(5).links(6), VALUES, r"6.*5|5.*6", r"at most|up to|<=|shorter|longer|Fixed")


# ---- truncation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, -1, 2.5, "3", math.nan])
def test_blocks_that_are_no_whole_number(block):
    check(lambda: cut(block=block), VALUES, f"block.*{re.escape(str(block))}", r"whole|integer|positive|at least|int\b")


@pytest.mark.parametrize("cap", [0, -1, 2.5])
def test_caps_that_are_no_whole_number(cap):
    check(lambda: cut(cap=cap), VALUES, f"cap.*{re.escape(str(cap))}", r"whole|integer|positive|at least|int\b|None")


def test_a_cap_within_a_block():
    check(lambda: cut(block=4, cap=10), VALUES, r"cap.*10|10.*cap", r"multiple|8|12")


@pytest.mark.parametrize(
    "law", [artbp.Never(), artbp.Fixed(10**15), artbp.Geometric(mean=1e15)], ids=["never", "fixed", "geometric"]
)
def test_a_segment_too_long_to_hold(law):
    error = (ValueError, RuntimeError)
    check(lambda: cut(law).segment(), error, r"never|inf|long|steps|memory|hold", r"remaining")


@pytest.mark.parametrize("remaining", [0, -1, 2.5])
def test_a_stream_with_nothing_left(remaining):
    check(
        lambda: cut().segment(remaining=remaining),
        VALUES,
        f"remaining.*{re.escape(str(remaining))}",
        r"1|whole|stop|end|positive|integer",
    )


def test_an_open_segment():
    stepping = cut(artbp.Fixed(4))
    stepping.step()
    stepping.step()
    check(stepping.segment, RuntimeError, r"open|step|middle", r"reset\(\)")


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_sequences_of_no_length(steps):
    check(lambda: cut().links(steps), VALUES, re.escape(str(steps)), r"1|whole|integer|positive")


@pytest.mark.parametrize("lanes", [0, -1, 2.5])
def test_lanes_that_are_no_whole_number(lanes):
    check(
        lambda: cut().links(5, lanes=lanes), VALUES, f"lanes.*{re.escape(str(lanes))}", r"1|whole|integer|positive|None"
    )


@pytest.mark.parametrize(
    ("resets", "lanes", "instead"),
    [
        (torch.zeros(5, 2, dtype=torch.bool), None, r"lanes ?= ?2"),
        (torch.zeros(4, dtype=torch.bool), None, r"\(5,\)|5"),
        (torch.zeros(5, 3, dtype=torch.bool), 2, r"\(5, 2\)|lanes"),
        (torch.zeros(5, 2, 1, dtype=torch.bool), 2, r"\(5, 2\)|lanes|\(T"),
        (torch.zeros(5), None, r"bool"),
    ],
)
def test_resets_of_the_wrong_shape_or_kind(resets, lanes, instead):
    check(lambda: cut().links(5, lanes=lanes, resets=resets), VALUES, r"resets", instead)


def test_a_stream_that_cannot_be_taken_from():
    check(lambda: list(cut().segments(iter([1, 2, 3]))), VALUES, r"stream|iterator", r"take\(|tensor")
    unequal = (torch.zeros(5, 1), torch.zeros(6, 1))
    check(lambda: list(cut().segments(unequal)), VALUES, r"5.*6|6.*5", r"same|equal|length|first dim|one size")


def test_a_state_of_another_kind_or_broken():
    check(
        lambda: cut().load_state_dict(cut(block=2).state_dict()),
        VALUES,
        r"block|law|configur",
        r"same|construct|block|law",
    )
    check(lambda: cut().load_state_dict({}), (ValueError, TypeError), r"state", r"state_dict")
    broken = {**cut().state_dict(), "age": 7, "length": 3}
    check(lambda: cut().load_state_dict(broken), VALUES, r"age 7.*3 steps", r"saved")


class NumpyStream:
    def take(self, n):
        return np.zeros((n, 2))


@pytest.mark.parametrize("stream", [np.zeros((7, 2)), NumpyStream()], ids=["array", "stream"])
def test_numpy_is_no_stream_that_has_ended(stream):
    check(lambda: list(cut().segments(stream)), VALUES, r"no tensor", r"from_numpy|tensors")


@pytest.mark.parametrize(
    ("call", "what", "instead"),
    [
        (lambda: artbp.PowerLaw(mean="50", alpha=4), r"mean.*'50'", r"number"),
        (lambda: artbp.PowerLaw(mean=50, alpha=None), r"alpha.*None", r"number"),
        (lambda: artbp.Geometric([]), r"mean", r"number"),
        (lambda: artbp.Tabulated(0.5), r"0\.5", r"list"),
        (lambda: artbp.Tabulated(torch.zeros(2, 2)), r"one hazard for each age", r"list"),
        (lambda: artbp.Fixed(3).links("a"), r"'a'", r"int"),
        (lambda: artbp.PowerLaw(mean=5, alpha=4).hazard(math.nan), r"nan", r"at least 1"),
        (lambda: artbp.Truncation(artbp.Never(), seed="a"), r"seed.*'a'", r"int"),
        (lambda: artbp.Truncation(artbp.Never(), seed=2**64), r"seed.*18446744073709551616", r"64 bits.*int"),
        (lambda: artbp.Truncation(artbp.Never(), generator=0), r"generator 0", r"torch\.Generator\(\)"),
        (lambda: Says(0.1).survival(1e10), r"10,000,000,000", r"PowerLaw|Override"),
    ],
)
def test_what_is_no_number_or_too_large(call, what, instead):
    check(call, VALUES, what, instead)


def test_numbers_of_other_kinds_are_numbers():
    """What passes through JSON, numpy or a tensor is the same law, and loads the same state."""
    state = artbp.Truncation(artbp.PowerLaw(mean=50, alpha=4), seed=0).state_dict()
    for mean, alpha in ((50.0, 4.0), (np.float32(50), np.int64(4)), (torch.tensor(50.0), 4)):
        law = artbp.PowerLaw(mean=mean, alpha=alpha)
        assert type(law.mean) is float
        assert repr(law) == "PowerLaw(mean=50, alpha=4)"
        artbp.Truncation(law, seed=np.int64(0)).load_state_dict(state)


def test_a_table_cannot_be_changed_behind_the_check():
    table = [0.1, 0.5]
    law = artbp.Tabulated(table)
    table[0] = 1.5
    assert law.hazard(1) == 0.1
    with pytest.raises(TypeError):
        law.hazards[0] = 1.5


def test_an_object_that_says_it_is_biased():
    biased = type("Mine", (), {"hazard": lambda self, age: 0.1, "unbiased": False})()
    assert not artbp.Truncation(biased).unbiased
