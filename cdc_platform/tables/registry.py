"""The registry of every table of the platform.

Names and columns are ScyllaDB's own where it has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cdc_platform.tables.cdc_logs import (
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    CONSUMED_HOURS,
    CONSUMERS,
    KEPT_SCRIPTS,
    LOG_GAPS,
    PASSED_OVER,
)
from cdc_platform.tables.generations import (
    COMMITTED_GENERATIONS,
    EXPIRY_MARKS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_SWITCHES,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    JUDGEMENTS,
    LEFT_OUT,
    ONLY_OBSERVED,
    REMOVED_GENERATIONS,
    STREAM_FINGERPRINTS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    SWITCH_PROMISES,
    TABLE_CHECKS,
    TOPOLOGY_DESCRIPTIONS,
    UNORDERED_RANGES,
    VERDICT_COUNTS,
    VERDICTS,
)
from cdc_platform.tables.nodes import BOOTSTRAP_EVENTS, CDC_LOCAL, CLUSTER_CHANGES, NODES
from cdc_platform.tables.schema import (
    Table,
)
from cdc_platform.tables.tablets import TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS

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
            VERDICT_COUNTS,
            JUDGEMENTS,
            TABLE_CHECKS,
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
