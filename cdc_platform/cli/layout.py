"""Lay out tables and facts as lines of a given width.

Words, such as IDs and times, are never broken. A table that is too wide drops its last columns, or is printed one field
per line.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

_COLUMN_GAP = 3
_UNLIMITED_WIDTH = 100_000
_DEFAULT_WIDTH = 80


def get_page_width() -> int:
    """Return the characters of a line: `COLUMNS` if set, else the terminal's width, or no limit in a file or a pipe."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    if sys.stdout is None or not sys.stdout.isatty():
        return _UNLIMITED_WIDTH
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):
        return _DEFAULT_WIDTH


def format_table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, essential: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table, without its title. Columns whose name begins with `>` are right-aligned.

    Columns that do not fit are dropped from the end, down to the first `essential` ones, and a last line names them. If
    those do not fit either, or without `essential`, each row becomes a block of lines.
    """
    names = [name.removeprefix(">") for name in columns]
    cells = [names, *rows]
    natural = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    least = [max(map(_longest_word, column)) for column in zip(*cells, strict=True)]
    shown = len(names)
    while essential is not None and shown > essential and sum(least[:shown]) > _available_width(width, shown):
        shown -= 1
    if sum(least[:shown]) > _available_width(width, shown):
        yield from _record_lines(names, rows, width)
        return
    dropped, names, columns = names[shown:], names[:shown], columns[:shown]
    rows = [row[:shown] for row in rows]
    widths = _column_widths(natural[:shown], least[:shown], _available_width(width, shown))
    yield ""
    yield from _row_lines(names, widths, columns)
    yield f" {'─' * (sum(widths) + _COLUMN_GAP * (len(widths) - 1))}"
    for row in rows:
        yield from _row_lines(row, widths, columns)
    if dropped:
        yield from _wrap(f" not shown at {width} columns: {', '.join(dropped)}", width)
    yield ""


def _available_width(width: int, columns: int) -> int:
    """Return the characters that are left for the cells of a line."""
    return width - 1 - _COLUMN_GAP * (columns - 1)


def format_fact_lines(facts: Sequence[tuple[str, str]], width: int) -> Iterator[tuple[str, str]]:
    """Yield the name, padded to one width, and the text of each line. A continuation line has a blank name."""
    longest = max((cell_len(name) for name, _ in facts), default=0)
    for name, value in facts:
        for number, part in enumerate(_wrap(value, width - longest - 2)):
            yield _pad("" if number else name, longest), part


def _record_lines(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    for row in rows:
        yield ""
        for name, part in format_fact_lines(list(zip(names, row, strict=True)), width):
            yield f"{name}  {part}".rstrip()
    yield ""


def _row_lines(row: Sequence[str], widths: Sequence[int], columns: Sequence[str]) -> Iterator[str]:
    parts = [_wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, parts), default=0)):
        cells = [
            _pad(lines[number] if number < len(lines) else "", width, right=name.startswith(">"))
            for lines, width, name in zip(parts, widths, columns, strict=True)
        ]
        yield f" {(' ' * _COLUMN_GAP).join(cells)}".rstrip()


def _column_widths(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return the width of each column: its longest word plus a fair share of the remaining space, at most `natural`."""
    widths = list(least)
    remaining = room - sum(least)
    wanting = sorted(range(len(widths)), key=lambda column: natural[column] - least[column])
    for index, column in enumerate(wanting):
        given = min(natural[column] - least[column], remaining // (len(wanting) - index))
        widths[column] += given
        remaining -= given
    return widths


def _wrap(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    lines = textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def _longest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


def _pad(text: str, width: int, *, right: bool = False) -> str:
    blank = " " * max(width - cell_len(text), 0)
    return blank + text if right else text + blank
