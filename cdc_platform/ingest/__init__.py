"""Ingest of a live cluster's CDC log into the lake, exactly once, window by window."""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "cluster_log": ("ReadWindow",),
        "ingest": ("NOW", "IngestOptions", "IngestResult", "ingest_table"),
        "planner": ("Estimate",),
        "policy": ("ReadPolicy",),
        "preflight": ("examine",),
        "replica.replica": ("ReplicationResult",),
        "replica.tables": ("current_table",),
        "second_pass": ("read_second_pass_us",),
        "selection": ("TableSelection", "read_table_selection"),
        "totals": ("read_ingest_totals",),
        "turns": ("TableOutcome", "ingest_tables"),
    },
)
