"""The tables of generations: drafts, ledger, both description formats, publication, expiry, checks and switches."""

from __future__ import annotations

import pyarrow as pa

from cdc_platform.tables.schema import (
    APPEND_ONLY_PROPERTIES,
    EXPIRED_COLUMN,
    IGNORE_MSB_CHECK,
    IGNORE_MSB_COLUMN,
    RANGE_END_COLUMN,
    STREAMS_CHECK,
    STREAMS_COLUMN,
    STREAMS_TYPE,
    TIME_COLUMN,
    TIMESTAMP,
    Table,
    array_type,
    column,
    whole_milliseconds_check,
)

TOPOLOGY_DESCRIPTIONS = Table(
    "platform",
    "topology_descriptions",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation"),
            RANGE_END_COLUMN,
            column("range_start", pa.int64(), "the preceding range end, excluded; the first range wraps around"),
            column("vnode_index", pa.int32(), "rank of the range end; the index in every stream ID of the range"),
            column("owner", pa.string(), "UUID of the node that owns the range end's vnode"),
            STREAMS_COLUMN,
            IGNORE_MSB_COLUMN,
        ]
    ),
    keys=("generation_id", "range_end"),
    comment="Generated descriptions before their insertion, read by the audit",
    partition_by=("generation_id",),
    constraints={
        "streams_given": STREAMS_CHECK,
        "ignore_msb_in_bounds": IGNORE_MSB_CHECK,
        "index_fits_22_bits": "vnode_index >= 0 AND vnode_index < 4194304",
    },
    generation_column="generation_id",
    follows_from=(
        "platform.bootstrap_events",
        "platform.nodes",
    ),
)

GENERATIONS = Table(
    "platform",
    "generations",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation"),
            TIME_COLUMN,
            column("host_id", pa.string(), "UUID of the node that introduced it; null if it was imported", null=True),
            column("event_id", pa.string(), "its bootstrap event; null if there is none", null=True),
            column("num_ranges", pa.int32(), "number of ranges in its description"),
            column("num_streams", pa.int64(), "number of streams in its description"),
            column("created_at", TIMESTAMP, "when the timestamp was chosen"),
            column("published_at", TIMESTAMP, "when its publication finished; null before", null=True),
            column("format", pa.string(), "'v1' if its ID is its time alone; null: V2, time and UUID", null=True),
        ]
    ),
    keys=("generation_id",),
    comment="Ledger of generations, with the one timestamp of each",
    constraints={
        "whole_milliseconds": whole_milliseconds_check("time"),
        "ranges_given": "num_ranges >= 1",
        "stream_in_every_range": "num_streams >= num_ranges",
        "known_format": "format IS NULL OR format = 'v1'",
    },
    generation_column="generation_id",
)

GENERATION_DESCRIPTIONS_V2 = Table(
    "system_distributed_everywhere",
    "cdc_generation_descriptions_v2",
    pa.schema(
        [
            column("id", pa.string(), "UUID of the generation"),
            RANGE_END_COLUMN,
            IGNORE_MSB_COLUMN,
            column("num_ranges", pa.int32(), "ranges of the whole generation; with fewer rows it is incomplete"),
            STREAMS_COLUMN,
        ]
    ),
    keys=("id", "range_end"),
    clustering=(("range_end", False),),
    comment="Generation descriptions, second format, internal",
    partition_by=("id",),
    constraints={
        "streams_given": STREAMS_CHECK,
        "ignore_msb_in_bounds": IGNORE_MSB_CHECK,
        "ranges_given": "num_ranges >= 1",
    },
    generation_column="id",
    follows_from=("platform.topology_descriptions",),
)

GENERATION_DESCRIPTIONS = Table(
    "system_distributed",
    "cdc_generation_descriptions",
    pa.schema(
        [
            TIME_COLUMN,
            column(
                "description",
                array_type(
                    pa.struct(
                        [
                            pa.field("token_range_end", pa.int64()),
                            pa.field("streams", STREAMS_TYPE),
                            pa.field("sharding_ignore_msb", pa.int8()),
                        ]
                    )
                ),
                "one entry per range, ascending by range end",
            ),
            EXPIRED_COLUMN,
        ]
    ),
    keys=("time",),
    part_by=("time",),
    comment="Generation descriptions, first format, internal",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

STREAMS_DESCRIPTIONS = Table(
    "system_distributed",
    "cdc_streams_descriptions",
    pa.schema([TIME_COLUMN, column("streams", STREAMS_TYPE, "every stream ID of the generation"), EXPIRED_COLUMN]),
    keys=("time",),
    comment="Streams of each generation, first format, client-facing; the rewrite reads it",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

STREAMS_DESCRIPTIONS_V2 = Table(
    "system_distributed",
    "cdc_streams_descriptions_v2",
    pa.schema([TIME_COLUMN, RANGE_END_COLUMN, STREAMS_COLUMN]),
    keys=("time", "range_end"),
    clustering=(("range_end", False),),
    comment="Streams of each generation by range, client-facing; valid once cdc_generation_timestamps has the time",
    partition_by=("time",),
    constraints={"whole_milliseconds": whole_milliseconds_check("time"), "streams_given": STREAMS_CHECK},
    generation_column="time",
    follows_from=(
        "system_distributed_everywhere.cdc_generation_descriptions_v2",
        "system_distributed.cdc_generation_descriptions",
    ),
)

GENERATION_TIMESTAMPS = Table(
    "system_distributed",
    "cdc_generation_timestamps",
    pa.schema([column("key", pa.string(), "always 'timestamps'"), TIME_COLUMN, EXPIRED_COLUMN]),
    keys=("key", "time"),
    part_by=("time",),
    clustering=(("time", True),),
    comment="The published generations: inserting a row here completes a publication",
    constraints={"one_partition": "key = 'timestamps'", "whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
    follows_from=("platform.generations",),
)

REMOVED_GENERATIONS = Table(
    "platform",
    "removed_generations",
    pa.schema(
        [
            TIME_COLUMN,
            column("generation_id", pa.string(), "UUID of the generation; null if it had none", null=True),
            column("expired", TIMESTAMP, "time from which on no CDC log could hold its rows"),
            column("removed_at", TIMESTAMP, "when its removal began"),
            column("rows", pa.int64(), "number of its rows in all tables"),
            column("bytes", pa.int64(), "bytes of the files with these rows"),
        ]
    ),
    keys=("time",),
    comment="The removed generations, for queries after the removal of their rows",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

EXPIRY_MARKS = Table(
    "platform",
    "expiry_marks",
    pa.schema(
        [
            TIME_COLUMN,
            column("expired", TIMESTAMP, "the recorded expiry, from which on no CDC log can hold its rows"),
            column("marked_at", TIMESTAMP, "when the mark was written, by the clock of the run"),
            column("machine_marked_at", TIMESTAMP, "when the mark was written, by the machine's clock"),
        ]
    ),
    keys=("time",),
    comment="When each generation was marked as expired, which starts its grace time",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

STREAM_FINGERPRINTS = Table(
    "platform",
    "stream_fingerprints",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation"),
            column("files", array_type(pa.string()), "names of the data files with its rows"),
            column("streams", pa.int64(), "number of its streams"),
            column("fingerprints", pa.binary(), "eight bytes per stream, ascending as little-endian unsigned numbers"),
        ]
    ),
    keys=("generation_id",),
    comment="Fingerprints of small generations' streams, to prove without opening files that no stream is repeated",
    constraints={"a_file_is_named": "cardinality(files) >= 1"},
    generation_column="generation_id",
    follows_from=(
        "platform.topology_descriptions",
        "system_distributed_everywhere.cdc_generation_descriptions_v2",
    ),
    about_readers=True,
)

COMMITTED_GENERATIONS = Table(
    "platform",
    "committed_generations",
    pa.schema(
        [
            TIME_COLUMN,
            column("generation_id", pa.string(), "UUID of the generation"),
        ]
    ),
    keys=("time",),
    comment="Generations that system.topology lists as committed but whose rows were missing: they cannot be retrieved",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

LEFT_OUT = Table(
    "platform",
    "left_out",
    pa.schema(
        [
            column("said", pa.string(), "what the last observation of the live cluster omitted, and why"),
            column("since", TIMESTAMP, "when an observation first omitted it"),
        ]
    ),
    keys=("said",),
    comment="Items that the cluster lists and the last observation omitted because they were incomplete",
)

UNORDERED_RANGES = Table(
    "platform",
    "unordered_ranges",
    pa.schema(
        [
            column("table_name", pa.string(), "the imported table, keyspace.table"),
            column("generation", pa.string(), "the generation by its name in that table: a UUID or a time"),
            RANGE_END_COLUMN,
            column("reason", pa.string(), "why the order could not be determined"),
        ]
    ),
    keys=("table_name", "generation", "range_end"),
    comment="Imported ranges whose streams could not be restored to shard order",
    generation_column="generation",
)

VERDICTS = Table(
    "platform",
    "verdicts",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation"),
            column("step", pa.string(), "the audited step of its join"),
            column("content", pa.string(), "hash of the names of the audited data files"),
            column("invariants", array_type(pa.string()), "the audited invariants"),
            column("passed", pa.bool_(), "whether all of them hold"),
            column("said", pa.string(), "the first violation as text; null if all hold", null=True),
            column("door", pa.string(), "the entry point: a command, or a run of Dagster"),
            column("judged_at", TIMESTAMP, "time of the audit"),
        ]
    ),
    keys=("generation_id", "step"),
    comment="The last audit result of each step of a join, on which later steps rely",
    generation_column="generation_id",
    about_readers=True,
)

VERDICT_COUNTS = Table(
    "platform",
    "verdict_counts",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation"),
            column("step", pa.string(), "the audited step of its join"),
            column("content", pa.string(), "hash of the names of the audited data files"),
            column("invariants", array_type(pa.string()), "the audited invariants"),
            column("populations", array_type(pa.int64()), "for each invariant the number of checked items"),
            column("violations", array_type(pa.int64()), "for each invariant the number of violations"),
            column("unjudged", array_type(pa.int64()), "for each invariant the number of items without a verdict"),
            column("samples", array_type(pa.string()), "for each invariant the first violations as text"),
        ]
    ),
    keys=("generation_id", "step"),
    comment="The counts behind the last audit result of each step of a join",
    generation_column="generation_id",
    constraints={
        "counts_of_every_invariant": "cardinality(invariants) = cardinality(populations) AND cardinality(invariants) = "
        "cardinality(violations) AND cardinality(invariants) = cardinality(unjudged) AND cardinality(invariants) = "
        "cardinality(samples)"
    },
    about_readers=True,
)

JUDGEMENTS = Table(
    "platform",
    "judgements",
    pa.schema(
        [
            column("invariant", pa.string(), "the checked invariant"),
            column("asked_of", pa.string(), "the checked generation, table or hour; empty: the whole home"),
            column("population", pa.int64(), "number of checked items"),
            column("violations", pa.int64(), "number of violations"),
            column("passed", pa.bool_(), "whether the invariant holds"),
            column("said", pa.string(), "the result as text"),
            column("door", pa.string(), "the entry point: a command, or a run of Dagster"),
            column("judged_at", TIMESTAMP, "when the check began"),
            column("tables", array_type(pa.string()), "the tables that existed then"),
            column("versions", array_type(pa.int64()), "the version of each table"),
        ]
    ),
    keys=("invariant", "asked_of"),
    comment="The last result of each invariant from any entry point, with the checked table versions",
    constraints={"version_of_every_table": "cardinality(tables) = cardinality(versions)"},
    about_readers=True,
)

TABLE_CHECKS = Table(
    "platform",
    "table_checks",
    pa.schema(
        [
            column("table_name", pa.string(), "the verified table, `keyspace.name`"),
            column("version", pa.int64(), "the verified version; null if the log cannot be read", null=True),
            column("files", pa.int64(), "number of checked data files and log entries"),
            column("partitions", pa.int64(), "number of Delta partitions whose rows were read"),
            column("commits", pa.int64(), "number of checked commits"),
            column("parts", array_type(pa.string()), "for each complaint the part of the table; *: every part"),
            column("invariants", array_type(pa.string()), "for each complaint the violated invariant"),
            column("said", array_type(pa.string()), "each complaint as text"),
            column("unread", array_type(pa.string()), "the Delta partitions whose rows were not read"),
            column("undigested", array_type(pa.string()), "the Delta partitions of which no commit records a digest"),
            column("door", pa.string(), "the entry point: a command, or a run of Dagster"),
            column("judged_at", TIMESTAMP, "when the check began"),
        ]
    ),
    keys=("table_name",),
    comment="The last verification of each stored table: complaints by part, and what was not read",
    constraints={
        "one_of_each_complaint": "cardinality(parts) = cardinality(invariants) AND cardinality(parts) = "
        "cardinality(said)"
    },
    about_readers=True,
)

ONLY_OBSERVED = Table(
    "platform",
    "only_observed",
    pa.schema(
        [
            column("since", TIMESTAMP, "when incomplete data was imported"),
            column("flaws", pa.int64(), "number of incomplete items"),
            column("because", pa.string(), "the first incomplete item"),
            column(
                "lifted_at",
                TIMESTAMP,
                "when a check found everything complete; null: the home is still read-only",
                null=True,
            ),
        ]
    ),
    keys=("since",),
    comment="Since when the home is read-only because of incomplete data, until a check finds everything complete",
    about_readers=True,
)


GENERATION_SWITCHES = Table(
    "platform",
    "generation_switches",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation that is switched to"),
            column("phase", pa.string(), "phase of the switch: preparing, committed, aborted"),
            column("initiator", pa.string(), "UUID of the joining node, which began it"),
            column("participants", array_type(pa.string()), "UUIDs of the nodes that must acknowledge, ascending"),
            column("acknowledged", array_type(pa.string()), "UUIDs of the nodes that have acknowledged, ascending"),
            column(
                "lease_ends", array_type(TIMESTAMP), "per acknowledged node: time from which on it needs the decision"
            ),
            column("prepared_at", TIMESTAMP, "when it began"),
            column("deadline", TIMESTAMP, "time from which on any node may abort it, unless all have acknowledged"),
            column("time", TIMESTAMP, "the generation's timestamp; null until it is committed", null=True),
            column("decided_at", TIMESTAMP, "when it was committed or aborted", null=True),
            column("decided_by", pa.string(), "the entry point that committed or aborted it", null=True),
        ]
    ),
    keys=("generation_id",),
    comment="The two-phase switch of generations; each change of phase is one compare-and-set commit",
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
            column(
                "lease_end", TIMESTAMP, "before the decision, it accepts no write with this timestamp or a later one"
            ),
            column("promised_at", TIMESTAMP, "time of the promise by its clock"),
        ]
    ),
    keys=("generation_id", "host_id"),
    comment="Promises of a switch's participants, stored before they acknowledge; append-only",
    properties=APPEND_ONLY_PROPERTIES,
)
