"""The two-phase switches in Dagster: an asset that shows them and does what is due, checks, a sensor that asks for it.

A join goes through its switch by itself; this is for what a join that died has left. No Spark in here.
"""

from collections.abc import Iterator

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetSelection,
    DagsterInstance,
    DefaultSensorStatus,
    Definitions,
    MaterializeResult,
    SensorEvaluationContext,
    SensorResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
    sensor,
)

from assets.checks import check_specs, judged
from assets.declared import Sources, pool, table_asset
from assets.events import held
from assets.failures import in_one_line
from assets.runs import attempt
from assets.told import Stopwatch, few_rows, materialized
from assets.whole_homes import on_whole_homes
from cdc_platform.clock import Clock, Milliseconds, format_ms
from cdc_platform.generations.switch import Phase, due
from cdc_platform.invariants.findings import SWITCHES
from cdc_platform.invariants.switches import audit_switches
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS, GENERATION_DESCRIPTIONS_V2, GENERATION_SWITCHES, GENERATIONS
from cdc_platform.lifecycle.join.joining import introduce
from cdc_platform.lifecycle.join.step import Joining
from cdc_platform.lifecycle.switch import register
from cdc_platform.records import switches
from cdc_platform.timeline.parts import Part
from resources.clock import ClockResource
from resources.home import HomeResource

SWITCH_JOB = "drive_switches"
BY = "the job drive_switches"

SOURCES: Sources = {
    "generation_id": [(GENERATION_DESCRIPTIONS_V2, "id")],
    "initiator": [(BOOTSTRAP_EVENTS, "host_id")],
}
_STATE_TAG = "cdc_platform/switch_state"


@table_asset(
    GENERATION_SWITCHES,
    group="generations",
    spark=False,
    sources=SOURCES,
    code=("cdc_platform.lifecycle.switch", "cdc_platform.generations.switch"),
    description="Shows where the switches stand. Materialising it does what is due: nodes that have not answered "
    "acknowledge, a switch with all answers is committed and its generation entered, one whose deadline has passed "
    "without them is aborted. Off unless `two_phase_switch = true` is in settings.toml.",
)
def generation_switches(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Drive the switches that are unfinished, and report them all."""
    watch, lake, now, settings = Stopwatch(), home.lake(), clock.clock(), home.settings()
    with in_one_line():
        for left in switches.unfinished(lake):
            done = register.drive(lake, now, settings, left.generation_id, BY)
            if done.phase is Phase.COMMITTED:
                introduce(Joining(lake, now, settings, left.generation_id, None, BY))
            context.log.info(f"The switch to generation {done.generation_id} is {done.phase}.")
        known = switches.switches(lake)[::-1]
    rows = [
        (each.generation_id, str(each.phase), f"{len(each.leases)} of {len(each.participants)}", _time(each.time_ms))
        for each in known
    ]
    told = {"switches": few_rows(("generation", "phase", "acknowledged", "time"), rows)}
    content = held(lake, Part(GENERATION_SWITCHES, {}))
    return materialized(lake, content, rows=len(known), watch=watch, sources=SOURCES, told=told)


drive_switches = define_asset_job(
    SWITCH_JOB,
    selection=AssetSelection.assets(generation_switches),
    description="Does what is due about two-phase switches: acknowledge, commit, abort. Safe at any time, and with "
    "any number of others at once: every decision is one compare-and-set.",
    executor_def=in_process_executor,
)


@multi_asset_check(
    can_subset=True,
    name="audit_generation_switches",
    specs=check_specs(GENERATION_SWITCHES, SWITCHES.invariants),
    pool=pool(GENERATION_SWITCHES),
)
def audit_generation_switches(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge every switch. Without any, which is how it is unless switches are turned on, nothing can be amiss."""
    lake = home.lake()
    yield from judged(context, GENERATION_SWITCHES, lake, clock.clock(), lambda _: [(SWITCHES, audit_switches(lake))])


def next_step(lake: Lake, clock: Clock, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """What a tick asks for: a run, where a switch is undecided, or committed without its generation entered.

    The cursor only says at which versions nothing was unfinished.
    """
    versions = f"{lake.version(GENERATION_SWITCHES)}/{lake.version(GENERATIONS)}"
    if cursor == versions:
        return SensorResult(skip_reason="nothing has changed since every switch was finished", cursor=versions)
    left = switches.unfinished(lake)
    if not left:
        return SensorResult(skip_reason="every switch is finished", cursor=versions)
    switch = left[0]
    state = f"{switch.generation_id}/{due(switch, clock.now_ms())}/{len(switch.leases)}"
    wish = attempt(instance, SWITCH_JOB, state, state=(_STATE_TAG, state))
    if wish.active is not None:
        return SensorResult(skip_reason=f"the switch to generation {switch.generation_id} is being driven")
    if wish.request is None:
        return SensorResult(
            skip_reason=f"{len(wish.ended)} runs have not moved the switch to generation {switch.generation_id}; look "
            f"at the last of them, and at: cdc-platform switch show {switch.generation_id}"
        )
    return SensorResult(run_requests=[wish.request])


@sensor(
    name="unfinished_switches",
    job_name=SWITCH_JOB,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description="Asks for what is due about switches that a join has left: answers, the commit, or after the deadline "
    "the abort. All of it follows from the tables and the clock.",
)
@on_whole_homes
def unfinished_switches(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """`next_step` on this home and this instance."""
    return next_step(home.lake(), clock.clock(), context.instance, context.cursor)


def _time(time_ms: Milliseconds | None) -> str:
    return "-" if time_ms is None else format_ms(time_ms)


DEFINED = Definitions(
    assets=[generation_switches],
    asset_checks=[audit_generation_switches],
    jobs=[drive_switches],
    sensors=[unfinished_switches],
)
