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
            column("range_start", pa.int64(), "range end before this one, not included; the first range wraps"),
            column("vnode_index", pa.int32(), "rank of the range end; the index in every stream ID of the range"),
            column("owner", pa.string(), "UUID of the node that owns the range end's vnode"),
            STREAMS_COLUMN,
            IGNORE_MSB_COLUMN,
        ]
    ),
    keys=("generation_id", "range_end"),
    comment="Generated descriptions before they are inserted: what the audit reads",
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
            column("num_ranges", pa.int32(), "ranges of the whole generation: fewer rows are a partial one"),
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
                "one entry a range, ascending by range end",
            ),
            EXPIRED_COLUMN,
        ]
    ),
    keys=("time",),
    comment="Generation descriptions, first format, internal",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

STREAMS_DESCRIPTIONS = Table(
    "system_distributed",
    "cdc_streams_descriptions",
    pa.schema([TIME_COLUMN, column("streams", STREAMS_TYPE, "every stream ID of the generation"), EXPIRED_COLUMN]),
    keys=("time",),
    comment="Streams of each generation, first format, user-facing: what the rewrite reads",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

STREAMS_DESCRIPTIONS_V2 = Table(
    "system_distributed",
    "cdc_streams_descriptions_v2",
    pa.schema([TIME_COLUMN, RANGE_END_COLUMN, STREAMS_COLUMN]),
    keys=("time", "range_end"),
    clustering=(("range_end", False),),
    comment="Streams of each generation by range, user-facing; read a time only after cdc_generation_timestamps has it",
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
    clustering=(("time", True),),
    comment="The published generations: a row here is the commit mark of publishing",
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
            column("generation_id", pa.string(), "UUID of the generation; null where it had none", null=True),
            column("expired", TIMESTAMP, "from when on no CDC log could hold rows of it"),
            column("removed_at", TIMESTAMP, "when its removal began"),
            column("rows", pa.int64(), "rows that it had in all tables"),
            column("bytes", pa.int64(), "bytes of the files that held them"),
        ]
    ),
    keys=("time",),
    comment="The generations that were removed: what is known of them when their rows are gone",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

EXPIRY_MARKS = Table(
    "platform",
    "expiry_marks",
    pa.schema(
        [
            TIME_COLUMN,
            column("expired", TIMESTAMP, "the expiry that was marked: from then on no CDC log can hold rows of it"),
            column("marked_at", TIMESTAMP, "when the mark was written, by the clock of the run"),
            column("machine_marked_at", TIMESTAMP, "when the mark was written, by the machine's clock"),
        ]
    ),
    keys=("time",),
    comment="When each generation was marked as expired: its grace time counts from then",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

STREAM_FINGERPRINTS = Table(
    "platform",
    "stream_fingerprints",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation"),
            column("files", array_type(pa.string()), "names of the data files that held its rows"),
            column("streams", pa.int64(), "how many streams it has"),
            column("fingerprints", pa.binary(), "eight bytes a stream, ascending as little-endian unsigned numbers"),
        ]
    ),
    keys=("generation_id",),
    comment="Of small generations what tells that another has none of their streams, where they are too many to open",
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
    comment="What system.topology named as committed when no row of it was here: known, and not to be retrieved",
    constraints={"whole_milliseconds": whole_milliseconds_check("time")},
    generation_column="time",
)

LEFT_OUT = Table(
    "platform",
    "left_out",
    pa.schema(
        [
            column("said", pa.string(), "what the last look at the live cluster left out, and why"),
            column("since", TIMESTAMP, "when a look left it out first"),
        ]
    ),
    keys=("said",),
    comment="What the cluster lists and the last look at it did not take in, since it was not whole",
)

UNORDERED_RANGES = Table(
    "platform",
    "unordered_ranges",
    pa.schema(
        [
            column("table_name", pa.string(), "keyspace.table that was imported"),
            column("generation", pa.string(), "the generation as that table names it: a UUID or a time"),
            RANGE_END_COLUMN,
            column("reason", pa.string(), "why the order could not be told"),
        ]
    ),
    keys=("table_name", "generation", "range_end"),
    comment="Imported ranges whose streams could not be put back in shard order",
    generation_column="generation",
)

VERDICTS = Table(
    "platform",
    "verdicts",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation"),
            column("step", pa.string(), "the step of its join that was judged"),
            column("content", pa.string(), "hash of the names of the files that held what was judged"),
            column("invariants", array_type(pa.string()), "the invariants that were asked"),
            column("passed", pa.bool_(), "whether all of them hold"),
            column("said", pa.string(), "the first that does not, in words; null where all hold", null=True),
            column("door", pa.string(), "who asked: a command, or a run of Dagster"),
            column("judged_at", TIMESTAMP, "when"),
        ]
    ),
    keys=("generation_id", "step"),
    comment="The last verdict on each step of a join: what comes after a step relies on it",
    generation_column="generation_id",
    about_readers=True,
)

JUDGEMENTS = Table(
    "platform",
    "judgements",
    pa.schema(
        [
            column("invariant", pa.string(), "the invariant that was asked"),
            column(
                "asked_of", pa.string(), "what it was asked of: a generation, a table, an hour; empty: of everything"
            ),
            column("population", pa.int64(), "how many things were looked at"),
            column("violations", pa.int64(), "how many of them break it"),
            column("passed", pa.bool_(), "whether it holds"),
            column("said", pa.string(), "the judgement in words"),
            column("door", pa.string(), "who asked: a command, or a run of Dagster"),
            column("judged_at", TIMESTAMP, "when the judging began"),
            column("tables", array_type(pa.string()), "the tables that were there then"),
            column("versions", array_type(pa.int64()), "the version of each of them"),
        ]
    ),
    keys=("invariant", "asked_of"),
    comment="The last judgement of each invariant, by whatever door it was asked, with the versions that were judged",
    constraints={"version_of_every_table": "cardinality(tables) = cardinality(versions)"},
    about_readers=True,
)

ONLY_OBSERVED = Table(
    "platform",
    "only_observed",
    pa.schema(
        [
            column("since", TIMESTAMP, "when what is not whole was taken in as it is"),
            column("flaws", pa.int64(), "how many things in it are not whole"),
            column("because", pa.string(), "the first of them"),
            column("lifted_at", TIMESTAMP, "when everything was found good; null: only observed", null=True),
        ]
    ),
    keys=("since",),
    comment="Since when the home is only observed: nothing is built on it until everything in it is found good",
    about_readers=True,
)


GENERATION_SWITCHES = Table(
    "platform",
    "generation_switches",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation that is switched to"),
            column("phase", pa.string(), "where the switch stands: preparing, committed, aborted"),
            column("initiator", pa.string(), "UUID of the node that began it: the joining one"),
            column("participants", array_type(pa.string()), "UUIDs of the nodes that must acknowledge, ascending"),
            column("acknowledged", array_type(pa.string()), "UUIDs of the nodes that have, ascending"),
            column("lease_ends", array_type(TIMESTAMP), "beside acknowledged: from then on they need the decision"),
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
    properties=APPEND_ONLY_PROPERTIES,
)
