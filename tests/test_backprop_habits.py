"""backprop with windows under the habits of real steps: what is right without a window is right with one."""

import concurrent.futures
import gc
import importlib
import tempfile
from pathlib import Path

import pytest
import torch
from recurrent import LINKS, STEPS, Recurrent, close, gradients, random
from torch import multiprocessing, nn

import artbp

WINDOWS = [1, 2, 3, 6]


def same_as_plain(step, module, start, window, links=LINKS):
    """Loss, gradients and final state are those of the one graph; `start` makes a fresh state each time."""
    loss, state = artbp.backprop(step, random(STEPS, 2, 2), start(), links)
    expected = gradients(module)
    found, after = artbp.backprop(step, random(STEPS, 2, 2), start(), links, window=window)
    torch.testing.assert_close(found, loss, rtol=1e-13, atol=0)
    close(gradients(module), expected)
    return state, after


def zeros():
    return torch.zeros(2, 3, dtype=torch.float64)


# ---- states that the step changes in place --------------------------------------------------------------------------


@pytest.mark.parametrize("window", WINDOWS)
def test_a_counter_that_is_counted_up_in_place(window):
    module = Recurrent()

    def cell(input_t, state):
        state["count"].add_(1)
        loss, hidden = module.one(input_t, state["h"])
        return loss * state["count"].item(), {"h": hidden, "count": state["count"]}

    plain, windowed = same_as_plain(
        artbp.unroll(cell), module, lambda: {"h": zeros(), "count": torch.tensor(0)}, window
    )
    assert plain["count"] == windowed["count"] == STEPS


@pytest.mark.parametrize("window", WINDOWS)
def test_a_trace_without_gradient_that_is_updated_in_place(window):
    module = Recurrent()

    def step(inputs, state, links):
        loss, hidden, trace = 0.0, state[0], state[1]
        for t, input_t in enumerate(inputs):
            one, hidden = module.one(input_t, artbp.link(hidden, float(links[t])))
            with torch.no_grad():
                trace.mul_(0.9).add_(hidden)
            loss = loss + one + (hidden * trace.clone()).sum()
        return loss, (hidden, trace)

    plain, windowed = same_as_plain(step, module, lambda: (zeros(), zeros()), window)
    torch.testing.assert_close(windowed[1], plain[1], rtol=1e-13, atol=0)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_trace_that_is_updated_in_place_where_gradients_are_recorded(window):
    """It is no leaf that requires grad in the one graph, so it must be none in a window."""
    module = Recurrent()

    def step(inputs, state, links):
        loss, (hidden, trace) = 0.0, state
        for input_t in inputs:
            one, hidden = module.one(input_t, hidden)
            trace.mul_(0.9).add_(hidden.detach())
            loss = loss + one + (hidden * trace.detach().clone()).sum()
        return loss, (hidden, trace)

    same_as_plain(step, module, lambda: (zeros(), zeros()), window)


@pytest.mark.parametrize("window", WINDOWS)
def test_containers_without_tensors_that_are_changed_in_place(window):
    module = Recurrent()

    def cell(input_t, state):
        hidden, notes = state
        notes["steps"].append(1)
        loss, hidden = module.one(input_t, hidden)
        return loss * sum(notes["steps"]), (hidden, {"steps": [sum(notes["steps"])]})

    plain, windowed = same_as_plain(artbp.unroll(cell), module, lambda: (zeros(), {"steps": [0]}), window)
    assert plain[1] == windowed[1] == {"steps": [STEPS]}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("links", [None, LINKS])
def test_a_dict_that_is_changed_and_returned_itself(window, links):
    module = Recurrent()

    def cell(input_t, state):
        loss, state["h"] = module.one(input_t, state["h"])
        state["count"] += 1
        return loss * state["count"], state

    _, windowed = same_as_plain(artbp.unroll(cell), module, lambda: {"h": zeros(), "count": 0}, window, links)
    assert windowed["count"] == STEPS


@pytest.mark.parametrize("window", WINDOWS)
def test_a_state_that_passes_through_or_stands_there_twice(window):
    module = Recurrent()

    def cell(input_t, state):
        loss, hidden = module.one(input_t, 0.5 * state[0] + 0.3 * state[1] + state[2])
        return loss, (hidden, hidden, state[2])

    learned = random(2, 3, grad=True)
    step, inputs = artbp.unroll(cell), random(STEPS, 2, 2)
    artbp.backprop(step, inputs, (zeros(), zeros(), learned), LINKS)
    expected, learned.grad = {**gradients(module), "learned": learned.grad}, None
    artbp.backprop(step, inputs, (zeros(), zeros(), learned), LINKS, window=window)
    close({**gradients(module), "learned": learned.grad}, expected)


# ---- hooks on what the step takes from outside ---------------------------------------------------------------------


class Conditioned(Recurrent):
    """Reads a tensor that was put on it as an attribute."""

    context = None

    def forward(self, input_t, state):
        return self.one(input_t, state + self.context)


@pytest.mark.parametrize("place", ["closure", "module"])
@pytest.mark.parametrize("window", [None, *WINDOWS])
def test_hooks_on_a_tensor_from_outside_fire_once(window, place):
    """Also one that changes the gradient, and `retain_grad`, which is one."""
    module, encoder = Conditioned(), nn.Linear(2, 3, dtype=torch.float64)
    context, calls = encoder(random(2, 2)).tanh(), []

    def double(gradient):
        calls.append(gradient)
        return 2.0 * gradient

    def cell(input_t, state):
        return module.one(input_t, state + context)

    if place == "module":
        module.context, cell = context, module
    loss, _ = artbp.unroll(cell)(random(STEPS, 2, 2), zeros(), LINKS)
    (whole,) = torch.autograd.grad(loss, context, retain_graph=True)
    expected = torch.autograd.grad(context, list(encoder.parameters()), 2.0 * whole, retain_graph=True)
    context.register_hook(double)
    context.retain_grad()
    artbp.backprop(artbp.unroll(cell), random(STEPS, 2, 2), zeros(), LINKS, window=window)
    assert len(calls) == 1
    torch.testing.assert_close(calls[0], whole, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(context.grad, 2.0 * whole, rtol=1e-12, atol=1e-13)
    for parameter, gradient in zip(encoder.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_tensor_from_another_thread(window):
    """Autograd numbers its nodes per thread: which is older cannot be read off the numbers."""
    module, encoder, made = Recurrent(), nn.Linear(2, 3, dtype=torch.float64), []
    for run in (
        lambda: [made.append(encoder(random(2, 2)).tanh().exp()) for _ in range(50)],
        lambda: same_as_encoder(module, encoder, made[-1], window),
    ):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(run).result()


def same_as_encoder(module, encoder, context, window):
    step = artbp.unroll(lambda input_t, state: module.one(input_t, state + context))
    leaves = list(encoder.parameters())
    loss, _ = step(random(STEPS, 2, 2), zeros(), LINKS)
    expected = torch.autograd.grad(loss, leaves, retain_graph=True)
    artbp.backprop(step, random(STEPS, 2, 2), zeros(), LINKS, window=window)
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_failing_step_leaves_hooks_and_gradients_alone(window):
    module, calls, fired = Recurrent(), [], []
    module.readout.weight.register_hook(fired.append)

    def cell(input_t, state):
        calls.append(1)
        if len(calls) == STEPS + 1:  # in a window that is run again
            raise KeyError("mine")
        return module.one(input_t, state)

    with pytest.raises(KeyError, match="mine"):
        artbp.backprop(artbp.unroll(cell), random(STEPS, 2, 2), zeros(), LINKS, window=window)
    assert all(parameter.grad is None for parameter in module.parameters())
    module.one(random(2, 2), zeros())[0].backward()
    assert len(fired) == 1


class Tagged(torch.autograd.Function):
    """Keeps something under a name that autograd's own nodes use, too."""

    @staticmethod
    def forward(ctx, x):
        ctx.variable = 3
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize("window", WINDOWS)
def test_functions_of_ones_own(window):
    module = Recurrent()
    same_as_plain(artbp.unroll(lambda i, s: module.one(i, Tagged.apply(s))), module, zeros, window)


@pytest.mark.parametrize("window", WINDOWS)
def test_steps_that_checkpoint_themselves(window):
    module = Recurrent()

    def cell(input_t, state):
        return torch.utils.checkpoint.checkpoint(module.one, input_t, state, use_reentrant=False)

    same_as_plain(artbp.unroll(cell), module, zeros, window)


@pytest.mark.parametrize("window", WINDOWS)
def test_losses_in_some_windows_only(window):
    module = Recurrent()

    def cell(input_t, state):
        hidden, time = state
        loss, hidden = module.one(input_t, hidden)
        return loss if time in (1, 4) else torch.zeros((), dtype=torch.float64), (hidden, time + 1)

    same_as_plain(artbp.unroll(cell), module, lambda: (zeros(), 0), window)


# ---- DistributedDataParallel's other modes: right, or refused in words ----------------------------------------------


class Heads(nn.Module):
    """One head for the early steps and one for the late ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRUCell(2, 3, dtype=torch.float64)
        self.early, self.late = nn.Linear(3, 1, dtype=torch.float64), nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, inputs, state, links):
        loss, (hidden, time) = 0.0, state
        for t, input_t in enumerate(inputs):
            hidden = self.cell(input_t, artbp.link(hidden, float(links[t])))
            loss = loss + (self.early if time < 3 else self.late)(hidden).square().sum()
            time += 1
        return loss, (hidden, time)


def _alone(folder):
    """World size one: the modes' bookkeeping is the same, and there is nothing to wait for."""
    torch.set_num_threads(1)
    importlib.import_module("torch.distributed.nn.functional")  # in time: a group there is by then, it keeps for ever
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    found = {}
    for mode in ("", "find_unused_parameters", "static_graph", "gradient_as_bucket_view"):
        for window in (None, 2):
            try:
                module = nn.parallel.DistributedDataParallel(Heads(), **({mode: True} if mode else {}))
                for _ in range(3):
                    artbp.backprop(module, random(STEPS, 2, 2), (zeros(), 0), LINKS, window=window)
                found[f"{mode} {window}"] = torch.cat([p.grad.flatten() for p in module.parameters()])
            except (RuntimeError, ValueError) as error:
                found[f"{mode} {window}"] = str(error)
    torch.save(found, Path(folder) / "found.pt")
    del module  # and collect its cycles: only a group that nobody holds joins its threads when it is destroyed
    gc.collect()
    torch.distributed.destroy_process_group()


def _spawned(_, folder):
    _alone(folder)


@pytest.mark.filterwarnings("ignore")
def test_distributed_modes_are_right_or_refused():
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_spawned, args=(folder,), nprocs=1)
        found = torch.load(Path(folder) / "found.pt", weights_only=True)
    with torch.random.fork_rng(devices=[]):
        module = Heads()
    for _ in range(3):
        artbp.backprop(module, random(STEPS, 2, 2), (zeros(), 0), LINKS)
    expected = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    for case, result in found.items():
        if isinstance(result, str):
            mode = case.split()[0]
            assert mode in ("find_unused_parameters", "static_graph"), f"{case}: {result}"
            assert "window" in result, f"{case}: refused, but not in our words: {result}"
            assert mode in result, f"{case}: refused, but not in our words: {result}"
        else:
            torch.testing.assert_close(
                result, expected, rtol=1e-11, atol=1e-12, msg=f"{case}: a wrong gradient in silence"
            )
