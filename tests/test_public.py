"""The public names are promises: what is there, under which arguments, and nothing else."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import artbp

LAWS = ["Fixed", "Geometric", "Law", "Never", "PowerLaw", "Tabulated"]
NAMES = [*LAWS, "Truncation", "__version__", "backprop", "detach", "link", "unroll"]

SIGNATURES = {
    "Never": "()",
    "Fixed": "(length)",
    "Geometric": "(mean)",
    "PowerLaw": "(mean, alpha)",
    "Tabulated": "(hazards)",
    "Law.survival": "(self, n)",
    "Law.pmf": "(self, n)",
    "Law.sample": "(self, shape=(), *, generator=None)",
    "Law.links": "(self, length)",
    "Law.retention": "(self, lag)",
    "link": "(state, factor, dim=0)",
    "detach": "(state)",
    "unroll": "(cell, *, dim=0)",
    "backprop": "(step, inputs, state, links=None, *, window=None, scale=1.0)",
    "Truncation": "(law, *, seed=None, generator=None, block=1, compensate=True, cap=None)",
    "Truncation.step": "(self, state=None)",
    "Truncation.segment": "(self, remaining=None)",
    "Truncation.segments": "(self, stream)",
    "Truncation.links": "(self, T, lanes=None, resets=None)",
    "Truncation.reset": "(self)",
    "Truncation.state_dict": "(self)",
    "Truncation.load_state_dict": "(self, state)",
}


def bare(signature: inspect.Signature) -> str:
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_as_written(name):
    thing = artbp
    for part in name.split("."):
        thing = getattr(thing, part)
    assert bare(inspect.signature(thing)) == SIGNATURES[name]


@pytest.mark.parametrize("name", [*LAWS[:2], "Never", "PowerLaw", "Tabulated"])
def test_hazard_takes_an_age(name):
    assert next(iter(inspect.signature(getattr(artbp, name)(**ARGUMENTS[name]).hazard).parameters)) == "age"


ARGUMENTS = {
    "Fixed": {"length": 3},
    "Geometric": {"mean": 3},
    "Never": {},
    "PowerLaw": {"mean": 3, "alpha": 4},
    "Tabulated": {"hazards": [0.5]},
}


def test_all_is_the_namespace():
    assert artbp.__all__ == sorted(NAMES)
    assert all(getattr(artbp, name) is not None for name in NAMES)
    modules = {name for name in dir(artbp) if inspect.ismodule(getattr(artbp, name))}
    assert set(dir(artbp)) - modules == set(NAMES)
    assert modules == {"diagnostics", "estimators", "laws", "nn", "truncation"}
    assert not hasattr(artbp, "no_such_name")


def test_a_fresh_interpreter_finds_the_same_names():
    """Names come at first use; none may hang on what another test has imported."""
    program = "import artbp, sys; assert 'torch' not in sys.modules; [getattr(artbp, n) for n in dir(artbp)]"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_a_type_checker_sees_is_what_is_there():
    (block,) = [
        node for node in ast.parse(Path(artbp.__file__).read_text(encoding="utf-8")).body if isinstance(node, ast.If)
    ]
    seen = {alias.name: line.module for line in block.body for alias in line.names}
    assert seen.keys() == set(NAMES) - {"__version__"}
    for name, module in seen.items():
        assert getattr(sys.modules[module], name) is getattr(artbp, name)
