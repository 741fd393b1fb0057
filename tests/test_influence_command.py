"""`artbp influence-balancing` and `artbp plot`: what they write, refuse, and go on from."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from artbp import Tabulated, _folder, cli
from artbp.experiments import influence_runs
from artbp.experiments._options import OptionError
from artbp.experiments.gradient_flow import flows
from artbp.experiments.influence_options import DATA, FIGURES, Options, check
from artbp.experiments.influence_results import Results
from artbp.experiments.influence_runs import Task, next_mark, perform, plan

RESULTS = Path(__file__).parent.parent / "results" / "influence-balancing"
SMALL = ["--steps", "300", "--seeds", "2", "--lengths", "10", "20", "--jobs", "2"]
PICTURES = [f"{figure}.{kind}" for figure in FIGURES for kind in ("png", "svg")]


def command(*arguments):
    return cli.main(["influence-balancing", *map(str, arguments)])


def read(folder):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in (folder / "runs.jsonl").read_text().splitlines()]
    return rows, json.loads((folder / "summary.json").read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    assert command(*SMALL, "--out", folder) == 0
    return folder


def test_a_run_leaves_all_files_and_nothing_else(finished):
    assert {path.name for path in finished.iterdir()} == {*DATA, *PICTURES}


def test_rows_are_as_promised(finished):
    rows, summary = read(finished)
    runs = [("TruncatedBPTT(10)", None), ("TruncatedBPTT(20)", None)]
    runs += [("ARTBP(PowerLaw(mean=16, alpha=6))", seed) for seed in (0, 1)]
    assert list(dict.fromkeys((row["method"], row["seed"]) for row in rows)) == runs
    assert [(run["method"], run["seed"]) for run in summary["runs"]] == runs
    for run in summary["runs"]:
        mine = [row for row in rows if (row["method"], row["seed"]) == (run["method"], run["seed"])]
        assert all(list(row) == ["method", "seed", "step", "average_loss", "theta"] for row in mine)
        steps = [row["step"] for row in mine]
        assert steps == sorted(set(steps))
        assert steps[-1] == 300 == run["steps"]
        assert (mine[-1]["average_loss"], mine[-1]["theta"]) == (run["average_loss"], run["theta"])
    assert summary["shortest_length_with_the_right_sign"] == 110
    assert [expected["sign"] for expected in summary["expected_gradient"]] == [-1, -1, 1]


def test_rows_are_thinned_evenly_on_a_log_scale():
    marks = [1]
    while marks[-1] < 10**6:
        marks.append(next_mark(marks[-1]))
    assert marks[-1] == 10**6
    per_decade = [sum(10**k <= mark < 10 ** (k + 1) for mark in marks) for k in range(2, 6)]
    assert per_decade == [40] * 4
    assert next_mark(0) == 1


def test_the_table_fits_into_80_columns(finished, capsys):
    command(*SMALL, "--out", finished, "--overwrite")
    printed = capsys.readouterr()
    assert printed.err == ""
    assert max(map(len, printed.out.splitlines())) <= 80 + len(str(finished))
    assert "TruncatedBPTT(10)" in printed.out
    assert "wrong sign" in printed.out


def test_again_into_a_finished_folder_does_nothing(finished, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}
    assert command(*SMALL, "--out", finished) == 0
    assert "nothing was done" in capsys.readouterr().out
    assert {path.name: path.stat().st_mtime_ns for path in finished.iterdir()} == before


def test_other_options_in_the_same_folder_are_refused(finished, capsys):
    assert command(*SMALL, "--alpha", 5, "--out", finished) == 2
    error = capsys.readouterr().err
    assert "alpha = 6 there and 5.0 here" in error
    assert "--overwrite" in error


def test_a_folder_of_someone_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").touch()
    assert command(*SMALL, "--out", tmp_path, "--overwrite") == 2
    assert "holds no run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_overflow_is_recorded_and_nothing_else_happens(tmp_path):
    arguments = [*SMALL, "--lr", "1e12", "--estimators", "TruncatedBPTT", "--out", str(tmp_path / "out")]
    result = subprocess.run(
        [sys.executable, "-m", "artbp", "influence-balancing", *arguments], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    rows, summary = read(tmp_path / "out")
    for run in summary["runs"]:
        assert run["outcome"] == "diverged"
        assert run["diverged_at"] == run["steps"] < 300
        assert run["average_loss"] is None
    assert rows[-1]["average_loss"] is None
    assert f"overflew at step {summary['runs'][0]['diverged_at']}" in result.stdout
    assert (tmp_path / "out" / "influence-balancing.png").is_file()


@pytest.mark.parametrize("option", [["--theta0", "1e308"], ["--s0", "1e200"], ["--noise", "1e300"]])
def test_what_overflows_at_once_is_drawn_too(option, tmp_path, capsys):
    options = Options(steps=30, seeds=1, lengths=(5,), out=tmp_path, **{option[0][2:]: float(option[1])})
    results = Results(options, plan(options))
    for run, progress in zip(results.runs, results.progress, strict=True):
        for report in perform(Task(run, options, None), lambda: False):
            progress.add(report)
    results.save()
    _folder.write_json(tmp_path / "config.json", options.config())
    _folder.write_json(tmp_path / "gradient-flow.json", flows())
    assert {run["outcome"] for run in results.summary()["runs"]} == {"diverged"}
    assert cli.main(["plot", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


DAMAGE = {
    "runs.jsonl": {"": "no run has written so", '{"step": 1}\n': "KeyError", "3\n": "TypeError", "{": "no valid JSON"},
    "config.json": {"[]": "holds a list", '{"experiment": "influence-balancing"}': "KeyError", "3": "holds a int"},
    "gradient-flow.json": {"{}": "no run has written so", '[{"method": 1}]': "no run has written so"},
}


@pytest.mark.parametrize(
    ("name", "content", "what"), [(name, *item) for name, kinds in DAMAGE.items() for item in kinds.items()]
)
def test_plot_of_damaged_files_is_refused_in_words(name, content, what, tmp_path, capsys):
    for file in DATA:
        shutil.copy(RESULTS / file, tmp_path)
    (tmp_path / name).write_text(content)
    assert cli.main(["plot", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert len(error.strip().splitlines()) == 2


def test_plot_of_what_is_no_text(tmp_path, capsys):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "it is no text" in capsys.readouterr().err
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "cannot be read: Is a directory" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(influence_runs, "_REPORT_EVERY", 0.0)  # else a fast machine is through before it is asked
    options = Options(steps=3000, seeds=1, lengths=(10,), out=tmp_path)
    results = Results(options, plan(options))
    for run, progress in zip(results.runs, results.progress, strict=True):
        progress.add(next(perform(Task(run, options, None), lambda: True)))
    results.save()
    (tmp_path / "checkpoints" / "0.pt").write_bytes(b"nothing")
    with pytest.raises(_folder.FolderError, match=r"(?s)0\.pt does not hold.*Remove it"):
        Results(options, plan(options)).load()


def test_stopped_and_gone_on_is_the_same_as_in_one_go(tmp_path):
    options = Options(steps=3000, seeds=1, lengths=(10,), noise=0.5, out=tmp_path)
    runs = plan(options)

    def some(results, stop):
        for run, progress in zip(runs, results.progress, strict=True):
            if progress.finished:
                continue
            for report in perform(Task(run, options, progress.saved), lambda: stop):
                progress.add(report)
        results.save()

    whole, parts = Results(options, runs), Results(options, runs)
    some(whole, stop=False)
    expected = read(tmp_path)
    rounds = 0
    some(parts, stop=True)
    while not parts.complete:
        rows, summary = read(tmp_path)
        assert not summary["complete"]
        assert {run["outcome"] for run in summary["runs"]} <= {"stopped", "converged", "undecided", "diverged"}
        # What a kill may leave behind: rows from after the last checkpoint, which will come again.
        later = [{**rows[-1], "step": run["steps"] + 1} for run in summary["runs"][-1:] if not run["finished"]]
        _folder.write_rows(tmp_path / "runs.jsonl", [*rows, *later])
        parts, rounds = Results(options, runs), rounds + 1
        parts.load()
        some(parts, stop=rounds < 3)
    rows, summary = read(tmp_path)
    assert rows == expected[0]
    for run in [*summary["runs"], *expected[1]["runs"]]:
        run.pop("seconds")
    assert summary == expected[1]
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups to interrupt")
def test_ctrl_c_leaves_valid_files_and_says_how_to_go_on(tmp_path):
    folder = tmp_path / "out"
    code = [sys.executable, "-m", "artbp", "influence-balancing", "--steps", "100000000", "--seeds", "1", "--jobs", "2"]
    going_on, begun = False, 0

    def written():  # at the beginning of a run, once it no longer dies of a Ctrl-C
        return (folder / "env.json").stat().st_mtime_ns if (folder / "env.json").exists() else 0

    for _ in range(2):
        with subprocess.Popen(
            [*code, "--out", str(folder)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            end = time.monotonic() + 60
            while written() == begun and time.monotonic() < end:
                time.sleep(0.05)
            begun = written()
            time.sleep(2.5)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all processes get it
            out, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert errors == ""
        assert "The same command goes on from there." in out
        assert ("Going on in" in out) == going_on
        _, summary = read(folder)
        assert not summary["complete"]
        going_on = bool(summary["runs"])
    assert going_on


@pytest.mark.parametrize(
    ("options", "what", "instead"),
    [
        ({"steps": 0}, "--steps 0", "from 1 on"),
        ({"p": 5, "n": 5}, "no parameter takes it to 1", "a p and an n that differ"),
        ({"n": -1}, "--n -1", "from 0 on"),
        ({"lr": -1.0}, "--lr -1.0", "such as 0.0003"),
        ({"noise": float("nan")}, "--noise nan", "such as 0.0"),
        ({"lengths": (10, 0)}, "--lengths 0", "from 1 on"),
        ({"alpha": 2.0}, "the exponent must be above 2", "uses alpha=4"),
        ({"law": "Powerlaw"}, "no law of this library", "such as Geometric"),
        ({"law": "__import__('os').getcwd()"}, "no law of this library", "such as Geometric"),
        ({"law": "Geometric(1)"}, "hazard", "Pass a mean above 1"),
        ({"law": "Tabulated(3)"}, "--law Tabulated(3)", "Pass a list"),
        ({"law": "PowerLaw(3)"}, "does not take these arguments", "'PowerLaw(mean=16, alpha=6)'"),
        ({"estimators": ()}, "names none", "Pass some"),
        ({"lengths": (10**30,)}, "no segment has 2^63 steps", "from 1 on"),
        ({"law": f"Fixed({10**30})"}, "2^63", "Never()"),
        ({"law": "(" * 50_000}, "no law of this library", "such as Geometric"),
        ({"law": "Tabulated(['a'])"}, "'a'", "Pass"),
    ],
)
def test_bad_options_are_refused_in_two_parts(options, what, instead):
    with pytest.raises(OptionError) as caught:
        check(Options(**options))
    assert what in str(caught.value)
    assert instead in str(caught.value)


@pytest.mark.parametrize(
    ("law", "method"),
    [
        ("Geometric", "ARTBP(Geometric(mean=16))"),
        ("Fixed", "ARTBP(Fixed(16))"),
        ("Never", "ARTBP(Never())"),
        ("Tabulated([0.0, 0.1])", f"ARTBP({Tabulated([0.0, 0.1])!r})"),
        ("PowerLaw(mean=20.5, alpha=4)", "ARTBP(PowerLaw(mean=20.5, alpha=4))"),
    ],
)
def test_laws_by_name(law, method):
    assert plan(Options(law=law, estimators=("ARTBP",), seeds=1))[0].method == method


def test_a_warning_of_the_law_is_said_once(capsys):
    options = Options(alpha=2.5)
    check(options)
    plan(options)
    assert capsys.readouterr().err.count("variance of the segment length is infinite") == 1


def test_with_noise_every_method_has_seeds():
    runs = plan(Options(noise=1.0, seeds=2, lengths=(10,)))
    assert [(run.kind, run.seed) for run in runs] == [
        ("TruncatedBPTT", 0), ("TruncatedBPTT", 1), ("ARTBP", 0), ("ARTBP", 1)
    ]  # fmt: skip


def test_help_does_not_wait_for_torch():
    code = "import sys; from artbp.cli import main\ntry: main(['influence-balancing', '--help'])\nfinally: print('torch' in sys.modules, file=sys.stderr)"  # noqa: E501
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.splitlines()[-1] == "False"
    assert "--theta0" in result.stdout


# artbp plot


def test_plot_draws_the_same_bytes_without_torch(finished):
    before = {name: (finished / name).read_bytes() for name in PICTURES}
    for name in PICTURES:
        (finished / name).unlink()
    code = "import sys; from artbp.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    arguments = [sys.executable, "-c", code, "plot", str(finished)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"
    assert {name: (finished / name).read_bytes() for name in PICTURES} == before


def test_plot_names_what_is_missing(tmp_path, capsys):
    assert cli.main(["plot", str(tmp_path / "nowhere")]) == 2
    assert "has no config.json" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"experiment": "cold fusion"}')
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "'cold fusion', for which there are no figures" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{")
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "no valid JSON at line 1" in capsys.readouterr().err


def test_plot_without_matplotlib_names_the_extra(finished, tmp_path):
    (tmp_path / "matplotlib.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'matplotlib'\", name='matplotlib')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    arguments = [sys.executable, "-m", "artbp", "plot", str(finished)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 1
    assert 'pip install "artbp[plot]"' in result.stderr


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "summary.json"
    _folder.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        _folder.write_json(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        _folder.write_bytes(path, "text")
    assert _folder.read_json(path) == {"a": 1}
    assert [child.name for child in tmp_path.iterdir()] == ["summary.json"]
