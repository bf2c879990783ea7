"""Read the rows of an exported table from any text form: COPY's CSV, SELECT and SELECT JSON in cqlsh, and JSON rows.

The columns identify the table. Each form shows whether the text is complete: the line end, the row count or the JSON.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping

from cdc_platform.errors import InputError
from cdc_platform.importing.formats.cql_values import HALF_WRITTEN
from cdc_platform.importing.formats.strict_json import parse_json

TextRows = Iterator[tuple[int, Mapping[str, object]]]
"""Rows as (line, values by column). A value is text in COPY's notation, with null as empty, or a value of JSON."""

_EXPORT_AGAIN = f"{HALF_WRITTEN}; export it again"
_LINE = re.compile(r"[^\r\n]*")
_RULE = re.compile(r"-+(\+-++)*+")
_END = re.compile(r"\((\d{1,12}) rows?\)", re.ASCII)
_JSON_COLUMN = "[json]"
_PAGER_LINE = "---MORE---"
_WARNINGS = "Warnings :"
_PROMPT = re.compile(r"[ \t]*(?:[^\s@]{1,255}@)?cqlsh(?::\"?\w{1,192}\"?)?> ?.*|[ \t]*\.\.\. .*")
"""A line of a session: the prompt with a typed statement, or the continuation of a statement."""
_SESSION = re.compile(rf"^(?:{_PROMPT.pattern}|{_WARNINGS}[ \t]*\r?\n(?:.*\S.*(?:\n|\Z))*)", re.MULTILINE)
_FIRST_OBJECT = re.compile(r"\s*\[?\s*\{[^}]*")
_FIELD = re.compile(r'"(\w+)"\s*:')
# Columns that neither nodes of ring snapshots nor joining nodes have.
_TABLE_COLUMNS = frozenset(
    {
        *("time", "range_end", "streams", "description", "timestamp", "stream_id"),
        *("streams_timestamp", "key", "keyspace_name", "table_name", "node_state"),
    }
)
# Match line by line: a file object in memory would store the text a second time, at four bytes per character.
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ENDS_WHOLE = re.compile(r'.*[}\]"]|.*([+-]\d{4}|Z)|', re.DOTALL)


def read_text_table(source: str, text: str) -> tuple[list[str], TextRows]:
    """Return the columns and the rows of a text in any form.

    Raises:
        InputError: the text is empty, truncated or malformed.
    """
    if not text.strip():
        raise InputError(f"{source} is empty: {HALF_WRITTEN}; export it again")
    if is_cqlsh_table(text):
        return _read_cqlsh_table(source, text)
    return _read_json_rows(source, text) if is_json_rows(text) else _read_csv(source, text)


def copy_text(value: object, cql_type: str) -> str:
    """Return a value of a row as COPY writes it; JSON does not show whether an array is a list, a set or a tuple."""
    if isinstance(value, str):
        return value
    if value is None or value == []:
        return ""
    if not isinstance(value, list):
        return _format_scalar(value)
    if not cql_type.startswith("list"):
        return "{" + ", ".join(map(_format_tuple, value)) + "}"
    entries = [item if isinstance(item, list) else [item] for item in value]
    return "[" + ", ".join(f"({', '.join(map(_format_list, entry))})" for entry in entries) + "]"


def is_cqlsh_table(text: str) -> bool:
    """Return True if a text is a table as `cqlsh` prints it: its first two lines are names and a rule of dashes."""
    lines = [line for _, line in _lines(text, 2)]
    return len(lines) == 2 and _RULE.fullmatch(lines[1]) is not None


def is_json_rows(text: str) -> bool:
    """Return True if a text is JSON with one object per exported row: one object per line, or a list of objects."""
    first = _FIRST_OBJECT.match(text)
    return first is not None and not _TABLE_COLUMNS.isdisjoint(_FIELD.findall(first[0]))


def _read_cqlsh_table(source: str, text: str) -> tuple[list[str], TextRows]:
    """Read a printed table; the `(n rows)` at its end shows whether it is complete."""
    lines = _lines(text)
    _, head = next(lines)
    header = _cells(head)
    if header == [_JSON_COLUMN]:
        next(lines)
        return _rows_from_objects(source, _parse_json_lines(source, _table_body(source, lines)))
    return header, _printed_rows(source, lines, header, head)


def _read_json_rows(source: str, text: str) -> tuple[list[str], TextRows]:
    """Read JSON objects: a list of objects, or one object per line."""
    if text.lstrip()[:1] == "[":
        value = parse_json(text, source)
        assert isinstance(value, list)
        return _rows_from_objects(source, enumerate(value, start=1), "row")
    return _rows_from_objects(source, _parse_json_lines(source, _lines(text)))


def strip_session(text: str) -> str:
    """Remove prompts and warnings from text that was copied from a cqlsh session; lines keep their numbers."""
    return _SESSION.sub(lambda session: "\n" * session[0].count("\n"), text)


def _lines(text: str, most: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines of results, stripped, with their numbers; at most `most`.

    Prompts and warnings of a session are skipped. cqlsh does not mark where warnings end, but the line above a rule of
    dashes, and a prompt, are not part of them.
    """
    lines, count, warned = _filled_lines(text), 0, False
    line, after = next(lines, None), next(lines, None)
    while line is not None and (most is None or count < most):
        number, content = line
        if content == _WARNINGS:
            warned = True
        elif _PROMPT.fullmatch(content):
            warned = False
        elif not warned or (after is not None and _RULE.fullmatch(after[1])):
            warned = False
            count += 1
            yield number, content
        line, after = after, next(lines, None)


def _filled_lines(text: str) -> Iterator[tuple[int, str]]:
    number, at = 1, 0
    while at <= len(text):
        line = _LINE.match(text, at)
        assert line is not None
        if line[0].strip() and line[0].strip() != _PAGER_LINE:
            yield number, line[0].strip()
        at = line.end() + (2 if text[line.end() : line.end() + 2] == "\r\n" else 1)
        number += 1


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def _table_body(source: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the lines between the rule and the row count, and check their number against it."""
    count = 0
    for number, line in lines:
        end = _END.fullmatch(line)
        if end is None:
            count += 1
            yield number, line
            continue
        if int(end[1]) != count:
            raise InputError(f"{source}, line {number}: {line}, but {count} are printed: {_EXPORT_AGAIN}")
        after = next(lines, None)
        if after is not None:
            raise InputError(f"{source}, line {after[0]}: {after[1][:60]!r} follows the table; a file holds one table")
        return
    raise InputError(f"{source} has no (n rows) at its end: {_EXPORT_AGAIN}")


def _printed_rows(source: str, lines: Iterator[tuple[int, str]], header: list[str], head: str) -> TextRows:
    # cqlsh repeats the header for every page of a terminal.
    rows = ((number, line) for number, line in lines if line != head and not _RULE.fullmatch(line))
    for number, line in _table_body(source, rows):
        cells = _cells(line)
        _check_width(source, number, cells, header)
        yield number, {name: "" if cell == "null" else cell for name, cell in zip(header, cells, strict=True)}


def _check_width(source: str, line: int, cells: list[str], header: list[str]) -> None:
    if len(cells) != len(header):
        cut = f": {_EXPORT_AGAIN}" if len(cells) < len(header) else ""
        raise InputError(f"{source}, line {line} has {len(cells)} columns where the header names {len(header)}{cut}")


def _parse_json_lines(source: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, object]]:
    """Yield the JSON of each line, with its number."""
    return ((number, parse_json(line, f"{source}, line {number}")) for number, line in lines)


def _rows_from_objects(
    source: str, objects: Iterable[tuple[int, object]], unit: str = "line"
) -> tuple[list[str], TextRows]:
    """Return the columns of the first object, and all objects as rows with the same columns."""
    rows = (_json_row(source, unit, number, value) for number, value in objects)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{source} has no row to identify its table by; export it with COPY")
    header = list(first[1])

    def checked_rows() -> TextRows:
        yield first
        for number, row in rows:
            if row.keys() != set(header):
                raise InputError(
                    f"{source}, {unit} {number} has columns {', '.join(row)[:80]}, the first {', '.join(header)[:80]}"
                )
            yield number, row

    return header, checked_rows()


def _json_row(source: str, unit: str, number: int, value: object) -> tuple[int, dict[str, object]]:
    if not isinstance(value, Mapping):
        raise InputError(f"{source}, {unit} {number} is no JSON object; SELECT JSON writes one a row")
    return number, {str(name): field for name, field in value.items()}


def _format_tuple(value: object) -> str:
    return f"({', '.join(map(_format_scalar, value))})" if isinstance(value, list) else _format_scalar(value)


def _format_list(value: object) -> str:
    return f"[{', '.join(map(_format_tuple, value))}]" if isinstance(value, list) else _format_scalar(value)


def _format_scalar(value: object) -> str:
    return "null" if value is None or isinstance(value, (list, dict)) else str(value)


def _read_csv(source: str, text: str) -> tuple[list[str], TextRows]:
    """Read a CSV file. A header alone is an empty table."""
    # A set of a few thousand stream IDs is one field, but the csv module's default limit is 128 KiB.
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))
    reader = csv.reader((line[0] for line in _LINES.finditer(text)), strict=True)
    header = [name.strip() for name in _next_row(source, reader) or []]
    return header, _csv_rows(source, reader, header, ends_whole=text.endswith("\n"))


def _next_row(source: str, reader: Iterator[list[str]]) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        is_cut = "end of data" in str(error)
        reason = f"a quote is open at its end: {_EXPORT_AGAIN}" if is_cut else str(error)
        raise InputError(f"{source} is no whole CSV file: {reason}") from None


def _csv_rows(source: str, reader: Iterator[list[str]], header: list[str], *, ends_whole: bool) -> TextRows:
    line, last = 1, ""
    for line, row in enumerate(iter(lambda: _next_row(source, reader), None), start=2):
        if not row:
            continue
        _check_width(source, line, row, header)
        last = row[-1]
        yield line, dict(zip(header, row, strict=True))
    if line == 1 and not ends_whole:
        raise InputError(
            f"{source} ends in its header, without a line end: {_EXPORT_AGAIN}, or end the line if the table is empty"
        )
    # A truncated number or time can still parse; only the line end proves that it is complete.
    if not ends_whole and not _ENDS_WHOLE.fullmatch(last):
        raise InputError(
            f"{source}, line {line} ends in {last[-30:]!r} without a line end: {_EXPORT_AGAIN}, or end the line if the "
            "file is complete"
        )
