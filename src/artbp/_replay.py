"""What running a stretch of a computation twice has to put back: random numbers, and buffers that a forward updates."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import get_device_states, set_device_states

_DEEP_ENOUGH = 5  # containers and objects between a step and its modules


class _Buffer(NamedTuple):
    tensor: Tensor | None  # the buffer itself: a forward may also put another tensor in its place
    content: Tensor | None


class Replay:
    """Remembers moments of a first run, so that stretches of it can be run again as they were.

    Covered: the global generators of the CPU and of the devices in sight, and the buffers of every module that
    :func:`reachable` finds. After :meth:`replaying` all are again what they were before it.
    """

    def __init__(self, step: Any, tensors: Iterable[Tensor]) -> None:
        in_sight = reachable(step)
        found = {id(module): module for root in in_sight if isinstance(root, nn.Module) for module in root.modules()}
        self.modules = list(found.values())
        self.buffers = [(module, name) for module in self.modules for name in module._buffers]
        parameters = [parameter for module in self.modules for parameter in module._parameters.values()]
        self.tensors = [tensor for tensor in [*tensors, *in_sight, *parameters] if isinstance(tensor, Tensor)]
        self.moments: list[tuple[Tensor, Any, list[_Buffer]]] = []

    def remember(self) -> None:
        """Takes down the moment: the next stretch starts here."""
        latest = self.moments[-1][2] if self.moments else [_Buffer(None, None)] * len(self.buffers)
        buffers = [
            _remember(module._buffers[name], before)
            for (module, name), before in zip(self.buffers, latest, strict=True)
        ]
        self.moments.append((torch.get_rng_state(), get_device_states(*self.tensors), buffers))

    def rewind(self, k: int) -> None:
        """Puts back the k-th moment."""
        cpu, (devices, states), buffers = self.moments[k]
        torch.set_rng_state(cpu)
        if devices:
            set_device_states(devices, states)
        for i, (module, name) in enumerate(self.buffers):
            if all(moment[2][i] is buffers[i] for moment in self.moments):
                continue  # never touched
            tensor, content = buffers[i]
            module._buffers[name] = tensor
            if tensor is not None and content is not None:
                with torch.no_grad():
                    tensor.copy_(content)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Within, :meth:`rewind` at will; after it all is as it was on entering."""
        self.remember()
        try:
            yield
        finally:
            self.rewind(-1)


def _remember(tensor: Tensor | None, before: _Buffer) -> _Buffer:
    # By content: batch norm's kernels write to its statistics without a trace in the tensor's version.
    same = (
        before.content is None if tensor is None else before.content is not None and torch.equal(tensor, before.content)
    )
    if tensor is before.tensor and same:
        return before  # untouched, as most are: one copy serves all moments
    return _Buffer(tensor, None if tensor is None else tensor.detach().clone())


def reachable(step: Any) -> list[Any]:
    """The modules and tensors that a callable is, is bound to, closes over, holds or names."""
    found: list[Any] = []
    seen: set[int] = set()
    level: list[Any] = [step]
    for _ in range(_DEEP_ENOUGH):
        level = list({id(thing): thing for thing in level if id(thing) not in seen}.values())
        seen.update(map(id, level))
        found += [thing for thing in level if isinstance(thing, nn.Module | Tensor)]
        level = [part for thing in level for part in _parts(thing)]
    return found


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, nn.Module | Tensor | type | types.ModuleType | str | int | float):
        return ()
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, types.FunctionType):
        return _named_by(thing)
    if isinstance(thing, list | tuple | set | frozenset):
        return thing
    if isinstance(thing, dict):
        return thing.values()
    return list(getattr(thing, "__dict__", {}).values())


def _named_by(function: types.FunctionType) -> list[Any]:
    """What a function closes over, has for defaults, wraps, and finds among the globals of its file."""
    parts: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:  # a name that is not bound yet
            continue
    parts += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if not function.__module__.startswith(("torch.", "artbp.")):  # a library's globals hold no model of the user's
        codes = [function.__code__]
        for code in codes:
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            parts += [function.__globals__[name] for name in code.co_names if name in function.__globals__]
    return parts
