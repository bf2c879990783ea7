"""Finish interrupted tablet changes and garbage-collect old stream sets.

The sensors read small tables and request no run if there is nothing to do.
"""

from collections.abc import Sequence

from dagster import (
    AddDynamicPartitionsRequest,
    DagsterInstance,
    DefaultSensorStatus,
    OpExecutionContext,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
    in_process_executor,
    job,
    op,
    sensor,
)

from cdc_platform.clock import Clock, format_ms
from cdc_platform.delta import Lake
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.tables import CDC_TABLES, TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS
from cdc_platform_assets.failures import RETRY_POLICY, platform_errors_as_failures
from cdc_platform_assets.partitions import TABLET_TABLE_PARTITIONS, TABLET_TABLES_NAME, table_from_partition
from cdc_platform_assets.run_requests import read_versions, request_run, skip_unless_writable
from cdc_platform_assets.specs import pool_from_table
from cdc_platform_assets.tablets.stream_sets import TABLETS_JOB
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

GC_JOB = "tablet_gc"
MAX_GC_REQUESTS = 50
"""The most runs that one tick requests."""

_WORK_TAG = "cdc_platform/tablets"


@op(pool=pool_from_table(TABLET_STREAMS), retry_policy=RETRY_POLICY)
def collect_stream_sets(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
    """Remove the stream sets of one table that no log row can belong to and that every consumer has read."""
    with platform_errors_as_failures():
        name, grace_ms = table_from_partition(context.partition_key), home.settings().expiry_grace_ms
        summary = tablets.collect_tablet_sets(home.lake(), clock.clock(), *name, grace_ms=grace_ms)
    context.log.info(
        f"{summary.full_name}: {len(summary.removed_ms)} stream sets removed, base {format_ms(summary.base_ms)}."
    )
    for time_ms in summary.at_risk_ms:
        context.log.warning(f"{summary.full_name}: rows of {format_ms(time_ms)} were written under a larger TTL.")
    for blocker in summary.held_back:
        context.log.info(f"{blocker}.")


@job(
    name=GC_JOB,
    partitions_def=TABLET_TABLE_PARTITIONS,
    executor_def=in_process_executor,
    description="Removes the stream sets of one table that no log row can belong to and that every consumer has read: "
    "timestamps first, then streams. A failed run can be repeated.",
)
def collect_tablets() -> None:
    """Collect the stream sets of one table."""
    collect_stream_sets()


def request_unfinished_changes(lake: Lake, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """Request partitions for new tables, and a run for every change that was decided but not finished.

    The cursor only names the table versions at which nothing was unfinished.
    """
    watched = (TABLET_LAYOUTS, TABLET_TIMESTAMPS, TABLET_STREAMS, CDC_TABLES)
    versions = read_versions(lake, watched)
    if cursor == versions:
        return SensorResult(skip_reason="nothing has changed since every tablet change was finished", cursor=versions)
    known = {f"{layout.keyspace}.{layout.table}" for layout in metastore_tablets.read_tablet_layouts(lake)}
    known |= {".".join(name) for name in metastore_tablets.read_tables_with_stream_sets(lake)}
    missing = sorted(known - set(instance.get_dynamic_partitions(TABLET_TABLES_NAME)))
    added = [TABLET_TABLE_PARTITIONS.build_add_request(missing)] if missing else []
    unfinished = [
        (layout.full_name, f"change {layout.number}") for layout in metastore_tablets.read_unfinished_layouts(lake)
    ]
    if not unfinished:
        reason = "every tablet change is finished"
        return SensorResult(skip_reason=reason, dynamic_partitions_requests=added, cursor=versions)
    return _build_requests(instance, TABLETS_JOB, unfinished, added)


@sensor(
    name="unfinished_tablets",
    job_name=TABLETS_JOB,
    minimum_interval_seconds=30,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every 30 seconds, adds a partition for every tablet-based table, and requests a run for each "
    "interrupted tablet change and each dropped log.",
)
@skip_unless_writable
def unfinished_tablets(context: SensorEvaluationContext, home: HomeResource) -> SensorResult:
    """Run `request_unfinished_changes` on this home and instance."""
    return request_unfinished_changes(home.lake(), context.instance, context.cursor)


def request_collections(lake: Lake, clock: Clock, instance: DagsterInstance) -> SensorResult:
    """Request a run for every table with a removable stream set. Time and readers decide, so there is no cursor.

    A table whose removable sets are all retained for consumers gets no run; a tick without requests names them.
    """
    collections = tablets.read_due_collections(lake, clock)
    due = [(collection.full_name, f"base {collection.base_ms}") for collection in collections if collection.removed_ms]
    if not due:
        blockers = [str(blocker) for collection in collections for blocker in collection.held_back]
        return SensorResult(skip_reason="; ".join(["no stream set can be removed yet", *blockers[:MAX_GC_REQUESTS]]))
    missing = sorted({name for name, _ in due} - set(instance.get_dynamic_partitions(TABLET_TABLES_NAME)))
    added = [TABLET_TABLE_PARTITIONS.build_add_request(missing)] if missing else []
    return _build_requests(instance, GC_JOB, due, added)


@sensor(
    name="collectable_stream_sets",
    job_name=GC_JOB,
    minimum_interval_seconds=300,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every five minutes, requests the removal of stream sets that no log row can belong to. If consumers "
    "keep them, it names the consumers.",
)
@skip_unless_writable
def collectable_stream_sets(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """Run `request_collections` on this home and instance."""
    return request_collections(home.lake(), clock.clock(), context.instance)


def _build_requests(
    instance: DagsterInstance,
    job_name: str,
    wanted: Sequence[tuple[str, str]],
    added: Sequence[AddDynamicPartitionsRequest],
) -> SensorResult:
    """Build run requests for (table, work), unless a run is active or the allowed number of runs has ended."""
    requests: list[RunRequest] = []
    reasons: list[str] = []
    for table, what in wanted[:MAX_GC_REQUESTS]:
        attempt = request_run(instance, job_name, f"{table}/{what}", state=(_WORK_TAG, what), partition=table)
        if attempt.request is not None:
            requests.append(attempt.request)
        else:
            reasons.append(f"{table}: {attempt.skip_reason(f'finish {what}', 'launch the job by hand')}")
    reason = None if requests else "; ".join(reasons)
    return SensorResult(run_requests=requests, skip_reason=reason, dynamic_partitions_requests=list(added))
