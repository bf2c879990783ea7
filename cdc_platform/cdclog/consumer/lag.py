"""How long rows of a log live, by the time of their write, and how far a reader is behind that.

A change of the TTL is observed later than it was made: the shorter of both TTLs counts from the last moment at
which the older one is known to have been in force.
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
    """How much of the time that unread rows live has passed."""

    FINE = "fine"
    HALF = "half"
    MOST = "three quarters"
    DYING = "dying"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class RowLifetime:
    """Rows written from `since_us` on, before `until_us` (µs), live for `ttl_us` (0: for ever)."""

    since_us: Microseconds
    until_us: Microseconds
    ttl_us: Microseconds


@dataclass(frozen=True)
class TtlStatus:
    """How far a reader is behind: `share` of the TTL of its oldest unread rows, None where they live for ever.

    `died_us`: rows up to then (µs) may have died unread. `ttl_us` is the shortest TTL of unread rows, None where it is
    not known.
    """

    lag: TtlLag
    ttl_us: Microseconds | None
    share: float | None
    died_us: Microseconds | None


def row_lifetimes(changes: Iterable[TableChange]) -> list[RowLifetime]:
    """Return the TTLs of rows of a log by when they were written, oldest first, from the changes of its table alone.

    The last log counts, where there was more than one. None where nothing is known of it.
    """
    mine = changes_since_last_drop(list(changes))
    if not mine:
        return []
    begins, found = [Microseconds(0)], list[RowLifetime]()
    ttls = [us_from_seconds(change.ttl_seconds) for change in mine]
    for (before, old), (after, new) in pairwise(zip(mine, ttls, strict=True)):
        begins.append(_in_force_us(before, after) if _is_shorter(new, old) else after.changed_at_us)
    ends = [*begins[1:], Microseconds(2**62)]
    for since, until, ttl in zip(begins, ends, ttls, strict=True):
        if since < until:
            found.append(RowLifetime(since, until, ttl))
    return found


def changes_since_last_drop(changes: Sequence[TableChange]) -> list[TableChange]:
    """Return the changes of the last log that a table had, all of them where it had one alone."""
    drops = [
        place for place, change in enumerate(changes) if change.what == TABLE_DROPPED and change is not changes[-1]
    ]
    return [change for change in changes[drops[-1] + 1 if drops else 0 :] if change.what != TABLE_DROPPED]


def find_expired_until_us(
    lives: Sequence[RowLifetime], after_us: Microseconds, until_us: Microseconds, now_us: Microseconds
) -> Microseconds | None:
    """Return up to when (µs) rows written later than `after_us` up to `until_us` may have died; None: none have."""
    ends = []
    for each in lives:
        last = min(each.until_us - ONE_US, until_us, now_us - each.ttl_us)
        if each.ttl_us and last >= max(each.since_us, after_us + ONE_US):
            ends.append(last)
    return Microseconds(max(ends)) if ends else None


def get_ttl_status(changes: Iterable[TableChange], reader: Consumer, now_us: Microseconds) -> TtlStatus:
    """Return how far a reader of a live cluster's log is behind the TTL of the rows that it has not read.

    `changes` are those of its table. One that has not read a window yet, or whose log is unknown, is unknown.
    """
    lives = row_lifetimes(changes)
    if not lives or not reader.window_number:
        return TtlStatus(TtlLag.UNKNOWN, None, None, None)
    unread = [each for each in lives if each.until_us > reader.position_us + ONE_US and each.since_us <= now_us]
    mortal = [each for each in unread if each.ttl_us]
    if not mortal:
        return TtlStatus(TtlLag.FINE, Microseconds(0), None, None)
    share = max(max(0, now_us - max(each.since_us, reader.position_us + ONE_US)) / each.ttl_us for each in mortal)
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
    return TtlStatus(lag, min(each.ttl_us for each in mortal), share, died)


def _is_shorter(new_us: Microseconds, old_us: Microseconds) -> bool:
    return bool(new_us) and (not old_us or new_us < old_us)


def _in_force_us(before: TableChange, after: TableChange) -> Microseconds:
    """Return from when on (µs) the TTL of a change may have been in force: it was made before it was observed."""
    earliest = max([before.changed_at_us, *parse_unchanged_until_us(after.ddl)])
    return Microseconds(min(earliest, after.changed_at_us))
