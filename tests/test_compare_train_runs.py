"""Runs side by side: the table, its statistics, and figures drawn from files alone."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from trained import refused, rows, summary, train, write_text

from artbp import _plot, cli
from artbp.train import compare_runs_command
from artbp.train.arms import Arm, Run, arms, window_name
from artbp.train.compare_runs import compare, table
from artbp.train.curves import training, validation
from artbp.train.student import incomplete_beta, quantile, two_sided

# Student's t as the tables have it: degrees of freedom, and the t that |T| stays below with 95%.
TABLE = [(1, 12.7062), (2, 4.30265), (3, 3.18245), (5, 2.57058), (10, 2.22814), (30, 2.04227), (120, 1.97993)]


@pytest.mark.parametrize(("freedom", "t"), TABLE)
def test_the_quantiles_are_those_of_the_tables(freedom, t):
    assert quantile(freedom, 0.95) == pytest.approx(t, rel=2e-6)
    assert two_sided(t, freedom) == pytest.approx(0.05, rel=2e-5)


@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 3.0, 40.0])
def test_students_t_in_closed_form(t):
    assert two_sided(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-12, abs=1e-15)
    assert two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-11, abs=1e-15)
    assert two_sided(-t, 4) == two_sided(t, 4)


def test_the_incomplete_beta_function_at_its_ends_and_by_symmetry():
    assert (incomplete_beta(0, 2, 3), incomplete_beta(1, 2, 3)) == (0, 1)
    assert incomplete_beta(0.3, 1, 1) == pytest.approx(0.3, rel=1e-13)
    assert incomplete_beta(0.3, 2, 5) == pytest.approx(1 - incomplete_beta(0.7, 5, 2), rel=1e-12)


# Made-up runs, so that the numbers are known


def made_up(method: str, seed: int, test: float | None, **changes: Any) -> Run:
    config = {
        "method": method,
        "mean": 50,
        "alpha": 4,
        "length": 50,
        "window": 64,
        "seed": seed,
        "epochs": 3,
        "lr": 0.1,
    }
    found = {"complete": True, "train_bpc": 2.0, "valid_bpc": 2.1, "test_bpc": test, "epochs": 3, "seconds": 5.0}
    config |= {"estimator": method, **changes}
    return Run(Path(f"{method}-{seed}"), config, {**found, "peak_memory": 10**8}, "digest")


def arm(method: str, tests: dict[int, float], **changes: Any) -> Arm:
    return Arm(method, [made_up(method, seed, test, **changes) for seed, test in tests.items()])


def test_means_deviations_and_the_paired_difference():
    one, other = {0: 1.50, 1: 1.52, 2: 1.47, 3: 1.51}, {0: 1.46, 1: 1.49, 2: 1.46, 3: 1.45}
    first, second = compare([arm("tbptt", one), arm("artbp", other)])
    spread = first.numbers["test"]
    assert spread.mean == pytest.approx(1.50)
    assert spread.deviation == pytest.approx(math.sqrt((0 + 0.02**2 + 0.03**2 + 0.01**2) / 3))
    assert spread.n == 4
    (found,) = [difference for difference in second.differences if difference.split == "test"]
    differences = [other[seed] - one[seed] for seed in one]
    mean, error = sum(differences) / 4, statistics.stdev(differences) / 2
    assert found.mean == pytest.approx(mean)
    assert found.interval == pytest.approx((mean - 3.18245 * error, mean + 3.18245 * error), abs=1e-6)
    t = mean / error  # with three degrees of freedom there is a closed form
    x = abs(t) / math.sqrt(3)
    assert found.p == pytest.approx(1 - 2 / math.pi * (math.atan(x) + x / (1 + x * x)), rel=1e-9)
    assert found.seeds == [0, 1, 2, 3]
    assert first.differences == []


def test_only_equal_seeds_are_paired():
    first, second = compare([arm("tbptt", {0: 1.5, 1: 1.6, 2: 1.0}), arm("artbp", {1: 1.5, 0: 1.3, 7: 9.0})])
    (found,) = [difference for difference in second.differences if difference.split == "test"]
    assert found.seeds == [1, 0]
    assert found.mean == pytest.approx(-0.15)
    assert second.unpaired == [2, 7]
    printed = table([first, second])
    assert "Not paired, because only one of the two has them: seeds 2, 7." in printed


def test_one_pair_and_equal_differences_have_no_interval():
    for tests in ({0: 1.5}, {0: 1.5, 1: 1.5}):
        _, second = compare([arm("tbptt", tests), arm("artbp", dict.fromkeys(tests, 1.25))])
        found = second.differences[-1]
        assert (found.mean, found.interval, found.p) == (-0.25, None, None)


def test_one_run_an_arm_says_that_there_is_no_deviation():
    printed = table(compare([arm("tbptt", {0: 1.5}), arm("artbp", {1: 1.4})]))
    assert "One run per arm: there is no standard deviation" in printed
    assert "no seed in common, so nothing is paired" in printed


def test_windows_that_bound_nothing_are_none():
    assert window_name({"method": "tbptt", "window": 256, "length": 50}) == "no window"
    assert window_name({"method": "tbptt", "window": 20, "length": 50}) == "window=20"
    assert window_name({"method": "artbp", "window": 0, "length": 50}) == "no window"
    assert window_name({"method": "artbp", "window": 256, "length": 50}) == "window=256"


# Runs of the command


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("runs")
    text = write_text(place / "text.txt", words=300)
    return train(text, place / "artbp", runs=3), train(text, place / "tbptt", runs=2, method="tbptt", clip=0.2)


def test_the_table_of_runs(folders, capsys):
    capsys.readouterr()
    assert compare_runs_command.main([*map(str, folders), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["label"] == "ARTBP (10, α=4), no clip"
    assert second["label"] == "truncated BPTT (10), clip=0.2"
    assert (first["seeds"], second["seeds"]) == ([0, 1, 2], [0, 1])
    of = {
        name: [summary(folders[0] / f"seed-{seed}")[f"{name}_bpc"] for seed in range(3)] for name in ("train", "test")
    }
    for name, values in of.items():
        assert first["numbers"][name]["mean"] == pytest.approx(statistics.fmean(values))
        assert first["numbers"][name]["deviation"] == pytest.approx(statistics.stdev(values))
    assert second["unpaired"] == [2]
    assert compare_runs_command.main([str(folder) for folder in folders]) == 0
    printed = capsys.readouterr().out
    assert f"{statistics.fmean(of['test']):.4f} ± {statistics.stdev(of['test']):.4f}" in printed
    assert "95% interval, p: paired t" in printed


def test_runs_that_are_not_finished_are_left_out_and_said(folders, tmp_path, capsys):
    copy = tmp_path / "artbp"
    shutil.copytree(folders[0], copy)
    path = copy / "seed-1" / "summary.json"
    path.write_text(json.dumps({**summary(copy / "seed-1"), "complete": False, "outcome": "stopped"}), encoding="utf-8")
    capsys.readouterr()
    assert compare_runs_command.main([str(copy)]) == 0
    printed = capsys.readouterr().out
    assert "Not finished:" in printed
    assert f"{copy / 'seed-1'} (stopped after 2 of 2 passes)" in printed
    assert compare_runs_command.main([str(copy), "--unfinished", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["seeds"] == [0, 1, 2]
    what, instead = refused(capsys, lambda: compare_runs_command.main([str(copy / "seed-1")]))
    assert "none of these runs is finished" in what
    assert "--unfinished" in instead


def test_what_cannot_be_compared(folders, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(folders[0] / "seed-0", copy)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"experiment": "lengths"}', encoding="utf-8")
    for typed, what, instead in (
        ([], "no run was named", "artbp compare-runs RUN"),
        ([str(tmp_path / "absent")], "holds no run", "--out"),
        ([str(other)], "another experiment", "--out"),
        ([str(folders[0]), str(copy)], "are the same run", "Pass one of them"),
    ):
        said = refused(capsys, lambda typed=typed: compare_runs_command.main(typed))
        assert what in said[0]
        assert instead in said[1]


# Figures


def test_figures_are_drawn_from_the_files_alone_and_always_the_same(folders, tmp_path, monkeypatch):
    copies = []
    for folder in folders:
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("checkpoints", "plots"))
        copies.append(str(tmp_path / folder.name))
    monkeypatch.setattr("artbp.train.training.Training.updates", None)  # plot never trains
    for name in ("one", "two"):
        assert _plot.main([*copies, "--out", str(tmp_path / name)]) == 0
    drawn = sorted((tmp_path / "one").iterdir())
    expected = ("learning-curves", "memory", "segment-lengths", "validation-and-training")
    assert [path.name for path in drawn] == [f"{name}.{kind}" for name in expected for kind in ("png", "svg")]
    for path in drawn:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_the_curves_are_the_rows(folders):
    found, other = arms(list(folders))
    assert (len(found.runs), len(other.runs)) == (3, 2)
    curve = validation(found, None)
    assert curve.x == pytest.approx([1, 2])
    for place in (0, 1):
        values = [rows(run.folder, "evaluation")[place]["bpc"] for run in found.runs]
        assert curve.mean[place] == pytest.approx(statistics.fmean(values))
        assert (curve.low[place], curve.high[place]) == pytest.approx((min(values), max(values)))
    trained = training(found, None, 2)
    assert 0 < trained.x[0] < trained.x[-1] <= 2
    assert trained.mean[0] > trained.mean[-1]
    assert all(low <= mean <= high for low, mean, high in zip(trained.low, trained.mean, trained.high, strict=True))


def test_a_run_that_is_still_going_can_be_drawn(folders, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folders[0] / "seed-0", copy, ignore=shutil.ignore_patterns("plots"))
    lines = (copy / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_bytes(lines[0] + lines[1][:40])  # in its first pass, and in the middle of a row
    (copy / "summary.json").unlink()
    assert _plot.main([str(copy)]) == 0
    assert (copy / "plots" / "learning-curves.png").exists()


def test_what_cannot_be_drawn(folders, tmp_path, capsys):
    begun = tmp_path / "begun"
    shutil.copytree(folders[0] / "seed-0", begun)
    (begun / "metrics.jsonl").write_bytes(b"")
    damaged = tmp_path / "damaged"
    shutil.copytree(folders[0] / "seed-0", damaged)
    (damaged / "metrics.jsonl").write_bytes(b'{"kind": "train"\n')
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"experiment": "lengths"}', encoding="utf-8")
    file = tmp_path / "file"
    file.write_bytes(b"")
    for typed, what, instead in (
        ([tmp_path / "absent"], "has no config.json", "--out"),
        ([begun], "nothing was trained yet", "Draw it again"),
        ([damaged], "is no valid JSON at line 1", "--overwrite"),
        ([folders[0], other], "cannot be drawn beside runs", "one kind at a time"),
        ([folders[0], "--out", file], "cannot be written", "--out"),
    ):
        said = refused(capsys, lambda typed=typed: _plot.main([str(word) for word in typed]))
        assert what in said[0]
        assert instead in said[1]


def test_without_matplotlib_the_extra_is_named(folders, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "artbp.train.figures"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("memory_figure", "lengths_figure"):
        monkeypatch.delitem(sys.modules, f"artbp.train.{name}", raising=False)
    monkeypatch.delitem(sys.modules, "artbp._figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    what, instead = refused(capsys, lambda: cli.main(["plot", str(folders[0])]), status=1)
    assert "needs matplotlib" in what
    assert 'pip install "artbp[plot]"' in instead
