"""What the C library does with the memory of a segment that is over."""

from __future__ import annotations

import ctypes
import sys

# glibc's numbers for what mallopt sets; other libraries have neither these nor the habit.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1  # an int


def keep_freed_memory() -> bool:
    """Has glibc keep up to 2 GiB of freed memory for what this process allocates next; returns whether it does.

    glibc returns large blocks to the system as soon as they are freed, and the system hands every page out anew, by a
    page fault and full of zeros. With segments of one length it soon learns better; with random lengths it does so
    after every longer one, and blocks beyond 32 MiB go back always (what that costs: results/train-cpu). The process
    holds what its longest segment took, which is the memory it needs anyway. This concerns the whole process, so the
    command does it and no library call.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    done: list[int] = [mallopt(what, _LARGEST) for what in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)]
    return all(done)
