"""Every table of the platform, declared once: columns, keys, partitions, constraints and comments.

Names and columns are ScyllaDB's own where it has the table.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "cdc_logs": (
            "CDC_TABLES",
            "CDC_TABLE_CHANGES",
            "CONSUMED_HOURS",
            "CONSUMERS",
            "KEPT_SCRIPTS",
            "LOG_GAPS",
            "PASSED_OVER",
        ),
        "generations": (
            "COMMITTED_GENERATIONS",
            "EXPIRY_MARKS",
            "GENERATIONS",
            "GENERATION_DESCRIPTIONS",
            "GENERATION_DESCRIPTIONS_V2",
            "GENERATION_SWITCHES",
            "GENERATION_TIMESTAMPS",
            "JUDGEMENTS",
            "LEFT_OUT",
            "ONLY_OBSERVED",
            "REMOVED_GENERATIONS",
            "STREAMS_DESCRIPTIONS",
            "STREAMS_DESCRIPTIONS_V2",
            "STREAM_FINGERPRINTS",
            "SWITCH_PROMISES",
            "TABLE_CHECKS",
            "TOPOLOGY_DESCRIPTIONS",
            "UNORDERED_RANGES",
            "VERDICTS",
            "VERDICT_COUNTS",
        ),
        "nodes": (
            "BOOTSTRAP_EVENTS",
            "CDC_LOCAL",
            "CLUSTER_CHANGES",
            "NODES",
        ),
        "registry": ("TABLES",),
        "schema": (
            "ALLOWED_FEATURES",
            "CHECKPOINT_EVERY",
            "STREAMS_TYPE",
            "TIMESTAMP",
            "Table",
            "array_type",
            "column",
        ),
        "tablets": (
            "TABLET_LAYOUTS",
            "TABLET_STREAMS",
            "TABLET_TIMESTAMPS",
        ),
    },
)
