"""The two-phase switches in Dagster: an asset that shows them and does what is due, checks, a sensor that asks for it.

A join goes through its switch by itself; this is for what a join that died has left. No Spark in here.
"""

from collections.abc import Iterator

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetSelection,
    DagsterInstance,
    DefaultSensorStatus,
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

from assets.checks import MEANINGS, invariant_results
from assets.declared import Sources, key, pool, table_asset
from assets.failures import in_one_line
from assets.generation_descriptions import cdc_generation_descriptions_v2
from assets.runs import FINISHED, MAX_RETRIES_TAG, MOST_ATTEMPTS
from assets.told import Stopwatch, few_rows, materialized
from cdc_platform.clock import Clock, format_ms
from cdc_platform.generations.switch import Phase, due
from cdc_platform.invariants.findings import SWITCH_INVARIANTS
from cdc_platform.invariants.switches import audit_switches
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS, GENERATION_DESCRIPTIONS_V2, GENERATION_SWITCHES, GENERATIONS
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.lifecycle.switch import register
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
    deps=[cdc_generation_descriptions_v2],
    description="Shows where the switches stand. Materialising it does what is due: nodes that have not answered "
    "acknowledge, a switch with all answers is committed and its generation entered, one whose deadline has passed "
    "without them is aborted. Off unless `two_phase_switch = true` is in settings.toml.",
)
def generation_switches(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Drive the switches that are unfinished, and report them all."""
    watch, lake, now, settings = Stopwatch(), home.lake(), clock.clock(), home.settings()
    with in_one_line():
        for left in register.unfinished(lake):
            done = register.drive(lake, now, settings, left.generation_id, BY)
            if done.phase is Phase.COMMITTED:
                bootstrap.introduce(lake, now, settings, left.generation_id)
            context.log.info(f"The switch to generation {done.generation_id} is {done.phase}.")
        known = register.switches(lake)[::-1]
    rows = [
        (each.generation_id, str(each.phase), f"{len(each.leases)} of {len(each.participants)}", _time(each.time_ms))
        for each in known
    ]
    told = {"switches": few_rows(("generation", "phase", "acknowledged", "time"), rows)}
    return materialized(lake.version(GENERATION_SWITCHES), rows=len(known), watch=watch, sources=SOURCES, told=told)


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
    specs=[
        AssetCheckSpec(name, asset=key(GENERATION_SWITCHES), description=MEANINGS[name]) for name in SWITCH_INVARIANTS
    ],
    pool=pool(GENERATION_SWITCHES),
)
def audit_generation_switches(context: AssetCheckExecutionContext, home: HomeResource) -> Iterator[AssetCheckResult]:
    """Judge every switch. Without any, which is how it is unless switches are turned on, nothing can be amiss."""
    with in_one_line():
        findings = audit_switches(home.lake())
    asked = context.selected_asset_check_keys
    if findings:
        yield from invariant_results(GENERATION_SWITCHES, asked, findings)
        return
    for each in asked:
        yield AssetCheckResult(
            passed=True,
            asset_key=each.asset_key,
            check_name=each.name,
            description="nothing was checked: there is no switch",
            metadata={"population": 0, "violations": 0},
        )


def next_step(lake: Lake, clock: Clock, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """What a tick asks for: a run, where a switch is undecided, or committed without its generation entered.

    The cursor only says at which versions nothing was unfinished.
    """
    versions = f"{lake.version(GENERATION_SWITCHES)}/{lake.version(GENERATIONS)}"
    if cursor == versions:
        return SensorResult(skip_reason="nothing has changed since every switch was finished", cursor=versions)
    left = register.unfinished(lake)
    if not left:
        return SensorResult(skip_reason="every switch is finished", cursor=versions)
    switch = left[0]
    state = f"{switch.generation_id}/{due(switch, clock.now_ms())}/{len(switch.leases)}"
    runs = instance.get_runs(RunsFilter(job_name=SWITCH_JOB))
    if any(run.status not in FINISHED for run in runs):
        return SensorResult(skip_reason=f"the switch to generation {switch.generation_id} is being driven")
    attempts = sum(run.tags.get(_STATE_TAG) == state for run in runs)
    if attempts >= MOST_ATTEMPTS:
        return SensorResult(
            skip_reason=f"{attempts} runs have not moved the switch to generation {switch.generation_id}; look at the "
            f"last of them, and at: cdc-platform switch show {switch.generation_id}"
        )
    request = RunRequest(run_key=f"{state}/{attempts + 1}", tags={_STATE_TAG: state, MAX_RETRIES_TAG: "0"})
    return SensorResult(run_requests=[request])


@sensor(
    name="unfinished_switches",
    job_name=SWITCH_JOB,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description="Asks for what is due about switches that a join has left: answers, the commit, or after the deadline "
    "the abort. All of it follows from the tables and the clock.",
)
def unfinished_switches(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """`next_step` on this home and this instance."""
    return next_step(home.lake(), clock.clock(), context.instance, context.cursor)


def _time(time_ms: int | None) -> str:
    return "-" if time_ms is None else format_ms(time_ms)
