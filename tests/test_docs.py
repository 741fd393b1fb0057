"""The documentation says what the code does: the worked example of docs/the-idea.md, and the list of docs/api.md."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
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


def test_every_public_name_is_documented():
    api = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.glob("api*.md"))
    documented = set(re.findall(r"^\.\. auto\w+:: artbp\.(\w+)", api, re.MULTILINE))
    modules = {"nn", "estimators", "diagnostics"}
    assert documented >= set(artbp.__all__) - modules - {"__version__"}
