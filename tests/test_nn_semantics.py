"""What users of torch.nn's layers expect: stacks, layouts, packed sequences, dropout, states, copies."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from recurrences import distance
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import artbp.nn
from artbp.ops import naive

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

LAYERS = [("LSTM", {}), ("GRU", {}), ("RNN", {}), ("RNN", {"nonlinearity": "relu"}), ("LSTM", {"proj_size": 2})]
NAMES = [f"{name}{list(options.values()) or ''}" for name, options in LAYERS]
layers = pytest.mark.parametrize(("name", "options"), LAYERS, ids=NAMES)


def build(name: str, options: dict[str, Any], **more: Any) -> tuple[Any, Any]:
    """Ours and torch.nn's, with the same parameters, in float64 unless told otherwise."""
    more = {"dtype": torch.float64, **options, **more}
    torch.manual_seed(0)
    ours = getattr(artbp.nn, name)(3, 4, **more)
    theirs = getattr(torch.nn, name)(3, 4, **more)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def states(layer: Any, lanes: int | None, dtype: torch.dtype = torch.float64) -> Any:
    lead = (layer.num_layers,) if lanes is None else (layer.num_layers, lanes)
    h = torch.randn(*lead, layer.proj_size or layer.hidden_size, dtype=dtype).requires_grad_()
    return (h, torch.randn(*lead, layer.hidden_size, dtype=dtype).requires_grad_()) if layer.mode == "LSTM" else h


def as_tuple(state: Any) -> tuple[torch.Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def specification(layer: Any, x: torch.Tensor, hx: Any, links: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The stack by the naive twin, x (T, B, I), links (T,) or (T, B), no dropout."""
    flat = layer._flat_weights
    size = len(flat) // layer.num_layers
    finals = []
    for index in range(layer.num_layers):
        w_ih, w_hh, *rest = flat[index * size : (index + 1) * size]
        weights = (w_ih, w_hh, *rest) if layer.bias else (w_ih, w_hh, None, None, *rest)
        x, final = naive.recurrence(layer.mode, x, tuple(part[index] for part in as_tuple(hx)), weights, links)
        finals.append(final)
    return x, tuple(torch.stack(parts) for parts in zip(*finals, strict=True))


def gradients(output: Any, state: Any, wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of a fixed, uneven function of outputs and final states."""
    data = output.data if isinstance(output, PackedSequence) else output
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (part * torch.randn(part.shape, generator=generator, dtype=torch.float64)).sum()
        for part in (data, *as_tuple(state))
    )
    return list(torch.autograd.grad(loss, wanted, materialize_grads=True))


def uneven_links(T: int, B: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    links = 0.7 + torch.rand((T,) if B is None else (T, B), generator=generator, dtype=torch.float64)
    return links.masked_fill(torch.rand(links.shape, generator=generator) < 0.2, 0.0)


@layers
@pytest.mark.parametrize("per_lane", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_stacks_are_the_specifications(
    name: str, options: dict[str, Any], num_layers: int, bias: bool, per_lane: bool
) -> None:
    ours, theirs = build(name, options, num_layers=num_layers, bias=bias)
    x, hx = torch.randn(6, 2, 3, dtype=torch.float64, requires_grad=True), states(ours, 2)
    links = uneven_links(6, 2 if per_lane else None)
    wanted = [x, *as_tuple(hx), *ours.parameters()]
    output, state = ours(x, hx, links=links)
    assert torch.allclose(output, theirs(x, hx)[0], rtol=1e-12, atol=1e-14)
    expected = specification(ours, x, hx, links)
    assert distance([output, *as_tuple(state)], [expected[0], *expected[1]]) <= 1e-10
    assert distance(gradients(output, state, wanted), gradients(*expected, wanted)) <= 1e-10


@layers
@pytest.mark.parametrize("links", [None, torch.ones(6), torch.ones(6, 2, dtype=torch.float64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_without_links_it_is_torch_nn_itself(
    name: str, options: dict[str, Any], links: Any, dtype: torch.dtype
) -> None:
    ours, theirs = build(name, options, num_layers=2, dtype=dtype)
    x, hx = torch.randn(6, 2, 3, dtype=dtype, requires_grad=True), states(ours, 2, dtype)
    results = []
    for layer in (ours, theirs):
        output, state = layer(x, hx, links=links) if layer is ours else layer(x, hx)
        loss = output.sum() + sum(part.sum() for part in as_tuple(state))
        results.append([output, *as_tuple(state), *torch.autograd.grad(loss, [x, *as_tuple(hx), *layer.parameters()])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@layers
@pytest.mark.parametrize("first", [0.0, 1.7])
def test_a_factor_on_the_first_edge_alone_costs_nothing(name: str, options: dict[str, Any], first: float) -> None:
    ours, _ = build(name, options, num_layers=2)
    x, hx = torch.randn(6, 2, 3, dtype=torch.float64), states(ours, 2)
    links = torch.ones(6, dtype=torch.float64)
    links[0] = first
    output, state = ours(x, hx, links=links)
    assert "Weighted" not in str(output.grad_fn)
    assert "Batched" not in str(output.grad_fn)
    wanted = [*as_tuple(hx), *ours.parameters()]
    assert distance(gradients(output, state, wanted), gradients(*specification(ours, x, hx, links), wanted)) <= 1e-10


@layers
@pytest.mark.parametrize("per_lane", [False, True])
def test_batch_first(name: str, options: dict[str, Any], per_lane: bool) -> None:
    ours, _ = build(name, options, num_layers=2)
    first, _ = build(name, options, num_layers=2, batch_first=True)
    x, hx = torch.randn(6, 2, 3, dtype=torch.float64), states(ours, 2)
    links = uneven_links(6, 2 if per_lane else None)
    output, state = ours(x, hx, links=links)
    turned, turned_state = first(x.transpose(0, 1), hx, links=links.t() if per_lane else links)
    assert torch.equal(turned.transpose(0, 1), output)
    expected = gradients(output, state, [*as_tuple(hx), *ours.parameters()])
    found = gradients(turned.transpose(0, 1), turned_state, [*as_tuple(hx), *first.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@layers
@pytest.mark.parametrize("batch_first", [False, True])
def test_unbatched_input(name: str, options: dict[str, Any], batch_first: bool) -> None:
    ours, theirs = build(name, options, num_layers=2, batch_first=batch_first)
    x, hx, links = torch.randn(6, 3, dtype=torch.float64), states(ours, None), uneven_links(6)
    output, state = ours(x, hx, links=links)
    plain, plain_state = theirs(x, hx)
    assert [part.shape for part in (output, *as_tuple(state))] == [p.shape for p in (plain, *as_tuple(plain_state))]
    lifted = tuple(part.unsqueeze(1) for part in as_tuple(hx))
    expected = specification(ours, x.unsqueeze(1), lifted, links)
    wanted = [*as_tuple(hx), *ours.parameters()]
    found = gradients(output.unsqueeze(1), tuple(p.unsqueeze(1) for p in as_tuple(state)), wanted)
    assert distance(found, gradients(*expected, wanted)) <= 1e-10


@layers
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("per_lane", [False, True])
@pytest.mark.parametrize("given_state", [False, True])
def test_packed_sequences(
    name: str, options: dict[str, Any], enforce_sorted: bool, per_lane: bool, given_state: bool
) -> None:
    """Each sequence by itself gives the same; links come in the order in which the sequences were packed."""
    ours, theirs = build(name, options, num_layers=2)
    lengths = [6, 6, 4, 1] if enforce_sorted else [4, 6, 1, 6]
    x = torch.randn(6, 4, 3, dtype=torch.float64, requires_grad=True)
    hx = states(ours, 4) if given_state else None
    links = uneven_links(6, 4) if per_lane else uneven_links(6)
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=enforce_sorted)
    output, state = ours(packed, hx, links=links.t() if per_lane else links)
    plain, plain_state = theirs(packed, hx)
    assert torch.allclose(output.data, plain.data, rtol=1e-12, atol=1e-14)
    for part, expected in zip(as_tuple(state), as_tuple(plain_state), strict=True):
        assert torch.allclose(part, expected, rtol=1e-12, atol=1e-14)
    wanted = [x, *(as_tuple(hx) if given_state else ()), *ours.parameters()]
    weight = torch.randn(6, 4, output.data.shape[-1], dtype=torch.float64)
    loss = (pad_packed_sequence(output)[0] * weight).sum() + sum(part.square().sum() for part in as_tuple(state))
    found = list(torch.autograd.grad(loss, wanted))
    start = hx if given_state else tuple(torch.zeros(2, 4, p.shape[-1], dtype=torch.float64) for p in as_tuple(state))
    alone = torch.zeros((), dtype=torch.float64)
    for lane, length in enumerate(lengths):
        own = tuple(part[:, lane : lane + 1] for part in as_tuple(start))
        factors = links[:length, lane] if per_lane else links[:length]
        y, final = specification(ours, x[:length, lane : lane + 1], own, factors)
        alone = alone + (y[:, 0] * weight[:length, lane]).sum() + sum(part.square().sum() for part in final)
    assert distance(found, list(torch.autograd.grad(alone, wanted))) <= 1e-10


@layers
def test_dropout_draws_what_torch_nn_draws(name: str, options: dict[str, Any]) -> None:
    ours, theirs = build(name, options, num_layers=3, dropout=0.5)
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    torch.manual_seed(3)
    dropped = ours(x, links=uneven_links(6))[0]
    torch.manual_seed(3)
    assert torch.allclose(dropped, theirs(x)[0], rtol=1e-12, atol=1e-14)
    ours.eval()
    theirs.eval()
    assert torch.allclose(ours(x, links=uneven_links(6))[0], theirs(x)[0], rtol=1e-12, atol=1e-14)


@layers
def test_the_given_links_may_change_after_the_call(name: str, options: dict[str, Any]) -> None:
    ours, _ = build(name, options)
    x, links = torch.randn(6, 2, 3, dtype=torch.float64), uneven_links(6)
    expected = gradients(*ours(x, links=links), list(ours.parameters()))
    output, state = ours(x, links=links)
    links.zero_()
    assert all(
        torch.equal(a, b) for a, b in zip(gradients(output, state, list(ours.parameters())), expected, strict=True)
    )


@layers
def test_links_of_any_float_and_inputs_of_any_stride(name: str, options: dict[str, Any]) -> None:
    ours, _ = build(name, options)
    x, links = torch.randn(6, 2, 3, dtype=torch.float64), uneven_links(6, 2).float()
    expected = gradients(*ours(x, links=links.double()), list(ours.parameters()))
    strided = torch.randn(3, 2, 12, dtype=torch.float64)[:, :, ::2].permute(2, 1, 0).copy_(x)
    wide = torch.zeros(6, 4).copy_(links.repeat(1, 2))[:, :2]
    found = gradients(*ours(strided, links=wide), list(ours.parameters()))
    assert distance(found, expected) <= 1e-12


@layers
def test_without_gradients_the_stock_forward_runs(name: str, options: dict[str, Any]) -> None:
    ours, theirs = build(name, options)
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(ours(x, links=uneven_links(6))[0], theirs(x)[0])
    ours.requires_grad_(False)
    assert not ours(x, links=uneven_links(6))[0].requires_grad


@layers
def test_outputs_may_be_changed_in_place(name: str, options: dict[str, Any]) -> None:
    """As torch.nn's may, before anyone reads them."""
    ours, _ = build(name, options)
    x, links = torch.randn(6, 2, 3, dtype=torch.float64), uneven_links(6)
    _, state = ours(x, links=links)
    for part in as_tuple(state):
        part.mul_(2.0)
    sum(part.sum() for part in as_tuple(state)).backward()
    _, state = ours(x, links=links)
    expected = torch.autograd.grad(sum(part.sum() for part in as_tuple(state)), list(ours.parameters()))
    for parameter, once in zip(ours.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * once)


@layers
def test_a_model_goes_to_torch_nn_and_back(name: str, options: dict[str, Any]) -> None:
    ours, theirs = build(name, options, num_layers=2)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    buffer = io.BytesIO()
    torch.save(theirs.state_dict(), buffer)
    buffer.seek(0)
    ours.load_state_dict(torch.load(buffer, weights_only=True))
    assert isinstance(ours, type(theirs))


@layers
def test_copies_and_pickles(name: str, options: dict[str, Any]) -> None:
    ours, _ = build(name, options, num_layers=2)
    x, links = torch.randn(6, 2, 3, dtype=torch.float64), uneven_links(6)
    expected = gradients(*ours(x, links=links), list(ours.parameters()))
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        found = gradients(*twin(x, links=links), list(twin.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_functional_call_uses_the_given_parameters() -> None:
    ours, _ = build("GRU", {})
    x, links = torch.randn(6, 2, 3, dtype=torch.float64), uneven_links(6)
    given = {key: (2 * value.detach()).requires_grad_() for key, value in ours.named_parameters()}
    output, state = torch.func.functional_call(ours, given, (x,), {"links": links})
    found = gradients(output, state, list(given.values()))
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(2)
    expected = gradients(*ours(x, links=links), list(ours.parameters()))
    assert distance(found, expected) <= 1e-12


def test_flattening_parameters_is_quietly_unnecessary(recwarn: pytest.WarningsRecorder) -> None:
    ours, _ = build("LSTM", {})
    ours.flatten_parameters()
    ours(torch.randn(6, 2, 3, dtype=torch.float64), links=uneven_links(6))[0].sum().backward()
    assert not recwarn.list


@layers
def test_double_backward(name: str, options: dict[str, Any]) -> None:
    ours, _ = build(name, options, num_layers=2)
    x, links = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True), uneven_links(4)
    parameters = list(ours.parameters())

    def penalty(output: torch.Tensor) -> list[torch.Tensor]:
        first = torch.autograd.grad(output.square().sum(), [x, *parameters], create_graph=True)
        return list(torch.autograd.grad(sum(part.square().sum() for part in first), [x, *parameters]))

    zeros = tuple(torch.zeros(2, 2, p.shape[-1], dtype=torch.float64) for p in as_tuple(ours(x)[1]))
    assert distance(penalty(ours(x, links=links)[0]), penalty(specification(ours, x, zeros, links)[0])) <= 1e-10


@pytest.mark.parametrize("batch_first", [False, True])
def test_the_links_of_a_single_lane_are_shared_ones(batch_first: bool) -> None:
    layer = artbp.nn.LSTM(2, 3, batch_first=batch_first)
    x = torch.randn((1, 7, 2) if batch_first else (7, 1, 2), requires_grad=True)
    links = artbp.Truncation(artbp.PowerLaw(mean=3, alpha=4), seed=0).links(7)
    columns = links[None] if batch_first else links[:, None]
    for one, other in zip(
        *(torch.autograd.grad(layer(x, links=given)[0].sum(), [x, *layer.parameters()]) for given in (links, columns)),
        strict=True,
    ):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="one factor for each step"):
        layer(x, links=columns.T)
