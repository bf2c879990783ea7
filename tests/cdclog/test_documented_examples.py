"""The worked examples of the documents on basic operations and on column types, as cqlsh shows them."""

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
class Shown:
    """What a document shows after some statements: `what` it is of, `where` a row counts, and its lines."""

    statements: str
    what: str
    where: dict[str, Any]
    lines: list[list[str]] = field(default_factory=list)


@dataclass
class Example:
    """One example: its statements, in the order in which they run, with what is shown in between."""

    document: str
    title: str
    shown: list[Shown] = field(default_factory=list)


def _examples(document: str) -> Iterator[Example]:
    example: Example | None = None
    statements: list[str] = []
    reading: Shown | None = None
    for line in (DATA / f"{document}.cqlsh").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            if example is not None:
                yield example
            example, statements, reading = Example(document, line[3:]), [], None
        elif line.startswith("= "):
            assert example is not None
            what, _, where = line[2:].partition(" ")
            reading = Shown("\n".join(statements), what, _condition(where))
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
    """What cqlsh shows as the command's JSON has it; $names as the timeuuids that they stand for."""
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


def _bind(text: str, found: Any, names: dict[str, UUID]) -> None:
    """Let the $names in a shown map stand for the keys at their places."""
    unknown = [name for name in re.findall(r"\$[a-z](?=:)", text) if name not in names]
    if unknown:
        names |= dict(zip(unknown, (key for key, _ in found), strict=True))


def _assert_rows(shown: Shown, rows: list[dict[str, Any]], names: dict[str, UUID]) -> None:
    columns, *lines = shown.lines
    assert len(rows) == len(lines)
    for line, row in zip(lines, rows, strict=True):
        for column, text in zip(columns, line, strict=True):
            found = us_from_timeuuid(row[column]) if column == "cdc$time" else row[column]
            _bind(text, found, names)
            assert found == _value(text, names), (column, text)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.document}: {example.title}")
def test_the_documents_examples_come_out_as_shown(example: Example, rehearsed: Callable[[str], ScriptResult]) -> None:
    """Log rows, contents of the table and types of the log's columns; the replay equals the table throughout."""
    assert example.shown
    names: dict[str, UUID] = {}
    told = 0
    for shown in example.shown:
        result = rehearsed(KEYSPACE + shown.statements)
        assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
        (table,) = result.tables
        assert table.replayed in (None, table.base)
        if shown.what == "types":
            schema = next(outcome.schema for outcome in reversed(result.outcomes) if outcome.schema is not None)
            types = {column.name: column.type.cql for column in get_log_columns(schema)}
            assert {name: types[name] for name, _ in shown.lines} == dict(shown.lines)
        elif shown.what == "base":
            chosen = [row for row in table.base if shown.where.items() <= row.items()]
            assert list(chosen[0] if chosen else shown.lines[0]) == shown.lines[0]
            _assert_rows(shown, chosen, names)
        else:
            rows = [row for outcome in result.outcomes for row in outcome.rows]
            _assert_rows(shown, rows[told:], names)
            told = len(rows)
    keys = [names[name] for name in sorted(names)]
    assert keys == sorted(keys, key=timeuuid_sort_key)


def test_counters_are_refused_in_the_documents_words(rehearsed: Callable[[str], ScriptResult]) -> None:
    """The words that users search for."""
    statement = "CREATE TABLE ks.t (pk int PRIMARY KEY, c counter) WITH cdc = {'enabled': true};"
    outcome = rehearsed(KEYSPACE + statement).outcomes[-1]
    assert "Cannot create CDC log for table ks.t. Counter support not implemented" in str(outcome.error)
