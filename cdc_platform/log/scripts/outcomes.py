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
    """The definitions that failed so far, which are why statements behind them fail."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def told(self, outcome: Outcome) -> Outcome:
        """The outcome; that of a statement which failed for the lack of a definition says where that one stands."""
        if outcome.became != "wrong":
            return outcome
        error, statement = outcome.error, outcome.statement
        assert error is not None
        words = (word.lower() for word in _WORD.findall(statement.text)) if self._lines else ()
        name = next((word for word in words if word in self._lines), None)
        if name is not None:
            error = type(error)(f"{error}; line {self._lines[name]}, which was to make or change {name}, was refused")
        made = _DEFINED.match(statement.text)
        if made is not None:
            self._lines.setdefault((made[1] or made[2]).lower(), statement.line)
        return replace(outcome, error=error)


_WORD = re.compile(r"\w+")
_DEFINED = re.compile(
    r"""(?ix) (?:CREATE|ALTER) \s+ (?:TABLE|COLUMNFAMILY|TYPE|KEYSPACE|SCHEMA) \s+ (?:IF\s+NOT\s+EXISTS\s+)?
    (?:(?:"[^"]*"|\w+)\s*\.\s*)? (?:"([^"]+)"|(\w+))"""
)
"""The name, without its keyspace, of what a statement makes or changes."""
