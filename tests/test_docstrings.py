"""Docstrings run: every example in `src/` gives what it shows, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import artbp

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(artbp.__path__, "artbp.") if not module.name.endswith("__main__")
)
PUBLIC = ["artbp", "artbp.nn", "artbp.estimators", "artbp.diagnostics", "artbp.data"]
# What others return or derive from: its example is theirs.
WITHOUT = {"Comparison", "Estimator", "Expectation", "Measured", "Probe", "Variance"}
NAMES = [
    pytest.param(getattr(importlib.import_module(module), name), id=f"{module}.{name}")
    for module in PUBLIC
    for name in importlib.import_module(module).__all__
    if name not in WITHOUT | {"__version__"}
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name not in ("triton", "tensorboard"):
            raise
        pytest.skip(f"{missing.name} is not installed")
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize("thing", NAMES)
def test_a_public_name_has_an_example(thing):
    assert examples(thing)


def examples(thing: Any) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")


def test_an_example_that_is_wrong_is_noticed():
    def wrong() -> None:
        """
        >>> 1 + 1
        3
        """

    (found,) = doctest.DocTestFinder().find(wrong, "wrong", globs={})
    assert doctest.DocTestRunner(verbose=False).run(found, out=lambda text: None).failed == 1
