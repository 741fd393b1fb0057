"""How much memory a call takes at most, beyond what was there before it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak(call: Callable[[], Any], device: torch.device) -> int:
    """Bytes of tensors at the highest moment of `call`, above those at its beginning."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before: int = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before
    storages = _Storages()
    with storages:
        call()
    return storages.highest


class _Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Counts the bytes of the storages that operations make, from their first sight to their end."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.highest = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            self._see(leaf, made=False)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self._see(leaf, made=True)
        return result

    def _see(self, leaf: Any, made: bool) -> None:
        if not isinstance(leaf, Tensor):
            return
        try:
            storage = leaf.untyped_storage()
        except (NotImplementedError, RuntimeError):  # a tensor of a transform, whose memory is another's
            return
        if storage in self.known:
            return
        self.known.add(storage)
        if made:
            size = storage.nbytes()
            self.now += size
            self.highest = max(self.highest, self.now)
            weakref.finalize(storage, self._freed, size)

    def _freed(self, size: int) -> None:
        self.now -= size
