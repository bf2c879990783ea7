"""The tables about CDC logs: CDC-enabled tables, consumers and their progress, gaps, and executed scripts."""

from __future__ import annotations

import pyarrow as pa

from cdc_platform.tables.schema import APPEND_ONLY_PROPERTIES, TIMESTAMP, Table, column

CDC_TABLES = Table(
    "platform",
    "cdc_tables",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table"),
            column("table_name", pa.string(), "name of the base table"),
            column("enabled", pa.bool_(), "whether CDC is on"),
            column("ttl_seconds", pa.int64(), "TTL of log rows in seconds; 0: they never expire"),
            column("created_at", TIMESTAMP, "creation time of the log table; 1970-01-01 if unknown"),
            column("ddl", pa.string(), "the CREATE TABLE statement; null if unknown", null=True),
        ]
    ),
    keys=("keyspace_name", "table_name"),
    comment="The CDC-enabled tables",
    constraints={"ttl_not_negative": "ttl_seconds >= 0"},
    follows_from=("platform.cdc_table_changes",),
)

CDC_TABLE_CHANGES = Table(
    "platform",
    "cdc_table_changes",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table"),
            column("table_name", pa.string(), "name of the base table"),
            column("changed_at", TIMESTAMP, "time of the change; strictly increasing within a table"),
            column(
                "what",
                pa.string(),
                "added, altered, or dropped with its log; added again: observed with other settings",
            ),
            column("enabled", pa.bool_(), "whether CDC is on after the change"),
            column(
                "ttl_seconds", pa.int64(), "TTL in seconds of log rows written after the change; 0: they never expire"
            ),
            column("created_at", TIMESTAMP, "creation time of the log table; 1970-01-01 if unknown"),
            column("ddl", pa.string(), "the CREATE TABLE statement; null if unknown", null=True),
        ]
    ),
    keys=("keyspace_name", "table_name", "changed_at"),
    comment="Every change of a CDC-enabled table, append-only: rows expire by the TTL at their write",
    constraints={"ttl_not_negative": "ttl_seconds >= 0", "known_what": "what IN ('added', 'altered', 'dropped')"},
    properties=APPEND_ONLY_PROPERTIES,
)

KEPT_SCRIPTS = Table(
    "platform",
    "kept_scripts",
    pa.schema(
        [
            column("number", pa.int64(), "number of the stored script, from 1"),
            column("text", pa.string(), "the CQL statements"),
            column("at", TIMESTAMP, "time of the run"),
            column("definitions", pa.string(), "CQL that creates the tables as they existed before the run"),
            column("log_versions", pa.string(), "JSON: version of each log's Delta table before the run"),
            column("finished_at", TIMESTAMP, "when all of its writes were stored; null until then", null=True),
        ]
    ),
    keys=("number",),
    comment="CQL scripts whose writes are stored; an interrupted script is resumed from its row",
)

CONSUMERS = Table(
    "platform",
    "consumers",
    pa.schema(
        [
            column("name", pa.string(), "name of the consumer"),
            column("keyspace_name", pa.string(), "keyspace of the base table whose log it reads"),
            column("table_name", pa.string(), "name of that base table"),
            column(
                "set_timestamp", TIMESTAMP, "generation or stream set that it reads; null before the first", null=True
            ),
            column("position", TIMESTAMP, "it has read every row up to and including this time"),
            column("window_number", pa.int64(), "number of windows read so far"),
            column("updated_at", TIMESTAMP, "time of the last change of the position"),
        ]
    ),
    keys=("name", "keyspace_name", "table_name"),
    comment="The registered consumers of CDC logs and their progress",
    constraints={"window_not_negative": "window_number >= 0"},
    about_readers=True,
)

PASSED_OVER = Table(
    "platform",
    "passed_over",
    pa.schema(
        [
            column("name", pa.string(), "name of the consumer"),
            column("keyspace_name", pa.string(), "keyspace of the base table whose log it reads"),
            column("table_name", pa.string(), "name of that base table"),
            column("set_timestamp", TIMESTAMP, "generation or stream set without streams"),
            column("passed_at", TIMESTAMP, "when the consumer skipped it"),
        ]
    ),
    keys=("name", "keyspace_name", "table_name", "set_timestamp"),
    comment="The generations and stream sets that consumers skipped because they had no streams",
    about_readers=True,
)

LOG_GAPS = Table(
    "platform",
    "log_gaps",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table whose log has the gap"),
            column("table_name", pa.string(), "name of that base table"),
            column(
                "reader",
                pa.string(),
                "the reader that missed the rows: ingest, or a Spark stream of the source scylla_cdc",
            ),
            column("what", pa.string(), "the kind of gap, for example rows that expired unread"),
            column("since", TIMESTAMP, "start of the gap"),
            column("until", TIMESTAMP, "end of the gap, excluded"),
            column("why", pa.string(), "the reason as text"),
            column("found_at", TIMESTAMP, "when it was first found"),
            column("accepted_at", TIMESTAMP, "when a user accepted it; null: not accepted", null=True),
            column("because", pa.string(), "why the user accepted it", null=True),
        ]
    ),
    keys=("keyspace_name", "table_name", "reader", "what", "since"),
    comment="The intervals of live clusters' CDC logs whose rows may be missing here permanently",
    constraints={"in_order": "since < until"},
    about_readers=True,
)

CONSUMED_HOURS = Table(
    "platform",
    "consumed_hours",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table whose log was read"),
            column("table_name", pa.string(), "name of that base table"),
            column("hour", TIMESTAMP, "start of the hour; it ends just before the next one"),
            column("rows", pa.int64(), "rows of the log in that hour; the hourly sink has all of them"),
        ]
    ),
    keys=("keyspace_name", "table_name", "hour"),
    part_by=("hour",),
    comment="The hours of CDC logs that are complete in their hourly sinks",
    constraints={"rows_not_negative": "rows >= 0", "whole_hours": "date_trunc('hour', hour) = hour"},
    about_readers=True,
)
