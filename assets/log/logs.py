"""CDC logs, one partition per base table: row counts, and a check of each row's placement."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    DagsterInstance,
    DefaultSensorStatus,
    MaterializeResult,
    RunRequest,
    RunsFilter,
    SensorEvaluationContext,
    SensorResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
    sensor,
)

from cdc_platform.cdclog import (
    audit_log,
    audit_logs,
    audit_skipped_sets,
    audit_states,
    count_log_contents,
    log_table,
    missing_log_error,
    read_logged_tables,
)
from cdc_platform.checks import LOG_FAMILY, SKIPPED_SET_FAMILY, STATE_FAMILY, Finding
from cdc_platform.clock import format_us
from cdc_platform.cql import CdcOptions, TableSchema
from cdc_platform.delta import Lake, TaskRunner, read_newest_versions
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2, TABLET_TIMESTAMPS, Table
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.checks import FamilyFindings, check_specs, evaluate_checks, select_with_own_checks
from cdc_platform_assets.data_versions import (
    PartitionContent,
    read_partition_content,
)
from cdc_platform_assets.log.writes import LOGGED_WRITES
from cdc_platform_assets.materialization import materialize_partitions
from cdc_platform_assets.metadata import build_rows_preview
from cdc_platform_assets.partitions import CDC_LOG_PARTITIONS, LOGS_NAME, table_from_partition
from cdc_platform_assets.run_requests import FINISHED_STATUSES, PARTITION_TAG, request_run
from cdc_platform_assets.specs import lineage_edge, pool_from_table, table_asset
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource
from cdc_platform_resources.spark import SparkResource

LOGS_JOB = "cdc_logs"
PAUSE_FACTOR = 9
"""How many times as long as a log's last check took the next one waits: checks take a tenth of the time at most."""
VERSION_TAG = "cdc_platform/log_version"
CDC_LOG = Table(
    "platform",
    "cdc_log",
    pa.schema(list(log_table(TableSchema("keyspace", "table", (), CdcOptions())).schema)),
    keys=("cdc$stream_id", "cdc$time", "cdc$batch_seq_no"),
    comment="CDC log of one table, `<keyspace>.<table>_scylla_cdc_log`, with the columns that every log has",
)
"""Stands for all logs. Each log is its own table: these columns, then the columns of its base table."""


@table_asset(
    CDC_LOG,
    group="cdc_log",
    spark=True,
    deps=[lineage_edge(table) for table in (STREAMS_DESCRIPTIONS_V2, TABLET_TIMESTAMPS, LOGGED_WRITES)],
    partitions=CDC_LOG_PARTITIONS,
    code=("cdc_platform.cdclog.audit.logs",),
    description="Materializing a partition counts the rows of that table's log by operation and generation, and its "
    "checks judge each row. CQL scripts and typed writes write the rows.",
)
def cdc_log(context: AssetExecutionContext, home: HomeResource, spark: SparkResource) -> MaterializeResult:
    """Count the rows of one log."""
    lake = home.lake()

    def count(partition: str) -> PartitionContent:
        schema = _find_schema(lake, partition)
        rows, metadata = describe_log(lake, schema, spark.workers())
        return read_partition_content(lake, GenerationRows(log_table(schema), {}), rows, metadata)

    return materialize_partitions(context, lake, "logs", count, spark=spark)


def describe_log(lake: Lake, schema: TableSchema, workers: TaskRunner) -> tuple[int, dict[str, Any]]:
    """Return the number of rows of a log, and its metadata: size, newest row, rows by operation and generation."""
    contents = count_log_contents(lake, schema, workers)
    periods = (
        ("none" if begin is None else format_us(begin), rows) for begin, rows in reversed(contents.by_period.items())
    )
    return contents.rows, {
        "bytes": contents.bytes,
        "newest": "" if contents.newest_us is None else format_us(contents.newest_us),
        "operations": build_rows_preview(("operation", "rows"), contents.by_operation.items()),
        "generations": build_rows_preview(("since", "rows"), periods),
    }


@multi_asset_check(
    can_subset=True,
    name="audit_cdc_log",
    specs=check_specs(
        CDC_LOG, (*LOG_FAMILY.invariants, *STATE_FAMILY.invariants, *SKIPPED_SET_FAMILY.invariants), CDC_LOG_PARTITIONS
    ),
    pool=pool_from_table(CDC_LOG),
)
def audit_cdc_log(
    context: AssetCheckExecutionContext, home: HomeResource, spark: SparkResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge the rows of one log, or of all logs. Checks pass if there is no log."""
    lake, workers = home.lake(), spark.workers()

    def audit(partition: str | None) -> FamilyFindings:
        schema = None if partition is None else _find_schema(lake, partition)
        findings = audit_logs(lake, workers) if schema is None else audit_log(lake, schema, workers)
        return [
            (LOG_FAMILY, findings),
            (STATE_FAMILY, [_without_verdict_if_unread(finding) for finding in audit_states(lake, schema)]),
            (SKIPPED_SET_FAMILY, audit_skipped_sets(lake, schema)),
        ]

    yield from evaluate_checks(context, CDC_LOG, lake, clock.clock(), audit)


def _without_verdict_if_unread(finding: Finding) -> Finding:
    """Return a finding on a state that was too large to compare as one without a verdict, which is no violation."""
    return finding if finding.population else replace(finding, unknown=True)


check_logs = define_asset_job(
    LOGS_JOB,
    selection=select_with_own_checks(cdc_log),
    description="Counts the rows of one log and checks each of them. Writes no table.",
    executor_def=in_process_executor,
)


def request_log_checks(
    lake: Lake, instance: DagsterInstance, cursor: str | None, now_s: float | None = None
) -> SensorResult:
    """Request partitions for new logs, and a check of every log that has changed, unless its last check was just now.

    The cursor lists the versions whose check has succeeded. `now_s` is the time of the tick in seconds, by default now.
    """
    now_s = time.time() if now_s is None else now_s
    newest = read_newest_versions(lake)
    versions = {schema.full_name: str(newest.get(log_table(schema).full_name)) for schema in read_logged_tables(lake)}
    if not versions:
        return SensorResult(skip_reason="there is no CDC log in this home yet", cursor=cursor)
    checked = {name: version for name, _, version in (entry.rpartition("/") for entry in (cursor or "").split())}
    missing = sorted(versions.keys() - set(instance.get_dynamic_partitions(LOGS_NAME)))
    requests: list[RunRequest] = []
    reasons: list[str] = []
    for name, version in versions.items():
        if checked.get(name) == version:
            continue
        work = f"{name}/{version}"
        attempt = request_run(instance, LOGS_JOB, work, state=(VERSION_TAG, version), partition=name)
        if attempt.has_succeeded:
            checked[name] = version
        elif (reason := _reason_to_wait(instance, name, now_s)) is not None and not attempt.ended:
            reasons.append(reason)
        elif attempt.request is not None:
            requests.append(attempt.request)
        else:
            reasons.append(f"{name}: {attempt.skip_reason('check it', 'launch the job by hand')}")
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else "; ".join(reasons) or "no log has changed since its last check",
        dynamic_partitions_requests=[CDC_LOG_PARTITIONS.build_add_request(missing)] if missing else [],
        cursor=" ".join(f"{name}/{checked[name]}" for name in versions if name in checked),
    )


def _reason_to_wait(instance: DagsterInstance, name: str, now_s: float) -> str | None:
    """Return why a changed log is not checked now: a check is in progress, or the last one ended too recently."""
    records = instance.get_run_records(RunsFilter(job_name=LOGS_JOB, tags={PARTITION_TAG: name}), limit=1)
    if not records:
        return None
    last = records[0]
    if last.dagster_run.status not in FINISHED_STATUSES:
        return f"{name}: run {last.dagster_run.run_id} is in progress"
    if last.start_time is None or last.end_time is None:
        return None
    took_s = last.end_time - last.start_time
    wait_s = last.end_time + took_s * PAUSE_FACTOR - now_s
    if wait_s <= 0:
        return None
    return f"{name}: its last check took {took_s:.0f} s, so the next one is due in {wait_s:.0f} s"


@sensor(
    name="changed_logs",
    job_name=LOGS_JOB,
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every minute, adds a partition for every CDC log, and requests a check of each log that changed. A "
    "check reads the whole log, so the next one waits for nine times as long as the last one took.",
)
def changed_logs(context: SensorEvaluationContext, home: HomeResource) -> SensorResult:
    """Run `request_log_checks` on this home and instance."""
    return request_log_checks(home.lake(), context.instance, context.cursor)


def _find_schema(lake: Lake, partition: str) -> TableSchema:
    name = table_from_partition(partition)
    for schema in read_logged_tables(lake):
        if (schema.keyspace, schema.name) == name:
            return schema
    raise missing_log_error(lake, partition)
