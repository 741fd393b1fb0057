"""Runs of `artbp train` that are stopped, at any moment and in any way, and end as if they had been left alone."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

if os.name != "posix":
    pytest.skip("signals and forks as POSIX has them", allow_module_level=True)

from trials import OFTEN, TINY, UPDATE, begin, finish, in_two_parts, outcome, train

from artbp.train.checkpoints import Checkpoints, read
from artbp.train.corpus import embedded
from artbp.train.evaluation import Evaluation
from artbp.train.group import Group
from artbp.train.options import Options
from artbp.train.session import Session, StoppedError


def test_two_runs_left_alone_are_the_same_bit_for_bit(text, alone, tmp_path):
    assert train("--corpus", text, *TINY, *OFTEN, "--out", tmp_path / "run").status == 0
    assert outcome(tmp_path / "run") == outcome(alone)


@pytest.mark.usefixtures("alone")  # the server has begun, and its beginning is in no time measured here
def test_killed_at_25_random_moments(text, tmp_path):
    """SIGKILL 25 times, also while a checkpoint is written, which is every 0.02 s here."""
    moments, folder, kills = random.Random(0), tmp_path / "run", 0
    longer = (*TINY, "--epochs", "8")
    start = time.monotonic()
    assert train("--corpus", text, *longer, "--out", tmp_path / "alone").status == 0
    whole = time.monotonic() - start
    arguments = ("--corpus", text, *longer, *OFTEN, "--out", folder)
    for _ in range(25):
        process, here = begin(*arguments)
        time.sleep(moments.uniform(0.0, 0.15) * whole)
        process.kill()
        kills += finish(process, here).status is None
        if (folder / "config.json").exists():
            arguments = ("--resume", folder, *OFTEN)
    end = train(*arguments)
    assert end.status == 0, end
    assert kills >= 15  # or the run had come to its end
    assert outcome(folder) == outcome(tmp_path / "alone")
    assert not list(folder.rglob(".*"))


def test_killed_at_every_change_of_a_file(text, alone, tmp_path):
    """Each attempt goes on where the one before was killed, and is killed one change later."""
    folder, number = tmp_path / "run", 1
    arguments = ("--corpus", text, *TINY, "--out", folder)
    while (end := train(*arguments, operation={"folder": str(folder), "at": number, "what": "kill"})).status is None:
        number += 1
        if (folder / "config.json").exists():
            arguments = ("--resume", folder)
    assert end.status == 0, end
    assert number > 15
    assert outcome(folder) == outcome(alone)
    assert not list(folder.rglob(".*"))


@pytest.mark.slow
def test_killed_once_at_every_change_of_a_file(text, alone, tmp_path):
    """From the beginning each time, so that all moments of all checkpoints are met."""
    number = 1
    while True:
        folder = tmp_path / f"run-{number}"
        begun = ("--corpus", text, *TINY, "--out", folder)
        if train(*begun, operation={"folder": str(folder), "at": number, "what": "kill"}).status is not None:
            break
        end = train("--resume", folder) if (folder / "config.json").exists() else train(*begun)
        assert end.status == 0, (number, end)
        assert outcome(folder) == outcome(alone), number
        number += 1
    assert number > 30


def test_several_seeds_are_resumed_as_a_whole(text, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert train("--corpus", text, *TINY, "--runs", 3, "--seed", 5, "--out", whole).status == 0
    arguments = ("--corpus", text, *TINY, "--runs", 3, "--seed", 5, "--out", folder)
    ends = []
    for number in (3, 22, 30, 40, 20):
        ends.append(train(*arguments, operation={"folder": str(folder), "at": number, "what": "kill"}).status)
        arguments = ("--resume", folder) if (folder / "config.json").exists() else arguments
    assert ends.count(None) >= 3
    assert train(*arguments).status == 0
    for seed in (5, 6, 7):
        assert outcome(folder / f"seed-{seed}") == outcome(whole / f"seed-{seed}")
    end = train(*arguments)
    assert end.status == 0
    assert end.out.count("finished: nothing was done") == 3


@pytest.mark.slow
def test_a_program_killed_25_times(text, alone, tmp_path):
    """The same from a shell, importing and all."""
    moments, folder, kills = random.Random(1), tmp_path / "run", 0
    first = ["--corpus", text, *TINY, *OFTEN, "--out", folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    while True:
        command = ["--resume", folder, *OFTEN] if (folder / "config.json").exists() else first
        program = [sys.executable, "-m", "artbp", "train", *map(str, command)]
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
        start = time.monotonic()
        while not (folder / "checkpoints").exists() and process.poll() is None and time.monotonic() - start < 60:
            time.sleep(0.01)
        try:
            process.wait(moments.uniform(0.0, 6.0) if kills < 25 else 300)
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        _, err = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, err
    assert kills > 3
    assert outcome(folder) == outcome(alone)


# ---- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_a_checkpoint_of_that_moment(number, status, text, alone, tmp_path):
    folder = tmp_path / "run"
    at = {"place": UPDATE, "numbers": [number], "call": 20}
    end = train("--corpus", text, *TINY, "--out", folder, signal_at=at)
    assert (end.status, end.err) == (status, "")
    assert f"Stopped at update 20. `artbp train --resume {folder}` goes on from there." in end.out
    assert read(folder / "checkpoints" / "last.pt")["update"] == 20
    end = train("--resume", folder)
    assert end.status == 0
    assert "Going on from update 20, in pass 1 of 2." in end.out
    assert outcome(folder) == outcome(alone)


@pytest.mark.parametrize(
    ("place", "call", "update"),
    [
        ("artbp.train.session:Session", 1, None),  # before the first update
        ("artbp.train.evaluation:lane_losses", 1, "pass"),  # while it is evaluated
        ("artbp.train.session:Session._test", 1, "pass"),  # at the very end
        ("artbp.train.checkpoints:encode", 1, None),  # while a checkpoint is written
    ],
)
def test_a_signal_at_an_odd_moment(place, call, update, text, alone, tmp_path):
    folder = tmp_path / "run"
    at = {"place": place, "numbers": [signal.SIGTERM], "call": call}
    end = train("--corpus", text, *TINY, "--out", folder, signal_at=at)
    assert (end.status, end.err) == (143, "")
    state, _ = Checkpoints(folder).load()
    if update is None:
        assert state is None or state["update"] > 0
    else:
        assert state["stream"]["position"] == 0
        assert state["epoch"] == (2 if "_test" in place else 1)
    assert train("--resume", folder).status == 0
    assert outcome(folder) == outcome(alone)


def test_a_second_sigterm_and_an_echo_of_ctrl_c_change_nothing(text, tmp_path):
    """Schedulers repeat SIGTERM; under torchrun a terminal's Ctrl-C comes twice."""
    for numbers, status in (([signal.SIGTERM] * 3, 143), ([signal.SIGINT] * 2, 130)):
        folder = tmp_path / str(status)
        at = {"place": UPDATE, "numbers": numbers, "call": 9}
        assert train("--corpus", text, *TINY, "--out", folder, signal_at=at).status == status
        assert read(folder / "checkpoints" / "last.pt")["update"] == 9


def test_a_second_ctrl_c_ends_it_at_once(text, alone, tmp_path):
    folder = tmp_path / "run"
    at = {"place": UPDATE, "numbers": [signal.SIGINT] * 2, "call": 9, "apart": 2.5}
    end = train("--corpus", text, *TINY, "--out", folder, signal_at=at)
    assert (end.status, end.err) == (130, "interrupted\n")
    assert not (folder / "checkpoints").exists()
    end = train("--resume", folder)
    assert end.status == 0
    assert "There is no checkpoint yet: the run starts from its beginning." in end.out
    assert outcome(folder) == outcome(alone)


# ---- what a resume is told -------------------------------------------------------------------------------------------


def test_patience_ends_a_run_where_it_is_not_better_any_more(text, tmp_path):
    """The rate is so high that the best pass is an early one; stopped in between, it ends at the same place."""
    wild = ("--corpus", text, *TINY, "--epochs", 30, "--lr", 0.3, "--schedule", "constant", "--patience", 2)
    assert train(*wild, "--out", tmp_path / "alone").status == 0
    valid = [row["bpc"] for row in outcome(tmp_path / "alone")["rows"] if row["kind"] == "evaluation"]
    assert 2 < len(valid) < 30
    assert min(valid) == valid[-3]
    assert all(bpc > min(valid[:k]) for k, bpc in enumerate(valid) if k > len(valid) - 3)
    assert all(min(valid[k - 2 : k]) < min(valid[: k - 2]) for k in range(3, len(valid)))  # and nowhere before
    summary = outcome(tmp_path / "alone")["summary"]
    assert (summary["complete"], summary["epochs"], summary["best_epoch"]) == (True, len(valid), len(valid) - 3)
    at = {"place": UPDATE, "numbers": [signal.SIGTERM], "call": 40}
    assert train(*wild, "--out", tmp_path / "run", signal_at=at).status == 143
    assert train("--resume", tmp_path / "run").status == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "alone")


def test_a_finished_run_says_so_and_is_left_as_it_is(alone):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in alone.rglob("*")}
    end = train("--resume", alone)
    assert (end.status, end.out, end.err) == (0, f"{alone} holds this run, finished: nothing was done.\n", "")
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in alone.rglob("*")} == before


def test_a_run_is_begun_with_relative_paths_and_resumed_through_a_link(text, alone, tmp_path):
    at = {"place": UPDATE, "numbers": [signal.SIGTERM], "call": 20}
    begun = ("--corpus", os.path.relpath(text, tmp_path), *TINY, "--out", "runs/one")
    assert train(*begun, chdir={"folder": str(tmp_path)}, signal_at=at).status == 143
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("runs/one")
    assert train("--resume", "../link/", chdir={"folder": str(tmp_path / "elsewhere")}).status == 0
    assert outcome(tmp_path / "runs" / "one") == outcome(alone)


def test_the_time_of_day_may_jump(text, alone, tmp_path):
    folder = tmp_path / "run"
    at = {"place": UPDATE, "numbers": [signal.SIGTERM], "call": 20}
    assert train("--corpus", text, *TINY, *OFTEN, "--out", folder, signal_at=at, clock={"jump": 1e6}).status == 143
    assert train("--resume", folder, *OFTEN, clock={"jump": 1e7}).status == 0
    assert outcome(folder) == outcome(alone)


def test_an_option_of_the_run_cannot_be_changed_on_the_way(alone):
    assert "--lr 0.1" in in_two_parts(train("--resume", alone, "--lr", "0.1"), 2)


def test_a_stop_is_seen_after_a_pass_of_few_updates(tmp_path, monkeypatch):
    """On GPUs several processes look at what was asked with the rows of metrics, and a short pass has none inside."""
    corpus = embedded()
    corpus = dataclasses.replace(corpus, splits={**corpus.splits, "train": corpus.splits["train"][:6400]})
    options = Options(hidden=8, lanes=8, epochs=4, method="tbptt", length=50, log_every=50)
    asked = []

    class Two(Group):
        rank, size = 0, 2

        def gather(self, value):
            return [value, value]

    class Bar:
        def advance(self, characters):
            asked.append(True)  # with the first update

        def train(self, *arguments): ...

        evaluated = train

    session = Session(options, tmp_path, corpus, Two(), torch.device("cpu"), {"estimator": "?"}, lambda: bool(asked))
    session.device = SimpleNamespace(type="cuda")  # for the session's own looks alone
    monkeypatch.setattr("artbp.train.session._peak_memory", lambda device: 0)
    monkeypatch.setattr(session, "_evaluation", lambda *arguments: (None, 0.0))
    with pytest.raises(StoppedError):
        session.run(Bar())
    assert session.training.epoch == 1


def test_the_peak_of_memory_on_a_gpu_is_that_of_training(tmp_path, monkeypatch):
    """An evaluation takes 256 steps at a time, more than a window: its peak would hide what a window saves."""
    allocator = SimpleNamespace(peak=0)

    def evaluate(*_, **__):
        allocator.peak = max(allocator.peak, 900)
        return Evaluation(2.0, 10, (2.0,))

    monkeypatch.setattr("artbp.train.session.evaluate", evaluate)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: allocator.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: setattr(allocator, "peak", 10))
    corpus = embedded()
    corpus = dataclasses.replace(corpus, splits={**corpus.splits, "train": corpus.splits["train"][:6400]})
    options = Options(hidden=8, lanes=8, epochs=3, method="tbptt", length=50, log_every=5)
    session = Session(options, tmp_path, corpus, Group(), torch.device("cpu"), {"estimator": "?"}, lambda: False)
    session.device = SimpleNamespace(type="cuda")  # for the session's own looks alone
    updates = session.training.updates

    def growing():
        for update in updates():
            allocator.peak = max(allocator.peak, 100 + 10 * session.training.epoch)
            yield update

    monkeypatch.setattr(session.training, "updates", growing)
    bar = SimpleNamespace(advance=lambda *_: None, train=lambda *_: None, evaluated=lambda *_: None)
    assert session.run(bar)["peak_memory"] == 120
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["memory"] for row in rows if row["kind"] == "train"} == {100, 110, 120}
