"""Parse the output of SELECT and SELECT JSON in cqlsh, and JSON rows, into the form that COPY writes.

The columns tell which table it is.
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
"""A line of a session: the prompt with what was typed behind it, and where a statement went on."""
_SESSION = re.compile(rf"^(?:{_PROMPT.pattern}|{_WARNINGS}[ \t]*\r?\n(?:.*\S.*(?:\n|\Z))*)", re.MULTILINE)
_FIRST_OBJECT = re.compile(r"\s*\[?\s*\{[^}]*")
_FIELD = re.compile(r'"(\w+)"\s*:')
# What no node of a ring snapshot and no joining node has.
_TABLE_COLUMNS = frozenset({"time", "range_end", "timestamp", "streams_timestamp", "stream_id", "node_state"})


def is_cqlsh_table(text: str) -> bool:
    """Whether a text is a table as `cqlsh` prints it: its first two lines are names and a rule of dashes."""
    lines = [line for _, line in _lines(text, 2)]
    return len(lines) == 2 and _RULE.fullmatch(lines[1]) is not None


def is_json_rows(text: str) -> bool:
    """Whether a text is JSON with a row of an export an object: one object a line, or a list of objects."""
    first = _FIRST_OBJECT.match(text)
    return first is not None and not _TABLE_COLUMNS.isdisjoint(_FIELD.findall(first[0]))


def read_cqlsh_table(source: str, text: str) -> tuple[list[str], ExportRows]:
    """The columns of a printed table, and its rows; `(n rows)` at its end says whether it is whole.

    Raises:
        InputError: it is cut, or a row has other columns.
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
    """The columns of objects, and a row of each: a list of objects, or an object a line.

    Raises:
        InputError: it is no JSON, a row is no object, or has other columns than the first.
    """
    if text.lstrip()[:1] == "[":
        value = parse_json(text, source)
        assert isinstance(value, list)
        return _rows_from_objects(source, enumerate(value, start=1), "row")
    return _rows_from_objects(source, _parse_lines(source, _lines(text)))


def strip_session(text: str) -> str:
    """A text that was copied from a session of cqlsh without its prompts and warnings; lines keep their numbers."""
    return _SESSION.sub(lambda found: "\n" * found[0].count("\n"), text)


def _lines(text: str, most: int | None = None) -> Iterator[tuple[int, str]]:
    """The lines of results that hold something, stripped, with their numbers; no more than `most`.

    Prompts and warnings of a session are left out. cqlsh does not mark where warnings end: the line above a rule of
    dashes, and a prompt, are none.
    """
    lines, found, warned = _filled_lines(text), 0, False
    line, after = next(lines, None), next(lines, None)
    while line is not None and (most is None or found < most):
        number, content = line
        if content == _WARNINGS:
            warned = True
        elif _PROMPT.fullmatch(content):
            warned = False
        elif not warned or (after is not None and _RULE.fullmatch(after[1])):
            warned = False
            found += 1
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
    """The lines between the rule and the count, which has to be theirs."""
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
        # A terminal gets the header again with every page.
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
    """The JSON of each line, with its number."""
    return ((number, parse_json(line, f"{source}, line {number}")) for number, line in lines)


def _rows_from_objects(
    source: str, found: Iterable[tuple[int, object]], what: str = "line"
) -> tuple[list[str], ExportRows]:
    """The columns of the first object, and every object with the same ones."""
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
    return {str(name): _FORMATTERS.get(str(name), _format_set)(each) for name, each in value.items()}


def _format_set(value: object) -> str:
    """A value as COPY writes it; a list is a set, and lists in it are tuples."""
    if value is None or value == []:
        return ""
    if isinstance(value, list):
        return "{" + ", ".join(map(_format_tuple, value)) + "}"
    return _format_scalar(value)


def _format_tuple(value: object) -> str:
    return f"({', '.join(map(_format_scalar, value))})" if isinstance(value, list) else _format_scalar(value)


def _format_description(value: object) -> str:
    """The list of tuples that a description of the first format is: in each the streams are a list."""
    if not isinstance(value, list):
        return _format_set(value)
    entries = [each if isinstance(each, list) else [each] for each in value]
    return "[" + ", ".join(f"({', '.join(map(_format_list, entry))})" for entry in entries) + "]"


def _format_list(value: object) -> str:
    return f"[{', '.join(map(_format_tuple, value))}]" if isinstance(value, list) else _format_scalar(value)


def _format_scalar(value: object) -> str:
    if value is None or isinstance(value, (list, dict)):
        return "null"
    return str(value)


_FORMATTERS: Mapping[str, Callable[[object], str]] = {"description": _format_description}
"""What JSON does not tell of its lists: the columns whose value is no set."""
