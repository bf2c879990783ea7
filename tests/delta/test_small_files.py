"""Rewriting of small files into larger ones, one hour of a log at a time, without duplicate reads or lost writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet
from support.homes.minute_log import APPLICATION, MinuteLog
from support.store.s3 import S3

from cdc_platform.cdclog import LOG_KEY, WRITTEN_AT
from cdc_platform.clock import HOUR_US, MINUTE_US, Microseconds, datetime_from_us, parse_time_us
from cdc_platform.delta import (
    Lake,
    TimeOrder,
    accept_commit,
    compute,
    read_changes_since,
    small_files,
    transaction_log,
    undo_commit,
    verification,
    verify_tables,
)
from cdc_platform.delta.small_files import RewriteLimits, RewrittenFiles, rewrite_small_files
from cdc_platform.errors import NotAsCommitted, StoreFailure
from cdc_platform.tables import CONSUMERS, GENERATION_TIMESTAMPS

START_US = parse_time_us("2026-01-31T12:00:00Z")
ROWS = 6
TABLE = MinuteLog(START_US, 0).table


def time_order(settled_us: int) -> TimeOrder:
    """Return the order of a log, up to the hours that have ended by this time."""
    return TimeOrder(WRITTEN_AT, LOG_KEY, Microseconds(settled_us))


def written(lake: Lake, minutes: int, start_us: Microseconds = START_US) -> MinuteLog:
    """Write a log of this many minutes, with ROWS rows in each."""
    log = MinuteLog(start_us, minutes, ROWS)
    log.write(lake)
    return log


def ordered(rows: pa.Table) -> pa.Table:
    """Return rows sorted by time."""
    return rows.sort_by([(WRITTEN_AT, "ascending"), ("cdc$time", "ascending")])


def assert_sound(lake: Lake) -> None:
    """Assert that every file, row and commit is as the platform wrote it."""
    for result in verify_tables(lake, deep=True):
        assert (result.damage, result.unexpected, result.foreign, result.unknown) == ([], [], [], 0), result


def test_each_hour_becomes_one_file(lake: Lake) -> None:
    """The file has equal rows in order; the current hour is not rewritten; a second run makes no commit."""
    log = written(lake, 3 * 60 + 20)
    before, version = lake.read(TABLE), lake.version(TABLE)
    assert version is not None
    result = rewrite_small_files(lake, TABLE, time_order(log.end_us))
    assert result == RewrittenFiles(3, 180, 3, 180 * ROWS, 0)
    files = sorted(lake.bounded_files(TABLE, WRITTEN_AT), key=lambda file: file.low)
    assert [file.rows for file in files] == [60 * ROWS] * 3 + [ROWS] * 20
    assert [file.low for file in files[:3]] == [
        datetime_from_us(Microseconds(START_US + hour * HOUR_US)) for hour in range(3)
    ]
    for file in files[:3]:
        rows = parquet.read_table(file.path)
        assert rows.column(WRITTEN_AT).equals(ordered(rows).column(WRITTEN_AT))
    assert ordered(lake.read(TABLE)).equals(ordered(before))
    assert ordered(lake.read_version(TABLE, version)).equals(ordered(before))
    assert lake.version(TABLE) == version + 1
    assert lake.transaction(TABLE, APPLICATION) == log.minutes
    assert_sound(lake)
    assert rewrite_small_files(lake, TABLE, time_order(log.end_us)) == RewrittenFiles()
    assert lake.version(TABLE) == version + 1


def test_the_commit_changes_no_row(lake: Lake) -> None:
    """The commit adds and removes files without a data change, so incremental readers see no row twice."""
    log = written(lake, 120)
    version = lake.version(TABLE) or 0
    rewrite_small_files(lake, TABLE, time_order(log.end_us))
    newest = (lake.version(TABLE) or 0, version)
    entry = transaction_log.get_entry_path(lake.path(TABLE), newest[0]).read().decode()
    actions = [json.loads(line) for line in entry.splitlines()]
    changes = [action[kind]["dataChange"] for action in actions for kind in ("add", "remove") if kind in action]
    assert (len(changes), any(changes)) == (122, False)
    assert read_changes_since(lake, TABLE, version, newest[0]) == []
    assert sum(part.num_rows for part in read_changes_since(lake, TABLE, 1, newest[0]) or []) == 119 * ROWS
    [commit] = [commit for commit in lake.commits(TABLE) if commit.version == newest[0]]
    assert commit.info is not None
    assert set(commit.info.files) == set(commit.added)
    assert not commit.changes


def test_windows_over_the_end_of_an_hour_stay_with_their_hour(lake: Lake) -> None:
    """A file belongs to the hour of its first row, and waits until the hour of its last row has ended."""
    start_us = Microseconds(START_US + HOUR_US - 90_000_000)
    log = MinuteLog(start_us, 5, ROWS)
    log.write(lake)
    assert rewrite_small_files(lake, TABLE, time_order(START_US + HOUR_US)) == RewrittenFiles()
    result = rewrite_small_files(lake, TABLE, time_order(START_US + 2 * HOUR_US))
    assert (result.groups, result.files_before, result.files_after) == (2, 5, 2)
    assert rewrite_small_files(lake, TABLE, time_order(START_US + 9 * HOUR_US)) == RewrittenFiles()


def test_late_rows_join_their_hour(lake: Lake) -> None:
    """The next run rewrites the hour into one file again, with each row once."""
    log = written(lake, 60)
    rewrite_small_files(lake, TABLE, time_order(log.end_us))
    late = MinuteLog(START_US, 61, ROWS).minutes_of(60, 1).drop_columns("minute")
    column = late.schema.get_field_index(WRITTEN_AT)
    early = pa.array([datetime_from_us(Microseconds(START_US + 7))] * ROWS, late.schema.field(column).type)
    assert lake.append_once(TABLE, late.set_column(column, WRITTEN_AT, early), {"late": 1}, None)
    result = rewrite_small_files(lake, TABLE, time_order(log.end_us))
    assert (result.files_before, result.files_after, result.rows) == (2, 1, 61 * ROWS)
    assert lake.read(TABLE).num_rows == 61 * ROWS
    assert_sound(lake)


def test_a_run_has_limits(lake: Lake) -> None:
    """A run rewrites the newest hours, up to a number of groups and of bytes, and counts the remaining."""
    log = written(lake, 5 * 60)
    result = rewrite_small_files(lake, TABLE, time_order(log.end_us), RewriteLimits(groups=2))
    assert (result.groups, result.remaining) == (2, 3)
    newest = datetime_from_us(Microseconds(START_US + 3 * HOUR_US))
    assert all((file.rows > ROWS) == (file.low >= newest) for file in lake.bounded_files(TABLE, WRITTEN_AT))
    result = rewrite_small_files(lake, TABLE, time_order(log.end_us), RewriteLimits(bytes=1))
    assert (result.groups, result.remaining) == (1, 2)
    assert rewrite_small_files(lake, TABLE, time_order(log.end_us)).remaining == 0
    assert len(lake.data_files(TABLE)) == 5
    assert_sound(lake)


@pytest.mark.parametrize("hours", [2, 8])
def test_the_work_does_not_depend_on_the_length_of_the_log(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A run after one hour reads that hour's log entries and a few more, however many precede them."""
    log = written(lake, hours * 60)
    rewrite_small_files(lake, TABLE, time_order(log.end_us))
    longer = MinuteLog(START_US, (hours + 1) * 60, ROWS)
    longer.write(lake, first=hours * 60)
    read = transaction_log.read_actions
    entries: list[str] = []

    def counted(file: Any) -> Any:
        entries.append(str(file))
        return read(file)

    monkeypatch.setattr(transaction_log, "read_actions", counted)
    assert rewrite_small_files(Lake(lake.root), TABLE, time_order(longer.end_us)).files_before == 60
    assert 60 <= len(set(entries)) <= 70


def test_groups_are_bounded_and_large_files_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group bounds the bytes that are read at once, and large files are not rewritten."""
    log = written(lake, 60)
    size = max(file.bytes for file in lake.data_files(TABLE))
    monkeypatch.setattr(small_files, "GROUP_BYTES", 10 * size)
    result = rewrite_small_files(lake, TABLE, time_order(log.end_us))
    assert result.groups >= 6
    assert result.files_after == result.groups
    monkeypatch.setattr(small_files, "SMALL_BYTES", size)
    assert rewrite_small_files(lake, TABLE, time_order(log.end_us)) == RewrittenFiles()


def racing(lake: Lake, monkeypatch: pytest.MonkeyPatch, concurrent_write: Callable[[Lake], object]) -> None:
    """Let another writer commit once after the new files are written and before they are committed."""
    place_files = small_files.writer.place_files

    def place_late(*arguments: Any) -> Any:
        monkeypatch.undo()
        concurrent_write(Lake(lake.root))
        return place_files(*arguments)

    monkeypatch.setattr(small_files.writer, "place_files", place_late)


def test_a_rewrite_does_not_undo_an_earlier_writer(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrently appended rows stay, and the rewrite commits on top of them."""
    log = written(lake, 60)
    more = MinuteLog(START_US, 61, ROWS).minutes_of(60, 1).drop_columns("minute")
    racing(lake, monkeypatch, lambda other: other.append_once(TABLE, more, {"w": 1}, None))
    assert rewrite_small_files(lake, TABLE, time_order(log.end_us)).files_before == 60
    assert (len(lake.data_files(TABLE)), lake.read(TABLE).num_rows) == (2, 61 * ROWS)
    assert_sound(lake)


def test_two_concurrent_rewrites_equal_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rewrite finds that the files are gone, and commits nothing."""
    log = written(lake, 60)
    racing(lake, monkeypatch, lambda other: rewrite_small_files(other, TABLE, time_order(log.end_us)))
    assert rewrite_small_files(lake, TABLE, time_order(log.end_us)) == RewrittenFiles()
    assert (len(lake.data_files(TABLE)), lake.read(TABLE).num_rows) == (1, 60 * ROWS)
    assert sum(bool(commit.info and commit.info.files) for commit in lake.commits(TABLE)) == 1
    assert_sound(lake)


def test_a_damaged_file_is_not_rewritten(lake: Lake) -> None:
    """Otherwise the damaged rows would get a valid digest; the error names the version."""
    log = written(lake, 60)
    file = Path(lake.data_files(TABLE)[7].path)
    rows = parquet.read_table(file)
    parquet.write_table(rows.set_column(rows.schema.get_field_index("ck"), "ck", compute.add(rows["ck"], 1)), file)
    version = lake.version(TABLE)
    with pytest.raises(StoreFailure, match="has other rows than its commits recorded, in a file of version"):
        rewrite_small_files(lake, TABLE, time_order(log.end_us))
    assert lake.version(TABLE) == version


def test_a_foreign_commit_can_still_be_undone(lake: Lake) -> None:
    """Nothing is rewritten on top of a foreign commit until it is accepted or undone."""
    log = written(lake, 60)
    foreign = log.minutes_of(59, 1).drop_columns("minute")
    write_deltalake(lake.path(TABLE), foreign, mode="append")
    version = lake.version(TABLE) or 0
    with pytest.raises(NotAsCommitted, match=f"a foreign commit, version {version} "):
        rewrite_small_files(lake, TABLE, time_order(log.end_us))
    assert lake.version(TABLE) == version
    undo_commit(lake, TABLE.full_name, version, "not ours")
    assert rewrite_small_files(lake, TABLE, time_order(log.end_us)).files_before == 60
    write_deltalake(lake.path(TABLE), foreign, mode="append")
    accept_commit(lake, TABLE.full_name, lake.version(TABLE) or 0, "ours after all")
    assert rewrite_small_files(lake, TABLE, time_order(log.end_us)).files_before == 2
    assert lake.read(TABLE).num_rows == 61 * ROWS


def test_damage_of_a_new_file_is_found_when_rows_are_derived(lake: Lake) -> None:
    """The file's own digest reveals the damage, without reading another file."""
    log = written(lake, 120)
    rewrite_small_files(lake, TABLE, time_order(log.end_us))
    low, high = (datetime_from_us(Microseconds(START_US + add)) for add in (0, HOUR_US - MINUTE_US))
    verification.verify_added_files_between(lake, TABLE, WRITTEN_AT, low, high)
    damaged = min(lake.bounded_files(TABLE, WRITTEN_AT), key=lambda file: file.low).path
    rows = parquet.read_table(damaged)
    parquet.write_table(rows.set_column(rows.schema.get_field_index("ck"), "ck", compute.add(rows["ck"], 1)), damaged)
    with pytest.raises(StoreFailure, match="has other rows than its commits recorded"):
        verification.verify_added_files_between(Lake(lake.root), TABLE, WRITTEN_AT, low, high)
    low, high = (datetime_from_us(Microseconds(START_US + HOUR_US + add)) for add in (MINUTE_US, 2 * MINUTE_US))
    verification.verify_added_files_between(Lake(lake.root), TABLE, WRITTEN_AT, low, high)


def test_a_column_that_was_added_is_null_in_older_rows(lake: Lake) -> None:
    """The new file has all columns of the table."""
    log = written(lake, 60)
    before = lake.read(TABLE)
    wider = pa.schema([*TABLE.schema, pa.field("b", pa.int64())])
    lake.widen(type(TABLE)(TABLE.keyspace, TABLE.name, wider, TABLE.keys, TABLE.comment))
    assert rewrite_small_files(lake, TABLE, time_order(log.end_us)).groups == 1
    assert ordered(lake.read(TABLE)).equals(ordered(before))
    assert DeltaTable(lake.path(TABLE)).to_pyarrow_table()["b"].null_count == 60 * ROWS
    assert_sound(lake)


def test_tables_without_times_are_rewritten_by_file_count(lake: Lake) -> None:
    """Fewer than sixteen small files stay; more become one."""
    lake.ensure(GENERATION_TIMESTAMPS)
    for number in range(15):
        row = {"key": "timestamps", "time": datetime_from_us(Microseconds(START_US + number * MINUTE_US))}
        rows = pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema)
        assert lake.append_once(GENERATION_TIMESTAMPS, rows, {"w": number + 1}, number or None)
    compacted = len(lake.data_files(GENERATION_TIMESTAMPS))
    assert compacted == 15
    assert rewrite_small_files(lake, GENERATION_TIMESTAMPS, None) == RewrittenFiles()
    for number in range(15, 40):
        row = {"key": "timestamps", "time": datetime_from_us(Microseconds(START_US + number * MINUTE_US))}
        write_with_digest(lake, pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema), number)
    files = len(lake.data_files(GENERATION_TIMESTAMPS))
    result = rewrite_small_files(lake, GENERATION_TIMESTAMPS, None)
    assert (result.files_before, result.files_after) == ((files, 1) if files >= 16 else (0, 0))
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 40
    assert_sound(lake)


def write_with_digest(lake: Lake, rows: pa.Table, number: int) -> None:
    """Append rows as the platform does, without the compaction at every sixteenth write."""
    from cdc_platform.delta import writer

    with lake.open_for_write(GENERATION_TIMESTAMPS) as opened:
        writer.append_rows(opened, GENERATION_TIMESTAMPS, rows, {"w": number + 1})


def test_maintenance_is_no_conflicting_write(lake: Lake) -> None:
    """Rows derived from a version replace its rows, although maintenance rewrote their files in between."""
    lake.ensure(CONSUMERS)
    times = {"position": datetime_from_us(START_US), "updated_at": datetime_from_us(START_US)}
    for number in range(15):
        row = {"name": f"r{number}", "keyspace_name": "ks", "table_name": "t", "window_number": number, **times}
        lake.append_once(
            CONSUMERS, pa.Table.from_pylist([row], schema=CONSUMERS.schema), {"w": number + 1}, number or None
        )
    version = lake.version(CONSUMERS)
    DeltaTable(lake.path(CONSUMERS)).optimize.compact()
    changed = pa.Table.from_pylist([{**row, "window_number": 99}], schema=CONSUMERS.schema)
    assert lake.replace_once(CONSUMERS, changed, [("name", "=", "r14")], version)
    assert not lake.replace_once(CONSUMERS, changed, [("name", "=", "r14")], version)
    assert lake.read(CONSUMERS, ["window_number"], [("name", "=", "r14")])["window_number"].to_pylist() == [99]


def test_logs_in_a_store(s3: S3) -> None:
    """In an object store, too, an hour becomes one file, and a second run changes nothing."""
    lake = Lake(f"{s3.bucket()}/home/lake")
    log = MinuteLog(START_US, 30, ROWS)
    for number in range(log.minutes):
        rows = log.minutes_of(number, 1).drop_columns("minute")
        lake.ensure(TABLE)
        assert lake.append_once(TABLE, rows, {APPLICATION: number + 1}, number or None)
    before = ordered(lake.read(TABLE))
    result = rewrite_small_files(lake, TABLE, time_order(START_US + HOUR_US))
    assert result.groups == 1
    assert (len(lake.data_files(TABLE)), lake.transaction(TABLE, APPLICATION)) == (1, 30)
    assert ordered(Lake(str(lake.location)).read(TABLE)).equals(before)
    assert rewrite_small_files(lake, TABLE, time_order(START_US + HOUR_US)) == RewrittenFiles()
    assert_sound(Lake(str(lake.location)))
