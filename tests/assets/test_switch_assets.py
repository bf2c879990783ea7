"""Two-phase switches in Dagster: requests of the sensor, work of the job, and results of the checks. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import AssetCheckEvaluation, DagsterRunStatus, ExecuteInProcessResult, SensorResult, build_sensor_context
from support.failed_runs import advance_retries, fail_run
from support.worlds.rehearsal import QUIET, Rehearsal
from support.worlds.switch_lake import NOON, NOON_MS, TWO_PHASE, host, inserted, ring_of

from cdc_platform.checks.invariants import SWITCH_INVARIANTS
from cdc_platform.clock import HOUR_US, Clock, Milliseconds, format_ms, us_from_ms
from cdc_platform.dagster_home import CLOCK_VARIABLE
from cdc_platform.definitions import defs
from cdc_platform.errors import StateError
from cdc_platform.generations import SwitchPhase
from cdc_platform.lifecycle import switch
from cdc_platform.metastore import switches
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, GENERATION_SWITCHES, GENERATIONS
from cdc_platform_assets.run_requests import MAX_ATTEMPTS
from cdc_platform_assets.switch import SWITCH_JOB, request_switch_run, unfinished_switches
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

HOSTS = [host(number) for number in (1, 2, 3)]


@pytest.fixture
def left(rehearsal: Rehearsal) -> str:
    """Create a switch that its initiator prepared and abandoned."""
    ring_of(rehearsal.lake, (1, 2))
    generation_id = inserted(rehearsal.lake, 3)
    switch.prepare_switch(rehearsal.lake, NOON, TWO_PHASE, generation_id, HOSTS[2], HOSTS)
    return generation_id


def clock_after(seconds: int) -> Clock:
    """Return a clock this many seconds after the preparation."""
    return Clock(us_from_ms(Milliseconds(NOON_MS + seconds * 1000)))


def drive(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, seconds: int) -> ExecuteInProcessResult:
    """Run the job."""
    monkeypatch.setenv(CLOCK_VARIABLE, format_ms(Milliseconds(NOON_MS + seconds * 1000)))
    return defs.resolve_job_def(SWITCH_JOB).execute_in_process(
        run_config=QUIET, instance=rehearsal.instance, raise_on_error=False
    )


def run_keys(result: SensorResult) -> list[str | None]:
    """Return the run keys that a tick requests."""
    return [request.run_key for request in result.run_requests or []]


def skip_message(result: SensorResult) -> str:
    """Return why a tick requests no run."""
    assert not result.run_requests
    return result.skip_reason.skip_message or "" if result.skip_reason else ""


def run_checks(rehearsal: Rehearsal) -> dict[str, AssetCheckEvaluation]:
    """Return the results of the checks by name."""
    from cdc_platform_assets.switch import audit_generation_switches

    result = (
        defs.resolve_implicit_global_asset_job_def()
        .get_subset(asset_check_selection=set(audit_generation_switches.check_keys), asset_selection=set())
        .execute_in_process(run_config=QUIET, instance=rehearsal.instance)
    )
    return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


def test_an_abandoned_switch_is_acknowledged_committed_and_entered(
    rehearsal: Rehearsal, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the deadline the platform's nodes acknowledge; the generation gets its timestamp, and nothing is left."""
    assert run_keys(request_switch_run(rehearsal.lake, clock_after(1), rehearsal.instance, None)) == [
        f"{left}/preparing/0/1"
    ]
    assert drive(rehearsal, monkeypatch, 1).success
    assert switches.find_switch(rehearsal.lake, left).time_ms == NOON_MS + 71_000
    assert rehearsal.lake.read(GENERATIONS)["generation_id"].to_pylist() == [left]
    finished = request_switch_run(rehearsal.lake, clock_after(2), rehearsal.instance, None)
    assert skip_message(finished) == "every switch is finished"
    unchanged = skip_message(request_switch_run(rehearsal.lake, clock_after(2), rehearsal.instance, finished.cursor))
    assert unchanged.startswith("no table has changed")
    before = rehearsal.lake.version(GENERATION_SWITCHES)
    assert drive(rehearsal, monkeypatch, 3).success
    assert rehearsal.lake.version(GENERATION_SWITCHES) == before
    assert {name: evaluation.passed for name, evaluation in run_checks(rehearsal).items()} == dict.fromkeys(
        SWITCH_INVARIANTS, True
    )


def test_after_the_deadline_the_switch_is_aborted(
    rehearsal: Rehearsal, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that cannot read the generation do not stop the sensor from requesting another after the deadline."""
    advance_retries(monkeypatch, HOUR_US)
    end = rehearsal.lake.read(GENERATION_DESCRIPTIONS_V2)["range_end"][0].as_py()
    rehearsal.lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", end)])
    for attempt in range(1, MAX_ATTEMPTS + 1):
        result = request_switch_run(rehearsal.lake, clock_after(1), rehearsal.instance, None)
        assert run_keys(result) == [f"{left}/preparing/0/{attempt}"]
        assert not drive(rehearsal, monkeypatch, 1).success
        tags = (result.run_requests or [])[0].tags
        fail_run(rehearsal.instance, SWITCH_JOB, tags, StateError("rows are missing"))
    assert f"3 runs did not advance the switch to generation {left}" in skip_message(
        request_switch_run(rehearsal.lake, clock_after(1), rehearsal.instance, None)
    )
    assert run_keys(request_switch_run(rehearsal.lake, clock_after(30), rehearsal.instance, None)) == [
        f"{left}/aborted/0/1"
    ]
    assert drive(rehearsal, monkeypatch, 30).success
    assert switches.find_switch(rehearsal.lake, left).phase is SwitchPhase.ABORTED


def test_a_run_in_progress_is_not_repeated(rehearsal: Rehearsal, left: str) -> None:
    """A second run would do no harm, but no work either."""
    run = rehearsal.instance.create_run_for_job(defs.resolve_job_def(SWITCH_JOB), status=DagsterRunStatus.STARTED)
    assert skip_message(request_switch_run(rehearsal.lake, clock_after(1), rehearsal.instance, None)) == (
        f"run {run.run_id} is in progress, to advance the switch to generation {left}"
    )


def test_without_switches_nothing_is_requested_and_the_checks_pass(rehearsal: Rehearsal, tmp_path: Path) -> None:
    """While switches are disabled, the sensor skips and every check passes without a subject."""
    resources = {"home": HomeResource(), "clock": ClockResource()}
    with build_sensor_context(instance=rehearsal.instance, resources=resources) as context:
        result = unfinished_switches(context)
    assert isinstance(result, SensorResult)
    assert skip_message(result) == "every switch is finished"
    evaluations = run_checks(rehearsal)
    assert {evaluation.description for evaluation in evaluations.values()} == {
        "nothing was checked: there is no switch"
    }
    assert all(evaluation.passed for evaluation in evaluations.values())


def test_a_violation_fails_its_check(rehearsal: Rehearsal, left: str) -> None:
    """A committed switch that is missing from the ledger fails its check."""
    switch.advance_switch(rehearsal.lake, clock_after(1), TWO_PHASE, left, "a test")
    evaluations = run_checks(rehearsal)
    assert [name for name, evaluation in evaluations.items() if not evaluation.passed] == ["switch_has_its_generation"]
    assert "is committed and not in the ledger yet" in (evaluations["switch_has_its_generation"].description or "")
