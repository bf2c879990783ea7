"""The tables of the ring and its nodes: who joins, who is in it, and what each node keeps of its CDC state."""

from __future__ import annotations

import pyarrow as pa

from cdc_platform.lake.tables.declaration import APPEND_ONLY, IGNORE_MSB, MSB_RULE, TIMESTAMP, Table, array_of, column

_NODE_COLUMNS = (
    column("address", pa.string(), "address of the node"),
    column("datacenter", pa.string(), "datacenter of the node"),
    column("rack", pa.string(), "rack of the node"),
)
_SHARDING_COLUMNS = (
    column("tokens", array_of(pa.int64()), "tokens of the node, ascending"),
    column("shard_count", pa.int32(), "shards of the node"),
    IGNORE_MSB,
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
        "ignore_msb_in_bounds": MSB_RULE,
    },
    properties=APPEND_ONLY,
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
    constraints={"shards_given": "shard_count >= 1", "ignore_msb_in_bounds": MSB_RULE},
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
    follows_from=("platform.generations",),
)
