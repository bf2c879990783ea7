"""Spark: sessions, Connect servers, JARs, executors, frames and shuffles."""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "connect": ("ConnectServer",),
        "executors": (
            "check_executor",
            "probe_executors",
        ),
        "frame_schema": (
            "IncomingFrameSchema",
            "arrow_to_spark_schema",
            "quote_spark_name",
            "spark_to_arrow_type",
            "table_to_spark_schema",
        ),
        "jars": (
            "CACHE_VARIABLE",
            "DELTA_JARS",
            "find_java",
            "get_cache_folder",
            "get_jars",
            "get_java_version",
            "list_missing_jars",
        ),
        "session": (
            "LOG_VARIABLE",
            "MAX_BATCH_ROWS",
            "get_spark_session",
            "get_task_runner",
            "is_remote_session",
            "limit_batch_bytes",
        ),
        "shuffle": ("apply_by_key",),
        "worker_archive": ("get_worker_archive",),
    },
)
