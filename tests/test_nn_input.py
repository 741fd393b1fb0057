"""Bad input: every error says what was passed and why it cannot work, then what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import artbp.nn

T, B, I, H = 5, 3, 2, 4
X = torch.randn(T, B, I)
LINKS = torch.full((T,), 1.1, dtype=torch.float64)
NAN = float("nan")


def lstm(**options: Any) -> artbp.nn.LSTM:
    return artbp.nn.LSTM(I, H, **options)


def test_links_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"links is a list: a layer takes a tensor.*torch\.as_tensor"):
        lstm()(X, links=[1.0] * T)
    with pytest.raises(ValueError, match=r"links require grad: .*Pass links\.detach\(\)"):
        lstm()(X, links=LINKS.clone().requires_grad_())
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=rf"links are {dtype}: .*Pass float64 or float32"):
            lstm()(X, links=torch.ones(T, dtype=dtype))
    with pytest.raises(ValueError, match=r"links are on meta: .*Keep them on the CPU"):
        lstm()(X, links=torch.ones(T, device="meta"))


@pytest.mark.parametrize("bad", [-0.1, float("inf"), NAN])
@pytest.mark.parametrize("per_lane", [False, True])
def test_links_of_impossible_values(bad: float, per_lane: bool) -> None:
    links = torch.ones((T, B) if per_lane else T)
    links[2] = bad
    with pytest.raises(
        ValueError, match=r"links hold values from .* to .*: a factor must be finite and at least 0.*Draw"
    ):
        lstm()(X, links=links)
    with torch.no_grad(), pytest.raises(ValueError, match="links hold values"):
        lstm()(X, links=links)


@pytest.mark.parametrize("shape", [(T + 1,), (T - 1,), (T, B + 1), (B, T), (T, B, 1), (1, T), (), (0,)])
def test_links_of_the_wrong_shape(shape: tuple[int, ...]) -> None:
    message = r"links have shape .*, but this input has 5 steps of 3 lanes: .*\(T, B\), here \(5,\) or \(5, 3\).*Take"
    with pytest.raises(ValueError, match=message):
        lstm()(X, links=torch.ones(shape))


def test_links_in_the_other_layout() -> None:
    with pytest.raises(ValueError, match=r"\(T,\) or \(B, T\), here \(5,\) or \(3, 5\)"):
        lstm(batch_first=True)(X.transpose(0, 1), links=torch.ones(T, B))
    with pytest.raises(ValueError, match=r"\(T,\) or \(B, T\), here \(5,\) or \(3, 5\)"):
        lstm()(pack_padded_sequence(X, [5, 4, 2]), links=torch.ones(T, B))
    with pytest.raises(ValueError, match=r"has 5 steps: one factor for each step is needed, \(T,\), here \(5,\)"):
        lstm()(X[:, 0], links=torch.ones(T, 1))


def test_inputs_of_the_wrong_rank_and_size() -> None:
    with pytest.raises(ValueError, match=r"LSTM: Expected input to be 2D or 3D, got 4D.*Reshape it"):
        lstm()(X[None], links=LINKS)
    with pytest.raises(
        RuntimeError, match=r"input\.size\(-1\) must be equal to input_size\. Expected 2, got 3.*Project"
    ):
        lstm()(torch.randn(T, B, 3), links=LINKS)
    with pytest.raises(RuntimeError, match=r"Expected sequence length to be larger than 0.*Skip the call"):
        lstm()(X[:0], links=LINKS[:0])


def test_states_of_the_wrong_rank_and_size() -> None:
    state = torch.zeros(1, B, H)
    with pytest.raises(
        RuntimeError, match=r"For batched 3-D input, hx should also be 3-D but got 2-D, 2-D.*\(num_layers, B"
    ):
        lstm()(X, (state[0], state[0]), links=LINKS)
    with pytest.raises(RuntimeError, match=r"For unbatched 2-D input, hx should also be 2-D but got 3-D, 3-D.*Pass hx"):
        lstm()(X[:, 0], (state, state), links=LINKS)
    with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size \(1, 3, 4\), got \[1, 2, 4\]: .*Pass the state"):
        lstm()(X, (state[:, :2], state), links=LINKS)
    with pytest.raises(RuntimeError, match=r"Expected hidden\[1\] size \(1, 3, 4\), got \[2, 3, 4\]"):
        lstm()(X, (state, state.repeat(2, 1, 1)), links=LINKS)
    with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size \(1, 4\), got \[1, 3\]"):
        lstm()(X[:, 0], (torch.zeros(1, 3), torch.zeros(1, 4)), links=LINKS)
    with pytest.raises(RuntimeError, match=r"Expected hidden size \(1, 3, 4\), got \[1, 3, 5\]"):
        artbp.nn.GRU(I, H)(X, torch.zeros(1, B, 5), links=LINKS)
    with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size \(1, 3, 4\), got \[1, 2, 4\]"):
        lstm()(pack_padded_sequence(X, [5, 4, 2]), (state[:, :2], state[:, :2]), links=LINKS)


def test_states_of_the_wrong_kind() -> None:
    state = torch.zeros(1, B, H)
    with pytest.raises(
        TypeError, match=r"hx is a Tensor of 1: the state of this layer is a pair \(h0, c0\).*Pass what"
    ):
        lstm()(X, state, links=LINKS)
    with pytest.raises(TypeError, match=r"hx is a tuple of 1: the state of this layer is one tensor, h0"):
        artbp.nn.GRU(I, H)(X, (state, state), links=LINKS)


def test_mixed_dtypes_and_devices() -> None:
    state = torch.zeros(1, B, H)
    with pytest.raises(
        ValueError, match=r"RNN input dtype \(torch\.float64\) does not match weight dtype.*input\.to\(torch"
    ):
        lstm()(X.double(), links=LINKS)
    with pytest.raises(ValueError, match=r"RNN hx dtype \(torch\.float64\) does not match weight dtype.*hx\.to\(torch"):
        lstm()(X, (state.double(), state), links=LINKS)
    with pytest.raises(RuntimeError, match=r"input is on meta, the weights are on cpu: .*input\.to\('cpu'\)"):
        lstm()(X.to("meta"), links=LINKS)
    with pytest.raises(RuntimeError, match=r"hx is on meta, the weights are on cpu: .*hx\.to\('cpu'\)"):
        lstm()(X, (state.to("meta"), state), links=LINKS)


@pytest.mark.parametrize("kind", [artbp.nn.LSTM, artbp.nn.GRU, artbp.nn.RNN])
def test_bidirectional_is_refused(kind: Any) -> None:
    words = rf"{kind.__name__}\(bidirectional=True\) is bidirectional: .*carries the future.*Use one direction"
    with pytest.raises(ValueError, match=words):
        kind(I, H, bidirectional=True)


@pytest.mark.parametrize("kind", [artbp.nn.LSTM, artbp.nn.GRU, artbp.nn.RNN])
def test_without_links_the_errors_are_torch_nns(kind: Any) -> None:
    with pytest.raises(RuntimeError, match=r"input\.size\(-1\) must be equal to input_size\. Expected 2, got 3$"):
        kind(I, H)(torch.randn(T, B, 3))


@pytest.mark.parametrize("rising", [False, True])
def test_float16_carries_products_it_could_not_hold(rising: bool) -> None:
    """The product passes 1e8 or 1e-8 and comes back to 1: computed in float32, it has lost nothing on the way."""
    layer = artbp.nn.RNN(1, 1, nonlinearity="relu", bias=False, dtype=torch.float16)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.fill_(1.0)
    links = torch.ones(9, dtype=torch.float64)
    links[1:5], links[5:] = (0.01, 100.0) if rising else (100.0, 0.01)
    x = torch.full((9, 1, 1), 0.5, dtype=torch.float16, requires_grad=True)
    layer(x, links=links)[0][-1].sum().backward()
    assert x.grad is not None
    expected = torch.cat([links[1:].flip(0).cumprod(0).flip(0), torch.ones(1, dtype=torch.float64)]).half()
    assert torch.isinf(expected).any() or (expected == 0).any()
    assert torch.allclose(x.grad.flatten(), expected, rtol=2e-3, atol=0)
