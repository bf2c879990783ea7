"""Policies of an ingest: its distance from the clocks, expired log rows, and when to reread windows.

Times in µs. `planner` decides how the rows of a window are requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cdc_platform.cdclog import (
    CONFIDENCE_WINDOW_US,
    GAP_APPLICATION,
    RETYPED_APPLICATION,
    ReaderSets,
    RowLifetime,
    Window,
    changes_since_last_drop,
    describe_recreation,
    find_expired_until_us,
    log_table,
    row_lifetimes,
    schema_from_change,
)
from cdc_platform.clock import DAY_SECONDS, ONE_US, SECOND_US, Clock, Microseconds, format_us, us_from_seconds
from cdc_platform.cql import TableSchema, us_from_timeuuid
from cdc_platform.delta import Lake
from cdc_platform.metastore import (
    LogGap,
    LogLoss,
    TableChange,
    cdc_tables,
    log_gaps,
    log_recreation_times,
    parse_alteration,
    unobserved_intervals,
)
from cdc_platform.scylla import ScyllaSession, Unreachable, require_row

_SECOND_PASS_SHARE = 0.75
"""The share of a row's TTL after which the second pass reads its window, by default."""
_SECOND_PASS_ROUNDS = 24
_SKEW_TOLD_US = SECOND_US * 5


@dataclass(frozen=True)
class ReadPolicy:
    """How a log is read: how far behind the slowest clock (`confidence_us`), when a second time, and how fast.

    The second pass reads a window at the age of `second_pass_after_us`: None for three quarters of the log's TTL, 0 for
    never. It runs once `second_pass_every_us` of time is due: None for a share of that age. A process has up to
    `concurrency` requests in flight.
    """

    confidence_us: Microseconds = CONFIDENCE_WINDOW_US
    second_pass_after_us: Microseconds | None = None
    second_pass_every_us: Microseconds | None = None
    concurrency: int = 4

    def second_pass_age_us(self, ttl_us: Microseconds) -> Microseconds:
        """Return the age (µs) at which the second pass reads a log's windows; 0 for never. `ttl_us` 0 is no expiry."""
        if self.second_pass_after_us is not None:
            return self.second_pass_after_us
        return Microseconds(int((ttl_us or us_from_seconds(DAY_SECONDS)) * _SECOND_PASS_SHARE))

    def second_pass_interval_us(self, ttl_us: Microseconds) -> Microseconds:
        """Return how much time (µs) must be due before the second pass runs."""
        if self.second_pass_every_us is not None:
            return self.second_pass_every_us
        return Microseconds(self.second_pass_age_us(ttl_us) // _SECOND_PASS_ROUNDS)


def find_read_until_us(
    live: ScyllaSession, clock: Clock, policy: ReadPolicy, on_message: Callable[[str], None]
) -> Microseconds:
    """Return up to when (µs) to read: the confidence window behind the slowest clock, of the nodes or this machine."""
    slowest = clock.now_us()
    for member in live.members:
        try:
            rows = live.select("system.local", "now() AS now", "WHERE key = 'local'", at=member.address)
        except Unreachable:
            on_message(
                f"node {member.address} does not report its time; the second pass finds rows that it writes late"
            )
            continue
        theirs = us_from_timeuuid(require_row(rows, "system.local")["now"])
        if slowest - theirs > _SKEW_TOLD_US:
            behind = (slowest - theirs) // SECOND_US
            on_message(f"the clock of node {member.address} is {behind} s behind the others; reading stays behind it")
        slowest = min(slowest, theirs)
    return Microseconds(slowest - policy.confidence_us)


def describe_unnamed_datacenter(live: ScyllaSession) -> str | None:
    """Return a line if a cluster has several datacenters and the connection names none; else None."""
    if live.connection.datacenter is not None or len(live.datacenters) < 2:
        return None
    return (
        f"{live.name} has the datacenters {', '.join(live.datacenters)} and none is named, so rows are read from all "
        f"at {live.log_consistency}; add the cluster again with the nearest one as --datacenter"
    )


@dataclass(frozen=True)
class Lifetimes:
    """How long rows of a log live (µs), at least and at most, over all TTLs that it had; 0 for ever."""

    min_us: Microseconds
    max_us: Microseconds
    created_us: Microseconds
    by_time: Sequence[RowLifetime] = ()

    @classmethod
    def read(cls, lake: Lake, schema: TableSchema) -> Lifetimes:
        """Return the lifetimes of a table in the lake, since its log was created."""
        changes = [change for change in cdc_tables.read_table_changes(lake) if change.full_name == schema.full_name]
        current = changes_since_last_drop(changes)
        ttls = [us_from_seconds(change.ttl_seconds) for change in current]
        finite = [ttl for ttl in ttls if ttl]
        # A log of unknown age counts as older than everything.
        created = current[-1].created_at_us or Microseconds(0)
        least, most = min(finite, default=Microseconds(0)), Microseconds(0) if 0 in ttls else max(ttls)
        return cls(least, most, created, row_lifetimes(current))

    def since_us(self, now_us: Microseconds) -> Microseconds:
        """Return from when on (µs) rows may still exist now."""
        return Microseconds(max(self.created_us, now_us - self.max_us) if self.max_us else self.created_us)

    def find_expired_until_us(
        self, after_us: Microseconds, until_us: Microseconds, now_us: Microseconds
    ) -> Microseconds | None:
        """Return up to when (µs) rows written in `(after_us, until_us]` may have expired unread; None if none have."""
        return find_expired_until_us(self.by_time, after_us, until_us, now_us)

    def first_us(self, sets: ReaderSets, now_us: Microseconds) -> Microseconds:
        """Return the time (µs) before which there is nothing to read: the start of the first generation with live rows.

        A write's own timestamp may be older than its row, back to the start of its generation.
        """
        live_since = self.since_us(now_us)
        begins = [begin_us for begin_us in sets.seen if begin_us <= live_since]
        return Microseconds(max(begins, default=min(sets.seen, default=ONE_US)) - ONE_US)


def find_complete_since_us(lake: Lake, schema: TableSchema) -> Microseconds:
    """Return from when on (µs) the ingested log has all writes to its table, all with values or all without."""
    log = log_table(schema)
    since = [Lifetimes.read(lake, schema).created_us, schema.truncated_us or 0]
    since += [(lake.transaction(log, name) or 0) + 1 for name in (GAP_APPLICATION, RETYPED_APPLICATION)]
    changes = [change for change in cdc_tables.read_table_changes(lake) if change.full_name == schema.full_name]
    since += [
        _altered_us(change)
        for before, change in pairwise(changes)
        if change.enabled and (not before.enabled or _delta(change) != _delta(before))
    ]
    since += [change.until_us for change in unobserved_intervals(changes)]
    since += _columns_back(changes)
    since += [
        gap.until_us
        for gap in log_gaps.read_recorded_gaps(lake)
        if gap.full_name == schema.full_name and gap.what == LogLoss.BEFORE_START
    ]
    return Microseconds(max(since))


def _delta(change: TableChange) -> str:
    """Return whether the log of a table with this definition has values ("full") or only keys ("keys")."""
    schema = schema_from_change(change)
    return "full" if schema is None else schema.cdc.delta


def _columns_back(changes: Iterable[TableChange]) -> Iterator[Microseconds]:
    """Yield when (µs) a dropped column was added again; the drop removed the log's values of the old one."""
    lost, names = set[str](), set[str]()
    for change in changes:
        schema = schema_from_change(change)
        if schema is not None:
            now = {column.name for column in schema.columns}
            lost |= names - now
            if lost & now:
                yield _altered_us(change)
            lost, names = lost - now, now


def _altered_us(change: TableChange) -> Microseconds:
    """Return when (µs) a table got this definition: its last alteration, at the latest the time of the observation."""
    noted = parse_alteration(change.ddl)
    return change.changed_at_us if noted is None else min(change.changed_at_us, noted.at_us)


def find_gaps(
    lake: Lake, schema: TableSchema, after_us: Microseconds, until_us: Microseconds, now_us: Microseconds
) -> list[LogGap]:
    """Return the gaps that reading rows later than `after_us` up to `until_us` (µs) at `now_us` reveals.

    Rows may have died unread, went with a log that was dropped and recreated, or were written while CDC was off.
    """
    lifetimes, name, gaps = Lifetimes.read(lake, schema), (schema.keyspace, schema.name), list[LogGap]()
    changes = [change for change in cdc_tables.read_table_changes(lake) if change.full_name == schema.full_name]
    since, end = Microseconds(after_us + ONE_US), Microseconds(until_us + ONE_US)
    recreated_us = max(log_recreation_times(changes), default=since)
    if since < recreated_us:
        gaps.append(LogGap(*name, LogLoss.RECREATED, since, min(recreated_us, end), describe_recreation(recreated_us)))
    for before, change in pairwise(changes):
        if change.enabled and not before.enabled:
            off_us, why = _off_since(changes, before), "no log has what was written meanwhile"
            gaps.append(LogGap(*name, LogLoss.CDC_OFF, off_us, change.changed_at_us, why))
    for change in unobserved_intervals(changes):
        if change.before.enabled:
            why = "if its CDC was off or logged less, no log has what was written meanwhile"
            ended = Microseconds(max(change.until_us, change.since_us + ONE_US))
            gaps.append(LogGap(*name, LogLoss.ALTERED, change.since_us, ended, why))
    gone = lifetimes.find_expired_until_us(after_us, until_us, now_us)
    if gone is not None:
        ttl_us = next(change.ttl_us for change in lifetimes.by_time if change.since_us <= gone < change.until_us)
        why = f"they live for {ttl_us // SECOND_US} s, and are read later than that"
        gaps.append(LogGap(*name, LogLoss.DIED, since, Microseconds(gone + ONE_US), why))
    return [gap for gap in gaps if gap.overlaps(since, end)]


def gap_before_first_read(lake: Lake, schema: TableSchema, now_us: Microseconds) -> LogGap:
    """Return what no reader can have of a log that is read for the first time at `now_us` (µs)."""
    lifetimes = Lifetimes.read(lake, schema)
    gone = lifetimes.find_expired_until_us(Microseconds(-ONE_US), now_us, now_us)
    until = Microseconds(max(lifetimes.created_us, ONE_US, 0 if gone is None else gone + ONE_US))
    why = "the log was read first when it was gone, or was created then"
    return LogGap(schema.keyspace, schema.name, LogLoss.BEFORE_READING, Microseconds(0), until, why)


def gap_of_late_set(schema: TableSchema, window: Window, died_us: Microseconds) -> LogGap:
    """Return the gap of rows of a window that may have died before the streams of its set could be read."""
    times = Microseconds(window.after_us + ONE_US), Microseconds(died_us + ONE_US)
    why = f"the streams of the generation of {format_us(window.set_us)} could not be read before"
    return LogGap(schema.keyspace, schema.name, LogLoss.DIED, *times, why)


def _off_since(changes: list[TableChange], last: TableChange) -> Microseconds:
    """Return when (µs) CDC was disabled for a table whose definition `last` has it disabled."""
    since = last.changed_at_us
    for change in reversed(changes[: changes.index(last) + 1]):
        if change.enabled:
            break
        since = change.changed_at_us
    return since


def second_pass_goes_first(
    position_us: Microseconds, policy: ReadPolicy, lifetimes: Lifetimes, now_us: Microseconds
) -> bool:
    """Return True if the second pass of old windows runs before new windows are read.

    It does as a rule: the rows that it looks for die first. It does not after a stop so long that the next new window
    (behind `position_us`, µs) is itself due for a second pass by now (`now_us`). Rows that no pass has read die first
    then, and new windows come before the second pass.
    """
    after = policy.second_pass_age_us(lifetimes.min_us)
    return not after or position_us >= now_us - after
