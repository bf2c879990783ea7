"""A table with a CDC log, and what became of it: as the platform's tables of both have them in their rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from cdc_platform.clock import Microseconds, Milliseconds, from_datetime, ms_of, to_datetime
from cdc_platform.cql.names import quoted
from cdc_platform.lake.tables import CDC_TABLE_CHANGES

ADDED, ALTERED, DROPPED = "added", "altered", "dropped"
"""What becomes of a table. `added` once more, with no drop before it: seen to stand otherwise, not known since when."""

_UNKNOWN_US = Microseconds(0)
"""What stands for an unknown time in a column that may not be null: before every generation, for every reader."""


@dataclass(frozen=True)
class _Named:
    keyspace_name: str
    table_name: str

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace_name}.{self.table_name}"

    @property
    def cql_name(self) -> str:
        """`keyspace.table` as CQL and the command line read it: quoted where that is needed."""
        return f"{quoted(self.keyspace_name)}.{quoted(self.table_name)}"


@dataclass(frozen=True)
class CdcTable(_Named):
    """A table with a CDC log. `ttl_seconds` 0: log rows never expire. `created_at_ms`: when the log was created.

    `created_at_ms` is None where that is not known.
    """

    enabled: bool
    ttl_seconds: int
    created_at_ms: Milliseconds | None
    ddl: str | None = None

    @property
    def oldest_ms(self) -> Milliseconds:
        """Before which time (ms) there was no log: a log of unknown age is older than everything."""
        return Milliseconds(0) if self.created_at_ms is None else self.created_at_ms


@dataclass(frozen=True)
class TableChange(_Named):
    """What became of a table at `changed_at_us` (µs), and how it stood from then on; see `CdcTable`."""

    changed_at_us: Microseconds
    what: str
    enabled: bool
    ttl_seconds: int
    created_at_us: Microseconds | None
    ddl: str | None = None


def recreations(changes: Iterable[TableChange]) -> list[Microseconds]:
    """Return when (µs) a table's log was created again after it was dropped, from the changes of that table alone.

    A log that comes back with the creation time that it had is the same one. Of a log of unknown age it is when it was
    seen first.
    """
    return [
        after.changed_at_us if after.created_at_us is None else after.created_at_us
        for before, after in pairwise(changes)
        if before.what == DROPPED and (after.created_at_us is None or after.created_at_us != before.created_at_us)
    ]


def log_began_us(changes: Iterable[TableChange]) -> Microseconds:
    """Return the earliest time (µs) at which a table's log can have begun, from its changes, oldest first.

    That is when the log was created, or where that is unknown, when the log before it was dropped; else 0.
    """
    began_us = Microseconds(0)
    for change in changes:
        if change.what == DROPPED:
            began_us = change.changed_at_us
        elif change.created_at_us is not None:
            began_us = change.created_at_us
    return began_us


def changes_of(rows: pa.Table) -> list[TableChange]:
    """Rows of the history as changes, oldest first."""
    return sorted(
        (
            TableChange(
                row["keyspace_name"],
                row["table_name"],
                from_datetime(row["changed_at"]),
                row["what"],
                row["enabled"],
                row["ttl_seconds"],
                known_us(from_datetime(row["created_at"])),
                row["ddl"],
            )
            for row in rows.to_pylist()
        ),
        key=lambda change: change.changed_at_us,
    )


def known_us(stored_us: Microseconds) -> Microseconds | None:
    """A time (µs) as it is stored; None where it stands for one that is not known."""
    return None if stored_us == _UNKNOWN_US else stored_us


def rows_of(several: list[TableChange]) -> pa.Table:
    """Changes as rows of the history."""
    return pa.Table.from_pylist([row_of(change) for change in several], schema=CDC_TABLE_CHANGES.schema)


def row_of(change: TableChange) -> dict[str, Any]:
    """A change as a row of the history, and of what follows from it, which has fewer columns."""
    created_us = _UNKNOWN_US if change.created_at_us is None else change.created_at_us
    return vars(change) | {"changed_at": to_datetime(change.changed_at_us), "created_at": to_datetime(created_us)}


def as_it_stands(change: TableChange) -> CdcTable:
    """The table as a change told it to be."""
    return CdcTable(
        change.keyspace_name,
        change.table_name,
        change.enabled,
        change.ttl_seconds,
        None if change.created_at_us is None else ms_of(change.created_at_us),
        change.ddl,
    )
