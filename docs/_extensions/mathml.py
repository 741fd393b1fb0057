"""Formulas as MathML, which every current browser draws by itself: no script, and no other host is asked.

docutils already translates LaTeX for its own writer; this hands the translation to Sphinx. What it cannot translate is
a warning, and so an error in a strict build.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

ACCENTED = re.compile(r"\\(?:tilde|bar|hat|dot|vec) *(?:\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z])")
DIGITS = re.compile(r"(\\[dt]?frac) *(\d) *(\d)")

logger = logging.getLogger(__name__)


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def visit_display(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="formula"))
    translator.body.append(_mathml(node, as_block=True))
    if node["number"]:
        translator.body.append(f'<span class="eqno">({node["number"]})</span>')
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def _mathml(node: nodes.Element, as_block: bool) -> str:
    formula = node.astext()
    try:
        return tex(formula, as_block)
    except MathError as error:
        logger.warning("a formula cannot be written as MathML: %s\n%s", error, formula, location=node)
        return f"<code>{escape(formula)}</code>"


def tex(formula: str, as_block: bool = False) -> str:
    """A formula in LaTeX as MathML, and around what docutils gets wrong."""
    # TeX takes one digit for an argument; docutils takes the whole number, and whatever follows it for the other.
    formula = DIGITS.sub(r"\1{\2}{\3}", formula)
    # A group of two around an accented letter: without it, docutils puts its subscript below instead of beside it.
    mathml = tex2mathml(ACCENTED.sub(r"{{}\g<0>}", formula), as_block=as_block)
    # A strut: the radical of a low letter alone would hang below its line. And a function's name is no infix operator.
    mathml = mathml.replace("<msqrt>", '<msqrt><mspace height="0.75em" depth="0.2em"></mspace>')
    return re.sub(r"<mo>(max|min)</mo>", r'<mo lspace="0em" rspace="0em">\1</mo>', mathml)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
