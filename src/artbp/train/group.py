"""The processes of one run: this one alone, or those that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")


class GroupError(Exception):
    """A process of the group that is gone: what happened, and what to do."""


class Group:
    """What the processes of a run say to each other. Alone, every call returns at once what it was given.

    Each process has its share of the lanes, and draws the same lengths as all others, so that all have the same number
    of updates, and no collective waits for one that does not come.
    """

    rank, size = 0, 1

    def sum(self, tensor: Tensor) -> None:
        """Replaces `tensor` by its sum over the processes."""

    def gather(self, value: Any) -> list[Any]:
        """`value` of every process, by rank; in every process."""
        return [value]

    def share(self, make: Callable[[], Value]) -> Value:
        """What process 0 makes, in every process; also what it raises, so that none waits for a value in vain."""
        return make()

    def leave(self) -> None:
        """Nothing more to say."""


class Launched(Group):
    """The processes that torchrun started, on one machine or many."""

    def __init__(self, device: torch.device, timeout: float) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        except (RuntimeError, ValueError) as error:
            raise GroupError(
                f"process {self.rank} of {self.size} found no group to join: {_first_line(error)}\n"
                "Start all processes with one `torchrun --nproc-per-node N -m artbp train ...` on each machine."
            ) from None

    def sum(self, tensor: Tensor) -> None:  # noqa: D102  # said above
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            raise self._lost(error) from None

    def gather(self, value: Any) -> list[Any]:  # noqa: D102
        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value)
        except RuntimeError as error:
            raise self._lost(error) from None
        return values

    def share(self, make: Callable[[], Value]) -> Value:  # noqa: D102
        made: list[Any] = [None, None]
        if self.rank == 0:
            try:
                made[0] = make()
            except Exception as error:  # noqa: BLE001  # all processes end with it
                made[1] = error
        try:
            dist.broadcast_object_list(made)
        except RuntimeError as error:
            raise self._lost(error) from None
        if made[1] is not None:
            raise made[1]
        value: Value = made[0]
        return value

    def leave(self) -> None:  # noqa: D102
        if dist.is_initialized():
            dist.destroy_process_group()

    def _lost(self, error: RuntimeError) -> GroupError:
        return GroupError(
            f"process {self.rank} of {self.size} lost the others: one has ended, or did not answer in time "
            f"({_first_line(error)}).\n"
            f"What the last checkpoint holds is kept: start all processes again, with --resume RUN."
        )


def launched() -> bool:
    """Whether torchrun started this process."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
