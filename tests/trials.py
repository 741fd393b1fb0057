"""`artbp train` in processes of its own that end badly: killed, signalled, out of disk, at a moment of one's choice.

The processes are forked from a server that has imported torch, so that a trial costs no more than its training.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch

from artbp.train.checkpoints import Checkpoints, read
from artbp.train.run_folder import Metrics

context = multiprocessing.get_context("forkserver")
_IMPORTS = ("artbp.train.command", "artbp.train.dry_run", "artbp.train.session", "artbp.ops.batched")
# A second of imports more, which torch puts off to the first update.
context.set_forkserver_preload([*_IMPORTS, "torch._dynamo", "torch._functorch.eager_transforms"])

# Everything that draws at random or remembers, in a run of a second or so.
TINY = (
    *("--hidden", "6", "--layers", "2", "--dropout", "0.2", "--weight-dropout", "0.2", "--layer-norm"),
    *("--lanes", "4", "--mean", "6", "--window", "5", "--schedule", "cosine", "--clip", "0.5", "--optimizer", "adamw"),
    *("--epochs", "2", "--log-every", "7", "--device", "cpu"),
)
OFTEN = ("--checkpoint-every", "0.02")
UPDATE = "artbp.train.training:Training._reduce"  # called once for each, where a signal may come


def write_text(path: Path, words: int = 120) -> Path:
    """A made-up language, with an order to learn."""
    generator, known = random.Random(0), ["the cat ", "sat on ", "a mat, ", "and then ", "it ran.\n"]
    path.write_text("".join(generator.choice(known) for _ in range(words)), encoding="utf-8")
    return path


class End(NamedTuple):
    """How a process ended: its status, None where it was killed, and what it printed."""

    status: int | None
    out: str
    err: str


def begin(*arguments: object, **faults: Any) -> tuple[Any, Any]:
    """Starts `artbp train` with these arguments; (the process, where its end will be said)."""
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=([str(argument) for argument in arguments], there, faults))
    process.start()
    there.close()
    return process, here


def finish(process: Any, here: Any, timeout: float = 120) -> End:
    """Waits for the end."""
    try:
        return End(*here.recv()) if here.poll(timeout) else End(None, "", "no answer")
    except EOFError:
        return End(None, "", "")
    finally:
        process.kill()
        process.join()
        here.close()


def train(*arguments: object, **faults: Any) -> End:
    """`artbp train`, from its beginning to its end."""
    return finish(*begin(*arguments, **faults))


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for the times it took and the memory."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if k not in Metrics.TIMES} for line in lines]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    for name in ("seconds", "characters_per_second", "peak_memory"):
        del summary[name]
    states = [read(Checkpoints(folder).folder / f"{name}.pt") for name in ("last", "best")]
    for state in states:
        del state["seconds"], state["config"]["corpus"]
    return {"rows": rows, "summary": summary, "states": [digest(state) for state in states]}


def digest(value: Any) -> Any:
    """A nested state with the bits of a tensor in its place."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return {name: digest(part) for name, part in value.items()}
    return [digest(part) for part in value] if isinstance(value, list | tuple) else value


def in_two_parts(end: End, status: int = 1) -> str:
    """The message of an error, which is said once, in two lines at least, and without a traceback."""
    assert end.status == status, end
    assert "Traceback" not in end.err, end.err
    assert end.err.count("error: ") == 1, end.err
    message = end.err[end.err.index("error: ") + 7 :]
    assert len(message.strip().splitlines()) >= 2, message
    return message


# ---- in the process that is to fail ----------------------------------------------------------------------------------


def _child(arguments: list[str], there: Any, faults: dict[str, Any]) -> None:
    from types import SimpleNamespace

    from artbp import cli

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in what it runs in the background
    sys.modules["artbp.train.figures"] = SimpleNamespace(draw=lambda folders: [])  # type: ignore[assignment]
    out, err = io.StringIO(), io.StringIO()
    status = 99
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limited(faults.get("limit")):
        os.environ.update(faults.get("environ", {}))
        for name in ("operation", "signal_at", "clock", "chdir"):
            if name in faults:
                globals()[f"_{name}"](**faults[name])
        try:
            status = cli.main(["train", *arguments])
        except SystemExit as error:
            status = int(error.code or 0)
        except BaseException:  # noqa: BLE001  # what a user would see
            traceback.print_exc()
    there.send((status, out.getvalue(), err.getvalue()))
    there.close()
    os._exit(0)


def _operation(folder: str, at: int, what: str, lasting: bool = True) -> None:
    """At the `at`-th change of a file in the folder (from 1): SIGKILL, or an OSError of that name, from then on."""
    folder = os.path.realpath(folder)
    count = 0

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open":
            writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
            changes = isinstance(arguments[2], int) and arguments[2] & writes
        else:
            changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
        if not changes or not isinstance(arguments[0], str | os.PathLike):
            return
        if not os.path.realpath(arguments[0]).startswith(folder):
            return
        count += 1
        if count < at or (count > at and not lasting):
            return
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, what)
        if event != "os.remove" or what != "ENOSPC":  # a full disk lets files go
            raise OSError(number, os.strerror(number), os.fspath(arguments[0]))

    sys.addaudithook(audit)


@contextlib.contextmanager
def _limited(size: int | None) -> Any:
    """No file may grow beyond `size` bytes: what does is written as far as it goes, as on a disk that is filling up."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _signal_at(place: str, numbers: list[int], call: int = 1, apart: float = 0.0) -> None:
    """Sends itself the signals at the `call`-th call of a function: "module:name" or "module:class.name"."""
    import importlib

    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    original, count = getattr(owner, name), 0

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            for number in numbers:
                signal.raise_signal(number)
                time.sleep(apart)
        return original(*arguments, **options)

    setattr(owner, name, wrapped)


def _clock(jump: float) -> None:
    """The time of day goes forth and back at every look, as where a machine's clock is being set."""
    real, sign = time.time, 1

    def jumping() -> float:
        nonlocal sign
        sign = -sign
        return real() + sign * jump

    time.time = jumping


def _chdir(folder: str) -> None:
    os.chdir(folder)
