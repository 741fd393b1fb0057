"""On an accelerator: no synchronisation for links from the CPU, and recomputation replays the device's noise."""

import pytest
import torch
from torch import nn

import artbp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")


@pytest.fixture
def no_synchronisation():
    def forbid(on):
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if on else "default")

    yield forbid
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("form", ["number", "lanes", "zero"])
def test_links_from_the_cpu_do_not_synchronise(form, dtype, no_synchronisation):
    lanes = torch.tensor([0.0, 1.0, 1.5], dtype=torch.float64)
    factor = {"number": 1.5, "lanes": lanes, "zero": 0.0}[form]
    state = (
        torch.ones(3, 4, device="cuda", dtype=dtype, requires_grad=True),
        torch.ones(3, device="cuda", dtype=dtype),
    )
    state[1].requires_grad_()
    weight = torch.full((3, 4), 2.0, device="cuda", dtype=dtype)
    artbp.link(state, factor)[0].requires_grad and artbp.link(state, factor)[0].backward(weight)  # warm
    state[0].grad = None
    no_synchronisation(True)
    h, c = artbp.link(state, factor)
    if form != "zero":
        torch.autograd.backward([h, c], [weight, weight[:, 0]])
    no_synchronisation(False)
    if form == "zero":
        assert not h.requires_grad
        return
    expected = torch.as_tensor(factor, dtype=torch.float64).expand(3) * 2.0
    assert torch.equal(state[0].grad.double().cpu(), expected[:, None].expand(3, 4))


@pytest.mark.parametrize("arriving", [float("inf"), float("nan")])
def test_a_zero_entry_is_exact(arriving):
    state = torch.ones(2, 3, device="cuda", requires_grad=True)
    factor = torch.tensor([0.0, 2.0], dtype=torch.float64)
    artbp.link(state, factor).backward(torch.full((2, 3), arriving, device="cuda"))
    assert state.grad[0].tolist() == [0.0] * 3


def test_a_bf16_state_carries_the_accumulated_weight():
    start = torch.zeros(64, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    state = start
    for _ in range(2000):
        state = artbp.link(state, 1.0015)
    state.float().sum().backward()
    assert start.grad.float().mean().item() == pytest.approx(1.0015**2000, rel=0.01)


@pytest.mark.parametrize("shape", [(9,), (9, 4)], ids=["shared", "lanes"])
def test_windows_replay_the_devices_noise(shape):
    cell = nn.GRUCell(2, 3, dtype=torch.float64, device="cuda")
    inputs, start = (
        torch.ones(9, 4, 2, dtype=torch.float64, device="cuda"),
        torch.zeros(4, 3, dtype=torch.float64, device="cuda"),
    )
    links = 1.5 * torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def one(input_t, state):
        state = nn.functional.dropout(cell(input_t, state), 0.4)
        return state.square().sum(), state

    found = []
    for window in (None, 2, 5):
        torch.manual_seed(0)
        artbp.backprop(artbp.unroll(one), inputs, start, links, window=window)
        found.append(torch.cat([parameter.grad.flatten() for parameter in cell.parameters()]))
        cell.zero_grad()
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(found[2], found[0], rtol=1e-10, atol=1e-11)


@pytest.mark.filterwarnings("ignore")
def test_compiled_on_the_device():
    cell = nn.LSTMCell(2, 3, device="cuda")
    eager = lambda x, state, factor: cell(x, artbp.link(state, factor))  # noqa: E731 - the very function is compiled
    gradients = []
    for step in (eager, torch.compile(eager, fullgraph=True)):
        state = (torch.zeros(3, 3, device="cuda"), torch.zeros(3, 3, device="cuda"))
        for number in (1.0, 1.25, 0.5):
            state = step(torch.ones(3, 2, device="cuda"), state, torch.full((3,), number, dtype=torch.float64))
        gradients.append(torch.autograd.grad(state[0].sum(), cell.weight_hh)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)
