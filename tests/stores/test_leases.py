"""What one process has in a store: refused to others while it is put anew, taken over when it is not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from support.store.s3 import S3

from cdc_platform.errors import StateError
from cdc_platform.lake import leases
from cdc_platform.places import Stored, place_of

_HOLDER = """
import sys
from cdc_platform.lake import leases
from cdc_platform.places import place_of
leases.RENEWED_SECONDS = float(sys.argv[2])
with leases.held_alone(place_of(sys.argv[1]), "home is up"):
    print("held", flush=True)
    sys.stdin.read()
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def place(s3: S3) -> Stored:
    """Where a lease is, in a bucket of its own."""
    found = place_of(f"{s3.bucket()}/home/up.lease.json")
    assert isinstance(found, Stored)
    return found


@pytest.fixture
def holder(place: Stored) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lease, and puts it anew twice a second."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(place), "0.5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait(30)
    process.stdout.close()


def test_a_lease_that_is_kept_is_refused_and_then_given_back(
    place: Stored, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where it changes, with the holder's name; when that one ends well, without a wait."""
    with (
        pytest.raises(StateError, match=rf"^home is up already .*\(process {holder.pid} on "),
        leases.held_alone(place, "home is up"),
    ):
        raise AssertionError("two have it")
    assert holder.stdin is not None
    holder.stdin.close()
    assert holder.wait(30) == 0
    with leases.held_alone(place, "home is up"):
        assert place.seen() is not None
    assert place.seen() is None


def test_a_lease_of_one_that_was_killed_is_taken_over(
    place: Stored, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it is stale, and by one of those who wait."""
    monkeypatch.setattr(leases, "STALE_SECONDS", 3.0)
    holder.kill()
    holder.wait(30)
    began = time.monotonic()
    with leases.held_alone(place, "home is up"):
        assert time.monotonic() - began >= 3
        with leases.held(place) as again:
            assert not again
