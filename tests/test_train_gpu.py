"""The trainer on a GPU: it waits for nothing between updates, computes what a CPU does, and goes on where it was."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from trained import arguments, rows, summary, train, write_text

from artbp.train import command, evaluate_command
from artbp.train.corpus import from_file
from artbp.train.devices import choose
from artbp.train.group import Group
from artbp.train.options import Options
from artbp.train.training import Training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="trains on a CUDA GPU, and none is here")

METHODS: dict[str, dict[str, Any]] = {
    "tbptt": {"method": "tbptt", "window": 0},
    "random": {"method": "random", "window": 5},
    "artbp": {"method": "artbp", "window": 0},
    "artbp, window 5": {"method": "artbp", "window": 5},
}


@pytest.fixture(autouse=True)
def _precision_as_it_was():
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", words=6000)


def training(text: Path, device: str, precision: str = "float32", **changes: Any) -> Training:
    plain = {"hidden": 40, "lanes": 8, "mean": 12, "length": 12, "lr": 0.005, "device": device, "precision": precision}
    place, options = choose(Options(**{**plain, **changes}))
    return Training(options, from_file(text), Group(), place)


def losses(of: Training, updates: int) -> list[float]:
    return [float(update.loss) / update.steps for update in itertools.islice(of.updates(), updates)]


@pytest.mark.parametrize("name", METHODS)
def test_losses_are_those_of_a_cpu(name, text):
    """The same parameters and lengths in strict float32: update by update the same, until rounding has grown."""
    found, expected = (losses(training(text, device, **METHODS[name]), 25) for device in ("cuda", "cpu"))
    assert found == pytest.approx(expected, rel=1e-3)
    assert expected[-1] < 0.95 * expected[0]


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precisions_learn_as_well(precision, text):
    """bf16 under autocast keeps its parameters, their gradients and the carried state's layout as they are."""
    changes = METHODS["artbp, window 5"]
    found = losses(training(text, "cuda", precision, **changes), 25)
    expected = losses(training(text, "cpu", **changes), 25)
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk:UserWarning")
@pytest.mark.parametrize("name", METHODS)
def test_the_means_of_a_baseline_work(name, text):
    """Dropped weights take the place of parameters for one call, and cuDNN wants all of them in one piece."""
    means = {"dropout": 0.2, "weight_dropout": 0.2, "weight_decay": 1e-6, "schedule": "cosine", "layer_norm": True}
    of = training(text, "cuda", "tf32", **METHODS[name], **means)
    before = {name: parameter.detach().clone() for name, parameter in of.model.named_parameters()}
    found = losses(of, 40)
    assert found[-1] < 0.98 * found[0]
    assert all(not torch.equal(before[name], parameter) for name, parameter in of.model.named_parameters())


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("name", METHODS)
def test_no_update_waits_for_the_device(name, precision, text):
    """Links, symbols, norms and rates: whatever asked the device for a number would stop the host at every update."""
    of = training(text, "cuda", precision, **METHODS[name])
    updates = of.updates()
    found = list(itertools.islice(updates, 40))  # kernels compiled, graphs captured, pools filled
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found += list(itertools.islice(updates, 20))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(found) == 60
    assert all(math.isfinite(update.loss) for update in found)


def test_memory_of_windows_is_bounded_over_a_pass(text):
    """Segments of ARTBP are now and then many times the mean: with a window of 12 they take what one of 12 does."""
    peaks = {}
    for name, changes in {"tbptt": {"method": "tbptt"}, "window": {"window": 12}, "whole": {"window": 0}}.items():
        of = training(text, "cuda", "tf32", hidden=64, lanes=64, **changes)
        list(itertools.islice(of.updates(), 3))
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        list(of.updates())
        peaks[name] = torch.cuda.max_memory_allocated() - before
        del of
    assert peaks["window"] < 2 * peaks["tbptt"]
    assert peaks["window"] < peaks["whole"] / 1.5


def typed(text: Path, folder: Path, **changes: Any) -> list[str]:
    return arguments(text, folder, hidden=40, lanes=64, device="cuda", precision="tf32", **changes)


def test_a_stopped_run_goes_on_where_it_was(text, tmp_path, monkeypatch):
    assert command.main(typed(text, tmp_path / "alone")) == 0
    stopped, updates = tmp_path / "stopped", Training.updates

    def few(of: Training) -> Any:
        yield from itertools.islice(updates(of), 30)
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "updates", few)
    with pytest.raises(KeyboardInterrupt):
        command.main([*typed(text, stopped), "--checkpoint-every", "0.01"])
    monkeypatch.undo()
    assert command.main(["--resume", str(stopped), "--device", "cuda"]) == 0
    expected, found = ([row["bpc"] for row in rows(run, "evaluation")] for run in (tmp_path / "alone", stopped))
    assert found == pytest.approx(expected, rel=1e-2)
    lengths = [[n for row in rows(run, "train") for n in row["lengths"]] for run in (tmp_path / "alone", stopped)]
    assert lengths[0] == lengths[1]


def test_a_run_of_the_gpu_is_evaluated_on_a_cpu(text, tmp_path, capsys):
    run = train(text, tmp_path / "run", hidden=40, lanes=64, device="cuda", precision="tf32")
    numbers = []
    for device in ("cuda", "cpu"):
        capsys.readouterr()
        assert evaluate_command.main([str(run), "--json", "--device", device]) == 0
        numbers.append(json.loads(capsys.readouterr().out)["bpc"])
    assert numbers[0] == pytest.approx(summary(run)["test_bpc"], rel=1e-3)
    assert numbers[1] == pytest.approx(numbers[0], rel=5e-3)
    assert 0 < summary(run)["peak_memory"] == rows(run, "train")[-1]["memory"]


def test_a_full_gpu_names_the_flag_that_lowers_it(text, tmp_path, capsys):
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-3)
    try:
        assert command.main([*typed(text, tmp_path / "run", method="bptt", window=0), "--hidden", "512"]) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    said = capsys.readouterr().err
    assert "memory does not hold this run" in said
    assert "--window" in said
