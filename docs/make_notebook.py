"""Makes start-here.ipynb from start-here.md, which is the one source of both: `python docs/make_notebook.py`.

Prose becomes text cells, each python block a code cell, and a text block behind it that cell's output.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "start-here.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
HERE = "This page is a notebook, too:\n[start-here.ipynb](start-here.ipynb)."
ORIGIN = "It is made from [a page](start-here.md) of the documentation."


def cells(page: str) -> list[dict[str, Any]]:
    """The cells of a page, in order."""
    found: list[dict[str, Any]] = []

    def prose(text: str) -> None:
        if text.strip():
            found.append({"cell_type": "markdown", "metadata": {}, "source": lines(text.strip())})

    position = 0
    for block in BLOCK.finditer(page):
        prose(page[position : block.start()])
        position = block.end()
        language, content = block.groups()
        if language == "python":
            source = lines(content.strip())
            found.append(
                {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
            )
        else:
            found[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines(content)}]
    prose(page[position:])
    return [{"id": f"cell-{number}", **cell} for number, cell in enumerate(found)]


def lines(text: str) -> list[str]:
    """As notebooks keep text: line by line, with the ends of lines."""
    return text.splitlines(keepends=True)


def notebook(page: str) -> str:
    """The notebook of a page, as the file holds it."""
    page = page.replace(HERE, ORIGIN)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells(page),
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.with_suffix(".ipynb").write_text(notebook(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
