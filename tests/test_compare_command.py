"""`artbp compare` and `artbp lengths`: what they print, write and draw, and how they refuse."""

import json

import pytest

from artbp import cli


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    return status, capsys.readouterr()


SMALL = ["--steps", 20, "--draws", 2, "--samples", 2, "--lengths", 3, 10, "--mean", 5, "--alphas", 4, 6]


@pytest.mark.parametrize("subject", ["influence-balancing", "rnn"])
def test_compare_prints_its_table_and_leaves_data_and_figures(subject, capsys, tmp_path):
    more = ["--units", 3, "--training", 1]
    status, printed = run(capsys, "compare", subject, *SMALL, *more, "--out", tmp_path)
    assert status == 0
    assert "TruncatedBPTT(10)" in printed.out
    assert "UORO()" in printed.out
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert [row["estimator"] for row in rows][:4] == [
        "BPTT()",
        "CheckpointedBPTT(4)",
        "TruncatedBPTT(3)",
        "TruncatedBPTT(10)",
    ]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["command"].startswith(f"artbp compare {subject} --steps 20")
    assert (tmp_path / "env.json").exists()
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert {point["retention"] for point in curves["retention"] if point["method"] == "ARTBP"} == {1.0}
    first = {path.name: path.read_bytes() for path in tmp_path.glob("*.[ps][nv]g")}
    assert set(first) == {"trade-off.png", "trade-off.svg", "retention.png", "retention.svg"}
    assert run(capsys, "plot", tmp_path)[0] == 0
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.[ps][nv]g")} == first


@pytest.mark.parametrize(
    ("arguments", "what", "instead"),
    [
        (["compare", "--steps", 0], "--steps 0", "from 2 on"),
        (["compare", "--draws", 1], "--draws 1", "from 2 on"),
        (["compare", "--samples", 1], "--samples 1", "from 2 on"),
        (["compare", "rnn", "--units", 0], "--units 0", "from 1 on"),
        (["compare", "rnn", "--training", -1], "--training -1", "from 0 on"),
        (["compare", "--seed", 2**63], "below 2^63", "from 0 on"),
        (["compare", "--lengths"], "--lengths names none", "--lengths 5 10"),
        (["compare", "--lengths", 10, 0], "--lengths 0", "from 1 on"),
        (["compare", "--alphas"], "--alphas names none", "--alphas 4 6 10"),
        (["lengths", "--alphas"], "--alphas names none", "--alphas 4 6 10"),
        (["lengths", "--draws", 0], "--draws 0", "from 2 on"),
        (["lengths", "--draws", -5], "--draws -5", "from 2 on"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(arguments, what, instead, capsys, tmp_path):
    status, printed = run(capsys, *arguments, "--out", tmp_path / "out")
    assert status == 2
    assert what in printed.err
    assert instead in printed.err
    assert not (tmp_path / "out").exists()


QUICK = {"compare": ["compare", *SMALL], "lengths": ["lengths", "--draws", 100]}


@pytest.mark.parametrize("command", QUICK.values(), ids=QUICK)
def test_folders_that_are_not_for_this(command, capsys, tmp_path):
    """Somebody's files, another experiment's run, a file in the way: nothing is lost, and nothing is measured."""
    mine, other, file = tmp_path / "mine", tmp_path / "other", tmp_path / "file"
    mine.mkdir()
    other.mkdir()
    (mine / "thesis.tex").write_text("x")
    (other / "config.json").write_text('{"experiment": "influence-balancing"}')
    file.write_text("x")
    for folder, what in ((mine, "holds no run"), (other, "another experiment"), (file, "cannot be made")):
        status, printed = run(capsys, *command, "--out", folder, "--overwrite")
        assert status == 2
        assert what in printed.err
        assert len(printed.err.strip().splitlines()) == 2
    assert [path.name for path in mine.iterdir()] == ["thesis.tex"]
    assert (other / "config.json").read_text() == '{"experiment": "influence-balancing"}'


def test_another_run_of_the_same_kind_is_kept_unless_told(capsys, tmp_path):
    assert run(capsys, *QUICK["lengths"], "--out", tmp_path)[0] == 0
    before = (tmp_path / "lengths.json").read_bytes()
    status, printed = run(capsys, "lengths", "--draws", 200, "--out", tmp_path)
    assert status == 2
    assert "draws = 100 there and 200 here" in printed.err
    assert "--overwrite" in printed.err
    assert run(capsys, *QUICK["lengths"], "--out", tmp_path)[0] == 0  # the same again
    assert (tmp_path / "lengths.json").read_bytes() == before
    assert run(capsys, "lengths", "--draws", 200, "--out", tmp_path, "--overwrite")[0] == 0
    assert (tmp_path / "lengths.json").read_bytes() != before


def test_a_comparison_that_fails_leaves_no_older_data_beside_its_options(capsys, tmp_path, monkeypatch):
    assert run(capsys, *QUICK["compare"], "--out", tmp_path)[0] == 0
    monkeypatch.setattr("artbp.experiments.compare_runs.side_by_side", lambda options, subject: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(capsys, *QUICK["compare"], "--out", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "env.json"]


def test_every_exponent_is_drawn(capsys, tmp_path):
    alphas = [3, 4, 5, 6, 7, 8, 9]
    status, printed = run(capsys, "lengths", "--draws", 100, "--alphas", *alphas, "--out", tmp_path)
    assert status == 0
    assert printed.err.startswith("note: PowerLaw(mean=50, alpha=3)")
    from artbp.experiments import lengths_figures

    lines = []
    original = lengths_figures.keep
    lengths_figures.keep = lambda figure, *_: lines.extend(figure.axes[0].get_legend().get_texts()) or []
    try:
        lengths_figures.draw(tmp_path)
    finally:
        lengths_figures.keep = original
    assert [line.get_text() for line in lines] == [f"α = {alpha}" for alpha in alphas]


def test_equal_memory_is_what_it_says(capsys, tmp_path):
    status, _ = run(
        capsys, "compare", "rnn", "--equal-memory", *SMALL, "--units", 3, "--training", 0, "--out", tmp_path
    )
    assert status == 0
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    uoro = next(row for row in rows if row["estimator"] == "UORO()")
    truncated = next(row for row in rows if row["estimator"].startswith("TruncatedBPTT"))
    assert truncated["bytes"] <= uoro["bytes"]


def test_compare_takes_a_subject_of_ones_own(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(
        "import torch, artbp\n"
        "w = torch.tensor(0.5, requires_grad=True)\n"
        "def cell(x, s):\n    s = w * s + x\n    return s.square(), s\n"
        "def subject():\n    return artbp.unroll(cell), torch.ones(20), torch.zeros(())\n"
        "def wrong():\n    return 3\n"
        "def broken():\n    return 1 / 0\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    status, printed = run(capsys, "compare", "my_model:subject", *SMALL, "--out", tmp_path / "out")
    assert status == 0
    assert "1 parameter;" in printed.out
    (tmp_path / "no_python.py").write_text("def subject(:\n")
    for subject, what in (
        ("my_model:wrong", "returned a int"),
        ("my_model:no", "cannot be called: module 'my_model' has no attribute"),
        ("my_model:number", "a int is no function"),
        ("my_model:broken", "raised ZeroDivisionError: division by zero"),
        ("no_python:subject", "cannot be called: invalid syntax"),
        ("no_module:subject", "No module named 'no_module'"),
        ("nobody", "knows no"),
        (":subject", "knows no"),
    ):
        status, printed = run(capsys, "compare", subject, *SMALL, "--out", tmp_path / "other")
        assert status == 2
        assert what in printed.err
        assert len(printed.err.strip().splitlines()) == 2


def test_lengths_agree_with_their_closed_forms(capsys, tmp_path):
    """20,000 lengths a law: the gap of the distribution functions is above 0.0137 with probability 1e-3 (DKW)."""
    status, printed = run(capsys, "lengths", "--draws", 20_000, "--out", tmp_path)
    assert status == 0
    assert "median" in printed.out
    for law in json.loads((tmp_path / "lengths.json").read_text()):
        assert law["gap"] < 0.0137
        widths = [b - a for a, b in zip(law["edges"][:-1], law["edges"][1:], strict=True)]
        assert sum(d * w for d, w in zip(law["density"], widths, strict=True)) == pytest.approx(1.0)
    assert (tmp_path / "lengths.png").exists()
    assert (tmp_path / "lengths.svg").exists()


def test_lengths_refuse_a_law_that_is_none(capsys, tmp_path):
    status, printed = run(capsys, "lengths", "--alphas", 1.5, "--out", tmp_path)
    assert status == 2
    assert "alpha=1.5" in printed.err
