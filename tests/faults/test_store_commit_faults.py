"""Concurrent writers in an unreliable store: one writer learns that its commit succeeded, and it is stored once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.store.s3 import S3

from cdc_platform.delta import Lake, TaskRows, TaskRunner, locks, verify_tables
from cdc_platform.errors import StateError
from cdc_platform.spark import frames
from cdc_platform.storage import ObjectStorePath, leases, write_check
from cdc_platform.tables import CONSUMERS, GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2, Table, column

TIME = datetime(2021, 11, 2, 19, 45, 26, 384000, tzinfo=UTC)
COUNTS = Table("ks", "counts", pa.schema([column("k", pa.int64(), ""), column("v", pa.int64(), "")]), ("k",), "")
WRITERS, ROUNDS = 3, 2
WAYS = 3
"""The number of ways in which the store reports a successful request as failed, in rotation."""


def counts(*pairs: tuple[int, int]) -> pa.Table:
    """Return rows of the table."""
    return pa.Table.from_pylist([{"k": k, "v": v} for k, v in pairs], schema=COUNTS.schema)


def append_number(lake: Lake, number: int) -> int:
    """Append a reader's window with one number, once."""
    expected = number or None
    return lake.append_once(COUNTS, counts((10 + number, 0)), {"reader": number + 1}, expected)


def replace_row(lake: Lake, number: int) -> int:
    """Replace a row computed from the version that all writers have read."""
    return lake.replace_once(COUNTS, counts((1, number + 1)), [("k", "=", 1)], VERSIONS[id(lake)])


VERSIONS: dict[int, int | None] = {}
KINDS: dict[str, tuple[Callable[[Lake, int], int], int]] = {
    "merge": (
        lambda lake, number: lake.merge(COUNTS, counts((20 + number, 1), (30 + number, 1)), update=False).inserted,
        2,
    ),
    "update": (lambda lake, number: lake.merge(COUNTS, counts((1, number + 1)), update=True).updated, 1),
    "delete": (lambda lake, number: lake.delete(COUNTS, [("k", "=", 40 + number)]), 1),
    "compare and set": (lambda lake, number: lake.compare_and_set(COUNTS, counts((1, number + 1)), ("v", number)), 1),
    "append once": (append_number, 1),
    "replace once": (replace_row, 1),
    "raise": (lambda lake, number: lake.raise_column(COUNTS, counts((1, number + 1)), "v"), 1),
}
"""Each kind of commit, with the total change that concurrent writers report in each round."""


@pytest.fixture
def lake(s3: S3) -> Lake:
    """Create a lake in a new bucket, with a table."""
    lake = Lake(f"{s3.bucket()}/home/lake")
    lake.merge(COUNTS, counts((1, 0), (40, 0), (41, 0), (42, 0)), update=False)
    return lake


@pytest.mark.grid("commits to an unreliable store", 2)
@pytest.mark.parametrize("kind", KINDS)
def test_one_writer_wins(kind: str, lake: Lake, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three writers commit the same change twice; a tenth of their requests fail, and every commit is stored once."""
    write, expected = KINDS[kind]
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("faulty")["AWS_ENDPOINT_URL"])
    before = lake.version(COUNTS)
    results = race_writers(lake, COUNTS, write, ROUNDS)
    assert [sum(round_results) for round_results in results] == [expected] * ROUNDS
    assert_consistent(lake, before, ROUNDS)


def race_writers(lake: Lake, table: Table, write: Callable[[Lake, int], int], rounds: int) -> list[list[int]]:
    """Return the results of writers that run `write` concurrently, by round."""
    lakes = [Lake(str(lake.location)) for _ in range(WRITERS)]
    together = threading.Barrier(WRITERS, timeout=60)

    def work(own_lake: Lake) -> list[int]:
        results = []
        for number in range(rounds):
            VERSIONS[id(own_lake)] = own_lake.version(table)
            together.wait()
            results.append(int(write(own_lake, number)))
            together.wait()
        return results

    with ThreadPoolExecutor(WRITERS) as writers:
        return [list(round_results) for round_results in zip(*writers.map(work, lakes), strict=True)]


def tasks(table: Table, *rows: dict[str, Any]) -> TaskRows:
    """Return rows as a task produces them."""
    batch = pa.RecordBatch.from_pylist(list(rows), schema=table.schema)
    return TaskRows(1, lambda _: iter([batch]))


def write_partition(lake: Lake, number: int) -> int:
    """Write a partition by a task; return the version of the commit."""
    row = {"time": TIME, "range_end": number, "streams": [b"0123456789abcdef"]}
    return frames.replace_partition(
        TaskRunner.alone(), lake, STREAMS_DESCRIPTIONS_V2, tasks(STREAMS_DESCRIPTIONS_V2, row), {"time": TIME}
    )


def write_by_task(way: Callable[..., bool], number: int, transaction: tuple[str, int] | None, lake: Lake) -> int:
    """Write rows into the table by a task."""
    return way(TaskRunner.alone(), lake, COUNTS, tasks(COUNTS, {"k": 100 + number, "v": 1}), transaction)


def add_column(lake: Lake, number: int) -> int:
    """Add a column; the result does not show whose commit it was."""
    lake.widen(replace(COUNTS, schema=COUNTS.schema.append(column(f"c{number}", pa.int64(), "", null=True))))
    return 0


FORGOTTEN: dict[str, tuple[Table, Callable[[Lake, int], int], int | None, int]] = {
    **{kind: (COUNTS, write, expected, 1) for kind, (write, expected) in KINDS.items()},
    "append": (
        COUNTS,
        lambda lake, number: write_by_task(frames.append_to_table, number, None, lake),
        WRITERS,
        WRITERS,
    ),
    "append of tasks once": (
        COUNTS,
        lambda lake, number: write_by_task(frames.append_to_table, number, ("a", number + 1), lake),
        1,
        1,
    ),
    "replace all": (
        COUNTS,
        lambda lake, number: write_by_task(frames.replace_all_rows, number, None, lake),
        WRITERS,
        WRITERS,
    ),
    "replace all once": (
        COUNTS,
        lambda lake, number: write_by_task(frames.replace_all_rows, number, ("a", number + 1), lake),
        1,
        1,
    ),
    "replace slice": (STREAMS_DESCRIPTIONS_V2, write_partition, None, WRITERS),
    "widen": (COUNTS, add_column, 0, 1),
}
"""Each kind of commit: its table, the total result per round (None: the version) and the number of commits."""


@pytest.mark.grid("commits falsely reported as failed", 4)
@pytest.mark.parametrize("kind", FORGOTTEN)
def test_the_winner_of_a_commit_recognizes_it_when_the_store_reports_failure(
    kind: str, lake: Lake, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store first reports every commit as failed, in each possible way; one writer recognizes its commit."""
    table, write, expected, commits = FORGOTTEN[kind]
    lake.ensure(table)
    before = lake.version(table)
    assert before is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("forgetful")["AWS_ENDPOINT_URL"])
    results = race_writers(lake, table, write, WAYS)
    if expected is None:
        assert sorted(version for round_results in results for version in round_results) == list(
            range(before + 1, before + 1 + commits * WAYS)
        )
    else:
        assert [sum(round_results) for round_results in results] == [expected] * WAYS
    assert_consistent(lake, before, commits * WAYS, table)


def test_rules_run_again_after_conflicts(lake: Lake, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three writers increment a value twice each, from the rows that they read: no increment is lost or repeated."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("faulty")["AWS_ENDPOINT_URL"])

    def grow(own_lake: Lake) -> None:
        for _ in range(ROUNDS):
            own_lake.transact(COUNTS, lambda rows: counts((1, counter_value(rows) + 1)))
            own_lake.merge_judged(COUNTS, lambda: counts((1, counter_value(own_lake.read(COUNTS)) + 1)), update=True)

    before = lake.version(COUNTS)
    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(grow, [Lake(str(lake.location)) for _ in range(WRITERS)]))
    assert counter_value(lake.read(COUNTS)) == 2 * WRITERS * ROUNDS
    assert_consistent(lake, before, 2 * WRITERS * ROUNDS)


def counter_value(rows: pa.Table) -> int:
    """Return the current value of the counter."""
    return next(row["v"] for row in rows.to_pylist() if row["k"] == 1)


def assert_consistent(lake: Lake, before: int | None, commits: int, table: Table = COUNTS) -> None:
    """Assert that there were `commits` commits since, each with its own CommitInfo, and that all tables verify."""
    assert before is not None
    new_commits = [commit for commit in lake.commits(table) if commit.version > before and commit.changes]
    identities = {commit.info.id for commit in new_commits if commit.info is not None}
    assert (len(new_commits), len(identities)) == (commits, commits)
    for verification in verify_tables(lake, deep=True):
        assert (verification.damage, verification.unexpected, verification.foreign, verification.unread) == (
            [],
            [],
            [],
            0,
        ), verification.name


def test_files_written_by_tasks_are_committed_once(lake: Lake, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """One commit names the files that tasks wrote; no commit names those of a refused write, and the rows stay."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("faulty")["AWS_ENDPOINT_URL"])
    table, workers = STREAMS_DESCRIPTIONS_V2, TaskRunner.alone()

    def rows(number: int, hour: int = 0) -> TaskRows:
        new_rows = [
            {"time": TIME + timedelta(hours=hour), "range_end": end, "streams": [b"0123456789abcdef"]}
            for end in (number, number + 10)
        ]
        batch = pa.RecordBatch.from_pylist(new_rows, schema=table.schema)
        return TaskRows(2, lambda task: iter([batch.slice(task, 1)]))

    for number in (1, 2):
        frames.replace_partition(workers, lake, table, rows(number), {"time": TIME})
    with pytest.raises(Exception, match="outside that partition"):
        frames.replace_partition(workers, lake, table, rows(3, hour=1), {"time": TIME})
    assert sorted(lake.read(table)["range_end"].to_pylist()) == [2, 12]
    assert [verification.damage + verification.unexpected for verification in verify_tables(lake, deep=True)] == [
        [],
        [],
    ]


def test_table_is_created_once(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four writers that create a table with constraints, one commits it with all its rules and its CommitInfo."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("faulty")["AWS_ENDPOINT_URL"])
    address = f"{s3.bucket()}/lake"
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(lambda _: Lake(address).ensure(GENERATION_TIMESTAMPS), range(4)))
    lake = Lake(address)
    (commit,) = lake.commits(GENERATION_TIMESTAMPS)
    assert commit.info is not None
    wrong = {"key": "x", "time": TIME, "expired": None}
    with pytest.raises(Exception, match="constraint"):
        lake.merge(
            GENERATION_TIMESTAMPS, pa.Table.from_pylist([wrong], schema=GENERATION_TIMESTAMPS.schema), update=False
        )


def test_store_without_conditional_writes_is_read_only(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store without conditional writes can be read; the first write detects it, fails and leaves nothing."""
    lake = Lake(f"{s3.bucket()}/home/lake")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("careless")["AWS_ENDPOINT_URL"])
    for _ in range(2):
        with pytest.raises(StateError, match="can be read but not written to") as error:
            lake.merge(CONSUMERS, CONSUMERS.schema.empty_table(), update=False)
        assert "\n" not in str(error.value)
    assert lake.read(CONSUMERS).num_rows == 0
    assert not lake.exists(CONSUMERS)
    assert json.loads((lake.location.folder / ".lake.contract.json").read()) == {"put_if_absent": "broken"}


def test_store_with_conditional_writes_is_probed_once(s3: S3) -> None:
    """The store is probed once with thirty objects and two writers each; only the result stays beside the lake."""
    lake = Lake(f"{s3.bucket()}/home/lake")
    lake.ensure(COUNTS)
    home = lake.location.folder
    assert isinstance(home, ObjectStorePath)
    assert write_check.count_put_winners(home) == [1] * write_check.PROBE_KEYS
    assert lake.location.folder.names() == [".lake.contract.json"]
    before = s3.counts()["PUT"]
    Lake(str(lake.location)).ensure(CONSUMERS)
    assert s3.counts()["PUT"] - before <= 2


def test_one_writer_has_the_lock_at_a_time(lake: Lake, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take a lock in turn in an unreliable store; taking a lock that a thread already has succeeds."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("faulty")["AWS_ENDPOINT_URL"])
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(2):
            with locks.lake_lock(lake, locks.JOINS_LOCK), locks.lake_lock(lake, locks.JOINS_LOCK):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(3) as writers:
        list(writers.map(work, range(3)))
    assert most == [1] * 6


def test_the_lock_of_a_dead_process_is_taken_over(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is not renewed becomes free after a while, not earlier, and its holder is reported."""
    monkeypatch.setattr(leases, "STALE_SECONDS", 0.6)
    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.1)
    path = lake.location.folder / f".lake.turns/{locks.TABLES_LOCK}"
    assert isinstance(path, ObjectStorePath)
    assert path.create(b'{"id": "gone", "number": 7, "who": "7 on another machine"}') is not None
    assert leases.StoreLock(path).read_holder() == "7 on another machine"
    with locks.lake_lock(lake, locks.TABLES_LOCK):
        assert leases.StoreLock(path).read_holder().startswith(f"{os.getpid()} on ")
    assert leases.StoreLock(path).try_acquire()


def test_a_working_process_keeps_the_lock(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that works longer than a lease lasts renews its lease and has the lock to its end."""
    monkeypatch.setattr(leases, "STALE_SECONDS", 0.6)
    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.1)
    order: list[str] = []

    def long() -> None:
        with locks.lake_lock(lake, locks.SCRIPTS_LOCK):
            started.set()
            order.append("begins")
            threading.Event().wait(1.5)
            order.append("ends")

    started = threading.Event()
    worker = threading.Thread(target=long)
    worker.start()
    started.wait(10)
    with locks.lake_lock(lake, locks.SCRIPTS_LOCK):
        order.append("next")
    worker.join()
    assert order == ["begins", "ends", "next"]


def test_a_busy_process_is_reported(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared lock is reported as held while any process has it; an abandoned one is not."""
    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.1)
    assert not locks.is_shared_lock_held(lake, locks.JOIN_COMMANDS_LOCK)
    with locks.shared_lock(lake, locks.JOIN_COMMANDS_LOCK), locks.shared_lock(lake, locks.JOIN_COMMANDS_LOCK):
        assert locks.is_shared_lock_held(lake, locks.JOIN_COMMANDS_LOCK)
    folder: Any = lake.location.folder / f".lake.turns/{locks.JOIN_COMMANDS_LOCK}"
    (folder / "left").create(b"{}")
    assert not locks.is_shared_lock_held(lake, locks.JOIN_COMMANDS_LOCK)
    assert folder.names() == []


def test_tasks_leave_nothing_on_this_machine(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes use temporary files or this machine's part of the home, and remove them afterwards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CDC_PLATFORM_STATE", str(tmp_path))
    lake.merge(GENERATION_TIMESTAMPS, stamps(1), update=False)
    rows = TaskRows(1, lambda _: iter(stamps(2).to_batches()))
    frames.append_to_table(TaskRunner.alone(), lake, GENERATION_TIMESTAMPS, rows)
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".parquet"] == []
    assert {path.parent.name for path in files} == {"_delta_log"}


def stamps(hour: int) -> pa.Table:
    """Return a row of cdc_generation_timestamps."""
    row = {"key": "timestamps", "time": TIME + timedelta(hours=hour), "expired": None}
    return pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema)
