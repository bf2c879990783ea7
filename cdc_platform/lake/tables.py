"""Every table of the platform, declared once: columns, keys, partitions, constraints, comments.

Names and columns are ScyllaDB's own where it has the table. Who creates, reads and writes them: `lake` (no JVM) and
`frames` (Spark). What the rows mean is up to lifecycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", "UTC")
"""Times of generations (whole milliseconds) and of writes (microseconds), always UTC."""

ALLOWED_FEATURES = frozenset({"appendOnly", "checkConstraints", "invariants"})
"""The only Delta features that a table may need of its writers, none of its readers; every Delta reader has them."""

# Deletion vectors are what Delta on Spark would turn on by itself for new tables, and many readers lack them.
_PROPERTIES: Mapping[str, str] = MappingProxyType({"delta.enableDeletionVectors": "false"})


@dataclass(frozen=True, eq=False)
class Table:
    """A Delta table. Files are in `<lake>/<keyspace>/<name>`.

    `schema` holds a `comment` for every column and says which may be null; `keys` name a row; `constraints` are
    CHECKs in the SQL that DataFusion (deltalake) and Spark both read, and a NULL breaks them.
    """

    keyspace: str
    name: str
    schema: pa.Schema
    keys: tuple[str, ...]
    comment: str
    partition_by: tuple[str, ...] = ()
    constraints: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=lambda: _PROPERTIES)

    def __post_init__(self) -> None:
        unknown = {*self.keys, *self.partition_by} - set(self.schema.names)
        if unknown:
            raise ValueError(f"{self.full_name}: keys or partitions {sorted(unknown)} are no columns")

    @property
    def full_name(self) -> str:
        """`keyspace.name`, as in CQL and in Spark SQL."""
        return f"{self.keyspace}.{self.name}"

    def __repr__(self) -> str:
        return f"Table({self.full_name})"


def array_of(element: pa.DataType) -> pa.ListType:
    """A list under the name that Spark and deltalake both give its element.

    Its elements are never null, but the type doesn't say so: Delta on Spark would not hold it, and deltalake could then
    not read what it let through.
    """
    return pa.list_(pa.field("element", element))


STREAMS = array_of(pa.binary())
"""Stream IDs of 16 bytes in shard order: position j is shard j. Never sorted."""


def column(name: str, kind: pa.DataType, comment: str, *, null: bool = False) -> pa.Field:
    """A column with its comment, NOT NULL unless said otherwise."""
    return pa.field(name, kind, nullable=null, metadata={"comment": comment})


_MSB_RULE = "ignore_msb >= 0 AND ignore_msb <= 31"
_STREAMS_RULE = "cardinality(streams) >= 1"


def _whole_milliseconds(name: str) -> str:
    return f"date_trunc('millisecond', {name}) = {name}"


_RANGE_END = column(
    "range_end", pa.int64(), "greatest token of the range, included; the range starts after the one before"
)
_STREAMS = column("streams", STREAMS, "stream IDs, 16 bytes each, in shard order: position j is shard j")
_IGNORE_MSB = column("ignore_msb", pa.int8(), "most significant bits of a token that the owner's sharding ignores")
_TIME = column("time", TIMESTAMP, "when the generation starts to operate, whole milliseconds")
_EXPIRED = column("expired", TIMESTAMP, "when no CDC log can hold rows of it any more; null while one can", null=True)
_NODE_COLUMNS = (
    column("address", pa.string(), "address of the node"),
    column("datacenter", pa.string(), "datacenter of the node"),
    column("rack", pa.string(), "rack of the node"),
)
_SHARDING_COLUMNS = (
    column("tokens", array_of(pa.int64()), "tokens of the node, ascending"),
    column("shard_count", pa.int32(), "shards of the node"),
    _IGNORE_MSB,
)
_FEATURES = column("features", array_of(pa.string()), "cluster features that the node supports")

BOOTSTRAP_EVENTS = Table(
    "platform",
    "bootstrap_events",
    pa.schema(
        [
            column("event_id", pa.string(), "UUID of the event: the same request is the same event"),
            column("kind", pa.string(), "what happened: a node joins, or a join is withdrawn"),
            column("host_id", pa.string(), "UUID of the joining node"),
            *_NODE_COLUMNS,
            *_SHARDING_COLUMNS,
            _FEATURES,
            column("generation_id", pa.string(), "random UUID that the joining node draws for its generation"),
            column("created_at", TIMESTAMP, "when it was queued; orders the inbox"),
        ]
    ),
    keys=("event_id",),
    comment="Inbox of joining nodes, append-only; a sensor reads it",
    constraints={
        "tokens_given": "cardinality(tokens) >= 1",
        "shards_given": "shard_count >= 1",
        "ignore_msb_in_bounds": _MSB_RULE,
    },
    properties={**_PROPERTIES, "delta.appendOnly": "true"},
)

NODES = Table(
    "platform",
    "nodes",
    pa.schema(
        [
            column("host_id", pa.string(), "UUID of the node"),
            *_NODE_COLUMNS,
            column("status", pa.string(), "state of the node in the ring: NORMAL, JOINING, LEFT, ..."),
            *_SHARDING_COLUMNS,
            _FEATURES,
        ]
    ),
    keys=("host_id",),
    comment="The ring as it stands: what system.topology holds",
    constraints={"shards_given": "shard_count >= 1", "ignore_msb_in_bounds": _MSB_RULE},
)

CDC_TABLES = Table(
    "platform",
    "cdc_tables",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table"),
            column("table_name", pa.string(), "name of the base table"),
            column("enabled", pa.bool_(), "whether CDC is on"),
            column("ttl_seconds", pa.int64(), "how long log rows live; 0: they never expire"),
            column("created_at", TIMESTAMP, "when the log table was created"),
            column("ddl", pa.string(), "the CREATE TABLE statement, where it is known", null=True),
        ]
    ),
    keys=("keyspace_name", "table_name"),
    comment="The CDC-enabled tables",
    constraints={"ttl_not_negative": "ttl_seconds >= 0"},
)

CDC_TABLE_CHANGES = Table(
    "platform",
    "cdc_table_changes",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table"),
            column("table_name", pa.string(), "name of the base table"),
            column("changed_at", TIMESTAMP, "when it was changed; grows strictly within a table"),
            column("what", pa.string(), "added, altered, or dropped with its log"),
            column("enabled", pa.bool_(), "whether CDC is on from then on"),
            column("ttl_seconds", pa.int64(), "how long log rows written from then on live; 0: they never expire"),
            column("created_at", TIMESTAMP, "when the log table was created"),
            column("ddl", pa.string(), "the CREATE TABLE statement, where it is known", null=True),
        ]
    ),
    keys=("keyspace_name", "table_name", "changed_at"),
    comment="Every change of a CDC-enabled table, append-only: rows keep the TTL they were written with",
    constraints={"ttl_not_negative": "ttl_seconds >= 0", "known_what": "what IN ('added', 'altered', 'dropped')"},
    properties={**_PROPERTIES, "delta.appendOnly": "true"},
)

KEPT_SCRIPTS = Table(
    "platform",
    "kept_scripts",
    pa.schema(
        [
            column("number", pa.int64(), "place of the script among all that were kept, from 1"),
            column("text", pa.string(), "the CQL statements"),
            column("at", TIMESTAMP, "what the clock showed when it ran"),
            column("definitions", pa.string(), "the CQL that makes the tables that it found"),
            column("log_versions", pa.string(), "JSON: the version of the Delta table of each log that it found"),
            column("finished_at", TIMESTAMP, "when everything of it was written; null until then", null=True),
        ]
    ),
    keys=("number",),
    comment="CQL scripts whose writes are kept: what a script that was interrupted is finished from",
)

CONSUMERS = Table(
    "platform",
    "consumers",
    pa.schema(
        [
            column("name", pa.string(), "name of the consumer"),
            column("keyspace_name", pa.string(), "keyspace of the base table whose log it reads"),
            column("table_name", pa.string(), "name of that base table"),
            column("set_timestamp", TIMESTAMP, "generation or stream set it reads; null before the first", null=True),
            column("position", TIMESTAMP, "every row at or before this time is read"),
            column("window_number", pa.int64(), "windows read so far"),
            column("updated_at", TIMESTAMP, "when the position was last changed"),
        ]
    ),
    keys=("name", "keyspace_name", "table_name"),
    comment="The registered readers of CDC logs and how far each has read",
    constraints={"window_not_negative": "window_number >= 0"},
)

CONSUMED_HOURS = Table(
    "platform",
    "consumed_hours",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table whose log was read"),
            column("table_name", pa.string(), "name of that base table"),
            column("hour", TIMESTAMP, "start of the hour; it ends just before the next one"),
            column("rows", pa.int64(), "rows of the log in that hour, all of which are in the hourly sink"),
        ]
    ),
    keys=("keyspace_name", "table_name", "hour"),
    comment="The hours of CDC logs that are whole in their hourly sinks",
    constraints={"rows_not_negative": "rows >= 0", "whole_hours": "date_trunc('hour', hour) = hour"},
)

REMOVED_GENERATIONS = Table(
    "platform",
    "removed_generations",
    pa.schema(
        [
            _TIME,
            column("generation_id", pa.string(), "UUID of the generation; null where it had none", null=True),
            column("expired", TIMESTAMP, "from when on no CDC log could hold rows of it"),
            column("removed_at", TIMESTAMP, "when its removal began"),
            column("rows", pa.int64(), "rows that it had in all tables"),
            column("bytes", pa.int64(), "bytes of the files that held them"),
        ]
    ),
    keys=("time",),
    comment="The generations that were removed: what is known of them when their rows are gone",
    constraints={"whole_milliseconds": _whole_milliseconds("time")},
)

TOPOLOGY_DESCRIPTIONS = Table(
    "platform",
    "topology_descriptions",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation"),
            _RANGE_END,
            column("range_start", pa.int64(), "range end before this one, not included; the first range wraps"),
            column("vnode_index", pa.int32(), "rank of the range end; the index in every stream ID of the range"),
            column("owner", pa.string(), "UUID of the node that owns the range end's vnode"),
            _STREAMS,
            _IGNORE_MSB,
        ]
    ),
    keys=("generation_id", "range_end"),
    comment="Generated descriptions before they are inserted: what the audit reads",
    partition_by=("generation_id",),
    constraints={
        "streams_given": _STREAMS_RULE,
        "ignore_msb_in_bounds": _MSB_RULE,
        "index_fits_22_bits": "vnode_index >= 0 AND vnode_index < 4194304",
    },
)

GENERATIONS = Table(
    "platform",
    "generations",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation"),
            _TIME,
            column("host_id", pa.string(), "UUID of the node that introduced it; null if it was imported", null=True),
            column("event_id", pa.string(), "the bootstrap event it belongs to; null where there is none", null=True),
            column("num_ranges", pa.int32(), "ranges of its description"),
            column("num_streams", pa.int64(), "streams of its description"),
            column("created_at", TIMESTAMP, "when the timestamp was given"),
            column("published_at", TIMESTAMP, "when its publishing was finished; null before", null=True),
            column(
                "format", pa.string(), "'v1' where its time alone is its ID; null: V2, the time and UUID", null=True
            ),
        ]
    ),
    keys=("generation_id",),
    comment="Ledger that keeps the one timestamp a generation was given",
    constraints={
        "whole_milliseconds": _whole_milliseconds("time"),
        "ranges_given": "num_ranges >= 1",
        "stream_in_every_range": "num_streams >= num_ranges",
        "known_format": "format IS NULL OR format = 'v1'",
    },
)

GENERATION_DESCRIPTIONS_V2 = Table(
    "system_distributed_everywhere",
    "cdc_generation_descriptions_v2",
    pa.schema(
        [
            column("id", pa.string(), "UUID of the generation"),
            _RANGE_END,
            _IGNORE_MSB,
            column("num_ranges", pa.int32(), "ranges of the whole generation: fewer rows are a partial one"),
            _STREAMS,
        ]
    ),
    keys=("id", "range_end"),
    comment="Generation descriptions, second format, internal",
    partition_by=("id",),
    constraints={
        "streams_given": _STREAMS_RULE,
        "ignore_msb_in_bounds": _MSB_RULE,
        "ranges_given": "num_ranges >= 1",
    },
)

GENERATION_DESCRIPTIONS = Table(
    "system_distributed",
    "cdc_generation_descriptions",
    pa.schema(
        [
            _TIME,
            column(
                "description",
                array_of(
                    pa.struct(
                        [
                            pa.field("token_range_end", pa.int64()),
                            pa.field("streams", STREAMS),
                            pa.field("sharding_ignore_msb", pa.int8()),
                        ]
                    )
                ),
                "one entry a range, ascending by range end",
            ),
            _EXPIRED,
        ]
    ),
    keys=("time",),
    comment="Generation descriptions, first format, internal",
    constraints={"whole_milliseconds": _whole_milliseconds("time")},
)

STREAMS_DESCRIPTIONS = Table(
    "system_distributed",
    "cdc_streams_descriptions",
    pa.schema([_TIME, column("streams", STREAMS, "every stream ID of the generation"), _EXPIRED]),
    keys=("time",),
    comment="Streams of each generation, first format, user-facing: what the rewrite reads",
    constraints={"whole_milliseconds": _whole_milliseconds("time")},
)

STREAMS_DESCRIPTIONS_V2 = Table(
    "system_distributed",
    "cdc_streams_descriptions_v2",
    pa.schema([_TIME, _RANGE_END, _STREAMS]),
    keys=("time", "range_end"),
    comment="Streams of each generation by range, user-facing; read a time only after cdc_generation_timestamps has it",
    partition_by=("time",),
    constraints={"whole_milliseconds": _whole_milliseconds("time"), "streams_given": _STREAMS_RULE},
)

GENERATION_TIMESTAMPS = Table(
    "system_distributed",
    "cdc_generation_timestamps",
    pa.schema([column("key", pa.string(), "always 'timestamps'"), _TIME, _EXPIRED]),
    keys=("key", "time"),
    comment="The published generations: a row here is the commit mark of publishing",
    constraints={"one_partition": "key = 'timestamps'", "whole_milliseconds": _whole_milliseconds("time")},
)

CDC_LOCAL = Table(
    "system",
    "cdc_local",
    pa.schema(
        [
            column("host_id", pa.string(), "UUID of the node"),
            column("key", pa.string(), "'cdc_local': its newest generation; 'rewritten': its V1 tables are rewritten"),
            column("streams_timestamp", TIMESTAMP, "the generation's timestamp", null=True),
            column("uuid", pa.string(), "the generation's UUID; null for a generation of the first format", null=True),
        ]
    ),
    keys=("host_id", "key"),
    comment="What each node keeps of its CDC state",
    constraints={"known_key": "key IN ('cdc_local', 'rewritten')"},
)

GENERATION_SWITCHES = Table(
    "platform",
    "generation_switches",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation that is switched to"),
            column("phase", pa.string(), "where the switch stands: preparing, committed, aborted"),
            column("initiator", pa.string(), "UUID of the node that began it: the joining one"),
            column("participants", array_of(pa.string()), "UUIDs of the nodes that must acknowledge, ascending"),
            column("acknowledged", array_of(pa.string()), "UUIDs of the nodes that have, ascending"),
            column("lease_ends", array_of(TIMESTAMP), "beside acknowledged: from then on they need the decision"),
            column("prepared_at", TIMESTAMP, "when it was begun"),
            column("deadline", TIMESTAMP, "from then on anybody may abort it, unless all have acknowledged"),
            column("time", TIMESTAMP, "the generation's timestamp; null until it is committed", null=True),
            column("decided_at", TIMESTAMP, "when it was committed or aborted", null=True),
            column("decided_by", pa.string(), "who committed or aborted it", null=True),
        ]
    ),
    keys=("generation_id",),
    comment="The two-phase switch of generations: every change of phase is one commit on the version it was read from",
    constraints={
        "known_phase": "phase IN ('preparing', 'committed', 'aborted')",
        "lease_for_every_answer": "cardinality(acknowledged) = cardinality(lease_ends)",
    },
)

SWITCH_PROMISES = Table(
    "platform",
    "switch_promises",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation that is switched to"),
            column("host_id", pa.string(), "UUID of the participant"),
            column("lease_end", TIMESTAMP, "it takes no write with this timestamp or later before the decision"),
            column("promised_at", TIMESTAMP, "its clock when it promised"),
        ]
    ),
    keys=("generation_id", "host_id"),
    comment="What participants of a switch have promised, kept before they acknowledge; append-only",
    properties={**_PROPERTIES, "delta.appendOnly": "true"},
)

TABLET_TIMESTAMPS = Table(
    "system",
    "cdc_timestamps",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table"),
            column("table_name", pa.string(), "name of the base table"),
            column("timestamp", TIMESTAMP, "when a stream set starts to operate, whole milliseconds"),
        ]
    ),
    keys=("keyspace_name", "table_name", "timestamp"),
    comment="Stream sets of tablet-based tables",
    constraints={"whole_milliseconds": _whole_milliseconds("timestamp")},
)

TABLET_STREAMS = Table(
    "system",
    "cdc_streams",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table"),
            column("table_name", pa.string(), "name of the base table"),
            column("timestamp", TIMESTAMP, "the stream set's timestamp, whole milliseconds"),
            column("stream_state", pa.int8(), "0 current, 1 closed, 2 opened at this timestamp"),
            column("stream_id", pa.binary(), "stream ID, 16 bytes"),
        ]
    ),
    keys=("keyspace_name", "table_name", "timestamp", "stream_state", "stream_id"),
    comment="Streams of tablet-based tables",
    constraints={
        "whole_milliseconds": _whole_milliseconds("timestamp"),
        "known_state": "stream_state >= 0 AND stream_state <= 2",
    },
)

TABLET_LAYOUTS = Table(
    "platform",
    "tablet_layouts",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table"),
            column("table_name", pa.string(), "name of the base table"),
            column("number", pa.int64(), "changes of the table's tablets before this one: what comes next is one row"),
            column("kind", pa.string(), "created, resized, or dropped"),
            column("table_id", pa.string(), "UUID of the log table; another one after a drop"),
            column("timestamp", TIMESTAMP, "the stream set's timestamp, whole milliseconds; null: dropped", null=True),
            column("last_tokens", array_of(pa.int64()), "last tokens of the tablets, ascending"),
            column("decided_at", TIMESTAMP, "when the change was decided"),
        ]
    ),
    keys=("keyspace_name", "table_name", "number"),
    comment="Ledger of tablets: each change is decided here, once, before its stream set is written",
    constraints={
        "known_kind": "kind IN ('created', 'resized', 'dropped')",
        "tablets_given": "cardinality(last_tokens) >= 1",
    },
)

UNORDERED_RANGES = Table(
    "platform",
    "unordered_ranges",
    pa.schema(
        [
            column("table_name", pa.string(), "keyspace.table that was imported"),
            column("generation", pa.string(), "the generation as that table names it: a UUID or a time"),
            _RANGE_END,
            column("reason", pa.string(), "why the order could not be told"),
        ]
    ),
    keys=("table_name", "generation", "range_end"),
    comment="Imported ranges whose streams could not be put back in shard order",
)

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        table.full_name: table
        for table in (
            BOOTSTRAP_EVENTS,
            NODES,
            CDC_TABLES,
            CDC_TABLE_CHANGES,
            CONSUMERS,
            CONSUMED_HOURS,
            KEPT_SCRIPTS,
            REMOVED_GENERATIONS,
            TOPOLOGY_DESCRIPTIONS,
            GENERATIONS,
            GENERATION_DESCRIPTIONS_V2,
            GENERATION_DESCRIPTIONS,
            STREAMS_DESCRIPTIONS,
            STREAMS_DESCRIPTIONS_V2,
            GENERATION_TIMESTAMPS,
            CDC_LOCAL,
            GENERATION_SWITCHES,
            SWITCH_PROMISES,
            TABLET_TIMESTAMPS,
            TABLET_STREAMS,
            TABLET_LAYOUTS,
            UNORDERED_RANGES,
        )
    }
)
"""Every table by `keyspace.name`."""
