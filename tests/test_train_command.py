"""`artbp train` as it is typed: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import torch
from trained import arguments, refused, rows, summary, train, write_text

from artbp._folder import read_json
from artbp.train import command
from artbp.train.checkpoints import Checkpoints
from artbp.train.model import CharacterModel
from artbp.train.training import Training


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", words=400)


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(text, tmp_path_factory.mktemp("runs") / "run", log_every=20, clip=0.1)


# What it writes


def test_what_is_in_the_folder(run):
    assert {path.name for path in run.iterdir()} >= {
        *("config.json", "env.json", "vocabulary.json", "metrics.jsonl", "summary.json", "checkpoints", "plots")
    }
    assert {path.name for path in (run / "checkpoints").iterdir()} >= {"last.pt", "best.pt", "previous.pt"}
    assert {path.name for path in (run / "plots").glob("*.png")} == {
        *("learning-curves.png", "memory.png", "segment-lengths.png")
    }


def test_the_config_has_every_option_of_the_results(run):
    config = read_json(run / "config.json")
    assert config["method"] == "artbp"
    assert config["estimator"] == "ARTBP(PowerLaw(mean=10, alpha=4), window=256)"
    assert (config["hidden"], config["lanes"], config["lr"], config["precision"]) == (8, 4, 0.02, "float64")
    assert not {"out", "resume", "dry_run", "overwrite", "device"} & config.keys()


def test_the_environment_is_that_of_this_machine(run):
    found = read_json(run / "env.json")
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert (found["accelerator"] is None) == (not torch.cuda.is_available())


def test_every_character_of_every_pass_is_in_the_rows(run, text):
    trained = rows(run, "train")
    characters = len(text.read_text(encoding="utf-8")) * 90 // 100
    steps = (characters - 1) // 4
    assert sum(sum(row["lengths"]) for row in trained) == 2 * steps
    assert [row["update"] for row in trained if row["epoch"] == 0][-1] == rows(run, "evaluation")[0]["update"]
    assert all(len(row["lengths"]) <= 20 for row in trained)
    assert trained[-1]["characters"] == summary(run)["characters"] == 2 * steps * 4
    lengths = [[length for row in trained if row["epoch"] == epoch for length in row["lengths"]] for epoch in (0, 1)]
    assert lengths[0] != lengths[1]  # drawn anew for each pass
    for row in trained:
        assert row.keys() == {
            *("kind", "epoch", "update", "step", "characters", "bpc", "rate", "lengths", "gradient_norm", "clipped"),
            *("memory", "seconds"),
        }


def test_the_summary_is_made_of_the_rows(run):
    found, last = summary(run), [row for row in rows(run, "train") if row["epoch"] == 1]
    assert found["complete"]
    assert found["outcome"] == "finished"
    assert found["epochs"] == 2
    assert found["updates"] == sum(len(row["lengths"]) for row in rows(run, "train"))
    weights = [sum(row["lengths"]) for row in last]
    of_pass = sum(row["bpc"] * weight for row, weight in zip(last, weights, strict=True)) / sum(weights)
    assert found["train_bpc"] == pytest.approx(of_pass, rel=1e-12)
    counts = [len(row["lengths"]) for row in rows(run, "train")]
    shares = [row["clipped"] for row in rows(run, "train")]
    clipped = sum(share * count for share, count in zip(shares, counts, strict=True)) / sum(counts)
    assert found["clipped"] == pytest.approx(clipped, rel=1e-12)
    assert 0 < clipped < 1
    model = CharacterModel(len(read_json(run / "vocabulary.json")["characters"]) + 1, hidden=8)
    assert found["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_it_learns(run):
    trained = rows(run, "train")
    assert trained[0]["bpc"] > 3
    assert summary(run)["test_bpc"] < 2


def test_the_end_says_what_came_out(text, tmp_path, capsys):
    run = train(text, tmp_path / "run", clip=0.01)
    printed, found = capsys.readouterr().out, summary(run)
    assert "in 4 lanes of 704 steps (1 left over)" in printed
    assert f"validation {found['valid_bpc']:.3f}, test {found['test_bpc']:.3f} bits per character" in printed
    assert f"{found['clipped']:.1%} of the gradients were shortened by --clip, which biases them" in printed
    assert f"Try `artbp sample {run}`" in printed


def test_several_seeds_in_folders_of_their_own(text, tmp_path, capsys):
    out = train(text, tmp_path / "runs", runs=2, seed=5, epochs=1)
    assert "artbp compare-runs" in capsys.readouterr().out
    assert read_json(out / "config.json")["seeds"] == [5, 6]
    found = read_json(out / "summary.json")
    assert found["complete"]
    assert [each["seed"] for each in found["runs"]] == [5, 6]
    lengths = [rows(out / f"seed-{seed}", "train")[0]["lengths"] for seed in (5, 6)]
    assert lengths[0] != lengths[1]
    alone = train(text, tmp_path / "alone", seed=6, epochs=1)
    assert summary(alone)["test_bpc"] == summary(out / "seed-6")["test_bpc"]


def test_a_run_in_a_taken_folder(run, text, tmp_path, capsys):
    taken = train(text, tmp_path / "run", epochs=1)
    before = (taken / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert command.main(arguments(text, taken, epochs=1)) == 0
    assert "finished: nothing was done" in capsys.readouterr().out
    what, instead = refused(capsys, lambda: command.main(arguments(text, taken, epochs=1, hidden=9)))
    assert "hidden = 8 there and 9 here" in what
    assert "--overwrite" in instead
    assert (taken / "metrics.jsonl").read_bytes() == before
    train(text, taken, epochs=1, hidden=9, overwrite=True)
    assert read_json(taken / "config.json")["hidden"] == 9


# Options


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "tbptt", "cell": "gru", "embedding": 5, "optimizer": "rmsprop", "schedule": "linear"},
        {"method": "random", "cell": "rnn", "layers": 2, "dropout": 0.2, "optimizer": "sgd", "window": 0},
        {"method": "bptt", "window": 64, "weight_dropout": 0.2, "schedule": "cosine"},
        {"layer_norm": True, "optimizer": "adamw", "weight_decay": 0.01, "window": 4},
        {"precision": "float32", "forget_bias": 1},
    ],
)
def test_every_option_trains(changes, text, tmp_path):
    run = train(text, tmp_path / "run", **{"epochs": 1, **changes})
    assert math.isfinite(summary(run)["test_bpc"])
    config = read_json(run / "config.json")
    assert all(config[name] == value for name, value in changes.items())


def test_bf16_is_autocast_and_comes_near_float32(text, tmp_path):
    found = [train(text, tmp_path / name, precision=name, epochs=1) for name in ("float32", "bf16")]
    one, other = (rows(run, "train") for run in found)
    assert other[0]["bpc"] == pytest.approx(one[0]["bpc"], rel=0.02)
    assert other[0]["bpc"] != one[0]["bpc"]
    weights = Checkpoints(found[1]).load_best()["model"]
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what torch says to itself while it compiles
@pytest.mark.parametrize("changes", [{}, {"window": 5, "layers": 2}])
def test_compiled_it_is_the_same_training(changes, text, tmp_path):
    pytest.importorskip("torch._inductor.cpp_builder")
    short = write_text(tmp_path / "short.txt", words=60)
    plain, compiled = (
        train(short, tmp_path / name, epochs=1, **changes, **more)
        for name, more in (("a", {}), ("b", {"compile": True}))
    )
    assert summary(compiled)["test_bpc"] == pytest.approx(summary(plain)["test_bpc"], rel=1e-6)


def test_tensorboard_gets_the_metrics_too(text, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = train(text, tmp_path / "run", epochs=1, tensorboard=True)
    found = reader.EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    written = [(event.step, event.value) for event in found.Scalars("bpc/train")]
    expected = [(row["characters"], row["bpc"]) for row in rows(run, "train")]
    assert [step for step, _ in written] == [step for step, _ in expected]
    assert [value for _, value in written] == pytest.approx([value for _, value in expected], rel=1e-6)
    assert len(found.Scalars("bpc/valid")) == 1


def test_without_tensorboard_the_extra_is_named_before_anything_is_written(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    out = tmp_path / "run"
    what, instead = refused(capsys, lambda: command.main(arguments(text, out, tensorboard=True)))
    assert "tensorboard is not installed" in what
    assert "artbp[log]" in instead
    assert not out.exists()


def test_without_matplotlib_there_are_no_figures(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    run = train(text, tmp_path / "run", epochs=1)
    assert not (run / "plots").exists()
    assert "Metrics, checkpoints: " in capsys.readouterr().out


def test_a_dry_run_writes_nothing(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for changes in ({}, {"method": "tbptt"}, {"window": 0}, {"window": 16}, {"method": "bptt"}):
        assert command.main([*arguments(text, Path("run"), dry_run=True, **changes)]) == 0
        printed = capsys.readouterr().out
        model = CharacterModel(17, hidden=8)  # 16 characters, and the unknown
        parameters = sum(parameter.numel() for parameter in model.parameters())
        assert re.search(rf"^parameters +{parameters:,}$", printed, re.MULTILINE)
        assert re.search(r"^steps +2 passes of 704 in 4 lanes", printed, re.MULTILINE)
        if changes.get("method") == "bptt":
            assert "not probed" in printed
        else:
            assert re.search(r"^updates +about 141$", printed, re.MULTILINE)
            assert ("and no more for any longer" in printed) == (changes.get("window") == 16)
            assert re.search(r"^time +about \d+ s on cpu", printed, re.MULTILINE)
            assert re.search(r"^peak memory +about \d+\.\d MiB for a segment of [\d,]+ steps", printed, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


# What it says while it goes on


def test_lines_where_there_is_no_terminal(text, tmp_path):
    typed = [sys.executable, "-m", "artbp", "train", *arguments(text, tmp_path / "run")]
    ended = subprocess.run(typed, capture_output=True, text=True, check=True)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("pass ")]
    assert len(lines) == 2
    assert re.fullmatch(
        r"pass +1 of 2  update +\d+  train \d\.\d{3} bpc  valid \d\.\d{3} bpc  [\d,]+ char/s  \d+:\d\d left", lines[0]
    )
    assert "\r" not in ended.stdout + ended.stderr
    assert ended.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
@pytest.mark.parametrize("columns", [100, 0])  # 0: one that does not know its size, as in some containers
def test_a_bar_on_a_terminal(columns, text, tmp_path):
    typed = [sys.executable, "-m", "artbp", "train", *arguments(text, tmp_path / "run", log_every=5)]
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", columns and 40, columns, 0, 0))
    with subprocess.Popen(typed, stdout=follower, stderr=follower, env={**os.environ, "COLUMNS": "100"}) as process:
        os.close(follower)
        seen = b""
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            seen += piece
    os.close(leader)
    assert process.returncode == 0
    shown = seen.decode()
    assert re.search(r"\d+%\|.*char/s, \d\.\d{3} bpc, pass [12] of 2\]", shown)
    assert re.search(r"\[\d\d:\d\d<\d\d:\d\d", shown)  # taken so far, and left


# What it refuses, and what it survives


@pytest.mark.parametrize(
    ("changes", "what", "instead"),
    [
        ({"hidden": 0}, "--hidden 0", "from 1 on"),
        ({"window": -1}, "--window -1", "from 0 on"),
        ({"dropout": 1}, "--dropout 1", r"[0, 1)"),
        ({"lr": 0}, "--lr 0", "positive"),
        ({"lr": "nan"}, "--lr nan", "positive"),
        ({"clip": -1}, "--clip -1", "positive"),
        ({"weight_decay": -1}, "--weight-decay -1", "Pass 0"),
        ({"alpha": 2}, "--alpha 2: PowerLaw(alpha=2.0)", "alpha=4"),
        ({"mean": 1}, "--mean 1 --alpha 4: PowerLaw", "Pass a mean above 1"),
        ({"length": 0}, "--length 0", "from 1 on"),
        ({"ptb": "x"}, "both name a text", "--ptb DIR"),
        ({"device": "abacus"}, "no such device", "Pass cpu"),
        ({"device": "meta"}, "trains on cpu and cuda", "Pass one"),
        ({"precision": "tf32", "device": "cpu"}, "only CUDA GPUs", "float32"),
    ],
)
def test_options_that_cannot_work(changes, what, instead, text, tmp_path, capsys):
    out = tmp_path / "run"
    said = refused(capsys, lambda: command.main(arguments(text, out, **changes)))
    assert what in said[0]
    assert instead in said[1]
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "what", "instead"),
    [
        (b"", "is empty", "Pass a file"),
        (b"too short", "too few to train", "longer text"),
        (b"a" * 50 + b"\xff" * 50, "is not UTF-8: byte 50", "iconv"),
        ("ä".encode() * 50 + b"\xc3", "cut short", "Fetch it again"),
    ],
)
def test_texts_that_cannot_be_trained_on(content, what, instead, tmp_path, capsys):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    said = refused(capsys, lambda: command.main(arguments(path, tmp_path / "run")))
    assert what in said[0]
    assert instead in "\n".join(said)
    good = write_text(tmp_path / "text.txt", words=60)
    train(good, tmp_path / "run", epochs=1)  # the folder is not taken by a run of which nothing came


def test_a_text_shorter_than_its_lanes(text, tmp_path, capsys):
    what, instead = refused(capsys, lambda: command.main(arguments(text, tmp_path / "run", lanes=5000)))
    assert "--lanes 5000: text.txt has 2,818 characters to train on" in what
    assert "at most 2,817 with --lanes" in instead
    refused(capsys, lambda: command.main(arguments(text, tmp_path / "run", lanes=5000, dry_run=True)))


def test_characters_that_only_the_evaluation_has_are_said(tmp_path, capsys):
    path = write_text(tmp_path / "text.txt", words=400)
    with path.open("a", encoding="utf-8") as file:
        file.write("Ω≠ß" * 9)
    run = train(path, tmp_path / "run", epochs=1)
    assert "27 of the" in capsys.readouterr().out
    assert math.isfinite(summary(run)["test_bpc"])


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(text, tmp_path, monkeypatch, capsys):
    out, step, calls = tmp_path / "run", Training.step, []

    def poisoned(self: Training, *given: Any) -> Any:
        loss, state = step(self, *given)
        calls.append(1)
        return (loss * math.nan if self.update == 110 else loss), state

    monkeypatch.setattr(Training, "step", poisoned)
    what, instead = refused(capsys, lambda: command.main(arguments(text, out, log_every=7)), status=1)
    assert what == "the loss is no finite number at update 111."
    assert f"{out / 'checkpoints' / 'last.pt'} is from before it" in instead
    assert "--lr" in instead
    assert summary(out)["outcome"] == "diverged"
    assert not summary(out)["complete"]
    state, notes = Checkpoints(out).load()
    assert notes == []
    assert state is not None
    assert 0 < state["update"] < 111
    assert all(bool(weight.isfinite().all()) for weight in state["model"].values())
    assert all(math.isfinite(row["bpc"]) for row in rows(out, "train"))


def test_a_loss_that_is_no_number_before_the_first_checkpoint(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Training, "step", lambda self, inputs, state, links: (_nan(self), state))
    _, instead = refused(capsys, lambda: command.main(arguments(text, tmp_path / "run")), status=1)
    assert "before the first checkpoint" in instead


def _nan(training: Training) -> torch.Tensor:
    return sum(parameter.sum() for parameter in training.model.parameters()) * math.nan  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("changes", "window"),
    [({"window": 256}, 128), ({"window": 0}, 64), ({"method": "tbptt", "window": 256}, 5), ({"window": 1}, 1)],
)
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_memory_that_does_not_suffice_names_the_flag_that_lowers_it(
    error, changes, window, text, tmp_path, monkeypatch, capsys
):
    def full(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(Training, "step", full)
    what, instead = refused(capsys, lambda: command.main(arguments(text, tmp_path / "run", **changes)), status=1)
    assert "memory does not hold this run" in what
    assert f"--window {window}," in instead
    assert "--lanes" in instead


def test_any_other_runtime_error_is_a_defect_and_shows(text, tmp_path, monkeypatch):
    def broken(*_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Training, "step", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        command.main(arguments(text, tmp_path / "run"))


@pytest.mark.slow
def test_without_arguments_it_shows_a_falling_curve(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.main([]) == 0
    valid = [row["bpc"] for row in rows(tmp_path / "runs" / "train", "evaluation")]
    assert valid[-1] < 0.75 * valid[0]
    assert json.loads((tmp_path / "runs" / "train" / "summary.json").read_text(encoding="utf-8"))["complete"]
