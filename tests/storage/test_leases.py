"""What one process has in a store: refused to others while it is put anew, taken over when it is not."""

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
_IN_TURN = """
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
    """Where a lease is, in a bucket of its own."""
    found = parse_path(f"{s3.bucket()}/home/up.lease.json")
    assert isinstance(found, ObjectStorePath)
    return found


@pytest.fixture
def holder(place: ObjectStorePath) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lease, and puts it anew twice a second."""
    with running(_HOLDER, str(place), "0.5") as process:
        yield process


def is_free(place: StoragePath) -> bool:
    """Whether the next one would have it at once; it is there, and says so."""
    return json.loads(place.read())["id"] == ""


@contextmanager
def running(program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of a program that has said that it has what it holds; it is killed in the end."""
    command, pipe = [sys.executable, "-c", program, *words], subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@contextmanager
def held(place: ObjectStorePath) -> Iterator[leases.StoreLock]:
    """Hold a lock that nobody else has."""
    lock = leases.StoreLock(place)
    assert lock.try_acquire()
    yield lock
    lock.release()


def test_a_held_lease_is_refused_and_later_released(
    place: ObjectStorePath, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where it changes, with the holder's name; when that one ends well, without a wait."""
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


def test_the_lease_of_a_killed_process_is_taken_over(
    place: ObjectStorePath, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it is stale, and by one of those who wait."""
    monkeypatch.setattr(leases, "STALE_SECONDS", 3.0)
    holder.kill()
    holder.wait(30)
    began = time.monotonic()
    with leases.hold_store_lock(place, "home is up"):
        assert time.monotonic() - began >= 3
        assert not leases.StoreLock(place).try_acquire()


def test_a_lease_that_goes_to_another_is_known_to_be_lost(
    place: ObjectStorePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its keeper's next look, with who has it; the other's is not taken away at the end."""
    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.2)
    with held(place) as lease:
        lease.assert_held("home is up")
        seen = place.stat()
        assert seen is not None
        assert place.replace(b'{"id": "another", "number": 0, "who": "7 on another"}', seen.mark)
        await_true(lambda: lease.is_lost, 30, "its keeper's look")
        with pytest.raises(LockLost, match=r"^home is up elsewhere now \(process 7 on another\)") as lost:
            lease.assert_held("home is up")
        assert lost.value.exit_code == 1
    assert b"another" in place.read()


def test_a_lock_that_was_taken_over_fails_at_release(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped in it goes on to the block's end, and fails there; the other's turn is its own."""
    monkeypatch.setattr(leases, "STALE_SECONDS", 2.0)
    lake = Lake(f"{s3.bucket()}/home/lake")
    with running(_IN_TURN, str(lake.location)) as first:
        first.send_signal(signal.SIGSTOP)
        with locks.lake_lock(lake, "joins"):
            first.send_signal(signal.SIGCONT)
            _, said = first.communicate("\n", timeout=60)
            assert (first.returncode, "ConflictError: another process has taken over the lock joins" in said) == (
                1,
                True,
            )
            assert not is_free(lake.location.folder / ".lake.turns/joins")
    assert is_free(lake.location.folder / ".lake.turns/joins")


@pytest.mark.parametrize("takers", [0, 1, 3])
def test_one_that_was_given_back_is_not_lost(
    place: ObjectStorePath, takers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the store denies it, and whoever has had it meanwhile; nothing is done to the one who has it then."""
    replace, denied = ObjectStorePath.replace, list[bytes]()

    def denying(self: ObjectStorePath, content: bytes, mark: str) -> str | None:
        done = replace(self, content, mark)
        if denied or json.loads(content)["id"]:
            return done
        denied.append(content)
        for _ in range(takers):
            with held(place):
                pass
        assert last.try_acquire()
        return None

    last = leases.StoreLock(place)
    monkeypatch.setattr(ObjectStorePath, "replace", denying)
    with held(place) as lease:
        pass
    assert denied
    assert not lease.is_lost
    assert not leases.StoreLock(place).try_acquire()
    last.release()
    assert is_free(place)
    assert not last.is_lost


def test_a_lease_whose_file_was_removed_can_be_acquired(place: ObjectStorePath) -> None:
    """Who had it says that it is lost; the next one has a new one."""
    with held(place) as lease:
        place.remove()
    assert lease.is_lost
    with held(place) as again:
        pass
    assert not again.is_lost
