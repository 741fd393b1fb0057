"""The table, the probes that guard it, and what `artbp doctor` says of both."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from recurrences import distance, draw, evaluate, specified

import artbp.nn
from artbp.ops import batched, dispatch, doctor, onednn

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _probes_of_its_own() -> Iterator[None]:
    dispatch.forget()
    yield
    dispatch.forget()


def chosen(mode: str, dtype: torch.dtype, links: torch.Tensor | None = None, projected: bool = False) -> str:
    return dispatch.choose(mode, torch.zeros(20, 2, 3, dtype=dtype), 4, projected, links)


def test_the_table_serves_every_mode_and_dtype_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in dispatch.MODES:
            for dtype in dispatch.FLOATS:
                assert chosen(mode, dtype) in dispatch.PATHS
                assert chosen(mode, dtype) != "naive"
        assert chosen("LSTM", torch.float32, projected=True) == "batched"


def test_every_row_names_a_path_and_its_evidence() -> None:
    for rule in dispatch.TABLE:
        assert rule.path in dispatch.PATHS
        assert rule.evidence


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_many_windows_and_a_disabled_onednn_take_another_path() -> None:
    links = torch.full((20,), 1.1, dtype=torch.float64)
    assert chosen("LSTM", torch.float32, links) == "onednn"
    with torch.backends.mkldnn.flags(enabled=False):
        assert chosen("LSTM", torch.float32, links) == "batched"
    links[::2] = 0.0
    assert chosen("LSTM", torch.float32, links) == "batched"


def _with_wrong_gradients(*arguments: Any) -> Any:
    y, final = batched.recurrence(*arguments[:-1], None)  # plain backpropagation, whatever the links
    return y, final


def _that_raises(*arguments: Any) -> Any:
    raise RuntimeError("mkldnn_rnn_layer: ATen not compiled with MKLDNN support")


@pytest.mark.parametrize(
    ("broken", "words"),
    [(_with_wrong_gradients, "its gradients differ"), (_that_raises, "its probe raised RuntimeError")],
)
def test_a_path_that_fails_its_probe_is_replaced_and_said_once(
    broken: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "recurrence", broken)
    links = torch.linspace(0.9, 1.1, 24, dtype=torch.float64)
    layer, x = artbp.nn.LSTM(3, 4), torch.randn(24, 2, 3)
    with pytest.warns(RuntimeWarning, match=f"onednn path for LSTM in torch.float32 on cpu is not used: {words}"):
        layer(x, links=links)
    layer(x, links=links)  # a second warning would be an error
    problem = draw("LSTM", 24, 2, 3, 4, links=links, dtype=torch.float32)
    assert distance(evaluate(dispatch.recurrence, problem, torch.float32), specified(problem)) <= 2e-6


def test_with_no_path_left_the_specification_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "recurrence", _that_raises)
    with pytest.warns(RuntimeWarning, match="batched path for GRU"):
        assert chosen("GRU", torch.float64) == "naive"
    problem = draw("GRU", 5, 2, 3, 4)
    assert distance(evaluate(dispatch.recurrence, problem), specified(problem)) == 0.0


def test_a_probe_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    assert dispatch.verdict("batched", "LSTM", CPU, torch.float32).passed
    assert torch.equal(torch.get_rng_state(), before)


def test_a_first_use_under_autocast_or_inference_is_probed_as_any_other() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert dispatch.verdict("batched", "LSTM", CPU, torch.float32).passed
        assert dispatch.verdict("onednn", "LSTM", CPU, torch.float32).passed


def test_the_doctor_names_paths_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.main([])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    said = " ".join(printed.split())
    assert "batched GRU float64" in said
    assert "LSTM with a projection float32" in said
    assert "NOT USED" not in said
    assert all(rule.evidence in said for rule in dispatch.TABLE if rule.device in (None, "cpu"))


@pytest.mark.filterwarnings("ignore:artbp's onednn path:RuntimeWarning")
def test_the_doctor_says_what_is_not_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(onednn, "recurrence", _that_raises)
    doctor.main([])
    said = capsys.readouterr().out
    assert "NOT USED: its probe raised RuntimeError (mkldnn_rnn_layer" in said


def test_the_doctor_refuses_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        doctor.main(["--fix"])
    assert stop.value.code == 2
    assert "artbp doctor" in capsys.readouterr().err
