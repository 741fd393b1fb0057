"""What running a stretch of a computation twice has to put back: random numbers, and buffers that a forward updates."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import get_device_states, set_device_states

_NOW = -1  # the moment after the last stretch
_FAR_ENOUGH = 4096  # things to look at in search of a step's modules
_MANY_ENOUGH = 256  # elements to look at in one container
_ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None)})
_LIBRARIES = frozenset({"torch", "artbp", "numpy", "builtins", "typing", "abc", "collections", "functools"})


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
        held = [value for module in self.modules for value in (*module._parameters.values(), *vars(module).values())]
        self.tensors = [tensor for tensor in [*tensors, *in_sight, *held] if isinstance(tensor, Tensor)]
        self.moments: dict[int, tuple[Tensor, Any, list[_Buffer]]] = {}

    def remember(self, k: int) -> None:
        """Takes down the moment: the k-th stretch starts here."""
        latest = next(reversed(self.moments.values()))[2] if self.moments else [_Buffer(None, None)] * len(self.buffers)
        buffers = [
            _remember(module._buffers[name], before)
            for (module, name), before in zip(self.buffers, latest, strict=True)
        ]
        self.moments[k] = torch.get_rng_state(), get_device_states(*self.tensors), buffers

    def rewind(self, k: int) -> None:
        """Puts back the k-th moment."""
        cpu, (devices, states), buffers = self.moments[k]
        torch.set_rng_state(cpu)
        if devices:
            set_device_states(devices, states)
        for i, (module, name) in enumerate(self.buffers):
            if all(moment[2][i] is buffers[i] for moment in self.moments.values()):
                continue  # never touched
            tensor, content = buffers[i]
            module._buffers[name] = tensor
            if tensor is not None and content is not None:
                with torch.no_grad():
                    tensor.copy_(content)

    def forget(self, k: int) -> None:
        """Lets go of the k-th moment, which will not be asked for again."""
        del self.moments[k]

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Within, :meth:`rewind` at will; after it all is as it was on entering."""
        self.remember(_NOW)
        try:
            yield
        finally:
            self.rewind(_NOW)


def _remember(tensor: Tensor | None, before: _Buffer) -> _Buffer:
    # By content: batch norm's kernels write to its statistics without a trace in the tensor's version.
    same = (
        before.content is None if tensor is None else before.content is not None and torch.equal(tensor, before.content)
    )
    if tensor is before.tensor and same:
        return before  # untouched, as most are: one copy serves all moments
    return _Buffer(tensor, None if tensor is None else tensor.detach().clone())


def reachable(step: Any) -> list[Any]:
    """The modules and tensors that a callable is, is bound to, closes over, holds or names.

    The nearest first, and within bounds: a step may close over a whole data set.
    """
    found: list[Any] = []
    seen: set[int] = set()
    level: list[Any] = [step]
    while level and len(seen) < _FAR_ENOUGH:
        level = list({id(thing): thing for thing in level if id(thing) not in seen}.values())[:_FAR_ENOUGH]
        seen.update(map(id, level))
        found += [thing for thing in level if isinstance(thing, nn.Module | Tensor)]
        level = [part for thing in level for part in _parts(thing) if type(part) not in _ATOMS]
    return found


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, nn.Module | Tensor | types.ModuleType):
        return ()
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, types.FunctionType):
        return _named_by(thing)
    if type(thing) in (list, tuple, set, frozenset):
        return islice(thing, _MANY_ENOUGH)
    if type(thing) is dict:
        return [*islice(thing, _MANY_ENOUGH), *islice(thing.values(), _MANY_ENOUGH)]
    return [] if _is_library(type(thing).__module__) else _held_by(thing)


def _held_by(thing: Any) -> list[Any]:
    """The attributes of an object and of its class, read without running any code of theirs."""
    classes = [thing] if isinstance(thing, type) else type(thing).__mro__
    held = [value for kind in classes if not _is_library(kind.__module__) for value in vars(kind).values()]
    parts = [getattr(value, "__func__", value) for value in held]  # a static or class method's function
    parts += [
        value.__get__(thing)
        for value in held
        if isinstance(value, types.MemberDescriptorType) and not isinstance(thing, type) and _is_set(value, thing)
    ]
    with suppress(AttributeError):
        parts += islice(object.__getattribute__(thing, "__dict__").values(), _MANY_ENOUGH)
    return parts


def _is_set(slot: types.MemberDescriptorType, thing: Any) -> bool:
    try:
        slot.__get__(thing)
    except AttributeError:
        return False
    return True


def _named_by(function: types.FunctionType) -> list[Any]:
    """What a function closes over, has for defaults, and finds by name among the globals of its file."""
    parts: list[Any] = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a name that is not bound yet
            parts.append(cell.cell_contents)
    parts += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if _is_library(function.__module__):
        return parts
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        named = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
        for thing in named:
            if isinstance(thing, types.ModuleType | type) and not _is_library(thing.__name__):
                parts += [vars(thing)[name] for name in code.co_names if name in vars(thing)]
        parts += [thing for thing in named if not isinstance(thing, type)]
    return parts


def _is_library(module: str | None) -> bool:
    """Whose names and attributes hold no model of the user's."""
    return (module or "").partition(".")[0] in _LIBRARIES
