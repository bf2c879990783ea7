"""A log of a month that was ingested every minute: read one day of it, and maintain one more day."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Result, paired, seconds
from bench.session import QUICK, Bench
from cdc_platform.cdclog import WRITTEN_AT
from cdc_platform.clock import DAY_US, HOUR_US, Clock, Microseconds, datetime_from_us
from cdc_platform.delta import Lake
from cdc_platform.home import maintain_tables

if TYPE_CHECKING:
    from support.homes.minute_log import MinuteLog

DAY_MINUTES = 24 * 60
_READS = 5


def minute_log(bench: Bench) -> list[Result]:
    """Read a day of the maintained month, relative to one file per hour; maintain one more day of it and of a day."""
    days = 3 if bench.sizes is QUICK else 30
    with bench.scratch() as folder:
        month = _log((days - 1) * DAY_MINUTES)
        lake, short = Lake(folder / "month"), Lake(folder / "short")
        month.write(lake)
        unread = _seconds_of_day(lake, month, days // 2)
        opened = seconds(lambda: Lake(lake.location.local_path or "").version(month.table))
        first = seconds(lambda: _maintain_all(lake, month))
        _log(DAY_MINUTES).write(short)
        _maintain_all(short, _log(DAY_MINUTES))
        _hourly(folder / "hourly", month)
        _log(2 * DAY_MINUTES).write(short, first=DAY_MINUTES)
        _log(days * DAY_MINUTES).write(lake, first=month.minutes)
        in_month = seconds(lambda: _maintain(lake, _log(days * DAY_MINUTES)))
        in_days = seconds(lambda: _maintain(short, _log(2 * DAY_MINUTES)))
        files = len(lake.data_files(month.table))
        read = paired(
            lambda: _read_day(Lake(folder / "month"), month, days // 2),
            lambda: _read_day(Lake(folder / "hourly"), month, days // 2),
            repeats=_READS,
        )
    at = f"a day out of {days} days of commits a minute"
    details = {"files": files, "unmaintained_seconds": unread, "opening_seconds": opened, "first_maintenance": first}
    floor = "the same rows, written by deltalake in a commit and a file an hour"
    growth = f"the same after {days} days, against after two"
    return [
        Result("log-minutes", at, read.seconds, floor, read.floor_seconds, read.ratio, 1.5, details=details),
        Result("log-minutes-maintain", growth, in_month, "after two days", in_days, in_month / in_days, 2.0),
    ]


def _log(minutes: int) -> MinuteLog:
    tests = str(Path(__file__).parents[1] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    from support.homes.minute_log import MinuteLog

    return MinuteLog(Microseconds(1_767_225_600_000_000), minutes)


def _maintain(lake: Lake, log: MinuteLog) -> int:
    """Maintain the log once, a few hours after its end; return the number of rewritten files."""
    fresh = Lake(lake.location.local_path or "")
    clock = Clock(Microseconds(log.end_us + 3 * HOUR_US))
    return sum(done.rewritten for done in maintain_tables(fresh, clock, [log.table.full_name]))


def _maintain_all(lake: Lake, log: MinuteLog) -> None:
    """Maintain the log until nothing remains to do: each run has its limit."""
    while _maintain(lake, log):
        pass


def _hourly(root: Path, log: MinuteLog) -> None:
    """Write the same rows with one hour per commit and file."""
    lake = Lake(root)
    lake.ensure(log.table)
    for hour in range(log.minutes // 60):
        rows = log.minutes_of(hour * 60, 60).drop_columns("minute")
        assert lake.append_once(log.table, rows, {"hour": hour + 1}, hour or None)


def _bounds(log: MinuteLog, day: int) -> tuple[datetime, datetime]:
    low = log.start_us + day * DAY_US
    return datetime_from_us(Microseconds(low)), datetime_from_us(Microseconds(low + DAY_US))


def _read_day(lake: Lake, log: MinuteLog, day: int) -> None:
    """Open the log and read the rows of one day."""
    low, high = _bounds(log, day)
    rows = lake.read(log.table, filters=[(WRITTEN_AT, ">=", low), (WRITTEN_AT, "<", high)])
    assert rows.num_rows == DAY_MINUTES * log.rows, rows.num_rows


def _seconds_of_day(lake: Lake, log: MinuteLog, day: int) -> float:
    return seconds(lambda: _read_day(Lake(lake.location.local_path or ""), log, day))
