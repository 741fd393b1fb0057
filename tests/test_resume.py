"""What a Truncation remembers: resets, resuming within a segment, generators, and laws that look at the state."""

import io
import math
import random

import pytest
import torch
from cuts import AnyObject, Looks, make, steps
from enumeration import global_generators

import artbp

# ---- reset, resume, generators ---------------------------------------------------------------------------------------


def test_reset_begins_a_segment():
    cut = artbp.Truncation(artbp.Fixed(4), seed=0)
    assert steps(cut, 2) == [0.0, 1.0]
    cut.reset()
    assert steps(cut, 5) == [0.0, 1.0, 1.0, 1.0, 0.0]


def test_an_open_segment_is_refused_until_it_ends_or_is_reset():
    cut = artbp.Truncation(artbp.Fixed(3), seed=0)
    steps(cut, 2)
    with pytest.raises(RuntimeError, match=r"(?s)reset\(\).*step\(|step\(.*reset\("):
        cut.segment()
    cut.step()
    assert len(cut.segment()) == 3  # the one before has ended
    cut.step()
    cut.reset()
    assert len(cut.segment()) == 3


@pytest.mark.parametrize(
    ("law", "option"), [("power", "plain"), ("custom", "block"), ("tabulated", "cap"), ("geometric", "bare")]
)
def test_resume_anywhere_bitwise(law, option):
    """1,000 draws; the state saved before each of 200 random ones gives the rest again, in another object."""
    points = set(random.Random(0).sample(range(1000), 200))
    cut, draws, saved = make(law, option), [], {}
    for t in range(1000):
        if t in points:
            buffer = io.BytesIO()
            torch.save(cut.state_dict(), buffer)
            saved[t] = buffer.getvalue()
        draws.append(cut.step())
    fresh = make(law, option, seed=99)
    for t, content in saved.items():
        fresh.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))
        assert steps(fresh, 1000 - t) == draws[t:]


def test_resume_between_segments_and_sequences():
    cut = make()
    lengths = [cut.segment() for _ in range(5)]
    state = cut.state_dict()
    expected = [cut.segment() for _ in range(5)], cut.links(30, lanes=2), steps(cut, 7)
    for other in (make(seed=7), cut):
        other.load_state_dict(state)
        assert all(map(torch.equal, [other.segment() for _ in range(5)], expected[0]))
        assert torch.equal(other.links(30, lanes=2), expected[1])
        assert steps(other, 7) == expected[2]
    assert lengths


@pytest.mark.parametrize("pause", range(5))
def test_a_stream_goes_on_where_it_stood(pause):
    """Saved inside the loop over `segments`, with the position reached: the rest comes as if nothing had happened."""
    stream, cut = torch.arange(100), make()
    whole = list(make().segments(stream))
    position = 0
    for count, (inputs, _) in enumerate(cut.segments(stream)):
        position += len(inputs)
        if count == pause:
            state = cut.state_dict()
            break
    fresh = make(seed=9)
    fresh.load_state_dict(state)
    rest = list(fresh.segments(stream[position:]))
    assert len(rest) == len(whole) - pause - 1
    for found, expected in zip(rest, whole[pause + 1 :], strict=True):
        assert all(map(torch.equal, found, expected))


def test_the_saved_state_is_a_snapshot_of_plain_things():
    cut = make()
    steps(cut, 5)
    state = cut.state_dict()
    copy = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    steps(cut, 50)
    assert all(type(value) in (int, float, str, bool, type(None), torch.Tensor) for value in state.values())
    assert all(
        torch.equal(state[key], copy[key]) if isinstance(copy[key], torch.Tensor) else state[key] == copy[key]
        for key in copy
    )


def test_any_object_resumes_in_another_process():
    """Another process has another object of the same class, at another address."""
    cut = artbp.Truncation(AnyObject(), seed=0)
    steps(cut, 33)
    state, expected = cut.state_dict(), steps(cut, 50)
    fresh = artbp.Truncation(AnyObject(), seed=1)
    fresh.load_state_dict(state)
    assert steps(fresh, 50) == expected
    assert "0x" not in str(state)


@pytest.mark.parametrize(
    "other",
    [
        lambda: make("power", "block"),
        lambda: make("power", "cap"),
        lambda: make("power", "bare"),
        lambda: make("geometric"),
        lambda: artbp.Truncation(artbp.PowerLaw(mean=7, alpha=4), seed=0),
    ],
)
def test_a_state_of_another_configuration_is_refused(other):
    with pytest.raises(ValueError, match=r"(?is)block|cap|compensate|law|PowerLaw"):
        other().load_state_dict(make().state_dict())


def test_the_global_generators_stay_where_they_are():
    before = global_generators()
    for seed in (None, 0):
        cut = artbp.Truncation(artbp.PowerLaw(mean=6, alpha=4), seed=seed)
        cut.segment()
        cut.links(20, lanes=3)
        steps(cut, 20)
        artbp.Truncation(AnyObject(), seed=seed).segment()
    assert global_generators() == before


def test_without_a_seed_every_object_is_its_own():
    torch.manual_seed(0)
    first = artbp.Truncation(artbp.PowerLaw(mean=6, alpha=4)).links(200)
    torch.manual_seed(0)
    assert not torch.equal(first, artbp.Truncation(artbp.PowerLaw(mean=6, alpha=4)).links(200))


def test_a_generator_given_is_the_one_used():
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    first = artbp.Truncation(artbp.PowerLaw(mean=6, alpha=4), generator=generator).links(100)
    assert not torch.equal(generator.get_state(), before)
    again = artbp.Truncation(artbp.PowerLaw(mean=6, alpha=4), generator=torch.Generator().manual_seed(5)).links(100)
    assert torch.equal(first, again)


# ---- a law that looks at the state -----------------------------------------------------------------------------------


def test_step_with_a_state():
    """Frequencies at each (age, state) by a binomial of 5 sigma (6e-7 each); links exact."""
    cut, age, seen = artbp.Truncation(Looks(), seed=0), 0, {}
    assert cut.step({"size": 1.0}) == 0.0
    for t in range(20_000):
        size = 1.0 + t % 2
        age += 1
        hazard = min(0.9, 0.1 * age * size)
        factor = cut.step({"size": size})
        count, cuts = seen.get((age, size), (0, 0))
        seen[age, size] = count + 1, cuts + (factor == 0.0)
        assert factor == 0.0 or factor == pytest.approx(1.0 / (1.0 - hazard), rel=1e-14)
        age = 0 if factor == 0.0 else age
    for (age, size), (count, cuts) in seen.items():
        hazard = min(0.9, 0.1 * age * size)
        if count * hazard * (1 - hazard) > 25:
            assert abs(cuts - count * hazard) < 5 * math.sqrt(count * hazard * (1 - hazard))
    assert len(seen) > 8


def test_a_law_with_a_state_resumes_too():
    cut = artbp.Truncation(Looks(), seed=0)
    [cut.step({"size": 0.5}) for _ in range(33)]
    state = cut.state_dict()
    expected = [cut.step({"size": 0.5}) for _ in range(100)]
    other = artbp.Truncation(Looks(), seed=1)
    other.load_state_dict(state)
    assert [other.step({"size": 0.5}) for _ in range(100)] == expected


@pytest.mark.parametrize(
    "call", [lambda cut: cut.segment(5), lambda cut: list(cut.segments(torch.zeros(5))), lambda cut: cut.links(5)]
)
def test_a_law_with_a_state_is_stepped_only(call):
    with pytest.raises(TypeError, match=r"(?is)state.*step|step.*state"):
        call(artbp.Truncation(Looks(), seed=0))
