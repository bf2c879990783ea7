"""The contents of the stand-in's cluster: its schema and users, created once, and rows that tests write and remove.

A superuser writes them without the proxy, as ScyllaDB itself would.
"""

from __future__ import annotations

import struct
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent, execute_concurrent_with_args
from cassandra.policies import RoundRobinPolicy
from cassandra.query import BatchStatement, BatchType, SimpleStatement
from cassandra.util import uuid_from_time
from support.standin.far_rows import bytes_of, far_rows

from cdc_platform.clock import Milliseconds
from cdc_platform.cql import TableSchema, get_log_columns, quote_name
from cdc_platform.generations import TopologyDescription
from cdc_platform.ring import Node

OBSERVER = ("observer", "see-&-tell 'it'")
PLAIN = ("plain", "not-much")
EXPORTER = ("exporter", "brings-copies")
"""Users with their passwords: one may read all, one may read what every role may, one may write."""
NAME = "production"
# Not durable: otherwise Cassandra would write out the whole commit log before it drops a table.
_CLASS = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false"
_KEYSPACES = ("scylla", "scylla_schema", "scylla_distributed", "scylla_distributed_everywhere", "shop", '"Shop"')
_LOCAL_COLUMNS = (
    "cluster_name text, data_center text, host_id uuid, rack text, release_version text, rpc_address inet, "
    "schema_version uuid, tokens set<text>, supported_features text"
)
_TABLES = {
    "scylla.versions": "key text PRIMARY KEY, version text, build_mode text, build_id text",
    "scylla.scylla_local": "key text PRIMARY KEY, value text",
    "scylla.topology": "key text, host_id uuid, datacenter text, rack text, tokens set<text>, node_state text, "
    "shard_count int, ignore_msb int, release_version text, supported_features set<text>, "
    "committed_cdc_generations set<frozen<tuple<timestamp, timeuuid>>> STATIC, "
    "unpublished_cdc_generations set<frozen<tuple<timestamp, timeuuid>>> STATIC, enabled_features set<text> STATIC, "
    "version bigint STATIC, transition_state text STATIC, upgrade_state text STATIC, PRIMARY KEY (key, host_id)",
    "scylla.cdc_generations_v3": "key text, id timeuuid, range_end bigint, streams frozen<set<blob>>, "
    "ignore_msb tinyint, PRIMARY KEY (key, id, range_end)",
    "scylla.cdc_timestamps": "keyspace_name text, table_name text, timestamp timestamp, "
    "PRIMARY KEY ((keyspace_name, table_name), timestamp)",
    "scylla.cdc_streams": "keyspace_name text, table_name text, timestamp timestamp, stream_state tinyint, "
    "stream_id blob, PRIMARY KEY ((keyspace_name, table_name), timestamp, stream_state, stream_id)",
    "scylla_schema.scylla_tables": "keyspace_name text, table_name text, cdc map<text, text>, partitioner text, "
    "PRIMARY KEY (keyspace_name, table_name)",
    "scylla_distributed.cdc_generation_timestamps": "key text, time timestamp, expired timestamp, "
    "PRIMARY KEY (key, time)",
    "scylla_distributed.cdc_streams_descriptions_v2": "time timestamp, range_end bigint, streams frozen<set<blob>>, "
    "PRIMARY KEY (time, range_end)",
    "scylla_distributed.cdc_streams_descriptions": "time timestamp PRIMARY KEY, streams frozen<set<blob>>, "
    "expired timestamp",
    "scylla_distributed.cdc_generation_descriptions": "time timestamp PRIMARY KEY, "
    "description frozen<list<frozen<tuple<bigint, frozen<list<blob>>, tinyint>>>>, expired timestamp",
    "scylla_distributed_everywhere.cdc_generation_descriptions_v2": "id uuid, range_end bigint, ignore_msb tinyint, "
    "num_ranges int STATIC, streams frozen<set<blob>>, PRIMARY KEY (id, range_end)",
    "shop.orders": "customer text, item int, count int, note text, tags set<text>, PRIMARY KEY (customer, item)",
    "shop.orders_scylla_cdc_log": '"cdc$stream_id" blob, "cdc$time" timeuuid, "cdc$batch_seq_no" int, '
    'PRIMARY KEY ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")',
    '"Shop"."Carts"': '"Cart" text PRIMARY KEY, "order" int',
    '"Shop"."Carts_scylla_cdc_log"': '"cdc$stream_id" blob, "cdc$time" timeuuid, "cdc$batch_seq_no" int, '
    'PRIMARY KEY ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")',
}
_A_REQUEST = 24
"""Row changes per batch: Cassandra warns of much larger batches."""
_SHAPES = ("ALTER", "DROP", "CREATE TABLE")
_OF_RIGHTS = ("GRANT", "REVOKE", "DROP")
FEATURES = ("CDC", "CDC_GENERATIONS_V2")


class World:
    """The rows behind the proxy. `nodes` is the number of nodes with node-local tables."""

    def __init__(self, port: int, nodes: int) -> None:
        self.nodes = nodes
        self.changed = True
        """Whether anything was written since a reader last set this to False."""
        auth = PlainTextAuthProvider("cassandra", "cassandra")
        self._cluster = Cluster(
            ["127.0.0.1"],
            port=port,
            protocol_version=4,
            auth_provider=auth,
            schema_metadata_enabled=False,
            execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy(), request_timeout=60)},
        )
        self._session = self._cluster.connect()
        self._logged: dict[str, str] = {}
        self._kept = set[str]()
        self._are_reshaped = False
        self._held: list[tuple[str, Sequence[object]]] | None = None
        self._holder = 0
        self._tables = _TABLES | {
            f"node{node}.{table}": columns
            for node in range(nodes)
            for table, columns in {
                "local": f"key text PRIMARY KEY, broadcast_address inet, listen_address inet, partitioner text, "
                f"{_LOCAL_COLUMNS}",
                "peers": f"peer inet PRIMARY KEY, {_LOCAL_COLUMNS}",
                "cdc_local": "key text PRIMARY KEY, streams_timestamp timestamp, uuid uuid",
            }.items()
        }
        self._make()

    def _change(self, statement: str, values: Sequence[object] | None = None) -> None:
        self.changed = True
        # A demo's writer is another thread: its rows are sent at once, and none waits for another thread's changes.
        if self._held is None or self._holder != threading.get_ident():
            self._session.execute(statement, values)
            if statement.startswith(_OF_RIGHTS):  # Cassandra caches permissions for an hour
                self._session.execute("TRUNCATE system_views.permissions_cache_keys")
        else:
            self._held.append((statement, values or ()))

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Send the row changes of the block in one go at its end."""
        if self._held is not None:
            yield
            return
        self._held, self._holder = [], threading.get_ident()
        try:
            yield
            self._send(self._held)
        finally:
            self._held = None

    def _send(self, changes: Sequence[tuple[str, Sequence[object]]]) -> None:
        """Send several changes per request, because a request costs more than a row.

        All have one time, so none deletes another.
        """
        batches = []
        for at in range(0, len(changes), _A_REQUEST):
            batch = BatchStatement(BatchType.UNLOGGED)
            for statement, values in changes[at : at + _A_REQUEST]:
                batch.add(SimpleStatement(statement), values)
            batches.append((batch, ()))
        execute_concurrent(self._session, batches, concurrency=64)

    def stop(self) -> None:
        """Close the session."""
        self._cluster.shutdown()

    def empty(self, kept: Collection[str] = ()) -> None:
        """Remove every row; retain the stand-in's tables, and the tests' tables in `kept` that are unchanged.

        Creating and dropping a table takes Cassandra as long as most tests of it.
        """
        keys = {table: _partition_key(columns) for table, columns in self._tables.items()}
        futures = {
            table: self._session.execute_async(f"SELECT DISTINCT {', '.join(names)} FROM {table}")
            for table, names in keys.items()
        }
        with self._together():
            for table, names in keys.items():
                where = " AND ".join(f"{name} = %s" for name in names)
                for row in futures[table].result():
                    self._change(f"DELETE FROM {table} WHERE {where}", tuple(row))
            self._change(
                "DELETE extensions FROM system_schema.tables WHERE keyspace_name = 'shop' AND table_name = 'orders'"
            )
        self._kept = set() if self._are_reshaped else self._logged.keys() & kept
        for name in self._logged:
            self._change(f"TRUNCATE {name}" if name in self._kept else f"DROP TABLE IF EXISTS {name}")
        self._logged = {name: self._logged[name] for name in self._kept}
        self._are_reshaped = False

    def logged_table(self, schema: TableSchema, created_ms: Milliseconds) -> None:
        """Create a base table and its log, as ScyllaDB made both at a time, with the schema's CDC options."""
        base = ", ".join(
            f"{quote_name(column.name)} {column.type.cql}{' static' * (column.kind == 'static')}"
            for column in schema.columns
        )
        keys = ", ".join(quote_name(column.name) for column in schema.partition_key)
        keys = ", ".join([f"({keys})", *(quote_name(column.name) for column in schema.clustering_key)])
        log = ", ".join(f"{quote_name(column.name)} {column.type.cql}" for column in get_log_columns(schema))
        name, log_name = f"{quote_name(schema.keyspace)}.{quote_name(schema.name)}", _log_of(schema)
        orders = [
            f"{quote_name(column.name)} {'DESC' if column.descending else 'ASC'}" for column in schema.clustering_key
        ]
        order = f" WITH CLUSTERING ORDER BY ({', '.join(orders)})" if orders else ""
        key = '"cdc$stream_id", "cdc$time", "cdc$batch_seq_no"'
        self._let_be(log_name, f"{log}, PRIMARY KEY ({key})")
        self._let_be(name, f"{base}, PRIMARY KEY ({keys})", order)
        self.made(schema, created_ms)
        self._cdc_options(schema.keyspace, schema.name, {"ttl": str(schema.cdc.ttl), "delta": schema.cdc.delta})
        self.schema_changed()

    def _let_be(self, name: str, columns: str, options: str = "") -> None:
        """Create a table, unless it was retained and is the same."""
        shape = f"({columns}){options}"
        if name in self._kept:
            self._kept.discard(name)
            if self._logged[name] == shape:
                return
            self._change(f"DROP TABLE {name}")
        self._change(f"CREATE TABLE {name} {shape}")
        self._logged[name] = shape

    def made(self, schema: TableSchema, created_ms: Milliseconds) -> None:
        """Set a log's creation time by its ID; Cassandra writes its own ID again with each ALTER."""
        row = {"keyspace_name": schema.keyspace, "table_name": schema.log_name, "id": time_uuid(created_ms)}
        self.put("system_schema.tables", **row)

    def log_rows(self, schema: TableSchema, rows: pa.Table) -> None:
        """Write rows in the columns of the log's Delta table into a log; apart from the head only blobs and numbers."""
        names = [column.name for column in get_log_columns(schema)]
        values = [{**row, "cdc$time": uuid.UUID(row["cdc$time"])} for row in rows.select(names).to_pylist()]
        self.log_values(schema, values)

    def log_values(self, schema: TableSchema, rows: Sequence[Mapping[str, object]]) -> None:
        """Write rows into a log as the driver takes them, by the log's columns; missing values are null."""
        names = [column.name for column in get_log_columns(schema)]
        self.values(_log_of(schema), names, ([row.get(name) for name in names] for row in rows))

    def values(self, table: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Insert rows with these columns."""
        self.changed = True
        listed, marks = ", ".join(map(quote_name, names)), ", ".join("?" for _ in names)
        prepared = self._session.prepare(f"INSERT INTO {table} ({listed}) VALUES ({marks})")
        execute_concurrent_with_args(self._session, prepared, rows)

    def schema_changed(self) -> None:
        """Give every node another schema version, as after any DDL."""
        with self._together():
            for node in range(self.nodes):
                self._change(f"UPDATE node{node}.local SET schema_version = uuid() WHERE key = 'local'")

    def put(self, table: str, **values: object) -> None:
        """Insert a row. Column names must not need quotes."""
        names = ", ".join(values)
        marks = ", ".join("%s" for _ in values)
        self._change(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))

    def rows(self, statement: str) -> list[Any]:
        """Return the rows of a SELECT by the superuser."""
        return list(self._session.execute(statement))

    def far_rows(self, statement: str) -> list[dict[str, Any]]:
        """Return the rows of a SELECT by column, with timestamps in milliseconds."""
        return far_rows(self._session, statement)

    def bytes_of(self, statement: str) -> list[tuple[bytes | None, ...]]:
        """Return the rows of a SELECT as the bytes of the protocol."""
        return bytes_of(self._session, statement)

    def run(self, statement: str) -> None:
        """Run any statement as the superuser."""
        # After an ALTER or with another table's ID a table is not as it was created, even when it is empty.
        self._are_reshaped |= statement.startswith(_SHAPES) or "system_schema" in statement
        self._change(statement)

    def delete(self, table: str, where: str, *values: object) -> None:
        """Delete rows."""
        self._change(f"DELETE FROM {table} WHERE {where}", values)

    def cluster(self, nodes: Sequence[Node], *, name: str = NAME, topology: Mapping[str, object] | None = None) -> None:
        """Write the nodes into every node's own tables and into the topology."""
        with self._together():
            for index, member in enumerate(nodes):
                self._local(index, name, member)
                for other in nodes:
                    if other is not member:
                        self.put(f"node{index}.peers", peer=other.address, **_of_node(name, other))
                self.put(
                    "scylla.topology",
                    key="topology",
                    host_id=member.host_id,
                    datacenter=member.datacenter,
                    rack=member.rack,
                    tokens={str(token) for token in member.tokens},
                    node_state=member.status.lower(),
                    shard_count=member.shard_count,
                    ignore_msb=member.ignore_msb,
                    release_version="6.2.0",
                    supported_features=set(FEATURES),
                )
            static = {"version": 7, "upgrade_state": "done", "enabled_features": set(FEATURES), **(topology or {})}
            self.put("scylla.topology", key="topology", **static)
            self.put("scylla.versions", key="local", version="2026.3.0", build_mode="release", build_id="x")

    def generation(
        self, time_ms: Milliseconds, id_: uuid.UUID, description: TopologyDescription, *, timestamp: bool = True
    ) -> None:
        """Write a generation into its user-facing tables, both internal ones, and `cdc_local` of all nodes."""
        with self._together():
            for row in range(len(description)):
                entry = description.entry(row)
                streams = {stream.tobytes() for stream in entry.streams}
                common: dict[str, Any] = {"range_end": entry.range_end, "streams": streams}
                self.put("scylla_distributed.cdc_streams_descriptions_v2", time=time_ms, **common)
                internal = "scylla_distributed_everywhere.cdc_generation_descriptions_v2"
                self.put(internal, id=id_, ignore_msb=entry.ignore_msb, num_ranges=len(description), **common)
                third = {"key": "cdc_generations", "id": id_, "ignore_msb": entry.ignore_msb}
                self.put("scylla.cdc_generations_v3", **third, **common)
            self._change(
                "UPDATE scylla.topology SET committed_cdc_generations = committed_cdc_generations + "
                f"{{({time_ms}, {id_})}} WHERE key = 'topology'"
            )
            for node in range(self.nodes):
                self.put(f"node{node}.cdc_local", key="cdc_local", streams_timestamp=time_ms, uuid=id_)
            if timestamp:
                self.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=time_ms)

    def committed(
        self, time_ms: Milliseconds, id_: uuid.UUID, description: TopologyDescription, *, by_group: bool = True
    ) -> None:
        """Write a generation that nodes use and clients cannot read: agreed on by the group, or stored by each node."""
        with self._together():
            for row in range(len(description)):
                entry = description.entry(row)
                values: dict[str, Any] = {"range_end": entry.range_end, "ignore_msb": entry.ignore_msb}
                values["streams"] = {stream.tobytes() for stream in entry.streams}
                if by_group:
                    self.put("scylla.cdc_generations_v3", key="cdc_generations", id=id_, **values)
                else:
                    internal = "scylla_distributed_everywhere.cdc_generation_descriptions_v2"
                    self.put(internal, id=id_, num_ranges=len(description), **values)
            if by_group:
                for name in ("committed", "unpublished"):
                    self._change(
                        f"UPDATE scylla.topology SET {name}_cdc_generations = {name}_cdc_generations + "
                        f"{{({time_ms}, {id_})}} WHERE key = 'topology'"
                    )
            else:
                for node in range(self.nodes):
                    self.put(f"node{node}.cdc_local", key="cdc_local", streams_timestamp=time_ms, uuid=id_)

    def published(self, time_ms: Milliseconds, description: TopologyDescription) -> None:
        """Write a generation of any size as clients see it, in the user-facing tables alone."""
        self.changed = True
        table = "scylla_distributed.cdc_streams_descriptions_v2"
        insert = self._session.prepare(f"INSERT INTO {table} (time, range_end, streams) VALUES (?, ?, ?)")
        entries = map(description.entry, range(len(description)))
        rows = [(time_ms, entry.range_end, {stream.tobytes() for stream in entry.streams}) for entry in entries]
        execute_concurrent_with_args(self._session, insert, rows)
        self.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=time_ms)

    def first_format(self, time_ms: Milliseconds, description: TopologyDescription) -> None:
        """Write a generation of the first format into both of its tables."""
        entries = [description.entry(row) for row in range(len(description))]
        listed = [(e.range_end, [stream.tobytes() for stream in e.streams], e.ignore_msb) for e in entries]
        text = ", ".join(
            f"({end}, [{', '.join('0x' + stream.hex() for stream in streams)}], {msb})" for end, streams, msb in listed
        )
        self._change(
            "INSERT INTO scylla_distributed.cdc_generation_descriptions (time, description) "
            f"VALUES ({time_ms}, [{text}])"
        )
        streams = {stream for _, ids, _ in listed for stream in ids}
        self.put("scylla_distributed.cdc_streams_descriptions", time=time_ms, streams=streams)
        for node in range(self.nodes):
            self.put(f"node{node}.cdc_local", key="cdc_local", streams_timestamp=time_ms, uuid=None)

    def stream_set(
        self, keyspace: str, table: str, time_ms: Milliseconds, current: Iterable[bytes], closed: Iterable[bytes] = (),
        opened: Iterable[bytes] | None = None,
    ) -> None:  # fmt: skip
        """Write a stream set of a tablet-based table; without `opened` it is the first, which opens all its streams."""
        with self._together():
            current = list(current)
            self.put("scylla.cdc_timestamps", keyspace_name=keyspace, table_name=table, timestamp=time_ms)
            for state, streams in ((0, current), (1, closed), (2, current if opened is None else opened)):
                for stream in streams:
                    key = {"keyspace_name": keyspace, "table_name": table, "timestamp": time_ms}
                    self.put("scylla.cdc_streams", **key, stream_state=state, stream_id=stream)

    def cdc_options(self, keyspace: str, table: str, **options: str) -> None:
        """Set the CDC options of an altered table, as newer versions list them."""
        self._cdc_options(keyspace, table, options)
        self.altered(keyspace, table)

    def _cdc_options(self, keyspace: str, table: str, options: Mapping[str, str]) -> None:
        merged = {"enabled": "true", "preimage": "false", "postimage": "false", "delta": "full", "ttl": "86400"}
        self.put("scylla_schema.scylla_tables", keyspace_name=keyspace, table_name=table, cdc={**merged, **options})

    def cdc_extension(self, keyspace: str, table: str, **options: str) -> None:
        """Set the CDC options of a table as the blob that clients read."""
        self._are_reshaped = True
        parts = [text.encode() for pair in options.items() for text in pair]
        blob = struct.pack("<i", len(options)) + b"".join(struct.pack("<i", len(part)) + part for part in parts)
        self._change(
            "INSERT INTO system_schema.tables (keyspace_name, table_name, extensions) VALUES (%s, %s, %s)",
            (keyspace, table, {"cdc": blob}),
        )
        self.altered(keyspace, table)

    def altered(self, keyspace: str, table: str) -> None:
        """Write a table's schema row again, as ScyllaDB does with each ALTER; Cassandra has no such options."""
        where = "keyspace_name = %s AND table_name = %s"
        for row in self._session.execute(f"SELECT id FROM system_schema.tables WHERE {where}", (keyspace, table)):
            self._change(f"UPDATE system_schema.tables SET id = %s WHERE {where}", (row.id, keyspace, table))

    def _local(self, index: int, name: str, node: Node) -> None:
        self.put(
            f"node{index}.local",
            key="local",
            broadcast_address=node.address,
            listen_address=node.address,
            partitioner="org.apache.cassandra.dht.Murmur3Partitioner",
            **_of_node(name, node),
        )

    def _make(self) -> None:
        keyspaces = [*_KEYSPACES, *(f"node{node}" for node in range(self.nodes))]
        for keyspace in keyspaces:
            self._session.execute(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} {_CLASS}")
        for table, columns in self._tables.items():
            self._session.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        for user, password in (OBSERVER, PLAIN, EXPORTER):
            quoted = password.replace("'", "''")
            self._session.execute(f"CREATE ROLE IF NOT EXISTS {user} WITH PASSWORD = '{quoted}' AND LOGIN = true")
        self._session.execute(f"GRANT SELECT ON ALL KEYSPACES TO {OBSERVER[0]}")
        for right in ("SELECT", "CREATE", "MODIFY"):
            self._session.execute(f"GRANT {right} ON ALL KEYSPACES TO {EXPORTER[0]}")
        for node in range(self.nodes):
            for table in ("local", "peers"):
                self._session.execute(f"GRANT SELECT ON TABLE node{node}.{table} TO {PLAIN[0]}")
        self._session.execute(f"GRANT SELECT ON KEYSPACE scylla_schema TO {PLAIN[0]}")


def time_uuid(ms: Milliseconds, number: int = 1) -> uuid.UUID:
    """Return the timeuuid of a time, always the same."""
    return uuid_from_time(ms / 1000, node=number, clock_seq=number)


def _log_of(schema: TableSchema) -> str:
    """Return the log's name in CQL."""
    return f"{quote_name(schema.keyspace)}.{quote_name(schema.log_name)}"


def _partition_key(columns: str) -> list[str]:
    """Return the names of the partition key from a table's columns in CQL."""
    if "PRIMARY KEY (" not in columns:
        return [columns.split()[0]]
    keys = columns.rpartition("PRIMARY KEY (")[2].rstrip(")")
    inner = keys.replace("(", "").split(")")[0] if keys.startswith("(") else keys.split(",")[0]
    return [name.strip() for name in inner.split(",")]


def _of_node(name: str, node: Node) -> dict[str, object]:
    return {
        "cluster_name": name,
        "data_center": node.datacenter,
        "host_id": node.host_id,
        "rack": node.rack,
        "release_version": "3.0.8",
        "rpc_address": node.address,
        "schema_version": uuid.UUID(int=1),
        "tokens": {str(token) for token in node.tokens},
        "supported_features": ",".join(FEATURES),
    }
