"""What every test starts from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    """Modules that a test builds are the same in every run; draws of the library's own never use this generator."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text to train on, where a module has none of its own."""
    from trials import write_text

    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="session")
def alone(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `tests/trials.py` on it that nothing happens to."""
    from trials import TINY, train

    folder = tmp_path_factory.mktemp("alone") / "run"
    end = train("--corpus", text, *TINY, "--out", folder)
    assert (end.status, end.err) == (0, "")
    return folder
