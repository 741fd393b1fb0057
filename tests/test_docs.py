"""The documentation says what the code does: the worked example of docs/the-idea.md, the lists of names and layers."""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import test_layers
import torch

import artbp

DOCS = Path(__file__).parent.parent / "docs"
IDEA = (DOCS / "the-idea.md").read_text(encoding="utf-8")


def digits(links: list[float]) -> int:
    """The gradient of `the-idea.md`: each decimal digit counts how often the loss of that step reached θ."""
    theta = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    state, loss = torch.tensor(0.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    for t in range(5):
        state = artbp.link(state, links[t]) + theta
        loss = loss + 10**t * state
    loss.backward()
    assert theta.grad is not None
    return int(theta.grad.item())


@pytest.mark.parametrize(
    ("links", "gradient"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.0], 54321),
        ([1.0, 2.0, 2.0, 0.0, 2.0], 31731),
        ([1.0, 1.0, 1.0, 0.0, 1.0], 21321),
    ],
)
def test_the_worked_example(links, gradient):
    assert digits(links) == gradient
    assert str(gradient) in IDEA


def test_the_worked_example_is_right_on_average():
    estimates = [digits([1.0, *pattern]) for pattern in itertools.product([0.0, 2.0], repeat=4)]
    assert sum(estimates) / len(estimates) == 54321


def test_the_worked_example_as_code():
    (code,) = re.findall(r"^```python\n(.*?)^```", IDEA, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)
    assert repr(names["theta"].grad) == "tensor(31731.)"


def documented(module: str) -> set[str]:
    """What the API page documents of a module, one directive a name."""
    api = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.glob("api*.md"))
    return set(re.findall(rf"^\.\. auto(?:class|function|exception|data):: {re.escape(module)}\.(\w+)$", api, re.M))


@pytest.mark.parametrize("module", ["artbp", "artbp.nn", "artbp.estimators", "artbp.diagnostics", "artbp.data"])
def test_what_is_public_is_documented_and_nothing_else_is(module):
    assert documented(module) == set(importlib.import_module(module).__all__) - {"__version__"}


def test_the_design_page_has_the_layers_in_their_order():
    table = (
        (DOCS / "design.md").read_text(encoding="utf-8").partition("| module | what it is |")[2].partition("\n\n")[0]
    )
    modules = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])]
    assert modules == [*test_layers.LAYERS, *test_layers.LEAVES, "cli"]
