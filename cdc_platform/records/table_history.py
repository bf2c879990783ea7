"""A table with a CDC log, and what became of it: as the platform's tables of both have them in their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdc_platform.clock import Microseconds, Milliseconds, from_datetime, ms_of, to_datetime
from cdc_platform.lake.tables import CDC_TABLE_CHANGES

ADDED, ALTERED, DROPPED = "added", "altered", "dropped"


@dataclass(frozen=True)
class _Named:
    keyspace_name: str
    table_name: str

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace_name}.{self.table_name}"


@dataclass(frozen=True)
class CdcTable(_Named):
    """A table with a CDC log. `ttl_seconds` 0: log rows never expire. `created_at_ms`: when the log was created."""

    enabled: bool
    ttl_seconds: int
    created_at_ms: Milliseconds
    ddl: str | None = None


@dataclass(frozen=True)
class TableChange(_Named):
    """What became of a table at `changed_at_us` (µs), and how it stood from then on; see `CdcTable`."""

    changed_at_us: Microseconds
    what: str
    enabled: bool
    ttl_seconds: int
    created_at_us: Microseconds
    ddl: str | None = None


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
                from_datetime(row["created_at"]),
                row["ddl"],
            )
            for row in rows.to_pylist()
        ),
        key=lambda change: change.changed_at_us,
    )


def rows_of(several: list[TableChange]) -> pa.Table:
    """Changes as rows of the history."""
    return pa.Table.from_pylist([row_of(change) for change in several], schema=CDC_TABLE_CHANGES.schema)


def row_of(change: TableChange) -> dict[str, Any]:
    """A change as a row of the history, and of what follows from it, which has fewer columns."""
    times = {"changed_at": to_datetime(change.changed_at_us), "created_at": to_datetime(change.created_at_us)}
    return vars(change) | times


def as_it_stands(change: TableChange) -> CdcTable:
    """The table as a change told it to be."""
    return CdcTable(
        change.keyspace_name,
        change.table_name,
        change.enabled,
        change.ttl_seconds,
        ms_of(change.created_at_us),
        change.ddl,
    )
