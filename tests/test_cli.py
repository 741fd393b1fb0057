"""The `artbp` command: what it prints, how it fails, and that it answers without importing torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from artbp import cli
from artbp._version import __version__


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "artbp", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Registers the body of a function as the subcommand `trial`."""

    def register(body: str) -> None:
        source = "import sys\n\n\ndef main(arguments):\n" + "".join(f"    {line}\n" for line in body.splitlines())
        (tmp_path / "artbp_trial.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "artbp_trial", raising=False)
        monkeypatch.setitem(cli.COMMANDS, "trial", cli.Command("artbp_trial", "main", "a trial"))

    yield register
    sys.modules.pop("artbp_trial", None)


def test_version_and_the_metadata_are_one():
    result = run("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"artbp {__version__}\n", "")
    assert run("-V").stdout == result.stdout


def test_the_console_script_is_the_same_function():
    (script,) = entry_points(group="console_scripts", name="artbp")
    assert script.load() is cli.main


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_lists_what_is_installed(arguments, capsys):
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: artbp")
    for name, command in cli.COMMANDS.items():
        assert (f"  {name} " in printed) == (name in cli.available()), command.module


@pytest.mark.parametrize("arguments", [[], *([name] for name in cli.COMMANDS)])
def test_help_fits_a_terminal_of_eighty_columns(arguments, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        cli.main([*arguments, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines
    # The line of usage is tyro's, which shortens it from 80 characters of options on.
    assert [line for line in lines if len(line) > 80 and not line.startswith("usage:")] == []


def test_a_command_is_listed_only_where_its_module_exists(command, monkeypatch, capsys):
    command("pass")
    for absent in ("artbp.no_such_module", "artbp._version.no_package", "artbp.no_such.module", "no_such_package.cli"):
        monkeypatch.setitem(cli.COMMANDS, "absent", cli.Command(absent, "main", "is not there"))
        assert "absent" not in cli.available()
    assert "trial" in cli.available()
    assert cli.main(["absent"]) == 2
    assert "artbp has no command 'absent'." in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["influence"]])
def test_nothing_heavy_is_imported_to_answer(arguments):
    code = (
        "import sys; from artbp.cli import main; main(sys.argv[1:])\n"
        "print(sorted({'torch', 'numpy', 'tyro', 'tqdm', 'argparse'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == "[]"


def test_an_unknown_command_is_refused_in_two_parts(capsys):
    assert cli.main(["unheard-of"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "error: artbp has no command 'unheard-of'.\n`artbp --help` lists what there is.\n"


@pytest.mark.parametrize("typed", ["trail", "tria", "Trial"])
def test_a_mistyped_command_is_answered_with_the_nearest(typed, command, capsys):
    command("pass")
    assert cli.main([typed]) == 2
    assert "Did you mean `artbp trial`?" in capsys.readouterr().err


def test_a_mistyped_option_is_answered_with_the_nearest(capsys):
    assert cli.main(["--verson"]) == 2
    printed = capsys.readouterr().err
    assert "artbp has no option '--verson'." in printed
    assert "Did you mean `artbp --version`?" in printed


@pytest.mark.parametrize(("body", "status"), [("return None", 0), ("return 3", 3)])
def test_a_command_gives_its_status(body, status, command):
    command(body)
    assert cli.main(["trial"]) == status


def test_a_command_gets_its_own_arguments(command, capsys):
    command("print(arguments)")
    assert cli.main(["trial", "--help", "-V", "x"]) == 0
    assert capsys.readouterr().out == "['--help', '-V', 'x']\n"


def test_a_missing_extra_is_named_with_its_cure(command, capsys):
    command("raise ModuleNotFoundError(\"No module named 'matplotlib'\", name='matplotlib.pyplot')")
    assert cli.main(["trial"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: `artbp trial` needs matplotlib, which is not installed.",
        'Install it with `pip install "artbp[plot]"`.',
    ]


def test_any_other_missing_module_is_a_defect_and_shows(command):
    command("import artbp.no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        cli.main(["trial"])


def test_an_interrupt_ends_quietly(command, capsys):
    command("raise KeyboardInterrupt")
    assert cli.main(["trial"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to a child")
def test_ctrl_c_while_a_command_runs():
    code = (
        "import signal, sys, types; from artbp import cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background inherits it as ignored
        "trial = types.ModuleType('artbp_trial'); sys.modules['artbp_trial'] = trial\n"
        "def wait(arguments):\n"
        "    import time; print('ready', flush=True); time.sleep(60)\n"
        "trial.main = wait; cli._exists = lambda module: True\n"
        "cli.COMMANDS['trial'] = cli.Command('artbp_trial', 'main', '')\n"
        "sys.exit(cli.main(['trial']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"ready"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors.strip()) == (130, b"interrupted")


@pytest.mark.skipif(sys.platform == "win32", reason="a closed pipe is another error there")
def test_a_reader_that_has_gone_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "artbp", "--help"], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")
