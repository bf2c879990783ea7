"""The CDC log of a live cluster, brought into the lake exactly once, window after window."""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "cluster_log": ("ReadWindow",),
        "ingest": (
            "IngestResult",
            "ingest_table",
        ),
        "planner": ("Estimate",),
        "policy": ("ReadPolicy",),
        "preflight": ("examine",),
        "replica.replica": ("ReplicationResult",),
        "replica.tables": ("current_table",),
    },
)
