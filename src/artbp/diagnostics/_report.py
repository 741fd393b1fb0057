"""Reports: dataclasses that print as a table and go to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from artbp.diagnostics._moments import Moments


class Report:
    """What a diagnostic returns. Tensors stay out of the table and out of JSON."""

    def to_dict(self) -> dict[str, Any]:
        """All but the tensors, as numbers, words, lists and dicts."""
        return {name: _plain(value) for name, value in vars(self).items() if not isinstance(value, Tensor | Moments)}

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON; what is infinite or not a number is null."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __str__(self) -> str:
        return table([[name.replace("_", " "), value] for name, value in self.to_dict().items()])


def _plain(value: Any) -> Any:
    if isinstance(value, Report):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(
    rows: Sequence[Sequence[Any]],
    header: Sequence[str] | None = None,
    above: Sequence[tuple[str, int]] = (),
    number: Callable[[float], str] = "{:.3g}".format,
) -> str:
    """Columns in line: words to the left, numbers to the right.

    `above` are headings of several columns, each with how many: a line over the header.
    """
    cells = [[_cell(value, number) for value in row] for row in rows]
    lines = [list(header), *cells] if header else cells
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    numbers = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(widths))]
    text = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in lines
    ]
    if header:
        text.insert(1, "  ".join("-" * width for width in widths))
    if above:
        spans = iter(widths)
        columns = [(words, [next(spans) for _ in range(count)]) for words, count in above]
        text.insert(0, "  ".join(words.center(sum(span) + 2 * len(span) - 2) for words, span in columns).rstrip())
    return "\n".join(text)


def brief(value: float) -> str:
    """A number in five characters, its sign not counted: 0.012, 2.72, 19.5, 195, 4072, 5e-16."""
    size = abs(value)
    if not math.isfinite(value) or not size:
        return f"{value + 0.0:g}"
    if size < 5e-4 or size >= 99_999.5:
        return f"{value:.0e}"
    digits = 3 if size < 0.9995 else 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{value:.{digits}f}"


def _cell(value: Any, number: Callable[[float], str]) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, float):
        if isinstance(value, dict):
            return ", ".join(f"{key}: {_cell(part, number)}" for key, part in value.items())
        if isinstance(value, list):
            return ", ".join(_cell(part, number) for part in value)
        return str(value)
    return number(value)
