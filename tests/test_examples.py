"""Every example runs as it stands, prints what its docstring says, and its conclusion is true."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("[0-9]*.py"))
NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")

Rows = dict[str, list[float]]


def printed(number: str) -> tuple[str, Rows]:
    """What the example prints; and the numbers of each line, by the words before them."""
    (script,) = EXAMPLES.glob(f"{number}_*.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(script)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=570, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    assert shape(run.stdout) == shape(expected(script))
    return run.stdout, {label(line): numbers(line) for line in run.stdout.splitlines()}


def expected(script: Path) -> str:
    """What the docstring says is printed."""
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
    assert docstring is not None
    return re.split(r"^Expected output:\n", docstring, flags=re.MULTILINE)[1]


def shape(text: str) -> list[str]:
    """The words, line by line, with a # for each number: numbers may differ from one machine to the next."""
    return [" ".join(NUMBER.sub("#", line).split()) for line in text.strip().splitlines()]


def label(line: str) -> str:
    """A table's row up to the column of numbers."""
    return re.split(r"\s{2,}", line.strip())[0]


def numbers(line: str) -> list[float]:
    """The numbers behind the label."""
    return [float(found.replace(",", "")) for found in NUMBER.findall(line.strip()[len(label(line)) :])]


def test_your_own_cell_learns_the_teachers_decays():
    _, rows = printed("01")
    teacher, (error, fast, slow, *_) = rows["teacher"], rows["20000"]
    assert error < 0.03
    assert fast == pytest.approx(teacher[1], abs=0.1)
    assert slow == pytest.approx(teacher[2], abs=0.02)


def test_the_lstm_sees_what_truncation_of_its_mean_length_does_not():
    _, rows = printed("02")
    assert rows["truncated, 5"][0] > 0.6
    assert rows["ARTBP, 5"][0] < 0.2
    assert rows["truncated, 15"][0] < 0.2  # what the example says against us


def test_a_stock_gru_cut_between_blocks_is_unbiased_and_learns():
    _, rows = printed("03")
    patterns, bias, deviation = rows["blocks of 3, mean 6"]
    assert patterns == 8
    assert bias < 1e-12
    assert deviation > 0
    assert rows["truncated, 6"][1] > 1e-3
    assert rows["16000"][0] < 0.2 < rows["3200"][0]


def test_a_converted_model_is_the_same_and_learns():
    text, rows = printed("04")
    assert text.count("True") == 2
    assert rows["outputs differ by"] == [0.0]
    assert rows["gradients under links by"][0] < 1e-4
    assert rows["12000"][0] < 0.1 < rows["3000"][0]


def test_lanes_cut_by_themselves_are_quieter_and_unbiased():
    _, rows = printed("05")
    shared, own, told = (rows[name] for name in ("one cut for all lanes", "each lane its own", "... told of resets"))
    for error, deviation, _ in (shared, own, told):
        assert error < 2 * deviation / 150**0.5  # its mean square is deviation² / 150
    assert shared[1] > 1.4 * own[1]
    assert told[2] < own[2]
    assert rows["truncated, 8"][0] > 3 * own[0]


def test_killed_and_resumed_processes_have_the_same_bits():
    text, rows = printed("06")
    assert "SIGKILL" in text
    assert "same bits" in text
    assert rows["two processes, killed and resumed or not"] == [0.0]
    assert rows["two processes or one with all lanes"][0] < 1e-5


def test_a_law_that_looks_at_the_state_is_unbiased_and_cheaper():
    _, rows = printed("07")
    assert rows["of 100,000 draws"] == pytest.approx(rows["derived"], rel=0.03)
    for name in ("Ripening", "AtClosedGates", "as often, anywhere"):
        patterns, bias, _ = rows[name]
        assert patterns == 512
        assert bias < 1e-12
    assert rows["Fixed(4)"][1] > 0.01
    assert rows["AtClosedGates"][2] < 0.8 * rows["as often, anywhere"][2]


def test_last_loops_do_where_the_input_is_told_anew_and_not_where_it_is_told_once():
    _, rows = printed("08")
    loss = {name: row[-1] for name, row in rows.items() if name.startswith("told")}
    assert loss["told anew, exact"] < 0.05
    assert loss["told anew, last 3"] < 0.05  # what the example says against us
    assert loss["told once, exact"] < loss["told once, ARTBP, mean 5"] + 0.02
    assert loss["told once, ARTBP, mean 5"] < 0.25
    assert loss["told once, last 3"] > loss["told once, ARTBP, mean 5"] + 0.2
    assert rows["told once, last 3"][1] < 0.9 < rows["told once, ARTBP, mean 3"][1]


def test_truncation_learns_too_small_a_rate():
    _, rows = printed("09")
    exact, truncated, unbiased = (rows[name] for name in ("exact, 200 steps", "truncated, 10", "ARTBP, 10"))
    assert truncated[1] < exact[1] / 5
    assert exact[1] / 2 < unbiased[1] < exact[1] * 2
    assert truncated[2] > 1.25 * exact[2]
    assert exact[2] - 0.001 <= unbiased[2] < 1.1 * exact[2]


def test_truncation_fishes_the_sea_empty():
    _, rows = printed("10")
    assert rows["truncated, 1 year"][0] > 0.95
    assert rows["truncated, 1 year"][1] < 0.05
    assert 0.65 < rows["truncated, 4 years"][0] < 0.75
    assert 0.35 < rows["ARTBP, 1 year"][0] < 0.65
    assert rows["ARTBP, 1 year"][2] > 0.22


def test_every_example_is_in_the_table_and_short():
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for script in SCRIPTS:
        assert f"]({script.name})" in table
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 175
    assert len(SCRIPTS) == 10
