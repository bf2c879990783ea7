"""Every table of the platform, declared once: columns, keys, partitions, constraints, comments.

Names and columns are ScyllaDB's own where it has the table. Who creates, reads and writes them: `lake` (no JVM) and
`frames` (Spark). What the rows mean is up to lifecycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cdc_platform.lake.tables.clusters import CLUSTER_CHANGES
from cdc_platform.lake.tables.declaration import (
    ALLOWED_FEATURES,
    CHECKPOINT_EVERY,
    STREAMS,
    TIMESTAMP,
    Table,
    array_of,
    column,
)
from cdc_platform.lake.tables.generations import (
    COMMITTED_GENERATIONS,
    EXPIRY_MARKS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    JUDGEMENTS,
    LEFT_OUT,
    ONLY_OBSERVED,
    REMOVED_GENERATIONS,
    STREAM_FINGERPRINTS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    UNORDERED_RANGES,
    VERDICTS,
)
from cdc_platform.lake.tables.logs import (
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    CONSUMED_HOURS,
    CONSUMERS,
    KEPT_SCRIPTS,
    LOG_GAPS,
    PASSED_OVER,
)
from cdc_platform.lake.tables.nodes import BOOTSTRAP_EVENTS, CDC_LOCAL, NODES
from cdc_platform.lake.tables.switches import GENERATION_SWITCHES, SWITCH_PROMISES
from cdc_platform.lake.tables.tablets import TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        table.full_name: table
        for table in (
            BOOTSTRAP_EVENTS,
            NODES,
            CLUSTER_CHANGES,
            CDC_TABLES,
            CDC_TABLE_CHANGES,
            CONSUMERS,
            PASSED_OVER,
            LOG_GAPS,
            CONSUMED_HOURS,
            KEPT_SCRIPTS,
            EXPIRY_MARKS,
            REMOVED_GENERATIONS,
            TOPOLOGY_DESCRIPTIONS,
            VERDICTS,
            JUDGEMENTS,
            STREAM_FINGERPRINTS,
            ONLY_OBSERVED,
            GENERATIONS,
            COMMITTED_GENERATIONS,
            LEFT_OUT,
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

__all__ = [
    "ALLOWED_FEATURES",
    "BOOTSTRAP_EVENTS",
    "CDC_LOCAL",
    "CDC_TABLES",
    "CDC_TABLE_CHANGES",
    "CHECKPOINT_EVERY",
    "CLUSTER_CHANGES",
    "COMMITTED_GENERATIONS",
    "CONSUMED_HOURS",
    "CONSUMERS",
    "EXPIRY_MARKS",
    "GENERATIONS",
    "GENERATION_DESCRIPTIONS",
    "GENERATION_DESCRIPTIONS_V2",
    "GENERATION_SWITCHES",
    "GENERATION_TIMESTAMPS",
    "JUDGEMENTS",
    "KEPT_SCRIPTS",
    "LEFT_OUT",
    "LOG_GAPS",
    "NODES",
    "ONLY_OBSERVED",
    "PASSED_OVER",
    "REMOVED_GENERATIONS",
    "STREAMS",
    "STREAMS_DESCRIPTIONS",
    "STREAMS_DESCRIPTIONS_V2",
    "STREAM_FINGERPRINTS",
    "SWITCH_PROMISES",
    "TABLES",
    "TABLET_LAYOUTS",
    "TABLET_STREAMS",
    "TABLET_TIMESTAMPS",
    "TIMESTAMP",
    "TOPOLOGY_DESCRIPTIONS",
    "UNORDERED_RANGES",
    "VERDICTS",
    "Table",
    "array_of",
    "column",
]
