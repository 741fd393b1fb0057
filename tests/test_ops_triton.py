"""The Triton kernels in Triton's interpreter, on the CPU (`interpreted_kernels.py`)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton, whose interpreter this is, is not here")
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the kernels run compiled, in test_ops_gpu.py")
def test_the_interpreted_kernels_agree_with_the_specification():
    tests = Path(__file__).with_name("interpreted_kernels.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
