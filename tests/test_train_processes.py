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
from pathlib import Path
from typing import Any

import pytest
import torch

if os.name != "posix" or not torch.distributed.is_available():
    pytest.skip("processes that talk through gloo", allow_module_level=True)

from trials import TINY, outcome, train, write_text

from artbp.train.checkpoints import read

HERE = Path(__file__).parent
# No dropout, which each process draws for itself; lanes of some hundred steps.
PLAIN = (
    *("--hidden", "6", "--lanes", "4", "--mean", "6", "--epochs", "3", "--log-every", "7"),
    *("--device", "cpu", "--evaluation-lanes", "1"),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


def environment(rank: int, port: int, **more: str) -> dict[str, str]:
    """What torchrun tells a process, without torchrun."""
    group = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    return {
        **os.environ,
        **group,
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)},
        **more,
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launch(*programs: list[object]) -> list[subprocess.Popen[str]]:
    """One process for each list of arguments, as torchrun would start them."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *map(str, arguments)],
            env=environment(rank, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, arguments in enumerate(programs)
    ]


def ends(processes: list[subprocess.Popen[str]], timeout: float = 240) -> list[tuple[int, str, str]]:
    """(status, stdout, stderr) of each; none is waited for without end."""
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=timeout)
            found.append((process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return found


def two(*arguments: object) -> list[tuple[int, str, str]]:
    return ends(launch(*[["-m", "artbp", "train", *arguments]] * 2))


def messages(found: list[tuple[int, str, str]]) -> list[str]:
    assert all("Traceback" not in err for _, _, err in found), found
    return [err[err.index("error: ") :] if "error: " in err else "" for _, _, err in found]


def wait_for(path: Path, processes: list[subprocess.Popen[str]]) -> None:
    start = time.monotonic()
    while not path.exists():
        assert all(process.poll() is None for process in processes), ends(processes)
        assert time.monotonic() - start < 120
        time.sleep(0.01)


# ---- the same numbers -------------------------------------------------------------------------------------------------

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
for method in ("artbp", "tbptt"):
    for window in (0, 4):
        for precision in ("float64", "float32"):
            options = Options(method=method, mean=6, length=6, window=window, precision=precision, hidden=6, lanes=4,
                              epochs=99, clip=1.0, layers=2)
            losses = {}
            for name, of in (("one", Group()), ("two", group)):
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
    found = ends(launch(*[["-c", BATTERY, text, folder]] * 2))
    assert [status for status, _, _ in found] == [0, 0], found
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


@pytest.mark.parametrize("method", ["artbp", "tbptt"])
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-11), ("float32", 1e-6)])
def test_two_processes_have_the_losses_of_one(method, window, precision, tolerance, battery):
    for of_rank in battery:
        found = of_rank[f"{method} {window} {precision}"]
        assert len(found["one"]) == len(found["two"]) == 200
        for one, two_ in zip(found["one"], found["two"], strict=True):
            assert one[1] == two_[1]  # the lengths
            assert two_[0] == pytest.approx(one[0], rel=tolerance)
            assert two_[2] == pytest.approx(one[2], rel=100 * tolerance)


def test_there_is_one_reduction_an_update_and_nothing_else(battery):
    for of_rank in battery:
        assert all(found["calls"] == {"all_reduce": 200} for found in of_rank.values())


def test_the_lengths_are_the_same_and_not_all_one(battery):
    assert len({update[1] for update in battery[0]["artbp 0 float64"]["two"]}) > 5


# ---- the command ------------------------------------------------------------------------------------------------------


def torchrun(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    program += ["--master-port", str(free_port()), "-m", "artbp", "train", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(program, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes, **options)  # type: ignore[call-overload,no-any-return]


def curve(folder: Path) -> list[float]:
    return [row["bpc"] for row in outcome(folder)["rows"]]


def test_torchrun_ends_with_the_numbers_of_one_process(text, tmp_path):
    arguments = ("--corpus", text, *PLAIN, "--precision", "float64")
    ((status, out, err),) = ends([torchrun(*arguments, "--out", tmp_path / "two")])
    assert status == 0, err
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
    wait_for(folder / "checkpoints" / "best.pt", [process])
    os.killpg(process.pid, number)
    ((_, out, err),) = ends([process])
    (update,) = re.findall(r"Stopped at update ([\d,]+)\.", out)
    assert read(folder / "checkpoints" / "last.pt")["update"] == int(update.replace(",", "")) > 0
    assert "interrupted" not in err


@pytest.mark.slow
def test_torchrun_ends_when_one_process_is_killed(text, tmp_path):
    folder = tmp_path / "run"
    process = torchrun("--corpus", text, *PLAIN, "--epochs", 2000, "--timeout", 20, "--out", folder)
    wait_for(folder / "checkpoints" / "best.pt", [process])
    workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    os.kill(int(workers.stdout.split()[-1]), signal.SIGKILL)
    ((status, _, err),) = ends([process])
    assert status == 1
    assert len(re.findall("^Traceback", err, re.MULTILINE)) <= 1  # torchrun's own
    assert train("--resume", folder, signal_at=STOP).status == 143  # one goes on where two were


STOP = {"place": "artbp.train.training:Training._reduce", "numbers": [signal.SIGTERM], "call": 3}


# ---- when something happens to one of them ------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_the_other_ends_in_words_when_one_is_killed(rank, text, tmp_path):
    folder = tmp_path / "run"
    arguments = ["-m", "artbp", "train", "--corpus", text, *PLAIN, "--epochs", 2000, "--out", folder]
    processes = launch(arguments, arguments)
    wait_for(folder / "checkpoints" / "best.pt", processes)
    processes[rank].kill()
    found = ends(processes)
    assert found[rank][0] == -signal.SIGKILL
    assert found[1 - rank][0] == 1
    message = messages(found)[1 - rank]
    assert f"process {1 - rank} of 2 lost the others: one has ended, or did not answer in time (" in message
    assert "start all processes again, with --resume RUN." in message
    end = train("--resume", folder, signal_at=STOP)
    assert end.status == 143
    assert "Going on from update " in end.out


@pytest.mark.slow
def test_one_that_does_not_answer_is_waited_for_no_longer_than_told(text, tmp_path):
    folder = tmp_path / "run"
    arguments = ["-m", "artbp", "train", "--corpus", text, *PLAIN, "--epochs", 2000, "--out", folder]
    processes = launch(*[[*arguments, "--timeout", 10]] * 2)
    wait_for(folder / "checkpoints" / "best.pt", processes)
    processes[1].send_signal(signal.SIGSTOP)
    start = time.monotonic()
    (found,) = ends(processes[:1])
    assert found[0] == 1
    assert "process 0 of 2 lost the others" in found[2]
    assert "Traceback" not in found[2]
    assert 5 < time.monotonic() - start < 60
    processes[1].kill()
    processes[1].communicate()


def test_a_signal_to_one_stops_both_at_the_same_update_and_they_go_on_bit_for_bit(text, tmp_path):
    """With dropout, which each draws for itself."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    begun = ["-m", "artbp", "train", "--corpus", text, *TINY, "--epochs", 12]
    both = [[*begun, "--out", whole]] * 2
    assert [status for status, _, _ in ends(launch(*both))] == [0, 0]
    processes = launch(*[[*begun, "--out", folder]] * 2)
    wait_for(folder / "checkpoints" / "best.pt", processes)
    processes[1].send_signal(signal.SIGTERM)
    found = ends(processes)
    assert [status for status, _, _ in found] == [143, 143], found
    assert found[1][1] == ""  # process 0 alone speaks
    assert messages(found) == ["", ""]
    found = two("--resume", folder)
    assert [status for status, _, _ in found] == [0, 0], found
    assert "Going on from update " in found[0][1]
    assert outcome(folder) == outcome(whole)


def test_lanes_that_cannot_be_dealt_are_refused_once(text, tmp_path):
    found = two("--corpus", text, *PLAIN, "--lanes", 5, "--out", tmp_path / "run")
    assert [status for status, _, _ in found] == [2, 2]
    first, second = messages(found)
    assert "--lanes 5 with 2 processes: each takes the same number of lanes." in first
    assert "a number of processes that divides 5, or a new run with --lanes 6." in first
    assert second == ""
    assert not (tmp_path / "run").exists()


def test_what_one_began_with_lanes_that_two_cannot_share_is_refused(text, tmp_path):
    folder = tmp_path / "run"
    assert train("--corpus", text, *PLAIN, "--lanes", 5, "--out", folder, signal_at=STOP).status == 143
    found = two("--resume", folder)
    assert [status for status, _, _ in found] == [2, 2]
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
    shared = ["-m", "artbp", "train", "--corpus", text, *PLAIN, "--out", tmp_path / "run"]
    found = ends(launch([*shared, *first], [*shared, *second]))
    assert [status for status, _, _ in found] == [2, 2]
    said = messages(found)
    assert words in said[speaks]
    assert said[1 - speaks] == ""


def test_texts_that_differ_are_refused(text, tmp_path):
    other = tmp_path / "text.txt"
    other.write_text(text.read_text(encoding="utf-8") + "the cat", encoding="utf-8")
    shared = ["-m", "artbp", "train", *PLAIN, "--out", tmp_path / "run"]
    found = ends(launch([*shared, "--corpus", text], [*shared, "--corpus", other]))
    assert "text.txt is another text in process 1 than in process 0" in "".join(messages(found))


def test_the_disk_of_the_first_is_full(text, tmp_path):
    """Process 0 alone writes, and says so; the other does not wait for it."""
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)); from artbp.cli import main"
    )
    program = [f"{limited}; sys.exit(main(sys.argv[1:]))", "train", "--corpus", text, *PLAIN, "--out", tmp_path / "run"]
    found = ends(launch(["-c", *program], ["-c", *program]))
    first, second = messages(found)
    assert "cannot be written: File too large." in first
    assert "lost the others" in second
    assert [status for status, _, _ in found] == [1, 1]
    assert two("--resume", tmp_path / "run")[0][0] == 0
