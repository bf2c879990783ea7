"""Write a home's published tables and logs into a CQL server outside production, to rehearse consumers.

This is the only module that sends statements other than SELECT to a cluster. It refuses keyspaces with other content,
the home's own cluster, observed clusters and exports of another home. Each row names its key, so a repeated export
changes nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cassandra import InvalidRequest, Unauthorized
from cassandra.cluster import ResponseFuture
from cassandra.query import UNSET_VALUE, BoundStatement, SimpleStatement

from cdc_platform.cdclog import StoredLog, list_stored_logs
from cdc_platform.clock import Milliseconds, format_ms, ms_from_datetime
from cdc_platform.cql import (
    BIGINT,
    BLOB,
    INT,
    TEXT,
    TIMESTAMP,
    TINYINT,
    UUID_TYPE,
    CqlType,
    SetType,
    Value,
    is_valid_name,
    quote_name,
)
from cdc_platform.delta import Lake, assert_tables_as_committed
from cdc_platform.errors import InputError, PlatformError, StateError
from cdc_platform.home_location import HomeLocation
from cdc_platform.importing import partition_filters
from cdc_platform.metastore import cdc_local, read_host_ids
from cdc_platform.scylla import registry
from cdc_platform.scylla.errors import DRIVER_ERRORS, NotGranted, describe_role, server_message, translate_error
from cdc_platform.scylla.registry import ScyllaCluster
from cdc_platform.scylla.session import ScyllaSession, open_session, retry_unreachable
from cdc_platform.tables import (
    CDC_LOCAL,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    Table,
)

MAX_ROWS_IN_FLIGHT = 8
"""The most rows in flight at once."""


class MayNotWrite(NotGranted):
    """The role may read but not write."""

    code = "may-not-write"

    def __init__(self, table: str, role: str | None) -> None:
        self.grant = f"GRANT CREATE, MODIFY ON ALL KEYSPACES TO {role or 'ROLE'}"
        StateError.__init__(
            self, f"{describe_role(role)} may not write {table}; an administrator of that cluster runs: {self.grant};"
        )


class ClusterWriter:
    """Writes through a session, at most `rows_per_second`."""

    def __init__(self, live: ScyllaSession, rows_per_second: int) -> None:
        self._live, self._rate = live, rows_per_second
        self._begun, self._sent = time.monotonic(), 0

    def make_keyspace(self, name: str, replicas: int) -> None:
        """Create a keyspace, if it does not exist, with replicas in the datacenter of the session."""
        datacenter = next(member.datacenter for member in self._live.members if member.address == self._live.contact)
        replication = "{" + f"'class': 'NetworkTopologyStrategy', '{datacenter}': {replicas}" + "}"
        self._run(f"CREATE KEYSPACE IF NOT EXISTS {quote_name(name)} WITH replication = {replication}", name)

    def make(self, table: str, statement: str) -> None:
        """Create a type or a table, by a statement with IF NOT EXISTS."""
        if not statement.startswith(("CREATE TABLE IF NOT EXISTS ", "CREATE TYPE IF NOT EXISTS ")):
            raise AssertionError(f"not a statement that makes a table or type: {statement[:60]}")
        self._run(statement.rstrip(";"), table)

    def put(self, table: str, columns: Sequence[tuple[str, CqlType]], rows: Iterable[Sequence[Value | None]]) -> int:
        """Write rows with all their columns, leaving nulls unset; return the number of rows.

        Raises:
            MayNotWrite, StateError, Unreachable: the server rejected a row, or did not accept it in three attempts.
        """
        names, marks = ", ".join(quote_name(name) for name, _ in columns), ", ".join("?" for _ in columns)
        text = f"INSERT INTO {table} ({names}) VALUES ({marks})"
        prepared = self._told(table, lambda: self._live.driver.prepare(text))
        waiting: deque[tuple[BoundStatement, ResponseFuture]] = deque()
        count = 0
        for row in rows:
            bound = BoundStatement(prepared, consistency_level=self._live.consistency)
            bound.values = [_encode_value(kind, value) for (_, kind), value in zip(columns, row, strict=True)]
            bound.is_idempotent = True
            if len(waiting) == MAX_ROWS_IN_FLIGHT:
                self._done(table, *waiting.popleft())
            self._pace()
            waiting.append((bound, self._live.driver.execute_async(bound)))
            count += 1
        while waiting:
            self._done(table, *waiting.popleft())
        return count

    def _done(self, table: str, bound: BoundStatement, first: ResponseFuture) -> None:
        for attempt in retry_unreachable():
            with attempt:
                retry = attempt.retry_state.attempt_number > 1
                future = self._live.driver.execute_async(bound) if retry else first
                self._told(table, future.result)

    def _run(self, statement: str, what: str) -> None:
        level = self._live.consistency
        self._told(what, lambda: self._live.driver.execute(SimpleStatement(statement, consistency_level=level)))

    def _told(self, table: str, send: Callable[[], Any]) -> Any:
        try:
            return send()
        except DRIVER_ERRORS as error:
            raise self._refusal(error, table) from None

    def _refusal(self, error: BaseException, table: str) -> PlatformError:
        if isinstance(error, Unauthorized):
            return MayNotWrite(table, self._live.role)
        if isinstance(error, InvalidRequest):
            return StateError(f"{self._live.name} takes no rows of {table}: {server_message(error)}")
        return translate_error(error, self._live.name, table, self._live.role)

    def _pace(self) -> None:
        ahead = self._begun + self._sent / self._rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        self._sent += 1


def _encode_value(kind: CqlType, value: Value | None) -> object:
    return UNSET_VALUE if value is None else kind.to_bytes(value)


EXPORT_MARKER_TABLE = "cdc_platform_export"
"""The table that marks a keyspace as writable by exports."""
DEFAULT_PREFIX, DEFAULT_RATE = "scylla", 2_000
_MAX_PREFIX_LENGTH = 25
"""With `_distributed_everywhere` appended this makes a name of 48 characters, the longest that all versions accept."""
_MARKER_COLUMNS = "(key text PRIMARY KEY)"
_MARKER_REPLICATION = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
_STREAMS = SetType(BLOB, True)


@dataclass(frozen=True)
class _TableShape:
    """A table of ScyllaDB as clients read it: its keyspace's suffix, its name, its columns, and its key in CQL."""

    suffix: str
    name: str
    columns: tuple[tuple[str, CqlType], ...]
    key: str


_SHAPES = {
    STREAMS_DESCRIPTIONS: _TableShape(
        "_distributed",
        "cdc_streams_descriptions",
        (("time", TIMESTAMP), ("expired", TIMESTAMP), ("streams", _STREAMS)),
        "time",
    ),
    STREAMS_DESCRIPTIONS_V2: _TableShape(
        "_distributed",
        "cdc_streams_descriptions_v2",
        (("time", TIMESTAMP), ("range_end", BIGINT), ("streams", _STREAMS)),
        "time, range_end",
    ),
    TABLET_STREAMS: _TableShape(
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
_LOCAL_SHAPE = _TableShape(
    "", "cdc_local", (("key", TEXT), ("streams_timestamp", TIMESTAMP), ("uuid", UUID_TYPE)), "key"
)
_KEYSPACES_SHAPE = _TableShape(
    "_schema", "scylla_keyspaces", (("keyspace_name", TEXT), ("initial_tablets", INT)), "keyspace_name"
)
_TIMESTAMP_SHAPES = {
    TABLET_TIMESTAMPS: _TableShape(
        "",
        "cdc_timestamps",
        (("keyspace_name", TEXT), ("table_name", TEXT), ("timestamp", TIMESTAMP)),
        "(keyspace_name, table_name), timestamp",
    ),
    GENERATION_TIMESTAMPS: _TableShape(
        "_distributed",
        "cdc_generation_timestamps",
        (("key", TEXT), ("time", TIMESTAMP), ("expired", TIMESTAMP)),
        "key, time",
    ),
}
"""The tables by which readers find all the others; they are written last."""
_NEWEST_FIRST = {"cdc_generation_timestamps": "time", "cdc_timestamps": "timestamp"}


@dataclass(frozen=True)
class TableToWrite:
    """A table to write: `made` are the statements that create it, `values` yields the rows, by its columns."""

    keyspace: str
    name: str
    columns: tuple[tuple[str, CqlType], ...]
    made: tuple[str, ...]
    rows: int
    values: Callable[[], Iterable[Sequence[Value | None]]]

    @property
    def full_name(self) -> str:
        """Return the quoted CQL name."""
        return f"{quote_name(self.keyspace)}.{quote_name(self.name)}"


@dataclass(frozen=True)
class ClusterExport:
    """What an export wrote, or would write. `keyspaces` maps each to "new", "empty" or "marked"."""

    cluster: str
    keyspaces: dict[str, str]
    tables: tuple[TableToWrite, ...]
    statements: tuple[str, ...]
    rows: int


def export_into_cluster(
    home: HomeLocation,
    cluster: ScyllaCluster,
    *,
    prefix: str = DEFAULT_PREFIX,
    rate: int = DEFAULT_RATE,
    replicas: int = 1,
    run: bool = True,
) -> ClusterExport:
    """Write what `home` publishes, and its logs, into `cluster`; a repeated export changes nothing.

    The tables of ScyllaDB's `system` and `system_distributed` go into `prefix` and `prefix`_distributed; logs keep
    their names. Timestamps come last, so that a client that reads meanwhile sees complete generations. Without `run`
    nothing is written.

    Raises:
        StateError: the server is the home's own cluster, or an observed cluster without a mark; a keyspace holds
            content that no export has written; a table has other columns or differs from what was committed; or there
            is nothing to export.
        MayNotWrite, NotGranted, Unreachable, Refused: the server rejects the export.
    """
    if prefix.startswith("system"):
        raise InputError(
            f"--prefix {prefix} would be ScyllaDB's own keyspaces, which exports never write; choose another"
        )
    if not is_valid_name(prefix, _MAX_PREFIX_LENGTH):
        raise InputError(
            f"--prefix {prefix!r} is no valid start of a keyspace name; use letters, digits and underscores, at most"
            f" {_MAX_PREFIX_LENGTH}"
        )
    lake = Lake(home.lake)
    tables = list(_plan_tables(lake, prefix))
    if not tables:
        raise StateError(
            "the home has no published generation, no stream set and no log, so there is nothing to export"
        )
    names = sorted({planned.keyspace for planned in tables})
    with open_session(cluster.name, cluster.connection, known_nodes=cluster.node_addresses) as live:
        _assert_other_cluster(home, lake, live)
        keyspaces = {name: _keyspace_state(live, name) for name in names}
        _assert_not_production(home, cluster, live, keyspaces)
        _assert_columns(live, tables)
        _assert_no_foreign_times(live, tables, keyspaces)
        creations = [(planned.full_name, text) for planned in tables for text in planned.made]
        if run:
            read = {table.full_name for table in (*_SHAPES, CDC_LOCAL)} | {
                log.full_name for log in list_stored_logs(lake)
            }
            assert_tables_as_committed(lake, read, "an export")
            writer = ClusterWriter(live, rate)
            for name in names:
                writer.make_keyspace(name, replicas)
                # Create the mark first: every keyspace with content of ours has one.
                writer.make(name, _marker_statement(name))
            for name, text in dict.fromkeys(creations):
                writer.make(name, text)
            for planned in tables:
                writer.put(planned.full_name, planned.columns, planned.values())
    statements = tuple(dict.fromkeys(text for _, text in creations))
    return ClusterExport(cluster.name, keyspaces, tuple(tables), statements, sum(planned.rows for planned in tables))


def _plan_tables(lake: Lake, prefix: str) -> Iterator[TableToWrite]:
    """Yield the tables in the order in which they are written."""
    for table, shape in _SHAPES.items():
        if lake.exists(table):
            yield _published_table(lake, prefix, table, shape)
    if rewritten := _rewritten(lake):
        yield _system_table(prefix, _LOCAL_SHAPE, [(key, None, None) for key in rewritten])
    if lake.exists(TABLET_TIMESTAMPS):
        keyspaces = sorted(set(lake.read(TABLET_TIMESTAMPS, ["keyspace_name"])["keyspace_name"].to_pylist()))
        yield _system_table(prefix, _KEYSPACES_SHAPE, [(name, 0) for name in keyspaces])
    yield from map(_log_table, list_stored_logs(lake))
    for table, shape in _TIMESTAMP_SHAPES.items():
        if lake.exists(table):
            yield _published_table(lake, prefix, table, shape)


def _rewritten(lake: Lake) -> list[str]:
    """Return the key that marks the first format's generations as rewritten, if every node has it; else nothing."""
    rows = cdc_local.read_cdc_local(lake)
    done = {host_id for host_id, key in rows if key == cdc_local.REWRITTEN_KEY}
    return [cdc_local.REWRITTEN_KEY] if done and done == {host_id for host_id, _ in rows} else []


def _system_table(prefix: str, shape: _TableShape, rows: list[tuple[Value | None, ...]]) -> TableToWrite:
    keyspace = prefix + shape.suffix
    return TableToWrite(
        keyspace, shape.name, shape.columns, (_create_statement(keyspace, shape),), len(rows), lambda: rows
    )


def _published_table(lake: Lake, prefix: str, table: Table, shape: _TableShape) -> TableToWrite:
    names = [name for name, _ in shape.columns]
    rows = sum(file.rows for file in lake.data_files(table))

    def values() -> Iterator[list[Value | None]]:
        for filters in partition_filters(lake, table):
            for row in lake.read(table, names, filters).to_pylist():
                yield [_to_cql_value(kind, row[name]) for name, kind in shape.columns]

    keyspace = prefix + shape.suffix
    return TableToWrite(keyspace, shape.name, shape.columns, (_create_statement(keyspace, shape),), rows, values)


def _log_table(log: StoredLog) -> TableToWrite:
    columns = tuple((column.name, column.type) for column in log.columns)
    return TableToWrite(log.schema.keyspace, log.schema.log_name, columns, log.ddl, log.rows, log.values)


def _to_cql_value(kind: CqlType, value: Any) -> Value | None:
    if value is None:
        return None
    if kind is TIMESTAMP:
        return ms_from_datetime(value)
    return UUID(value) if kind is UUID_TYPE else kind.canonical(value)


def _create_statement(keyspace: str, shape: _TableShape) -> str:
    columns = ", ".join(f"{quote_name(name)} {kind.cql}" for name, kind in shape.columns)
    newest = _NEWEST_FIRST.get(shape.name)
    order = f" WITH CLUSTERING ORDER BY ({newest} DESC)" if newest else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {quote_name(keyspace)}.{quote_name(shape.name)} "
        f"({columns}, PRIMARY KEY ({shape.key})){order};"
    )


def _marker_statement(keyspace: str) -> str:
    return f"CREATE TABLE IF NOT EXISTS {quote_name(keyspace)}.{EXPORT_MARKER_TABLE} {_MARKER_COLUMNS};"


def _assert_other_cluster(home: HomeLocation, lake: Lake, live: ScyllaSession) -> None:
    """Refuse the cluster that the home belongs to: its hosts are in the ring, or in an observation's record."""
    mine = {UUID(item) for item in read_host_ids(lake)} | set(registry.get_own_hosts(home))
    node = next((item for item in live.members if item.host_id in mine), None)
    if node is not None:
        raise StateError(
            f"{live.name} is the cluster that this home is of: host {node.host_id} at {node.address} is in its ring; "
            "export into another cluster that is not production"
        )


def _assert_not_production(
    home: HomeLocation, cluster: ScyllaCluster, live: ScyllaSession, keyspaces: Mapping[str, str]
) -> None:
    """Refuse an observed cluster, which may be production, unless every keyspace there carries the mark."""
    unmarked = next((name for name, state in keyspaces.items() if state != "marked"), None)
    if unmarked is None:
        return
    hosts = registry.list_observed_hosts(home)
    observed_names = (
        hosts[member.host_id] for member in live.members if member.host_id is not None and member.host_id in hosts
    )
    name = next(observed_names, None if cluster.identity is None else cluster.name)
    if name is not None:
        statement = f"CREATE KEYSPACE IF NOT EXISTS {quote_name(unmarked)} WITH replication = {_MARKER_REPLICATION};"
        raise StateError(
            f"{live.name} is a cluster that is observed here, as {name}: nothing is written to production; export into "
            f"another one, or where that one is for rehearsals, mark each keyspace there, the first with: {statement} "
            f"{_marker_statement(unmarked)}"
        )


def _keyspace_state(live: ScyllaSession, keyspace: str) -> str:
    """Return whether a keyspace is "new", "empty" or "marked".

    Raises:
        StateError: it has content and no mark.
    """
    where = "WHERE keyspace_name = %s"
    if not live.select("system_schema.keyspaces", "keyspace_name", where, [keyspace]):
        return "new"
    tables = sorted(row["table_name"] for row in live.select("system_schema.tables", "table_name", where, [keyspace]))
    if EXPORT_MARKER_TABLE in tables:
        return "marked"
    if tables:
        raise StateError(
            f"keyspace {keyspace} of {live.name} holds {tables[0]} and has no mark; if that server is not production, "
            f"mark it there with: {_marker_statement(keyspace)}"
        )
    return "empty"


def _assert_columns(live: ScyllaSession, tables: Sequence[TableToWrite]) -> None:
    """Refuse existing tables with other columns, such as those of an export before an ALTER TABLE."""
    for item in tables:
        where = "WHERE keyspace_name = %s AND table_name = %s"
        rows = live.select("system_schema.columns", "column_name", where, [item.keyspace, item.name])
        found, here = {row["column_name"] for row in rows}, {name for name, _ in item.columns}
        if found and not here <= found:
            raise StateError(
                f"{item.full_name} of {live.name} has no column {', '.join(sorted(here - found))}, which the home has; "
                f"drop the table there and export again: DROP TABLE {item.full_name};"
            )


def _assert_no_foreign_times(live: ScyllaSession, tables: Sequence[TableToWrite], keyspaces: dict[str, str]) -> None:
    """Refuse a server that publishes a time unknown to the home: clients would read two histories as one."""
    shape = _TIMESTAMP_SHAPES[GENERATION_TIMESTAMPS]
    table = next((candidate for candidate in tables if candidate.name == shape.name), None)
    if table is None or keyspaces[table.keyspace] != "marked":
        return
    where = "WHERE keyspace_name = %s AND table_name = %s"
    if not live.select("system_schema.tables", "table_name", where, [table.keyspace, table.name]):
        return
    home_times = {values[1] for values in table.values()}
    for row in live.select(table.full_name, "time", "WHERE key = 'timestamps'"):
        time_ms = Milliseconds(ms_from_datetime(row["time"]))
        if time_ms not in home_times:
            raise StateError(
                f"{table.full_name} of {live.name} has generation {format_ms(time_ms)}, which this home lacks: it is "
                f"from another home, or expired here; drop the keyspace there first: DROP KEYSPACE {table.keyspace};"
            )
