"""docs/how-to/lightning.md: its code trains as a plain loop does, resumes bitwise, and runs in two processes."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from pages import blocks, patched
from plain import LANES, LAW, TEXT, close, forget, parameters, same, train
from ranks import on_two_ranks
from torch.utils.data import DataLoader

import artbp
from artbp.data import Lanes

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
    L = pytest.importorskip("lightning")
    from lightning.pytorch.plugins import MixedPrecision

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
]

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@cache
def names() -> dict[str, Any]:
    """The page's definitions, without the lines that train."""
    found: dict[str, Any] = {}
    for code in blocks("lightning"):
        if "Trainer(" not in code:
            exec(code, found)
    return found


def build(kind: str = "Model", **options: Any) -> Any:
    torch.manual_seed(0)
    return names()[kind](TEXT, LANES, LAW, units=5, **options)


def by_hand(passes: int) -> tuple[Any, list[int]]:
    """The same training without Lightning, and the lengths of the segments."""
    model = build()
    return model, train(model, passes=passes)


def fit(model: Any, *, checkpoint: str | None = None, **options: Any) -> Any:
    clip = {"gradient_clip_val": 1.0} if model.automatic_optimization else {}
    trainer = L.Trainer(**{**QUIET, **clip, **options})
    trainer.fit(model, ckpt_path=checkpoint, weights_only=True)
    return trainer


def saving(folder: str) -> dict[str, Any]:
    """Options of a trainer that saves after every update, as 1.ckpt, 2.ckpt, …"""
    every = {"every_n_train_steps": 1, "save_top_k": -1, "auto_insert_metric_name": False}
    callback = L.pytorch.callbacks.ModelCheckpoint(folder, filename="{step}", **every)
    return {"callbacks": [callback], "enable_checkpointing": True}


def test_the_page_runs_from_top_to_bottom():
    found: dict[str, Any] = {}
    for code in blocks("lightning"):
        exec(code, found)
    assert found["longer"].current_epoch == 3
    assert not same(found["again"], found["model"])  # the third pass has been trained


@pytest.mark.parametrize("side", ["-", "+"])
def test_both_sides_of_the_loader(side):
    """The lines are a generator's; their batches are the whole stream, in order."""
    diff, _ = blocks("lightning", "diff")
    symbols = torch.arange(70)
    stream = Lanes(symbols, 1) if side == "+" else symbols[:-1]
    found: dict[str, Any] = {"chunks": torch.split, "stream": stream, "cut": artbp.Truncation(LAW, seed=0)}
    exec("def loader():\n" + "".join(f"    {line}\n" for line in patched(diff, side).splitlines()), found)
    batches = list(found["loader"]())
    inputs = [batch[0][0].flatten() if side == "+" else batch for batch in batches]
    assert torch.equal(torch.cat(inputs), symbols[:-1])
    if side == "+":
        ends = [after["stream"]["position"] for _, _, after in batches]
        assert ends == np.cumsum([len(links) for _, links, _ in batches]).tolist()
        found["cut"].load_state_dict(batches[0][2]["cut"])
        assert len(found["cut"].segment()) == len(batches[1][1])


def test_segments_as_batches_train_as_by_hand():
    expected, lengths = by_hand(2)
    assert max(lengths) > 2 * min(lengths)
    model = build()
    trainer = fit(model, max_epochs=2)
    assert trainer.global_step == len(lengths)
    assert same(model, expected)


@pytest.mark.parametrize("window", [4, 1000])
def test_windows_train_as_by_hand(window):
    expected, _ = by_hand(2)
    model = build("Windowed", window=window)
    fit(model, max_epochs=2)
    close(parameters(model), parameters(expected))


class Scaled(MixedPrecision):
    """The loss scaling of "16-mixed", and its arithmetic undisturbed: powers of two leave no trace in float64."""

    def __init__(self) -> None:
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))

    def forward_context(self) -> Any:
        return nullcontext()


@pytest.mark.parametrize("kind", ["Model", "Windowed"])
def test_the_loss_scaler_is_undone_before_gradients_are_clipped(kind):
    expected, found = build(kind), build(kind)
    fit(expected, max_epochs=1)
    trainer = fit(found, max_epochs=1, plugins=[Scaled()])
    assert trainer.precision_plugin.scaler.get_scale() == 1024.0
    assert same(found, expected)


@pytest.mark.parametrize(("kind", "inside"), [("Model", False), ("Windowed", True)])
def test_backward_is_under_autocast_in_manual_optimization_alone(kind, inside):
    found = []

    class Looks(names()[kind]):
        def backward(self, *args):
            found.append(torch.is_autocast_enabled("cpu"))
            super().backward(*args)

    torch.set_default_dtype(torch.float32)
    fit(Looks(TEXT, LANES, LAW, units=5), max_steps=2, precision="bf16-mixed")
    assert found == [inside, inside]


@pytest.mark.parametrize("flag", [{"accumulate_grad_batches": 2}, {"gradient_clip_val": 1.0}])
def test_flags_that_lightning_refuses_in_manual_optimization(flag):
    with pytest.raises(L.fabric.utilities.exceptions.MisconfigurationException, match="manual optimization"):
        fit(build("Windowed"), max_steps=1, **flag)


@pytest.mark.parametrize("every", [1, 4])
def test_accumulation_divides_by_its_steps(every):
    expected = build()
    train(expected, updates=20, every=every)
    model = build()
    fit(model, max_epochs=1, limit_train_batches=20, accumulate_grad_batches=every)
    close(parameters(model), parameters(expected))


def test_clipping_in_training_step_would_clip_scaled_gradients():
    norms: list[float] = []

    class Clips(names()["Windowed"]):
        def backward(self, *args):
            super().backward(*args)
            norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in self.parameters()])))

        def on_before_optimizer_step(self, optimizer):
            norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in self.parameters()])))

    torch.manual_seed(0)
    model = Clips(TEXT, LANES, LAW, units=5)
    fit(model, max_steps=1, plugins=[Scaled()])
    inside, after = norms
    assert inside == 1024 * after


@pytest.mark.parametrize("kind", ["Model", "Windowed"])
def test_a_run_that_was_stopped_goes_on_bitwise(kind):
    _, lengths = by_hand(2)
    first_pass = 1 + int(np.searchsorted(np.cumsum(lengths), Lanes(TEXT, LANES).steps))
    whole = build(kind)
    fit(whole, max_epochs=2, **saving("."))
    for stop in (1, first_pass - 1, first_pass, first_pass + 1, len(lengths) - 1):
        resumed = build(kind)
        forget(resumed)
        trainer = fit(resumed, max_epochs=2, checkpoint=f"{stop}.ckpt", **saving("."))
        assert trainer.global_step == len(lengths), stop
        assert same(resumed, whole), stop


def test_a_pass_that_is_left_early_goes_on_after_the_last_segment():
    expected, _ = by_hand(1)
    model, seen = build(), []

    class Seen(L.Callback):
        def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
            seen.append(batch[2]["stream"]["position"] - len(batch[1]))

    fit(model, max_epochs=3, limit_train_batches=4, callbacks=[Seen()])
    _, lengths = by_hand(1)
    assert seen == [0, *np.cumsum(lengths[:11]).tolist()]
    assert not same(model, expected)


def test_lengths_are_logged():
    model = build()
    trainer = fit(model, max_epochs=1, callbacks=[names()["SegmentLengths"]()])
    _, lengths = by_hand(1)
    logged = trainer.callback_metrics
    assert float(logged["segment/mean"]) == pytest.approx(np.mean(lengths))
    assert float(logged["segment/longest"]) == max(lengths)
    assert float(logged["segment/weight"]) == pytest.approx(float(model.cut.law.links(lengths[-1])[1:].prod()))


@pytest.mark.parametrize("side", ["-", "+"])
def test_both_sides_of_the_loop_over_a_long_batch(side):
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(2, 90, 3, 1, generator=generator).unbind() for _ in range(4)]
    _, diff = blocks("lightning", "diff")
    found = dict(names())
    exec(patched(diff, side), found)

    torch.manual_seed(0)
    model = found["Whole"]()
    trainer = L.Trainer(max_epochs=2, **QUIET)
    trainer.fit(model, DataLoader(batches, batch_size=None))

    torch.manual_seed(0)
    expected = found["Whole"]()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05)
    cut = artbp.Truncation(artbp.PowerLaw(mean=20, alpha=4) if side == "+" else artbp.Fixed(20), seed=0)
    updates = 0
    for x, y in [*batches, *batches]:
        state = None
        for (inputs, targets), links in cut.segments((x, y)):
            output, state = (
                artbp.nn.LSTM.forward(expected.lstm, inputs, state, links=links)
                if side == "+"
                else (expected.lstm(inputs, state))
            )
            state = artbp.detach(state)
            optimizer.zero_grad()
            ((expected.readout(output) - targets).square().sum() / (20 * 3)).backward()
            optimizer.step()
            updates += 1
    assert trainer.global_step == updates
    assert same(model, expected)


# ---- two processes ---------------------------------------------------------------------------------------------------


def _replica() -> dict[str, Any]:
    found: dict[str, Any] = {}
    world = {"strategy": "ddp", "devices": 2}
    for kind in ("Model", "Windowed"):
        model = build(kind, **({"window": 4} if kind == "Windowed" else {}))
        fit(model, max_epochs=1, **world)
        found[kind] = parameters(model)
    fit(build(), max_epochs=1, **world, **saving("."))
    resumed = build()
    fit(resumed, max_epochs=1, checkpoint="7.ckpt", **world, **saving("."))
    found["resumed"] = parameters(resumed)

    class Alone(names()["Windowed"]):
        def training_step(self, batch):
            segment, links, after = batch
            self.begin(links, after)
            self.zero_grad()
            self.backward(1.0, segment, links)

    torch.manual_seed(0)
    alone = Alone(TEXT, LANES, LAW, units=5)
    trainer = fit(alone, max_epochs=1, limit_train_batches=1, **world)
    found["alone"] = {name: parameter.grad for name, parameter in alone.named_parameters()}
    assert trainer.world_size == 2

    strategy = L.pytorch.strategies.DDPStrategy(find_unused_parameters=True)
    try:
        fit(build("Windowed", window=4), max_epochs=1, strategy=strategy, devices=2)
    except RuntimeError as error:
        found["refused"] = str(error)
    return found


def test_two_processes_train_as_one_with_all_lanes(tmp_path):
    one = build()
    fit(one, max_epochs=1)
    ranks = on_two_ranks(_replica, tmp_path)
    for found in ranks:
        for kind in ("Model", "Windowed"):
            close(found[kind], parameters(one))
        assert all(torch.equal(found["resumed"][name], found["Model"][name]) for name in found["Model"])
        assert "mark a variable ready only once" in found["refused"]
    # backprop without manual_backward: each rank is left with the gradient of its own lanes
    first, second = (found["alone"] for found in ranks)
    assert not torch.allclose(first["readout.weight"], second["readout.weight"])
    # what two processes saved, one goes on with
    resumed = build()
    fit(resumed, max_epochs=1, checkpoint=str(tmp_path / "7.ckpt"), **saving(str(tmp_path)))
    close(parameters(resumed), parameters(one))
