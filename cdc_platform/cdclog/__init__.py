"""CDC logs: log tables and their values, the encoder, table states, consumers, scripts and the audits of logs.

The package writes what ScyllaDB would have written to a log, and reads logs from the lake.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "audit.consumers": (
            "audit_hours",
            "audit_skipped_sets",
            "check_interval_read",
        ),
        "audit.ingested_logs": ("audit_ingest",),
        "audit.logs": (
            "audit_log",
            "audit_logs",
            "count_log_contents",
            "read_logged_tables",
        ),
        "audit.table_states": (
            "audit_states",
            "check_base_table",
        ),
        "changes": (
            "LoggedImages",
            "changes_frame",
            "changes_from_log",
            "changes_schema",
            "read_logged_images",
        ),
        "column_codec": (
            "has_unique_encoding",
            "join_components",
            "split_components",
        ),
        "consumer": (
            "clients",
            "hourly",
            "reader",
        ),
        "consumer.checkpoints": (
            "get_checkpoint_status",
            "parse_checkpoints",
        ),
        "consumer.clients": (
            "BacklogPart",
            "CdcClient",
            "ClientReadPlan",
        ),
        "consumer.lag": (
            "IngestLag",
            "RowLifetime",
            "TtlLag",
            "changes_since_last_drop",
            "find_expired_until_us",
            "get_ingest_lag",
            "read_ingest_lags",
            "row_lifetimes",
        ),
        "consumer.progress": (
            "StreamProgress",
            "iter_unread_windows",
            "origin_application",
        ),
        "consumer.reader": (
            "FROM_CLUSTER",
            "LOG_KEY",
            "MAX_ROWS_IN_MEMORY",
            "consume_windows",
            "ensure_consumer",
            "exclude_stored_rows",
            "iter_complete_windows",
            "missing_log_error",
            "sort_log_rows",
        ),
        "consumer.retyped": (
            "RETYPED_APPLICATION",
            "ensure_log_columns",
        ),
        "consumer.skipped": (
            "OnMessage",
            "describe_skip",
            "log_message",
        ),
        "consumer.windows": (
            "CONFIDENCE_WINDOW_US",
            "ReaderSets",
            "Window",
            "next_window",
            "read_reader_sets",
            "reader_sets_from_source",
        ),
        "ddl": (
            "load_table_schemas",
            "read_table_schema",
            "schema_from_change",
        ),
        "encoder": ("Operation",),
        "export": (
            "StoredLog",
            "list_stored_logs",
            "log_csv_tables",
        ),
        "gaps": (
            "describe_gaps",
            "describe_recreation",
            "read_log_gaps",
        ),
        "items": (
            "ITEMS_SUFFIX",
            "items_frame",
            "items_from_rows",
            "items_schema",
        ),
        "rebuild": (
            "REBUILT_SUFFIX",
            "RebuiltTable",
            "TableComparison",
            "compare_rebuilt",
            "read_rebuilt_table",
            "rebuild_table",
            "rebuilt_table",
        ),
        "replay": ("replay_log",),
        "schema": (
            "AS_OF_APPLICATION",
            "CHANGES_SUFFIX",
            "EXACT",
            "EXACT_COLUMN",
            "GAP_APPLICATION",
            "INEXACT",
            "INEXACT_APPLICATION",
            "WRITTEN_AT",
            "arrow_type",
            "has_same_order",
            "log_table",
            "stored_columns",
            "stored_type",
            "with_stored_names",
        ),
        "script.commit": (
            "commit_script",
            "dry_run_on_stored_tables",
        ),
        "script.run": (
            "Script",
            "ScriptResult",
            "StatementOutcome",
            "StoredTables",
            "TouchedTable",
        ),
        "state.from_log": (
            "LogBatches",
            "LogColumns",
            "state_from_log",
        ),
        "state.merge": ("merge_states",),
        "state.model": (
            "STATE_SCHEMA",
            "StateRowKind",
            "hash_identity",
            "normalize_key_forms",
        ),
        "state.select": (
            "SelectedRows",
            "find_purgeable_rows",
            "purge_state",
            "select_schema",
            "select_with_details",
        ),
        "state.store": ("state_from_rows",),
        "values": (
            "FIRST_DAY",
            "FIRST_MS",
            "LAST_DAY",
            "LAST_MS",
            "encode_exact_value",
            "is_out_of_range",
            "log_rows_from_arrow",
            "may_be_out_of_range",
            "to_arrow_value",
        ),
        "write_batches": (
            "AppendedBatch",
            "InvalidWrites",
            "append_batch",
            "append_hour",
            "audit_appended_hour",
            "list_hours",
        ),
    },
)
