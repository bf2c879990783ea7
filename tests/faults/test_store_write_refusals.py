"""Writes that a store refuses print one line without library output, and change no existing data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import run
from support.nodes import node_text
from support.store.s3 import S3, SECRET

from cdc_platform.delta import Lake, verify_tables
from cdc_platform.errors import NotLetIn, PlatformError, Unavailable
from cdc_platform.storage import leases, object_store
from cdc_platform.tables import Table, column

COUNTS = Table("ks", "counts", pa.schema([column("k", pa.int64(), ""), column("v", pa.int64(), "")]), ("k",), "")
NOT_LET_IN = "does not respond like an object store (403 Forbidden)"
PANIC = re.compile(
    r"\n?thread '[^'\n]*' (?:\(\d+\) )?panicked at [^\n]*\n[^\n]*\n"
    r"(?:stack backtrace:\n(?: ++(?:\d++:|at )[^\n]*+\n)*+)?(?:note: [^\n]*\n)?"
)
"""What Rust prints when a thread of deltalake's writer panics over a refused file."""


def counts(*numbers: int) -> pa.Table:
    """Return rows of the table."""
    return pa.table({"k": numbers, "v": numbers}, schema=COUNTS.schema)


@pytest.fixture
def home(s3: S3, tmp_path: Path) -> str:
    """Create a home in which a node has joined, with tables that a check and an operator write to."""
    address = f"{s3.bucket()}/h"
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    for words in (("bootstrap", tmp_path / "node1.json", "--run"), ("check",), ("tables", "add", "ks.t", "--ttl", "0")):
        done = run("--home", address, *words)
        assert done.exit_code == 0, done
    return address


def run_in_process(home: str, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program in its own process; return its result, with Rust's panic messages removed from standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "cdc_platform", "--home", home, *words],
        env=os.environ | environment | {"RUST_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    done.stderr = PANIC.sub("", done.stderr)
    return done


def test_home_is_readable_without_write_access(s3: S3, home: str) -> None:
    """Without write access commands that only read succeed, a check warns once, and a write is refused in one line."""
    for door, message in (("readonly", NOT_LET_IN), ("plain", "no space left on ")):
        s3.has_room(0 if door == "plain" else None)
        try:
            looked, checked, added = (
                run_in_process(home, s3.environment(door), *words)
                for words in (("generations",), ("check",), ("tables", "add", "ks.u", "--ttl", "0"))
            )
        finally:
            s3.has_room(None)
        assert (looked.returncode, looked.stderr) == (0, "")
        assert (checked.returncode, checked.stderr.count("\n"), message in checked.stderr) == (0, 1, True), (
            checked.stderr
        )
        assert checked.stderr.startswith("warning: the results could not be stored")
        assert (added.returncode, added.stderr.count("\n"), message in added.stderr) == (2, 1, True), added.stderr
        assert "\x1b" not in checked.stderr + added.stderr
    listed = run("--home", home, "tables", "--json")
    assert ("ks.t" in listed.stdout, "ks.u" in listed.stdout) == (True, False), listed


@pytest.mark.grid("commits to a full store", 1)
@pytest.mark.parametrize("writes", [*range(1, 24, 2)])
def test_store_fills_up_during_a_join(
    s3: S3, home: str, tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join whose store fills up in the middle is refused in one line and can be run again."""
    (tmp_path / "node2.json").write_text(node_text(2, 4, 2), encoding="utf-8")
    s3.has_room(writes)
    try:
        stopped = run_in_process(home, {}, "bootstrap", str(tmp_path / "node2.json"), "--run")
    finally:
        s3.has_room(None)
    assert (stopped.returncode, stopped.stderr.count("\n")) == (2, 1), stopped.stderr
    assert "no space left on " in stopped.stderr
    monkeypatch.setattr(leases, "STALE_SECONDS", 1.0)  # the expiry of the lock that the full store could not release
    assert run("--home", home, "bootstrap", tmp_path / "node2.json", "--run").exit_code == 0


@pytest.mark.parametrize("door", ["readonly", "full", "expired"])
def test_refused_write_is_reported_in_one_line(
    s3: S3, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], door: str
) -> None:
    """A refused write of an established writer names the table once, without colours, addresses or secrets."""
    monkeypatch.setattr(object_store, "_RETRIES", 1)
    lake = Lake(f"{s3.bucket()}/home/lake")
    lake.merge(COUNTS, counts(1), update=False)
    if door == "full":
        s3.has_room(0)
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment(door)["AWS_ENDPOINT_URL"])
    try:
        with pytest.raises(PlatformError) as error:
            Lake(str(lake.location)).merge(COUNTS, counts(2), update=False)
    finally:
        s3.has_room(None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment()["AWS_ENDPOINT_URL"])
    assert type(error.value) is (Unavailable if door == "full" else NotLetIn)
    assert ("no space left on" if door == "full" else NOT_LET_IN) in str(error.value)
    assert [word for word in ("\x1b", "\n", "http:", "Error performing", SECRET) if word in str(error.value)] == []
    assert PANIC.sub("", capfd.readouterr().err) == ""
    assert Lake(str(lake.location)).read(COUNTS)["k"].to_pylist() == [1]
    assert [verification.damage + verification.unexpected for verification in verify_tables(lake, deep=True)] == [[]]
