"""What a run of `artbp train` says and keeps when the disk, a file or another process is not as it should be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if os.name != "posix":
    pytest.skip("signals and forks as POSIX has them", allow_module_level=True)

from trials import OFTEN, TINY, UPDATE, begin, finish, in_two_parts, outcome, train

from artbp.train.checkpoints import Checkpoints, decode, encode, read


@pytest.fixture(scope="module")
def stopped(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that was stopped in its second pass, and so has all three checkpoints."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    at = {"place": UPDATE, "numbers": [signal.SIGTERM], "call": 50}
    assert train("--corpus", text, *TINY, "--out", folder, signal_at=at).status == 143
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"last.pt", "previous.pt", "best.pt"}
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """A copy of that, to be spoilt."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def turn_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


# ---- a disk that is full, or cannot be written -----------------------------------------------------------------------


def test_a_disk_that_is_full_from_any_moment_on(text, alone, tmp_path):
    """Each attempt goes on where the one before stopped, and the disk is full one change of a file later."""
    folder, number = tmp_path / "run", 1
    arguments = ("--corpus", text, *TINY, "--out", folder)
    while True:
        end = train(*arguments, operation={"folder": str(folder), "at": number, "what": "ENOSPC"})
        if end.status == 0:
            break
        message = in_two_parts(end, end.status)
        assert "cannot be written: No space left on device." in message
        assert "free some space" in message.lower()
        if (folder / "config.json").exists():
            arguments = ("--resume", folder)
        number += 1
    assert number > 15
    assert outcome(folder) == outcome(alone)
    assert not list(folder.rglob(".*"))


def test_a_file_that_is_written_in_part(text, alone, tmp_path):
    """No file grows beyond some size: what does has its first bytes only. Nothing that was whole before is harmed."""
    largest = (alone / "checkpoints" / "last.pt").stat().st_size
    begun = False
    for number, size in enumerate([0, 1, 300, 700, 1100, 1500, largest // 2, largest - 1]):
        folder = tmp_path / f"run-{number}"
        end = train("--corpus", text, *TINY, "--out", folder, limit=size)
        message = in_two_parts(end, end.status)
        assert "cannot be written: File too large." in message
        if not (folder / "config.json").exists():
            assert not list(folder.iterdir())
            continue
        begun = True
        assert "free some space" in message.lower()
        if (folder / "metrics.jsonl").exists():
            rows = (folder / "metrics.jsonl").read_bytes()
            assert rows == b"" or rows.endswith(b"\n")
        end = train("--resume", folder)
        assert end.status == 0, end
        assert outcome(folder) == outcome(alone)
        assert not list(folder.rglob(".*"))
    assert begun


def test_a_file_system_that_is_really_full(text, alone, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("mounting takes a privilege")
    try:
        (disk / "ballast").write_bytes(bytes(150_000))
        end = train("--corpus", text, *TINY, *OFTEN, "--out", disk / "run")
        message = in_two_parts(end)
        assert (
            "cannot be written: No space left on device.\nWhat was written before is kept. Free some space" in message
        )
        (disk / "ballast").unlink()
        assert train("--resume", disk / "run").status == 0
        assert outcome(disk / "run") == outcome(alone)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        end = train("--corpus", text, *TINY, "--out", disk / "other")
        assert f"{disk / 'other'} cannot be written: Read-only file system.\n" in in_two_parts(end, 2)
        assert "finished: nothing was done" in train("--resume", disk / "run").out
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("what", ["EROFS", "EACCES"])
def test_a_folder_that_cannot_be_written(what, text, folder, alone, tmp_path):
    new = {"folder": str(tmp_path / "new"), "at": 1, "what": what}
    end = train("--corpus", text, *TINY, "--out", tmp_path / "new", operation=new)
    message = in_two_parts(end, 2)
    assert f"{tmp_path / 'new'} cannot be written: " in message
    assert "--out" in message
    end = train("--resume", folder, operation={"folder": str(folder), "at": 1, "what": what})
    assert "Make it writable" in in_two_parts(end)
    assert train("--resume", folder).status == 0
    assert outcome(folder) == outcome(alone)


def test_figures_that_find_no_room_do_not_undo_a_run(text, tmp_path):
    """All else was written."""
    from artbp.train import command

    (tmp_path / "metrics.jsonl").write_text("", encoding="utf-8")

    def full(folders: object) -> None:
        raise OSError(28, "No space left on device")

    assert "`artbp plot RUN`" in command._figures(Path("RUN"), full)


# ---- checkpoints that are not what was written -----------------------------------------------------------------------


@pytest.mark.parametrize("damage", [cut, turn_a_bit, empty])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(damage, folder, alone):
    last, previous = folder / "checkpoints" / "last.pt", folder / "checkpoints" / "previous.pt"
    kept = previous.read_bytes()
    damage(last)
    stop = {"place": "artbp.train.training:Training._reduce", "numbers": [signal.SIGTERM], "call": 3}
    end = train("--resume", folder, signal_at=stop)
    assert end.status == 143
    assert f"{last} is damaged: " in end.out
    assert f"Going on from update {decode(kept)['update']}," in end.out
    assert previous.read_bytes() == kept  # and not the damaged one
    assert (folder / "checkpoints" / "damaged.pt").exists()
    assert train("--resume", folder).status == 0
    assert outcome(folder) == outcome(alone)


def test_where_both_are_damaged_the_best_is_a_way_out(folder, alone):
    checkpoints = folder / "checkpoints"
    cut(checkpoints / "last.pt")
    turn_a_bit(checkpoints / "previous.pt")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    message = in_two_parts(train("--resume", folder), 2)
    assert "last.pt is damaged: " in message
    assert "previous.pt is damaged: " in message
    assert f"{checkpoints / 'best.pt'}, from after pass 1, is whole: copy it to last.pt" in message
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "summary.json"}
    assert after.items() <= before.items()
    shutil.copy(checkpoints / "best.pt", checkpoints / "last.pt")
    assert train("--resume", folder).status == 0
    assert outcome(folder) == outcome(alone)


def test_where_all_are_damaged_it_says_so(folder):
    for name in ("last", "previous", "best"):
        cut(folder / "checkpoints" / f"{name}.pt")
    assert "There is no older one. Restore one of them from a copy" in in_two_parts(train("--resume", folder), 2)


def test_a_checkpoint_is_read_without_running_what_is_in_it(folder):
    class Harm:
        def __reduce__(self):
            return (print, ("harm was done",))

    (folder / "checkpoints" / "last.pt").write_bytes(encode({"harm": Harm()}))
    end = train("--resume", folder)
    assert "harm was done" not in end.out
    assert "last.pt is damaged: torch cannot read it" in end.out


def test_a_checkpoint_of_another_format_is_refused_in_words(folder):
    path = folder / "checkpoints" / "last.pt"
    path.write_bytes(encode({**read(path), "format": 7, "artbp": "9.1"}))
    message = in_two_parts(train("--resume", folder), 2)
    assert "was written by artbp 9.1 in format 7, and artbp " in message
    assert "Use artbp 9.1" in message


def test_a_checkpoint_that_lacks_something_is_refused_in_words(folder):
    path = folder / "checkpoints" / "last.pt"
    path.write_bytes(encode({k: v for k, v in read(path).items() if k != "estimator"}))
    assert "does not fit this run: KeyError, 'estimator'" in in_two_parts(train("--resume", folder), 2)


def test_another_torch_is_said(folder):
    path = folder / "checkpoints" / "last.pt"
    state = read(path)
    assert state["torch"] == str(torch.__version__)
    content = encode({**state, "torch": "2.6.0"})
    path.write_bytes(content)
    assert "It ran with torch 2.6.0; with " in train("--resume", folder).out


def test_an_older_checkpoint_without_a_format_is_the_first_format(folder, alone):
    path = folder / "checkpoints" / "last.pt"
    state = read(path)
    for name in ("format", "artbp", "torch", "evaluated"):
        del state[name]
    path.write_bytes(encode(state))
    assert train("--resume", folder).status == 0
    assert outcome(folder) == outcome(alone)


def test_temporary_files_of_a_killed_process_go(folder):
    for path in (folder / "checkpoints" / ".last.pt.new", folder / ".summary.json.x1y2", folder / ".config.json.abc"):
        path.write_bytes(b"half")
    assert train("--resume", folder).status == 0
    assert not list(folder.rglob(".*"))


def test_the_last_two_are_kept_and_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for number in range(5):
        checkpoints.save({"number": number}, best=number == 2)
    assert [read(tmp_path / "checkpoints" / f"{name}.pt")["number"] for name in ("last", "previous", "best")] == [
        4,
        3,
        2,
    ]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


# ---- files that were changed -----------------------------------------------------------------------------------------


def test_half_a_line_of_metrics_is_cut_off(folder, alone):
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "train", "epo')
    assert train("--resume", folder).status == 0
    assert outcome(folder) == outcome(alone)


def test_rows_that_were_removed_are_missed(folder):
    path = folder / "metrics.jsonl"
    whole = path.read_bytes()
    for content in (b"", whole[:-5], b"".join(whole.splitlines(keepends=True)[:-1])):
        path.write_bytes(content)
        message = in_two_parts(train("--resume", folder), 2)
        assert "rows were removed" in message
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden": 9}, "was changed since the checkpoint was written: hidden = 9 and was 6."),
        ({"lr": 0.5}, "was changed since the checkpoint was written: lr = 0.5 and was 0.005."),
        ({"lanes": -4}, "was changed to what cannot run: --lanes -4"),
        ({"epochs": "many"}, "was changed to what cannot run: "),
        ({"experiment": "influence"}, "holds another experiment, influence"),
    ],
)
def test_a_config_that_was_edited_is_refused(change, words, folder):
    edit(folder / "config.json", **change)
    assert words in in_two_parts(train("--resume", folder), 2)


@pytest.mark.parametrize("content", ["{", "[]", "", "3"])
def test_a_config_that_is_none_is_refused_and_can_be_overwritten(content, text, folder):
    (folder / "config.json").write_text(content, encoding="utf-8")
    in_two_parts(train("--resume", folder), 2)
    end = train("--corpus", text, *TINY, "--epochs", 1, "--out", folder, "--overwrite")
    assert end.status == (0 if content in ("{", "") else 2)  # the others may be somebody else's


def test_a_summary_that_is_damaged_is_written_anew(folder, alone):
    (folder / "summary.json").write_text("{", encoding="utf-8")
    assert train("--resume", folder).status == 0
    assert outcome(folder) == outcome(alone)


def test_a_text_that_was_changed_is_refused_and_one_that_was_moved_is_found(text, folder, alone, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text(encoding="utf-8").replace("cat", "dog"), encoding="utf-8")
    edit(folder / "config.json", corpus=str(other))
    message = in_two_parts(train("--resume", folder), 2)
    assert "was begun with another text than other.txt is now (its SHA-256 differs)." in message
    other.write_bytes(text.read_bytes())
    assert train("--resume", folder).status == 0
    assert outcome(folder) == outcome(alone)


def test_a_text_that_is_gone_is_named_and_its_new_place_can_be(text, folder, alone, tmp_path):
    edit(folder / "config.json", corpus="/nowhere/text.txt")
    assert "There is no file /nowhere/text.txt." in in_two_parts(train("--resume", folder), 2)
    other = tmp_path / "other.txt"
    other.write_text(text.read_text(encoding="utf-8").replace("cat", "dog"), encoding="utf-8")
    message = in_two_parts(train("--resume", folder, "--corpus", other), 2)
    assert "was begun with another text than other.txt is now (its SHA-256 differs)." in message
    other.write_bytes(text.read_bytes())
    assert train("--resume", folder, "--corpus", other).status == 0
    assert outcome(folder) == outcome(alone)


# ---- two processes, one folder ---------------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_a_dead_one_holds_nothing(text, alone, tmp_path):
    folder = tmp_path / "run"
    process, here = begin("--corpus", text, *TINY, "--epochs", 500, "--out", folder)
    while not (folder / "checkpoints" / "last.pt").exists():
        assert process.is_alive()
    for arguments in (("--resume", folder), ("--corpus", text, *TINY, "--out", folder, "--overwrite")):
        message = in_two_parts(train(*arguments), 2)
        assert f"{folder} is in use: another process is training there." in message
        assert "--out" in message
    process.kill()
    assert finish(process, here).status is None
    assert train("--corpus", text, *TINY, "--out", folder, "--overwrite").status == 0
    assert outcome(folder) == outcome(alone)


def test_one_seed_of_several_that_another_process_trains(text, tmp_path):
    folder = tmp_path / "run"
    begun = ("--corpus", text, *TINY, "--epochs", 500, "--runs", 2, "--out", folder)
    assert train(*begun, operation={"folder": str(folder), "at": 30, "what": "kill"}).status is None
    process, here = begin("--resume", folder / "seed-1")
    while not (folder / "seed-1" / "metrics.jsonl").exists():
        assert process.is_alive()
    message = in_two_parts(train("--resume", folder), 2)
    assert f"{folder / 'seed-1'} is in use" in message
    process.kill()
    finish(process, here)


def test_an_existing_run_is_not_lost_by_accident(text, folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    message = in_two_parts(train("--corpus", text, *TINY, "--out", folder), 2)
    assert f"{folder} holds this run, unfinished.\n`artbp train --resume {folder}` goes on with it;" in message
    message = in_two_parts(train("--corpus", text, *TINY, "--lr", 0.1, "--out", folder), 2)
    assert "lr = 0.005 there and 0.1 here" in message
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_overwriting_that_was_killed_can_be_done_again(text, folder, alone):
    (folder / "plots").mkdir()
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    begun = ("--corpus", text, *TINY, "--out", folder, "--overwrite")
    for number in range(1, 16):
        operation = {"folder": str(folder), "at": number, "what": "kill"}
        assert train(*begun, operation=operation).status is None
        (folder / "plots").mkdir(exist_ok=True)
    assert train(*begun).status == 0
    assert outcome(folder) == outcome(alone)
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_reader_that_has_gone_is_no_fault_of_the_disk(text, tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    arguments = ["--corpus", text, *TINY, "--out", tmp_path / "run"]
    program = [sys.executable, "-m", "artbp", "train", *map(str, arguments)]
    with os.fdopen(write_end, "w") as out:
        ended = subprocess.run(program, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (141, "")
