"""A home's published tables and logs, written into a CQL server that is not production, to rehearse consumers there.

What it refuses stands here: keyspaces that hold anything else, the cluster that the home was seen of, clusters that are
observed, and what an export of another home has left. How rows are sent is `writing`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cdc_platform.clock import Milliseconds, format_ms, ms_from_datetime
from cdc_platform.cluster import known
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.session import LiveCluster, connected
from cdc_platform.cluster.writing import Writer
from cdc_platform.cql.names import is_name, quoted
from cdc_platform.cql.scalars import BIGINT, BLOB, INT, TEXT, TIMESTAMP, TINYINT, UUID_TYPE
from cdc_platform.cql.types import CqlType, SetType, Value
from cdc_platform.errors import InputError, StateError
from cdc_platform.home import Home
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    CDC_LOCAL,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    Table,
)
from cdc_platform.lake.verification import assert_as_committed
from cdc_platform.log.exporting import StoredLog, stored_logs
from cdc_platform.records import cdc_local
from cdc_platform.records.ring import host_ids
from cdc_platform.sources.exporting import parts_of

MARK = "cdc_platform_export"
"""The table by which a keyspace says that it may be written to."""
PREFIX, RATE = "scylla", 2_000
_MOST_PREFIX = 25
"""With `_distributed_everywhere` behind it that is a name of 48 characters, the most that all versions take."""
_MARK_COLUMNS = "(key text PRIMARY KEY)"
_ANYWHERE = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
_STREAMS = SetType(BLOB, True)


@dataclass(frozen=True)
class _Shape:
    """A table of ScyllaDB's as clients read it: where the server has it, its columns, its key in CQL."""

    suffix: str
    name: str
    columns: tuple[tuple[str, CqlType], ...]
    key: str


_SHAPES = {
    STREAMS_DESCRIPTIONS: _Shape(
        "_distributed",
        "cdc_streams_descriptions",
        (("time", TIMESTAMP), ("expired", TIMESTAMP), ("streams", _STREAMS)),
        "time",
    ),
    STREAMS_DESCRIPTIONS_V2: _Shape(
        "_distributed",
        "cdc_streams_descriptions_v2",
        (("time", TIMESTAMP), ("range_end", BIGINT), ("streams", _STREAMS)),
        "time, range_end",
    ),
    TABLET_STREAMS: _Shape(
        "",
        "cdc_streams",
        (
            ("keyspace_name", TEXT),
            ("table_name", TEXT),
            ("timestamp", TIMESTAMP),
            ("stream_state", TINYINT),
            ("stream_id", BLOB),
        ),
        "(keyspace_name, table_name), timestamp, stream_state, stream_id",
    ),
}
_LOCAL = _Shape("", "cdc_local", (("key", TEXT), ("streams_timestamp", TIMESTAMP), ("uuid", UUID_TYPE)), "key")
_KEYSPACES = _Shape("_schema", "scylla_keyspaces", (("keyspace_name", TEXT), ("initial_tablets", INT)), "keyspace_name")
_MARKS = {
    TABLET_TIMESTAMPS: _Shape(
        "",
        "cdc_timestamps",
        (("keyspace_name", TEXT), ("table_name", TEXT), ("timestamp", TIMESTAMP)),
        "(keyspace_name, table_name), timestamp",
    ),
    GENERATION_TIMESTAMPS: _Shape(
        "_distributed",
        "cdc_generation_timestamps",
        (("key", TEXT), ("time", TIMESTAMP), ("expired", TIMESTAMP)),
        "key, time",
    ),
}
"""What readers find the rest by: written last."""
_NEWEST_FIRST = {"cdc_generation_timestamps": "time", "cdc_timestamps": "timestamp"}


@dataclass(frozen=True)
class TableToWrite:
    """A table of the server: `made` are the statements that make it, `values` the rows, by its columns."""

    keyspace: str
    name: str
    columns: tuple[tuple[str, CqlType], ...]
    made: tuple[str, ...]
    rows: int
    values: Callable[[], Iterable[Sequence[Value | None]]]

    @property
    def full_name(self) -> str:
        """As CQL names it."""
        return f"{quoted(self.keyspace)}.{quoted(self.name)}"


@dataclass(frozen=True)
class Written:
    """What an export wrote, or would write. `keyspaces`: each with "new", "empty" or "marked"."""

    cluster: str
    keyspaces: dict[str, str]
    tables: tuple[TableToWrite, ...]
    statements: tuple[str, ...]
    rows: int


def export_into(
    home: Home, cluster: KnownCluster, *, prefix: str = PREFIX, rate: int = RATE, replicas: int = 1, run: bool = True
) -> Written:
    """Write what `home` publishes, and its logs, into `cluster`; the same again changes nothing.

    What ScyllaDB has in `system` and `system_distributed` goes into `prefix` and `prefix`_distributed, logs under their
    names. Timestamps come last: a client that reads meanwhile sees whole generations. Without `run` nothing is written.

    Raises:
        StateError: the server is the home's own cluster, or one that is observed and has no mark; a keyspace holds
            something that no export has left, a table has other columns or is not what was committed, or there is
            nothing to export.
        MayNotWrite, NotGranted, Unreachable, Refused: the server does not take it.
    """
    if prefix.startswith("system"):
        raise InputError(f"--prefix {prefix} would be ScyllaDB's own keyspaces, which no export writes; name another")
    if not is_name(prefix, _MOST_PREFIX):
        raise InputError(
            f"--prefix {prefix!r} begins no keyspace's name; give letters, digits and underscores, at most"
            f" {_MOST_PREFIX}"
        )
    lake = Lake(home.lake)
    tables = list(_tables(lake, prefix))
    if not tables:
        raise StateError("the home holds no published generation, no stream set and no log: there is nothing to export")
    names = sorted({each.keyspace for each in tables})
    with connected(cluster.name, cluster.connection, known_nodes=cluster.node_addresses) as live:
        _assert_other(home, lake, live)
        keyspaces = {name: _state(live, name) for name in names}
        _assert_no_production(home, cluster, live, keyspaces)
        _assert_columns(live, tables)
        _assert_no_more(live, tables, keyspaces)
        made = [(each.full_name, text) for each in tables for text in each.made]
        if run:
            read = {table.full_name for table in (*_SHAPES, CDC_LOCAL)} | {log.full_name for log in stored_logs(lake)}
            assert_as_committed(lake, read, "an export")
            writer = Writer(live, rate)
            for name in names:
                writer.make_keyspace(name, replicas)
                # First of all: a keyspace that holds anything of ours says so.
                writer.make(name, _mark(name))
            for name, text in dict.fromkeys(made):
                writer.make(name, text)
            for each in tables:
                writer.put(each.full_name, each.columns, each.values())
    statements = tuple(dict.fromkeys(text for _, text in made))
    return Written(cluster.name, keyspaces, tuple(tables), statements, sum(each.rows for each in tables))


def _tables(lake: Lake, prefix: str) -> Iterator[TableToWrite]:
    """In the order in which they are written."""
    for table, shape in _SHAPES.items():
        if lake.exists(table):
            yield _published(lake, prefix, table, shape)
    if rewritten := _rewritten(lake):
        yield _of(prefix, _LOCAL, [(key, None, None) for key in rewritten])
    if lake.exists(TABLET_TIMESTAMPS):
        of_tablets = sorted(set(lake.read(TABLET_TIMESTAMPS, ["keyspace_name"])["keyspace_name"].to_pylist()))
        yield _of(prefix, _KEYSPACES, [(name, 0) for name in of_tablets])
    yield from map(_log, stored_logs(lake))
    for table, shape in _MARKS.items():
        if lake.exists(table):
            yield _published(lake, prefix, table, shape)


def _rewritten(lake: Lake) -> list[str]:
    """The key by which clients see that the first format's generations were rewritten, where every node has it."""
    rows = cdc_local.known(lake)
    done = {host_id for host_id, key in rows if key == cdc_local.REWRITTEN}
    return [cdc_local.REWRITTEN] if done and done == {host_id for host_id, _ in rows} else []


def _of(prefix: str, shape: _Shape, rows: list[tuple[Value | None, ...]]) -> TableToWrite:
    keyspace = prefix + shape.suffix
    return TableToWrite(keyspace, shape.name, shape.columns, (_made(keyspace, shape),), len(rows), lambda: rows)


def _published(lake: Lake, prefix: str, table: Table, shape: _Shape) -> TableToWrite:
    names = [name for name, _ in shape.columns]
    rows = sum(file.rows for file in lake.data_files(table))

    def values() -> Iterator[list[Value | None]]:
        for filters in parts_of(lake, table):
            for row in lake.read(table, names, filters).to_pylist():
                yield [_value(kind, row[name]) for name, kind in shape.columns]

    keyspace = prefix + shape.suffix
    return TableToWrite(keyspace, shape.name, shape.columns, (_made(keyspace, shape),), rows, values)


def _log(log: StoredLog) -> TableToWrite:
    columns = tuple((each.name, each.type) for each in log.columns)
    return TableToWrite(log.schema.keyspace, log.schema.log_name, columns, log.made, log.rows, log.values)


def _value(kind: CqlType, value: Any) -> Value | None:
    if value is None:
        return None
    if kind is TIMESTAMP:
        return ms_from_datetime(value)
    return UUID(value) if kind is UUID_TYPE else kind.canonical(value)


def _made(keyspace: str, shape: _Shape) -> str:
    columns = ", ".join(f"{quoted(name)} {kind.cql}" for name, kind in shape.columns)
    newest = _NEWEST_FIRST.get(shape.name)
    order = f" WITH CLUSTERING ORDER BY ({newest} DESC)" if newest else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(keyspace)}.{quoted(shape.name)} "
        f"({columns}, PRIMARY KEY ({shape.key})){order};"
    )


def _mark(keyspace: str) -> str:
    return f"CREATE TABLE IF NOT EXISTS {quoted(keyspace)}.{MARK} {_MARK_COLUMNS};"


def _assert_other(home: Home, lake: Lake, live: LiveCluster) -> None:
    """Refuse the cluster that the home was seen of: its hosts are in the ring, or in what an observation noted."""
    mine = {UUID(each) for each in host_ids(lake)} | set(known.seen_of(home))
    there = next((each for each in live.members if each.host_id in mine), None)
    if there is not None:
        raise StateError(
            f"{live.name} is the cluster that this home is of: host {there.host_id} at {there.address} is in its ring; "
            "export into another one, which is not production"
        )


def _assert_no_production(home: Home, cluster: KnownCluster, live: LiveCluster, keyspaces: Mapping[str, str]) -> None:
    """Refuse a cluster that is observed, as production is, unless somebody has marked every keyspace there."""
    unmarked = next((name for name, state in keyspaces.items() if state != "marked"), None)
    if unmarked is None:
        return
    hosts = known.observed_hosts(home)
    there = (hosts[each.host_id] for each in live.members if each.host_id is not None and each.host_id in hosts)
    name = next(there, None if cluster.identity is None else cluster.name)
    if name is not None:
        made = f"CREATE KEYSPACE IF NOT EXISTS {quoted(unmarked)} WITH replication = {_ANYWHERE};"
        raise StateError(
            f"{live.name} is a cluster that is observed here, as {name}: nothing is written to production; export into "
            f"another one, or where that one is for rehearsals, mark each keyspace there, the first with: {made} "
            f"{_mark(unmarked)}"
        )


def _state(live: LiveCluster, keyspace: str) -> str:
    """Whether a keyspace is new, empty or marked.

    Raises:
        StateError: it is none of them.
    """
    where = "WHERE keyspace_name = %s"
    if not live.select("system_schema.keyspaces", "keyspace_name", where, [keyspace]):
        return "new"
    tables = sorted(row["table_name"] for row in live.select("system_schema.tables", "table_name", where, [keyspace]))
    if MARK in tables:
        return "marked"
    if tables:
        raise StateError(
            f"keyspace {keyspace} of {live.name} holds {tables[0]} and has no mark; if that server is not production, "
            f"mark it there with: {_mark(keyspace)}"
        )
    return "empty"


def _assert_columns(live: LiveCluster, tables: Sequence[TableToWrite]) -> None:
    """Refuse tables that are there with other columns, as of an export before an ALTER TABLE."""
    for each in tables:
        where = "WHERE keyspace_name = %s AND table_name = %s"
        rows = live.select("system_schema.columns", "column_name", where, [each.keyspace, each.name])
        there, here = {row["column_name"] for row in rows}, {name for name, _ in each.columns}
        if there and not here <= there:
            raise StateError(
                f"{each.full_name} of {live.name} has no column {', '.join(sorted(here - there))}, which the home has; "
                f"drop it there, and export again: DROP TABLE {each.full_name};"
            )


def _assert_no_more(live: LiveCluster, tables: Sequence[TableToWrite], keyspaces: dict[str, str]) -> None:
    """Refuse a server that publishes a time that the home has not: two histories would be read as one."""
    shape = _MARKS[GENERATION_TIMESTAMPS]
    table = next((each for each in tables if each.name == shape.name), None)
    if table is None or keyspaces[table.keyspace] != "marked":
        return
    where = "WHERE keyspace_name = %s AND table_name = %s"
    if not live.select("system_schema.tables", "table_name", where, [table.keyspace, table.name]):
        return
    here = {values[1] for values in table.values()}
    for row in live.select(table.full_name, "time", "WHERE key = 'timestamps'"):
        time_ms = Milliseconds(ms_from_datetime(row["time"]))
        if time_ms not in here:
            raise StateError(
                f"{table.full_name} of {live.name} has generation {format_ms(time_ms)}, which this home has not: it is "
                f"of another home, or has expired here; drop the keyspace there first: DROP KEYSPACE {table.keyspace};"
            )
