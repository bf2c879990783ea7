"""Two-phase switches in Dagster: an asset that drives unfinished ones, checks, and a sensor.

A join completes its own switch; this handles switches of joins that died. No Spark.
"""

from typing import Any

from dagster import (
    AssetExecutionContext,
    DagsterInstance,
    DefaultSensorStatus,
    Definitions,
    MaterializeResult,
    SensorEvaluationContext,
    SensorResult,
    define_asset_job,
    in_process_executor,
    sensor,
)

from cdc_platform.checks import SWITCH_FAMILY, audit_switches
from cdc_platform.clock import Clock, Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.generations import SwitchPhase, get_due_phase
from cdc_platform.lifecycle import JoinContext, run_introduce_step, switch
from cdc_platform.metastore import switches
from cdc_platform.tables import BOOTSTRAP_EVENTS, GENERATION_DESCRIPTIONS_V2, GENERATION_SWITCHES, GENERATIONS
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.checks import select_with_own_checks
from cdc_platform_assets.data_versions import read_partition_content
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.metadata import Stopwatch, build_materialize_result, build_rows_preview
from cdc_platform_assets.run_requests import NoWork, Work, request_work, skip_unless_writable
from cdc_platform_assets.specs import ColumnSources, lineage_edge, table_asset
from cdc_platform_assets.table_checks import build_table_checks
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

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
    deps=[lineage_edge(GENERATION_DESCRIPTIONS_V2)],
    sources=GENERATION_SWITCHES_LINEAGE,
    code=("cdc_platform.lifecycle.switch", "cdc_platform.generations.switch"),
    description="Materializing it advances every unfinished switch: it collects missing acknowledgements, commits a "
    "switch that has all of them, and aborts one whose deadline has passed. Needs `two_phase_switch = true` in "
    "settings.toml.",
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
        rows, metadata = describe_switches(lake)
    content = read_partition_content(lake, GenerationRows(GENERATION_SWITCHES, {}))
    return build_materialize_result(
        lake, content, rows=rows, watch=watch, sources=GENERATION_SWITCHES_LINEAGE, metadata=metadata
    )


def describe_switches(lake: Lake) -> tuple[int, dict[str, Any]]:
    """Return the number of switches, and as metadata the phase and the acknowledgements of each."""
    known = switches.read_switches(lake)[::-1]
    rows = (
        (
            switch_row.generation_id,
            str(switch_row.phase),
            f"{len(switch_row.leases)} of {len(switch_row.participants)}",
            _format_optional_ms(switch_row.time_ms),
        )
        for switch_row in known
    )
    return len(known), {"switches": build_rows_preview(("generation", "phase", "acknowledged", "time"), rows)}


drive_switches = define_asset_job(
    SWITCH_JOB,
    selection=select_with_own_checks(generation_switches),
    description="Advances unfinished two-phase switches: acknowledges, commits or aborts. It can run at any time, and "
    "concurrently.",
    executor_def=in_process_executor,
)


audit_generation_switches = build_table_checks(
    "audit_generation_switches", GENERATION_SWITCHES, SWITCH_FAMILY, lambda lake, clock, settings: audit_switches(lake)
)


def request_switch_run(lake: Lake, clock: Clock, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """Request a run while a switch is undecided, or committed and its generation not introduced."""

    def find_work() -> Work | NoWork:
        unfinished = switches.read_unfinished_switches(lake)
        if not unfinished:
            return NoWork("every switch is finished", final=True)
        first = unfinished[0]
        state = f"{first.generation_id}/{get_due_phase(first, clock.now_ms())}/{len(first.leases)}"
        goal = f"advance the switch to generation {first.generation_id}"
        return Work(state, goal, f"look at it with: cdc-platform switch show {first.generation_id}")

    watched = (GENERATION_SWITCHES, GENERATIONS)
    return request_work(
        lake, instance, cursor, job=SWITCH_JOB, state_tag=_STATE_TAG, watched=watched, find_work=find_work
    )


@sensor(
    name="unfinished_switches",
    job_name=SWITCH_JOB,
    minimum_interval_seconds=15,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every 15 seconds, requests a run for a switch that a join left unfinished. Reads the tables and the "
    "clock only.",
)
@skip_unless_writable
def unfinished_switches(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """Run `request_switch_run` on this home and instance."""
    return request_switch_run(home.lake(), clock.clock(), context.instance, context.cursor)


def _format_optional_ms(time_ms: Milliseconds | None) -> str:
    return "-" if time_ms is None else format_ms(time_ms)


DEFINED = Definitions(
    assets=[generation_switches],
    asset_checks=[audit_generation_switches],
    jobs=[drive_switches],
    sensors=[unfinished_switches],
)
