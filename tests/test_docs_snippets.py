"""What the pages show is run: Python as it stands there, in order, a namespace for each page; commands are parsed.

How a page says what it takes as given, and what is too long to run, is in `tests/site_pages.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import site_pages
import tyro

from artbp import cli

PAGES = site_pages.pages()
RECIPES = site_pages.ROOT / "tests" / "recipes"
README = site_pages.read(site_pages.ROOT / "README.md")
SHELL = [(page, block) for page in [*PAGES, README] for block in page.blocks if block.language in ("sh", "console")]
COMMANDS = [
    pytest.param(page, line, id=f"{page.name}: {line[:60]}")
    for page, block in SHELL
    for line in block.code.replace("\\\n", " ").splitlines()
    if line.startswith(("artbp ", "python benchmarks/"))
]


class Parsed(BaseException):
    """Raised in place of what a command would do with its options."""


# A how-to page about another package is run by its own test, where that package is installed.
RUN_HERE = [page for page in PAGES if page.blocks and not (RECIPES / f"test_{page.path.stem}.py").exists()]


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    for module in page.needs:
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    run(page)


def run(page: site_pages.Page) -> dict[str, Any]:
    """Everything on the page; what a snippet prints is compared with the block of text below it."""
    names: dict[str, Any] = {"__name__": "__page__"}
    exec(compile(page.setup, f"{page.path} (setup)", "exec"), names)
    printed: str | None = None
    for block in page.blocks:
        if block.language == "python" and not block.mark.startswith("not run"):
            code = compile(
                "\n" * (block.line - 1) + block.code, str(page.path), "exec"
            )  # tracebacks have the page's lines
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            printed = out.getvalue()
        elif block.language == "text" and block.follows and printed is not None:
            assert_printed(block, printed)
            printed = None
        else:
            printed = None
    return names


def assert_printed(block: site_pages.Block, printed: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(block.code, printed, flags), (
        f"line {block.line} shows\n{block.code}\nand what is printed is\n{printed}"
    )


@pytest.mark.parametrize("block", [block for page in PAGES for block in page.blocks], ids=lambda block: str(block.line))
def test_a_block_that_is_not_run_says_why(block):
    if block.mark.startswith("not run"):
        assert len(block.mark.removeprefix("not run:").split()) >= 3


def test_wrong_output_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- setup\nx = 3\n-->\n```python\nprint(x)\n```\n\n```text\n3\n```\n", encoding="utf-8")
    run(site_pages.read(page))
    page.write_text(page.read_text(encoding="utf-8").replace("\n3\n", "\n4\n"), encoding="utf-8")
    with pytest.raises(AssertionError, match="line 9 shows"):
        run(site_pages.read(page))


def test_a_snippet_that_fails_is_noticed_and_a_marked_one_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: it takes a cluster -->\n```python\n1 / 0\n```\n", encoding="utf-8")
    run(site_pages.read(page))
    page.write_text("Text.\n\n```python\n\n1 / 0\n```\n", encoding="utf-8")
    with pytest.raises(ZeroDivisionError) as raised:
        run(site_pages.read(page))
    assert raised.traceback[-1].lineno + 1 == 5  # where it stands on the page


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_is_one_that_the_program_takes(page, line, monkeypatch):
    parse(line, monkeypatch)


def parse(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hands the options to the program's own parser, and goes no further."""

    def stop_after(function: Any) -> Any:
        def parse_and_stop(*arguments: Any, **options: Any) -> Any:
            function(*arguments, **options)
            raise Parsed

        return parse_and_stop

    monkeypatch.setattr(tyro, "cli", stop_after(tyro.cli))
    program, *words = shlex.split(line, comments=True)
    if program == "artbp" and words[0].startswith("-"):
        assert cli.main(words) == 0
        return
    if program == "python":  # a benchmark, from the repository's root
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop_after(argparse.ArgumentParser.parse_args))
        monkeypatch.chdir(site_pages.ROOT)
        monkeypatch.syspath_prepend(str(site_pages.ROOT / "benchmarks"))
        monkeypatch.setattr(sys, "argv", words[: words.index(">")] if ">" in words else words)
        with contextlib.suppress(Parsed), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(words[0], run_name="__main__")
        return
    assert words[0] in cli.available()
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop_after(argparse.ArgumentParser.parse_args))
    with pytest.raises(Parsed):
        cli.main(words)


@pytest.mark.parametrize("line", ["artbp lengths --alpha 4", "artbp plot --to x", "artbp train --law x"])
def test_a_command_with_a_wrong_option_is_noticed(line, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        parse(line, monkeypatch)


QUICK = [(page, block) for page, block in SHELL if block.mark == "quick"]


@pytest.mark.parametrize(("page", "block"), QUICK, ids=[f"{page.name}:{block.line}" for page, block in QUICK])
def test_a_quick_command_runs(page, block, tmp_path):
    scripts = Path(sys.executable).parent
    code = f'export PATH="{scripts}:$PATH"\n{block.code}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
