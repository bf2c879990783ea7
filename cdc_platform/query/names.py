"""Resolution of the table names in a query, as ScyllaDB writes them, to tables of a lake.

This covers declared tables and everything else with files: CDC logs and copies of them. Case decides only where two
names differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import pyarrow as pa

from cdc_platform.cdclog import log_table
from cdc_platform.clock import Microseconds, format_us
from cdc_platform.cql import LOG_SUFFIX
from cdc_platform.delta import Lake, Snapshot, list_stored_tables, snapshot
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.tables import TABLES, Table


@dataclass(frozen=True)
class TimeTravel:
    """Which past a query reads: a version of the one table that it names, or a time (µs) of all of them."""

    version: int | None = None
    time_us: Microseconds | None = None


@dataclass(frozen=True)
class TableReference:
    """A table as a query names it. `keyspace` is empty where the query has none."""

    keyspace: str
    name: str

    def __str__(self) -> str:
        return f"{self.keyspace}.{self.name}" if self.keyspace else self.name


@dataclass(frozen=True)
class QuerySource:
    """A table of a query: its rows, or None where it does not exist, and its columns are those that it would have."""

    table: Table
    snapshot: Snapshot | None

    @property
    def schema(self) -> pa.Schema:
        """The columns that the query sees."""
        return self.table.schema if self.snapshot is None else self.snapshot.schema


@dataclass
class TableNames:
    """The tables of a lake by name."""

    lake: Lake
    tables: list[Table] = field(init=False)

    def __post_init__(self) -> None:
        declared = [*TABLES.values()]
        known = {table.full_name for table in declared}
        others = [name for name in list_stored_tables(self.lake) if ".".join(name) not in known]
        self.tables = [*declared, *(_undeclared_table(*name) for name in others)]

    def find(self, reference: TableReference) -> Table | None:
        """The table that a query means; None where there is none of that name.

        Raises:
            InputError: the name alone does not tell which of several keyspaces is meant.
        """
        found = self.like(reference) or self._unwritten_log(reference)
        exact = [
            table for table in found if table.name == reference.name and reference.keyspace in ("", table.keyspace)
        ]
        found = exact or found
        if len(found) > 1:
            names = ", ".join(sorted(table.full_name for table in found))
            raise InputError(f"{reference} can be {names}; write the one that is meant, in double quotes where needed")
        return found[0] if found else None

    def like(self, reference: TableReference) -> list[Table]:
        """The tables that there are by that name, whatever the case."""
        return [table for table in self.tables if _matches(reference, table)]

    def close_to(self, reference: TableReference) -> str:
        """What somebody who wrote that may have meant, as the end of a sentence."""
        names = {table.full_name.lower(): table.full_name for table in self.tables}
        names |= {table.name.lower(): table.full_name for table in self.tables}
        near = [names[name] for name in get_close_matches(str(reference).lower(), names, n=1, cutoff=0.6)]
        return f"; did you mean {near[0]}?" if near else "; SHOW ALL TABLES lists what there is"

    def sources(self, tables: Iterable[Table], at: TimeTravel) -> list[QuerySource]:
        """The rows of these tables, now or in the past.

        Raises:
            InputError: a version is asked for, and not of one table.
            NotFound: there is no such version or time of a table any more.
        """
        wanted = list(tables)
        if at.version is not None and len(wanted) != 1:
            named = ", ".join(table.full_name for table in wanted) or "none"
            raise InputError(
                f"a version is that of one table, and the query names {len(wanted)} ({named}); give --at a time, as in"
                " --at 2026-01-31T12:00:00Z"
            )
        return [self._source(table, at) for table in wanted]

    def as_defined(self, source: QuerySource) -> QuerySource:
        """Return a table that is kept as a cluster has it with the keys and the order of its definition in CQL.

        A definition whose clustering columns Delta orders otherwise, as text, says nothing here.
        """
        table = source.table
        if table.keys or table.name.lower().endswith(LOG_SUFFIX):
            return source
        from cdc_platform.cdclog import has_same_order, read_table_schema, with_stored_names

        try:
            schema = with_stored_names(read_table_schema(self.lake, table.keyspace, table.name))
        except (NotFound, StateError):
            return source
        keys = [key.name for key in (*schema.partition_key, *schema.clustering_key)]
        if not set(keys) <= set(source.schema.names) or not all(has_same_order(k.type) for k in schema.clustering_key):
            return source
        clustering = tuple((key.name, key.descending) for key in schema.clustering_key)
        named = Table(table.keyspace, table.name, source.schema, tuple(keys), table.comment, clustering=clustering)
        return replace(source, table=named)

    def _source(self, table: Table, at: TimeTravel) -> QuerySource:
        if at.version is not None:
            return QuerySource(table, snapshot.read_snapshot_at_version(self.lake, table, at.version))
        if at.time_us is None:
            return QuerySource(table, snapshot.read_newest_snapshot(self.lake, table))
        found = snapshot.read_snapshot_at_time(self.lake, table, at.time_us)
        if found is None and not table.schema.names:
            raise NotFound(f"{table.full_name} did not exist yet at {format_us(at.time_us)}")
        return QuerySource(table, found)

    def _unwritten_log(self, reference: TableReference) -> list[Table]:
        """The logs of that name to which nothing was written yet: they have columns, and no files."""
        if not reference.name.lower().endswith(LOG_SUFFIX):
            return []
        # The grammar takes as long to load as small tables to be read.
        from cdc_platform.cdclog import load_table_schemas
        from cdc_platform.cql import Catalog
        from cdc_platform.metastore import cdc_tables

        logs = [log_table(schema) for schema in load_table_schemas(Catalog(), cdc_tables.read_cdc_tables(self.lake))]
        return [table for table in logs if _matches(reference, table)]


def _matches(reference: TableReference, table: Table) -> bool:
    return table.name.lower() == reference.name.lower() and (
        not reference.keyspace or table.keyspace.lower() == reference.keyspace.lower()
    )


def _undeclared_table(keyspace: str, name: str) -> Table:
    """A table of which files alone are known; its columns are in them."""
    return Table(keyspace, name, pa.schema([]), (), "")
