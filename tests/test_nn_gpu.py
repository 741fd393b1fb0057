"""artbp.nn on a GPU: through dispatch and probes, against the same layer in float64 on the CPU."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import artbp
from artbp.ops import _types, dispatch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="these layers run on a CUDA GPU, and none is here"),
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk:UserWarning"),
]

MODES = {"LSTM": "LSTM", "GRU": "GRU", "RNN": "RNN_TANH"}


@pytest.fixture(params=["as it is", "fused for every mode"])
def table(request, monkeypatch):
    """The table of paths, and one whose fused path comes first for every mode that it serves."""
    if request.param != "as it is":
        rules = [replace(rule, modes=_types.MODES) if rule.path == "fused" else rule for rule in dispatch.TABLE]
        monkeypatch.setattr(dispatch, "TABLE", tuple(rules))
    dispatch.forget()
    yield request.param
    monkeypatch.undo()
    dispatch.forget()


def gradients(layer, x, arriving, links):
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y, _ = layer(x, links=links)
    y.backward(arriving)
    return [y.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]


@pytest.mark.parametrize("units", [48, 200])
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 1.5e-2)])
def test_layers_are_those_of_float64(name, dtype, tolerance, units, table):
    """Two layers, links per lane, cuts in one lane and in all. The tolerance of float32 is TF32's."""
    torch.manual_seed(0)
    layer = getattr(artbp.nn, name)(24, units, 2).to(dtype)
    x, arriving = torch.randn(30, 9, 24).to(dtype), torch.randn(30, 9, units).to(dtype)
    links = torch.rand(30, 9, dtype=torch.float64) + 0.5
    links[7, 2] = 0
    links[11] = 0
    expected = gradients(copy.deepcopy(layer).double(), x.double(), arriving.double(), links)
    found = gradients(copy.deepcopy(layer).cuda(), x.cuda(), arriving.cuda(), links)
    for one, other in zip(found, expected, strict=True):
        assert (one.double().cpu() - other).norm() <= tolerance * other.norm()
    if name == "LSTM" or table != "as it is":
        assert dispatch.choose(MODES[name], x.cuda(), units, False, links) == "fused"


@pytest.mark.parametrize("name", MODES)
def test_a_backward_called_inside_autocast_is_the_forwards(name, table):
    torch.manual_seed(0)
    layer = getattr(artbp.nn, name)(24, 64).cuda()
    x, links = torch.randn(40, 5, 24, device="cuda"), torch.full((40,), 1.01, dtype=torch.float64)
    output = layer(x, links=links)[0].sum()
    expected = torch.autograd.grad(output, list(layer.parameters()), retain_graph=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = torch.autograd.grad(output, list(layer.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("inside", [False, True])
def test_autocast_and_lengths_of_every_kind(inside, name, table):
    """Outputs in bf16, gradients of float32 parameters in float32, and no length that needs another capture."""
    layer = getattr(artbp.nn, name)(24, 64).cuda()
    x = torch.randn(40, 5, 24, device="cuda")
    for T in (3, 17, 39, 40):
        layer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y, _ = layer(x[:T], links=torch.full((T,), 1.01, dtype=torch.float64))
            if inside:
                y.float().sum().backward()
        if not inside:
            y.float().sum().backward()
        assert y.dtype == torch.bfloat16
        assert layer.weight_hh_l0.grad.dtype == torch.float32
        assert layer.weight_hh_l0.grad.isfinite().all()
