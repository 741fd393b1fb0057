"""A module whose `forward` is a step of the protocol, and what the tests of backprop compare with it."""

import torch
from torch import nn

import artbp

STEPS = 7
LINKS = torch.tensor([0.5, 1.25, 0.0, 1.5, 2.0, 1.0, 1.75], dtype=torch.float64)


def random(*shape, seed=0, grad=False):
    tensor = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return tensor.requires_grad_(grad)


class Recurrent(nn.Module):
    """A cell and its readout; `forward` is a step of the protocol."""

    def __init__(self, inputs=2, size=3):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.cell = nn.GRUCell(inputs, size, dtype=torch.float64)
            self.readout = nn.Linear(size, 1, dtype=torch.float64)

    def one(self, input_t, state):
        state = self.cell(input_t, state)
        return self.readout(state).square().sum(), state

    def forward(self, inputs, state, links):
        return artbp.unroll(self.one)(inputs, state, links)


def gradients(module):
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = None
    return found


def close(found, expected, tolerance=1e-12):
    assert found.keys() == expected.keys()
    assert any(gradient is not None and gradient.any() for gradient in expected.values())  # or nothing is compared
    for name in expected:
        if expected[name] is None:
            assert found[name] is None or not found[name].any(), name
        else:
            assert found[name] is not None, name
            torch.testing.assert_close(found[name], expected[name], rtol=tolerance, atol=tolerance)
