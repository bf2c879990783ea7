"""Ingestion of live CDC logs, one partition per table: started by hand, continued by a schedule."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetKey,
    DagsterInstance,
    DefaultScheduleStatus,
    FreshnessPolicy,
    MaterializeResult,
    MetadataValue,
    RunRequest,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
    schedule,
)

from cdc_platform.cdclog import FROM_CLUSTER, audit_ingest, log_table, read_log_gaps, read_table_schema
from cdc_platform.checks import INGEST_FAMILY
from cdc_platform.clock import SECOND_US, Clock, Microseconds, format_us
from cdc_platform.cql import CdcOptions, TableSchema, split_full_name
from cdc_platform.delta import Lake
from cdc_platform.errors import NotFound, PlatformError
from cdc_platform.home_location import HomeLocation
from cdc_platform.ingest import ingest_table, read_table_selection
from cdc_platform.metastore import LogGap, cdc_tables, consumers
from cdc_platform.scylla import ScyllaCluster, registry
from cdc_platform.tables import Table
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.checks import FamilyFindings, check_specs, evaluate_checks, select_with_own_checks
from cdc_platform_assets.cluster.audits import audit_cluster_homes
from cdc_platform_assets.data_versions import KIND_METADATA_KEY, read_partition_content
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.metadata import Stopwatch, build_materialize_result, build_rows_preview
from cdc_platform_assets.partitions import INGESTED_LOG_PARTITIONS, INGESTED_LOGS_NAME, can_be_partition
from cdc_platform_assets.run_requests import request_partitions
from cdc_platform_assets.specs import table_asset
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource
from cdc_platform_resources.spark import SparkResource

INGEST_JOB = "ingest_log"
INGESTED_LOG = Table(
    "platform",
    "ingested_log",
    pa.schema(list(log_table(TableSchema("keyspace", "table", (), CdcOptions())).schema)),
    keys=("cdc$stream_id", "cdc$time", "cdc$batch_seq_no"),
    comment="CDC log of one table of a live cluster, `<keyspace>.<table>_scylla_cdc_log` in that cluster's home",
)
"""Stands for all ingested logs."""


@table_asset(
    INGESTED_LOG,
    group="clusters",
    spark=True,
    reads="scylladb",
    freshness=FreshnessPolicy.time_window(fail_window=timedelta(hours=1), warn_window=timedelta(minutes=15)),
    deps=[AssetKey(["platform", "observed_cluster"])],
    partitions=INGESTED_LOG_PARTITIONS,
    description="Materializing a partition, `cluster/keyspace.table`, ingests new rows of that CDC log exactly once, "
    "like `cdc-platform ingest`. The schedule `live_logs` repeats it, and updates the table itself if it is "
    "replicated. No edge leads to other groups, because the log is in the home of that cluster.",
)
def ingested_log(
    context: AssetExecutionContext, home: HomeResource, clock: ClockResource, spark: SparkResource
) -> MaterializeResult:
    """Ingest new rows of one log."""
    watch = Stopwatch()
    with platform_errors_as_failures():
        name, keyspace, table = parse_log_partition(context.partition_key)
        cluster = registry.find_cluster(home.home(), name)
        done = ingest_table(cluster, clock.clock(), keyspace, table, spark.workers(), on_message=context.log.warning)
    lake = Lake(cluster.open_home().lake)
    columns = ("generation", "from", "to", "by", "estimated requests", "requests", "rows", "late", "seconds")
    windows = (
        (
            format_us(window.set_us),
            format_us(window.after_us),
            format_us(window.until_us),
            "skipped" if window.chosen is None else f"{window.chosen.way}{', to catch up' * window.catch_up}",
            0 if window.chosen is None else window.chosen.requests,
            window.requests,
            window.rows,
            window.late or 0,
            window.seconds,
        )
        for window in done.windows
    )
    metadata = {
        KIND_METADATA_KEY: spark.kind,
        "late_rows": done.late,
        "second_pass_up_to": "" if done.second_pass_us is None else format_us(done.second_pass_us),
        "windows": build_rows_preview(columns, windows),
        **describe_progress(clock.clock(), done.position_us, done.gaps),
    }
    if done.waiting_for is not None:
        metadata["waiting_for"] = done.waiting_for
    if done.current is not None:
        current = done.current
        metadata |= {
            "table_rows": current.rows,
            "table_inexact_rows": current.inexact,
            "table_as_of": format_us(current.as_of_us),
            "table_ranges_written": f"{current.written_ranges} of {current.ranges}",
            "table_rows_reread": current.reread_rows,
        }
    content = read_partition_content(lake, GenerationRows(log_table(read_table_schema(lake, keyspace, table)), {}))
    return build_materialize_result(lake, content, rows=done.rows, watch=watch, metadata=metadata)


def describe_progress(clock: Clock, position_us: Microseconds, gaps: Iterable[LogGap]) -> dict[str, Any]:
    """Return how far a log was read (µs), the lag, and the gaps in it, as metadata."""
    rows = ((gap.what, format_us(gap.since_us), format_us(gap.until_us), gap.why, gap.reason or "") for gap in gaps)
    return {
        "read_up_to": format_us(position_us),
        "lag_seconds": MetadataValue.float((clock.now_us() - position_us) / SECOND_US),
        "gaps": build_rows_preview(("what", "from", "until", "why", "accepted"), rows),
    }


def describe_ingested_log(lake: Lake, partition: str) -> tuple[int, dict[str, Any]]:
    """Return the rows of an ingested log in the lake of its cluster, and as metadata how far it was read."""
    _, keyspace, table = parse_log_partition(partition)
    log = log_table(read_table_schema(lake, keyspace, table))
    rows = sum(part.rows for part in lake.partitions(log))
    name = f"{keyspace}.{table}"
    gaps = (gap for gap in read_log_gaps(lake) if gap.full_name == name and gap.reader == FROM_CLUSTER)
    try:
        position_us = consumers.find_consumer(lake, FROM_CLUSTER, keyspace, table).position_us
    except NotFound:
        return rows, {}
    return rows, describe_progress(Clock(), position_us, gaps)


@multi_asset_check(
    name="audit_ingested_log",
    specs=check_specs(INGESTED_LOG, INGEST_FAMILY.invariants, INGESTED_LOG_PARTITIONS),
    can_subset=True,
)
def audit_ingested_log(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge whether rows of a log, or of all logs of live clusters, were lost before they were read."""
    here = home.home()

    def audit(partition: str | None) -> FamilyFindings:
        if partition is None:
            return [(INGEST_FAMILY, audit_cluster_homes(here, None, audit_ingest))]
        name, keyspace, table = parse_log_partition(partition)
        of_table = partial(audit_ingest, name=f"{keyspace}.{table}")
        return [(INGEST_FAMILY, audit_cluster_homes(here, name, of_table))]

    yield from evaluate_checks(context, INGESTED_LOG, home.lake(), clock.clock(), audit)


ingest_log = define_asset_job(
    INGEST_JOB,
    selection=select_with_own_checks(ingested_log),
    description="Ingests new rows of the CDC log of one table of a live cluster.",
    executor_def=in_process_executor,
)


def find_missing_log_partitions(home: HomeLocation, instance: DagsterInstance) -> list[str]:
    """Return the partitions of logs that clusters were observed to have and Dagster does not have yet.

    A cluster whose home cannot be read has none; the runs that read it report why.
    """
    possible = set[str]()
    for cluster in registry.list_clusters(home):
        with suppress(PlatformError):
            possible |= {_log_partition(cluster, name) for name in _logged_tables(cluster)}
    return sorted(possible - set(instance.get_dynamic_partitions(INGESTED_LOGS_NAME)))


def _logged_tables(cluster: ScyllaCluster) -> list[tuple[str, str]]:
    """Return the tables with a log, without those whose name no partition of Dagster can have."""
    lake = Lake(cluster.open_home().lake)
    names = sorted((table.keyspace_name, table.table_name) for table in cdc_tables.read_cdc_tables(lake))
    return [name for name in names if can_be_partition(_log_partition(cluster, name))]


def _log_partition(cluster: ScyllaCluster, name: tuple[str, str]) -> str:
    return f"{cluster.name}/{'.'.join(name)}"


def request_scheduled_ingests(
    home: HomeLocation, instance: DagsterInstance, moment: str
) -> list[RunRequest] | SkipReason:
    """Return the schedule's run requests: one for each log that is ingested and has no active run.

    These are the logs that were ingested before, and those that the cluster's `tables.toml` selects. Every possible log
    gets a partition, so that an operator can start its ingestion by hand.
    """
    missing = find_missing_log_partitions(home, instance)
    if missing:
        instance.add_dynamic_partitions(INGESTED_LOGS_NAME, missing)
    started: list[str] = []
    for cluster in registry.list_clusters(home):
        names = _logged_tables(cluster)
        read = {
            consumer.key[1:]
            for consumer in consumers.read_consumers(Lake(cluster.open_home().lake))
            if consumer.name == FROM_CLUSTER
        }
        file = registry.get_selection_path(home, cluster.name)
        selected = read_table_selection(file).select(names) if file.exists() else []
        started += [_log_partition(cluster, name) for name in names if name in read or name in selected]
    requests, reasons = request_partitions(instance, INGEST_JOB, started, moment, "ingest it")
    return requests or SkipReason(
        "; ".join(reasons)
        or "no log of a live cluster has been ingested yet, and no tables.toml selects one; materialize a partition of "
        "ingested_log first"
    )


@schedule(
    name="live_logs",
    job_name=INGEST_JOB,
    cron_schedule="* * * * *",
    default_status=DefaultScheduleStatus.STOPPED,
    description="Every minute, requests the ingest of each log of a live cluster that was ingested before, or that "
    "`clusters/NAME/tables.toml` selects. Start the first ingest of other logs by hand.",
)
def live_logs(context: ScheduleEvaluationContext, home: HomeResource) -> list[RunRequest] | SkipReason:
    """Run `request_scheduled_ingests` on this home and instance."""
    return request_scheduled_ingests(home.home(), context.instance, context.scheduled_execution_time.isoformat())


def parse_log_partition(partition: str) -> tuple[str, str, str]:
    """Return the cluster, keyspace and table of a partition.

    Raises:
        NotFound: the partition names no log.
    """
    cluster, _, name = partition.partition("/")
    keyspace, table = split_full_name(name)
    if not (cluster and keyspace and table):
        raise NotFound(f"partition {partition!r} names no log; logs are cluster/keyspace.table")
    return cluster, keyspace, table
