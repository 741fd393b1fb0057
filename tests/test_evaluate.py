"""Bits per character: against a loop over the text written by hand, and lane by lane."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trained import refused, rows, summary, train, write_text

from artbp.train import evaluate_command
from artbp.train.checkpoints import Checkpoints
from artbp.train.evaluation import Evaluation, evaluate, fitting_lanes
from artbp.train.lane_trace import STRETCH, Trace, trace
from artbp.train.model import CharacterModel

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(text, tmp_path_factory.mktemp("runs") / "run", evaluation_lanes=3, epochs=3)


def by_hand(state: dict[str, Any], symbols: np.ndarray, lanes: int, reset: int | None = None) -> list[list[float]]:
    """The bits of every character, lane by lane, by torch.nn.LSTM in float64, one step after the other."""
    V, H = state["decoder.weight"].shape
    recurrent, decoder = nn.LSTM(V, H).double(), nn.Linear(H, V).double()
    for name, module in {"recurrent": recurrent, "decoder": decoder}.items():
        module.load_state_dict({key.partition(".")[2]: w for key, w in state.items() if key.startswith(name)})
    S = (len(symbols) - 1) // lanes
    found = []
    with torch.no_grad():
        for b in range(lanes):
            end = len(symbols) - 1 if b == lanes - 1 else b * S + S  # the last lane has what is left over
            bits, carried = [], None
            for number, place in enumerate(range(b * S, end)):
                if reset and number % reset == 0:
                    carried = None
                x = F.one_hot(torch.tensor([[int(symbols[place])]]), V).double()
                output, carried = recurrent(x, carried)
                p = F.softmax(decoder(output)[0, 0], 0)
                bits.append(-math.log2(p[int(symbols[place + 1])].item()))
            found.append(bits)
    return found


def answer(capsys: Any, run: Path, *typed: str) -> dict[str, Any]:
    capsys.readouterr()
    assert evaluate_command.main([str(run), "--json", *typed]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def split(text: Path, name: str) -> str:
    content = text.read_text(encoding="utf-8")
    marks = [len(content) * percent // 100 for percent in (0, 90, 95, 100)]
    number = ["train", "valid", "test"].index(name)
    return content[marks[number] : marks[number + 1]]


def symbols_of(text: str, vocabulary: list[str]) -> np.ndarray:
    return np.array([vocabulary.index(character) for character in text])


@pytest.mark.parametrize("name", ["valid", "test"])
@pytest.mark.parametrize("lanes", [1, 3, 4])
def test_every_character_is_predicted_once(name, lanes, run, text, capsys):
    best = Checkpoints(run).load_best()
    symbols = symbols_of(split(text, name), best["vocabulary"]["characters"])
    lanes_by_hand = by_hand(best["model"], symbols, lanes)
    found = answer(capsys, run, "--split", name, "--lanes", str(lanes))
    assert found["characters"] == len(symbols) - 1 == sum(map(len, lanes_by_hand))
    assert (len(symbols) - 1) % 4 != 0  # so that there is something left over
    assert found["bpc"] == pytest.approx(sum(map(sum, lanes_by_hand)) / (len(symbols) - 1), rel=1e-12)
    means = [sum(bits) / len(bits) for bits in lanes_by_hand]
    assert found["lane_bpc"] == pytest.approx(means, rel=1e-12)
    assert found["worst_lane_bpc"] == pytest.approx(max(means), rel=1e-12)
    assert found["median_lane_bpc"] == pytest.approx(float(np.median(means)), rel=1e-12)


def test_the_training_split_too(run, text, capsys):
    best = Checkpoints(run).load_best()
    symbols = symbols_of(split(text, "train"), best["vocabulary"]["characters"])
    found = answer(capsys, run, "--split", "train", "--lanes", "64")
    bits = by_hand(best["model"], symbols, 64)
    assert found["bpc"] == pytest.approx(sum(map(sum, bits)) / (len(symbols) - 1), rel=1e-12)


def test_the_summary_says_what_evaluate_says(run, capsys):
    written = summary(run)
    for name in ("valid", "test"):
        found = answer(capsys, run, "--split", name)
        assert found["bpc"] == pytest.approx(written[f"{name}_bpc"], rel=1e-12)
    assert found["worst_lane_bpc"] == pytest.approx(written["test_worst_lane_bpc"], rel=1e-12)
    assert found["median_lane_bpc"] == pytest.approx(written["test_median_lane_bpc"], rel=1e-12)
    best = min(row["bpc"] for row in rows(run, "evaluation"))
    assert written["valid_bpc"] == best == rows(run, "evaluation")[written["best_epoch"]]["bpc"]


def test_the_test_text_is_read_by_the_best_parameters_and_not_by_the_last(text, tmp_path, capsys, monkeypatch):
    calls = []

    def worse_and_worse(*given: Any, **named: Any) -> Evaluation:
        calls.append(evaluate(*given, **named))
        return dataclasses.replace(calls[-1], bpc=calls[-1].bpc + 9 * (len(calls) in (2, 3)))

    monkeypatch.setattr("artbp.train.session.evaluate", worse_and_worse)
    run = train(text, tmp_path / "run", epochs=3)
    monkeypatch.undo()
    assert len(calls) == 4
    assert summary(run)["best_epoch"] == 0
    assert summary(run)["valid_bpc"] == calls[0].bpc
    found = {which: answer(capsys, run, "--checkpoint", which)["bpc"] for which in ("best", "last")}
    assert summary(run)["test_bpc"] == pytest.approx(found["best"], rel=1e-12)
    assert found["best"] > found["last"] + 0.1


@pytest.mark.parametrize("reset", [7, 100])
def test_a_state_that_is_reset_knows_nothing_of_what_was_before(reset, run, text, capsys):
    best = Checkpoints(run).load_best()
    symbols = symbols_of(split(text, "test"), best["vocabulary"]["characters"])
    bits = by_hand(best["model"], symbols, 4, reset)
    found = answer(capsys, run, "--lanes", "4", "--reset", str(reset))
    assert found["bpc"] == pytest.approx(sum(map(sum, bits)) / (len(symbols) - 1), rel=1e-12)
    assert found["reset"] == reset
    if reset == 7:
        assert found["bpc"] > answer(capsys, run, "--lanes", "4")["bpc"]


def test_any_other_text(run, tmp_path, capsys):
    best = Checkpoints(run).load_best()
    path = tmp_path / "other.txt"
    path.write_text("the cat ran, and then a mat sat on it.\n" * 3, encoding="utf-8")
    symbols = symbols_of(path.read_text(encoding="utf-8"), best["vocabulary"]["characters"])
    found = answer(capsys, run, "--text", str(path), "--lanes", "1")
    assert found["bpc"] == pytest.approx(sum(by_hand(best["model"], symbols, 1)[0]) / (len(symbols) - 1), rel=1e-12)
    assert found["unknown_characters"] == 0


def test_characters_that_training_never_saw_are_counted_and_said(run, tmp_path, capsys):
    path = tmp_path / "other.txt"
    path.write_text("the cät sät on a mat, " * 4, encoding="utf-8")
    assert answer(capsys, run, "--text", str(path))["unknown_characters"] == 8
    assert evaluate_command.main([str(run), "--text", str(path)]) == 0
    assert "8 of the characters (9.09%) were never seen in training" in capsys.readouterr().out


def test_a_text_is_evaluated_from_the_disk_piece_by_piece(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("artbp.train._corpus_file._PIECE", 7)
    path = tmp_path / "other.txt"
    path.write_text("the cat ran, " * 9, encoding="utf-8")
    whole = answer(capsys, run, "--text", str(path), "--lanes", "1")
    monkeypatch.undo()
    assert answer(capsys, run, "--text", str(path), "--lanes", "1") == whole


def test_what_is_printed(run, capsys):
    capsys.readouterr()
    assert evaluate_command.main([str(run)]) == 0
    printed = capsys.readouterr().out
    assert f"{summary(run)['test_bpc']:.4f} bits per character on the test split of text.txt" in printed
    assert "351 characters, in one lane, from beginning to end" in printed
    assert "best checkpoint" in printed
    assert evaluate_command.main([str(run), "--split", "train"]) == 0
    printed = capsys.readouterr().out
    assert "6,326 characters, in 3 lanes of 2,108 steps, the last one 2 longer" in printed
    found = answer(capsys, run, "--split", "train")
    assert f"median {found['median_lane_bpc']:.3f}, worst {found['worst_lane_bpc']:.3f}" in printed
    assert "derailed" not in printed


def test_the_trace_is_the_evaluation_kept_apart(run, tmp_path, capsys):
    path = tmp_path / "trace.json"
    found = answer(capsys, run, "--split", "train", "--lanes", "3", "--trace", str(path))
    written = json.loads(path.read_text(encoding="utf-8"))
    stretches = np.array(written["stretch_bpc"])  # (S, B)
    assert written["stretch"] == STRETCH
    assert stretches.shape == (math.ceil(found["steps"] / STRETCH), 3)
    lengths = np.full(stretches.shape, float(STRETCH))
    lengths[-1] = found["steps"] % STRETCH or STRETCH
    lengths[-1, -1] += found["characters"] - 3 * found["steps"]
    assert (stretches * lengths).sum() / found["characters"] == pytest.approx(found["bpc"], rel=1e-12)
    assert np.array(written["norms"]["h"]).shape == (len(stretches), 1, 3)
    assert set(written["norms"]) == set(written["largest"]) == set(written["units"]) == {"h", "c"}


@pytest.mark.parametrize(("cell", "names"), [("lstm", ["h", "c"]), ("gru", ["h"])])
def test_the_trace_looks_at_the_state_at_the_end_of_each_stretch(cell, names):
    model = CharacterModel(6, cell=cell, hidden=5, layers=2).double().eval()
    symbols = np.random.default_rng(0).integers(0, 6, 3 * (STRETCH + 40) + 1).astype(np.uint8)
    found = trace(model, symbols, lanes=3, device=CPU)
    lanes = torch.from_numpy(symbols[:-1].astype(np.int64)).view(3, -1).t()  # (T, B)
    for stretch, end in enumerate((STRETCH, STRETCH + 40)):
        with torch.no_grad():
            _, state = model(lanes[:end])
        for name, leaf in zip(names, state if cell == "lstm" else (state,), strict=True):  # (layers, B, H)
            assert found.norms[name][stretch] == pytest.approx(leaf.norm(dim=-1).numpy(), rel=1e-12)
            assert found.largest[name][stretch] == pytest.approx(leaf.abs().amax(-1).numpy(), rel=1e-12)
            assert (found.units[name][stretch] == leaf.abs().argmax(-1).numpy()).all()


@pytest.mark.parametrize("cell", ["gru", "rnn", "lstm"])
@pytest.mark.parametrize("lanes", [1, 5, 64])
def test_evaluate_and_trace_are_the_same_sum(cell, lanes):
    model = CharacterModel(6, cell=cell, hidden=5, layers=2).double().eval()
    symbols = np.random.default_rng(0).integers(0, 6, 1000).astype(np.uint8)
    plain = evaluate(model, symbols, lanes=lanes, device=CPU)
    traced = trace(model, symbols, lanes=lanes, device=CPU)
    assert plain.characters == traced.characters == 999
    assert plain.bpc == pytest.approx(traced.bpc, rel=1e-12)
    assert plain.lane_bpc == pytest.approx(traced.lane_bpc.tolist(), rel=1e-12)


def test_an_evaluation_draws_no_dropout_and_leaves_the_mode_alone():
    model = CharacterModel(6, hidden=5, layers=2, dropout=0.5, weight_dropout=0.5).double()
    symbols = np.random.default_rng(0).integers(0, 6, 300).astype(np.uint8)
    before = torch.get_rng_state()
    found = [evaluate(model, symbols, lanes=2, device=CPU).bpc for _ in range(2)]
    assert found[0] == found[1]
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_short_texts_have_fewer_lanes():
    assert [fitting_lanes(np.zeros(n), 64) for n in (2, 200, 601, 10**6)] == [1, 1, 3, 64]


def synthetic(lanes: int, stretches: int) -> Trace:
    """An ordinary evaluation, at 2 bits per character and some."""
    bpc = 2 + 0.1 * np.random.default_rng(0).standard_normal((stretches, lanes))
    return Trace(STRETCH * bpc, np.full((stretches, lanes), float(STRETCH)), {}, None)


def test_a_derailed_lane_is_found_where_it_leaves():
    ordinary = synthetic(8, 40)
    assert ordinary.derailments() == []
    bits = ordinary.bits.copy()
    bits[13:, 5] += 3 * STRETCH
    (found,) = Trace(bits, ordinary.lengths, {}, None).derailments()
    assert (found.lane, found.first, found.end) == (5, 13, 40)
    assert found.bpc_before == pytest.approx(2, abs=0.1)
    assert found.bpc_inside == pytest.approx(5, abs=0.1)


def test_a_passage_that_the_mean_of_a_long_lane_hides_is_found():
    ordinary = synthetic(1, 400)
    bits = ordinary.bits.copy()
    bits[100:112, 0] += 3 * STRETCH
    (found,) = Trace(bits, ordinary.lengths, {}, None).derailments()
    assert (found.first, found.end) == (100, 112)
    assert found.bpc < 2.5


def test_what_is_said_of_a_derailed_lane(run, text, monkeypatch, capsys):
    ordinary = synthetic(8, 2)
    ordinary.bits[1:, 5] += 6 * STRETCH
    monkeypatch.setattr("artbp.train.lane_trace.trace", lambda *_, **__: ordinary)
    capsys.readouterr()
    assert evaluate_command.main([str(run), "--split", "train"]) == 0
    printed = capsys.readouterr().out
    assert "derailed: a lane of 8" in printed
    assert "lane 5, counted from 0" in printed
    assert f"from step {STRETCH:,} to its end" in printed
    assert "--reset 1000 tells whether" in printed
    found = answer(capsys, run, "--split", "train")
    assert [one["lane"] for one in found["derailed"]] == [5]


def test_a_text_that_was_moved(run, text, tmp_path, capsys):
    here, moved = text, tmp_path / "moved.txt"
    content = here.read_bytes()
    moved.write_bytes(content)
    expected = answer(capsys, run)["bpc"]
    here.unlink()
    try:
        what, instead = refused(capsys, lambda: evaluate_command.main([str(run)]))
        assert "is not there any more" in what
        assert "--corpus FILE" in instead
        assert answer(capsys, run, "--corpus", str(moved))["bpc"] == expected
        here.write_bytes(content + b"more")
        what, instead = refused(capsys, lambda: evaluate_command.main([str(run)]))
        assert "is not the text that" in what
        assert "--text" in instead
    finally:
        here.write_bytes(content)


@pytest.mark.parametrize(
    ("typed", "what", "instead"),
    [
        (["--lanes", "0"], "--lanes 0", "from 1 on"),
        (["--reset", "0"], "--reset 0", "from 1 on"),
        (["--lanes", "100000"], "too few for 100,000 lanes", "fewer --lanes"),
        (["--device", "abacus"], "no such device", "Pass cpu"),
        (["--trace", "/no/such/folder/file.json"], "there is no folder", "Make it"),
        (["--corpus", "a", "--ptb", "b"], "both name the text", "Pass the one"),
        (["--text", "/no/such/file"], "There is no file", "--text"),
    ],
)
def test_what_cannot_be_evaluated(typed, what, instead, run, capsys):
    said = refused(capsys, lambda: evaluate_command.main([str(run), *typed]))
    assert what in said[0]
    assert instead in said[1]


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"", "too few"), (b"x", "too few"), (b"\xff\xfe\x00", "is not UTF-8"), (b"caf\xe9 ol", "UTF-8")],
)
def test_texts_that_cannot_be_evaluated(content, what, run, tmp_path, capsys):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    said = refused(capsys, lambda: evaluate_command.main([str(run), "--text", str(path)]))
    assert what in said[0]
    assert "--corpus" not in said[1]


def test_folders_that_hold_no_model(run, tmp_path, capsys):
    nothing, begun, other = tmp_path / "nothing", tmp_path / "begun", tmp_path / "other"
    for folder in (nothing, begun, other):
        folder.mkdir()
    (begun / "config.json").write_bytes((run / "config.json").read_bytes())
    (other / "config.json").write_text('{"experiment": "lengths"}', encoding="utf-8")
    for folder, what, instead in (
        (tmp_path / "absent", "holds no run", "--out"),
        (nothing, "holds no run", "--out"),
        (other, "another experiment, lengths", "--out"),
        (begun, "has no checkpoint", "--out"),
    ):
        said = refused(capsys, lambda folder=folder: evaluate_command.main([str(folder)]))
        assert what in said[0]
        assert instead in said[1]


def test_a_damaged_checkpoint_is_named(run, text, tmp_path, capsys):
    copy = train(text, tmp_path / "run", epochs=1)
    path = copy / "checkpoints" / "best.pt"
    path.write_bytes(path.read_bytes()[:-100])
    what, instead = refused(capsys, lambda: evaluate_command.main([str(copy)]))
    assert f"{path} is damaged" in what
    assert "--checkpoint last" in instead
    assert evaluate_command.main([str(copy), "--checkpoint", "last"]) == 0
