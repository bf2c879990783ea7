"""The CDC logs, a partition a base table: what is in each, and whether every row is where the rules put it.

Logs are written elsewhere; here they are looked at. Spark is started for large ones alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetSelection,
    DagsterInstance,
    DefaultSensorStatus,
    MaterializeResult,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
    sensor,
)

from assets.checks import Found, check_specs, judged
from assets.declared import pool, table_asset
from assets.events import held, told_apart, written
from assets.failures import in_one_line
from assets.partitions import CDC_LOGS, LOGS_NAME, asked, table_name
from assets.told import Stopwatch, few_rows, materialized
from cdc_platform.clock import format_us
from cdc_platform.cql.schema import CdcOptions, TableSchema
from cdc_platform.invariants.findings import LOGS, PASSED, STATES
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.volume import Workers
from cdc_platform.log.audit.logs import audit_log, audit_logs, logged_tables
from cdc_platform.log.audit.overview import overview
from cdc_platform.log.audit.passed import audit_passed
from cdc_platform.log.audit.states import audit_states
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.reader import no_log
from cdc_platform.timeline.parts import Part
from resources.clock import ClockResource
from resources.home import HomeResource
from resources.spark import SparkResource

LOGS_JOB = "cdc_logs"
CDC_LOG = Table(
    "platform",
    "cdc_log",
    pa.schema(list(log_table(TableSchema("keyspace", "table", (), CdcOptions())).schema)),
    keys=("cdc$stream_id", "cdc$time", "cdc$batch_seq_no"),
    comment="The CDC log of one table, `<keyspace>.<table>_scylla_cdc_log`, with the columns that every log has",
)
"""Stands for all logs, each of which is a table of its own with the columns of its base table behind these."""


@table_asset(
    CDC_LOG,
    group="cdc_log",
    spark=True,
    partitions=CDC_LOGS,
    code=("cdc_platform.log.audit.overview",),
    description="Rows are written by `cdc-platform log FILE.cql --keep` and by typed writes. Materialise a table's "
    "partition to see how many rows its log has, by operation and by generation, and to check each of them.",
)
def cdc_log(context: AssetExecutionContext, home: HomeResource, spark: SparkResource) -> MaterializeResult:
    """Count what is in the log of one table."""
    watch, lake, made = Stopwatch(), home.lake(), {}
    with in_one_line():
        partitions = asked(context, "logs")
        for partition in partitions:
            schema = _schema(lake, partition)
            rows, told = _seen(lake, schema, spark.workers())
            part = Part(log_table(schema), {})
            content = replace(held(lake, part), rows=rows, told=told)
            if len(partitions) == 1:
                return materialized(lake, content, rows=rows, watch=watch, told=told)
            made[partition] = content, written(lake, part)
    return told_apart(context, made, ())


def _seen(lake: Lake, schema: TableSchema, workers: Workers) -> tuple[int, dict[str, Any]]:
    seen = overview(lake, schema, workers)
    periods = (
        ("none" if begin is None else format_us(begin), rows) for begin, rows in reversed(seen.by_period.items())
    )
    return seen.rows, {
        "bytes": seen.bytes,
        "newest": "" if seen.newest_us is None else format_us(seen.newest_us),
        "operations": few_rows(("operation", "rows"), seen.by_operation.items()),
        "generations": few_rows(("since", "rows"), periods),
    }


@multi_asset_check(
    can_subset=True,
    name="audit_cdc_log",
    specs=check_specs(CDC_LOG, (*LOGS.invariants, *STATES.invariants, *PASSED.invariants), CDC_LOGS),
    pool=pool(CDC_LOG),
)
def audit_cdc_log(
    context: AssetCheckExecutionContext, home: HomeResource, spark: SparkResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge the rows of one log, or of all logs; where there are none nothing is held against them."""
    lake, workers = home.lake(), spark.workers()

    def audit(partition: str | None) -> Found:
        schema = None if partition is None else _schema(lake, partition)
        findings = audit_logs(lake, workers) if schema is None else audit_log(lake, schema, workers)
        return [(LOGS, findings), (STATES, audit_states(lake, schema)), (PASSED, audit_passed(lake, schema))]

    yield from judged(context, CDC_LOG, lake, clock.clock(), audit)


check_logs = define_asset_job(
    LOGS_JOB,
    selection=AssetSelection.assets(cdc_log),
    description="Counts the rows of one log and checks each of them. It only looks, however often it runs.",
    executor_def=in_process_executor,
)


def next_logs(lake: Lake, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """What a tick asks for: partitions for new logs, and a look at every log that has changed.

    The run key has the log's version, so that each state is looked at once; the cursor says which states were seen.
    """
    versions = {schema.full_name: lake.version(log_table(schema)) for schema in logged_tables(lake)}
    state = " ".join(f"{name}/{version}" for name, version in versions.items())
    if state == (cursor or ""):
        return SensorResult(skip_reason="no log has changed since it was looked at", cursor=state)
    known = set((cursor or "").split())
    missing = sorted(versions.keys() - set(instance.get_dynamic_partitions(LOGS_NAME)))
    return SensorResult(
        run_requests=[
            RunRequest(run_key=f"{name}/{version}", partition_key=name)
            for name, version in versions.items()
            if f"{name}/{version}" not in known
        ],
        dynamic_partitions_requests=[CDC_LOGS.build_add_request(missing)] if missing else [],
        cursor=state,
    )


@sensor(
    name="changed_logs",
    job_name=LOGS_JOB,
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.STOPPED,
    description="Every minute: adds a partition for every CDC log, and asks for a look at those that have changed. "
    "Each look reads the whole log, so it is switched on by hand.",
)
def changed_logs(context: SensorEvaluationContext, home: HomeResource) -> SensorResult:
    """`next_logs` on this home and this instance."""
    return next_logs(home.lake(), context.instance, context.cursor)


def _schema(lake: Lake, partition: str) -> TableSchema:
    name = table_name(partition)
    for schema in logged_tables(lake):
        if (schema.keyspace, schema.name) == name:
            return schema
    raise no_log(lake, partition)
