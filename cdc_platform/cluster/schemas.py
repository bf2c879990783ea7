"""The tables of a live cluster that have a CDC log: their options, when it was made, and the CQL that makes them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cdc_platform.clock import DAY_SECONDS, Milliseconds, ms_of
from cdc_platform.cluster import tables
from cdc_platform.cluster.alterations import Alterations, Name, name_of
from cdc_platform.cluster.session import LiveCluster, Row
from cdc_platform.cluster.tables import Layout
from cdc_platform.cql.names import quoted
from cdc_platform.cql.scalars import timeuuid_us
from cdc_platform.cql.schema import SearchIndex, unknown_option
from cdc_platform.cql.search_indexes import SEARCH_CLASSES, is_known
from cdc_platform.cql.written import index_notes
from cdc_platform.records.table_history import CdcTable

_LOG = "_scylla_cdc_log"
_DEFAULT_TTL = DAY_SECONDS
_ORDER = {"partition_key": 0, "clustering": 1, "static": 2, "regular": 3}


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


def read_logged_tables(live: LiveCluster, layout: Layout) -> list[LoggedTable]:
    """Every table whose log is in the schema, by name, whether its CDC is on or was turned off.

    Raises:
        NotGranted, Unreachable, Refused: the schema could not be read.
    """
    by_name = {name_of(row): row for row in live.select("system_schema.tables", "*")}
    more = _more(live, layout)
    times = Alterations.read(live, by_name, more)
    indexes = _indexes(live)
    found = []
    for keyspace, name in sorted(by_name):
        log = by_name.get((keyspace, name + _LOG))
        if log is None:
            continue
        given = dict(more.get((keyspace, name), {}).get("cdc") or ()) or _of_extension(
            by_name[keyspace, name]["extensions"]
        )
        said = given or {}
        unknown = "its CDC options cannot be read" if given is None else unknown_option(said)
        mine = indexes.get((keyspace, name), [])
        searches = [each for each in mine if each.class_name in SEARCH_CLASSES]
        by_index = any(SEARCH_CLASSES[each.class_name] for each in searches) and not _is_on(said)
        said = said | {"enabled": "true"} if by_index else said
        strange = next((each.class_name for each in mine if not is_known(each.class_name)), None)
        if strange is not None and not _is_on(said):
            unknown = unknown or f"its index class {strange!r} is not known"
        columns = _columns(live, keyspace, name)
        note = times.note((keyspace, name), columns)
        ddl = _ddl(live, keyspace, name, columns, said) + (f"\n{note}" if note else "")
        ddl += "".join(f"\n{line}" for line in index_notes(searches, by_index=by_index))
        found.append(LoggedTable(keyspace, name, said, created_ms(log["id"]), ddl, unknown))
    return found


def _is_on(options: Mapping[str, str]) -> bool:
    return options.get("enabled", "false").lower() in ("true", "1")


def _indexes(live: LiveCluster) -> dict[Name, list[SearchIndex]]:
    """The indexes that have a class, by the name of their table."""
    found: dict[Name, list[SearchIndex]] = {}
    for row in sorted(live.select("system_schema.indexes", "*"), key=lambda row: row["index_name"]):
        class_name = (row["options"] or {}).get("class_name")
        if class_name:
            found.setdefault(name_of(row), []).append(SearchIndex(row["index_name"], class_name.lower()))
    return found


def created_ms(id_: UUID | None) -> Milliseconds | None:
    """When a table was made (ms), which a timeuuid as its ID tells."""
    if id_ is None or id_.version != 1:
        return None
    return ms_of(timeuuid_us(id_))


def _more(live: LiveCluster, layout: Layout) -> dict[Name, Row]:
    """What ScyllaDB has of tables beside what Cassandra has, by name."""
    if tables.SCYLLA_TABLES not in layout:
        return {}
    return {name_of(row): row for row in live.select(tables.SCYLLA_TABLES, "*", at=live.contact)}


def _of_extension(extensions: Mapping[str, bytes] | None) -> dict[str, str] | None:
    """The options in the blob that clients read: a count, then texts with their lengths, little-endian.

    None where they cannot be read.
    """
    blob = (extensions or {}).get("cdc", b"")
    try:
        texts = list(_texts(blob)) if blob else []
    except (struct.error, UnicodeDecodeError):
        return None
    return dict(zip(texts[::2], texts[1::2], strict=False))


def _texts(blob: bytes) -> Iterator[str]:
    (pairs,) = struct.unpack_from("<i", blob)
    at = 4
    for _ in range(2 * min(max(pairs, 0), 64)):
        (length,) = struct.unpack_from("<i", blob, at)
        at += 4 + length
        yield blob[at - length : at].decode()


def _columns(live: LiveCluster, keyspace: str, name: str) -> list[Row]:
    """A table's columns in their order, with when each became what it is."""
    where = "WHERE keyspace_name = %s AND table_name = %s"
    names = "column_name, kind, position, type, clustering_order, writetime(type) AS written"
    columns = live.select("system_schema.columns", names, where, [keyspace, name])
    return sorted(columns, key=lambda each: (_ORDER.get(each["kind"], 3), each["position"], each["column_name"]))


def _ddl(live: LiveCluster, keyspace: str, name: str, columns: Sequence[Row], options: Mapping[str, str]) -> str:
    fields = "type_name, field_names, field_types"
    types = live.select("system_schema.types", fields, "WHERE keyspace_name = %s", [keyspace])
    made = [_type(keyspace, row) for row in _needed(types, columns)]
    partition = ", ".join(quoted(each["column_name"]) for each in columns if each["kind"] == "partition_key")
    clustering = [each for each in columns if each["kind"] == "clustering"]
    listed = "".join(f"    {_column(each)},\n" for each in columns)
    after = "".join(f", {quoted(each['column_name'])}" for each in clustering)
    order = ", ".join(f"{quoted(each['column_name'])} {each['clustering_order'].upper()}" for each in clustering)
    said = ", ".join(f"'{key}': '{value}'" for key, value in options.items() if key in _KNOWN)
    made.append(
        f"CREATE TABLE {quoted(keyspace)}.{quoted(name)} (\n{listed}    PRIMARY KEY (({partition}){after})\n) "
        f"WITH cdc = {{{said}}}{f' AND CLUSTERING ORDER BY ({order})' if order else ''};"
    )
    return "\n".join(made)


_KNOWN = ("enabled", "preimage", "postimage", "delta", "ttl")


def _column(row: Row) -> str:
    return f"{quoted(row['column_name'])} {row['type']}{' static' if row['kind'] == 'static' else ''}"


def _type(keyspace: str, row: Row) -> str:
    pairs = zip(row["field_names"], row["field_types"], strict=True)
    fields = ", ".join(f"{quoted(name)} {kind}" for name, kind in pairs)
    return f"CREATE TYPE IF NOT EXISTS {quoted(keyspace)}.{quoted(row['type_name'])} ({fields});"


def _needed(types: Sequence[Row], columns: Sequence[Row]) -> list[Row]:
    """The types that the columns use, each behind those that it is made of."""
    by_name: dict[str, Row] = {row["type_name"]: row for row in types}
    seen: dict[str, Any] = {}

    def visit(text: str) -> None:
        for name, row in by_name.items():
            if name not in seen and quoted(name) in text:
                seen[name] = None
                for inner in row["field_types"]:
                    visit(inner)
                del seen[name]
                seen[name] = row

    for column in columns:
        visit(column["type"])
    return list(seen.values())
