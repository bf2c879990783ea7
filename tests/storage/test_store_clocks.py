"""A machine whose clock is an hour off works on a home in a store: its results, and whose clock each rule uses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.command_line import Answer, run
from support.nodes import node_text
from support.processes.clocks import COMPILERS, clock_off_by
from support.store.s3 import S3

from cdc_platform.clock import us_from_ms
from cdc_platform.delta import VERSION_RETENTION, Lake
from cdc_platform.errors import StateError
from cdc_platform.storage import ObjectStorePath, leases, parse_path
from cdc_platform.tables import GENERATION_TIMESTAMPS

pytestmark = pytest.mark.skipif(not COMPILERS, reason="a clock that is off is made by a C compiler (cc)")
AHEAD_SECONDS = 3600
_HOLDER = """
import sys
from cdc_platform.storage import leases
from cdc_platform.storage.resolve import parse_path
leases.RENEWAL_SECONDS = 0.5
with leases.hold_store_lock(parse_path(sys.argv[1]), "home is up"):
    print("held", flush=True)
    sys.stdin.read()
"""
Ahead = Callable[..., Answer]


@pytest.fixture
def environment(s3: S3, tmp_path: Path) -> dict[str, str]:
    """The environment of a process on another machine with a clock an hour ahead, whose requests the store accepts."""
    state = tmp_path / "another"
    return os.environ | s3.environment() | clock_off_by(AHEAD_SECONDS, tmp_path) | {"CDC_PLATFORM_STATE": str(state)}


@pytest.fixture
def ahead(environment: dict[str, str]) -> Ahead:
    """Run a command there."""

    def run_ahead(*words: str | Path) -> Answer:
        command = [sys.executable, "-m", "cdc_platform", *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        return Answer(done.returncode, done.stdout, done.stderr)

    return run_ahead


def test_join_with_a_clock_ahead(s3: S3, ahead: Ahead, tmp_path: Path) -> None:
    """Checks pass and commits have its time; until then a join with a correct clock is refused in one line."""
    address = f"{s3.bucket()}/home"
    for number in (1, 2):
        (tmp_path / f"node{number}.json").write_text(node_text(number, 4, 2), encoding="utf-8")
    first = ahead("--home", address, "bootstrap", tmp_path / "node1.json", "--run")
    assert first.exit_code == 0, first
    check = run("--home", address, "check", "--deep")
    assert check.exit_code == 0, check
    at_ms = Lake(f"{address}/lake").commits(GENERATION_TIMESTAMPS)[0].at_ms
    assert at_ms is not None
    offset = us_from_ms(at_ms) / 1e6 - time.time()
    assert AHEAD_SECONDS - 300 < offset <= AHEAD_SECONDS
    second = run("--home", address, "bootstrap", tmp_path / "node2.json", "--run")
    assert (second.exit_code, second.stderr.count("\n"), "[clock]" in second.stderr) == (2, 1, True), second


def test_maintenance_uses_the_stores_time_and_its_own(s3: S3, ahead: Ahead, tmp_path: Path) -> None:
    """A clock ahead makes a file that is half an hour too young old enough; no other file is removed."""
    address = f"{s3.bucket()}/home"
    assert run("--home", address, "tables", "add", "ks.t", "--ttl", "60").exit_code == 0
    table = parse_path(f"{address}/lake/platform/cdc_tables")
    (tmp_path / "draft").write_bytes(b"PAR1")
    for name, age in (
        ("nearly", VERSION_RETENTION - timedelta(minutes=30)),
        ("young", VERSION_RETENTION - timedelta(hours=2)),
    ):
        (table / f"part-{name}.parquet").receive(tmp_path / "draft")
        s3.is_old(f"{table}/part-{name}.parquet", age.total_seconds())
    before = set(table.names())
    assert run("--home", address, "home", "maintain").exit_code == 0
    assert set(table.names()) == before
    done = ahead("--home", address, "home", "maintain")
    assert done.exit_code == 0, done
    assert before - set(table.names()) == {"part-nearly.parquet"}


def test_leases_compare_no_clocks(s3: S3, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease renewed with a clock an hour ahead is refused, and taken over once it is stale."""
    lease = parse_path(f"{s3.bucket()}/home/up.lease.json")
    assert isinstance(lease, ObjectStorePath)
    monkeypatch.setattr(leases, "STALE_SECONDS", 3.0)
    command, pipe = [sys.executable, "-c", _HOLDER, str(lease)], subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateError, match=r"^home is up already "), leases.hold_store_lock(lease, "home is up"):
            raise AssertionError("two have it")
        holder.kill()
        holder.wait(30)
    start = time.monotonic()
    with leases.hold_store_lock(lease, "home is up"):
        assert 3 <= time.monotonic() - start < AHEAD_SECONDS
