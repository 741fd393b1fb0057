"""The pages of the documentation, as the blocks of code that they show and the comments that say how to run them.

Comments, which no reader sees, are for what a page takes as given:

    <!-- setup                     a page's first names: Python that runs before its snippets
    import torch
    -->
    <!-- needs: lightning -->      the page's snippets run only where these modules are installed
    <!-- quick -->                 the shell commands that follow are run, in an empty folder, and not only parsed
    <!-- not run: why -->          the block that follows is shown, and not run, for the reason given

A block of ``text`` directly below one of ``python`` is what that one prints; `...` stands for anything.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
_COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
_FENCE = re.compile(r"^ *(?P<ticks>`{3,}|:{3,})(?:\{code-block\} *)?(?P<language>[^`]*)$")


@dataclass
class Block:
    """A fenced block: its language, its code, the line of its first line, and the comment right above it."""

    language: str
    code: str
    line: int
    mark: str = ""
    follows: bool = False  # whether only blank lines lie between it and the block before


@dataclass
class Page:
    """A page and what it shows."""

    path: Path
    blocks: list[Block]
    setup: str
    needs: list[str]

    @property
    def name(self) -> str:
        return self.path.relative_to(DOCS if DOCS in self.path.parents else ROOT).with_suffix("").as_posix()


def pages() -> list[Page]:
    """Every page of the site; what a build leaves in `docs/` is none."""
    paths = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
    return [read(path) for path in paths]


def read(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    blocks: list[Block] = []
    comments = {_line(text, found.start()): found for found in _COMMENT.finditer(text)}
    lines, number, mark, quiet = text.split("\n"), 0, "", False
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if number in comments:
            mark = comments[number][1].strip()
            number = _line(text, comments[number].end() - 1)
        elif opening:
            end = number + 1
            while lines[end].strip() != opening["ticks"]:
                end += 1
            code = textwrap.dedent("\n".join(lines[number + 1 : end]) + "\n")
            blocks.append(Block(opening["language"].strip(), code, number + 2, mark, quiet and bool(blocks)))
            number, mark, quiet = end, "", True
        elif lines[number].strip():
            mark, quiet = "", False
        number += 1
    words = [found[1].strip() for found in comments.values()]
    return Page(
        path,
        blocks,
        "\n".join(word.removeprefix("setup") for word in words if re.match(r"setup\n", word)),
        [name for word in words if word.startswith("needs:") for name in word.removeprefix("needs:").split()],
    )


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place)
