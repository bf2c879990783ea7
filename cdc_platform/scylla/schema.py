"""Read the CDC-enabled tables of a live cluster: options, creation and alteration times, CQL definition."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import UUID

from cdc_platform.clock import DAY_SECONDS, Microseconds, Milliseconds, ms_from_us
from cdc_platform.cql import (
    SEARCH_INDEX_CLASSES,
    SearchIndex,
    explain_unknown_option,
    format_attribute_comments,
    format_index_comments,
    is_known_index_class,
    quote_name,
    us_from_timeuuid,
)
from cdc_platform.metastore import CdcTable, TableAlteration
from cdc_platform.scylla import system_tables
from cdc_platform.scylla.session import CqlRow, ScyllaSession
from cdc_platform.scylla.system_tables import AvailableTables

TableName = tuple[str, str]
"""Keyspace and name of a table."""
_IGNORED_PROPERTIES = frozenset({"id", "cdc", "version", "committed_by_group0"})
"""Fields of a schema row that are no table properties, or that are reported separately."""


def table_name_from_row(row: CqlRow) -> TableName:
    """Return the table that a row of the schema belongs to."""
    return row["keyspace_name"], row["table_name"]


@dataclass(frozen=True)
class SchemaAlterations:
    """Write times (µs) of the schema rows of all tables, and each table's other schema rows, by table name."""

    written: Mapping[TableName, Microseconds]
    dropped: Mapping[TableName, Microseconds]
    beside: Mapping[TableName, Sequence[CqlRow]]

    @staticmethod
    def read(
        live: ScyllaSession, of_tables: Mapping[TableName, CqlRow], more: Mapping[TableName, CqlRow]
    ) -> SchemaAlterations:
        """Read the alteration times of a cluster's tables, whose rows of `system_schema.tables` are `of_tables`.

        `more` are their rows of `system_schema.scylla_tables`.

        Raises:
            NotGranted, Unreachable, Refused: the schema could not be read.
        """
        written = live.select("system_schema.tables", "keyspace_name, table_name, writetime(id) AS written")
        dropped = live.select("system_schema.dropped_columns", "keyspace_name, table_name, writetime(type) AS written")
        beside: dict[TableName, list[CqlRow]] = {}
        for name, row in (*of_tables.items(), *more.items()):
            beside.setdefault(name, []).append(row)
        # Creating an index or a view also writes the row of its base table.
        for row in live.select("system_schema.indexes", "keyspace_name, table_name, index_name, options"):
            beside.setdefault(table_name_from_row(row), []).append(row)
        for row in live.select("system_schema.views", "keyspace_name, base_table_name, view_name"):
            beside.setdefault((row["keyspace_name"], row["base_table_name"]), []).append(row)
        return SchemaAlterations(_newest_by_table(written), _newest_by_table(dropped), beside)

    def note(self, name: TableName, columns: Iterable[CqlRow]) -> str | None:
        """Return the alteration comment for a table's definition; None if the table's write time is unknown."""
        at = self.written.get(name)
        if at is None:
            return None
        times = [Microseconds(column["written"]) for column in columns if column["written"] is not None]
        columns_us = max([*times, self.dropped.get(name, Microseconds(0))])
        parts = sorted(_stable_text(row) for row in self.beside.get(name, ()))
        return TableAlteration(at, columns_us, blake2b("".join(parts).encode(), digest_size=8).hexdigest()).note()


def _newest_by_table(rows: Iterable[CqlRow]) -> dict[TableName, Microseconds]:
    newest: dict[TableName, Microseconds] = {}
    for row in rows:
        if row["written"] is not None:
            newest[table_name_from_row(row)] = Microseconds(
                max(row["written"], newest.get(table_name_from_row(row), 0))
            )
    return newest


def _stable_text(value: Any) -> str:
    """Return a text that is equal for equal values, without CDC's own options."""
    if isinstance(value, Mapping):
        pairs = sorted(
            (str(name), _stable_text(inner)) for name, inner in value.items() if name not in _IGNORED_PROPERTIES
        )
        return repr(pairs)
    return repr(value)


_LOG_SUFFIX = "_scylla_cdc_log"
_DEFAULT_TTL = DAY_SECONDS
_KIND_ORDER = {"partition_key": 0, "clustering": 1, "static": 2, "regular": 3}


@dataclass(frozen=True)
class LoggedTable:
    """A base table with a log. `created_at_ms` is when its log was created, None if the log's ID is no timeuuid."""

    keyspace: str
    name: str
    options: Mapping[str, str]
    created_at_ms: Milliseconds | None
    ddl: str
    unknown: str | None = None
    """Why its options or indexes are not understood; CDC then counts as enabled, and its log rows as never expiring."""

    @property
    def enabled(self) -> bool:
        """Return True if CDC is enabled, or may be."""
        return _is_on(self.options) or self.unknown is not None

    @property
    def ttl_seconds(self) -> int:
        """Return how long log rows live (s); 0 means for ever."""
        text = self.options.get("ttl", str(_DEFAULT_TTL))
        return int(text) if text.isascii() and text.isdigit() else 0

    def to_change_request(self) -> CdcTable:
        """Return the table as a home registers it."""
        return CdcTable(self.keyspace, self.name, self.enabled, self.ttl_seconds, self.created_at_ms, self.ddl)


def read_logged_tables(live: ScyllaSession, layout: AvailableTables) -> list[LoggedTable]:
    """Return every table whose log is in the schema, by name, even if its CDC was disabled.

    Raises:
        NotGranted, Unreachable, Refused: the schema could not be read.
    """
    by_name = {table_name_from_row(row): row for row in live.select("system_schema.tables", "*")}
    more = _read_scylla_tables(live, layout)
    times = SchemaAlterations.read(live, by_name, more)
    indexes = _read_indexes(live)
    tables = []
    for keyspace, name in sorted(by_name):
        log = by_name.get((keyspace, name + _LOG_SUFFIX))
        if log is None:
            continue
        raw_options = dict(more.get((keyspace, name), {}).get("cdc") or ()) or _options_from_extension(
            by_name[keyspace, name]["extensions"]
        )
        options = raw_options or {}
        unknown = "its CDC options cannot be read" if raw_options is None else explain_unknown_option(options)
        mine = indexes.get((keyspace, name), [])
        searches = [index for index in mine if index.class_name in SEARCH_INDEX_CLASSES]
        by_index = any(SEARCH_INDEX_CLASSES[index.class_name] for index in searches) and not _is_on(options)
        options = options | {"enabled": "true"} if by_index else options
        strange = next((index.class_name for index in mine if not is_known_index_class(index.class_name)), None)
        if strange is not None and not _is_on(options):
            unknown = unknown or f"its index class {strange!r} is not known"
        columns = _read_columns(live, keyspace, name)
        note = times.note((keyspace, name), columns)
        rules = live.connection.column_rules.get((keyspace, name))
        if rules is not None:
            columns = rules.define((keyspace, name), columns, dropped=(keyspace, name) in times.dropped)
        ddl = _build_ddl(live, keyspace, name, columns, options) + (f"\n{note}" if note else "")
        ddl += "".join(f"\n{line}" for line in format_index_comments(searches, by_index=by_index))
        if rules is not None:
            ddl += "".join(f"\n{line}" for line in format_attribute_comments(rules.attribute_types))
        tables.append(LoggedTable(keyspace, name, options, created_ms_from_id(log["id"]), ddl, unknown))
    return tables


def _is_on(options: Mapping[str, str]) -> bool:
    return options.get("enabled", "false").lower() in ("true", "1")


def _read_indexes(live: ScyllaSession) -> dict[TableName, list[SearchIndex]]:
    """Return the indexes that have a class, by table name."""
    by_table: dict[TableName, list[SearchIndex]] = {}
    for row in sorted(live.select("system_schema.indexes", "*"), key=lambda row: row["index_name"]):
        class_name = (row["options"] or {}).get("class_name")
        if class_name:
            by_table.setdefault(table_name_from_row(row), []).append(SearchIndex(row["index_name"], class_name.lower()))
    return by_table


def created_ms_from_id(id_: UUID | None) -> Milliseconds | None:
    """Return when a table was created (ms), from the timeuuid that is its ID; None for other IDs."""
    if id_ is None or id_.version != 1:
        return None
    return ms_from_us(us_from_timeuuid(id_))


def _read_scylla_tables(live: ScyllaSession, layout: AvailableTables) -> dict[TableName, CqlRow]:
    """Return ScyllaDB's own properties of tables, which Cassandra's schema lacks, by table name."""
    if system_tables.SCYLLA_TABLES not in layout:
        return {}
    return {table_name_from_row(row): row for row in live.select(system_tables.SCYLLA_TABLES, "*", at=live.contact)}


def _options_from_extension(extensions: Mapping[str, bytes] | None) -> dict[str, str] | None:
    """Decode the CDC options from the schema's `cdc` extension blob.

    The blob is a count followed by length-prefixed texts, little-endian. Return None if it cannot be decoded.
    """
    blob = (extensions or {}).get("cdc", b"")
    try:
        texts = list(_extension_texts(blob)) if blob else []
    except (struct.error, UnicodeDecodeError):
        return None
    return dict(zip(texts[::2], texts[1::2], strict=False))


def _extension_texts(blob: bytes) -> Iterator[str]:
    (pairs,) = struct.unpack_from("<i", blob)
    at = 4
    for _ in range(2 * min(max(pairs, 0), 64)):
        (length,) = struct.unpack_from("<i", blob, at)
        at += 4 + length
        yield blob[at - length : at].decode()


def _read_columns(live: ScyllaSession, keyspace: str, name: str) -> list[CqlRow]:
    """Return a table's columns in order, each with the write time of its type (µs)."""
    where = "WHERE keyspace_name = %s AND table_name = %s"
    names = "column_name, kind, position, type, clustering_order, writetime(type) AS written"
    columns = live.select("system_schema.columns", names, where, [keyspace, name])
    return sorted(columns, key=lambda each: (_KIND_ORDER.get(each["kind"], 3), each["position"], each["column_name"]))


def _build_ddl(
    live: ScyllaSession, keyspace: str, name: str, columns: Sequence[CqlRow], options: Mapping[str, str]
) -> str:
    fields = "type_name, field_names, field_types"
    types = live.select("system_schema.types", fields, "WHERE keyspace_name = %s", [keyspace])
    statements = [_type_ddl(keyspace, row) for row in _needed_types(types, columns)]
    partition = ", ".join(quote_name(column["column_name"]) for column in columns if column["kind"] == "partition_key")
    clustering = [column for column in columns if column["kind"] == "clustering"]
    listed = "".join(f"    {_column_ddl(column)},\n" for column in columns)
    after = "".join(f", {quote_name(column['column_name'])}" for column in clustering)
    order = ", ".join(
        f"{quote_name(column['column_name'])} {column['clustering_order'].upper()}" for column in clustering
    )
    cdc_options = ", ".join(f"'{key}': '{value}'" for key, value in options.items() if key in _CDC_OPTIONS)
    statements.append(
        f"CREATE TABLE {quote_name(keyspace)}.{quote_name(name)} (\n{listed}    PRIMARY KEY (({partition}){after})\n) "
        f"WITH cdc = {{{cdc_options}}}{f' AND CLUSTERING ORDER BY ({order})' if order else ''};"
    )
    return "\n".join(statements)


_CDC_OPTIONS = ("enabled", "preimage", "postimage", "delta", "ttl")


def _column_ddl(row: CqlRow) -> str:
    return f"{quote_name(row['column_name'])} {row['type']}{' static' if row['kind'] == 'static' else ''}"


def _type_ddl(keyspace: str, row: CqlRow) -> str:
    pairs = zip(row["field_names"], row["field_types"], strict=True)
    fields = ", ".join(f"{quote_name(name)} {kind}" for name, kind in pairs)
    return f"CREATE TYPE IF NOT EXISTS {quote_name(keyspace)}.{quote_name(row['type_name'])} ({fields});"


def _needed_types(types: Sequence[CqlRow], columns: Sequence[CqlRow]) -> list[CqlRow]:
    """Return the user types that the columns use, each after the types that it contains."""
    by_name: dict[str, CqlRow] = {row["type_name"]: row for row in types}
    seen: dict[str, Any] = {}

    def visit(text: str) -> None:
        for name, row in by_name.items():
            if name not in seen and quote_name(name) in text:
                seen[name] = None
                for inner in row["field_types"]:
                    visit(inner)
                del seen[name]
                seen[name] = row

    for column in columns:
        visit(column["type"])
    return list(seen.values())
