"""The pages say what the results say: `docs/tables.py` makes every table and sentence anew, and they are compared."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load()
REGIONS = [
    pytest.param(path, found["name"], found["body"], id=f"{path.stem}: {found['name']}")
    for path in tables.pages()
    for found in tables.REGION.finditer(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "name", "body"), REGIONS)
def test_a_table_is_as_the_results_have_it(page, name, body):
    assert body == tables.TABLES[name](), f"write it anew: python docs/tables.py ({page.name})"


def test_every_table_is_on_a_page():
    assert {region.values[1] for region in REGIONS} == set(tables.TABLES)


def test_no_marker_stands_alone():
    for path in tables.pages():
        text = path.read_text(encoding="utf-8")
        markers = len(re.findall(r"<!-- numbers:", text)), len(re.findall(r"<!-- end -->", text))
        assert markers == (len(tables.REGION.findall(text)),) * 2, path


SENTENCES = [
    pytest.param(page, words, id=f"{page}: {words[:50]}") for page, found in tables.SENTENCES for words in found()
]


@pytest.mark.parametrize(("page", "words"), SENTENCES)
def test_a_sentence_says_what_the_results_say(page, words):
    path = ROOT / "README.md" if page == "README" else ROOT / "docs" / f"{page}.md"
    assert words in " ".join(path.read_text(encoding="utf-8").split())


def test_a_wrong_number_is_noticed():
    name = next(iter(tables.TABLES))
    right = f"Text.\n\n<!-- numbers: {name} -->\n{tables.TABLES[name]()}\n<!-- end -->\n\nText.\n"
    wrong = right.replace("16", "17")
    assert tables.written(right) == right
    assert wrong != right
    assert tables.written(wrong) == right


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0446123, 3, "0.0446"),
        (14.3315, 3, "14.3"),
        (179144.9, 2, "180,000"),
        (3.31e16, 2, "3.3·10¹⁶"),
        (-0.13508, 3, "−0.135"),
        (0.9996, 3, "1.00"),
        (9996.0, 3, "10,000"),
        (0.0, 3, "0"),
    ],
)
def test_numbers_are_written_as_by_hand(value, digits, text):
    assert tables.short(value, digits) == text
