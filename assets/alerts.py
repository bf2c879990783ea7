"""Alerts in Dagster: failed runs, what `status` reports, and the age of the inbox's first node.

One sensor compares the state of the home with the open alerts and delivers what destinations have not received yet.
"""

import shlex
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetCheckSeverity,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    Definitions,
    MetadataValue,
    RunFailureSensorContext,
    RunStatusSensorContext,
    SensorEvaluationContext,
    SensorResult,
    asset_check,
    run_failure_sensor,
    run_status_sensor,
    sensor,
)

from cdc_platform.alerts import (
    Alert,
    deliver_alerts,
    raise_alert,
    read_open_alerts,
    resolve_alert,
    sync_alerts,
)
from cdc_platform.clock import Clock, seconds_from_us, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import HomeLocation
from cdc_platform.metastore import JoinProgress, read_join_progress
from cdc_platform.reporting import read_home_status
from cdc_platform.scylla import registry
from cdc_platform.settings import Settings
from cdc_platform.tables import BOOTSTRAP_EVENTS
from cdc_platform_assets.failures import platform_errors_as_failures, read_run_failure
from cdc_platform_assets.partitions import GENERATIONS_NAME
from cdc_platform_assets.run_requests import ATTEMPT_TAG, PARTITION_TAG
from cdc_platform_assets.specs import asset_key_from_table
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

INBOX_CHECK = "first_node_joins_in_time"
JOIN_JOB_NAME = "join"
LONG_OUTAGE_ATTEMPTS = 5
"""After so many attempts (about eight minutes) the alert of an outage becomes an error."""
_SELF_RESOLVING = frozenset({"nothing-operates"})
"""Codes of `status` for states that end at a known time, until which no command helps: the first generation starts."""
_RUN_PREFIX, _STATUS_PREFIX, _INBOX_PREFIX, _CLUSTER_PREFIX = "run/", "status/", "inbox/", "cluster/"


def judge_inbox_head(lake: Lake, clock: Clock, settings: Settings) -> AssetCheckResult:
    """Judge how long the first node of the inbox has waited: a warning, then an error, by the home's settings."""
    head = _read_head(lake)
    severity, passed = AssetCheckSeverity.WARN, True
    metadata: dict[str, Any] = {}
    description = "the inbox is empty"
    if head is not None:
        waited_us = clock.now_us() - head.queued_at_us
        description = (
            f"{head.kind} of {head.host_id} (event {head.event_id}) has waited {seconds_from_us(waited_us):.0f} s"
        )
        metadata = {"event_id": head.event_id, "waited_seconds": seconds_from_us(waited_us)}
        passed = waited_us < us_from_ms(settings.inbox_warn_ms)
        if waited_us >= us_from_ms(settings.inbox_error_ms):
            severity, passed = AssetCheckSeverity.ERROR, False
    return AssetCheckResult(passed=passed, severity=severity, description=description, metadata=metadata)


def _read_head(lake: Lake) -> JoinProgress | None:
    return next((join for join in read_join_progress(lake) if join.is_open), None)


@asset_check(
    asset=asset_key_from_table(BOOTSTRAP_EVENTS),
    name=INBOX_CHECK,
    description="the first node of the inbox joins within the time of the setting inbox_warn_ms (a warning after it) "
    "and inbox_error_ms (a failure after it)",
)
def check_inbox_head(context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource) -> AssetCheckResult:
    """Judge the first node of the inbox in a run; the sensor `alerts` also reports each change."""
    with platform_errors_as_failures():
        return judge_inbox_head(home.lake(), clock.clock(), home.settings())


def build_run_alert(instance: DagsterInstance, run: DagsterRun, home: HomeLocation) -> Alert:
    """Return the alert of a failed run: a warning while an outage may end by itself, and otherwise an error."""
    failure = read_run_failure(instance, run.run_id)
    partition = run.tags.get(PARTITION_TAG)
    attempt = int(run.tags.get(ATTEMPT_TAG, "0"))
    is_repeated = failure.recovery == "outage" and attempt > 0
    level = "warning" if is_repeated and attempt < LONG_OUTAGE_ATTEMPTS else "error"
    after = "it is repeated until it succeeds" if is_repeated else "read the run's log in the UI"
    of_partition = f" of {partition}" if partition else ""
    words = ["bootstrap", "--list"] if run.job_name == JOIN_JOB_NAME else ["status"]
    return Alert(
        get_run_alert_key(run),
        level,
        f"run {run.run_id} of job {run.job_name}{of_partition} failed: {failure.message}; {after}",
        format_home_command(home, *words),
    )


def get_run_alert_key(run: DagsterRun) -> str:
    """Return the key of the alert of a run's failures. All runs of one job and partition share it."""
    return f"{_RUN_PREFIX}{run.job_name}/{run.tags.get(PARTITION_TAG, '')}".rstrip("/")


def format_home_command(home: HomeLocation, *words: str) -> str:
    """Return a command of the command line for a home, safe to paste."""
    return shlex.join(["cdc-platform", *words, "--home", home.name])


def sync_home_alerts(home: HomeLocation, lake: Lake, clock: Clock, instance: DagsterInstance) -> AssetCheckResult:
    """Open and resolve the alerts that follow from the tables: `status`, the inbox's head, and removed subjects.

    Return the result of the inbox check. If the inbox cannot be read, it is a warning, and `status` has the alert.
    """
    sync_alerts(home, clock, _STATUS_PREFIX, _build_status_alerts(home, lake, clock))
    for key in _find_obsolete_keys(home, instance):
        resolve_alert(home, clock, key)
    try:
        head = judge_inbox_head(lake, clock, home.settings)
    except PlatformError as error:
        return AssetCheckResult(passed=False, severity=AssetCheckSeverity.WARN, description=str(error))
    late = Alert(
        f"{_INBOX_PREFIX}head",
        "error" if head.severity is AssetCheckSeverity.ERROR else "warning",
        head.description or "",
        format_home_command(home, "bootstrap", "--list"),
    )
    sync_alerts(home, clock, _INBOX_PREFIX, [] if head.passed else [late])
    return head


def _build_status_alerts(home: HomeLocation, lake: Lake, clock: Clock) -> list[Alert]:
    """Return an alert for each error and warning code of `status` that needs a person, with its first finding."""
    alerts: dict[str, Alert] = {}
    for finding in read_home_status(lake, clock, home.settings).alerts:
        if finding.level == "notice" or finding.code in _SELF_RESOLVING:
            continue
        key = f"{_STATUS_PREFIX}{finding.code}"
        command = f"{finding.command} --home {shlex.quote(home.name)}" if finding.command else ""
        command = command or format_home_command(home, "status")
        alerts.setdefault(key, Alert(key, finding.level, finding.message, command))
    return list(alerts.values())


def _find_obsolete_keys(home: HomeLocation, instance: DagsterInstance) -> list[str]:
    """Return the keys of open alerts about clusters that were removed and joins that were withdrawn."""
    open_keys = [alert["key"] or "" for alert in read_open_alerts(home)]
    clusters = {cluster.name for cluster in registry.list_clusters(home)}
    joins = f"{_RUN_PREFIX}{JOIN_JOB_NAME}/"
    generations = set(instance.get_dynamic_partitions(GENERATIONS_NAME))
    return [
        key
        for key in open_keys
        if (key.startswith(_CLUSTER_PREFIX) and key.split("/")[1] not in clusters)
        or (key.startswith(joins) and key.removeprefix(joins) not in generations)
    ]


@sensor(
    name="alerts",
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every minute, opens and resolves alerts by what `cdc-platform status` reports and by the age of the "
    "inbox's first node, and sends what the destinations of `[alerts]` have not received. Starts no run.",
)
def alerts(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """Run `sync_home_alerts`, deliver, and report the inbox check if its result has changed since the last tick."""
    opened, lake = home.home(), home.lake()
    try:
        head = sync_home_alerts(opened, lake, clock.clock(), context.instance)
    except PlatformError as error:
        # What is open is still delivered, and the store may be what is gone.
        raise_alert(opened, clock.clock(), Alert("home", "error", str(error), format_home_command(opened, "doctor")))
        sent = deliver_alerts(opened, context.log.warning)
        return SensorResult(skip_reason=f"the home cannot be read: {error}; sent {sent} messages")
    resolve_alert(opened, clock.clock(), "home")
    sent = deliver_alerts(opened, context.log.warning)
    event = (head.metadata or {}).get("event_id", "")
    state = f"{head.passed}/{head.severity.value}/{event}"
    events = [] if state == context.cursor else [_evaluate(head)]
    reason = f"sent {sent} messages; {len(read_open_alerts(opened))} alerts are open"
    return SensorResult(skip_reason=reason, asset_events=events, cursor=state)


def _evaluate(result: AssetCheckResult) -> AssetCheckEvaluation:
    return AssetCheckEvaluation(
        asset_key=asset_key_from_table(BOOTSTRAP_EVENTS),
        check_name=INBOX_CHECK,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata={name: _as_metadata(value) for name, value in (result.metadata or {}).items()},
    )


def _as_metadata(value: object) -> MetadataValue:
    if isinstance(value, MetadataValue):
        return value
    return MetadataValue.float(value) if isinstance(value, float) else MetadataValue.text(str(value))


@run_failure_sensor(
    name="failed_runs",
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.RUNNING,
    description="Opens an alert for each failed run, one for all runs of a job and partition until one succeeds.",
)
def failed_runs(context: RunFailureSensorContext, home: HomeResource, clock: ClockResource) -> None:
    """Raise the alert of a failed run, and deliver it."""
    opened = home.home()
    raise_alert(opened, clock.clock(), build_run_alert(context.instance, context.dagster_run, opened))
    deliver_alerts(opened, context.log.warning)


@run_status_sensor(
    run_status=DagsterRunStatus.SUCCESS,
    name="recovered_runs",
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.RUNNING,
    description="Resolves the alert of a job and partition once a run of them succeeds.",
)
def recovered_runs(context: RunStatusSensorContext, home: HomeResource, clock: ClockResource) -> None:
    """Resolve the alert of a run's job and partition, and deliver the message."""
    opened = home.home()
    if resolve_alert(opened, clock.clock(), get_run_alert_key(context.dagster_run)):
        deliver_alerts(opened, context.log.warning)


DEFINED = Definitions(asset_checks=[check_inbox_head], sensors=[alerts, failed_runs, recovered_runs])
