"""Unbiased gradients of recurrent computation, at the cost of truncated backpropagation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from artbp._version import __version__

if TYPE_CHECKING:
    from artbp._backprop import backprop, unroll
    from artbp._law import Law
    from artbp._link import link
    from artbp._tree import detach
    from artbp.laws import Fixed, Geometric, Never, PowerLaw, Tabulated
    from artbp.truncation import Truncation

# Names come from their modules at first use, so that the command line can answer without importing torch.
_HOME = {
    "Fixed": "artbp.laws",
    "Geometric": "artbp.laws",
    "Law": "artbp.laws",
    "Never": "artbp.laws",
    "PowerLaw": "artbp.laws",
    "Tabulated": "artbp.laws",
    "Truncation": "artbp.truncation",
    "backprop": "artbp._backprop",
    "detach": "artbp._tree",
    "link": "artbp._link",
    "unroll": "artbp._backprop",
}
_MODULES = ("diagnostics", "estimators", "laws", "nn", "truncation")

__all__ = [
    "Fixed",
    "Geometric",
    "Law",
    "Never",
    "PowerLaw",
    "Tabulated",
    "Truncation",
    "__version__",
    "backprop",
    "detach",
    "link",
    "unroll",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"artbp.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'artbp' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
