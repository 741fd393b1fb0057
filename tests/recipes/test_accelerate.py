"""docs/how-to/accelerate.md: its code trains as a plain loop does, resumes bitwise, and runs in two processes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from pages import blocks, patched
from plain import LANES, LAW, TEXT, close, forget, parameters, same, train
from ranks import on_two_ranks

import artbp
from artbp.data import Lanes

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def _no_state_of_another_test():
    """Accelerators share one state in a process, and refuse other options than the first one's."""
    _forget_accelerators()
    yield
    _forget_accelerators()


def _forget_accelerators() -> None:
    accelerate.state.AcceleratorState._reset_state()
    accelerate.state.GradientState._reset_state()
    accelerate.state.PartialState._reset_state()


@cache
def names() -> dict[str, Any]:
    """The page's definitions, without the lines that train."""
    found: dict[str, Any] = {}
    for code in blocks("accelerate"):
        if "\nclass " in f"\n{code}":
            exec(code, found)
    network = found["Network"]
    found["Network"] = lambda: network(units=5)
    return found


def build(kind: str = "Run", window: int = 4, **options: Any) -> Any:
    torch.manual_seed(0)
    run = names()[kind](TEXT, LANES, LAW, **{"cpu": True, **options})
    run.window = window
    return run


def by_hand(updates: int, every: int = 1) -> tuple[Any, list[int]]:
    model = build().accelerator.unwrap_model(build().model)
    return model, train(model, updates=updates, every=every)


def test_the_page_runs_from_top_to_bottom(capsys):
    found: dict[str, Any] = {}
    for code in blocks("accelerate"):
        exec(code, found)
    assert found["again"].carried.updates == 60
    assert "segments: mean" in capsys.readouterr().out


@pytest.mark.parametrize("side", ["-", "+"])
def test_both_sides_of_the_diff_train(side):
    run = build()
    stream = tuple(part.long() for part in Lanes(TEXT, LANES).take(200))
    network = build().model
    torch.manual_seed(0)
    found: dict[str, Any] = {
        "artbp": artbp,
        "accelerator": run.accelerator,
        "model": run.model,
        "optimizer": run.optimizer,
        "stream": stream,
        "chunks": lambda stream, length: zip(*(part.split(length) for part in stream), strict=True),
        "state": None,
        "lanes": LANES,
    }
    (diff,) = blocks("accelerate", "diff")
    exec(patched(diff, side), found)

    optimizer, state = torch.optim.Adam(network.parameters(), lr=0.002), None
    law = artbp.PowerLaw(mean=20, alpha=4) if side == "+" else artbp.Fixed(20)
    for segment, links in artbp.Truncation(law, seed=0).segments(stream):
        loss, state = network(segment, state, links)
        state = artbp.detach(state)
        (loss / (20 * LANES)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert same(run.model, network)


def test_it_trains_as_by_hand_over_more_than_a_pass():
    expected, lengths = by_hand(50)
    assert sum(lengths) > Lanes(TEXT, LANES).steps
    run = build()
    assert run.train(50) == lengths
    assert same(run.model, expected)


@pytest.mark.parametrize("window", [4, 1000])
def test_windows_train_as_by_hand(window):
    expected, _ = by_hand(30)
    run = build("Windowed", window)
    run.train(30)
    close(parameters(run.model), parameters(expected))


@pytest.mark.parametrize("kind", ["Run", "Windowed"])
def test_accumulation_divides_by_its_steps(kind):
    expected, lengths = by_hand(40, every=4)
    first_pass = 1 + int(np.searchsorted(np.cumsum(lengths), Lanes(TEXT, LANES).steps))
    assert first_pass % 4  # what is left over at the end of a pass is not lost
    run = build(kind, gradient_accumulation_steps=4)
    run.train(40)
    close(parameters(run.model), parameters(expected))


@pytest.mark.parametrize("kind", ["Run", "Windowed"])
def test_the_loss_scaler_is_undone_before_gradients_are_clipped(kind, monkeypatch):
    """Powers of two leave no trace in float64. On a CPU Accelerate has no scaler; it is lent one, without autocast."""
    expected = build(kind)
    expected.train(20)
    _forget_accelerators()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    prepare = accelerate.Accelerator.prepare

    def with_scaler(self, *things):
        self.scaler = scaler
        prepared = prepare(self, *things)
        self.native_amp = True
        return prepared

    monkeypatch.setattr(accelerate.Accelerator, "prepare", with_scaler)
    found = build(kind, mixed_precision="fp16")
    found.train(20)
    assert found.accelerator.scaler.get_scale() == 1024.0
    assert same(found.model, expected.model)


def test_low_precision_reaches_both_ways_alike():
    plain, windowed = build("Run", mixed_precision="bf16"), build("Windowed", 10**6, mixed_precision="bf16")
    _forget_accelerators()
    full = build()
    for run in (plain, windowed, full):
        run.model.float()
        run.train(1)
    assert same(plain.model, windowed.model)
    assert not same(plain.model, full.model)


@pytest.mark.parametrize("kind", ["Run", "Windowed"])
def test_a_run_that_was_stopped_goes_on_bitwise(kind):
    _, lengths = by_hand(50)
    first_pass = 1 + int(np.searchsorted(np.cumsum(lengths), Lanes(TEXT, LANES).steps))
    whole = build(kind)
    stops = (1, 15, first_pass - 1, first_pass, first_pass + 1)
    for stop in sorted(stops):
        whole.train(stop)
        whole.accelerator.save_state(str(stop))
    whole.train(50)
    for stop in stops:
        resumed = build(kind)
        forget(resumed.model)
        resumed.accelerator.load_state(str(stop))
        resumed.train(50)
        assert same(resumed.model, whole.model), stop


# ---- two processes ---------------------------------------------------------------------------------------------------


def _replica() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in ("Run", "Windowed"):
        run = build(kind)
        run.train(7)
        run.accelerator.save_state("seven")
        run.train(20)
        found[kind] = parameters(run.model)
    resumed = build("Windowed")
    forget(resumed.model)
    resumed.accelerator.load_state("seven")
    resumed.train(20)
    found["resumed"] = parameters(resumed.model)
    kwargs = accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)
    try:
        build("Windowed", kwargs_handlers=[kwargs]).train(20)
    except ValueError as error:
        found["refused"] = str(error)
    run.accelerator.end_training()
    return found


@pytest.mark.filterwarnings("ignore")
def test_two_processes_train_as_one_with_all_lanes(tmp_path):
    one, _ = by_hand(20)
    for found in on_two_ranks(_replica, tmp_path):
        for kind in ("Run", "Windowed"):
            close(found[kind], parameters(one))
        assert all(torch.equal(found["resumed"][name], found["Windowed"][name]) for name in found["resumed"])
        assert "find_unused_parameters" in found["refused"]
    resumed = build()  # what two processes saved, one goes on with
    resumed.accelerator.load_state(str(tmp_path / "seven"))
    resumed.train(20)
    close(parameters(resumed.model), parameters(one))
