"""What torch's own tests ask of its recurrent modules, asked of ours: inputs, errors, and the habits they check.

The list follows torch's test_modules.py and the recurrent part of its test_nn.py; inputs and bad inputs are those of
`torch.testing._internal.common_modules`, which every wheel carries (`test_nn_environments.py` runs the forwards).
"""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from typing import Any

import pytest
import torch
from test_nn_environments import common_modules, samples

import artbp.nn

__all__ = ["common_modules"]  # a fixture

pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
    pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last"),
]

NAMES = ["LSTM", "GRU", "RNN"]
names = pytest.mark.parametrize("name", NAMES)


def links_for(source: Any, batch_first: bool) -> torch.Tensor:
    """Uneven ones for an input of torch's, with a cut."""
    if isinstance(source, torch.nn.utils.rnn.PackedSequence):
        steps = len(source.batch_sizes)
    else:
        steps = source.shape[1 if batch_first and source.dim() == 3 else 0]
    links = torch.linspace(0.8, 1.3, steps, dtype=torch.float64)
    links[steps // 2] = 0.0
    return links


def flat(result: Any) -> list[torch.Tensor]:
    output, state = result
    data = output.data if isinstance(output, torch.nn.utils.rnn.PackedSequence) else output
    return [data, *(state if isinstance(state, tuple) else (state,))]


def gradients(layer: Any, *arguments: Any, **options: Any) -> list[torch.Tensor]:
    parts = flat(layer(*arguments, **options))
    return list(torch.autograd.grad(sum(part.square().sum() for part in parts), list(layer.parameters())))


def built(name: str, sample: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    constructor = sample.constructor_input
    return getattr(artbp.nn, name)(*constructor.args, **{**constructor.kwargs, "dtype": torch.float64, **more})


@names
def test_copies_of_every_sample_compute_the_same(common_modules: Any, name: str) -> None:
    for sample in samples(common_modules, name, torch.float64, training=False):
        layer = built(name, sample).eval()
        inputs = sample.forward_input.args
        links = links_for(inputs[0], layer.batch_first)
        expected = gradients(layer, *inputs, links=links)
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert repr(twin) == repr(layer)
            found = gradients(twin, *inputs, links=links)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@names
def test_inputs_of_any_strides_compute_the_same(common_modules: Any, name: str) -> None:
    def spread(tensor: Any) -> Any:
        if isinstance(tensor, tuple):
            return tuple(map(spread, tensor))
        wide = tensor.detach().repeat_interleave(2, dim=-1)[..., ::2]
        assert tensor.numel() < 2 or not wide.is_contiguous()
        return wide

    for sample in samples(common_modules, name, torch.float64, training=False):
        inputs = sample.forward_input.args
        if isinstance(inputs[0], torch.nn.utils.rnn.PackedSequence):
            continue
        layer = built(name, sample).eval()
        links = links_for(inputs[0], layer.batch_first)
        found = gradients(layer, *map(spread, inputs), links=links)
        assert all(
            torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, gradients(layer, *inputs, links=links), strict=True)
        )


@names
@pytest.mark.parametrize("linked", [False, True])
def test_torchs_own_bad_inputs_raise_its_own_errors(common_modules: Any, name: str, linked: bool) -> None:
    options = {"device": "cpu", "dtype": torch.float64, "requires_grad": False, "training": False}
    info = next(info for info in common_modules.module_db if info.module_cls is getattr(torch.nn, name))
    count = 0
    for bad in common_modules.module_error_inputs_torch_nn_RNN_GRU(info, **options):
        constructor = bad.module_error_input.constructor_input
        if bad.error_on is common_modules.ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(bad.error_type, match=bad.error_regex):
                getattr(artbp.nn, name)(*constructor.args, **constructor.kwargs)
        else:
            layer = getattr(artbp.nn, name)(*constructor.args, **constructor.kwargs)
            inputs = bad.module_error_input.forward_input.args
            more = {"links": links_for(inputs[0], layer.batch_first)} if linked and inputs[0].dim() > 1 else {}
            with pytest.raises(bad.error_type, match=bad.error_regex):
                layer(*inputs, **more)
        count += 1
    assert count >= 5


@names
@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 1.5}, {"dropout": True}, {"hidden_size": 0}, {"hidden_size": -3}, {"hidden_size": 2.5},
        {"num_layers": 0}, {"proj_size": -1}, {"proj_size": 4}, {"nonlinearity": "garbage"}, {"dropout": 0.5},
    ],
    ids=str,
)  # fmt: skip
def test_constructors_refuse_and_warn_as_torchs_do(name: str, options: dict[str, Any]) -> None:
    arguments = {"input_size": 3, "hidden_size": 4, **options}

    def outcome(kind: Any) -> tuple[str, ...]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                kind(**arguments)
            except (TypeError, ValueError) as problem:
                return type(problem).__name__, str(problem)
        return tuple(str(warning.message) for warning in caught)

    assert outcome(getattr(artbp.nn, name)) == outcome(getattr(torch.nn, name))


@names
def test_factory_arguments_and_moves(name: str) -> None:
    layer = getattr(artbp.nn, name)(3, 4, num_layers=2, device="meta", dtype=torch.float64)
    assert all(p.is_meta and p.dtype is torch.float64 for p in layer.parameters())
    output, _ = layer(torch.zeros(5, 2, 3, device="meta", dtype=torch.float64), links=torch.rand(5))
    assert output.shape == (5, 2, 4)
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    layer.float()
    assert layer(torch.zeros(5, 2, 3), links=torch.rand(5))[0].dtype is torch.float32


@names
def test_parametrized_weights_get_their_gradients(name: str) -> None:
    layer = getattr(artbp.nn, name)(3, 4, dtype=torch.float64)
    x, links = torch.randn(5, 2, 3, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    plain = dict(zip(dict(layer.named_parameters()), gradients(layer, x, links=links), strict=True))
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    found = gradients(layer, x, links=links)
    direction = dict(layer.named_parameters())["parametrizations.weight_hh_l0.original1"]
    gain = dict(zip(dict(layer.named_parameters()), found, strict=True))["parametrizations.weight_hh_l0.original0"]
    unit = direction / direction.norm(dim=1, keepdim=True)
    assert torch.allclose(gain, (plain["weight_hh_l0"] * unit).sum(1, keepdim=True), rtol=1e-10)


@names
def test_dropout_may_change_and_follows_the_global_generator(name: str) -> None:
    layer = getattr(artbp.nn, name)(3, 4, num_layers=2, dropout=0.5)
    x, links = torch.randn(5, 2, 3), torch.rand(5, dtype=torch.float64)
    first = layer(x, links=links)[0]
    assert not torch.equal(first, layer(x, links=links)[0])
    torch.manual_seed(1)
    first = layer(x, links=links)[0]
    torch.manual_seed(1)
    assert torch.equal(first, layer(x, links=links)[0])
    layer.dropout = 0.0
    assert torch.equal(layer(x, links=links)[0], layer.eval()(x, links=links)[0])
    layer.dropout = 1.0
    assert torch.isfinite(layer.train()(x, links=links)[0]).all()


@names
def test_what_a_hook_sees_is_the_call(name: str) -> None:
    layer, seen = getattr(artbp.nn, name)(3, 4), []
    layer.register_forward_pre_hook(lambda _, arguments, options: seen.append(sorted(options)), with_kwargs=True)
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    layer(torch.randn(5, 2, 3, requires_grad=True), links=torch.rand(5))[0].sum().backward()
    assert seen == [["links"], "backward"]


@names
def test_the_state_dict_is_torchs_strictly_both_ways(name: str) -> None:
    options = {"num_layers": 2, "bias": False, **({"proj_size": 2} if name == "LSTM" else {})}
    ours, theirs = getattr(artbp.nn, name)(3, 4, **options), getattr(torch.nn, name)(3, 4, **options)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    with pytest.raises(RuntimeError, match=re.escape("Missing key(s)")):
        ours.load_state_dict({})
