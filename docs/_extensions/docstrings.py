"""Docstrings: none may be missing, and a property's may hold a colon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)


def complain(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """A public name without a docstring is a warning, and so an error in a strict build."""
    if not any(line.strip() for line in lines):
        logger.warning("%s %s has no docstring", what, name)


def keep_whole(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Napoleon takes what a property's first line has before a colon for a type; an empty comment distracts it."""
    if what in ("property", "attribute"):
        lines[:0] = ["..", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", complain, priority=300)
    app.connect("autodoc-process-docstring", keep_whole, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
