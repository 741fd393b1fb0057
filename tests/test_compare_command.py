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
    )
    monkeypatch.chdir(tmp_path)
    status, printed = run(capsys, "compare", "my_model:subject", *SMALL, "--out", tmp_path / "out")
    assert status == 0
    assert "1 parameters" in printed.out
    for subject, what in (("my_model:wrong", "returned a int"), ("my_model:no", "cannot"), ("nobody", "knows no")):
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
