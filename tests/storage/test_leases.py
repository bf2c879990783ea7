"""A lease in a store is refused to other processes while its holder renews it, and taken over once it is stale."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.store.s3 import S3
from support.waiting import await_true

from cdc_platform.delta import Lake, locks
from cdc_platform.errors import StateError
from cdc_platform.storage import ObjectStorePath, StoragePath, leases, parse_path
from cdc_platform.storage.locks import LockLost

_HOLDER = """
import sys
from cdc_platform.storage import leases
from cdc_platform.storage.resolve import parse_path
leases.RENEWAL_SECONDS = float(sys.argv[2])
with leases.hold_store_lock(parse_path(sys.argv[1]), "home is up"):
    print("held", flush=True)
    sys.stdin.read()
"""
_LOCK_HOLDER = """
import sys
from cdc_platform.delta import locks
from cdc_platform.storage import leases
from cdc_platform.delta.lake import Lake
leases.RENEWAL_SECONDS = 0.5
with locks.lake_lock(Lake(sys.argv[1]), "joins"):
    print("held", flush=True)
    sys.stdin.readline()
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def place(s3: S3) -> ObjectStorePath:
    """The path of a lease, in a separate bucket."""
    path = parse_path(f"{s3.bucket()}/home/up.lease.json")
    assert isinstance(path, ObjectStorePath)
    return path


@pytest.fixture
def holder(place: ObjectStorePath) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lease and renews it twice a second."""
    with run_holder(_HOLDER, str(place), "0.5") as process:
        yield process


def is_free(lease: StoragePath) -> bool:
    """Return True if the lease exists and states that it is released."""
    return json.loads(lease.read())["id"] == ""


@contextmanager
def run_holder(program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program, wait until it has its lock, and kill it when the block exits."""
    command, pipe = [sys.executable, "-c", program, *words], subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@contextmanager
def hold_lock(path: ObjectStorePath) -> Iterator[leases.StoreLock]:
    """Hold a free lock."""
    lock = leases.StoreLock(path)
    assert lock.try_acquire()
    yield lock
    lock.release()


def test_held_lease_is_refused_and_later_released(
    place: ObjectStorePath, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal is immediate and names the holder; after a normal exit the lease is free without a wait."""
    with (
        pytest.raises(StateError, match=rf"^home is up already .*\(process {holder.pid} on "),
        leases.hold_store_lock(place, "home is up"),
    ):
        raise AssertionError("two have it")
    assert holder.stdin is not None
    holder.stdin.close()
    assert holder.wait(30) == 0
    with leases.hold_store_lock(place, "home is up"):
        assert not is_free(place)
    assert is_free(place)


def test_lease_of_a_killed_process_is_taken_over(
    place: ObjectStorePath, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting process takes over the lease, and only once it is stale."""
    monkeypatch.setattr(leases, "STALE_SECONDS", 3.0)
    holder.kill()
    holder.wait(30)
    start = time.monotonic()
    with leases.hold_store_lock(place, "home is up"):
        assert time.monotonic() - start >= 3
        assert not leases.StoreLock(place).try_acquire()


def test_lost_lease_is_detected(place: ObjectStorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next renewal detects it and names the new holder, whose lease is not released at the end."""
    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.2)
    with hold_lock(place) as lease:
        lease.assert_held("home is up")
        status = place.stat()
        assert status is not None
        assert place.replace(b'{"id": "another", "number": 0, "who": "7 on another"}', status.mark)
        await_true(lambda: lease.is_lost, 30, "its keeper's look")
        with pytest.raises(LockLost, match=r"^home is up elsewhere now \(process 7 on another\)") as lost:
            lease.assert_held("home is up")
        assert lost.value.exit_code == 1
    assert b"another" in place.read()


def test_lost_lock_fails_at_release(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process continues to the block's end and fails there; the other process still holds the lock."""
    monkeypatch.setattr(leases, "STALE_SECONDS", 2.0)
    lake = Lake(f"{s3.bucket()}/home/lake")
    with run_holder(_LOCK_HOLDER, str(lake.location)) as first:
        first.send_signal(signal.SIGSTOP)
        with locks.lake_lock(lake, "joins"):
            first.send_signal(signal.SIGCONT)
            _, stderr = first.communicate("\n", timeout=60)
            assert (first.returncode, "ConflictError: another process has taken over the lock joins" in stderr) == (
                1,
                True,
            )
            assert not is_free(lake.location.folder / ".lake.turns/joins")
    assert is_free(lake.location.folder / ".lake.turns/joins")


@pytest.mark.parametrize("takers", [0, 1, 3])
def test_released_lease_is_not_lost(place: ObjectStorePath, takers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store denies the release, later holders do not make it lost, and the current one holds it."""
    replace, denied = ObjectStorePath.replace, list[bytes]()

    def deny_release(self: ObjectStorePath, content: bytes, mark: str) -> str | None:
        done = replace(self, content, mark)
        if denied or json.loads(content)["id"]:
            return done
        denied.append(content)
        for _ in range(takers):
            with hold_lock(place):
                pass
        assert last.try_acquire()
        return None

    last = leases.StoreLock(place)
    monkeypatch.setattr(ObjectStorePath, "replace", deny_release)
    with hold_lock(place) as lease:
        pass
    assert denied
    assert not lease.is_lost
    assert not leases.StoreLock(place).try_acquire()
    last.release()
    assert is_free(place)
    assert not last.is_lost


def test_lease_with_a_removed_file_can_be_acquired(place: ObjectStorePath) -> None:
    """Its holder reports that it is lost; the next one gets a new lease."""
    with hold_lock(place) as lease:
        place.remove()
    assert lease.is_lost
    with hold_lock(place) as next_lease:
        pass
    assert not next_lease.is_lost
