"""All tables of the home in Dagster: their sizes, and checks of files, rows and commits. No Spark."""

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetSelection,
    DagsterInstance,
    DataVersion,
    DefaultScheduleStatus,
    Definitions,
    FreshnessPolicy,
    MaterializeResult,
    RunRequest,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
    schedule,
)

from cdc_platform.checks import (
    DERIVED_TABLE_FAMILY,
    STORAGE_FAMILY,
    audit_derived_tables,
    audit_stored,
    record_verifications,
    run_family_audit,
)
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake, list_stored_tables, verify_tables
from cdc_platform.errors import PlatformError
from cdc_platform.scylla import ScyllaCluster
from cdc_platform.tables import Table
from cdc_platform_assets.catalog_sync.table_contents import (
    UNREADABLE,
    list_readable_clusters,
    open_cluster_lake,
)
from cdc_platform_assets.checks import FamilyFindings, check_specs, evaluate_checks, start_judging
from cdc_platform_assets.data_versions import KIND_METADATA_KEY
from cdc_platform_assets.metadata import Stopwatch, build_rows_preview
from cdc_platform_assets.run_requests import request_scheduled_run
from cdc_platform_assets.specs import pool_from_table, table_asset
from cdc_platform_assets.storage_checks import report_storage_results
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

AUDIT_JOB = "audit_tables"
AUDIT_CRON = "30 * * * *"
HOME_TABLES = Table(
    "platform",
    "tables",
    pa.schema([]),
    keys=(),
    comment="All tables of the home",
)
"""Stands for all of them."""


@table_asset(
    HOME_TABLES,
    group="tables",
    spark=False,
    freshness=FreshnessPolicy.time_window(fail_window=timedelta(hours=3), warn_window=timedelta(hours=2)),
    description="Materializing it lists version, rows and bytes of every table. Its checks verify files, rows and "
    "commits of all tables, and derived tables against their sources. No edge leads here: it stands for every table, "
    "and an edge from each would hide all others.",
)
def home_tables(context: AssetExecutionContext, home: HomeResource) -> MaterializeResult:
    """List the tables; the checks report those that cannot be opened."""
    watch, lake = Stopwatch(), home.lake()
    lines = list(_read_sizes(lake))
    context.log.info(f"{len(lines)} tables.")
    metadata = {
        "bytes": sum(line[3] for line in lines),
        "tables": build_rows_preview(("table", "version", "rows", "bytes"), sorted(lines, key=lambda line: -line[3])),
    }
    content = hashlib.sha256(repr(sorted(lines)).encode()).hexdigest()[:32]
    return MaterializeResult(
        metadata={
            "dagster/row_count": len(lines),
            KIND_METADATA_KEY: "python",
            "seconds": watch.seconds(),
            **metadata,
        },
        data_version=DataVersion(content),
    )


def _read_sizes(lake: Lake) -> Iterator[tuple[str, int, int, int]]:
    for keyspace, name in list_stored_tables(lake):
        table = Table(keyspace, name, pa.schema([]), (), "")
        try:
            slices, version = lake.partitions(table), lake.version(table)
        except PlatformError:
            continue
        yield table.full_name, version or 0, sum(part.rows for part in slices), sum(part.bytes for part in slices)


@multi_asset_check(
    can_subset=True,
    name="audit_stored_tables",
    specs=check_specs(HOME_TABLES, [*STORAGE_FAMILY.invariants, *DERIVED_TABLE_FAMILY.invariants]),
    pool=pool_from_table(HOME_TABLES),
)
def audit_home_tables(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge all tables as `cdc-platform check` does, and report the results on the partitions of every asset.

    The tables in the homes of clusters are verified, too; their results show on the assets of the cluster.

    Only `check --deep` and the checks of a partition read large partitions.
    """
    lake = home.lake()

    def audit(_: str | None) -> FamilyFindings:
        run = start_judging(context, lake, clock.clock(), None)
        verified = verify_tables(lake)
        unrecorded = record_verifications(run, verified)
        if unrecorded is not None:
            context.log.warning(f"the results were not stored, so partitions do not show them: {unrecorded}")
        clusters = list_readable_clusters(home.home())
        for cluster in clusters:
            _verify_cluster(context, clock.clock(), cluster)
        count = sum(1 for _ in report_storage_results(lake, context.instance, clusters))
        context.log.info(f"Reported {count} results on partitions.")
        derived = run_family_audit(DERIVED_TABLE_FAMILY, lambda: audit_derived_tables(lake), verified)
        return [(STORAGE_FAMILY, audit_stored(verified)), (DERIVED_TABLE_FAMILY, derived or [])]

    yield from evaluate_checks(context, HOME_TABLES, lake, clock.clock(), audit)


def _verify_cluster(context: AssetCheckExecutionContext, clock: Clock, cluster: ScyllaCluster) -> None:
    """Verify the tables in the home of a cluster, for the partitions of its assets. A failure is a warning."""
    try:
        lake = open_cluster_lake(cluster)
        run = start_judging(context, lake, clock, None)
        unrecorded = record_verifications(run, verify_tables(lake))
    except UNREADABLE as error:
        unrecorded = str(error)
    if unrecorded is not None:
        context.log.warning(f"the tables of cluster {cluster.name} were not verified: {unrecorded}")


audit_tables = define_asset_job(
    AUDIT_JOB,
    selection=AssetSelection.assets(home_tables),
    description="Lists all tables of the home and verifies their files, rows and commits. Writes no table.",
    executor_def=in_process_executor,
)


def request_scheduled_audit(lake: Lake, instance: DagsterInstance, moment: datetime) -> RunRequest | SkipReason:
    """Request an audit run at `moment` if the home has tables and no run is active."""
    reason = None if list_stored_tables(lake) else "there are no tables yet"
    return request_scheduled_run(instance, AUDIT_JOB, moment, reason)


@schedule(
    name="hourly_audit_of_tables",
    job_name=AUDIT_JOB,
    cron_schedule=AUDIT_CRON,
    default_status=DefaultScheduleStatus.RUNNING,
    description="Every hour, at half past, requests a verification of all tables. Its results show on the partitions "
    "of every asset.",
)
def hourly_audit_of_tables(context: ScheduleEvaluationContext, home: HomeResource) -> RunRequest | SkipReason:
    """Run `request_scheduled_audit` on this home and instance."""
    return request_scheduled_audit(home.lake(), context.instance, context.scheduled_execution_time)


DEFINED = Definitions(
    assets=[home_tables],
    asset_checks=[audit_home_tables],
    jobs=[audit_tables],
    schedules=[hourly_audit_of_tables],
)
