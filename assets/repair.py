"""checkAndRepairCdcStreams in Dagster: a check, a job that queues the repair, and a sensor that is off by default.

The sensor `waiting_joins` runs a queued repair like a join. No Spark.
"""

from collections.abc import Iterator

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
    multi_asset_check,
    op,
    sensor,
)
from pydantic import Field

from assets.checks import LOW_PRIORITY_TAGS, check_specs, evaluate_checks, start_judging, tag_violations_on_run
from assets.failures import platform_errors_as_failures
from assets.metadata import build_rows_preview
from assets.run_requests import request_run, skip_unless_writable
from assets.specs import asset_key_from_table, pool_from_table
from cdc_platform.checks import GENERATIONS_RETRIEVABLE, REPAIR_FAMILY, STREAMS_FIT_THE_RING, judge_findings
from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError
from cdc_platform.lifecycle import audit_ring_fit, find_misfits
from cdc_platform.lifecycle import repair as repairing
from cdc_platform.metastore import inbox, store_check_results
from cdc_platform.tables import BOOTSTRAP_EVENTS, GENERATIONS, NODES
from resources.clock import ClockResource
from resources.home import HomeResource

REPAIR_JOB = "check_and_repair_streams"

_STATE_TAG = "cdc_platform/repair_state"


class Strictness(Config):
    """What is repaired."""

    strict: bool | None = Field(
        default=None, description="repair for warnings too; by default what `repair_strict` of the settings says"
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
    description="Checks whether the latest generation still fits the ring, and queues a new generation where it does "
    "not; the sensor `waiting_joins` makes it. Runs at the same time queue one generation.",
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
        look = start_judging(context, home.lake(), clock.clock(), None)
        checkup = repairing.check_newest_generation(look.lake)
        findings = audit_ring_fit(look.lake)
        store_check_results(look, judge_findings(findings, REPAIR_FAMILY.due(findings)))
    misfits = find_misfits(checkup)
    result = AssetCheckResult(
        check_name=STREAMS_FIT_THE_RING,
        passed=not misfits,
        severity=AssetCheckSeverity.ERROR if checkup.needed else AssetCheckSeverity.WARN,
        description=misfits[0].detail if misfits else checkup.undetermined or f"{checkup.latest} fits",
        metadata={"needed": checkup.needed, "conditions": _build_conditions_table(checkup)},
    )
    (tagged,) = tag_violations_on_run(context, [result])
    return tagged


@multi_asset_check(
    name="audit_named_generations", specs=check_specs(NODES, [GENERATIONS_RETRIEVABLE]), op_tags=LOW_PRIORITY_TAGS
)
def audit_named_generations(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge whether what nodes, ledgers and readers name can be read; where nobody names any there is nothing to."""
    lake = home.lake()
    yield from evaluate_checks(context, NODES, lake, clock.clock(), lambda _: [(REPAIR_FAMILY, audit_ring_fit(lake))])


def request_repair(lake: Lake, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """Request a run of the repair job if ScyllaDB's own conditions call for it. This reads no stream.

    The cursor only names the table versions at which nothing was due.
    """
    state = "/".join(str(lake.version(table)) for table in (NODES, BOOTSTRAP_EVENTS, GENERATIONS))
    if cursor == state:
        return SensorResult(skip_reason="nothing has changed since the streams fitted the ring", cursor=state)
    try:
        checkup = repairing.check_newest_generation(lake, streams=False)
    except PlatformError as error:
        return SensorResult(skip_reason=str(error))
    if not checkup.needed:
        return SensorResult(skip_reason=f"generation {checkup.latest} fits the ring", cursor=state)
    if any(event.kind == inbox.REPAIR_EVENT for event in inbox.read_pending_events(lake)):
        return SensorResult(skip_reason="a repair waits already; waiting_joins makes it")
    if checkup.blocked_by:
        return SensorResult(skip_reason=f"a repair is needed, but {checkup.blocked_by[0]}")
    wish = request_run(instance, REPAIR_JOB, state, state=(_STATE_TAG, state))
    if wish.active is not None:
        return SensorResult(skip_reason="a repair is being asked for")
    if wish.request is None:
        return SensorResult(
            skip_reason=f"{len(wish.ended)} runs have asked for the repair; look at the last, and at `repair`"
        )
    return SensorResult(run_requests=[wish.request])


@sensor(
    name="needed_repairs",
    job_name=REPAIR_JOB,
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.STOPPED,
    description="Asks for a repair when the latest generation no longer fits the ring. Off until it is switched on: "
    "whether a node that has left is worth a new generation now, or comes back, people know better.",
)
@skip_unless_writable
def needed_repairs(context: SensorEvaluationContext, home: HomeResource) -> SensorResult:
    """`request_repair` on this home and this instance."""
    return request_repair(home.lake(), context.instance, context.cursor)


def _build_conditions_table(checkup: repairing.RepairCheck) -> TableMetadataValue:
    kinds = (("reason", checkup.reasons), ("warning", checkup.warnings))
    rows = [(kind, issue.condition.value, issue.detail) for kind, issues in kinds for issue in issues]
    return build_rows_preview(("kind", "condition", "detail"), rows)


DEFINED = Definitions(
    asset_checks=[streams_fit_the_ring, audit_named_generations],
    jobs=[check_and_repair_streams],
    sensors=[needed_repairs],
)
