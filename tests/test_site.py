"""The site's own extensions: it asks no other host for anything, a check that is seen to fail; formulas are right."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))

import mathml  # noqa: E402
import self_contained  # noqa: E402


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<script src="//cdn.example.org/x.js"></script>',
        '<link rel="stylesheet" href="http://example.org/x.css">',
        '<link rel="preconnect" href="https://fonts.example.org">',
        '<img alt="" src="https://example.org/badge.svg">',
        '<img srcset="a.png 1x, https://example.org/b.png 2x">',
        '<iframe src="https://example.org"></iframe>',
        "<style>@import url('https://example.org/x.css');</style>",
        '<p style="background: url(https://example.org/x.png)">',
    ],
)
def test_a_request_is_noticed(html):
    assert len(self_contained.requests(html, ".html")) == 1


@pytest.mark.parametrize("css", ["@import '//example.org/x.css';", "src: url( 'https://example.org/x.woff2')"])
def test_a_request_of_a_style_sheet_is_noticed(css):
    assert len(self_contained.requests(css, ".css")) == 1


@pytest.mark.parametrize(
    "html",
    [
        '<a href="https://arxiv.org/abs/1705.08209">a link to follow</a>',
        '<link rel="canonical" href="https://example.org/page">',
        '<script src="_static/x.js"></script><img src="../x.svg"><link rel="stylesheet" href="x.css">',
        '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        "<p>https://example.org in the text</p>",
    ],
)
def test_what_is_fetched_from_here_or_by_the_reader_is_none(html):
    assert self_contained.requests(html, ".html") == []


@pytest.mark.skipif("ARTBP_SITE" not in os.environ, reason="no built site was named in ARTBP_SITE")
def test_the_built_site_asks_no_other_host():
    site = Path(os.environ["ARTBP_SITE"])
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert any(path.name == "index.html" for path in pages)
    found = {path: self_contained.requests(path.read_text(encoding="utf-8"), path.suffix) for path in pages}
    assert {path: addresses for path, addresses in found.items() if addresses} == {}


@pytest.mark.parametrize("formula", [r"\tfrac12 (s - 1)", r"\tfrac 12 (s - 1)", r"\tfrac{1}{2} (s - 1)"])
def test_a_half_is_one_over_two(formula):
    written = "".join(mathml.tex(formula).split())
    assert "<mn>1</mn><mn>2</mn></mfrac>" in written


def test_a_radical_reaches_down_to_its_line_and_a_function_name_is_no_infix():
    assert "<msqrt><mspace " in mathml.tex(r"\sqrt v")
    assert '<mo lspace="0em" rspace="0em">max</mo>' in mathml.tex(r"\max(0, 1)")
