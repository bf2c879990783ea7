"""checkAndRepairCdcStreams in Dagster: a check, a job that queues the repair, and a sensor that reports the need.

The sensor `waiting_joins` runs a queued repair like a join. No Spark.
"""

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetCheckSeverity,
    Config,
    DagsterInstance,
    DefaultSensorStatus,
    Definitions,
    OpExecutionContext,
    SensorEvaluationContext,
    SensorResult,
    TableMetadataValue,
    asset_check,
    job,
    op,
    sensor,
)
from pydantic import Field

from cdc_platform.checks import GENERATIONS_RETRIEVABLE, REPAIR_FAMILY, STREAMS_FIT_THE_RING, judge_findings
from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError
from cdc_platform.lifecycle import audit_ring_fit, find_misfits
from cdc_platform.lifecycle import repair as repairing
from cdc_platform.metastore import inbox, store_check_results
from cdc_platform.settings import Settings
from cdc_platform.tables import BOOTSTRAP_EVENTS, GENERATIONS, NODES
from cdc_platform_assets.checks import LOW_PRIORITY_TAGS, link_to_invariant, start_judging, tag_violations_on_run
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.metadata import build_rows_preview
from cdc_platform_assets.run_requests import NoWork, Work, read_versions, request_work, skip_unless_writable
from cdc_platform_assets.specs import asset_key_from_table, pool_from_table
from cdc_platform_assets.table_checks import build_table_checks
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

REPAIR_JOB = "check_and_repair_streams"

_STATE_TAG = "cdc_platform/repair_state"


class Strictness(Config):
    """Which conditions call for a repair."""

    strict: bool | None = Field(
        default=None, description="also repair for warnings; default: the setting `repair_strict`"
    )


@op(pool=pool_from_table(BOOTSTRAP_EVENTS))
def ask_for_repair(context: OpExecutionContext, config: Strictness, home: HomeResource, clock: ClockResource) -> None:
    """Check the latest generation against the ring, and queue its repair where one is needed."""
    lake = home.lake()
    strict = home.settings().repair_strict if config.strict is None else config.strict
    with platform_errors_as_failures():
        checkup = repairing.check_newest_generation(lake, strict=strict)
        event = repairing.queue_needed_repair(lake, clock.clock(), checkup)
    for issue in (*checkup.reasons, *checkup.warnings):
        context.log.warning(f"{issue.condition.value}: {issue.detail}")
    metadata = {"needed": checkup.needed, "latest": str(checkup.latest), "conditions": _build_conditions_table(checkup)}
    if event is not None:
        context.log.info(f"Event {event.event_id}: generation {event.generation_id} waits.")
        metadata |= {"event_id": event.event_id, "generation_id": event.generation_id}
    context.add_output_metadata(metadata)


@job(
    name=REPAIR_JOB,
    description="Checks whether the latest generation fits the ring, and queues a new generation if it does not. The "
    "sensor `waiting_joins` then runs the queued repair.",
)
def check_and_repair_streams() -> None:
    """Ask for a repair where one is needed."""
    ask_for_repair()


@asset_check(
    asset=asset_key_from_table(NODES),
    name=str(STREAMS_FIT_THE_RING),
    description=STREAMS_FIT_THE_RING.meaning,
    op_tags=LOW_PRIORITY_TAGS,
)
def streams_fit_the_ring(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> AssetCheckResult:
    """Judge the latest generation; what is only a warning for `repair` is one here. What fails is seen on the run."""
    with platform_errors_as_failures():
        check_run = start_judging(context, home.lake(), clock.clock(), None)
        checkup = repairing.check_newest_generation(check_run.lake)
        findings = audit_ring_fit(check_run.lake)
        store_check_results(check_run, judge_findings(findings, REPAIR_FAMILY.due(findings)))
    misfits = find_misfits(checkup)
    result = AssetCheckResult(
        check_name=STREAMS_FIT_THE_RING,
        passed=not (misfits or checkup.undetermined),
        severity=AssetCheckSeverity.ERROR if checkup.needed else AssetCheckSeverity.WARN,
        description=misfits[0].detail if misfits else checkup.undetermined or f"{checkup.latest} fits",
        metadata={
            "needed": checkup.needed,
            "conditions": _build_conditions_table(checkup),
            "explained_in": link_to_invariant(STREAMS_FIT_THE_RING),
        },
    )
    (tagged,) = tag_violations_on_run(context, [result])
    return tagged


audit_named_generations = build_table_checks(
    "audit_named_generations",
    NODES,
    REPAIR_FAMILY,
    lambda lake, clock, settings: audit_ring_fit(lake),
    invariants=[GENERATIONS_RETRIEVABLE],
    low_priority=True,
)


def request_repair(lake: Lake, settings: Settings, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """Request a run of the repair job if ScyllaDB's own conditions call for it and the settings allow it.

    Without the setting `repair_automatically` the skip reason names the condition and the command. This reads no
    stream.
    """

    def find_work() -> Work | NoWork:
        try:
            checkup = repairing.check_newest_generation(lake, streams=False)
        except PlatformError as error:
            return NoWork(str(error))
        if not checkup.needed:
            return NoWork(f"generation {checkup.latest} fits the ring", final=True)
        if any(event.kind == inbox.REPAIR_EVENT for event in inbox.read_pending_events(lake)):
            return NoWork("a repair is queued; the sensor waiting_joins runs it")
        if checkup.blocked_by:
            return NoWork(f"a repair is needed, but {checkup.blocked_by[0]}")
        if not settings.repair_automatically:
            issue = checkup.reasons[0]
            return NoWork(
                f"a repair is needed ({issue.condition.value}: {issue.detail}); queue it with: cdc-platform repair, or "
                "let this sensor do so with the setting repair_automatically"
            )
        return Work(read_versions(lake, watched), "queue the repair", "run: cdc-platform repair")

    watched = (NODES, BOOTSTRAP_EVENTS, GENERATIONS)
    return request_work(
        lake, instance, cursor, job=REPAIR_JOB, state_tag=_STATE_TAG, watched=watched, find_work=find_work
    )


@sensor(
    name="needed_repairs",
    job_name=REPAIR_JOB,
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every minute, checks whether the latest generation still fits the ring, and says in its tick which "
    "repair is needed. It requests no run unless `repair_automatically = true` is in settings.toml: a repair creates a "
    "generation, and only an operator knows whether a node that left will come back.",
)
@skip_unless_writable
def needed_repairs(context: SensorEvaluationContext, home: HomeResource) -> SensorResult:
    """Run `request_repair` on this home and instance."""
    return request_repair(home.lake(), home.settings(), context.instance, context.cursor)


def _build_conditions_table(checkup: repairing.RepairCheck) -> TableMetadataValue:
    kinds = (("reason", checkup.reasons), ("warning", checkup.warnings))
    rows = [(kind, issue.condition.value, issue.detail) for kind, issues in kinds for issue in issues]
    return build_rows_preview(("kind", "condition", "detail"), rows)


DEFINED = Definitions(
    asset_checks=[streams_fit_the_ring, audit_named_generations],
    jobs=[check_and_repair_streams],
    sensors=[needed_repairs],
)
