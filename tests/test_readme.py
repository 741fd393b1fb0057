"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import artbp

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
T, B, I, H = 120, 3, 2, 4


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def patched(diff: str, side: str) -> str:
    """The text before (`-`) or after (`+`) a diff."""
    return "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] in (" ", side))


def chunks(stream: tuple[Tensor, Tensor], length: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(*(tensor.split(length) for tensor in stream), strict=True))


@pytest.fixture
def training() -> dict[str, Any]:
    """The names that the README's loops take as given."""
    torch.manual_seed(0)
    cell, head = nn.GRUCell(I, H), nn.Linear(H, 1)
    parameters = [*cell.parameters(), *head.parameters()]
    return {
        "artbp": artbp,
        "cell": cell,
        "head": head,
        "parameters": parameters,
        "chunks": chunks,
        "criterion": nn.MSELoss(reduction="sum"),
        "stream": (torch.randn(T, B, I), torch.randn(T, B, 1)),
        "state": torch.zeros(B, H),
        "lanes": B,
        "optimizer": torch.optim.SGD(parameters, lr=0.1),
    }


@pytest.mark.parametrize("side", ["-", "+"])
def test_both_sides_of_the_diff_train(side, training):
    (diff,) = blocks("diff")
    before = [parameter.clone() for parameter in training["parameters"]]
    exec(patched(diff, side), training)
    assert all((old != new).any() for old, new in zip(before, training["parameters"], strict=True))


def test_the_loop_with_backprop_trains(training):
    module, criterion, head = training["cell"], training["criterion"], training["head"]

    def cell(input_t: tuple[Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        state = module(input_t[0], state)
        return criterion(head(state), input_t[1]), state

    (loop,) = blocks("python")
    cut = artbp.Truncation(artbp.PowerLaw(mean=20, alpha=4), seed=0)
    before = [parameter.clone() for parameter in training["parameters"]]
    exec(loop, training | {"cell": cell, "cut": cut})
    assert all((old != new).any() for old, new in zip(before, training["parameters"], strict=True))


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)", README))))
def test_a_link_leads_somewhere(link):
    assert (ROOT / link).exists()


@pytest.mark.parametrize("marker", ["main job", "tests"])
def test_a_setup_command_is_one_line_under_its_marker(marker):
    (command,) = re.findall(rf"^<!-- ci: {marker} -->\n```sh\n(.+)\n```$", README, re.MULTILINE)
    assert command.startswith("git clone https://github.com/artbp/artbp && cd artbp && ")
    assert "PIP_CONSTRAINT=constraints.txt pip install" in command
