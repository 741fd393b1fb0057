"""The code of a how-to page, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "docs" / "how-to"


def blocks(page: str, language: str = "python") -> list[str]:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def patched(diff: str, side: str) -> str:
    """The text before (`-`) or after (`+`) a diff."""
    return "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] in (" ", side))
