"""The CDC logs of live clusters in Dagster, a partition a table: brought in once by hand, and kept up by a schedule."""

from collections.abc import Iterator

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetKey,
    AssetSelection,
    DagsterInstance,
    DefaultScheduleStatus,
    DynamicPartitionsDefinition,
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

from assets.checks import Found, check_specs, judged
from assets.declared import table_asset
from assets.events import held
from assets.failures import in_one_line
from assets.runs import MAX_RETRIES_TAG, partitions_under_way
from assets.told import Stopwatch, few_rows, materialized
from cdc_platform.clock import SECOND_US, format_us
from cdc_platform.cluster import known
from cdc_platform.cql.schema import CdcOptions, TableSchema
from cdc_platform.errors import NotFound
from cdc_platform.home import Home
from cdc_platform.ingest.ingest import ingest
from cdc_platform.invariants.findings import INGESTED
from cdc_platform.invariants.observed import together
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.log.audit.ingested import audit_ingested
from cdc_platform.log.ddl import schema_of
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.reader import FROM_CLUSTER
from cdc_platform.records import cdc_tables, consumers
from cdc_platform.timeline.parts import Part
from resources.clock import ClockResource
from resources.home import HomeResource
from resources.spark import SparkResource

INGESTED_NAME = "ingested_log"
INGESTED_LOGS = DynamicPartitionsDefinition(name=INGESTED_NAME)
"""The logs of live clusters: one partition a table, its key `cluster/keyspace.table`."""
INGEST_JOB = "ingest_log"
INGESTED_LOG = Table(
    "platform",
    "ingested_log",
    pa.schema(list(log_table(TableSchema("keyspace", "table", (), CdcOptions())).schema)),
    keys=("cdc$stream_id", "cdc$time", "cdc$batch_seq_no"),
    comment="The CDC log of one table of a live cluster, `<keyspace>.<table>_scylla_cdc_log` in that cluster's home",
)
"""Stands for all logs that are brought in."""


@table_asset(
    INGESTED_LOG,
    group="clusters",
    spark=True,
    deps=[AssetKey(["platform", "observed_cluster"])],
    partitions=INGESTED_LOGS,
    description="Materialise a table's partition, `cluster/keyspace.table`, to bring in what is new in its log, each "
    "row once, as `cdc-platform ingest` does. From then on the schedule `live_logs` keeps it up, and the table itself "
    "where `cdc-platform ingest --current` has begun to keep it.",
)
def ingested_log(
    context: AssetExecutionContext, home: HomeResource, clock: ClockResource, spark: SparkResource
) -> MaterializeResult:
    """Bring in what is new in one log."""
    watch = Stopwatch()
    with in_one_line():
        name, keyspace, table = log_name(context.partition_key)
        cluster = known.find(home.home(), name)
        done = ingest(cluster, clock.clock(), keyspace, table, spark.workers(), tell=context.log.warning)
    lake = Lake(cluster.open_home().lake)
    columns = ("generation", "from", "to", "by", "estimated requests", "requests", "rows", "late", "seconds")
    windows = (
        (
            format_us(each.set_us),
            format_us(each.after_us),
            format_us(each.until_us),
            "passed over" if each.chosen is None else f"{each.chosen.way}{', to catch up' * each.catch_up}",
            0 if each.chosen is None else each.chosen.requests,
            each.requests,
            each.rows,
            each.late or 0,
            each.seconds,
        )
        for each in done.windows
    )
    told = {
        "late_rows": done.late,
        "read_up_to": format_us(done.position_us),
        "read_again_up_to": "" if done.again_us is None else format_us(done.again_us),
        "lag_seconds": MetadataValue.float((clock.clock().now_us() - done.position_us) / SECOND_US),
        "windows": few_rows(columns, windows),
        "gaps": few_rows(
            ("what", "from", "until", "why", "accepted"),
            (
                (gap.what, format_us(gap.since_us), format_us(gap.until_us), gap.why, gap.because or "")
                for gap in done.gaps
            ),
        ),
    }
    if done.held is not None:
        told["held"] = done.held
    if done.current is not None:
        now = done.current
        told |= {
            "table_rows": now.rows,
            "table_inexact_rows": now.inexact,
            "table_as_of": format_us(now.as_of_us),
            "table_slices_written": f"{now.slices} of {now.of_slices}",
            "table_rows_read_again": now.read_again,
        }
    content = held(lake, Part(log_table(schema_of(lake, keyspace, table)), {}))
    return materialized(lake, content, rows=done.rows, watch=watch, told=told)


@multi_asset_check(
    name="audit_ingested_log", specs=check_specs(INGESTED_LOG, INGESTED.invariants, INGESTED_LOGS), can_subset=True
)
def audit_ingested_log(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge whether rows of one log, or of all logs of live clusters, were lost before they were read."""
    here = home.home()

    def audit(partition: str | None) -> Found:
        if partition is not None:
            name, keyspace, table = log_name(partition)
            return [(INGESTED, audit_ingested(Lake(known.find(here, name).open_home().lake), f"{keyspace}.{table}"))]
        found = [line for each in known.clusters(here) for line in audit_ingested(Lake(each.open_home().lake))]
        return [(INGESTED, together(found))]

    yield from judged(context, INGESTED_LOG, home.lake(), clock.clock(), audit)


ingest_log = define_asset_job(
    INGEST_JOB,
    selection=AssetSelection.assets(ingested_log),
    description="Brings in what is new in the CDC log of one table of a live cluster.",
    executor_def=in_process_executor,
)


def scheduled_logs(home: Home, instance: DagsterInstance, moment: str) -> list[RunRequest] | SkipReason:
    """What the schedule asks for: a run for each log that was brought in before, unless one is under way.

    Every log that there could be gets a partition, so that it can be begun by hand.
    """
    begun: list[str] = []
    possible: list[str] = []
    for cluster in known.clusters(home):
        lake = Lake(cluster.open_home().lake)
        logged = {(each.keyspace_name, each.table_name) for each in cdc_tables.cdc_tables(lake)}
        read = {each.key[1:] for each in consumers.consumers(lake) if each.name == FROM_CLUSTER}
        possible += [f"{cluster.name}/{'.'.join(name)}" for name in sorted(logged)]
        begun += [f"{cluster.name}/{'.'.join(name)}" for name in sorted(logged & read)]
    missing = sorted(set(possible) - set(instance.get_dynamic_partitions(INGESTED_NAME)))
    if missing:
        instance.add_dynamic_partitions(INGESTED_NAME, missing)
    running = partitions_under_way(instance, INGEST_JOB)
    requests = [
        RunRequest(run_key=f"{name}/{moment}", partition_key=name, tags={MAX_RETRIES_TAG: "0"})
        for name in begun
        if name not in running
    ]
    if requests:
        return requests
    under_way = [f"{name}: run {running[name]} is under way" for name in begun if name in running]
    return SkipReason("; ".join(under_way) or "no log of a live cluster was brought in yet; begin one by hand")


@schedule(
    name="live_logs",
    job_name=INGEST_JOB,
    cron_schedule="* * * * *",
    default_status=DefaultScheduleStatus.STOPPED,
    description="Every minute: brings in what is new in each log of a live cluster that was brought in once by hand.",
)
def live_logs(context: ScheduleEvaluationContext, home: HomeResource) -> list[RunRequest] | SkipReason:
    """`scheduled_logs` on this home and this instance."""
    return scheduled_logs(home.home(), context.instance, context.scheduled_execution_time.isoformat())


def log_name(partition: str) -> tuple[str, str, str]:
    """Cluster, keyspace and table of a partition.

    Raises:
        NotFound: the partition names none.
    """
    cluster, _, name = partition.partition("/")
    keyspace, _, table = name.partition(".")
    if not (cluster and keyspace and table):
        raise NotFound(f"partition {partition!r} names no log; logs are cluster/keyspace.table")
    return cluster, keyspace, table
