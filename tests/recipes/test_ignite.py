"""docs/how-to/ignite.md: its code trains as a plain loop does, resumes bitwise, and runs in two processes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from pages import blocks, patched
from plain import LANES, LAW, TEXT, close, forget, parameters, same, train
from ranks import on_two_ranks

from artbp.data import Lanes

pytest.importorskip("ignite")
import ignite.distributed as idist
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver


@cache
def names() -> dict[str, Any]:
    """The page's definitions, without the lines that train."""
    found: dict[str, Any] = {}
    for code in blocks("ignite"):
        if "\ndef " in f"\n{code}" and "@trainer" not in code:
            exec(code, found)
    network = found["Network"]
    found["Network"] = lambda: network(units=5)
    return found


def build() -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    return names()["build"](TEXT, LANES, LAW)


def by_hand(updates: int) -> tuple[Any, list[int]]:
    _, memory = build()
    return memory["model"], train(memory["model"], updates=updates)


def run(trainer: Any, memory: dict[str, Any], **options: Any) -> None:
    trainer.run(names()["batches"](memory), **options)


def in_windows(memory: dict[str, Any], **options: Any) -> Any:
    return Engine(names()["update_in_windows"](memory, **options))


def saving() -> Any:
    return DiskSaver(".", require_empty=False)


def test_the_page_runs_from_top_to_bottom(capsys):
    found: dict[str, Any] = {}
    for code in blocks("ignite"):
        exec(code, found)
    assert found["again"].state.iteration == 75
    assert found["restored"]["stream"].position > 0
    found["main"](0, found["text"])
    run(found["trainer"], found["memory"], max_epochs=3, epoch_length=25)
    assert "segments: mean" in capsys.readouterr().out


@pytest.mark.parametrize(("side", "steps"), [("-", 2 * 300), ("+", None)])
def test_both_sides_of_the_diff(side, steps):
    _, memory = build()
    seen: list[int] = []
    (diff,) = blocks("ignite", "diff")
    found = {**names(), **memory, "trainer": Engine(lambda engine, batch: seen.append(len(batch[1])))}
    if side == "-":
        found |= {"chunks": lambda stream, length: list(zip(*(x.split(length) for x in stream), strict=True))}
        found |= {"stream": memory["stream"].take(300)}
    exec(patched(diff, side), found)
    assert sum(seen) == (steps or sum(by_hand(100)[1]))
    assert len(set(seen)) == (1 if side == "-" else len(set(by_hand(100)[1])))


def test_the_engine_trains_as_by_hand_over_more_than_a_pass():
    expected, lengths = by_hand(50)
    assert sum(lengths) > Lanes(TEXT, LANES).steps
    trainer, memory = build()
    seen = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.output["length"]))
    run(trainer, memory, max_epochs=5, epoch_length=10)
    assert seen == lengths
    assert same(memory["model"], expected)


@pytest.mark.parametrize("window", [4, 1000])
def test_windows_train_as_by_hand(window):
    expected, _ = by_hand(30)
    _, memory = build()
    run(in_windows(memory, window=window), memory, max_epochs=1, epoch_length=30)
    close(parameters(memory["model"]), parameters(expected))


def test_the_loss_scaler_is_undone_before_gradients_are_clipped():
    """Powers of two leave no trace in float64."""
    (_, expected), (_, found) = build(), build()
    run(in_windows(expected, window=4), expected, max_epochs=1, epoch_length=20)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run(in_windows(found, window=4, scaler=scaler), found, max_epochs=1, epoch_length=20)
    assert scaler.get_scale() == 1024.0
    assert same(found["model"], expected["model"])


def test_a_run_that_was_stopped_goes_on_bitwise():
    _, lengths = by_hand(50)
    first_pass = 1 + int(np.searchsorted(np.cumsum(lengths), Lanes(TEXT, LANES).steps))
    trainer, whole = build()
    trainer.add_event_handler(Events.ITERATION_COMPLETED, Checkpoint(whole, saving(), n_saved=None))
    run(trainer, whole, max_epochs=5, epoch_length=10)
    for stop in (1, 10, 15, first_pass - 1, first_pass, first_pass + 1):
        trainer, resumed = build()
        forget(resumed["model"])
        Checkpoint.load_objects(resumed, f"checkpoint_{stop}.pt")
        run(trainer, resumed, max_epochs=5)
        assert trainer.state.iteration == 50, stop
        assert same(resumed["model"], whole["model"]), stop


def test_an_epoch_that_is_a_pass_keeps_the_first_pass_s_length():
    """What the page warns of: the second pass has another number of segments."""
    _, memory = build()
    seen = []
    trainer = Engine(lambda engine, batch: seen.append(memory["stream"].position - len(batch[1])))

    class Pass:
        def __iter__(self):
            memory["stream"].rewind()
            return memory["cut"].segments(memory["stream"])

    trainer.run(Pass(), max_epochs=2)
    starts = [i for i, position in enumerate(seen) if position == 0]
    assert trainer.state.epoch_length == starts[1]
    assert len(seen) == 2 * starts[1]
    assert seen[-1] + 1 < memory["stream"].steps


# ---- two processes ---------------------------------------------------------------------------------------------------


def _replica() -> dict[str, Any]:
    idist.initialize("gloo")
    trainer, memory = build()
    trainer.add_event_handler(Events.ITERATION_COMPLETED, Checkpoint(memory, saving(), n_saved=None))
    run(trainer, memory, max_epochs=1, epoch_length=20)
    found = {"links": parameters(memory["model"])}
    trainer, resumed = build()
    forget(resumed["model"])
    idist.barrier()
    Checkpoint.load_objects(resumed, "checkpoint_7.pt")
    run(trainer, resumed, max_epochs=1)
    found["resumed"] = parameters(resumed["model"])
    _, memory = build()
    run(in_windows(memory, window=4), memory, max_epochs=1, epoch_length=20)
    found["windows"] = parameters(memory["model"])

    names()["idist"].auto_model = lambda network: torch.nn.parallel.DistributedDataParallel(
        network, find_unused_parameters=True
    )
    _, memory = build()
    try:
        run(in_windows(memory, window=4), memory, max_epochs=1, epoch_length=20)
    except ValueError as error:
        found["refused"] = str(error)
    idist.finalize()
    return found


@pytest.mark.filterwarnings("ignore")
def test_two_processes_train_as_one_with_all_lanes(tmp_path):
    one, _ = by_hand(20)
    for found in on_two_ranks(_replica, tmp_path):
        for kind in ("links", "windows"):
            close(found[kind], parameters(one))
        assert all(torch.equal(found["resumed"][name], found["links"][name]) for name in found["links"])
        assert "find_unused_parameters" in found["refused"]
    trainer, resumed = build()  # what two processes saved, one goes on with
    Checkpoint.load_objects(resumed, tmp_path / "checkpoint_7.pt")
    run(trainer, resumed, max_epochs=1)
    close(parameters(resumed["model"]), parameters(one))
