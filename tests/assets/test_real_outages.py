"""Outages of the machine during a join: the sensor repeats it after a pause, until it succeeds without a person."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunRequest, RunsFilter
from support.failed_runs import advance_retries
from support.files.small_disk import small_disk
from support.store.s3 import S3
from support.worlds.rehearsal import QUIET, Rehearsal, node_config

from cdc_platform.clock import SECOND_US, Clock
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake
from cdc_platform.delta.tasks import IN_PROCESS_VARIABLE
from cdc_platform.home_location import HOME_VARIABLE
from cdc_platform.metastore import JoinRequest, inbox
from cdc_platform.retries import FIRST_PAUSE_US
from cdc_platform.spark_server import REMOTE_VARIABLE
from cdc_platform.timeline import Timeline
from cdc_platform_assets.failures import read_run_failure
from cdc_platform_assets.join.inbox import JOIN_JOB, request_join
from cdc_platform_assets.partitions import GENERATIONS_NAME

DISK_BYTES = 4 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system in a folder."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as folder:
        yield folder


@contextmanager
def full_disk(disk: Path) -> Iterator[None]:
    """Fill a file system up to 4 KiB."""
    usage = os.statvfs(disk)
    filler = disk / "filler"
    filler.write_bytes(b"\0" * (usage.f_bavail * usage.f_frsize - 4096))
    yield
    filler.unlink()


@contextmanager
def lost_store(s3: S3) -> Iterator[None]:
    """Let the address of the store answer only with errors."""
    s3.leads("first", "down")
    yield
    s3.leads("first", "plain")


@contextmanager
def lost_spark() -> Iterator[None]:
    """Make every task need a Spark server that does not listen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(IN_PROCESS_VARIABLE, "0")
        patched.setenv(REMOTE_VARIABLE, f"sc://127.0.0.1:{port}")
        yield


def assert_heals(home: str, outage: AbstractContextManager[None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run what the sensor requests for a queued node, first during the outage; return the message of that run."""
    monkeypatch.setenv(HOME_VARIABLE, home)
    lake = Lake(f"{home}/lake")
    inbox.queue_join(lake, Clock(), JoinRequest.model_validate(node_config(1)))
    with DagsterInstance.ephemeral() as instance:
        rehearsal = Rehearsal(instance, lake)
        request = tick(rehearsal)
        with outage:
            execute(rehearsal, request)
        (failed,) = instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.FAILURE]))
        failure = read_run_failure(instance, failed.run_id)
        assert failure.recovery == "outage", failure
        paused = request_join(lake, instance, None)
        assert not paused.run_requests
        advance_retries(monkeypatch, FIRST_PAUSE_US + SECOND_US)
        execute(rehearsal, tick(rehearsal))
        assert not inbox.read_pending_events(lake)
        (generation,) = Timeline.read(lake).known
        assert generation.time_ms
        assert not request_join(lake, instance, None).run_requests
    return failure.message


def tick(rehearsal: Rehearsal) -> RunRequest:
    """Add the partitions that a tick requests, and return its request for a run."""
    result = request_join(rehearsal.lake, rehearsal.instance, None)
    for added in result.dynamic_partitions_requests or []:
        rehearsal.instance.add_dynamic_partitions(GENERATIONS_NAME, list(added.partition_keys))
    (request,) = result.run_requests or []
    return request


def execute(rehearsal: Rehearsal, request: RunRequest) -> None:
    """Run a requested join with the tags of the request."""
    defs.resolve_job_def(JOIN_JOB).execute_in_process(
        run_config=QUIET,
        instance=rehearsal.instance,
        partition_key=request.partition_key,
        tags=request.tags,
        raise_on_error=False,
    )


def test_a_full_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails with the disk's error, and the join succeeds once there is space."""
    assert "disk" in assert_heals(str(disk / "home"), full_disk(disk), monkeypatch)


def test_a_store_that_answers_with_errors(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails after the requests' own retries, and the join succeeds once the store is back."""
    for name, value in s3.environment("first").items():
        monkeypatch.setenv(name, value)
    home = f"{s3.bucket()}/home"
    assert "503 Service Unavailable" in assert_heals(home, lost_store(s3), monkeypatch)


def test_a_spark_server_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails and names the server, and the join succeeds once Spark is not needed."""
    assert "SPARK_REMOTE" in assert_heals(str(tmp_path / "home"), lost_spark(), monkeypatch)
