"""Parse the output of SELECT and SELECT JSON in cqlsh, and JSON rows, into the form that COPY writes.

The columns identify the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from cdc_platform.errors import InputError
from cdc_platform.importing.formats.cells import HALF_WRITTEN, ExportRows
from cdc_platform.importing.formats.strict_json import parse_json

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
_TABLE_COLUMNS = frozenset({"time", "range_end", "timestamp", "streams_timestamp", "stream_id", "node_state"})


def is_cqlsh_table(text: str) -> bool:
    """Return True if a text is a table as `cqlsh` prints it: its first two lines are names and a rule of dashes."""
    lines = [line for _, line in _lines(text, 2)]
    return len(lines) == 2 and _RULE.fullmatch(lines[1]) is not None


def is_json_rows(text: str) -> bool:
    """Return True if a text is JSON with one object per exported row: one object per line, or a list of objects."""
    first = _FIRST_OBJECT.match(text)
    return first is not None and not _TABLE_COLUMNS.isdisjoint(_FIELD.findall(first[0]))


def read_cqlsh_table(source: str, text: str) -> tuple[list[str], ExportRows]:
    """Return the columns and rows of a printed table; the `(n rows)` at its end shows whether it is complete.

    Raises:
        InputError: it is truncated, or a row has other columns.
    """
    lines = _lines(text)
    _, head = next(lines)
    header = _cells(head)
    if header == [_JSON_COLUMN]:
        next(lines)
        return _rows_from_objects(
            source, ((line, parse_json(row, f"{source}, line {line}")) for line, row in _table_body(source, lines))
        )
    return header, _table_rows(source, lines, header, head)


def read_json_rows(source: str, text: str) -> tuple[list[str], ExportRows]:
    """Return the columns and rows of JSON objects: a list of objects, or one object per line.

    Raises:
        InputError: it is not JSON, a row is not an object, or has other columns than the first.
    """
    if text.lstrip()[:1] == "[":
        value = parse_json(text, source)
        assert isinstance(value, list)
        return _rows_from_objects(source, enumerate(value, start=1), "row")
    return _rows_from_objects(source, _parse_lines(source, _lines(text)))


def strip_session(text: str) -> str:
    """Remove prompts and warnings from text that was copied from a cqlsh session; lines keep their numbers."""
    return _SESSION.sub(lambda found: "\n" * found[0].count("\n"), text)


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
            raise InputError(
                f"{source}, line {number} says {line}, and there are {count}: {HALF_WRITTEN}; export it again"
            )
        after = next(lines, None)
        if after is not None:
            raise InputError(
                f"{source}, line {after[0]}: {after[1][:60]!r} is behind the table's end; a file holds one"
            )
        return
    raise InputError(f"{source} has no (n rows) at its end: {HALF_WRITTEN}; export it again")


def _table_rows(source: str, lines: Iterator[tuple[int, str]], header: list[str], head: str) -> ExportRows:
    def rows() -> Iterator[tuple[int, str]]:
        # cqlsh repeats the header for every page of a terminal.
        return ((number, line) for number, line in lines if line != head and not _RULE.fullmatch(line))

    for number, line in _table_body(source, rows()):
        cells = _cells(line)
        if len(cells) != len(header):
            cut = f": {HALF_WRITTEN}; export it again" if len(cells) < len(header) else ""
            raise InputError(
                f"{source}, line {number} has {len(cells)} columns where the header names {len(header)}{cut}"
            )
        yield number, {name: "" if cell == "null" else cell for name, cell in zip(header, cells, strict=True)}


def _parse_lines(source: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, object]]:
    """Yield the JSON of each line, with its number."""
    return ((number, parse_json(line, f"{source}, line {number}")) for number, line in lines)


def _rows_from_objects(
    source: str, found: Iterable[tuple[int, object]], what: str = "line"
) -> tuple[list[str], ExportRows]:
    """Return the columns of the first object, and all objects as rows with the same columns."""
    values = iter(found)
    first = next(values, None)
    if first is None:
        raise InputError(f"{source} holds no row, so that nothing says which table it is; export it with COPY")
    header = list(_row_from_object(source, what, *first))

    def rows() -> ExportRows:
        yield first[0], _row_from_object(source, what, *first)
        for number, value in values:
            row = _row_from_object(source, what, number, value)
            if row.keys() != set(header):
                raise InputError(
                    f"{source}, {what} {number} has columns {', '.join(row)[:80]}, the first {', '.join(header)[:80]}"
                )
            yield number, row

    return header, rows()


def _row_from_object(source: str, what: str, number: int, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InputError(f"{source}, {what} {number} is no JSON object; SELECT JSON writes one a row")
    return {str(name): _FORMATTERS.get(str(name), _format_set)(field) for name, field in value.items()}


def _format_set(value: object) -> str:
    """Format a value as COPY does; a list is a set, and lists in it are tuples."""
    if value is None or value == []:
        return ""
    if isinstance(value, list):
        return "{" + ", ".join(map(_format_tuple, value)) + "}"
    return _format_scalar(value)


def _format_tuple(value: object) -> str:
    return f"({', '.join(map(_format_scalar, value))})" if isinstance(value, list) else _format_scalar(value)


def _format_description(value: object) -> str:
    """Format a V1 description, a list of tuples whose streams are lists."""
    if not isinstance(value, list):
        return _format_set(value)
    entries = [item if isinstance(item, list) else [item] for item in value]
    return "[" + ", ".join(f"({', '.join(map(_format_list, entry))})" for entry in entries) + "]"


def _format_list(value: object) -> str:
    return f"[{', '.join(map(_format_tuple, value))}]" if isinstance(value, list) else _format_scalar(value)


def _format_scalar(value: object) -> str:
    if value is None or isinstance(value, (list, dict)):
        return "null"
    return str(value)


_FORMATTERS: Mapping[str, Callable[[object], str]] = {"description": _format_description}
"""Formatters of columns whose lists are not sets, which JSON does not show."""
