"""The tables of tablets: stream sets as ScyllaDB has them, and the ledger of layout changes."""

from __future__ import annotations

import pyarrow as pa

from cdc_platform.tables.schema import TIMESTAMP, Table, array_type, column, whole_milliseconds_check

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
    part_by=("keyspace_name", "table_name"),
    clustering=(("timestamp", True),),
    comment="Stream sets of tablet-based tables",
    constraints={"whole_milliseconds": whole_milliseconds_check("timestamp")},
    follows_from=("platform.tablet_layouts",),
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
    part_by=("keyspace_name", "table_name"),
    clustering=(("timestamp", False), ("stream_state", False), ("stream_id", False)),
    comment="Streams of tablet-based tables",
    constraints={
        "whole_milliseconds": whole_milliseconds_check("timestamp"),
        "known_state": "stream_state >= 0 AND stream_state <= 2",
    },
    follows_from=("platform.tablet_layouts",),
)

TABLET_LAYOUTS = Table(
    "platform",
    "tablet_layouts",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table"),
            column("table_name", pa.string(), "name of the base table"),
            column(
                "number",
                pa.int64(),
                "number of earlier changes of the table's tablets; concurrent writers compete for the next number",
            ),
            column("kind", pa.string(), "created, resized, or dropped"),
            column("table_id", pa.string(), "UUID of the log table; a new one after a drop"),
            column("timestamp", TIMESTAMP, "the stream set's timestamp, whole milliseconds; null: dropped", null=True),
            column("last_tokens", array_type(pa.int64()), "last tokens of the tablets, ascending"),
            column("decided_at", TIMESTAMP, "when the change was decided"),
        ]
    ),
    keys=("keyspace_name", "table_name", "number"),
    part_by=("keyspace_name", "table_name"),
    comment="Ledger of tablets; each change is decided here once, before its stream set is written",
    constraints={
        "known_kind": "kind IN ('created', 'resized', 'dropped')",
        "tablets_given": "cardinality(last_tokens) >= 1",
    },
)
