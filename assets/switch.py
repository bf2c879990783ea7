"""Two-phase switches in Dagster: an asset that drives unfinished ones, checks, and a sensor.

A join completes its own switch; this handles switches of joins that died. No Spark.
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

from assets.checks import check_specs, evaluate_checks
from assets.data_versions import read_partition_content
from assets.failures import platform_errors_as_failures
from assets.metadata import Stopwatch, build_materialize_result, build_rows_preview
from assets.run_requests import request_run, skip_unless_writable
from assets.specs import ColumnSources, pool_from_table, table_asset
from cdc_platform.checks import SWITCH_FAMILY, audit_switches
from cdc_platform.clock import Clock, Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.generations import SwitchPhase, get_due_phase
from cdc_platform.lifecycle import JoinContext, run_introduce_step, switch
from cdc_platform.metastore import switches
from cdc_platform.tables import BOOTSTRAP_EVENTS, GENERATION_DESCRIPTIONS_V2, GENERATION_SWITCHES, GENERATIONS
from cdc_platform.timeline import GenerationRows
from resources.clock import ClockResource
from resources.home import HomeResource

SWITCH_JOB = "drive_switches"
DRIVEN_BY = "the job drive_switches"

GENERATION_SWITCHES_LINEAGE: ColumnSources = {
    "generation_id": [(GENERATION_DESCRIPTIONS_V2, "id")],
    "initiator": [(BOOTSTRAP_EVENTS, "host_id")],
}
_STATE_TAG = "cdc_platform/switch_state"


@table_asset(
    GENERATION_SWITCHES,
    group="generations",
    spark=False,
    sources=GENERATION_SWITCHES_LINEAGE,
    code=("cdc_platform.lifecycle.switch", "cdc_platform.generations.switch"),
    description="Shows where the switches stand. Materialising it does what is due: nodes that have not answered "
    "acknowledge, a switch with all answers is committed and its generation entered, one whose deadline has passed "
    "without them is aborted. Off unless `two_phase_switch = true` is in settings.toml.",
)
def generation_switches(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Drive the switches that are unfinished, and report them all."""
    watch, lake, now, settings = Stopwatch(), home.lake(), clock.clock(), home.settings()
    with platform_errors_as_failures():
        for unfinished in switches.read_unfinished_switches(lake):
            done = switch.advance_switch(lake, now, settings, unfinished.generation_id, DRIVEN_BY)
            if done.phase is SwitchPhase.COMMITTED:
                run_introduce_step(JoinContext(lake, now, settings, unfinished.generation_id, None, DRIVEN_BY))
            context.log.info(f"The switch to generation {done.generation_id} is {done.phase}.")
        known = switches.read_switches(lake)[::-1]
    rows = [
        (
            switch_row.generation_id,
            str(switch_row.phase),
            f"{len(switch_row.leases)} of {len(switch_row.participants)}",
            _format_optional_ms(switch_row.time_ms),
        )
        for switch_row in known
    ]
    metadata = {"switches": build_rows_preview(("generation", "phase", "acknowledged", "time"), rows)}
    content = read_partition_content(lake, GenerationRows(GENERATION_SWITCHES, {}))
    return build_materialize_result(
        lake, content, rows=len(known), watch=watch, sources=GENERATION_SWITCHES_LINEAGE, told=metadata
    )


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
    specs=check_specs(GENERATION_SWITCHES, SWITCH_FAMILY.invariants),
    pool=pool_from_table(GENERATION_SWITCHES),
)
def audit_generation_switches(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge every switch. Without any, which is how it is unless switches are turned on, nothing can be amiss."""
    lake = home.lake()
    yield from evaluate_checks(
        context, GENERATION_SWITCHES, lake, clock.clock(), lambda _: [(SWITCH_FAMILY, audit_switches(lake))]
    )


def request_switch_run(lake: Lake, clock: Clock, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """Request a run if a switch is undecided, or committed while its generation is not entered.

    The cursor only names the versions at which nothing was unfinished.
    """
    versions = f"{lake.version(GENERATION_SWITCHES)}/{lake.version(GENERATIONS)}"
    if cursor == versions:
        return SensorResult(skip_reason="nothing has changed since every switch was finished", cursor=versions)
    unfinished = switches.read_unfinished_switches(lake)
    if not unfinished:
        return SensorResult(skip_reason="every switch is finished", cursor=versions)
    switch = unfinished[0]
    state = f"{switch.generation_id}/{get_due_phase(switch, clock.now_ms())}/{len(switch.leases)}"
    wish = request_run(instance, SWITCH_JOB, state, state=(_STATE_TAG, state))
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
@skip_unless_writable
def unfinished_switches(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """`request_switch_run` on this home and this instance."""
    return request_switch_run(home.lake(), clock.clock(), context.instance, context.cursor)


def _format_optional_ms(time_ms: Milliseconds | None) -> str:
    return "-" if time_ms is None else format_ms(time_ms)


DEFINED = Definitions(
    assets=[generation_switches],
    asset_checks=[audit_generation_switches],
    jobs=[drive_switches],
    sensors=[unfinished_switches],
)
