"""How long rows of a log live, by the time of their write, and how far a reader is behind that.

A TTL change is observed later than it is made. The shorter of both TTLs therefore counts from the last time at which
the older one is known to have been in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from cdc_platform.clock import ONE_US, Microseconds, us_from_seconds
from cdc_platform.metastore import TABLE_DROPPED, Consumer, TableChange, parse_unchanged_until_us

_HALF, _THREE_QUARTERS = 0.5, 0.75


class TtlLag(StrEnum):
    """The share of the TTL of unread rows that has passed."""

    FINE = "fine"
    HALF = "half"
    MOST = "three quarters"
    DYING = "dying"
    UNKNOWN = "unknown"


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


def get_ttl_status(changes: Iterable[TableChange], reader: Consumer, now_us: Microseconds) -> TtlStatus:
    """Return how far a reader of a live cluster's log is behind the TTL of its unread rows.

    `changes` are those of its table. The status is unknown if the reader has not read a window yet, or if the log is
    unknown.
    """
    lives = row_lifetimes(changes)
    if not lives or not reader.window_number:
        return TtlStatus(TtlLag.UNKNOWN, None, None, None)
    unread = [
        lifetime
        for lifetime in lives
        if lifetime.until_us > reader.position_us + ONE_US and lifetime.since_us <= now_us
    ]
    mortal = [lifetime for lifetime in unread if lifetime.ttl_us]
    if not mortal:
        return TtlStatus(TtlLag.FINE, Microseconds(0), None, None)
    share = max(
        max(0, now_us - max(lifetime.since_us, reader.position_us + ONE_US)) / lifetime.ttl_us for lifetime in mortal
    )
    died = find_expired_until_us(lives, reader.position_us, now_us, now_us)
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
