"""How long rows of a log live, by the time of their write, and how far a reader is behind that.

A TTL change is observed later than it is made. The shorter of both TTLs therefore counts from the last time at which
the older one is known to have been in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from cdc_platform.clock import ONE_US, Microseconds, format_us, seconds_from_us, us_from_seconds
from cdc_platform.delta import Lake, get_mirrored_cluster
from cdc_platform.metastore import (
    INGEST_CONSUMER,
    TABLE_DROPPED,
    Consumer,
    TableChange,
    cdc_tables,
    consumers,
    parse_unchanged_until_us,
)

_HALF, _THREE_QUARTERS = 0.5, 0.75


class TtlLag(StrEnum):
    """The share of the TTL of unread rows that has passed.

    HALF is a notice, MOST a warning, and DYING an error: rows may have expired unread.
    """

    FINE = "fine"
    HALF = "half"
    MOST = "three quarters"
    DYING = "dying"
    UNKNOWN = "unknown"

    @property
    def code(self) -> str | None:
        """Return the code under which the lag is reported; None if there is nothing to report."""
        return _CODES.get(self)


_CODES = {TtlLag.HALF: "lag-half-ttl", TtlLag.MOST: "lag-near-ttl", TtlLag.DYING: "rows-dying"}


@dataclass(frozen=True)
class RowLifetime:
    """Rows written from `since_us` on, before `until_us` (µs), live for `ttl_us` (0: forever)."""

    since_us: Microseconds
    until_us: Microseconds
    ttl_us: Microseconds


@dataclass(frozen=True)
class TtlStatus:
    """How far a reader is behind: `share` of the TTL of its oldest unread rows, None if they live forever.

    `died_us`: rows up to then (µs) may have expired unread. `ttl_us` is the shortest TTL of unread rows, None if
    unknown.
    """

    lag: TtlLag
    ttl_us: Microseconds | None
    share: float | None
    died_us: Microseconds | None


_UNKNOWN = TtlStatus(TtlLag.UNKNOWN, None, None, None)


@dataclass(frozen=True)
class IngestLag:
    """How far the ingest of one table's log is behind: its position (µs; None: never ingested) and the TTL's share."""

    keyspace_name: str
    table_name: str
    position_us: Microseconds | None
    lag_us: Microseconds | None
    status: TtlStatus

    @property
    def full_name(self) -> str:
        """Return `keyspace.table`."""
        return f"{self.keyspace_name}.{self.table_name}"

    def __str__(self) -> str:
        """Return the lag in one line for people."""
        status = self.status
        if self.position_us is None or self.lag_us is None:
            return f"the log of {self.full_name} was never ingested, so its lag is unknown"
        line = f"the log of {self.full_name} was read up to {format_us(self.position_us)}"
        line += f", {seconds_from_us(self.lag_us):,.0f} s ago"
        if status.lag is TtlLag.UNKNOWN:
            return f"{line}, and how long its rows live is unknown"
        if not status.ttl_us:
            return f"{line}, and its rows never expire"
        line += f", and its rows live for {seconds_from_us(status.ttl_us):,.0f} s"
        if status.died_us is not None:
            line += f": rows that were written up to {format_us(status.died_us)} may have died unread"
        return line


def read_ingest_lags(lake: Lake, now_us: Microseconds) -> list[IngestLag]:
    """Return the lag of every ingested log, by table; in the mirror of a cluster, of every table with CDC as well.

    It reads small tables only. A log that was never ingested, or whose TTL is unknown, has an unknown status.
    """
    changes: dict[tuple[str, str], list[TableChange]] = {}
    for change in cdc_tables.read_table_changes(lake):
        changes.setdefault((change.keyspace_name, change.table_name), []).append(change)
    readers = {
        (consumer.keyspace_name, consumer.table_name): consumer
        for consumer in consumers.read_consumers(lake)
        if consumer.name == INGEST_CONSUMER
    }
    tables = set(readers)
    if get_mirrored_cluster(lake) is not None:
        tables |= {
            (table.keyspace_name, table.table_name) for table in cdc_tables.read_cdc_tables(lake) if table.enabled
        }
    return [get_ingest_lag(name, changes.get(name, ()), readers.get(name), now_us) for name in sorted(tables)]


def get_ingest_lag(
    name: tuple[str, str], changes: Iterable[TableChange], reader: Consumer | None, now_us: Microseconds
) -> IngestLag:
    """Return the lag of a log by the changes of its table and its ingest, None if it was never ingested."""
    if reader is None:
        return IngestLag(*name, None, None, _UNKNOWN)
    status = judge_ttl_lag(row_lifetimes(changes), reader.position_us, now_us) if reader.window_number else _UNKNOWN
    return IngestLag(*name, reader.position_us, Microseconds(max(now_us - reader.position_us, 0)), status)


def row_lifetimes(changes: Iterable[TableChange]) -> list[RowLifetime]:
    """Return the TTLs of rows of a log by write time, oldest first, from the changes of its table alone.

    Only the last log of the table counts. Returns [] if nothing is known of it.
    """
    own_changes = changes_since_last_drop(list(changes))
    if not own_changes:
        return []
    begins, lifetimes = [Microseconds(0)], list[RowLifetime]()
    ttls = [us_from_seconds(change.ttl_seconds) for change in own_changes]
    for (before, old), (after, new) in pairwise(zip(own_changes, ttls, strict=True)):
        begins.append(_in_force_us(before, after) if _is_shorter(new, old) else after.changed_at_us)
    ends = [*begins[1:], Microseconds(2**62)]
    for since, until, ttl in zip(begins, ends, ttls, strict=True):
        if since < until:
            lifetimes.append(RowLifetime(since, until, ttl))
    return lifetimes


def changes_since_last_drop(changes: Sequence[TableChange]) -> list[TableChange]:
    """Return the changes of the last log of a table, all of them if it had only one."""
    drops = [
        index for index, change in enumerate(changes) if change.what == TABLE_DROPPED and change is not changes[-1]
    ]
    return [change for change in changes[drops[-1] + 1 if drops else 0 :] if change.what != TABLE_DROPPED]


def find_expired_until_us(
    lives: Sequence[RowLifetime], after_us: Microseconds, until_us: Microseconds, now_us: Microseconds
) -> Microseconds | None:
    """Return up to when (µs) rows written after `after_us` up to `until_us` may have expired; None: none have."""
    ends = []
    for lifetime in lives:
        last = min(lifetime.until_us - ONE_US, until_us, now_us - lifetime.ttl_us)
        if lifetime.ttl_us and last >= max(lifetime.since_us, after_us + ONE_US):
            ends.append(last)
    return Microseconds(max(ends)) if ends else None


def judge_ttl_lag(lives: Sequence[RowLifetime], position_us: Microseconds, now_us: Microseconds) -> TtlStatus:
    """Return which share of the TTL of unread rows has passed for a reader of a live cluster's log.

    The reader has read all rows up to `position_us` (µs). The share is the largest of all rows that may be unread: half
    of the TTL is HALF, three quarters are MOST, the whole TTL is DYING. Without any lifetime the status is unknown.
    """
    if not lives:
        return _UNKNOWN
    unread = [
        lifetime for lifetime in lives if lifetime.until_us > position_us + ONE_US and lifetime.since_us <= now_us
    ]
    mortal = [lifetime for lifetime in unread if lifetime.ttl_us]
    if not mortal:
        return TtlStatus(TtlLag.FINE, Microseconds(0), None, None)
    share = max(max(0, now_us - max(lifetime.since_us, position_us + ONE_US)) / lifetime.ttl_us for lifetime in mortal)
    died = find_expired_until_us(lives, position_us, now_us, now_us)
    lag = (
        TtlLag.DYING
        if died is not None
        else TtlLag.MOST
        if share >= _THREE_QUARTERS
        else TtlLag.HALF
        if share >= _HALF
        else TtlLag.FINE
    )
    return TtlStatus(lag, min(lifetime.ttl_us for lifetime in mortal), share, died)


def _is_shorter(new_us: Microseconds, old_us: Microseconds) -> bool:
    return bool(new_us) and (not old_us or new_us < old_us)


def _in_force_us(before: TableChange, after: TableChange) -> Microseconds:
    """Return from when on (µs) the TTL of a change may have been in force: it was made before it was observed."""
    earliest = max([before.changed_at_us, *parse_unchanged_until_us(after.ddl)])
    return Microseconds(min(earliest, after.changed_at_us))
