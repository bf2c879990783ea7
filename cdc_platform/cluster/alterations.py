"""When tables of a live cluster were altered last, as their rows of the schema were written, and what else they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from cdc_platform.clock import Microseconds
from cdc_platform.cluster.session import LiveCluster, Row
from cdc_platform.records.alterations import Altered

Name = tuple[str, str]
"""Keyspace and name of a table."""
_TOLD_APART = frozenset({"id", "cdc", "version", "committed_by_group0"})
"""What is no property of a table, or told of apart from the others."""


def name_of(row: Row) -> Name:
    """The table that a row of the schema is of."""
    return row["keyspace_name"], row["table_name"]


@dataclass(frozen=True)
class Alterations:
    """The times (µs) at which rows of all tables were written, and what each table is, by name."""

    written: Mapping[Name, Microseconds]
    dropped: Mapping[Name, Microseconds]
    beside: Mapping[Name, Sequence[Row]]

    @staticmethod
    def read(live: LiveCluster, of_tables: Mapping[Name, Row], more: Mapping[Name, Row]) -> Alterations:
        """Those of a cluster, of whose tables these rows are known.

        Raises:
            NotGranted, Unreachable, Refused: the schema could not be read.
        """
        written = live.select("system_schema.tables", "keyspace_name, table_name, writetime(id) AS written")
        dropped = live.select("system_schema.dropped_columns", "keyspace_name, table_name, writetime(type) AS written")
        beside: dict[Name, list[Row]] = {}
        for name, row in (*of_tables.items(), *more.items()):
            beside.setdefault(name, []).append(row)
        # An index and a view write the row of their base table as well.
        for row in live.select("system_schema.indexes", "keyspace_name, table_name, index_name, options"):
            beside.setdefault(name_of(row), []).append(row)
        for row in live.select("system_schema.views", "keyspace_name, base_table_name, view_name"):
            beside.setdefault((row["keyspace_name"], row["base_table_name"]), []).append(row)
        return Alterations(_newest(written), _newest(dropped), beside)

    def note(self, name: Name, columns: Iterable[Row]) -> str | None:
        """What stands behind the definition of a table with these columns; None where the schema does not tell."""
        at = self.written.get(name)
        if at is None:
            return None
        times = [Microseconds(column["written"]) for column in columns if column["written"] is not None]
        columns_us = max([*times, self.dropped.get(name, Microseconds(0))])
        parts = sorted(_plain(row) for row in self.beside.get(name, ()))
        return Altered(at, columns_us, blake2b("".join(parts).encode(), digest_size=8).hexdigest()).note()


def _newest(rows: Iterable[Row]) -> dict[Name, Microseconds]:
    found: dict[Name, Microseconds] = {}
    for row in rows:
        if row["written"] is not None:
            found[name_of(row)] = Microseconds(max(row["written"], found.get(name_of(row), 0)))
    return found


def _plain(value: Any) -> str:
    """A value such that equal ones are equal texts; of CDC's own options there is nothing in it."""
    if isinstance(value, Mapping):
        pairs = sorted((str(name), _plain(inner)) for name, inner in value.items() if name not in _TOLD_APART)
        return repr(pairs)
    return repr(value)
