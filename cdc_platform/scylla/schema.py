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
"""What is no property of a table, or told of apart from the others."""


def table_name_from_row(row: CqlRow) -> TableName:
    """The table that a row of the schema is of."""
    return row["keyspace_name"], row["table_name"]


@dataclass(frozen=True)
class SchemaAlterations:
    """The times (µs) at which rows of all tables were written, and what each table is, by name."""

    written: Mapping[TableName, Microseconds]
    dropped: Mapping[TableName, Microseconds]
    beside: Mapping[TableName, Sequence[CqlRow]]

    @staticmethod
    def read(
        live: ScyllaSession, of_tables: Mapping[TableName, CqlRow], more: Mapping[TableName, CqlRow]
    ) -> SchemaAlterations:
        """Those of a cluster, of whose tables these rows are known.

        Raises:
            NotGranted, Unreachable, Refused: the schema could not be read.
        """
        written = live.select("system_schema.tables", "keyspace_name, table_name, writetime(id) AS written")
        dropped = live.select("system_schema.dropped_columns", "keyspace_name, table_name, writetime(type) AS written")
        beside: dict[TableName, list[CqlRow]] = {}
        for name, row in (*of_tables.items(), *more.items()):
            beside.setdefault(name, []).append(row)
        # An index and a view write the row of their base table as well.
        for row in live.select("system_schema.indexes", "keyspace_name, table_name, index_name, options"):
            beside.setdefault(table_name_from_row(row), []).append(row)
        for row in live.select("system_schema.views", "keyspace_name, base_table_name, view_name"):
            beside.setdefault((row["keyspace_name"], row["base_table_name"]), []).append(row)
        return SchemaAlterations(_newest_by_table(written), _newest_by_table(dropped), beside)

    def note(self, name: TableName, columns: Iterable[CqlRow]) -> str | None:
        """What stands behind the definition of a table with these columns; None where the schema does not tell."""
        at = self.written.get(name)
        if at is None:
            return None
        times = [Microseconds(column["written"]) for column in columns if column["written"] is not None]
        columns_us = max([*times, self.dropped.get(name, Microseconds(0))])
        parts = sorted(_stable_text(row) for row in self.beside.get(name, ()))
        return TableAlteration(at, columns_us, blake2b("".join(parts).encode(), digest_size=8).hexdigest()).note()


def _newest_by_table(rows: Iterable[CqlRow]) -> dict[TableName, Microseconds]:
    found: dict[TableName, Microseconds] = {}
    for row in rows:
        if row["written"] is not None:
            found[table_name_from_row(row)] = Microseconds(max(row["written"], found.get(table_name_from_row(row), 0)))
    return found


def _stable_text(value: Any) -> str:
    """A value such that equal ones are equal texts; of CDC's own options there is nothing in it."""
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
    """A base table with a log. `created_at_ms` is when its log was made, None where its ID does not tell."""

    keyspace: str
    name: str
    options: Mapping[str, str]
    created_at_ms: Milliseconds | None
    ddl: str
    unknown: str | None = None
    """What of its options or indexes is not known: the log counts as one that is written, and whose rows stay."""

    @property
    def enabled(self) -> bool:
        """Whether CDC is on, or may be."""
        return _is_on(self.options) or self.unknown is not None

    @property
    def ttl_seconds(self) -> int:
        """How long log rows live; 0: for ever."""
        text = self.options.get("ttl", str(_DEFAULT_TTL))
        return int(text) if text.isascii() and text.isdigit() else 0

    def as_told(self) -> CdcTable:
        """The table as a home is told of it."""
        return CdcTable(self.keyspace, self.name, self.enabled, self.ttl_seconds, self.created_at_ms, self.ddl)


def read_logged_tables(live: ScyllaSession, layout: AvailableTables) -> list[LoggedTable]:
    """Every table whose log is in the schema, by name, whether its CDC is on or was turned off.

    Raises:
        NotGranted, Unreachable, Refused: the schema could not be read.
    """
    by_name = {table_name_from_row(row): row for row in live.select("system_schema.tables", "*")}
    more = _read_scylla_tables(live, layout)
    times = SchemaAlterations.read(live, by_name, more)
    indexes = _read_indexes(live)
    found = []
    for keyspace, name in sorted(by_name):
        log = by_name.get((keyspace, name + _LOG_SUFFIX))
        if log is None:
            continue
        given = dict(more.get((keyspace, name), {}).get("cdc") or ()) or _options_from_extension(
            by_name[keyspace, name]["extensions"]
        )
        said = given or {}
        unknown = "its CDC options cannot be read" if given is None else explain_unknown_option(said)
        mine = indexes.get((keyspace, name), [])
        searches = [each for each in mine if each.class_name in SEARCH_INDEX_CLASSES]
        by_index = any(SEARCH_INDEX_CLASSES[each.class_name] for each in searches) and not _is_on(said)
        said = said | {"enabled": "true"} if by_index else said
        strange = next((each.class_name for each in mine if not is_known_index_class(each.class_name)), None)
        if strange is not None and not _is_on(said):
            unknown = unknown or f"its index class {strange!r} is not known"
        columns = _read_columns(live, keyspace, name)
        note = times.note((keyspace, name), columns)
        ddl = _build_ddl(live, keyspace, name, columns, said) + (f"\n{note}" if note else "")
        ddl += "".join(f"\n{line}" for line in format_index_comments(searches, by_index=by_index))
        found.append(LoggedTable(keyspace, name, said, created_ms_from_id(log["id"]), ddl, unknown))
    return found


def _is_on(options: Mapping[str, str]) -> bool:
    return options.get("enabled", "false").lower() in ("true", "1")


def _read_indexes(live: ScyllaSession) -> dict[TableName, list[SearchIndex]]:
    """The indexes that have a class, by the name of their table."""
    found: dict[TableName, list[SearchIndex]] = {}
    for row in sorted(live.select("system_schema.indexes", "*"), key=lambda row: row["index_name"]):
        class_name = (row["options"] or {}).get("class_name")
        if class_name:
            found.setdefault(table_name_from_row(row), []).append(SearchIndex(row["index_name"], class_name.lower()))
    return found


def created_ms_from_id(id_: UUID | None) -> Milliseconds | None:
    """When a table was made (ms), which a timeuuid as its ID tells."""
    if id_ is None or id_.version != 1:
        return None
    return ms_from_us(us_from_timeuuid(id_))


def _read_scylla_tables(live: ScyllaSession, layout: AvailableTables) -> dict[TableName, CqlRow]:
    """What ScyllaDB has of tables beside what Cassandra has, by name."""
    if system_tables.SCYLLA_TABLES not in layout:
        return {}
    return {table_name_from_row(row): row for row in live.select(system_tables.SCYLLA_TABLES, "*", at=live.contact)}


def _options_from_extension(extensions: Mapping[str, bytes] | None) -> dict[str, str] | None:
    """The options in the blob that clients read: a count, then texts with their lengths, little-endian.

    None where they cannot be read.
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
    """A table's columns in their order, with when each became what it is."""
    where = "WHERE keyspace_name = %s AND table_name = %s"
    names = "column_name, kind, position, type, clustering_order, writetime(type) AS written"
    columns = live.select("system_schema.columns", names, where, [keyspace, name])
    return sorted(columns, key=lambda each: (_KIND_ORDER.get(each["kind"], 3), each["position"], each["column_name"]))


def _build_ddl(
    live: ScyllaSession, keyspace: str, name: str, columns: Sequence[CqlRow], options: Mapping[str, str]
) -> str:
    fields = "type_name, field_names, field_types"
    types = live.select("system_schema.types", fields, "WHERE keyspace_name = %s", [keyspace])
    made = [_type_ddl(keyspace, row) for row in _needed_types(types, columns)]
    partition = ", ".join(quote_name(each["column_name"]) for each in columns if each["kind"] == "partition_key")
    clustering = [each for each in columns if each["kind"] == "clustering"]
    listed = "".join(f"    {_column_ddl(each)},\n" for each in columns)
    after = "".join(f", {quote_name(each['column_name'])}" for each in clustering)
    order = ", ".join(f"{quote_name(each['column_name'])} {each['clustering_order'].upper()}" for each in clustering)
    said = ", ".join(f"'{key}': '{value}'" for key, value in options.items() if key in _CDC_OPTIONS)
    made.append(
        f"CREATE TABLE {quote_name(keyspace)}.{quote_name(name)} (\n{listed}    PRIMARY KEY (({partition}){after})\n) "
        f"WITH cdc = {{{said}}}{f' AND CLUSTERING ORDER BY ({order})' if order else ''};"
    )
    return "\n".join(made)


_CDC_OPTIONS = ("enabled", "preimage", "postimage", "delta", "ttl")


def _column_ddl(row: CqlRow) -> str:
    return f"{quote_name(row['column_name'])} {row['type']}{' static' if row['kind'] == 'static' else ''}"


def _type_ddl(keyspace: str, row: CqlRow) -> str:
    pairs = zip(row["field_names"], row["field_types"], strict=True)
    fields = ", ".join(f"{quote_name(name)} {kind}" for name, kind in pairs)
    return f"CREATE TYPE IF NOT EXISTS {quote_name(keyspace)}.{quote_name(row['type_name'])} ({fields});"


def _needed_types(types: Sequence[CqlRow], columns: Sequence[CqlRow]) -> list[CqlRow]:
    """The types that the columns use, each behind those that it is made of."""
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
