"""What the GPU's path keeps, as far as it shows without one."""

from __future__ import annotations

import weakref

import torch

from artbp.ops import fused


def test_ones_that_a_captured_graph_may_read_are_never_freed(monkeypatch):
    """It has their address; a longer call replaces them."""
    monkeypatch.setattr(fused, "_all_ones", {})
    monkeypatch.setattr(fused, "_captured", [])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    cpu = torch.device("cpu")
    assert torch.equal(fused._ones(cpu, torch.float32, 3), torch.ones(3))
    first = weakref.ref(fused._all_ones[cpu, torch.float32])
    assert torch.equal(fused._ones(cpu, torch.float32, 100), torch.ones(100))
    assert first() is not None
    assert len(fused._all_ones[cpu, torch.float32]) == 128
