"""Lanes against slices cut one by one; parts, resuming, what they cost, and what they refuse."""

import doctest
import io
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import VALUES, check

import artbp
from artbp import data
from artbp.data import Lanes

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", ">u2", ">i4"]


def symbols_of(N, dtype="u1"):
    return np.random.default_rng(N).integers(0, 100, N).astype(dtype)


def by_slices(symbols, B):
    """The specification: one list of inputs and one of targets for every lane."""
    S = (len(symbols) - 1) // B
    symbols = [int(symbol) for symbol in symbols]
    return [(symbols[b * S : b * S + S], symbols[b * S + 1 : b * S + S + 1]) for b in range(B)]


def rest_of(stream, n=3):
    """All that a stream still has, by lanes."""
    blocks = []
    while (block := stream.take(n)) is not None:
        blocks.append(block)
    if not blocks:
        return [([], [])] * stream.lanes
    inputs, targets = (torch.cat(parts).T.tolist() for parts in zip(*blocks, strict=True))
    return list(zip(inputs, targets, strict=True))


@st.composite
def streams(draw):
    lanes, of = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    N = draw(st.integers(lanes * of + 1, 150))
    takes = draw(st.lists(st.integers(1, 200), max_size=8))
    return N, lanes * of, of, takes, draw(st.sampled_from(DTYPES)), draw(st.sampled_from([1, 2, -1, -3]))


@settings(deadline=None, derandomize=True)
@given(streams())
def test_lanes_are_slices(case):
    """Any N, B and sequence of takes; the parts, put side by side, are the whole."""
    N, B, of, takes, dtype, stride = case
    symbols = symbols_of(N * abs(stride), dtype)[::stride][:N]
    whole, expected = by_slices(symbols, B), []
    for rank in range(of):
        stream = Lanes(symbols, B, part=(rank, of))
        assert (stream.lanes, stream.steps) == (B // of, (N - 1) // B)
        assert stream.remainder == N - 1 - B * stream.steps < B
        for n in takes:
            lanes, position = whole[rank * B // of : (rank + 1) * B // of], stream.position
            block = stream.take(n)
            if position == stream.steps:
                assert block is None
                assert stream.position == position
                continue
            assert stream.position == min(position + n, stream.steps)
            for side, found in enumerate(block):
                assert found.dtype == torch.int64
                assert found.T.tolist() == [lane[side][position : position + n] for lane in lanes]
        stream.rewind()
        assert stream.position == 0
        expected += rest_of(stream, 7)
    assert expected == whole


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_tensors_on_the_host_and_elsewhere(dtype):
    """A tensor that is not on the CPU is gathered by torch: here in a CPU tensor with an offset and a stride."""
    symbols = torch.from_numpy(symbols_of(300)).to(dtype)[7::2]
    for rank in range(2):
        expected = by_slices(symbols.tolist(), 6)[3 * rank : 3 * rank + 3]
        host, elsewhere = (Lanes(symbols, 6, part=(rank, 2)) for _ in range(2))
        assert np.shares_memory(host._symbols, symbols.numpy())
        elsewhere._symbols = symbols
        assert rest_of(host, 5) == rest_of(elsewhere, 5) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES[:8])
def test_lanes_on_a_gpu(dtype):
    symbols = symbols_of(5000, dtype)
    expected = by_slices(symbols, 8)
    assert rest_of(Lanes(symbols, 8, device="cuda"), 64) == expected
    if dtype in ("u1", "i4", "i8"):
        on_device = Lanes(torch.from_numpy(symbols).cuda(), 8)
        assert on_device.take(1)[0].is_cuda
        on_device.rewind()
        assert rest_of(on_device, 64) == expected


def test_large_symbols_stay_what_they_are():
    symbols = np.array([0, 2**16 - 1, 2**15, 7], np.uint16)
    assert Lanes(symbols, 1).take(3)[1].flatten().tolist() == [2**16 - 1, 2**15, 7]
    symbols = np.array([0, 2**32 - 1, 2**31, 7], np.uint32)
    assert Lanes(symbols, 1).take(3)[1].flatten().tolist() == [2**32 - 1, 2**31, 7]


def test_inputs_and_targets_are_the_callers_own():
    """Writing into the inputs changes neither the targets nor the text."""
    for dtype in ("u1", "i8"):
        symbols = symbols_of(41, dtype)
        kept = symbols.copy()
        stream = Lanes(symbols, 4)
        inputs, targets = stream.take(5)
        before = targets.clone()
        inputs.zero_()
        assert torch.equal(targets, before)
        targets.zero_()
        assert (symbols == kept).all()


# ---- with what takes a stream ----------------------------------------------------------------------------------------


def test_segments_and_estimators_take_lanes():
    symbols = symbols_of(1001)
    cut, stream = artbp.Truncation(artbp.PowerLaw(mean=8, alpha=4), seed=0), Lanes(symbols, 4)
    segments = list(cut.segments(stream))
    assert all(len(inputs) == len(targets) == len(links) for (inputs, targets), links in segments)
    found = [torch.cat(parts).T.tolist() for parts in zip(*(rows for rows, _ in segments), strict=True)]
    assert list(zip(*found, strict=True)) == by_slices(symbols, 4)
    assert len(segments) > 10

    parameter = torch.nn.Parameter(torch.zeros(()))
    step = artbp.unroll(lambda rows, state: ((parameter * rows[0] - rows[1]).square().sum(), state + parameter))
    for estimator in (artbp.estimators.TruncatedBPTT(7), artbp.estimators.UORO(seed=0)):
        stream.rewind()
        losses = [loss for loss, _ in estimator.stream(step, stream, torch.zeros(4))]
        assert sum(losses).item() == sum(y**2 for _, ys in by_slices(symbols, 4) for y in ys)
        assert stream.position == stream.steps


# ---- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(9))
def test_resume_anywhere_in_any_parts(position):
    """Saved after any number of steps by one process; the rest comes from one, two or four."""
    symbols = symbols_of(8 * 4 + 3)
    saving = Lanes(symbols, 4, part=(1, 2))
    if position:
        saving.take(position)
    buffer = io.BytesIO()
    torch.save(saving.state_dict(), buffer)
    assert saving.state_dict() == {"position": position, "steps": 8, "lanes": 4, "symbols": 35}
    expected = [(xs[position:], ys[position:]) for xs, ys in by_slices(symbols, 4)]
    for of in (1, 2, 4):
        found = []
        for rank in range(of):
            stream = Lanes(symbols, 4, part=(rank, of))
            stream.take(5)
            buffer.seek(0)
            stream.load_state_dict(torch.load(buffer, weights_only=True))
            assert stream.position == position
            found += rest_of(stream)
        assert found == expected


@pytest.mark.parametrize(
    ("N", "B", "what", "instead"),
    [
        (41, 5, r"saved in a stream of 4 lanes.* 5 lanes", r"lanes=4"),
        (45, 4, r"saved in a stream of 41 symbols.* 45 symbols", r"text"),
        (42, 4, r"41 symbols.*42 symbols", r"text"),  # as many steps
    ],
)
def test_a_state_of_another_stream_is_refused(N, B, what, instead):
    state = Lanes(symbols_of(41), 4).state_dict()
    check(lambda: Lanes(symbols_of(N), B).load_state_dict(state), ValueError, what, instead)


@pytest.mark.parametrize("position", [-1, 11, None, 2.5, "3"])
def test_a_position_outside_is_refused(position):
    stream = Lanes(symbols_of(41), 4)
    state = {**stream.state_dict(), "position": position}
    check(
        lambda: stream.load_state_dict(state), ValueError, rf"position {re.escape(repr(position))}.*10 steps", "saved"
    )
    assert stream.position == 0


# ---- cost ------------------------------------------------------------------------------------------------------------


def anonymous_memory():
    """Bytes that this process has for itself; pages of a mapped file are not among them."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024


def test_a_text_in_a_memory_map_is_not_copied(tmp_path):
    """64 MiB: less than 2 MiB are allocated, NumPy's by what tracemalloc saw, torch's by what the process holds."""
    N = 2**26
    with (tmp_path / "symbols").open("wb") as file:
        file.truncate(N)
    symbols = np.memmap(tmp_path / "symbols", np.uint8, mode="r")
    Lanes(symbols, 64).take(100)  # what torch allocates at its first call
    linux = Path("/proc/self/status").exists()
    before = anonymous_memory() if linux else 0
    tracemalloc.start()
    try:
        stream = Lanes(symbols, 64)
        for position in (0, stream.steps // 2, stream.steps - 100):
            stream.position = position
            kept = stream.take(100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept[0].shape == (100, 64)
    assert peak < 2**20
    if linux:
        assert anonymous_memory() - before < 2**21


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbols", "lanes", "what", "instead"),
    [
        (symbols_of(10), 10, r"10 symbols for 10 lanes.*11 symbols", r"at most 9 lanes.*longer text"),
        (symbols_of(1), 1, r"1 symbols for 1 lanes", r"longer text"),
        (symbols_of(0), 2, r"0 symbols for 2 lanes", r"longer text"),
        (symbols_of(10), 0, r"lanes got 0", r"int such as 64"),
        (symbols_of(10), -3, r"lanes got -3", r"int such as 64"),
        (symbols_of(10), 2.0, r"lanes got 2\.0", r"int such as 64"),
        (symbols_of(10), True, r"lanes got True", r"int such as 64"),
        (np.zeros(10), 2, r"float64", r"integers"),
        (torch.zeros(10), 2, r"torch\.float32", r"integers"),
        (torch.zeros(10, dtype=torch.bool), 2, r"torch\.bool", r"integers"),
        (np.zeros(10, bool), 2, r"bool", r"integers"),
        (np.array(["a", "b"]), 1, r"<U1", r"integers"),
        (np.zeros((5, 2), np.uint8), 2, r"shape \(5, 2\)", r"reshape|Truncation\.segments"),
        (torch.zeros(5, 2, dtype=torch.int64), 2, r"shape \(5, 2\)", r"reshape|Truncation\.segments"),
        (torch.tensor(3), 1, r"shape \(\)", r"reshape|Truncation\.segments"),
        ("some text", 2, r"type str", r"encoded"),
        ([1, 2, 3], 2, r"type list", r"NumPy array or tensor"),
    ],
)
def test_bad_symbols_and_lanes(symbols, lanes, what, instead):
    check(lambda: Lanes(symbols, lanes), VALUES, what, instead)


@pytest.mark.parametrize("part", [(2, 2), (-1, 2), (0, 0), (0,), 1, "ab", (0.0, 1.0), None])
def test_a_part_that_is_none(part):
    check(lambda: Lanes(symbols_of(50), 4, part=part), ValueError, rf"part got {re.escape(repr(part))}", r"\(0, 2\)")


def test_lanes_that_cannot_be_dealt_out():
    check(lambda: Lanes(symbols_of(50), 4, part=(0, 3)), ValueError, r"4 lanes.*evenly to 3", r"such as 6.*divide 4")


@pytest.mark.parametrize("n", [0, -1, 2.5, None, True, "3"])
def test_a_number_of_steps_that_is_none(n):
    stream = Lanes(symbols_of(50), 4)
    check(lambda: stream.take(n), ValueError, rf"take\(n\) got {re.escape(repr(n))}", r"int such as 50")
    assert stream.position == 0


def test_the_example_and_the_repr():
    assert doctest.testmod(data).failed == 0
    assert repr(Lanes(symbols_of(1001), 4)) == "Lanes(1,001 symbols, lanes=4, position=0 of 250)"
