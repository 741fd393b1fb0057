"""One run in two processes: the losses of one process, and an end in words when something happens to one of them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

if os.name != "posix" or not torch.distributed.is_available():
    pytest.skip("processes that talk through gloo", allow_module_level=True)

from trials import TINY, End, begin, finish, in_two_parts, outcome, train, write_text

from artbp.train.checkpoints import read

Arguments = Sequence[object]
# No dropout, which each process draws for itself; lanes of some hundred steps.
PLAIN = (
    *("--hidden", "6", "--lanes", "4", "--mean", "6", "--epochs", "3", "--log-every", "7"),
    *("--device", "cpu", "--evaluation-lanes", "1"),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(rank: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    group = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    return {**group, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}


def launch(first: Arguments, second: Arguments, **faults: Any) -> list[tuple[Any, Any]]:
    """Two processes with these arguments, as torchrun would start them, but without it."""
    port = free_port()
    return [begin(*a, environ=environment(rank, port), **faults) for rank, a in enumerate((first, second))]


def ends(processes: list[tuple[Any, Any]]) -> list[End]:
    """How they ended; none is waited for without end."""
    return [finish(*process) for process in processes]


def two(*arguments: object) -> list[End]:
    return ends(launch(arguments, arguments))


def messages(found: list[End]) -> list[str]:
    assert all("Traceback" not in end.err for end in found), found
    return [end.err[end.err.index("error: ") :] if "error: " in end.err else "" for end in found]


def wait_for(path: Path, alive: Callable[[], bool]) -> None:
    start = time.monotonic()
    while not path.exists():
        assert alive()
        assert time.monotonic() - start < 120
        time.sleep(0.01)


def wait_for_a_pass(folder: Path, processes: list[tuple[Any, Any]]) -> None:
    wait_for(folder / "checkpoints" / "last.pt", lambda: all(process.is_alive() for process, _ in processes))


# ---- the same numbers ------------------------------------------------------------------------------------------------

BATTERY = """
import json, sys, torch, torch.distributed as dist
from collections import Counter
from pathlib import Path
from artbp.train.corpus import from_file
from artbp.train.group import Group, Launched
from artbp.train.options import Options
from artbp.train.training import Training

torch.set_num_threads(1)
group, calls, found = Launched(60.0), Counter(), {}
for name in ("all_reduce", "all_gather_object", "broadcast_object_list", "barrier"):
    def counted(*arguments, _name=name, _original=getattr(dist, name), **options):
        calls[_name] += 1
        return _original(*arguments, **options)
    setattr(dist, name, counted)
corpus = from_file(sys.argv[1])
for method, windows in (("artbp", (0, 4)), ("tbptt", (4,))):
    for window in windows:
        for precision in ("float64", "float32"):
            options = Options(method=method, mean=6, length=6, window=window, precision=precision, hidden=6, lanes=4,
                              epochs=99, clip=1.0)
            losses = {}
            for name, of in (("one", Group()), ("two", group))[group.rank:]:
                training, updates = Training(options, corpus, of, torch.device("cpu")), []
                calls.clear()
                while len(updates) < 200:
                    for update in training.updates():
                        updates.append((update.loss.item(), update.steps, update.gradient_norm.item()))
                        if len(updates) == 200:
                            break
                losses[name] = updates
            found[f"{method} {window} {precision}"] = {**losses, "calls": dict(calls)}
Path(sys.argv[2], f"{group.rank}.json").write_text(json.dumps(found))
group.leave()
"""


@pytest.fixture(scope="module")
def battery(text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """200 updates by one process and by two, of everything, from both of them."""
    folder = tmp_path_factory.mktemp("battery")
    port = free_port()
    program = [sys.executable, "-c", BATTERY, text, folder]
    processes = [subprocess.Popen(program, env={**os.environ, **environment(rank, port)}) for rank in (0, 1)]
    try:
        assert [process.wait(240) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


def test_two_processes_have_the_losses_of_one_by_one_reduction_an_update(battery):
    """With windows and without. The lengths are drawn, and the same in all processes."""
    for name, found in battery[0].items():
        tolerance = 1e-11 if "float64" in name else 1e-6
        assert len(found["one"]) == 200
        for of_rank in battery:
            assert of_rank[name]["calls"] == {"all_reduce": 200}
            for one, two_ in zip(found["one"], of_rank[name]["two"], strict=True):
                assert one[1] == two_[1]  # the lengths
                assert two_[0] == pytest.approx(one[0], rel=tolerance), name
                assert two_[2] == pytest.approx(one[2], rel=100 * tolerance), name
    assert len({update[1] for update in battery[0]["artbp 0 float64"]["two"]}) > 5


# ---- the command -----------------------------------------------------------------------------------------------------


def torchrun(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    program += ["--master-port", str(free_port()), "-m", "artbp", "train", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(program, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of the threads from /proc")
def test_the_group_that_was_left_has_no_threads():
    """One that lives on can abort the process: it drops tensors, for which it wants an interpreter that has gone."""
    script = (
        "import os, torch; from artbp.train.group import Launched; group = Launched(60)\n"
        "weight = torch.ones(3, requires_grad=True); optimizer = torch.optim.Adam([weight])\n"
        "weight.sum().backward(); group.sum(weight.grad); optimizer.step(); group.gather('word'); group.leave()\n"
        "names = [open(f'/proc/self/task/{thread}/comm').read().strip() for thread in os.listdir('/proc/self/task')]\n"
        "print([name for name in names if 'gloo' in name])"
    )
    variables = {**os.environ, **environment(0, free_port()), "WORLD_SIZE": "1"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=variables, check=False)
    assert run.stdout == "[]\n", run.stdout + run.stderr


def curve(folder: Path) -> list[float]:
    return [row["bpc"] for row in outcome(folder)["rows"]]


def test_torchrun_ends_with_the_numbers_of_one_process(text, tmp_path):
    arguments = ("--corpus", text, *PLAIN, "--precision", "float64")
    process = torchrun(*arguments, "--out", tmp_path / "two")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert out.count("Metrics, checkpoints") == 1  # process 0 alone speaks and writes
    assert "on cpu x 2" in out
    assert train(*arguments, "--out", tmp_path / "one").status == 0
    assert curve(tmp_path / "two") == pytest.approx(curve(tmp_path / "one"), rel=1e-10)
    # What two have begun, one or four can end.
    assert len(read(tmp_path / "two" / "checkpoints" / "last.pt")["random"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_torchrun_leaves_a_checkpoint(number, text, tmp_path):
    """To all of them, as a scheduler or a terminal sends it: those of torchrun itself get it twice."""
    folder = tmp_path / "run"
    process = torchrun("--corpus", text, *PLAIN, "--epochs", 2000, "--out", folder, start_new_session=True)
    wait_for(folder / "checkpoints" / "best.pt", lambda: process.poll() is None)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=240)
    (update,) = re.findall(r"Stopped at update ([\d,]+)\.", out)
    assert read(folder / "checkpoints" / "last.pt")["update"] == int(update.replace(",", "")) > 0
    assert "interrupted" not in err


@pytest.mark.slow
def test_torchrun_ends_when_one_process_is_killed(text, tmp_path):
    folder = tmp_path / "run"
    process = torchrun("--corpus", text, *PLAIN, "--epochs", 2000, "--timeout", 20, "--out", folder)
    wait_for(folder / "checkpoints" / "best.pt", lambda: process.poll() is None)
    workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    os.kill(int(workers.stdout.split()[-1]), signal.SIGKILL)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert len(re.findall("^Traceback", err, re.MULTILINE)) <= 1  # torchrun's own
    assert train("--resume", folder, signal_at=STOP).status == 143  # one goes on where two were


STOP = {"place": "artbp.train.training:Training._reduce", "numbers": [signal.SIGTERM], "call": 3}


# ---- when something happens to one of them ---------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_the_other_ends_in_words_when_one_is_killed(rank, text, tmp_path):
    folder = tmp_path / "run"
    arguments = ["--corpus", text, *PLAIN, "--epochs", 2000, "--out", folder]
    processes = launch(arguments, arguments)
    wait_for_a_pass(folder, processes)
    processes[rank][0].kill()
    found = ends(processes)
    assert found[rank].status is None
    assert found[1 - rank].status == 1
    message = messages(found)[1 - rank]
    assert f"process {1 - rank} of 2 lost the others: one has ended, or did not answer in time (" in message
    assert "start all processes again, with --resume RUN." in message
    end = train("--resume", folder, signal_at=STOP)
    assert end.status == 143
    assert "Going on from update " in end.out


@pytest.mark.slow
def test_one_that_does_not_answer_is_waited_for_no_longer_than_told(text, tmp_path):
    folder = tmp_path / "run"
    arguments = ["--corpus", text, *PLAIN, "--epochs", 2000, "--out", folder]
    processes = launch(*[[*arguments, "--timeout", 10]] * 2)
    wait_for_a_pass(folder, processes)
    os.kill(processes[1][0].pid, signal.SIGSTOP)
    end = finish(*processes[0])
    assert "process 0 of 2 lost the others" in in_two_parts(end)
    processes[1][0].kill()
    finish(*processes[1])


def test_a_signal_to_one_stops_both_at_the_same_update_and_they_go_on_bit_for_bit(text, tmp_path):
    """With dropout, which each draws for itself."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    begun = ["--corpus", text, *TINY, "--epochs", 5]
    both = [[*begun, "--out", whole]] * 2
    assert [end.status for end in ends(launch(*both))] == [0, 0]
    processes = launch(*[[*begun, "--out", folder]] * 2)
    wait_for_a_pass(folder, processes)
    os.kill(processes[1][0].pid, signal.SIGTERM)
    found = ends(processes)
    assert [end.status for end in found] == [143, 143], found
    assert found[1].out == ""  # process 0 alone speaks
    assert messages(found) == ["", ""]
    found = two("--resume", folder)
    assert [end.status for end in found] == [0, 0], found
    assert "Going on from update " in found[0].out
    assert outcome(folder) == outcome(whole)


def test_lanes_that_cannot_be_dealt_are_refused_once(text, tmp_path):
    found = two("--corpus", text, *PLAIN, "--lanes", 5, "--out", tmp_path / "run")
    assert [end.status for end in found] == [2, 2]
    first, second = messages(found)
    assert "--lanes 5 with 2 processes: each takes the same number of lanes." in first
    assert "a number of processes that divides 5, or a new run with --lanes 6." in first
    assert second == ""
    assert not (tmp_path / "run").exists()


def test_what_one_began_with_lanes_that_two_cannot_share_is_refused(text, tmp_path):
    folder = tmp_path / "run"
    assert train("--corpus", text, *PLAIN, "--lanes", 5, "--out", folder, signal_at=STOP).status == 143
    found = two("--resume", folder)
    assert [end.status for end in found] == [2, 2]
    assert "--lanes 5 with 2 processes" in messages(found)[0]


@pytest.mark.parametrize(
    ("first", "second", "words", "speaks"),
    [
        (["--lr", "-1"], ["--lr", "-1"], "--lr -1.0: it must be above 0", 0),
        (["--lr", "0.1"], ["--lr", "-1"], "--lr -1.0: it must be above 0", 1),
        (["--lr", "0.1"], ["--lr", "0.2"], "--lr is 0.1 in process 0 and 0.2 in process 1.", 0),
        (["--corpus", "/nowhere"], ["--corpus", "/nowhere"], "There is no file /nowhere.", 0),
    ],
)
def test_what_is_wrong_is_said_once_and_nobody_waits(first, second, words, speaks, text, tmp_path):
    shared = ["--corpus", text, *PLAIN, "--out", tmp_path / "run"]
    found = ends(launch([*shared, *first], [*shared, *second]))
    assert [end.status for end in found] == [2, 2]
    said = messages(found)
    assert words in said[speaks]
    assert said[1 - speaks] == ""


def test_texts_that_differ_are_refused(text, tmp_path):
    other = tmp_path / "text.txt"
    other.write_text(text.read_text(encoding="utf-8") + "the cat", encoding="utf-8")
    shared = [*PLAIN, "--out", tmp_path / "run"]
    found = ends(launch([*shared, "--corpus", text], [*shared, "--corpus", other]))
    assert "text.txt is another text in process 1 than in process 0" in "".join(messages(found))


def test_the_disk_of_the_first_is_full(text, tmp_path):
    """Process 0 alone writes, and says so; the other does not wait for it."""
    arguments = ("--corpus", text, *PLAIN, "--out", tmp_path / "run")
    found = ends(launch(arguments, arguments, limit=4000))
    first, second = messages(found)
    assert "cannot be written: File too large." in first
    assert "lost the others" in second
    assert [end.status for end in found] == [1, 1]
    assert two("--resume", tmp_path / "run")[0].status == 0
