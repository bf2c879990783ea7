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
            column("event_id", pa.string(), "UUID of the event; a repeated request has the same one"),
            column("kind", pa.string(), "the kind of event: a node joins, or a join is withdrawn"),
            column("host_id", pa.string(), "UUID of the joining node"),
            *_NODE_COLUMNS,
            *_SHARDING_COLUMNS,
            _FEATURES_COLUMN,
            column("generation_id", pa.string(), "random UUID that the joining node chooses for its generation"),
            column("created_at", TIMESTAMP, "when it was queued; orders the inbox"),
        ]
    ),
    keys=("event_id",),
    part_by=("generation_id",),
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
    part_by=("host_id",),
    comment="The current ring, as in system.topology",
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
    part_by=("host_id",),
    comment="The CDC state of each node",
    constraints={"known_key": "key IN ('cdc_local', 'rewritten')"},
    follows_from=("platform.generations",),
)


CLUSTER_CHANGES = Table(
    "platform",
    "cluster_changes",
    pa.schema(
        [
            column(
                "number",
                pa.int64(),
                "number of earlier changes of the cluster; concurrent writers compete for the next number",
            ),
            column("at", TIMESTAMP, "time of the observation"),
            column("who", pa.string(), "the subject: node ADDRESS, table KS.T, generation TIME, cluster"),
            column("aspect", pa.string(), "the changed aspect of it; empty: the subject itself"),
            column("state", pa.string(), "its state after the change; null: it no longer exists", null=True),
            column("what", pa.string(), "the change as text"),
            column("seen_by", pa.string(), "the user who observed it"),
            column("door", pa.string(), "the entry point: command line or Dagster, with the command or job"),
            column("run", pa.string(), "run of Dagster; null: none", null=True),
        ]
    ),
    keys=("number",),
    comment="Changes of a live cluster between observations, append-only",
    constraints={"number_not_negative": "number >= 0"},
    properties=APPEND_ONLY_PROPERTIES,
)
