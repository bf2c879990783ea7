"""Live ScyllaDB clusters: registration, connections, metadata, watching and export.

Everything is read by SELECT, one page and one request at a time, to keep the load on a production cluster low. A secret
is resolved where it is used and never written anywhere.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "changes": (
            "PREEXISTING",
            "describe_pending_topology",
            "diff_states",
            "down_nodes",
            "with_ingest_lags",
        ),
        "connection": (
            "Connection",
            "create_tls_context",
            "parse_contact",
            "resolve_credentials",
        ),
        "errors": (
            "NotGranted",
            "Unreachable",
        ),
        "export": (
            "ClusterExport",
            "export_into_cluster",
        ),
        "handshake": ("probe_node",),
        "log_decoder": (
            "OtherColumns",
            "decode_log_rows",
        ),
        "metadata_fingerprint": (
            "MetadataSnapshot",
            "read_last_fingerprint",
        ),
        "observe": (
            "Observation",
            "observe_session",
            "refresh_if_changed",
            "run_observation",
        ),
        "rate": ("ReadTraffic", "sum_traffic"),
        "raw_pages": ("RawPage",),
        "registry": ("ScyllaCluster",),
        "schema": (
            "LoggedTable",
            "created_ms_from_id",
            "read_logged_tables",
        ),
        "session": (
            "ClusterMember",
            "ScyllaSession",
            "open_session",
            "require_row",
            "retry_unreachable",
        ),
        "system_tables": (
            "AvailableTables",
            "detect_tables",
        ),
        "topology": ("read_topology",),
        "watch": (
            "ClusterView",
            "SessionPool",
            "WatchedChange",
            "problems_after_failure",
            "watch_cluster",
        ),
    },
)
