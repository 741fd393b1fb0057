"""What every test starts from."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    """Modules that a test builds are the same in every run; draws of the library's own never use this generator."""
    torch.manual_seed(0)
