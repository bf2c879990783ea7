"""The lag of ingested logs against the TTL of their rows, as a check of each log.

The check runs with each ingest. A log that nothing ingests any more falls behind as well, so a sensor requests the
check when the level of a log's lag changes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from warnings import catch_warnings, simplefilter

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetSelection,
    DagsterInstance,
    DefaultSensorStatus,
    PreviewWarning,
    SensorEvaluationContext,
    SensorResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
    sensor,
)

from cdc_platform.cdclog import IngestLag, TtlLag, get_ingest_lag, read_ingest_lags
from cdc_platform.clock import Clock, Microseconds, seconds_from_us
from cdc_platform.delta import Lake
from cdc_platform.home_location import HomeLocation
from cdc_platform.scylla import registry
from cdc_platform_assets.checks import report_partition_results, tag_violations_on_run
from cdc_platform_assets.cluster.ingest import (
    INGESTED_LOG,
    parse_log_partition,
)
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.metadata import build_rows_preview
from cdc_platform_assets.partitions import INGESTED_LOG_PARTITIONS, INGESTED_LOGS_NAME, get_run_partitions
from cdc_platform_assets.run_requests import request_run
from cdc_platform_assets.specs import asset_key_from_table
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

LAG_CHECK = "ingest_lag"
LAG_JOB = "judge_lag"
MAX_REPORTS = 100
"""The most logs that a run without a partition reports each on its own."""
_WORST_LAST = (TtlLag.FINE, TtlLag.HALF, TtlLag.UNKNOWN, TtlLag.MOST, TtlLag.DYING)
_KEY = asset_key_from_table(INGESTED_LOG)
_STATE_TAG = "cdc_platform/lag_state"


def _build_spec() -> AssetCheckSpec:
    with catch_warnings():
        simplefilter("ignore", PreviewWarning)  # partitioned checks are a preview in this release of Dagster
        return AssetCheckSpec(
            LAG_CHECK,
            asset=_KEY,
            description="The ingest is less than three quarters of the log's TTL behind. Beyond that it is a warning, "
            "and an error once rows may have expired unread.",
            partitions_def=INGESTED_LOG_PARTITIONS,
            metadata={"explained_in": "docs/cluster.md"},
        )


def judge_lags(lags: Mapping[str, IngestLag]) -> AssetCheckResult:
    """Return the result of the check for logs by partition: that of the log that is furthest behind its TTL."""
    worst = max((lag.status.lag for lag in lags.values()), key=_WORST_LAST.index, default=TtlLag.FINE)
    behind = [str(lag) for lag in lags.values() if lag.status.lag is worst]
    rows = [
        (
            partition,
            str(lag.status.lag),
            None if lag.lag_us is None else seconds_from_us(lag.lag_us),
            None if lag.status.ttl_us is None else seconds_from_us(lag.status.ttl_us),
            lag.status.share,
        )
        for partition, lag in lags.items()
    ]
    return AssetCheckResult(
        asset_key=_KEY,
        check_name=LAG_CHECK,
        passed=worst in (TtlLag.FINE, TtlLag.HALF),
        severity=AssetCheckSeverity.ERROR if worst is TtlLag.DYING else AssetCheckSeverity.WARN,
        description="; ".join(behind[:3]) or "no log was ingested yet",
        metadata={
            "lag": str(worst),
            "logs": build_rows_preview(("log", "lag", "lag seconds", "TTL seconds", "share"), rows),
        },
    )


def read_lags(home: HomeLocation, now_us: Microseconds, partition: str | None = None) -> dict[str, IngestLag]:
    """Return the lag of one log, or of every log that was ingested, by partition."""
    if partition is not None:
        name, keyspace, table = parse_log_partition(partition)
        lags = _read_cluster_lags(home, registry.find_cluster(home, name).name, now_us)
        return {partition: lags.get(partition) or get_ingest_lag((keyspace, table), (), None, now_us)}
    return {
        key: lag
        for cluster in registry.list_clusters(home)
        for key, lag in _read_cluster_lags(home, cluster.name, now_us).items()
        if lag.position_us is not None
    }


def _read_cluster_lags(home: HomeLocation, name: str, now_us: Microseconds) -> dict[str, IngestLag]:
    lake = Lake(registry.find_cluster(home, name).open_home().lake)
    return {f"{name}/{lag.full_name}": lag for lag in read_ingest_lags(lake, now_us)}


@multi_asset_check(name="judge_ingest_lag", specs=[_build_spec()])
def judge_ingest_lag(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge how far the ingest of a log is behind the TTL of its rows.

    Without a partition it judges every ingested log, and reports those that are furthest behind each on its own.
    """
    now_us = clock.clock().now_us()
    if not (context.has_partition_key or context.has_partition_key_range):
        with platform_errors_as_failures():
            lags = read_lags(home.home(), now_us)
        furthest_behind = sorted(lags, key=lambda key: _WORST_LAST.index(lags[key].status.lag), reverse=True)
        for key in furthest_behind[:MAX_REPORTS]:
            report_partition_results(context, key, [judge_lags({key: lags[key]})], blocking=False)
        yield from tag_violations_on_run(context, [judge_lags(lags)])
        return
    partitions = get_run_partitions(context)
    for partition in partitions:
        with platform_errors_as_failures():
            lags = read_lags(home.home(), now_us, partition)
        results = tag_violations_on_run(context, [judge_lags(lags)])
        if len(partitions) == 1:
            yield from results
        else:
            report_partition_results(context, partition, results, blocking=False)


judge_lag_job = define_asset_job(
    LAG_JOB,
    selection=AssetSelection.checks(judge_ingest_lag),
    description="Judges how far the ingest of each log is behind the TTL of its rows.",
    executor_def=in_process_executor,
)


def request_lag_check(home: HomeLocation, clock: Clock, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """Request the check of all logs if the lag of one is at another level than in the cursor, or if it failed.

    The cursor holds the level of each log and the state that the last request was for.
    """
    lags = read_lags(home, clock.now_us())
    levels = {key: str(lag.status.lag) for key, lag in lags.items()}
    stored = json.loads(cursor) if cursor else {"levels": {}, "state": ""}
    is_changed = levels != stored["levels"]
    positions = [lag.position_us for lag in lags.values()]
    state = _digest(json.dumps([levels, positions])) if is_changed else stored["state"]
    cursor = json.dumps({"levels": levels, "state": state})
    if not state:
        return SensorResult(skip_reason="no log is ingested", cursor=cursor)
    attempt = request_run(instance, LAG_JOB, state, state=(_STATE_TAG, state))
    if not is_changed and (attempt.has_succeeded or not attempt.ended):
        return SensorResult(skip_reason="the lag of no ingested log has reached another level", cursor=cursor)
    if attempt.request is None:
        reason = attempt.skip_reason("judge the lag of ingested logs", f"launch the job {LAG_JOB}")
        return SensorResult(skip_reason=reason, cursor=cursor)
    missing = sorted(set(lags) - set(instance.get_dynamic_partitions(INGESTED_LOGS_NAME)))
    return SensorResult(
        run_requests=[attempt.request],
        dynamic_partitions_requests=[INGESTED_LOG_PARTITIONS.build_add_request(missing)] if missing else [],
        cursor=cursor,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@sensor(
    name="ingest_lags",
    job_name=LAG_JOB,
    minimum_interval_seconds=300,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every five minutes, requests the check `ingest_lag` of all ingested logs if the lag of one has "
    "reached another level: half of the TTL, three quarters, or all of it.",
)
def ingest_lags(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """Run `request_lag_check` on this home and instance."""
    return request_lag_check(home.home(), clock.clock(), context.instance, context.cursor)
