"""What becomes of the statements of a script, one by one and altogether."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from cdc_platform.cql import statements as s
from cdc_platform.cql.base_table import json_row
from cdc_platform.cql.conditions import Answer
from cdc_platform.cql.schema import TableSchema, log_columns
from cdc_platform.errors import PlatformError, WriteRefused
from cdc_platform.log.gaps import Gap
from cdc_platform.log.rows import Row

Became = Literal["done", "not applied", "passed over", "refused", "wrong"]
"""What becomes of a statement: a write is refused by the acceptance rule, all else that cannot be done is wrong."""
Tell = Callable[["Outcome"], object]
"""What is told of each statement as soon as that is over."""


@dataclass(frozen=True)
class Outcome:
    """What became of a statement.

    `logged` are its log rows, with the table of each; `schema` is the table that it defined; `answer` is what the
    client of a lightweight transaction gets, None of other statements.
    """

    statement: s.Statement
    error: PlatformError | None = None
    logged: Sequence[tuple[TableSchema, Row]] = ()
    schema: TableSchema | None = None
    answer: Answer | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its log rows as JSON has them."""
        return [json_row(log_columns(schema), row) for schema, row in self.logged]

    @property
    def became(self) -> Became:
        """In one word."""
        if isinstance(self.statement.body, s.PassedOver):
            return "passed over"
        if self.error is None:
            return "done" if self.answer is None or self.answer.applied else "not applied"
        return "refused" if isinstance(self.error, WriteRefused) else "wrong"

    @property
    def accepted(self) -> bool:
        """Whether it took effect."""
        return self.became == "done"

    @property
    def reason(self) -> str | None:
        """Why it did not take effect; None where it did."""
        body = self.statement.body
        if isinstance(body, s.PassedOver):
            return body.why
        if self.became == "not applied":
            return "a condition of IF does not hold"
        return None if self.error is None else str(self.error)

    @property
    def is_definition(self) -> bool:
        """Whether it is one of CREATE, ALTER and DROP."""
        return isinstance(self.statement.body, s.Definition)


@dataclass(frozen=True)
class TouchedTable:
    """A table that the script made or wrote to: its rows at the end, and the same rebuilt from its log.

    `replayed` is None where no log can tell: CDC is off, or the log holds keys alone. Both are made of the whole table
    once they are asked for. `missing` is what the log lacks of its table's writes. `row_ttl` is the column by which
    its rows expire.
    """

    name: str
    missing: list[Gap]
    shows: Callable[[], list[dict[str, Any]]]
    tells: Callable[[], list[dict[str, Any]]] | None
    row_ttl: str | None = None

    @cached_property
    def base(self) -> list[dict[str, Any]]:
        """Its rows, as JSON has them."""
        return self.shows()

    @cached_property
    def replayed(self) -> list[dict[str, Any]] | None:
        """The same as its log tells them."""
        return None if self.tells is None else self.tells()


class Tally:
    """What became of statements altogether, of which it holds the first of each kind alone."""

    def __init__(self) -> None:
        self.statements = 0
        self.expiring_rows = 0
        """Log rows that have a TTL."""
        self.first: dict[Became, tuple[int, Outcome]] = {}
        """The first statement that became each, with its number, from 1."""
        self._counts: dict[Became, Counter[str]] = {}

    def add(self, outcome: Outcome) -> None:
        """Count the next statement."""
        self.statements += 1
        became = outcome.became
        self.expiring_rows += sum([row.get("cdc$ttl") is not None for _, row in outcome.logged])
        if became not in self.first:
            self.first[became], self._counts[became] = (self.statements, outcome), Counter()
        self._counts[became][outcome.statement.kind] += 1

    @property
    def summary(self) -> dict[Became, dict[str, int]]:
        """How many statements of each kind became what; what none became is left out."""
        return {became: dict(sorted(kinds.items())) for became, kinds in sorted(self._counts.items())}


@dataclass(frozen=True)
class Result:
    """What became of a script, altogether and by statement, in order, and every table that it touched and left.

    `outcomes` is empty where they were told one by one. `left` tells of scripts of before, one line each, that were
    interrupted and cannot be finished.
    """

    tally: Tally
    outcomes: list[Outcome]
    tables: list[TouchedTable]
    left: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What its statements do that they may not be meant to do, one line each."""

    @property
    def summary(self) -> dict[Became, dict[str, int]]:
        """As the tally has it."""
        return self.tally.summary

    @property
    def wrong(self) -> Outcome | None:
        """The first statement that was wrong by itself."""
        return self._first("wrong")

    @property
    def refused(self) -> Outcome | None:
        """The first write that the acceptance rule refused."""
        return self._first("refused")

    @property
    def passed_over(self) -> Outcome | None:
        """The first statement that was passed over."""
        return self._first("passed over")

    def _first(self, became: Became) -> Outcome | None:
        return self.tally.first.get(became, (0, None))[1]


class Undone:
    """The definitions that failed so far, by what they were to define: statements that need it fail as well."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def told(self, outcome: Outcome, in_use: str | None) -> Outcome:
        """Return the outcome; an error that a failed definition caused names the line of that definition.

        `in_use` is the keyspace of names that have none.
        """
        statement, error = outcome.statement, outcome.error
        if outcome.became != "wrong":
            for name in _defined_names(statement, in_use):
                self._lines.pop(name, None)
            return outcome
        assert error is not None
        line = self._line_of(error.lacks)
        if line is not None:
            error = type(error)(
                f"{error}; line {line}, which was to make {error.lacks}, was refused", lacks=error.lacks
            )
        for name in _defined_names(statement, in_use):
            self._lines.setdefault(name, statement.line)
        return replace(outcome, error=error)

    def _line_of(self, lacks: str | None) -> int | None:
        if lacks is None:
            return None
        return self._lines.get(lacks, self._lines.get(f"{lacks.rpartition('.')[0]}.*"))


def _defined_names(statement: s.Statement, in_use: str | None) -> list[str]:
    """What a statement defines, in the words of `PlatformError.lacks`; `.*` stands for all columns or fields."""
    body = statement.body
    if isinstance(body, s.Unread):
        return _unread_names(statement.text, in_use)
    if isinstance(body, s.CreateKeyspace):
        return [f"keyspace {body.name}"]
    if not isinstance(body, s.Definition) or isinstance(body, s.Drop | s.CreateIndex | s.DropIndex):
        return []
    name = f"{body.name.keyspace or in_use}.{body.name.name}"
    match body:
        case s.CreateType():
            return [f"type {name}"]
        case s.CreateTable():
            return [f"table {name}"]
        case s.AddFields():
            return [f"field {name}.{field}" for field, _ in body.fields]
        case s.RenameFields():
            return [f"field {name}.{new}" for _, new in body.renames]
        case s.AddColumns():
            return [f"column {name}.{column.name}" for column in body.columns]
        case s.RenameColumns():
            return [f"column {name}.{new}" for _, new in body.renames]
    return []


def _unread_names(text: str, in_use: str | None) -> list[str]:
    """What a statement that the grammar does not have was to define, by its first words."""
    found = _DEFINED.match(text)
    if found is None:
        return []
    what = _OBJECTS.get(found["what"].upper(), found["what"].lower())
    keyspace, name = (None if part is None else _plain(part) for part in (found["keyspace"], found["name"]))
    if what == "keyspace":
        return [f"keyspace {name}"]
    if found["verb"].upper() == "CREATE":
        return [f"{what} {keyspace or in_use}.{name}"]
    return [f"{'column' if what == 'table' else 'field'} {keyspace or in_use}.{name}.*"]


def _plain(name: str) -> str:
    """A name as CQL compares it, from how it is written."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


_OBJECTS = {"COLUMNFAMILY": "table", "SCHEMA": "keyspace"}
_DEFINED = re.compile(
    r"""(?ix) (?P<verb>CREATE|ALTER) \s+ (?P<what>TABLE|COLUMNFAMILY|TYPE|KEYSPACE|SCHEMA) \s+ (?:IF\s+NOT\s+EXISTS\s+)?
    (?:(?P<keyspace>"(?:[^"]|"")++"|\w+)\s*\.\s*)? (?P<name>"(?:[^"]|"")++"|\w+)"""
)
"""What a statement makes or changes, by its first words."""
