"""What a trained model is for: text out of it, and its weights for others."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trained import refused, train, write_text

from artbp import cli
from artbp.train import export_command, sample_command
from artbp.train.checkpoints import Checkpoints
from artbp.train.loading import load_model

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", words=400)


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(text, tmp_path_factory.mktemp("runs") / "run")


def sampled(capsys: Any, run: Path, *typed: str) -> str:
    capsys.readouterr()
    assert sample_command.main([str(run), *typed]) == 0
    printed: str = capsys.readouterr().out
    return printed


def by_hand(run: Path, prompt: str, length: int) -> str:
    """The likeliest characters, by torch.nn.LSTM, all of the text anew for each."""
    best = Checkpoints(run).load_best()
    known, state = best["vocabulary"]["characters"], best["model"]
    V, H = state["decoder.weight"].shape
    recurrent, decoder = nn.LSTM(V, H).double(), nn.Linear(H, V).double()
    for name, module in {"recurrent": recurrent, "decoder": decoder}.items():
        module.load_state_dict({key.partition(".")[2]: w for key, w in state.items() if key.startswith(name)})
    found = prompt
    for _ in range(length):
        x = F.one_hot(torch.tensor([known.index(character) for character in found]), V).double()
        logits = decoder(recurrent(x)[0][-1])
        found += known[int(logits[: len(known)].argmax())]
    return found


def test_without_temperature_each_character_is_the_likeliest(run, capsys):
    expected = by_hand(run, "the cat", 30)
    assert sampled(capsys, run, "--prompt", "the cat", "--length", "30", "--temperature", "0") == expected + "\n" * (
        not expected.endswith("\n")
    )


def test_a_seed_gives_its_text_and_another_one_another(run, capsys):
    texts = [sampled(capsys, run, "--length", "120", "--seed", seed) for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]
    assert 120 <= len(texts[0]) <= 121


def test_the_process_wide_generator_has_no_part_in_it(run, capsys):
    torch.manual_seed(1)
    one = sampled(capsys, run, "--length", "50")
    torch.manual_seed(2)
    assert sampled(capsys, run, "--length", "50") == one


def test_a_low_temperature_is_that_of_the_likeliest_and_a_high_one_is_none(run, capsys):
    likeliest = sampled(capsys, run, "--length", "60", "--temperature", "0")
    assert sampled(capsys, run, "--length", "60", "--temperature", "1e-9") == likeliest
    even = sampled(capsys, run, "--length", "1500", "--temperature", "1e9")
    known = load_model(run).vocabulary.characters
    assert set(even) == set(known)
    assert max(even.count(character) for character in known) < 3 * len(even) / len(known)


def test_a_length_of_zero_is_the_prompt(run, capsys):
    assert sampled(capsys, run, "--prompt", "the", "--length", "0") == "the\n"


def test_characters_of_the_prompt_that_training_never_met(run, capsys):
    capsys.readouterr()
    assert sample_command.main([str(run), "--prompt", "the Ωcat ✓", "--length", "9"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("the Ωcat ✓")
    assert printed.err.startswith("note: training never met 'Ω', '✓'")


def test_a_vocabulary_without_the_unknown_refuses_them(run, tmp_path, capsys):
    best = Checkpoints(run).load_best()
    symbols = len(best["vocabulary"]["characters"])
    best["vocabulary"]["unknown"] = False  # as with the Penn Treebank
    best["model"]["recurrent.weight_ih_l0"] = best["model"]["recurrent.weight_ih_l0"][:, :symbols]
    for name in ("decoder.weight", "decoder.bias"):
        best["model"][name] = best["model"][name][:symbols]
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    Checkpoints(tmp_path).save(best, best=True)
    what, instead = refused(capsys, lambda: sample_command.main([str(tmp_path), "--prompt", "the Ω"]))
    assert "'Ω'" in what
    assert "characters that it knows" in instead
    assert sampled(capsys, tmp_path, "--prompt", "the", "--length", "5").startswith("the")


@pytest.mark.parametrize(
    ("typed", "what"), [(["--length", "-1"], "--length -1"), (["--temperature", "-0.1"], "--temperature -0.1")]
)
def test_what_cannot_be_sampled(typed, what, run, capsys):
    assert what in refused(capsys, lambda: sample_command.main([str(run), *typed]))[0]


def test_sampling_and_exporting_need_a_model(tmp_path, run, text, capsys):
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_bytes((run / "config.json").read_bytes())
    out = str(tmp_path / "model.safetensors")
    for folder, what in ((tmp_path / "absent", "holds no run"), (begun, "has no checkpoint")):
        for main, typed in ((sample_command.main, []), (export_command.main, ["--out", out])):
            said = refused(capsys, lambda main=main, typed=typed, folder=folder: main([str(folder), *typed]))
            assert what in said[0]


def test_several_seeds_are_not_one_model(text, tmp_path, capsys):
    runs = train(text, tmp_path / "runs", runs=2, epochs=1)
    what, instead = refused(capsys, lambda: sample_command.main([str(runs)]))
    assert "holds 2 runs" in what
    assert str(runs / "seed-0") in instead


# Exports


@pytest.fixture
def exported(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert export_command.main([str(run), "--out", "model.safetensors"]) == 0
    return tmp_path / "model.safetensors"


def listings() -> list[str]:
    """The listings of the section on exports."""
    section = (DOCS / "training.md").read_text(encoding="utf-8").partition("## Exporting")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def test_the_ten_lines_of_the_documentation_give_the_models_logits(exported, run):
    load, use = listings()
    assert len([line for line in load.splitlines() if line.strip()]) <= 10
    assert "artbp" not in load + use
    names: dict[str, Any] = {}
    exec(load + use, names)
    trained = load_model(run)
    characters = torch.tensor(trained.vocabulary.encode("the ").tolist())[:, None]
    with torch.no_grad():
        logits, _ = trained.model.float()(characters)
    torch.testing.assert_close(names["logits"], logits[:, 0], rtol=1e-6, atol=1e-6)
    assert type(names["model"].recurrent) is nn.LSTM


def test_the_file_holds_the_parameters_and_what_they_mean(exported, run):
    from safetensors import safe_open

    best = Checkpoints(run).load_best()
    with safe_open(exported, "pt") as file:
        weights, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    assert weights.keys() == best["model"].keys()
    assert all(torch.equal(weights[name], best["model"][name]) for name in weights)
    assert json.loads(metadata["vocabulary"]) == best["vocabulary"]
    config = json.loads(metadata["config"])
    assert config["hidden"] == 8
    assert "corpus" not in config
    assert str(run.parent) not in json.dumps(metadata)  # no place on this machine


@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_other_layers_embedded_and_normalised(cell, text, tmp_path):
    from safetensors.torch import load_file

    run = train(text, tmp_path / "run", cell=cell, embedding=5, layers=2, layer_norm=True, epochs=1)
    out = tmp_path / "model.safetensors"
    assert export_command.main([str(run), "--out", str(out)]) == 0
    trained = load_model(run)
    symbols = len(trained.vocabulary)
    model = nn.Module()
    model.embedding = nn.Embedding(symbols, 5)
    model.recurrent = {"gru": nn.GRU, "rnn": nn.RNN}[cell](5, 8, 2)
    model.norm = nn.LayerNorm(8)
    model.decoder = nn.Linear(8, symbols)
    model.double().load_state_dict(load_file(out))
    characters = torch.tensor(trained.vocabulary.encode("the cat").tolist())[:, None]
    output, _ = model.recurrent(model.embedding(characters))
    torch.testing.assert_close(model.decoder(model.norm(output)), trained.model(characters)[0], rtol=1e-10, atol=1e-12)


def test_a_file_that_is_there_stays_unless_told(exported, run, capsys):
    exported.write_bytes(b"mine")
    what, instead = refused(capsys, lambda: export_command.main([str(run), "--out", str(exported)]))
    assert "is there already" in what
    assert "--overwrite" in instead
    assert exported.read_bytes() == b"mine"
    assert export_command.main([str(run), "--out", str(exported), "--overwrite"]) == 0
    assert exported.read_bytes() != b"mine"


@pytest.mark.parametrize("out", [".", "no-such-folder/model.safetensors"])
def test_places_that_cannot_be_written(out, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    what, instead = refused(capsys, lambda: export_command.main([str(run), "--out", out]))
    assert out.partition("/")[0] in what
    assert "--out" in instead


def test_without_safetensors_the_extra_is_named(run, tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "artbp.train.export", raising=False)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    said = refused(capsys, lambda: cli.main(["export", str(run), "--out", str(tmp_path / "x")]), status=1)
    assert "needs safetensors" in said[0]
    assert 'pip install "artbp[export]"' in said[1]
