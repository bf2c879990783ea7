"""Maintenance of homes: every table is maintained, log files stay within their limits, and status shows when it ran."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet
from support.command_line import run
from support.homes.every_table import LOGS, every_table
from support.homes.minute_log import SCHEMA, MinuteLog

from cdc_platform.cdclog.state.store import state_table
from cdc_platform.clock import DAY_MS, DAY_SECONDS, HOUR_US, MINUTE_US, Clock, Microseconds, parse_time_us
from cdc_platform.delta import (
    Lake,
    MaintenanceTask,
    compute,
    list_stored_tables,
    maintenance,
    read_maintenance,
    record_maintenance,
    verify_tables,
)
from cdc_platform.delta.transaction_log import get_log_folder
from cdc_platform.home import list_lakes, maintain_tables, preview_tables, trim_log_files
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.ingest.marks import AGAIN
from cdc_platform.ingest.replica.tables import cells_table, current_table
from cdc_platform.reporting import read_home_status
from cdc_platform.settings import Settings
from cdc_platform.tables import TABLES

START_US = parse_time_us("2026-01-31T12:00:00Z")


def clock_after(hours: int) -> Clock:
    """Return a clock some hours after the log begins."""
    return Clock(Microseconds(START_US + hours * HOUR_US))


def home_of(folder: Path, **settings: int) -> HomeLocation:
    """Create a home with these settings."""
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    location = open_home_location(folder / "home")
    (location.path / "settings.toml").write_text(lines)
    return open_home_location(folder / "home")


@pytest.mark.long("tables of every kind")
def test_every_table_is_maintained_or_has_a_reason(tmp_path: Path) -> None:
    """Tables of every kind are maintained; only those that their writer rewrites as a whole are not rewritten."""
    home = every_table(tmp_path)
    lake = Lake(home / "lake")
    for table in (state_table(SCHEMA), cells_table(SCHEMA), current_table(SCHEMA)):
        lake.ensure(table)
    results = {result.table: result for result in maintain_tables(lake, Clock())}
    below = (folder.parent for folder in (home / "lake").glob("*/*/_delta_log"))
    assert set(results) == {f"{folder.parent.name}.{folder.name}" for folder in below}
    assert set(results) >= {*TABLES, *LOGS, ".".join(list_stored_tables(lake)[0])}
    reasons: dict[str, set[str]] = {}
    for result in results.values():
        assert result.failed == ""
        reasons.setdefault(result.not_rewritten, set()).add(result.table)
    partitioned = {table.full_name for table in TABLES.values() if table.partition_by}
    partitioned |= {cells_table(SCHEMA).full_name, current_table(SCHEMA).full_name}
    assert reasons.pop("each partition is written as a whole") == partitioned
    assert state_table(SCHEMA).full_name in reasons.pop("its writer rewrites it as a whole")
    assert set(reasons) == {""}
    second_results = maintain_tables(lake, Clock())
    assert not any((result.files, result.rewritten, result.checkpoint) != (0, 0, False) for result in second_results)
    for verified in verify_tables(lake, deep=True):
        assert (verified.damage, verified.unexpected, verified.foreign) == ([], [], [])


def test_an_hour_is_compacted_after_the_second_pass(lake: Lake) -> None:
    """An hour is due an hour after its end, later if a second pass is pending, and after a day in any case."""
    log = MinuteLog(START_US, 60, 2)
    log.write(lake)

    def rewritten_files(hours: int) -> int:
        return sum(result.rewritten for result in preview_tables(lake, clock_after(hours)))

    assert [rewritten_files(1), rewritten_files(2)] == [0, 1]
    rows = log.table.schema.empty_table()
    assert lake.append_once(log.table, rows, {AGAIN: START_US + 30 * MINUTE_US}, None)
    assert [rewritten_files(2), rewritten_files(24), rewritten_files(26)] == [0, 0, 1]
    assert lake.append_once(log.table, rows, {AGAIN: START_US + HOUR_US}, START_US + 30 * MINUTE_US)
    assert rewritten_files(2) == 1


def test_a_checkpoint_is_written_where_one_is_due(lake: Lake) -> None:
    """A checkpoint is written after more commits than the platform makes between two, and then not again."""
    log = MinuteLog(START_US, 30, 2)
    log.write(lake)
    for name in get_log_folder(lake.path(log.table)).names():
        if "checkpoint" in name:
            (get_log_folder(lake.path(log.table)) / name).remove()
    assert [result.checkpoint for result in preview_tables(lake, clock_after(0))] == [True]
    assert [result.checkpoint for result in maintain_tables(lake, clock_after(0))] == [True]
    assert any(name.endswith(".checkpoint.parquet") for name in get_log_folder(lake.path(log.table)).names())
    assert [result.checkpoint for result in maintain_tables(lake, clock_after(0))] == [False]


@pytest.mark.parametrize(("minutes", "written"), [(60, False), (120, True)])
def test_a_checkpoint_follows_a_rewrite_of_many_files(lake: Lake, minutes: int, written: bool) -> None:
    """A commit that removes a hundred files or more is not left for each reader to parse."""
    log = MinuteLog(START_US, minutes, 2)
    log.write(lake)
    assert [result.checkpoint for result in preview_tables(lake, clock_after(4))] == [written]
    assert [(result.rewritten, result.checkpoint) for result in maintain_tables(lake, clock_after(4))] == [
        (minutes, written)
    ]
    assert [result.checkpoint for result in maintain_tables(lake, clock_after(4))] == [False]
    newest = f"{lake.version(log.table) or 0:020d}.checkpoint.parquet"
    assert (newest in get_log_folder(lake.path(log.table)).names()) == written


def test_a_failing_table_does_not_stop_others(lake: Lake) -> None:
    """The failing table is reported with its error; others are maintained without a change of their rows."""
    log = MinuteLog(START_US, 60, 2)
    log.write(lake)
    other = replace(log.table, name="other_scylla_cdc_log")
    lake.ensure(other)
    for number in range(3):
        rows = log.minutes_of(number, 1).drop_columns("minute")
        assert lake.append_once(other, rows, {"w": number + 1}, number or None)
    damaged = lake.data_files(log.table)[3].path
    rows = parquet.read_table(damaged)
    parquet.write_table(rows.set_column(rows.schema.get_field_index("ck"), "ck", compute.add(rows["ck"], 1)), damaged)
    first, second = sorted(maintain_tables(lake, clock_after(9)), key=lambda result: result.rewritten)
    assert (first.table, first.rewritten) == (log.table.full_name, 0)
    assert "has other rows than its commits recorded" in first.failed
    assert (second.table, second.rewritten, second.failed) == (other.full_name, 3, "")
    assert len(lake.data_files(other)) == 1


def write_outputs(home: HomeLocation, days: dict[str, float], size: int = 1000) -> list[str]:
    """Write captured output of runs with these ages in days, and the result of a step, which is no log."""
    for run_id, age in days.items():
        folder = home.dagster / "storage" / run_id / "compute_logs"
        folder.mkdir(parents=True)
        for name in ("step.out", "step.err"):
            (folder / name).write_bytes(b"x" * size)
            modified = time.time() - age * DAY_SECONDS
            os.utime(folder / name, (modified, modified))
    (home.dagster / "storage" / next(iter(days)) / "result").write_bytes(b"kept")
    return runs_with_output(home)


def runs_with_output(home: HomeLocation) -> list[str]:
    """Return the runs that still have captured output."""
    return sorted({path.parent.parent.name for path in home.dagster.glob("storage/*/compute_logs/*")})


def test_captured_output_expires_by_age(tmp_path: Path) -> None:
    """Output older than the limit is deleted; a dry run only counts it; other files stay."""
    home = home_of(tmp_path, log_retention_ms=3 * DAY_MS)
    write_outputs(home, {"old": 3.1, "young": 2.9})
    planned = trim_log_files(home, dry_run=True)
    assert ((planned.files, planned.bytes), runs_with_output(home)) == ((2, 2000), ["old", "young"])
    assert trim_log_files(home) == planned
    assert runs_with_output(home) == ["young"]
    assert (home.dagster / "storage" / "old" / "result").read_bytes() == b"kept"
    assert trim_log_files(home).files == 0


def test_captured_output_expires_by_size_oldest_first(tmp_path: Path) -> None:
    """The oldest output is deleted until the rest fits, but none of the last day."""
    home = home_of(tmp_path, log_max_bytes=1 << 20)
    write_outputs(home, {"a": 5, "b": 4, "c": 3, "today": 0.5}, size=300_000)
    assert trim_log_files(home).files == 5
    assert runs_with_output(home) == ["c", "today"]
    write_outputs(home, {"d": 0.1, "e": 0.2, "f": 0.3}, size=900_000)
    trim_log_files(home)
    assert runs_with_output(home) == ["d", "e", "f", "today"]


def test_the_log_of_a_service_loses_its_older_half(tmp_path: Path) -> None:
    """Trimming a log during writes retains the newest whole lines, and later writes follow them."""
    home = home_of(tmp_path, log_max_bytes=1 << 20)
    log = home.path / "logs" / "dagster-daemon.log"
    log.parent.mkdir()
    with log.open("ab", buffering=0) as writer:
        for number in range(150_000):
            writer.write(b"%09d\n" % number)
        assert trim_log_files(home).files == 1
        writer.write(b"the end\n")
    lines = log.read_bytes().splitlines()
    assert (lines[-2:], len(lines[0])) == ([b"000149999", b"the end"], 9)
    assert (1 << 19) - 100 < log.stat().st_size <= (1 << 19) + 10
    assert trim_log_files(home).files == 0


def maintenance_status(lake: Lake, clock: Clock) -> tuple[dict[str, object], list[tuple[str, str | None]]]:
    """Return whether each task is overdue, and the alerts about that with their commands."""
    home_status = read_home_status(lake, clock, Settings())
    alerts = [(alert.message, alert.command) for alert in home_status.alerts if alert.code == "maintenance-overdue"]
    return {task["task"]: task["overdue"] for task in home_status.sections["maintenance"]}, alerts


def test_status_shows_last_runs_and_overdue_tasks(lake: Lake) -> None:
    """A task is unknown before its first run and overdue two days after its last one."""
    lake.ensure(TABLES["platform.nodes"])
    assert set(maintenance_status(lake, clock_after(0))[0].values()) == {None}
    record_maintenance(lake, clock_after(0), list(MaintenanceTask))
    assert set(maintenance_status(lake, clock_after(48))[0].values()) == {False}
    record_maintenance(lake, clock_after(30), [MaintenanceTask.VACUUM])
    overdue, _ = maintenance_status(lake, clock_after(49))
    assert [task for task, late in overdue.items() if not late] == [MaintenanceTask.VACUUM]
    assert read_maintenance(lake)[MaintenanceTask.VACUUM] == START_US + 30 * HOUR_US


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"vacuum": 7}', b'{"vacuum": "no time"}', b"\xff"])
def test_a_damaged_record_is_unknown(lake: Lake, content: bytes) -> None:
    """Status shows no time for a damaged record, and the next run overwrites it."""
    (lake.root.parent / "maintenance.json").write_bytes(content)
    assert read_maintenance(lake) == {}
    record_maintenance(lake, clock_after(0), [MaintenanceTask.VACUUM])
    assert read_maintenance(lake) == {MaintenanceTask.VACUUM: START_US}


def test_the_command_maintains_and_records(tmp_path: Path) -> None:
    """A dry run lists what is due and writes nothing; the command does it once; status shows when."""
    home = tmp_path / "home"
    assert run("--home", home, "tables", "add", "ks.t", "--ttl", "60").exit_code == 0
    MinuteLog(START_US, 60, 2).write(Lake(home / "lake"))
    dry_run = run("--home", home, "home", "maintain", "--dry-run", "--json")
    [log] = [row for row in dry_run.facts["tables"] if row["rewritten"]]
    assert (log["table"], log["rewritten"], read_maintenance(Lake(home / "lake"))) == ("ks.t_scylla_cdc_log", 1, {})
    first = run("--home", home, "home", "maintain", "--json")
    [log] = [row for row in first.facts["tables"] if row["rewritten"]]
    assert (first.exit_code, log["rewritten"], log["failed"]) == (0, 60, "")
    second = run("--home", home, "home", "maintain", "--json")
    assert not any(row["rewritten"] or row["checkpoint"] for row in second.facts["tables"])
    status = run("--home", home, "status", "--json").facts["maintenance"]
    recorded = {task["task"] for task in status if task["last"]}
    assert recorded == {str(task) for task in MaintenanceTask} - {"check"}
    assert {task["overdue"] for task in status} == {False, None}


def test_all_lakes_of_a_home_are_listed(tmp_path: Path) -> None:
    """The home's own lake is listed by an empty path."""
    assert list(list_lakes(home_of(tmp_path))) == [""]
    assert maintenance.list_maintained_tables(Lake(tmp_path / "home" / "lake")) == []
