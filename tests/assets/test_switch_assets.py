"""The two-phase switches in Dagster: what the sensor asks for, what the job does, what the checks say. No Spark."""

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
    """A switch that its initiator has prepared and left."""
    ring_of(rehearsal.lake, (1, 2))
    generation_id = inserted(rehearsal.lake, 3)
    switch.prepare_switch(rehearsal.lake, NOON, TWO_PHASE, generation_id, HOSTS[2], HOSTS)
    return generation_id


def at(seconds: int) -> Clock:
    """So many seconds after the preparation."""
    return Clock(us_from_ms(Milliseconds(NOON_MS + seconds * 1000)))


def drive(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, seconds: int) -> ExecuteInProcessResult:
    """Run the job."""
    monkeypatch.setenv(CLOCK_VARIABLE, format_ms(Milliseconds(NOON_MS + seconds * 1000)))
    return defs.resolve_job_def(SWITCH_JOB).execute_in_process(
        run_config=QUIET, instance=rehearsal.instance, raise_on_error=False
    )


def asked(found: SensorResult) -> list[str | None]:
    """The run keys that a tick asks for."""
    return [request.run_key for request in found.run_requests or []]


def said(found: SensorResult) -> str:
    """Why a tick asks for no run."""
    assert not found.run_requests
    return found.skip_reason.skip_message or "" if found.skip_reason else ""


def checked(rehearsal: Rehearsal) -> dict[str, AssetCheckEvaluation]:
    """What the checks say, by name."""
    from cdc_platform_assets.switch import audit_generation_switches

    result = (
        defs.resolve_implicit_global_asset_job_def()
        .get_subset(asset_check_selection=set(audit_generation_switches.check_keys), asset_selection=set())
        .execute_in_process(run_config=QUIET, instance=rehearsal.instance)
    )
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def test_what_is_left_is_acknowledged_committed_and_entered(
    rehearsal: Rehearsal, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In time the platform's nodes answer; the generation has its timestamp, and nothing is left to ask for."""
    assert asked(request_switch_run(rehearsal.lake, at(1), rehearsal.instance, None)) == [f"{left}/preparing/0/1"]
    assert drive(rehearsal, monkeypatch, 1).success
    assert switches.find_switch(rehearsal.lake, left).time_ms == NOON_MS + 71_000
    assert rehearsal.lake.read(GENERATIONS)["generation_id"].to_pylist() == [left]
    done = request_switch_run(rehearsal.lake, at(2), rehearsal.instance, None)
    assert said(done) == "every switch is finished"
    unchanged = said(request_switch_run(rehearsal.lake, at(2), rehearsal.instance, done.cursor))
    assert unchanged.startswith("no table has changed")
    before = rehearsal.lake.version(GENERATION_SWITCHES)
    assert drive(rehearsal, monkeypatch, 3).success
    assert rehearsal.lake.version(GENERATION_SWITCHES) == before
    assert {name: each.passed for name, each in checked(rehearsal).items()} == dict.fromkeys(SWITCH_INVARIANTS, True)


def test_after_the_deadline_it_is_aborted(rehearsal: Rehearsal, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that could not read the generation do not keep the sensor from asking again once the deadline is there."""
    advance_retries(monkeypatch, HOUR_US)
    end = rehearsal.lake.read(GENERATION_DESCRIPTIONS_V2)["range_end"][0].as_py()
    rehearsal.lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", end)])
    for attempt in range(1, MAX_ATTEMPTS + 1):
        found = request_switch_run(rehearsal.lake, at(1), rehearsal.instance, None)
        assert asked(found) == [f"{left}/preparing/0/{attempt}"]
        assert not drive(rehearsal, monkeypatch, 1).success
        tags = (found.run_requests or [])[0].tags
        fail_run(rehearsal.instance, SWITCH_JOB, tags, StateError("rows are missing"))
    assert f"3 runs did not advance the switch to generation {left}" in said(
        request_switch_run(rehearsal.lake, at(1), rehearsal.instance, None)
    )
    assert asked(request_switch_run(rehearsal.lake, at(30), rehearsal.instance, None)) == [f"{left}/aborted/0/1"]
    assert drive(rehearsal, monkeypatch, 30).success
    assert switches.find_switch(rehearsal.lake, left).phase is SwitchPhase.ABORTED


def test_a_run_that_is_under_way_is_not_doubled(rehearsal: Rehearsal, left: str) -> None:
    """Two would do no harm and no good."""
    run = rehearsal.instance.create_run_for_job(defs.resolve_job_def(SWITCH_JOB), status=DagsterRunStatus.STARTED)
    assert said(request_switch_run(rehearsal.lake, at(1), rehearsal.instance, None)) == (
        f"run {run.run_id} is in progress, to advance the switch to generation {left}"
    )


def test_without_switches_nothing_is_asked_and_nothing_amiss(rehearsal: Rehearsal, tmp_path: Path) -> None:
    """As it is unless they are turned on; the sensor itself, on this home."""
    resources = {"home": HomeResource(), "clock": ClockResource()}
    with build_sensor_context(instance=rehearsal.instance, resources=resources) as context:
        found = unfinished_switches(context)
    assert isinstance(found, SensorResult)
    assert said(found) == "every switch is finished"
    told = checked(rehearsal)
    assert {each.description for each in told.values()} == {"nothing was checked: there is no switch"}
    assert all(each.passed for each in told.values())


def test_a_violation_fails_its_check(rehearsal: Rehearsal, left: str) -> None:
    """A switch that is committed and was not entered."""
    switch.advance_switch(rehearsal.lake, at(1), TWO_PHASE, left, "a test")
    told = checked(rehearsal)
    assert [name for name, each in told.items() if not each.passed] == ["switch_has_its_generation"]
    assert "is committed and not in the ledger yet" in (told["switch_has_its_generation"].description or "")
