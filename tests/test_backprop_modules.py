"""backprop with what real modules bring: dropout, buffers, unused parameters, processes, precision, memory."""

import gc
import importlib
import tempfile
from pathlib import Path

import pytest
import torch
from recurrent import LINKS, STEPS, random
from torch import multiprocessing, nn

import artbp


class Regularised(nn.Module):
    """Dropout on the state, batch norm on the input, and a head that only some steps use."""

    def __init__(self, dropout=0.4, norm=True):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.cell = nn.GRUCell(2, 3, dtype=torch.float64)
            self.norm = nn.BatchNorm1d(2, dtype=torch.float64) if norm else nn.Identity()
            self.early, self.late = nn.Linear(3, 1, dtype=torch.float64), nn.Linear(3, 1, dtype=torch.float64)
            self.never = nn.Linear(3, 1, dtype=torch.float64)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(3, dtype=torch.float64))

    def forward(self, input_t, state):
        state, time = state
        self.calls += 1
        hidden = self.dropout(self.cell(self.norm(input_t), state))
        with torch.no_grad():
            self.average.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        head = self.early if time < 3 else self.late
        return head(hidden + self.average).square().sum(), (hidden, time + 1)


def run(module, window, seed=3):
    """The module's gradients, buffers, loss, and the global generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        start = (torch.zeros(4, 3, dtype=torch.float64), 0)
        loss, state = artbp.backprop(artbp.unroll(module), random(STEPS, 4, 2), start, LINKS, window=window)
        generator = torch.get_rng_state()
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    return found, {name: buffer.clone() for name, buffer in module.named_buffers()}, loss, state, generator


@pytest.mark.parametrize("window", [1, 2, 3, 5, 7, 10])
@pytest.mark.parametrize(("dropout", "norm"), [(0.4, False), (0.0, True), (0.4, True)])
def test_dropout_and_buffers(dropout, norm, window):
    """The recomputed window sees the same noise and the same running averages, and updates neither a second time."""
    plain, windowed = run(Regularised(dropout, norm), None), run(Regularised(dropout, norm), window)
    for name, expected in plain[0].items():
        if expected is None:
            assert windowed[0][name] is None, name
        else:
            torch.testing.assert_close(windowed[0][name], expected, rtol=1e-12, atol=1e-13)
    for name, expected in plain[1].items():
        assert torch.equal(windowed[1][name], expected), name
    assert windowed[1]["calls"] == STEPS
    torch.testing.assert_close(windowed[2], plain[2], rtol=1e-14, atol=0)
    assert torch.equal(windowed[3][0], plain[3][0])
    assert torch.equal(windowed[4], plain[4])  # the generator is where one pass leaves it


def test_dropout_would_be_seen_if_it_differed():
    first, second = run(Regularised(), 2, seed=3), run(Regularised(), 2, seed=4)
    assert not torch.allclose(first[0]["cell.weight_hh"], second[0]["cell.weight_hh"])


@pytest.mark.parametrize("window", [None, 1, 2, 3])
def test_parameters_that_some_windows_do_not_use(window):
    module = Regularised(0.0, False)
    found = run(module, window)[0]
    assert found["never.weight"] is None
    assert found["early.weight"].any()
    assert found["late.weight"].any()


@pytest.mark.parametrize("window", [None, 2])
def test_frozen_parameters_stay_so(window):
    module = Regularised(0.0, False)
    module.cell.requires_grad_(False)
    found = run(module, window)[0]
    assert found["cell.weight_hh"] is None
    assert found["early.weight"].any()


def test_the_last_window_is_not_recomputed():
    for steps, window, expected in (
        (6, 2, [2, 2, 2, 2, 2]),
        (7, 3, [3, 3, 1, 3, 3]),
        (5, 5, [5]),
        (5, 9, [5]),
        (6, None, [6]),
    ):
        module, lengths = nn.RNNCell(1, 1), []

        def step(inputs, state, links, module=module, lengths=lengths):
            lengths.append(len(inputs))
            for input_t in inputs:
                state = module(input_t, state)
            return state.sum(), state

        artbp.backprop(step, torch.ones(steps, 1, 1), torch.zeros(1, 1), window=window)
        assert lengths == expected


class Counted:
    """Counts the bytes that autograd holds at once, storages counted once, and its peak."""

    def __init__(self, ignore):
        self.held, self.now, self.peak, self.ignore = (
            {},
            0,
            0,
            {tensor.untyped_storage().data_ptr() for tensor in ignore},
        )

    class Saved:
        def __init__(self, counter, tensor):
            self.counter, self.tensor, self.key = counter, tensor.detach(), tensor.untyped_storage().data_ptr()
            self.bytes = 0 if self.key in counter.ignore else tensor.untyped_storage().nbytes()
            counter.change(self.key, self.bytes, 1)

        def __del__(self):
            self.counter.change(self.key, self.bytes, -1)

    def change(self, key, size, by):
        before = self.held.get(key, 0)
        self.held[key] = before + by
        if before == 0 or before + by == 0:
            self.now += by * size
            self.peak = max(self.peak, self.now)

    def hooks(self):
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: Counted.Saved(self, tensor), lambda saved: saved.tensor
        )


def test_memory_of_one_window():
    """window = 50, T = 2,000: what autograd saves, and the state every 50 steps, is ≤ 1/15 of the one graph's."""
    steps, lanes, size, peaks = 2000, 4, 8, {}
    for window in (None, 50):
        module = nn.LSTMCell(2, size)
        inputs, start = torch.ones(steps, lanes, 2), (torch.zeros(lanes, size), torch.zeros(lanes, size))
        counter = Counted([*module.parameters(), inputs])

        def cell(input_t, state, module=module):
            h, c = module(input_t, state)
            return h.square().sum(), (h, c)

        with counter.hooks():
            artbp.backprop(
                artbp.unroll(cell), inputs, start, torch.full((steps,), 1.001, dtype=torch.float64), window=window
            )
        peaks[window] = counter.peak
    boundaries = 4 * 2 * lanes * size * steps // 50
    assert peaks[50] + boundaries <= peaks[None] / 15
    assert peaks[None] > steps * lanes * size * 4  # the counter counts


def test_memory_of_one_window_where_the_step_reads_what_was_made_outside():
    """The graph of one window must be gone before the next one's is made, also where the outer graph is not."""
    steps, peaks = 60, {}
    for outside in (False, True):
        module, encoder = nn.GRUCell(2, 16), nn.Linear(2, 16)
        inputs, start = torch.ones(steps, 4, 2), torch.zeros(4, 16)
        context = encoder(torch.ones(4, 2)).tanh() if outside else torch.ones(4, 16)
        counter = Counted([*module.parameters(), *encoder.parameters(), inputs, context])

        def cell(input_t, state, module=module, context=context):
            state = module(input_t, state * context)
            return state.square().sum(), state

        with counter.hooks():
            artbp.backprop(artbp.unroll(cell), inputs, start, window=10)
        peaks[outside] = counter.peak
    assert peaks[True] <= 1.2 * peaks[False]  # each step saves its state once more, to differentiate by the context


# ---- many processes, mixed precision ---------------------------------------------------------------------------------


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.readout = nn.GRUCell(2, 3, dtype=torch.float64), nn.Linear(3, 1, dtype=torch.float64)

    def one(self, input_t, state):
        state = self.cell(input_t, state)
        return self.readout(state).square().sum(), state

    def forward(self, inputs, state, links):
        return artbp.unroll(self.one)(inputs, state, links)


def _count(reductions, bucket):
    reductions.append(bucket.index())
    world = torch.distributed.get_world_size()
    future = torch.distributed.all_reduce(bucket.buffer() / world, async_op=True).get_future()
    return future.then(lambda result: result.value()[0])


def _replica(rank, world, folder):
    torch.set_num_threads(1)
    importlib.import_module("torch.distributed.nn.functional")  # in time: a group there is by then, it keeps for ever
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    found = {}
    for window in (None, 1, 2, 3, 20):
        module = nn.parallel.DistributedDataParallel(Wrapped())
        reductions = []
        module.register_comm_hook(reductions, _count)
        counts = []
        for call in range(3):
            artbp.backprop(
                module,
                random(STEPS, 2, 2, seed=10 * call + rank),
                torch.zeros(2, 3, dtype=torch.float64),
                LINKS,
                window=window,
            )
            counts.append(len(reductions))
        found[window] = {name: parameter.grad for name, parameter in module.module.named_parameters()}, counts
    torch.save(found, f"{folder}/{rank}.pt")
    del module  # and collect its cycles: only a group that nobody holds joins its threads when it is destroyed
    gc.collect()
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_distributed_reduces_once_per_call():
    """Two processes over gloo: gradients are the mean over ranks, and each call reduces the one bucket once."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_replica, args=(2, folder), nprocs=2)
        ranks = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]
    with torch.random.fork_rng(devices=[]):
        alone = Wrapped()
    for call in range(3):
        for rank in range(2):
            artbp.backprop(
                alone,
                random(STEPS, 2, 2, seed=10 * call + rank),
                torch.zeros(2, 3, dtype=torch.float64),
                LINKS,
                scale=0.5,
            )
    for found in ranks:
        for window, (gradients, counts) in found.items():
            assert counts == [1, 2, 3], window
            for name, parameter in alone.named_parameters():
                torch.testing.assert_close(
                    gradients[name], parameter.grad, rtol=1e-11, atol=1e-12, msg=f"{window} {name}"
                )


@pytest.mark.parametrize("window", [None, 2])
def test_scaled_as_a_grad_scaler_does(window):
    """The scaler's factor goes in through `scale`; unscaling gives the gradient back, and an overflow is found."""
    module = Wrapped().float()
    inputs, start = random(STEPS, 2, 2).float(), torch.zeros(2, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    artbp.backprop(module, inputs, start, LINKS)
    expected = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    factor = scaler.scale(torch.ones(()))
    with torch.autocast("cpu", enabled=False):
        artbp.backprop(module, inputs, start, LINKS, window=window, scale=factor)
    scaler.unscale_(optimizer)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-7)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("window", [1, 2, 5])
def test_under_autocast_the_recomputation_casts_alike(window):
    module, inputs, start = Wrapped().float(), random(STEPS, 2, 2).float(), torch.zeros(2, 3)
    found = {}
    for width in (None, window):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, state = artbp.backprop(module, inputs, start, LINKS, window=width)
        found[width] = loss, state, [parameter.grad for parameter in module.parameters()]
        module.zero_grad()
    assert torch.equal(found[None][1], found[window][1])
    torch.testing.assert_close(found[window][0], found[None][0], rtol=0.02, atol=0)  # a sum of bf16 losses, regrouped
    for gradient, expected in zip(found[window][2], found[None][2], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.02)


def test_the_users_own_no_grad_says_so_or_works():
    """Called under no_grad: either it enables grad itself, or it says why not."""
    module, inputs, start = Wrapped(), random(STEPS, 2, 2), torch.zeros(2, 3, dtype=torch.float64)
    try:
        with torch.no_grad():
            artbp.backprop(module, inputs, start, LINKS, window=2)
    except RuntimeError as error:
        message = str(error)
        assert "grad" in message
        return
    assert module.readout.weight.grad.any()
