"""Intervals of a live cluster's log whose rows may be missing permanently: the owner of `platform.log_gaps`.

A gap is recorded before the commit of the window that reveals it, and recording it twice changes nothing. The process
after a crash therefore records the same gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, datetime_from_us, format_us, us_from_datetime
from cdc_platform.delta import Lake
from cdc_platform.metastore.consumers import INGEST_CONSUMER
from cdc_platform.tables import LOG_GAPS

SPARK_STREAM_READER = "scylla_cdc"
"""The reader name of gaps that a Spark stream skipped because its option allows that."""


class LogLoss(StrEnum):
    """The kind of a gap."""

    BEFORE_READING = "before_reading"
    """Nobody read the log yet: rows expired before, or there was no log. No alarm, and no proof either."""
    BEFORE_START = "before_start"
    """The first ingest began later by choice (`--from`); accepted when it is recorded."""
    DIED = "died"
    """Rows reached their TTL before they were read."""
    RECREATED = "log_recreated"
    """The log was dropped with unread rows and created again."""
    CDC_OFF = "cdc_off"
    """CDC was switched off for a while."""
    ALTERED = "altered"
    """The table was altered and altered back between two observations, so CDC may have been off."""


@dataclass(frozen=True)
class LogGap:
    """Rows of a table's log with `since_us` <= timestamp < `until_us` (µs) that `reader` may lack permanently.

    `found_at_us` is None for a gap that is derived from other tables instead of recorded, as in homes of earlier
    releases.
    """

    keyspace_name: str
    table_name: str
    what: str
    since_us: Microseconds
    until_us: Microseconds
    why: str
    reader: str = INGEST_CONSUMER
    found_at_us: Microseconds | None = None
    accepted_at_us: Microseconds | None = None
    reason: str | None = None

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace_name}.{self.table_name}"

    @property
    def is_open(self) -> bool:
        """Return True if rows went missing and the gap is not accepted."""
        return self.what != LogLoss.BEFORE_READING and self.accepted_at_us is None

    def overlaps(self, since_us: Microseconds, until_us: Microseconds) -> bool:
        """Return True if a row with `since_us` <= timestamp < `until_us` (µs) may be missing."""
        return self.since_us < until_us and since_us < self.until_us

    def facts(self) -> dict[str, Any]:
        """Return the gap in the form of JSON output."""
        times = {"found_at": self.found_at_us, "accepted_at": self.accepted_at_us}
        return {
            "table": self.full_name,
            "reader": self.reader,
            "what": str(self.what),
            "from": format_us(self.since_us),
            "until": format_us(self.until_us),
            "why": self.why,
            **{name: None if time is None else format_us(time) for name, time in times.items()},
            "because": self.reason,
        }

    def __str__(self) -> str:
        """Return the gap in one line for people."""
        name, since, until = self.full_name, format_us(self.since_us), format_us(self.until_us)
        interval = f"before {until}" if self.since_us <= 0 else f"from {since} to {until}"
        messages: dict[str, str] = {
            LogLoss.BEFORE_READING: f"what was written to {name} {interval} was not read: {self.why}",
            LogLoss.BEFORE_START: f"what was written to {name} {interval} is left out: {self.why}",
            LogLoss.DIED: f"rows of {name} written {interval} may be gone: {self.why}",
            LogLoss.RECREATED: f"rows of {name} written {interval} may be gone: {self.why}",
            LogLoss.CDC_OFF: f"CDC of {name} was off {interval}: {self.why}",
            LogLoss.ALTERED: f"{name} was altered between {since} and {until}, and looks as before: {self.why}",
        }
        accepted = "" if self.reason is None else f" (accepted: {self.reason})"
        return messages.get(self.what, f"{self.what} of {name} {interval}: {self.why}") + accepted


def read_recorded_gaps(lake: Lake) -> list[LogGap]:
    """Return every recorded gap, by table and time."""
    return _gaps_from_rows(lake.read(LOG_GAPS))


def record_log_gaps(lake: Lake, clock: Clock, gaps: Sequence[LogGap]) -> list[LogGap]:
    """Record gaps in one commit; return those that extend what was recorded before.

    A gap that touches or overlaps an open one of its kind is merged with it. The accepted part remains accepted.
    """
    now, new = clock.now_us(), list[LogGap]()

    def rule(rows: pa.Table) -> pa.Table | None:
        new.clear()
        after = _gaps_from_rows(rows)
        for gap in gaps:
            before, after = after, _with_gap(after, replace(gap, found_at_us=now))
            new.extend([gap] if after != before else [])
        return _gap_rows(after) if new else None

    if gaps:
        lake.transact(LOG_GAPS, rule, whole=True)
    return new


def accept_log_gaps(lake: Lake, clock: Clock, keyspace: str, table: str, reason: str) -> list[LogGap]:
    """Accept the open gaps of a table's log in one commit; return those that this call accepted."""
    now, accepted = clock.now_us(), list[LogGap]()

    def rule(rows: pa.Table) -> pa.Table | None:
        before = _gaps_from_rows(rows)
        chosen = [gap for gap in before if gap.is_open and (gap.keyspace_name, gap.table_name) == (keyspace, table)]
        accepted[:] = [replace(gap, accepted_at_us=now, reason=reason) for gap in chosen]
        return _gap_rows([*(gap for gap in before if gap not in chosen), *accepted]) if chosen else None

    lake.transact(LOG_GAPS, rule, whole=True)
    return accepted


def _with_gap(recorded: list[LogGap], gap: LogGap) -> list[LogGap]:
    """Return the recorded gaps with another one merged in."""
    alike = [other for other in recorded if _kind(other) == _kind(gap)]
    for other in alike:
        if other.reason is not None and gap.reason is None and other.overlaps(gap.since_us, gap.until_us):
            if other.since_us <= gap.since_us:
                gap = replace(gap, since_us=min(other.until_us, gap.until_us))
            elif gap.until_us <= other.until_us:
                gap = replace(gap, until_us=other.since_us)
    if gap.since_us >= gap.until_us:
        return recorded
    touching = [
        other
        for other in alike
        if other.reason == gap.reason and other.since_us <= gap.until_us and gap.since_us <= other.until_us
    ]
    whole = [*touching, gap]
    merged = replace(
        gap,
        since_us=min(other.since_us for other in whole),
        until_us=max(other.until_us for other in whole),
        found_at_us=min(other.found_at_us or Microseconds(0) for other in whole),
        accepted_at_us=gap.accepted_at_us and min(other.accepted_at_us or gap.accepted_at_us for other in whole),
    )
    if any(replace(other, why=gap.why) == merged for other in touching):
        return recorded
    return _ordered([*(other for other in recorded if other not in touching), merged])


def _kind(gap: LogGap) -> tuple[str, ...]:
    return gap.keyspace_name, gap.table_name, gap.reader, gap.what


def _ordered(gaps: Iterable[LogGap]) -> list[LogGap]:
    return sorted(gaps, key=lambda gap: (gap.keyspace_name, gap.table_name, gap.since_us, gap.what, gap.reader))


def _gaps_from_rows(rows: pa.Table) -> list[LogGap]:
    return _ordered(
        LogGap(
            row["keyspace_name"],
            row["table_name"],
            row["what"],
            us_from_datetime(row["since"]),
            us_from_datetime(row["until"]),
            row["why"],
            row["reader"],
            us_from_datetime(row["found_at"]),
            None if row["accepted_at"] is None else us_from_datetime(row["accepted_at"]),
            row["because"],
        )
        for row in rows.to_pylist()
    )


def _gap_rows(gaps: Sequence[LogGap]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "keyspace_name": gap.keyspace_name,
                "table_name": gap.table_name,
                "reader": gap.reader,
                "what": str(gap.what),
                "since": datetime_from_us(gap.since_us),
                "until": datetime_from_us(gap.until_us),
                "why": gap.why,
                "found_at": datetime_from_us(gap.found_at_us or Microseconds(0)),
                "accepted_at": None if gap.accepted_at_us is None else datetime_from_us(gap.accepted_at_us),
                "because": gap.reason,
            }
            for gap in _ordered(gaps)
        ],
        schema=LOG_GAPS.schema,
    )
