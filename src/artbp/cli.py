"""The `artbp` command: a table of subcommands, each imported only when it is asked for.

Help and version answer before torch, or any parser of options, is imported. A subcommand is a function
``main(arguments: list[str]) -> int | None`` that parses its own options, under the name ``artbp <command>``, and
returns its exit status, None for success; what is not installed is not listed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import NamedTuple

from artbp._version import __version__

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended: 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE
# Optional packages, and the extra that installs each.
EXTRAS = {"matplotlib": "plot", "tensorboard": "log", "safetensors": "export"}


class Command(NamedTuple):
    """Where a subcommand lives, and what it does in one line."""

    module: str
    function: str
    summary: str


COMMANDS = {
    "train": Command("artbp.train.command", "main", "train a character model on any text"),
    "influence-balancing": Command(
        "artbp.experiments.influence_command",
        "main",
        "the paper's first experiment: a gradient of wrong sign",
    ),
    "compare": Command(
        "artbp.experiments.compare_command",
        "main",
        "estimators side by side: bias, noise, time, memory",
    ),
    "lengths": Command(
        "artbp.experiments.lengths_command",
        "main",
        "how long segments are, drawn and in closed form",
    ),
    "evaluate": Command("artbp.train.evaluate_command", "main", "bits per character of a trained model, lane by lane"),
    "sample": Command("artbp.train.sample_command", "main", "let a trained model go on with a text"),
    "compare-runs": Command("artbp.train.compare_runs_command", "main", "trained runs in a table, seed against seed"),
    "export": Command("artbp.train.export_command", "main", "a trained model as safetensors, for torch.nn alone"),
    "plot": Command("artbp._plot", "main", "the figures of folders of results, drawn again"),
    "doctor": Command(
        "artbp.ops.doctor",
        "main",
        "which kernels run on this machine, and how exact they are",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `artbp` command on `arguments` (by default those of the process) and return its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()  # a reader that has gone shows here, not in the interpreter's last breath
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has all it wanted. What is still buffered must go somewhere at exit: nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status


def available() -> dict[str, Command]:
    """The subcommands whose module is installed, found without importing any."""
    return {name: command for name, command in COMMANDS.items() if _exists(command.module)}


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"artbp {__version__}")
        return 0
    name, *rest = arguments
    command = available().get(name)
    if command is None:
        return _fail(*_unknown(name))
    try:
        function = getattr(importlib.import_module(command.module), command.function)
        return function(rest) or 0
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        return _fail(
            f"`artbp {name}` needs {package}, which is not installed.",
            f'Install it with `pip install "artbp[{EXTRAS[package]}]"`.',
            status=1,
        )


def _help() -> str:
    commands = available()
    width = max((len(name) for name in commands), default=0)
    lines = [
        "usage: artbp [-h] [-V] COMMAND ...",
        "",
        "Unbiased gradients of recurrent computation in PyTorch.",
        "",
        "options:",
        "  -h, --help     show this message and exit",
        "  -V, --version  show the version and exit",
    ]
    if commands:
        lines += ["", "commands:"]
        lines += [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]
        lines += ["", "`artbp COMMAND --help` lists a command's own options."]
    return "\n".join(lines)


def _unknown(name: str) -> tuple[str, str]:
    from difflib import get_close_matches  # 5 ms that only a mistyped command pays

    kind = "option" if name.startswith("-") else "command"
    known = ["--help", "--version"] if kind == "option" else list(available())
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    way_out = f"Did you mean `artbp {close[0]}`? " if close else ""
    return f"artbp has no {kind} {name!r}.", f"{way_out}`artbp --help` lists what there is."


def _fail(what: str, instead: str, status: int = 2) -> int:
    print(f"error: {what}\n{instead}", file=sys.stderr)
    return status


def _exists(module: str) -> bool:
    # importlib.util.find_spec("artbp.ops.doctor") would import artbp.ops, and with it torch: walk the folders instead.
    root, *parts = module.split(".")
    spec = importlib.util.find_spec(root)
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return False
        root = f"{root}.{part}"
        spec = PathFinder.find_spec(root, list(spec.submodule_search_locations))
    return spec is not None
