"""Autocast, torch.compile, distributed data parallel, and torch's own samples for its recurrent modules."""

from __future__ import annotations

import copy
import importlib
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from recurrences import distance

import artbp.nn
from artbp.ops import dispatch

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

KINDS = [("LSTM", {}), ("GRU", {}), ("RNN", {}), ("LSTM", {"proj_size": 2})]
kinds = pytest.mark.parametrize(("name", "options"), KINDS)


def as_tuple(state: Any) -> tuple[torch.Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_gives_torch_nns_dtypes_and_float32_gradients(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    ours = getattr(artbp.nn, name)(6, 8, num_layers=2, **options)
    x = torch.randn(20, 4, 6)
    links = 0.8 + 0.5 * torch.rand(20, dtype=torch.float64)
    exact = copy.deepcopy(ours).double()
    exact(x.double(), links=links)[0].sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = ours(x.to(dtype), links=links)
        plain, plain_state = ours(x.to(dtype))
    assert [part.dtype for part in (output, *as_tuple(state))] == [p.dtype for p in (plain, *as_tuple(plain_state))]
    output.float().sum().backward()
    found = [parameter.grad for parameter in ours.parameters()]
    assert all(gradient.dtype is torch.float32 for gradient in found)
    assert distance(found, [parameter.grad for parameter in exact.parameters()]) <= 2e-2


@pytest.mark.parametrize("inside", [False, True])
def test_under_autocast_small_compensations_add_up(inside: bool) -> None:
    """Constant links of 1.0015 over 2,000 steps, through an LSTM that keeps its cell: the weight is 20, within 1%."""
    T, B, H = 2000, 2, 2
    layer = artbp.nn.LSTM(1, H)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias_ih_l0[H : 2 * H] = 30.0
    hx = tuple(torch.ones(1, B, H, requires_grad=True) for _ in range(2))
    links = torch.full((T,), 1.0015, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, (_, c) = layer(torch.zeros(T, B, 1), hx, links=links)
        loss = c.float().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert hx[1].grad is not None
    assert (hx[1].grad / 1.0015**T - 1).abs().max() <= 0.01


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_backward_called_inside_autocast_is_the_forwards(name: str, dtype: torch.dtype) -> None:
    layer = getattr(artbp.nn, name)(3, 4, dtype=dtype)
    x, links = torch.randn(9, 2, 3, dtype=dtype), torch.rand(9, dtype=torch.float64)
    output = layer(x, links=links)[0].sum()
    expected = torch.autograd.grad(output, list(layer.parameters()), retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(output, list(layer.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class Embedded(torch.nn.Module):
    """A layer between compiled parts."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer = getattr(artbp.nn, name)(3, 4, num_layers=2)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, links: torch.Tensor | None) -> torch.Tensor:
        y, state = self.layer(2 * x, links=links)
        return self.head(y).tanh().sum() + sum(part.sum() for part in as_tuple(state))


@pytest.fixture
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad attribute")
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_compiled_models_follow_the_links(name: str) -> None:
    """Other links, and other lengths, in every call: the same as eager, and no links frozen into the code."""
    model = Embedded(name)
    compiled = torch.compile(model, backend="eager")
    for T in (6, 6, 9, 4):
        x, links = torch.randn(T, 2, 3), 0.5 + torch.rand(T, dtype=torch.float64)
        for given in (links, None, links.flip(0)):
            expected = torch.autograd.grad(model(x, given), list(model.parameters()))
            found = torch.autograd.grad(compiled(x, given), list(model.parameters()))
            assert distance(list(found), [gradient.double() for gradient in expected]) <= 1e-6
    with artbp.nn.linked(links):
        expected = torch.autograd.grad(model(x, None), list(model.parameters()))
        found = torch.autograd.grad(compiled(x, None), list(model.parameters()))
    assert distance(list(found), [gradient.double() for gradient in expected]) <= 1e-6


def test_distributed_data_parallel(tmp_path: Any) -> None:
    """One process of a group of one: hooks fire, parameters are found used, gradients arrive."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    importlib.import_module("torch.distributed.nn.functional")  # in time: a group there is by then, it keeps for ever
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        layer = artbp.nn.LSTM(3, 4, num_layers=2)
        plain = copy.deepcopy(layer)
        wrapped = torch.nn.parallel.DistributedDataParallel(layer)
        x, links = torch.randn(6, 2, 3), torch.rand(6, dtype=torch.float64)
        wrapped(x, links=links)[0].sum().backward()
        plain(x, links=links)[0].sum().backward()
        for ours, expected in zip(layer.parameters(), plain.parameters(), strict=True):
            assert ours.grad is not None
            assert expected.grad is not None
            assert torch.equal(ours.grad, expected.grad)
    finally:
        wrapped = None  # only a group that nobody holds joins its threads when it is destroyed
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def common_modules() -> Any:
    """torch's inputs for its module tests, imported without what that import does to the process."""
    with pytest.MonkeyPatch.context() as patch:
        if "expecttest" not in sys.modules:  # torch's helpers derive from it; nothing here takes snapshots
            stub: Any = types.ModuleType("expecttest")
            stub.TestCase = unittest.TestCase
            patch.setitem(sys.modules, "expecttest", stub)
        patch.setattr(torch.backends, "disable_global_flags", lambda: None)
        return pytest.importorskip("torch.testing._internal.common_modules", exc_type=ImportError)


def samples(common_modules: Any, name: str, dtype: torch.dtype, training: bool) -> list[Any]:
    """torch's own inputs for its module tests, but for the bidirectional ones."""
    common = {"device": "cpu", "dtype": dtype, "requires_grad": True, "training": training}
    if name == "LSTM":
        found = common_modules.module_inputs_torch_nn_LSTM(None, **common)
    else:
        found = common_modules.module_inputs_torch_nn_RNN_GRU(
            None, is_rnn=name == "RNN", with_packed_sequence=True, **common
        )
    return [sample for sample in found if not sample.constructor_input.kwargs["bidirectional"]]


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_torchs_own_samples(common_modules: Any, name: str, dtype: torch.dtype, training: bool, linked: bool) -> None:
    """torch's module tests with our classes: the forward is its reference's, with links as without."""
    found = samples(common_modules, name, dtype, training)
    assert len(found) >= 8
    for sample in found:
        arguments, options = sample.constructor_input.args, sample.constructor_input.kwargs
        torch.manual_seed(0)
        layer = getattr(artbp.nn, name)(*arguments, **options, dtype=dtype).train(training)
        theirs = getattr(torch.nn, name)(*arguments, **options, dtype=dtype).train(training)
        theirs.load_state_dict(layer.state_dict())
        inputs = sample.forward_input.args
        more: dict[str, Any] = {}
        if linked:
            first = inputs[0]
            packed = isinstance(first, torch.nn.utils.rnn.PackedSequence)
            T = len(first.batch_sizes) if packed else first.shape[0]
            more["links"] = torch.tensor([0.5, *[2.0] * (T - 1)], dtype=torch.float64)
        output = layer(*inputs, **more)
        expected = theirs(*inputs)
        torch.testing.assert_close(output, expected)
        if sample.reference_fn is not None and not isinstance(inputs[0], torch.nn.utils.rnn.PackedSequence):
            reference = sample.reference_fn(layer, *inputs)
            torch.testing.assert_close(output, reference)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_torchs_gradcheck_passes_where_links_are_one_but_given(name: str) -> None:
    """gradcheck knows no links, so it is run where they must not matter: on one step's edge from a constant state."""
    layer = getattr(artbp.nn, name)(2, 3, num_layers=2, dtype=torch.float64)
    x = torch.randn(1, 2, 2, dtype=torch.float64, requires_grad=True)
    links = torch.tensor([[3.0, 0.5]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda value: layer(value, links=links)[0], (x,))
    assert torch.autograd.gradgradcheck(lambda value: layer(value, links=links)[0], (x,))


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_transforms_of_torch_func_see_the_links(name: str) -> None:
    """Under torch.func nothing requires grad in the usual way: the links must count all the same."""
    layer = getattr(artbp.nn, name)(3, 4, dtype=torch.float64)
    x, links = torch.randn(5, 2, 3, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    parameters = {key: value.detach() for key, value in layer.named_parameters()}

    def loss(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(layer, given, (x,), {"links": links})[0].square().sum()

    found = torch.func.grad(loss)(parameters)
    layer(x, links=links)[0].square().sum().backward()
    expected = [parameter.grad for parameter in layer.parameters()]
    assert distance(list(found.values()), expected) <= 1e-10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_mode_sees_the_links() -> None:
    """Forward mode is the transpose: the same bilinear form from either side."""
    layer = artbp.nn.GRU(3, 4, dtype=torch.float64).requires_grad_(False)
    x, v = torch.randn(2, 5, 2, 3, dtype=torch.float64).unbind(0)
    links, u = torch.rand(5, dtype=torch.float64), torch.randn(5, 2, 4, dtype=torch.float64)
    with torch.autograd.forward_ad.dual_level():
        output = layer(torch.autograd.forward_ad.make_dual(x, v), links=links)[0]
        forward = (torch.autograd.forward_ad.unpack_dual(output).tangent * u).sum()
    leaf = x.clone().requires_grad_()
    backward = (torch.autograd.grad(layer(leaf, links=links)[0], leaf, u)[0] * v).sum()
    assert torch.allclose(forward, backward, rtol=1e-12)


def test_links_first_seen_in_inference_mode_train_as_any_others() -> None:
    """Checked links are kept: what inference mode made of them may not reach a backward."""
    layer = artbp.nn.LSTM(3, 4)
    x, links = torch.randn(11, 2, 3), 0.5 + torch.rand(11, dtype=torch.float64)
    with torch.inference_mode():
        layer(x, links=links)
    found = torch.autograd.grad(layer(x, links=links)[0].sum(), list(layer.parameters()))
    expected = torch.autograd.grad(layer(x, links=links.unsqueeze(1).expand(-1, 2))[0].sum(), list(layer.parameters()))
    assert distance(list(found), [gradient.double() for gradient in expected]) <= 2e-6


@pytest.mark.parametrize("steps", [5, 40])
@pytest.mark.parametrize("lanes", [(), (4,)])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_the_first_use_of_all_is_in_inference_mode(name: str, lanes: tuple[int, ...], steps: int) -> None:
    """The probe of a path needs gradients there too; enable_grad, which some evaluation loops add, changes nothing."""
    layer, x = getattr(artbp.nn, name)(2, 3), torch.randn(steps, 4, 2)
    links = torch.ones(steps, *lanes, dtype=torch.float64)
    links[2] = 0.0
    dispatch.forget()
    with torch.inference_mode():
        inside = layer(x, links=links)[0]
        with torch.enable_grad():
            torch.testing.assert_close(layer(x, links=links)[0], inside)
    torch.testing.assert_close(inside, layer(x, links=links)[0].detach())
