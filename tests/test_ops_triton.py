"""The Triton kernels without a GPU: what they compute, in Triton's interpreter, and that they compile."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from artbp.ops import _scan
from artbp.ops._types import GATES, MODES

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton, which this is about, is not here"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the kernels run compiled, in test_ops_gpu.py"),
]


def test_the_interpreted_kernels_agree_with_the_specification():
    tests = Path(__file__).with_name("interpreted_kernels.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("mode", MODES)
def test_the_kernels_compile(mode, tmp_path, monkeypatch):
    """For an H200, down to machine code: the interpreter knows neither the types of a loop nor the shapes of a chip."""
    from triton import compile as compiled
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from artbp.ops import _scan_kernels, _step_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    H, lstm, gated = 40, mode == "LSTM", GATES[mode] > 1
    cell = {"MODE": mode, "GATES": GATES[mode], "H": H}
    scan = cell | {"BLOCK_B": 16, "BLOCK_H": 16, "BLOCK_K": 16, "PART": _scan.part(mode, H), "PRECISION": "tf32"}
    scan |= {"ROUND": False, "SYNC": True, "HOLD": False}
    # What a mode has not is None, what is in fp32 whatever the rest is in stands here by name, numbers are i32.
    absent = [*([] if lstm else ["c0", "c", "cn", "dcn", "dc0"]), *([] if gated else ["gates", "dcarried"])]
    absent += [] if mode == "GRU" else ["carried"]
    single = ["c", "links", "product", "carried", "dcarried", *(["states"] if lstm else [])]
    numbers = ["T", "B", "link_step", "link_lane", "has_dh", "has_dc", "offset"]
    kinds = dict.fromkeys(single, "*fp32") | dict.fromkeys(numbers, "i32") | {"counters": "*i32", "table": "*i64"}
    for kernel, constants in (
        (_scan_kernels.forward_scan, scan),
        (_scan_kernels.backward_scan, scan),
        (_step_kernels.forward_step, cell | {"BLOCK": 64}),
        (_step_kernels.backward_step, cell | {"BLOCK": 64}),
    ):
        given: dict[str, Any] = constants | {name: None for name in absent if name in kernel.arg_names}
        signature = {name: "constexpr" if name in given else kinds.get(name, "*bf16") for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=signature, constexprs=given)
        assert "cubin" in compiled(source, target=GPUTarget("cuda", 90, 32)).asm
