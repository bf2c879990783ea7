"""Resolution of the table names in a query, as ScyllaDB writes them, to tables of a lake.

This covers declared tables and every other table with files, such as CDC logs and table copies. Case matters only if
two names differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform.cdclog import CHANGES_SUFFIX, ITEMS_SUFFIX, log_table
from cdc_platform.clock import Microseconds, format_us
from cdc_platform.cql import LOG_SUFFIX
from cdc_platform.delta import Lake, Snapshot, list_stored_tables, snapshot
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.tables import TABLES, Table

if TYPE_CHECKING:
    from cdc_platform.cdclog import LoggedImages
    from cdc_platform.cql import TableSchema


@dataclass(frozen=True)
class TimeTravel:
    """The past that a query reads: a version of its only table, or a time (µs) for all of its tables."""

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
class ChangeView:
    """The view of a table's changes (`cdclog.changes`): its rows are joined from those of `log` when it is read."""

    schema: TableSchema
    images: LoggedImages
    log: Table


@dataclass(frozen=True)
class ItemView:
    """The view of an Alternator table's items (`cdclog.items`), made from the rows of its replica, `log`."""

    schema: TableSchema
    log: Table


@dataclass(frozen=True)
class QuerySource:
    """A table of a query and its rows.

    `snapshot` is None if the table does not exist; the columns are then the declared ones. For a `view` it is that of
    the log.
    """

    table: Table
    snapshot: Snapshot | None
    view: ChangeView | ItemView | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns that the query sees."""
        return self.table.schema if self.snapshot is None or self.view is not None else self.snapshot.schema


@dataclass
class TableNames:
    """The tables of a lake by name."""

    lake: Lake
    tables: list[Table] = field(init=False)
    _views: dict[str, ChangeView | ItemView] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        declared = [*TABLES.values()]
        known = {table.full_name for table in declared}
        others = [name for name in list_stored_tables(self.lake) if ".".join(name) not in known]
        self.tables = [*declared, *(_undeclared_table(*name) for name in others)]

    def find(self, reference: TableReference) -> Table | None:
        """Return the table that a query means; None if no table has the name.

        Raises:
            InputError: the name matches several tables.
        """
        matches = self.like(reference) or self._unwritten_log(reference) or self._change_views(reference)
        matches = matches or self._item_views(reference)
        exact = [
            table for table in matches if table.name == reference.name and reference.keyspace in ("", table.keyspace)
        ]
        matches = exact or matches
        if len(matches) > 1:
            names = ", ".join(sorted(table.full_name for table in matches))
            raise InputError(f"{reference} can be {names}; write the one that is meant, in double quotes where needed")
        return matches[0] if matches else None

    def like(self, reference: TableReference) -> list[Table]:
        """Return the tables of that name, ignoring case."""
        return [table for table in self.tables if _matches(reference, table)]

    def close_to(self, reference: TableReference) -> str:
        """Return a hint at the most similar table name, as the end of a sentence."""
        names = {table.full_name.lower(): table.full_name for table in self.tables}
        names |= {table.name.lower(): table.full_name for table in self.tables}
        near = [names[name] for name in get_close_matches(str(reference).lower(), names, n=1, cutoff=0.6)]
        return f"; did you mean {near[0]}?" if near else "; SHOW ALL TABLES lists what there is"

    def sources(self, tables: Iterable[Table], at: TimeTravel) -> list[QuerySource]:
        """Return the rows of these tables, now or at a past.

        Raises:
            InputError: a version is requested for other than one table.
            NotFound: a table has no such version or time, or no longer has it.
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
        """Return the source of a replicated table with the keys and the order of its CQL definition.

        A definition does not apply if Delta orders a clustering column differently, as text.
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
        view = self._views.get(table.full_name)
        if view is not None:
            return replace(self._source(view.log, at), table=table, view=view)
        if at.version is not None:
            return QuerySource(table, snapshot.read_snapshot_at_version(self.lake, table, at.version))
        if at.time_us is None:
            return QuerySource(table, snapshot.read_newest_snapshot(self.lake, table))
        past = snapshot.read_snapshot_at_time(self.lake, table, at.time_us)
        if past is None and not table.schema.names:
            raise NotFound(f"{table.full_name} did not exist yet at {format_us(at.time_us)}")
        return QuerySource(table, past)

    def _change_views(self, reference: TableReference) -> list[Table]:
        """Return the views of changes of that name: one for each table with a log."""
        if not reference.name.lower().endswith(CHANGES_SUFFIX):
            return []
        named = TableReference(reference.keyspace, reference.name[: -len(CHANGES_SUFFIX)] + LOG_SUFFIX)
        return [self._change_view(log) for log in self.like(named) or self._unwritten_log(named)]

    def _change_view(self, log: Table) -> Table:
        # Imported late: the CQL grammar, as below.
        from cdc_platform.cdclog import changes_schema, read_logged_images, read_table_schema

        schema = read_table_schema(self.lake, log.keyspace, log.name[: -len(LOG_SUFFIX)])
        view = Table(
            log.keyspace,
            f"{schema.name}{CHANGES_SUFFIX}",
            changes_schema(schema),
            log_table(schema).keys,
            f"Changes of {schema.full_name}, joined from its log",
        )
        self._views[view.full_name] = ChangeView(schema, read_logged_images(self.lake, schema), log)
        return view

    def _item_views(self, reference: TableReference) -> list[Table]:
        """Return the views of items of that name: one for each replica of an Alternator table."""
        if not reference.name.lower().endswith(ITEMS_SUFFIX):
            return []
        from cdc_platform.cdclog import items_schema, read_table_schema

        views = []
        for table in self.like(TableReference(reference.keyspace, reference.name[: -len(ITEMS_SUFFIX)])):
            try:
                schema = read_table_schema(self.lake, table.keyspace, table.name)
            except (NotFound, StateError):
                continue
            if not schema.has_decoded_attributes:
                continue
            keys = tuple(key.name for key in (*schema.partition_key, *schema.clustering_key))
            name, comment = f"{table.name}{ITEMS_SUFFIX}", f"Items of {schema.full_name}, from its current rows"
            view = Table(table.keyspace, name, items_schema(schema), keys, comment)
            self._views[view.full_name] = ItemView(schema, table)
            views.append(view)
        return views

    def _unwritten_log(self, reference: TableReference) -> list[Table]:
        """Return the logs of that name without any writes yet: they have columns and no files."""
        if not reference.name.lower().endswith(LOG_SUFFIX):
            return []
        # Imported late: loading the CQL grammar takes as long as reading small tables.
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
    """Return a table that is known by its files only; its columns are in them."""
    return Table(keyspace, name, pa.schema([]), (), "")
