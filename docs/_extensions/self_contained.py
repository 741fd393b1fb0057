"""A page asks no other host for anything when it is opened: no style, script, font, picture or frame from elsewhere.

Links that a reader may follow are another matter. Every page and style sheet is looked at once the build has ended; a
reference to another host is a warning, and so an error in a strict build.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)

# What a browser fetches by itself, and where it says so.
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "input": "src",
    "image": "href",
    "use": "href",
}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
ELSEWHERE = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)", re.IGNORECASE)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.in_style = tag == "style"
        if tag == "link" and FETCHED_LINKS & set(given.get("rel", "").lower().split()):
            self._look_at(given.get("href", ""))
        elif tag in FETCHED:
            self._look_at(given.get(FETCHED[tag], "") or given.get(f"xlink:{FETCHED[tag]}", ""))
        for candidate in given.get("srcset", "").split(","):
            self._look_at(candidate)
        self.found += IN_STYLE.findall(given.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.found += IN_STYLE.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def _look_at(self, address: str) -> None:
        if ELSEWHERE.match(address):
            self.found.append(address.strip())


def requests(text: str, kind: str) -> list[str]:
    """The addresses on other hosts that a browser would ask by itself; `kind` is the file's ending."""
    if kind == ".css":
        return IN_STYLE.findall(text)
    page = _Page()
    page.feed(text)
    return page.found


def look(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir).rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            for address in requests(path.read_text(encoding="utf-8"), path.suffix):
                logger.warning("%s asks another host: %s", path.relative_to(app.outdir), address)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", look)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
