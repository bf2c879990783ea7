"""The inbox in Dagster: queueing of nodes, refusals, and requests of the sensor. No Spark anywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from dagster import (
    DagsterEventType,
    DagsterInvalidConfigError,
    DagsterRun,
    DagsterRunStatus,
    SensorResult,
    build_sensor_context,
)
from support.failed_runs import advance_retries, fail_run
from support.worlds.rehearsal import Rehearsal, node_config

from cdc_platform.clock import HOUR_US, Clock
from cdc_platform.definitions import defs
from cdc_platform.delta import JOIN_COMMANDS_LOCK, shared_lock
from cdc_platform.errors import StateError
from cdc_platform.home_location import HOME_VARIABLE
from cdc_platform.metastore import JoinRequest, PendingEvent, inbox
from cdc_platform_assets.join.inbox import JOIN_JOB, MAX_NEW_PARTITIONS, waiting_joins
from cdc_platform_assets.partitions import GENERATIONS_NAME
from cdc_platform_assets.run_requests import MAX_ATTEMPTS
from cdc_platform_resources.home import HomeResource

ROOT = Path(__file__).resolve().parents[2]


def tick(rehearsal: Rehearsal, cursor: str | None = None) -> SensorResult:
    """Run one tick of the sensor and return its requests, without executing them."""
    resources = {"home": HomeResource()}
    with build_sensor_context(instance=rehearsal.instance, cursor=cursor, resources=resources) as context:
        result = waiting_joins(context)
    assert isinstance(result, SensorResult)
    return result


def enqueue(rehearsal: Rehearsal, number: int) -> str:
    """Queue a node as the command line does, without adding its partition."""
    inbox.queue_join(rehearsal.lake, Clock(), JoinRequest.model_validate(node_config(number)))
    return inbox.read_pending_events(rehearsal.lake)[-1].generation_id


def create_run(rehearsal: Rehearsal, generation_id: str, status: DagsterRunStatus) -> DagsterRun:
    """Create a run of this generation's join with this status."""
    return rehearsal.instance.create_run_for_job(
        defs.resolve_job_def(JOIN_JOB), tags={"dagster/partition": rehearsal.partition(generation_id)}, status=status
    )


def create_failed_run(rehearsal: Rehearsal, generation_id: str) -> DagsterRun:
    """Create a run of this generation's join that failed because of the state of the tables."""
    tags = {"dagster/partition": rehearsal.partition(generation_id)}
    return fail_run(rehearsal.instance, JOIN_JOB, tags, StateError("rows are missing"))


def skip_message(result: SensorResult) -> str:
    """Return why a tick requests no run."""
    assert not result.run_requests
    return result.skip_reason.skip_message or "" if result.skip_reason else ""


def test_a_node_is_queued_once(rehearsal: Rehearsal) -> None:
    """Queueing the same config twice creates one event."""
    for config in (node_config(1), node_config(1)):
        assert rehearsal.bootstrap(config).success
    waiting = inbox.read_pending_events(rehearsal.lake)
    assert [join.host_id for join in waiting] == [str(uuid.UUID(int=1))]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("host_id", "", "'' is not a UUID; write it as daf4e510-781a-4f03-aaae-27df6ee7796f"),
        ("shard_count", 0, "0 is no whole number from 1 to 4096"),
        ("address", "nowhere!", "'nowhere!' is no address"),
        ("rack", "\x1b[2J", r"'\x1b[2J' is no name"),
    ],
)
def test_a_bad_node_is_refused_in_one_line(rehearsal: Rehearsal, field: str, value: object, says: str) -> None:
    """The launchpad's config is validated like a file, before a run exists."""
    with pytest.raises(DagsterInvalidConfigError, match=f"the run's config: {field}: .*{re.escape(says)}") as refused:
        rehearsal.bootstrap(node_config(1) | {field: value})
    assert str(refused.value).count("\n") == 0
    assert rehearsal.instance.get_runs() == []
    assert inbox.read_pending_events(rehearsal.lake) == []


def test_an_empty_inbox_requests_nothing(rehearsal: Rehearsal) -> None:
    """An empty inbox requests nothing, and the next tick recognizes that nothing has changed."""
    first = tick(rehearsal)
    assert skip_message(first) == "the inbox is empty"
    assert skip_message(tick(rehearsal, first.cursor)) == "nothing has changed since the inbox was empty"


def test_the_head_of_the_queue_is_requested(rehearsal: Rehearsal) -> None:
    """Every event gets its partition, and only the first of them a run."""
    generations = [enqueue(rehearsal, number) for number in (1, 2, 3)]
    result = tick(rehearsal)
    partitions = [rehearsal.partition(generation) for generation in generations]
    assert [list(request.partition_keys) for request in result.dynamic_partitions_requests or []] == [partitions]
    assert [request.partition_key for request in result.run_requests or []] == partitions[:1]
    assert [request.tags["cdc_platform/node"] for request in result.run_requests or []] == ["10.0.0.1"]
    assert [request.run_key for request in result.run_requests or []] == [f"{generations[0]}/1"]


def test_a_repeated_event_is_no_second_request(rehearsal: Rehearsal) -> None:
    """An event that is queued again, or seen by two ticks, has one partition and one run key."""
    generation_id = enqueue(rehearsal, 1)
    first = tick(rehearsal)
    assert rehearsal.bootstrap(node_config(1)).success
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == [rehearsal.partition(generation_id)]
    second = tick(rehearsal)
    assert second.dynamic_partitions_requests in (None, [])
    assert [request.run_key for request in second.run_requests or []] == [
        request.run_key for request in first.run_requests or []
    ]


def test_a_lost_cursor_loses_nothing(rehearsal: Rehearsal) -> None:
    """A tick without a cursor, or with an earlier one, requests what is unfinished."""
    earlier_cursor = tick(rehearsal).cursor
    assert earlier_cursor is not None
    generation_id = enqueue(rehearsal, 1)
    for cursor in (None, earlier_cursor, "nonsense"):
        requested = [request.partition_key for request in tick(rehearsal, cursor).run_requests or []]
        assert requested == [rehearsal.partition(generation_id)]


@pytest.mark.parametrize("status", [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])
def test_no_second_run_during_the_first(rehearsal: Rehearsal, status: DagsterRunStatus) -> None:
    """While a run of the join is in progress, whatever started it, no other is requested."""
    run = create_run(rehearsal, enqueue(rehearsal, 1), status)
    assert run.run_id in skip_message(tick(rehearsal))


def test_a_failed_run_is_requested_again(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt has its own run key; after the last one the message names the remedy."""
    advance_retries(monkeypatch, HOUR_US)
    generation_id = enqueue(rehearsal, 1)
    last_run = None
    for attempt in range(1, MAX_ATTEMPTS + 1):
        requests = tick(rehearsal).run_requests or []
        assert [request.run_key for request in requests] == [f"{generation_id}/{attempt}"]
        assert requests[0].tags["dagster/max_retries"] == "0"
        last_run = create_failed_run(rehearsal, generation_id)
    message = skip_message(tick(rehearsal))
    assert last_run is not None
    assert last_run.run_id in message
    assert f"bootstrap --withdraw {inbox.read_pending_events(rehearsal.lake)[0].event_id}" in message


def test_a_withdrawn_event_unblocks_the_next_one(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Withdrawing the event that cannot join frees those behind it."""
    advance_retries(monkeypatch, HOUR_US)
    first, second = enqueue(rehearsal, 1), enqueue(rehearsal, 2)
    for _ in range(MAX_ATTEMPTS):
        create_failed_run(rehearsal, first)
    stuck: PendingEvent = inbox.read_pending_events(rehearsal.lake)[0]
    inbox.withdraw_event(rehearsal.lake, Clock(), stuck.event_id)
    requested = [request.partition_key for request in tick(rehearsal).run_requests or []]
    assert requested == [rehearsal.partition(second)]


def test_joins_of_a_running_command_are_left_to_it(rehearsal: Rehearsal) -> None:
    """The sensor requests no join while a command runs joins; after its end or kill it requests the waiting one."""
    generation_id = enqueue(rehearsal, 1)
    with shared_lock(rehearsal.lake, JOIN_COMMANDS_LOCK):
        assert skip_message(tick(rehearsal)).startswith("a command is running joins in this home")
        with shared_lock(rehearsal.lake, JOIN_COMMANDS_LOCK):
            assert skip_message(tick(rehearsal)).startswith("a command is running joins in this home")
    requested = [request.partition_key for request in tick(rehearsal).run_requests or []]
    assert requested == [rehearsal.partition(generation_id)]


def test_the_launchpads_example_needs_a_host_id(rehearsal: Rehearsal) -> None:
    """The example sets every field but the host_id; with a host_id alone the node is queued."""
    with pytest.raises(DagsterInvalidConfigError, match='Missing required config entry "host_id"'):
        rehearsal.bootstrap({"address": "10.0.0.4"})
    assert inbox.read_pending_events(rehearsal.lake) == []
    assert rehearsal.bootstrap({"host_id": str(uuid.UUID(int=7))}).success
    assert [join.host_id for join in inbox.read_pending_events(rehearsal.lake)] == [str(uuid.UUID(int=7))]


def test_a_join_without_a_partition_fails_in_one_line(rehearsal: Rehearsal) -> None:
    """A run of a join's step without a partition names what to select."""
    enqueue(rehearsal, 1)
    result = defs.resolve_job_def(JOIN_JOB).execute_in_process(instance=rehearsal.instance, raise_on_error=False)
    assert not result.success
    failure = next(event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE)
    failure_data = failure.step_failure_data.user_failure_data
    assert failure_data is not None
    assert failure_data.description == (
        "generations need a partition: select one or several partitions of the asset, and launch the run again"
    )


_TEN_THOUSAND = """
import json, sys, uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
import pyarrow as pa
from cdc_platform_assets.join.inbox import request_join
from cdc_platform_assets.partitions import GENERATIONS_NAME
from cdc_platform.delta.lake import Lake
from cdc_platform.tables.nodes import BOOTSTRAP_EVENTS
from dagster import DagsterInstance

lake, start = Lake(sys.argv[1]), datetime(2026, 1, 1, tzinfo=UTC)
rows = [
    {
        "event_id": str(uuid.UUID(int=i)), "kind": "join", "host_id": str(uuid.UUID(int=i)), "address": "a",
        "datacenter": "d", "rack": "r", "tokens": [i], "shard_count": 1, "ignore_msb": 0, "features": [],
        "generation_id": str(uuid.UUID(int=20_000 - i)), "created_at": start + timedelta(seconds=i),
    }
    for i in range(1, 10_001)
]
lake.merge(BOOTSTRAP_EVENTS, pa.Table.from_pylist(rows, schema=BOOTSTRAP_EVENTS.schema), update=False)
added = []
with DagsterInstance.ephemeral() as instance:
    for _ in range(11):
        found = request_join(lake, instance, None)
        new = [key for request in found.dynamic_partitions_requests or [] for key in request.partition_keys]
        instance.add_dynamic_partitions(GENERATIONS_NAME, new)
        added.append(len(new))
    known = len(instance.get_dynamic_partitions(GENERATIONS_NAME))
children = Path(f"/proc/self/task/{__import__('os').getpid()}/children")
print(json.dumps({
    "added": added,
    "known": known,
    "asked": [request.partition_key for request in found.run_requests],
    "spark": sorted(name for name in ("pyspark", "py4j") if name in sys.modules),
    "children": children.read_text().split() if children.exists() else [],
}))
"""


@pytest.mark.long("10,000 events")
def test_ten_thousand_events(tmp_path: Path) -> None:
    """Ten thousand waiting events become partitions, one batch per tick, without Spark and without a process."""
    nowhere = {name: value for name, value in os.environ.items() if name not in {"PATH", "JAVA_HOME", HOME_VARIABLE}}
    completed = subprocess.run(
        [sys.executable, "-c", _TEN_THOUSAND, str(tmp_path)],
        env=nowhere | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout.splitlines()[-1])
    assert result == {
        "added": [MAX_NEW_PARTITIONS] * 10 + [0],
        "known": 10_000,
        "asked": ["1_a_00000000"],
        "spark": [],
        "children": [],
    }
