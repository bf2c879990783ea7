"""The sensors of alerts: a real receiver gets failed runs, the reports of `status`, and the resolution of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    DagsterRun,
    DagsterRunStatus,
    RunStatusSensorContext,
    SensorResult,
    build_run_status_sensor_context,
    build_sensor_context,
)
from dagster._core.events import DagsterEvent, DagsterEventType
from support.failed_runs import fail_run
from support.receiver import Receiver, receiving
from support.worlds.rehearsal import QUIET, Rehearsal, node_config

from cdc_platform import errors
from cdc_platform.alerts import read_open_alerts
from cdc_platform.clock import Clock, Microseconds, format_us
from cdc_platform.dagster_home import CLOCK_VARIABLE
from cdc_platform.definitions import defs
from cdc_platform.delta import TaskRunner
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import JoinRequest, inbox
from cdc_platform.reporting import read_home_status
from cdc_platform.settings import Settings
from cdc_platform.tables import NODES
from cdc_platform_assets.alerts import (
    INBOX_CHECK,
    LONG_OUTAGE_ATTEMPTS,
    alerts,
    check_inbox_head,
    failed_runs,
    judge_inbox_head,
    recovered_runs,
)
from cdc_platform_assets.join.inbox import JOIN_JOB
from cdc_platform_assets.partitions import GENERATIONS_NAME
from cdc_platform_assets.run_requests import ATTEMPT_TAG
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

DISK_FULL = errors.disk_full_error("/lake")


@pytest.fixture
def home(rehearsal: Rehearsal, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> HomeLocation:
    """Return the home of the rehearsal, whose alerts go to the receiver."""
    monkeypatch.setenv("HOOK_URL", f"{receiver.url}/geheim")
    home = open_home_location()
    (home.path / "settings.toml").write_text('[alerts]\nwebhook_env = "HOOK_URL"\n', encoding="utf-8")
    return open_home_location(home.path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Start a server that records posted messages."""
    with receiving() as started:
        yield started


def run_context(rehearsal: Rehearsal, run: DagsterRun, name: str, kind: DagsterEventType) -> RunStatusSensorContext:
    """Return the context of a sensor that sees this run end."""
    return build_run_status_sensor_context(
        sensor_name=name,
        dagster_event=DagsterEvent(kind.value, run.job_name),
        dagster_instance=rehearsal.instance,
        dagster_run=run,
        resources={"home": HomeResource(), "clock": ClockResource()},
    )


def fail_join(rehearsal: Rehearsal, error: BaseException | None, partition: str = "p", attempt: int = 1) -> DagsterRun:
    """Create a failed join and let the sensor see it."""
    tags = {"dagster/partition": partition, ATTEMPT_TAG: str(attempt)}
    run = fail_run(rehearsal.instance, JOIN_JOB, tags, error)
    with run_context(rehearsal, run, "failed_runs", DagsterEventType.RUN_FAILURE).for_run_failure() as context:
        failed_runs(context)
    return run


def tick(rehearsal: Rehearsal, cursor: str | None = None) -> SensorResult:
    """Run one tick of the sensor `alerts`."""
    resources = {"home": HomeResource(), "clock": ClockResource()}
    with build_sensor_context(instance=rehearsal.instance, cursor=cursor, resources=resources) as context:
        result = alerts(context)
    assert isinstance(result, SensorResult)
    return result


def received_alerts(receiver: Receiver) -> list[tuple[str, str, str]]:
    """Return what arrived as (key, status, level)."""
    return [(message["key"], message["status"], message["level"]) for message in receiver.posted]


def test_failures_of_a_partition_are_one_alert_until_it_succeeds(
    rehearsal: Rehearsal, home: HomeLocation, receiver: Receiver
) -> None:
    """A long outage becomes an error; the message has the reason and the command, and no secret."""
    first = fail_join(rehearsal, DISK_FULL)
    for attempt in range(2, LONG_OUTAGE_ATTEMPTS + 2):
        fail_join(rehearsal, DISK_FULL, attempt=attempt)
    key = "run/join/p"
    assert received_alerts(receiver) == [(key, "open", "warning"), (key, "open", "error")]
    message = receiver.posted[0]["message"]
    assert message.startswith(f"run {first.run_id} of job join of p failed: no space left on /lake; free some")
    assert message.endswith("it is repeated until it succeeds")
    assert receiver.posted[0]["command"] == f"cdc-platform bootstrap --list --home {home.path}"
    succeeded = rehearsal.instance.create_run_for_job(
        defs.resolve_job_def(JOIN_JOB), tags={"dagster/partition": "p"}, status=DagsterRunStatus.SUCCESS
    )
    for _ in range(2):
        with run_context(rehearsal, succeeded, "recovered_runs", DagsterEventType.RUN_SUCCESS) as context:
            recovered_runs(context)
    assert received_alerts(receiver)[2:] == [(key, "resolved", "error")]
    assert "geheim" not in json.dumps(receiver.posted)


def test_waiting_for_the_first_generation_is_no_alert(
    rehearsal: Rehearsal, home: HomeLocation, receiver: Receiver
) -> None:
    """Until the first generation starts `status` has an error, but it ends at a known time without anyone's help."""
    queued = inbox.queue_join(rehearsal.lake, Clock(), JoinRequest.model_validate(node_config(1)))
    run_join(TaskRunner.alone(), rehearsal.lake, Clock(), Settings(), queued.generation_id)
    status = read_home_status(rehearsal.lake, Clock(), Settings())
    assert [alert.code for alert in status.alerts if alert.level == "error"] == ["nothing-operates"]
    tick(rehearsal)
    assert received_alerts(receiver) == []


@pytest.mark.parametrize(
    ("error", "level", "end"),
    [
        (None, "warning", "its worker ended or could not start; it is repeated until it succeeds"),
        (MemoryError(), "warning", "it is repeated until it succeeds"),
        (errors.InputError("shard_count is 0"), "error", "shard_count is 0; read the run's log in the UI"),
        (ZeroDivisionError("x"), "error", "read the run's log in the UI"),
    ],
)
def test_the_level_depends_on_the_recovery(
    error: BaseException | None, level: str, end: str, rehearsal: Rehearsal, home: HomeLocation, receiver: Receiver
) -> None:
    """An outage is a warning at first; a failure that needs a person is an error."""
    fail_join(rehearsal, error)
    ((_, _, actual),) = received_alerts(receiver)
    assert actual == level
    assert receiver.posted[0]["message"].endswith(end)


def test_an_alert_of_a_withdrawn_join_is_resolved(rehearsal: Rehearsal, home: HomeLocation, receiver: Receiver) -> None:
    """The alert is resolved, since no run of that partition will succeed any more."""
    rehearsal.instance.add_dynamic_partitions(GENERATIONS_NAME, ["stays"])
    for partition in ("gone", "stays"):
        fail_join(rehearsal, DISK_FULL, partition)
    tick(rehearsal)
    keys = [alert["key"] for alert in read_open_alerts(home)]
    assert ("run/join/gone" in keys, "run/join/stays" in keys) == (False, True)


def test_the_age_of_the_inboxs_head_warns_and_then_fails(
    rehearsal: Rehearsal, home: HomeLocation, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stopped clock, each change of the result is one event and one message; a tick without a change is none."""
    monkeypatch.setenv(CLOCK_VARIABLE, format_us(Clock().now_us()))
    lake, settings = rehearsal.lake, Settings()
    assert judge_inbox_head(lake, Clock(), settings).description == "the inbox is empty"
    inbox.queue_join(lake, Clock(), JoinRequest.model_validate(node_config(1)))
    queued_us = Clock().now_us()
    cursor, evaluations = None, []
    for minutes in (1, 2, 16, 20, 61, 70):
        monkeypatch.setenv(CLOCK_VARIABLE, format_us(Microseconds(queued_us + minutes * 60_000_000)))
        result = tick(rehearsal, cursor)
        cursor = result.cursor
        evaluations.append([(e.passed, e.severity) for e in result.asset_events if isinstance(e, AssetCheckEvaluation)])
    error, warn = AssetCheckSeverity.ERROR, AssetCheckSeverity.WARN
    assert evaluations == [[(True, warn)], [], [(False, warn)], [], [(False, error)], []]
    heads = [entry for entry in received_alerts(receiver) if entry[0] == "inbox/head"]
    assert heads == [("inbox/head", "open", "warning"), ("inbox/head", "open", "error")]
    inbox.withdraw_event(lake, Clock(), inbox.read_pending_events(lake)[0].event_id)
    tick(rehearsal, cursor)
    assert received_alerts(receiver)[-1] == ("inbox/head", "resolved", "error")


def test_the_check_can_run_by_itself(rehearsal: Rehearsal, home: HomeLocation) -> None:
    """The check can run by itself, as it does for the inbox in the UI."""
    result = (
        defs.resolve_implicit_global_asset_job_def()
        .get_subset(asset_check_selection=set(check_inbox_head.check_keys), asset_selection=set())
        .execute_in_process(run_config=QUIET, instance=rehearsal.instance)
    )
    ((passed, name),) = [
        (evaluation.passed, evaluation.check_name) for evaluation in result.get_asset_check_evaluations()
    ]
    assert (passed, name) == (True, INBOX_CHECK)


def test_reports_of_status_are_alerts_until_they_end(
    rehearsal: Rehearsal, home: HomeLocation, receiver: Receiver
) -> None:
    """Errors and warnings are alerts with their own command; notices are not, and nothing is sent twice."""
    from support.homes.v1_tables import nodes

    from cdc_platform.metastore import write_nodes

    tick(rehearsal)
    assert received_alerts(receiver) == [], "an empty home has a notice alone"
    write_nodes(rehearsal.lake, nodes(2))
    log = Path(rehearsal.lake.path(NODES)) / "_delta_log" / f"{0:020}.json"
    content = log.read_bytes()
    log.write_text("{", encoding="utf-8")
    for _ in range(3):
        tick(rehearsal)
    assert received_alerts(receiver) == [("status/table-unreadable", "open", "error")]
    assert receiver.posted[0]["command"] == f"cdc-platform check --home {home.path}"
    log.write_bytes(content)
    tick(rehearsal)
    assert received_alerts(receiver)[1:] == [("status/table-unreadable", "resolved", "error")]


def test_a_home_that_cannot_be_read_is_an_alert(
    rehearsal: Rehearsal, home: HomeLocation, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick still delivers the alert, and the first successful read resolves it."""
    from cdc_platform_assets import alerts as module

    def raise_unavailable(*_: object) -> None:
        raise errors.Unavailable("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(module, "sync_home_alerts", raise_unavailable)
        tick(rehearsal)
    tick(rehearsal)
    assert [entry for entry in received_alerts(receiver) if entry[0] == "home"] == [
        ("home", "open", "error"),
        ("home", "resolved", "error"),
    ]
