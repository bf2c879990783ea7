"""The tables of the ring: its nodes, their bootstrap events and CDC state, and observed changes of a live cluster."""

from __future__ import annotations

import pyarrow as pa

from cdc_platform.tables.schema import (
    APPEND_ONLY_PROPERTIES,
    IGNORE_MSB_CHECK,
    IGNORE_MSB_COLUMN,
    TIMESTAMP,
    Table,
    array_type,
    column,
)

_NODE_COLUMNS = (
    column("address", pa.string(), "address of the node"),
    column("datacenter", pa.string(), "datacenter of the node"),
    column("rack", pa.string(), "rack of the node"),
)
_SHARDING_COLUMNS = (
    column("tokens", array_type(pa.int64()), "tokens of the node, ascending"),
    column("shard_count", pa.int32(), "shards of the node"),
    IGNORE_MSB_COLUMN,
)
_FEATURES_COLUMN = column("features", array_type(pa.string()), "cluster features that the node supports")

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
            _FEATURES_COLUMN,
            column("generation_id", pa.string(), "random UUID that the joining node draws for its generation"),
            column("created_at", TIMESTAMP, "when it was queued; orders the inbox"),
        ]
    ),
    keys=("event_id",),
    comment="Inbox of joining nodes, append-only; a sensor reads it",
    constraints={
        "tokens_given": "cardinality(tokens) >= 1",
        "shards_given": "shard_count >= 1",
        "ignore_msb_in_bounds": IGNORE_MSB_CHECK,
    },
    properties=APPEND_ONLY_PROPERTIES,
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
            _FEATURES_COLUMN,
        ]
    ),
    keys=("host_id",),
    comment="The ring as it stands: what system.topology holds",
    constraints={"shards_given": "shard_count >= 1", "ignore_msb_in_bounds": IGNORE_MSB_CHECK},
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


CLUSTER_CHANGES = Table(
    "platform",
    "cluster_changes",
    pa.schema(
        [
            column("number", pa.int64(), "changes of the cluster before this one: what comes next is one row"),
            column("at", TIMESTAMP, "when it was seen"),
            column("who", pa.string(), "what it became of: node ADDRESS, table KS.T, generation TIME, cluster"),
            column("aspect", pa.string(), "what of it, empty: itself"),
            column("state", pa.string(), "how that is from then on; null: there is none any more", null=True),
            column("what", pa.string(), "the change in words"),
            column("seen_by", pa.string(), "the user who looked"),
            column("door", pa.string(), "by which door: command line, Dagster; and the command or job"),
            column("run", pa.string(), "run of Dagster; null: none", null=True),
        ]
    ),
    keys=("number",),
    comment="What became other in a live cluster from one observation to the next, append-only",
    constraints={"number_not_negative": "number >= 0"},
    properties=APPEND_ONLY_PROPERTIES,
)
