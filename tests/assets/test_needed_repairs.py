"""checkAndRepairCdcStreams in Dagster: the check, the job that queues a repair, and the sensor. No Spark."""

from __future__ import annotations

from uuid import UUID

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetKey,
    AssetSelection,
    DagsterRunStatus,
    Definitions,
    SensorResult,
    build_sensor_context,
    define_asset_job,
    in_process_executor,
)
from support.failed_runs import advance_retries, fail_run
from support.worlds.rehearsal import QUIET, Rehearsal

from cdc_platform.clock import HOUR_US, Milliseconds
from cdc_platform.definitions import defs
from cdc_platform.errors import StateError
from cdc_platform.generations import GenerationId
from cdc_platform.metastore import cdc_local, inbox, write_nodes
from cdc_platform.ring import Node
from cdc_platform.tables import BOOTSTRAP_EVENTS, GENERATION_DESCRIPTIONS_V2
from cdc_platform_assets.checks import VIOLATED_TAG
from cdc_platform_assets.join.inbox import waiting_joins
from cdc_platform_assets.repair import REPAIR_JOB, audit_named_generations, needed_repairs, streams_fit_the_ring
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

HOSTS = [
    Node(UUID(int=number), tokens, 2, 12, f"10.0.0.{number}", "dc1", "r1", ("CDC_GENERATIONS_V2",))
    for number, tokens in ((1, (-5, 5)), (2, (0, 77)))
]


@pytest.fixture
def damaged(rehearsal: Rehearsal) -> Rehearsal:
    """Return a home with a ring and without any generation."""
    write_nodes(rehearsal.lake, HOSTS)
    return rehearsal


@pytest.fixture
def automatic(damaged: Rehearsal) -> Rehearsal:
    """Return the same home, with a setting that lets the sensor repair."""
    settings = damaged.lake.root.parent / "settings.toml"
    settings.write_text("repair_automatically = true\n", encoding="utf-8")
    return damaged


def tick(rehearsal: Rehearsal, cursor: str | None = None) -> SensorResult:
    """Run one tick of the sensor and return its requests."""
    resources = {"home": HomeResource()}
    with build_sensor_context(instance=rehearsal.instance, cursor=cursor, resources=resources) as context:
        result = needed_repairs(context)
    assert isinstance(result, SensorResult)
    return result


def skip_message(result: SensorResult) -> str:
    """Return why a tick requests no run."""
    assert not result.run_requests
    return result.skip_reason.skip_message or "" if result.skip_reason else ""


def run_job(rehearsal: Rehearsal) -> None:
    """Run the job."""
    result = defs.resolve_job_def(REPAIR_JOB).execute_in_process(run_config=QUIET, instance=rehearsal.instance)
    assert result.success


def test_the_check_fails_and_blocks_nothing(damaged: Rehearsal) -> None:
    """Without a generation the check fails, which the run shows; it belongs to the ring's table and blocks no step."""
    checked = Definitions(
        asset_checks=[streams_fit_the_ring],
        jobs=[define_asset_job("checked", AssetSelection.all_asset_checks(), executor_def=in_process_executor)],
        resources={"home": HomeResource(), "clock": ClockResource()},
    )
    result = checked.resolve_job_def("checked").execute_in_process(run_config=QUIET, instance=damaged.instance)
    (evaluation,) = result.get_asset_check_evaluations()
    assert (result.success, evaluation.passed, evaluation.severity) == (True, False, AssetCheckSeverity.ERROR)
    assert "no generation is known at all" in (evaluation.description or "")
    run = damaged.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[VIOLATED_TAG] == "streams_fit_the_ring"
    (spec,) = streams_fit_the_ring.check_specs
    assert (spec.asset_key, spec.blocking) == (AssetKey(["platform", "nodes"]), False)


def check_named_generations(damaged: Rehearsal) -> AssetCheckEvaluation:
    """Return the result of the check of named generations."""
    job = defs.resolve_implicit_global_asset_job_def().get_subset(
        asset_check_selection=set(audit_named_generations.check_keys), asset_selection=set()
    )
    (evaluation,) = job.execute_in_process(run_config=QUIET, instance=damaged.instance).get_asset_check_evaluations()
    return evaluation


def test_an_unreadable_named_generation_is_reported(damaged: Rehearsal) -> None:
    """Without a named generation there is nothing to judge; a node's generation without description is a violation."""
    assert check_named_generations(damaged).passed
    damaged.lake.ensure(GENERATION_DESCRIPTIONS_V2)
    cdc_local.store_node_generation_id(
        damaged.lake, HOSTS[0].host_id, GenerationId(Milliseconds(1_700_000_000_000), UUID(int=7))
    )
    evaluation = check_named_generations(damaged)
    assert (evaluation.passed, evaluation.metadata["violations"].value) == (False, 1)
    assert "its description cannot be read" in str(evaluation.description)


def test_the_job_queues_one_repair_for_the_inbox(damaged: Rehearsal) -> None:
    """Two runs queue one event; the sensor of the inbox adds its partition and requests the job of joins."""
    run_job(damaged)
    run_job(damaged)
    (event,) = inbox.read_pending_events(damaged.lake)
    assert event.kind == inbox.REPAIR_EVENT
    with build_sensor_context(instance=damaged.instance, resources={"home": HomeResource()}) as context:
        requested = waiting_joins(context)
    assert isinstance(requested, SensorResult)
    assert [request.partition_key for request in requested.run_requests or ()] == [
        damaged.partition(event.generation_id)
    ]


def test_the_sensor_is_on_and_only_reports(damaged: Rehearsal) -> None:
    """Without the setting a tick names condition, command and setting, requests no run and changes nothing."""
    assert needed_repairs.default_status.value == "RUNNING"
    for _ in range(2):
        assert skip_message(tick(damaged)) == (
            "a repair is needed (no-generation: no generation is known at all); queue it with: cdc-platform repair, or "
            "let this sensor do so with the setting repair_automatically"
        )
    assert inbox.read_pending_events(damaged.lake) == []


def test_the_sensor_requests_one_run_if_the_setting_is_on(
    automatic: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damage gets one run, and none while it runs, while the repair waits, or after three attempts."""
    damaged = automatic
    (request,) = tick(damaged).run_requests or []
    job = defs.resolve_job_def(REPAIR_JOB)
    run = damaged.instance.create_run_for_job(job, tags=request.tags, status=DagsterRunStatus.STARTED)
    assert skip_message(tick(damaged)) == f"run {run.run_id} is in progress, to queue the repair"
    damaged.instance.report_run_failed(run)
    retries = tick(damaged).run_requests or ()
    assert [(request.run_key or "")[-2:] for request in retries] == ["/2"]
    for _ in range(2):
        fail_run(damaged.instance, REPAIR_JOB, request.tags, StateError("rows are missing"))
    assert "the next attempt starts at" in skip_message(tick(damaged))
    advance_retries(monkeypatch, HOUR_US)
    assert skip_message(tick(damaged)).startswith("3 runs did not queue the repair")
    run_job(damaged)
    assert skip_message(tick(damaged)) == "a repair is queued; the sensor waiting_joins runs it"


def test_the_sensor_skips_a_lake_without_a_ring(rehearsal: Rehearsal) -> None:
    """Before the first join the sensor gives this reason at every tick."""
    assert "no node is in the ring" in skip_message(tick(rehearsal))
    assert not rehearsal.lake.exists(BOOTSTRAP_EVENTS)
    assert not rehearsal.lake.exists(GENERATION_DESCRIPTIONS_V2)
