"""Observations of live clusters, one partition per cluster, requested when a fingerprint changes.

A sensor tick costs a few small queries per cluster, over a session that the code server keeps open.
"""

import shlex
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    FreshnessPolicy,
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

from cdc_platform.alerts import Alert, Hook, forget_alerts, send_alerts, sync_alerts
from cdc_platform.checks import OBSERVATION_FAMILY, audit_observation
from cdc_platform.clock import Clock, format_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import HomeLocation
from cdc_platform.metastore import cdc_tables, ring
from cdc_platform.scylla import (
    MetadataSnapshot,
    ScyllaCluster,
    SessionPool,
    describe_pending_topology,
    down_nodes,
    read_last_fingerprint,
    registry,
    run_observation,
)
from cdc_platform.tables import GENERATION_TIMESTAMPS, TIMESTAMP, Table, column
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.checks import FamilyFindings, check_specs, evaluate_checks, select_with_own_checks
from cdc_platform_assets.cluster.audits import audit_cluster_homes
from cdc_platform_assets.cluster.ingest import find_missing_log_partitions
from cdc_platform_assets.data_versions import read_partition_content
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.metadata import Stopwatch, build_materialize_result, build_rows_preview
from cdc_platform_assets.partitions import CLUSTER_PARTITIONS, CLUSTERS_NAME, INGESTED_LOG_PARTITIONS
from cdc_platform_assets.run_requests import PARTITION_TAG, request_run
from cdc_platform_assets.specs import table_asset
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

OBSERVE_JOB = "observe_cluster"
OBSERVATION_PERIOD = timedelta(days=1)
"""How often a cluster is observed that does not change, so that its freshness shows whether the sensor works."""
FINGERPRINT_TAG = "cdc_platform/cluster_mark"
OBSERVED_CLUSTER = Table(
    "platform",
    "observed_cluster",
    pa.schema(
        [
            column("host_id", pa.string(), "a node of the cluster"),
            column("time", TIMESTAMP, "a generation that the cluster has published"),
            column("table_name", pa.string(), "a CDC-enabled table of the cluster"),
        ]
    ),
    keys=("host_id", "time", "table_name"),
    comment="A live cluster as observed, in its own home: nodes, generations and CDC-enabled tables",
)
"""Stands for the tables in the homes of clusters."""
_sessions = SessionPool()
AlertCallback = Callable[[ScyllaCluster, MetadataSnapshot | PlatformError], None]
"""Receives each metadata snapshot of a cluster, or the error that prevented it."""


@table_asset(
    OBSERVED_CLUSTER,
    group="clusters",
    spark=False,
    reads="scylladb",
    freshness=FreshnessPolicy.time_window(fail_window=timedelta(hours=26), warn_window=timedelta(hours=25)),
    partitions=CLUSTER_PARTITIONS,
    description="Materializing a partition observes that cluster once, like `cdc-platform observe`, and imports what "
    "is new. No edge leads to other groups, because it stands for tables in the home of that cluster.",
)
def observed_cluster(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Observe one cluster, and import what is new."""
    watch = Stopwatch()
    with platform_errors_as_failures():
        cluster = registry.find_cluster(home.home(), context.partition_key)
        seen = run_observation(cluster, clock.clock())
    lake = Lake(cluster.open_home().lake)
    changing = [] if seen.changing is None else [describe_pending_topology(seen.changing)]
    for line in (*seen.warnings, *changing, *(issue.line for issue in seen.incomplete)):
        context.log.warning(line)
    metadata = {
        "version": seen.version,
        **describe_cluster_tables(lake),
        "topology": changing[0] if changing else "settled",
        "changes": build_rows_preview(
            ("at", "who", "what"), (tuple(change.document().values()) for change in seen.changes)
        ),
        "left_out": build_rows_preview(("who", "why"), ((issue.who, issue.line) for issue in seen.incomplete)),
    }
    content = read_partition_content(lake, GenerationRows(GENERATION_TIMESTAMPS, {}))
    return build_materialize_result(lake, content, rows=seen.imported.rows_written, watch=watch, metadata=metadata)


def describe_cluster_tables(lake: Lake) -> dict[str, Any]:
    """Return the nodes and the CDC-enabled tables in the lake of a cluster as metadata."""
    tables = cdc_tables.read_cdc_tables(lake)
    rows = ((table.full_name, table.enabled, table.ttl_seconds) for table in tables)
    return {"nodes": len(ring.read_nodes(lake)), "tables": build_rows_preview(("table", "enabled", "ttl"), rows)}


def describe_observed_cluster(lake: Lake) -> tuple[int, dict[str, Any]]:
    """Return the number of generations in the lake of a cluster, and its nodes and tables as metadata."""
    return lake.read(GENERATION_TIMESTAMPS, ["time"]).num_rows, describe_cluster_tables(lake)


@multi_asset_check(
    name="audit_observed_cluster",
    specs=check_specs(OBSERVED_CLUSTER, OBSERVATION_FAMILY.invariants, CLUSTER_PARTITIONS),
    can_subset=True,
)
def audit_observed_cluster(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge whether the last observation of a cluster, or of each, imported all that the cluster lists."""
    here = home.home()

    def audit(partition: str | None) -> FamilyFindings:
        return [(OBSERVATION_FAMILY, audit_cluster_homes(here, partition, audit_observation))]

    yield from evaluate_checks(context, OBSERVED_CLUSTER, home.lake(), clock.clock(), audit)


observe_cluster_job = define_asset_job(
    OBSERVE_JOB,
    selection=select_with_own_checks(observed_cluster),
    description="Observes one live cluster by SELECT statements only, and imports what is new.",
    executor_def=in_process_executor,
)


def request_observations(
    home: HomeLocation,
    instance: DagsterInstance,
    sessions: SessionPool,
    alerts: AlertCallback | None = None,
    moment: datetime | None = None,
) -> SensorResult:
    """Request partitions for clusters and logs, and runs for clusters that changed or were not observed for a day.

    An unreachable cluster is reported in the skip reason and tried again at the next tick. `alerts` receives every
    snapshot. `moment` is the time of the tick, by default now.
    """
    moment = moment or datetime.now(UTC)
    clusters = registry.list_clusters(home)
    missing = sorted({cluster.name for cluster in clusters} - set(instance.get_dynamic_partitions(CLUSTERS_NAME)))
    requests: list[RunRequest] = []
    reasons: list[str] = []
    for cluster in clusters:
        seen = _read_fingerprint(sessions, cluster)
        if alerts is not None:
            alerts(cluster, seen)
        if isinstance(seen, PlatformError):
            reasons.append(str(seen))
            continue
        state = seen.mark[:16]
        if seen.mark == read_last_fingerprint(cluster):
            if _was_observed_within_a_day(instance, cluster.name, moment):
                newest = seen.identity.newest_ms
                known = "none" if newest is None else format_ms(newest)
                reasons.append(f"{cluster.name} has not changed; newest generation {known}")
                continue
            state = f"{state}/{moment.date()}"
        attempt = request_run(
            instance,
            OBSERVE_JOB,
            f"{cluster.name}/{state}",
            state=(FINGERPRINT_TAG, state),
            partition=cluster.name,
        )
        if attempt.request is not None:
            requests.append(attempt.request)
        else:
            remedy = f"run: cdc-platform observe {cluster.name}"
            reasons.append(attempt.skip_reason(f"observe {cluster.name}", remedy) or "")
    return SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=[
            partitions.build_add_request(keys)
            for partitions, keys in (
                (CLUSTER_PARTITIONS, missing),
                (INGESTED_LOG_PARTITIONS, find_missing_log_partitions(home, instance)),
            )
            if keys
        ],
        skip_reason=None
        if requests
        else "; ".join(reasons) or "no cluster is registered; register one with: cdc-platform cluster add",
    )


def _was_observed_within_a_day(instance: DagsterInstance, name: str, moment: datetime) -> bool:
    """Return True if a run has observed the cluster in the day before `moment`."""
    of_cluster = RunsFilter(
        job_name=OBSERVE_JOB,
        tags={PARTITION_TAG: name},
        statuses=[DagsterRunStatus.SUCCESS],
        updated_after=moment - OBSERVATION_PERIOD,
    )
    return bool(instance.get_runs(of_cluster, limit=1))


def _read_fingerprint(sessions: SessionPool, cluster: ScyllaCluster) -> MetadataSnapshot | PlatformError:
    """Return a metadata snapshot of a cluster, or the error that prevented it."""
    try:
        return sessions.take_snapshot(cluster)
    except PlatformError as error:
        return error


def build_hook_callback(home: HomeLocation, clock: Clock, warn: Callable[[str], None]) -> AlertCallback:
    """Return a callback that sends changes of each cluster to the hook in this home's settings, if there is one.

    The cluster's problems are also alerts of the home.

    If the hook cannot run, the callback warns, and the alerts wait.
    """
    program, begun = home.settings.cluster_hook, time.monotonic()

    def alert(cluster: ScyllaCluster, seen: MetadataSnapshot | PlatformError) -> None:
        sync_alerts(home, clock, f"cluster/{cluster.name}/", build_cluster_alerts(home, cluster, seen))
        if not program:
            forget_alerts(cluster)
            return
        try:
            hook = Hook.find(home, program, home.settings.cluster_hook_ms)
            send_alerts(cluster, hook, clock, seen, warn, begun)
        except PlatformError as error:
            warn(str(error))

    return alert


def build_cluster_alerts(
    home: HomeLocation, cluster: ScyllaCluster, seen: MetadataSnapshot | PlatformError
) -> list[Alert]:
    """Return the alerts of what prevents reading a cluster, or of its nodes that are down."""
    command = shlex.join(["cdc-platform", "cluster", "test", cluster.name, "--home", home.name])
    prefix = f"cluster/{cluster.name}"
    if isinstance(seen, PlatformError):
        return [Alert(f"{prefix}/cluster", "error", str(seen), command)]
    return [
        Alert(f"{prefix}/{who}", "warning", f"{cluster.name}: {who} {line}", command)
        for (who, _), line in down_nodes(seen.down).items()
    ]


@sensor(
    name="changed_clusters",
    job_name=OBSERVE_JOB,
    minimum_interval_seconds=30,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every 30 seconds, requests an observation of each registered cluster whose nodes, generations, stream "
    "sets or schema changed, or that was not observed for a day. Runs the program of the setting `cluster_hook` for "
    "each change.",
)
def changed_clusters(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """Run `request_observations` on this home and instance."""
    opened = home.home()
    return request_observations(
        opened, context.instance, _sessions, build_hook_callback(opened, clock.clock(), context.log.warning)
    )
