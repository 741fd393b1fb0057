"""The plan of the Penn Treebank runs: what is started, stopped, gone on with, and kept. Stand-ins do the running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("signals as POSIX has them", allow_module_level=True)

from site_pages import ROOT
from trained import summary, train, write_text

from artbp._folder import read_json
from artbp.train import evaluate_command
from artbp.train.checkpoints import Checkpoints, read
from artbp.train.lane_trace import Derailment, Trace

# A run that is done as soon as `done` is in its folder, saves where it is when it is stopped, and goes on from there.
STAND_IN = """
import json, os, signal, sys, time
folder, kind = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
if kind == "failing":
    print("first"); print("error: no room here"); sys.exit(7)
seen = os.path.join(folder, "seen")
open(seen, "a").write(os.environ["OMP_NUM_THREADS"] + os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "") + "\\n")
def finish(complete):
    summary = {"complete": complete, "epochs": 3, "seconds": 1.0, "valid_bpc": 1.5}
    json.dump(summary, open(folder + "/summary.json", "w"))
if kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(folder + "/deaf", "w").close()
else:
    signal.signal(signal.SIGTERM, lambda *_: (finish(False), sys.exit(143)))
    open(folder + "/config.json", "w").write("{}")
if kind == "quick" or (kind == "slow" and len(open(seen).readlines()) > 1):
    finish(True); sys.exit(0)
while True: time.sleep(0.02)
"""


@pytest.fixture
def plan(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import penn_treebank

    return penn_treebank


@pytest.fixture
def stand_in(plan, monkeypatch):
    """Has every run be of the kind that is named for its method."""
    kinds: dict[str, str] = {}

    def command(run, ptb, out):
        return [sys.executable, "-c", STAND_IN, str(out / run.name), kinds[run.options["method"]]]

    monkeypatch.setattr(plan.Run, "command", command)
    before = signal.getsignal(signal.SIGTERM)
    yield kinds
    signal.signal(signal.SIGTERM, before)


def run(plan, out: Path, *typed: str) -> int:
    return plan.main(["run", "--ptb", "text", "--out", str(out), "--seeds", "0", *typed])


def test_a_run_is_begun_with_its_options_and_gone_on_with_where_the_text_is_now(plan, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(plan, "run_all", lambda arguments: found.append(arguments) or 0)
    run(plan, tmp_path, "--hidden", "8", "--epochs", "2", "--patience", "3")
    runs = [run for stage in plan.STAGES for run in plan.plan(stage, found[0])]
    assert len(runs) == 3 + 9 + 4 + 6
    assert {run.name: run.options.get("patience") for run in runs if "patience" not in run.options} == {
        f"baseline/{method}-0.002-seed-{seed}": None for method in ("tbptt", "artbp") for seed in range(2)
    }
    command = " ".join(runs[2].command(Path("text"), tmp_path))
    assert f"artbp train --ptb text --out {tmp_path}/arms/artbp-0.001-seed-0 --method artbp --mean 50" in command
    (tmp_path / runs[2].name).mkdir(parents=True)
    (tmp_path / runs[2].name / "config.json").touch()
    command = " ".join(runs[2].command(Path("elsewhere"), tmp_path))
    assert command.endswith(f"artbp train --ptb elsewhere --resume {tmp_path}/arms/artbp-0.001-seed-0")


def test_what_is_stopped_is_gone_on_with_and_what_failed_says_why(plan, stand_in, tmp_path, capsys):
    stand_in.update(tbptt="quick", random="failing", artbp="slow")
    assert run(plan, tmp_path, "--jobs", "3", "--seconds", "4", "--say-every", "0.5") == 1
    said = capsys.readouterr().out
    assert "1 going, 0 to 0 passes done, 0 waiting" in said
    assert "finished     arms/tbptt-0.001-seed-0          3 passes  1 s  valid 1.5000" in said
    assert "failed (7)   arms/random-0.001-seed-0" in said
    assert "    error: no room here\n" in said
    assert "begun        arms/artbp-0.001-seed-0" in said
    stand_in.update(random="quick")
    assert run(plan, tmp_path, "--jobs", "3", "--seconds", "30") == 0
    assert capsys.readouterr().out.count("finished") == 3
    threads = (tmp_path / "arms/artbp-0.001-seed-0/seen").read_text().split()[0]
    assert threads == os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 3)))


def test_a_signal_to_the_plan_stops_its_runs_and_one_that_does_not_hear_is_killed(
    plan, stand_in, tmp_path, capsys, monkeypatch
):
    stand_in.update(tbptt="slow", random="deaf", artbp="slow")
    monkeypatch.setattr(plan, "GRACE", 1.0)
    begun = [
        tmp_path / "arms" / "tbptt-0.001-seed-0" / "config.json",
        tmp_path / "arms" / "random-0.001-seed-0" / "deaf",
    ]

    def stop_once_both_are_going() -> None:
        while not all(path.exists() for path in begun):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    stop = threading.Thread(target=stop_once_both_are_going)
    stop.start()
    assert run(plan, tmp_path, "--jobs", "2", "--seconds", "60") == 0
    stop.join()
    said = capsys.readouterr().out
    assert said.count("begun") == 2
    assert "waiting      arms/artbp-0.001-seed-0" in said
    assert not summary(tmp_path / "arms/tbptt-0.001-seed-0")["complete"]


@pytest.mark.parametrize(("status", "context"), [(0, True), (0, False), (1, True), (None, True)])
def test_runs_share_the_gpu_where_they_can(plan, stand_in, tmp_path, capsys, monkeypatch, status, context):
    """Under MPS where it starts and works; without it where not, for with a broken one no run could compute."""
    asked = tmp_path / "asked"
    if status is not None:
        control = tmp_path / "bin" / "nvidia-cuda-mps-control"
        control.parent.mkdir()
        control.write_text(f'#!/bin/sh\n[ "$1" = -d ] && {{ echo begin >> {asked}; exit {status}; }}\ncat >> {asked}\n')
        control.chmod(0o755)
        monkeypatch.setenv("PATH", str(control.parent), prepend=os.pathsep)
    monkeypatch.setattr(plan, "_has_a_context", lambda environment: context)
    stand_in.update(tbptt="quick", random="quick", artbp="quick")
    assert run(plan, tmp_path / "out", "--mps") == 0
    shared = status == 0 and context
    assert ("The runs share the GPU under MPS." in capsys.readouterr().out) == shared
    assert ("mps-" in (tmp_path / "out/arms/artbp-0.001-seed-0/seen").read_text()) == shared
    assert (asked.read_text() if asked.exists() else None) == {None: None, 0: "begin\nquit\n", 1: "begin\n"}[status]


def test_a_gpu_that_is_not_there_gives_no_context(plan):
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    assert not plan._has_a_context(hidden)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs as the plan leaves them, on a text of their own."""
    folder = tmp_path_factory.mktemp("plan")
    text = write_text(folder / "text.txt", words=600)
    for method in ("tbptt", "artbp"):
        train(text, folder / "runs" / "arms" / method, method=method, epochs=1)
    return folder / "runs"


def test_evaluations_are_those_of_the_command_and_are_collected(plan, runs, tmp_path, capsys, monkeypatch):
    seen: list[object] = []

    def derailments(trace):
        """In the first run, on the test text, a lane derails unless its state is reset."""
        seen.append(trace)
        return [Derailment(1, 4.0, 0, 2, None, 4.0)] if len(seen) == 2 else []

    monkeypatch.setattr(Trace, "derailments", derailments)
    assert plan.main(["evaluate", "--out", str(runs), "--device", "cpu"]) == 0
    capsys.readouterr()
    evaluations = {path.stem: read_json(path) for path in (runs / "arms" / "artbp" / "evaluations").iterdir()}
    assert evaluations["test-carried"]["derailed"] == [[1, 0, 2]]
    assert "stretch_bpc" in evaluations["test-carried"]
    assert "stretch_bpc" not in evaluations["valid-carried"]
    assert evaluations["test-lanes-32"]["lanes"] == 32
    assert evaluations["test-float32"]["lane_bpc"] == evaluations["test-carried"]["lane_bpc"]  # on a CPU
    found = evaluations["test-reset-1000"]
    assert evaluate_command.main([str(runs / "arms" / "artbp"), "--reset", "1000", "--json", "--device", "cpu"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert (found["reset"], found["split"], found["lanes"]) == (1000, "test", expected["lanes"])
    assert found["lane_bpc"] == pytest.approx(expected["lane_bpc"], abs=1e-5)
    assert plan.main(["models", "--out", str(runs), "--to", str(tmp_path / "models")]) == 0
    assert {path.parent.name for path in tmp_path.glob("models/arms/*/config.json")} == {"artbp"}  # it derailed
    assert plan.main(["collect", "--out", str(runs), "--results", str(tmp_path / "results")]) == 0
    kept = {str(path.relative_to(tmp_path / "results")) for path in (tmp_path / "results").rglob("*.*")}
    files = ["config.json", "env.json", "metrics.jsonl", "summary.json", "vocabulary.json"]
    files += ["evaluations/valid-carried.json", "evaluations/test-carried.json"]
    expected = {f"arms/{method}/{file}" for method in ("tbptt", "artbp") for file in files}
    others = [f"arms/artbp/evaluations/test-{name}.json" for name in ("reset-1000", "lanes-32", "float32")]
    assert kept == {*expected, *others}


def test_a_model_alone_is_evaluated_as_it_was_and_is_a_third(plan, runs, tmp_path, capsys):
    assert plan.main(["models", "--out", str(runs), "--to", str(tmp_path), "arms/artbp"]) == 0
    numbers = []
    for folder in (runs, tmp_path):
        capsys.readouterr()
        assert evaluate_command.main([str(folder / "arms" / "artbp"), "--json", "--device", "cpu"]) == 0
        numbers.append(json.loads(capsys.readouterr().out)["lane_bpc"])
    assert numbers[0] == numbers[1]
    state = read(tmp_path / "arms" / "artbp" / "checkpoints" / "best.pt")
    assert "optimizer" not in state
    assert state["model"].keys() == Checkpoints(runs / "arms" / "artbp").load_best()["model"].keys()


def test_the_command_says_what_it_can_do():
    command = [sys.executable, str(ROOT / "benchmarks" / "penn_treebank.py"), "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "evaluate" in said
