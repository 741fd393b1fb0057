"""What the command tells the C library about freed memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from artbp.train import _heap

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the habit is glibc's")

# Blocks of other sizes in every round, all of them freed before the next one, as segments of random lengths are.
ROUNDS = """
import resource, sys
from artbp.train._heap import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
for k in range(30):
    if k == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray((33 + (7 * k + 5 * n) % 40) * 2**20) for n in range(3 if k else 8)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(memory: str) -> int:
    command = [sys.executable, "-c", ROUNDS, memory]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@glibc
def test_freed_memory_is_there_for_the_next_segment_without_page_faults():
    assert page_faults("kept") < 0.05 * page_faults("returned")


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_other_systems_are_left_alone(system, monkeypatch):
    monkeypatch.setattr(_heap.sys, "platform", system)
    monkeypatch.setattr(_heap.ctypes, "CDLL", lambda name: pytest.fail("there is no such library"))
    assert not _heap.keep_freed_memory()


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(_heap.sys, "platform", "linux")
    monkeypatch.setattr(_heap.ctypes, "CDLL", lambda name: object())
    assert not _heap.keep_freed_memory()


@glibc
def test_the_command_keeps_freed_memory(monkeypatch, tmp_path):
    from artbp.train import command

    called = []
    monkeypatch.setattr(_heap, "keep_freed_memory", lambda: called.append(True))
    missing = tmp_path / "missing.txt"
    assert command.main(["--corpus", str(missing), "--out", str(tmp_path / "run")]) == 2
    assert called
