"""The processes of one run: this one alone, or those that torchrun started."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")


class GroupError(Exception):
    """A process of the group that is gone: what happened, and what to do."""


class ToldError(Exception):
    """An error that ends all processes, and that another one of them says."""


class Group:
    """What the processes of a run say to each other. Alone, every call returns at once what it was given.

    Each process has its share of the lanes, and draws the same lengths as all others, so that all have the same number
    of updates, and no collective waits for one that does not come.
    """

    rank, size = 0, 1

    def use(self, device: torch.device) -> None:
        """Tensors to be summed will be on this device."""

    def sum(self, tensor: Tensor) -> None:
        """Replaces `tensor` by its sum over the processes."""

    def gather(self, value: Any) -> list[Any]:
        """`value` of every process, by rank; in every process."""
        return [value]

    def share(self, make: Callable[[], Value]) -> Value:
        """What process 0 makes, in every process. If it raises there, all end: it with its error, the rest silently."""
        return make()

    def agree(self, make: Callable[[], Value]) -> Value:
        """What each process makes for itself; if it raises in one, all end, the first such one with its error."""
        return make()

    def leave(self) -> None:
        """Nothing more to say."""


class Launched(Group):
    """The processes that torchrun started, on one machine or many.

    They talk through gloo, whatever they compute on, and sum through NCCL on GPUs.
    """

    def __init__(self, timeout: float) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.timeout = timedelta(seconds=timeout)
        self._summing: Any = None  # all processes, by the backend of the first
        self._told = False
        # The default arguments of this module are the group there is when it is first imported (optimizers import it).
        # They would keep the group, and its threads, alive to the end of the process, which such a thread may abort.
        importlib.import_module("torch.distributed.nn.functional")
        try:
            dist.init_process_group("gloo", timeout=self.timeout)
        except (RuntimeError, ValueError) as error:
            raise GroupError(
                f"process {self.rank} of {self.size} found no group to join: {_first_line(error)}\n"
                "Start all processes with one `torchrun --nproc-per-node N -m artbp train ...` on each machine."
            ) from None

    def use(self, device: torch.device) -> None:  # noqa: D102  # said above
        if device.type == "cuda":
            self._summing = self._call(lambda: dist.new_group(backend="nccl", timeout=self.timeout))

    def sum(self, tensor: Tensor) -> None:  # noqa: D102
        self._call(lambda: dist.all_reduce(tensor, group=self._summing))

    def gather(self, value: Any) -> list[Any]:  # noqa: D102
        values: list[Any] = [None] * self.size
        self._call(lambda: dist.all_gather_object(values, value))
        return values

    def share(self, make: Callable[[], Value]) -> Value:  # noqa: D102
        made: list[Any] = [None, False]
        error = None
        if self.rank == 0:
            try:
                made[0] = make()
            except Exception as raised:  # noqa: BLE001  # all processes end with it
                error, made[1] = raised, True
        self._call(lambda: dist.broadcast_object_list(made))
        if made[1]:
            self._told = True
            raise error or ToldError
        value: Value = made[0]
        return value

    def agree(self, make: Callable[[], Value]) -> Value:  # noqa: D102
        error = None
        try:
            value = make()
        except Exception as raised:  # noqa: BLE001  # all processes end with it
            error = raised
        failed = self.gather(error is not None)
        if True in failed:
            self._told = True
            raise error if error is not None and failed.index(True) == self.rank else ToldError
        return value

    def leave(self) -> None:  # noqa: D102
        if not dist.is_initialized():
            return
        if self._told:
            # torchrun ends all processes as soon as one has failed: not before the error has been said.
            with suppress(GroupError):
                self._call(dist.barrier)
        dist.destroy_process_group()

    def _call(self, collective: Callable[[], Value]) -> Value:
        try:
            return collective()
        except RuntimeError as error:
            raise GroupError(
                f"process {self.rank} of {self.size} lost the others: one has ended, or did not answer in time "
                f"({_first_line(error)}).\n"
                f"What the last checkpoint holds is kept: start all processes again, with --resume RUN."
            ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
