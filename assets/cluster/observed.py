"""Live clusters in Dagster, a partition a cluster: looked at when a glance says that something changed.

A sensor's tick costs a few small queries a cluster, over one session that the code server keeps over many ticks.
"""

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetSelection,
    DagsterInstance,
    DefaultSensorStatus,
    DynamicPartitionsDefinition,
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
from assets.declared import table_asset
from assets.events import held
from assets.failures import in_one_line
from assets.runs import attempt
from assets.told import Stopwatch, few_rows, materialized
from cdc_platform.clock import Clock, format_ms
from cdc_platform.cluster import known
from cdc_platform.cluster.alerting import alert, forget
from cdc_platform.cluster.changes import as_before
from cdc_platform.cluster.glance import Glance, last_mark
from cdc_platform.cluster.hook import Hook
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.observing import observe
from cdc_platform.cluster.standing import StandingSessions
from cdc_platform.errors import PlatformError
from cdc_platform.home import Home
from cdc_platform.invariants.findings import OBSERVED
from cdc_platform.invariants.observed import audit_observed, together
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS, TIMESTAMP, Table, column
from cdc_platform.records import cdc_tables, ring
from cdc_platform.timeline.parts import Part
from resources.clock import ClockResource
from resources.home import HomeResource

CLUSTERS_NAME = "cluster"
CLUSTERS = DynamicPartitionsDefinition(name=CLUSTERS_NAME)
"""The clusters that are known by name: one partition a cluster."""
OBSERVE_JOB = "observe_cluster"
MARK_TAG = "cdc_platform/cluster_mark"
OBSERVED_CLUSTER = Table(
    "platform",
    "observed_cluster",
    pa.schema(
        [
            column("host_id", pa.string(), "a node of the cluster"),
            column("time", TIMESTAMP, "a generation that it has published"),
            column("table_name", pa.string(), "a table of it that has a CDC log"),
        ]
    ),
    keys=("host_id", "time", "table_name"),
    comment="What was seen of a live cluster, in the home of that cluster: nodes, generations, tables with a log",
)
"""Stands for the tables of the homes of clusters."""
_sessions = StandingSessions()
Alerting = Callable[[KnownCluster, Glance | PlatformError], None]
"""Is told of a glance at a cluster, or why there is none."""


@table_asset(
    OBSERVED_CLUSTER,
    group="clusters",
    spark=False,
    partitions=CLUSTERS,
    description="Materialise a cluster's partition to look at it once, as `cdc-platform observe` does.",
)
def observed_cluster(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Look at one cluster, and take in what is new."""
    watch = Stopwatch()
    with in_one_line():
        cluster = known.find(home.home(), context.partition_key)
        seen = observe(cluster, clock.clock())
    lake = Lake(cluster.open_home().lake)
    changing = [] if seen.changing is None else [as_before(seen.changing)]
    for line in (*seen.warnings, *changing, *(each.line for each in seen.incomplete)):
        context.log.warning(line)
    tables = cdc_tables.cdc_tables(lake)
    told = {
        "version": seen.version,
        "nodes": len(ring.members(lake)),
        "tables": few_rows(("table", "enabled", "ttl"), ((t.full_name, t.enabled, t.ttl_seconds) for t in tables)),
        "topology": changing[0] if changing else "settled",
        "changes": few_rows(("at", "who", "what"), (tuple(each.document().values()) for each in seen.changes)),
        "left_out": few_rows(("who", "why"), ((each.who, each.line) for each in seen.incomplete)),
    }
    content = held(lake, Part(GENERATION_TIMESTAMPS, {}))
    return materialized(lake, content, rows=seen.imported.rows_written, watch=watch, told=told)


@multi_asset_check(
    name="audit_observed_cluster", specs=check_specs(OBSERVED_CLUSTER, OBSERVED.invariants, CLUSTERS), can_subset=True
)
def audit_observed_cluster(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge whether the last look at a cluster, or at each of them, took in all that is listed there."""
    here = home.home()

    def audit(partition: str | None) -> Found:
        clusters = known.clusters(here) if partition is None else [known.find(here, partition)]
        found = [line for each in clusters for line in audit_observed(Lake(each.open_home().lake))]
        return [(OBSERVED, together(found))]

    yield from judged(context, OBSERVED_CLUSTER, home.lake(), clock.clock(), audit)


observe_cluster = define_asset_job(
    OBSERVE_JOB,
    selection=AssetSelection.assets(observed_cluster),
    description="Looks at one live cluster, by SELECT alone, and takes in what is new.",
    executor_def=in_process_executor,
)


def next_observations(
    home: Home, instance: DagsterInstance, sessions: StandingSessions, alerts: Alerting | None = None
) -> SensorResult:
    """What a tick asks for: a partition for each cluster, and a look at those that are not as they were looked at last.

    A cluster that cannot be reached is told of, and asked again at the next tick. `alerts` is told of every glance.
    """
    clusters = known.clusters(home)
    missing = sorted({each.name for each in clusters} - set(instance.get_dynamic_partitions(CLUSTERS_NAME)))
    requests: list[RunRequest] = []
    remarks: list[str] = []
    for cluster in clusters:
        seen = _glance(sessions, cluster)
        if alerts is not None:
            alerts(cluster, seen)
        if isinstance(seen, PlatformError):
            remarks.append(str(seen))
            continue
        if seen.mark == last_mark(cluster):
            newest = seen.identity.newest_ms
            remarks.append(f"{cluster.name} is as it was, generation {'none' if newest is None else format_ms(newest)}")
            continue
        wish = attempt(
            instance,
            OBSERVE_JOB,
            f"{cluster.name}/{seen.mark[:16]}",
            state=(MARK_TAG, seen.mark[:16]),
            partition=cluster.name,
        )
        if wish.request is not None:
            requests.append(wish.request)
        else:
            remarks.append(f"{cluster.name}: a look at it is under way, or was tried {len(wish.ended)} times")
    return SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=[CLUSTERS.build_add_request(missing)] if missing else [],
        skip_reason=None if requests else "; ".join(remarks) or "no cluster is known by name",
    )


def _glance(sessions: StandingSessions, cluster: KnownCluster) -> Glance | PlatformError:
    """A glance at a cluster, or why there is none."""
    try:
        return sessions.glance(cluster)
    except PlatformError as error:
        return error


def hooked(home: Home, clock: Clock, warn: Callable[[str], None]) -> Alerting:
    """What tells the hook of this home's settings, where it has one, of what is new with each cluster.

    A hook that cannot be run is a line, and what it would have been told waits.
    """
    program, begun = home.settings.cluster_hook, time.monotonic()
    if not program:
        return lambda cluster, seen: forget(cluster)

    def tell(cluster: KnownCluster, seen: Glance | PlatformError) -> None:
        try:
            hook = Hook.of(home, program, home.settings.cluster_hook_ms)
            alert(cluster, hook, clock, seen, warn, begun)
        except PlatformError as error:
            warn(str(error))

    return tell


@sensor(
    name="changed_clusters",
    job_name=OBSERVE_JOB,
    minimum_interval_seconds=30,
    default_status=DefaultSensorStatus.STOPPED,
    description="Every 30 seconds: asks for a look at each live cluster whose nodes, generations, stream sets or "
    "schema have changed. A tick is a few small queries a cluster, over one session that stays open. The setting "
    "`cluster_hook` names a program that is told of each change.",
)
def changed_clusters(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """`next_observations` on this home and this instance."""
    found = home.home()
    return next_observations(found, context.instance, _sessions, hooked(found, clock.clock(), context.log.warning))
