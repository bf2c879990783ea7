"""The worked examples of the documents about basic operations and column types, as cqlsh shows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cdc_platform.cdclog import ScriptResult
from cdc_platform.cql import get_log_columns, us_from_timeuuid
from cdc_platform.cql.types import timeuuid_sort_key

DATA = Path(__file__).parents[1] / "data"
KEYSPACE = "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1};\n"


@dataclass
class Output:
    """Output of a document after some statements.

    It has a kind (`what`), a condition on its rows (`where`), and its lines.
    """

    statements: str
    what: str
    where: dict[str, Any]
    lines: list[list[str]] = field(default_factory=list)


@dataclass
class Example:
    """One example: its statements, in order, with the output in between."""

    document: str
    title: str
    shown: list[Output] = field(default_factory=list)


def _examples(document: str) -> Iterator[Example]:
    example: Example | None = None
    statements: list[str] = []
    reading: Output | None = None
    for line in (DATA / f"{document}.cqlsh").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            if example is not None:
                yield example
            example, statements, reading = Example(document, line[3:]), [], None
        elif line.startswith("= "):
            assert example is not None
            kind, _, where = line[2:].partition(" ")
            reading = Output("\n".join(statements), kind, _condition(where))
            example.shown.append(reading)
        elif line.startswith(" ") and reading is not None and "|" in line:
            reading.lines.append([cell.strip() for cell in line.split("|")])
        elif line.strip() and not line.startswith("#"):
            reading = None
            statements.append(line)
    assert example is not None
    yield example


def _condition(text: str) -> dict[str, Any]:
    name, _, value = text.partition(" = ")
    return {name: int(value)} if value else {}


EXAMPLES = [example for name in ("basic_operations", "advanced_column_types") for example in _examples(name)]


def _value(text: str, names: dict[str, UUID]) -> Any:
    """Return cqlsh's text as a value of the command's JSON, with $names as the timeuuids that they represent."""
    if text in ("null", "True"):
        return {"null": None, "True": True}[text]
    if text[0] in "{[":
        return _collection(text, names)
    if text.startswith("$"):
        return names[text]
    if text.startswith("'"):
        return text[1:-1]
    return UUID(text) if "-" in text[1:] else int(text)


def _collection(text: str, names: dict[str, UUID]) -> Any:
    parts = [part.split(": ") for part in text[1:-1].split(", ")]
    if len(parts[0]) == 1:
        return [_value(part[0], names) for part in parts]
    if parts[0][0].isidentifier():
        return {part[0]: _value(part[1], names) for part in parts}
    return [[_value(part[0], names), _value(part[1], names)] for part in parts]


def _bind(text: str, pairs: Any, names: dict[str, UUID]) -> None:
    """Assign the $names in a documented map to the keys at the same positions."""
    unknown = [name for name in re.findall(r"\$[a-z](?=:)", text) if name not in names]
    if unknown:
        names |= dict(zip(unknown, (key for key, _ in pairs), strict=True))


def _assert_rows(expected: Output, rows: list[dict[str, Any]], names: dict[str, UUID]) -> None:
    columns, *lines = expected.lines
    assert len(rows) == len(lines)
    for line, row in zip(lines, rows, strict=True):
        for column, text in zip(columns, line, strict=True):
            value = us_from_timeuuid(row[column]) if column == "cdc$time" else row[column]
            _bind(text, value, names)
            assert value == _value(text, names), (column, text)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.document}: {example.title}")
def test_the_documented_examples_are_reproduced(example: Example, rehearsed: Callable[[str], ScriptResult]) -> None:
    """Log rows, contents and types of the log's columns match the documents; the replay always equals the table."""
    assert example.shown
    names: dict[str, UUID] = {}
    compared = 0
    for output in example.shown:
        result = rehearsed(KEYSPACE + output.statements)
        assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
        (table,) = result.tables
        assert table.replayed in (None, table.base)
        if output.what == "types":
            schema = next(outcome.schema for outcome in reversed(result.outcomes) if outcome.schema is not None)
            types = {column.name: column.type.cql for column in get_log_columns(schema)}
            assert {name: types[name] for name, _ in output.lines} == dict(output.lines)
        elif output.what == "base":
            chosen = [row for row in table.base if output.where.items() <= row.items()]
            assert list(chosen[0] if chosen else output.lines[0]) == output.lines[0]
            _assert_rows(output, chosen, names)
        else:
            rows = [row for outcome in result.outcomes for row in outcome.rows]
            _assert_rows(output, rows[compared:], names)
            compared = len(rows)
    keys = [names[name] for name in sorted(names)]
    assert keys == sorted(keys, key=timeuuid_sort_key)


def test_counters_are_refused_with_the_documented_message(rehearsed: Callable[[str], ScriptResult]) -> None:
    """Users search for this message."""
    statement = "CREATE TABLE ks.t (pk int PRIMARY KEY, c counter) WITH cdc = {'enabled': true};"
    outcome = rehearsed(KEYSPACE + statement).outcomes[-1]
    assert "Cannot create CDC log for table ks.t. Counter support not implemented" in str(outcome.error)
