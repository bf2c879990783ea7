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
            column("ttl_seconds", pa.int64(), "how long log rows live; 0: they never expire"),
            column(
                "created_at", TIMESTAMP, "when the log table was created; the start of 1970 where that is not known"
            ),
            column("ddl", pa.string(), "the CREATE TABLE statement, where it is known", null=True),
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
            column("changed_at", TIMESTAMP, "when it was changed; grows strictly within a table"),
            column("what", pa.string(), "added, altered, or dropped with its log; added anew: seen to stand otherwise"),
            column("enabled", pa.bool_(), "whether CDC is on from then on"),
            column("ttl_seconds", pa.int64(), "how long log rows written from then on live; 0: they never expire"),
            column(
                "created_at", TIMESTAMP, "when the log table was created; the start of 1970 where that is not known"
            ),
            column("ddl", pa.string(), "the CREATE TABLE statement, where it is known", null=True),
        ]
    ),
    keys=("keyspace_name", "table_name", "changed_at"),
    comment="Every change of a CDC-enabled table, append-only: rows keep the TTL they were written with",
    constraints={"ttl_not_negative": "ttl_seconds >= 0", "known_what": "what IN ('added', 'altered', 'dropped')"},
    properties=APPEND_ONLY_PROPERTIES,
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
            column("set_timestamp", TIMESTAMP, "generation or stream set of which there was no stream"),
            column("passed_at", TIMESTAMP, "when it was passed over"),
        ]
    ),
    keys=("name", "keyspace_name", "table_name", "set_timestamp"),
    comment="The generations and stream sets that readers passed over because they had no streams",
    about_readers=True,
)

LOG_GAPS = Table(
    "platform",
    "log_gaps",
    pa.schema(
        [
            column("keyspace_name", pa.string(), "keyspace of the base table whose log has the gap"),
            column("table_name", pa.string(), "name of that base table"),
            column("reader", pa.string(), "who missed the rows: ingest, or a Spark stream of the source scylla_cdc"),
            column("what", pa.string(), "the kind of gap, for example that rows died unread"),
            column("since", TIMESTAMP, "the first moment of which rows may be missing"),
            column("until", TIMESTAMP, "the first moment after it of which none is missing again"),
            column("why", pa.string(), "the reason in words"),
            column("found_at", TIMESTAMP, "when it was found first"),
            column("accepted_at", TIMESTAMP, "when somebody accepted it; null: nobody has", null=True),
            column("because", pa.string(), "why it was accepted", null=True),
        ]
    ),
    keys=("keyspace_name", "table_name", "reader", "what", "since"),
    comment="The intervals of live clusters' CDC logs of which rows may be missing here for ever",
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
            column("rows", pa.int64(), "rows of the log in that hour, all of which are in the hourly sink"),
        ]
    ),
    keys=("keyspace_name", "table_name", "hour"),
    comment="The hours of CDC logs that are whole in their hourly sinks",
    constraints={"rows_not_negative": "rows >= 0", "whole_hours": "date_trunc('hour', hour) = hour"},
    about_readers=True,
)
