"""docs/start-here.ipynb is what docs/start-here.md makes it, and its cells print what it says."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
MAKE = runpy.run_path(str(DOCS / "make_notebook.py"))
PAGE = (DOCS / "start-here.md").read_text(encoding="utf-8")
NOTEBOOK: dict[str, Any] = json.loads((DOCS / "start-here.ipynb").read_text(encoding="utf-8"))
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def test_the_notebook_is_made_from_the_page():
    made = MAKE["notebook"](PAGE)
    assert (DOCS / "start-here.ipynb").read_text(encoding="utf-8") == made, "run `python docs/make_notebook.py`"


def test_nothing_of_the_page_is_lost():
    words = ""
    for cell in NOTEBOOK["cells"]:
        words += "".join(cell["source"])
        words += "".join("".join(output["text"]) for output in cell.get("outputs", ()))
    fences = re.compile(r"^```(python|text)?$", re.MULTILINE)
    assert MAKE["HERE"] in PAGE
    page = fences.sub("", PAGE.replace(MAKE["HERE"], MAKE["ORIGIN"]))
    assert "".join(words.split()) == "".join(page.split())


def test_cells_are_prose_code_and_what_it_printed():
    prose, code, rest = MAKE["cells"]("Say 1:\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\nSaid.\n")
    assert (prose["cell_type"], prose["source"]) == ("markdown", ["Say 1:"])
    assert code["source"] == ["print(1)"]
    assert code["outputs"][0]["text"] == ["1\n"]
    assert rest["source"] == ["Said."]


def test_the_cells_run_and_print_what_the_notebook_says(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {}
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("".join(cell["source"]), names)
        said = "".join(text for output in cell["outputs"] for text in output["text"])
        assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", said)
        for found, expected in zip(NUMBER.findall(printed.getvalue()), NUMBER.findall(said), strict=True):
            assert float(found) == pytest.approx(float(expected), rel=0.1, abs=0.01)
    names["plt"].close("all")
    assert names["found"].wrong_sign
    assert names["truncated"][-1] > 1
    assert names["reweighted"][-1] == pytest.approx(-1 / 3, abs=0.02)
