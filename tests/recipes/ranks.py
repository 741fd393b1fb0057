"""Two processes over gloo that run a page's code, as torchrun would start them."""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

PATIENCE = 240  # seconds until ranks that wait for each other are given up


def _rank(rank: int, world: int, port: int, folder: str, main: Callable[[], Any]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
    }
    os.chdir(folder)
    warnings.simplefilter("ignore")  # this process has no pytest around it
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.save(main(), f"{rank}.saving")
    os.rename(f"{rank}.saving", f"{rank}.pt")
    while not all(Path(f"{other}.pt").exists() for other in range(world)):
        time.sleep(0.05)
    os._exit(0)  # at an ordinary exit the threads of a group that an error left behind may abort the process


def on_two_ranks(main: Callable[[], Any], folder: Path) -> list[Any]:
    """What `main()` returns on each rank; it runs in `folder`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.spawn(_rank, args=(2, port, str(folder), main), nprocs=2, join=False)
    end = time.monotonic() + PATIENCE
    while not context.join(timeout=1):
        if time.monotonic() > end:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"two ranks wait for each other after {PATIENCE} s")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]
