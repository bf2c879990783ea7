"""How far an ingest stays behind the clocks, what of a log may be gone by now, and when windows are read again.

Times in µs. What is read of a log at a time is left to `planning`.
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
    log_recreation_times,
    parse_alteration,
    unobserved_intervals,
)
from cdc_platform.scylla import ScyllaSession, Unreachable, require_row

_AGAIN_SHARE = 0.75
"""Of a row's time to live: when a window is read a second time, by default."""
_AGAIN_ROUNDS = 24
_SKEW_TOLD_US = SECOND_US * 5


@dataclass(frozen=True)
class ReadPolicy:
    """How far an ingest stays behind the slowest clock (`confidence_us`), and when it reads windows a second time.

    The second pass reads a window at the age of `second_pass_after_us`: None for three quarters of the log's TTL, 0
    for never. It runs once `second_pass_every_us` of time is due: None for a share of that age.
    """

    confidence_us: Microseconds = CONFIDENCE_WINDOW_US
    second_pass_after_us: Microseconds | None = None
    second_pass_every_us: Microseconds | None = None

    def again_after(self, ttl_us: Microseconds) -> Microseconds:
        """The age (µs) at which windows of a log are read again; 0 for never. `ttl_us` 0: rows live for ever."""
        if self.second_pass_after_us is not None:
            return self.second_pass_after_us
        return Microseconds(int((ttl_us or us_from_seconds(DAY_SECONDS)) * _AGAIN_SHARE))

    def again_every(self, ttl_us: Microseconds) -> Microseconds:
        """How much time (µs) has to be due before it is read again."""
        if self.second_pass_every_us is not None:
            return self.second_pass_every_us
        return Microseconds(self.again_after(ttl_us) // _AGAIN_ROUNDS)


def horizon_us(live: ScyllaSession, clock: Clock, pace: ReadPolicy, tell: Callable[[str], None]) -> Microseconds:
    """Up to when (µs) rows are read: the confidence window behind the slowest clock, nodes' or this machine's."""
    slowest = clock.now_us()
    for member in live.members:
        try:
            rows = live.select("system.local", "now() AS now", "WHERE key = 'local'", at=member.address)
        except Unreachable:
            tell(f"node {member.address} does not tell its time; rows that it writes late come as late ones")
            continue
        theirs = us_from_timeuuid(require_row(rows, "system.local")["now"])
        if slowest - theirs > _SKEW_TOLD_US:
            behind = (slowest - theirs) // SECOND_US
            tell(f"the clock of node {member.address} is {behind} s behind the others; windows wait for it")
        slowest = min(slowest, theirs)
    return Microseconds(slowest - pace.confidence_us)


@dataclass(frozen=True)
class Lifetimes:
    """How long rows of a log live, in µs: at the least and at the most, of all TTLs that it had; 0 for ever."""

    least_us: Microseconds
    most_us: Microseconds
    created_us: Microseconds
    by_time: Sequence[RowLifetime] = ()

    @classmethod
    def of(cls, lake: Lake, schema: TableSchema) -> Lifetimes:
        """Those of a table that the lake knows, since its log was made."""
        said = [change for change in cdc_tables.read_table_changes(lake) if change.full_name == schema.full_name]
        found = changes_since_last_drop(said)
        ttls = [us_from_seconds(change.ttl_seconds) for change in found]
        lived = [ttl for ttl in ttls if ttl]
        # A log of unknown age is older than everything.
        created = found[-1].created_at_us or Microseconds(0)
        least, most = min(lived, default=Microseconds(0)), Microseconds(0) if 0 in ttls else max(ttls)
        return cls(least, most, created, row_lifetimes(found))

    def since_us(self, now_us: Microseconds) -> Microseconds:
        """From when on (µs) rows may be there now."""
        return Microseconds(max(self.created_us, now_us - self.most_us) if self.most_us else self.created_us)

    def died_us(self, after_us: Microseconds, until_us: Microseconds, now_us: Microseconds) -> Microseconds | None:
        """Up to when (µs) rows written later than `after_us` up to `until_us` may have died unread; None: none have."""
        return find_expired_until_us(self.by_time, after_us, until_us, now_us)

    def first_us(self, sets: ReaderSets, now_us: Microseconds) -> Microseconds:
        """Before which time (µs) there is nothing to read: the generation begins there whose rows may still be there.

        A write's own time may be older than its row, as far as its generation goes.
        """
        lives = self.since_us(now_us)
        begun = [each for each in sets.seen if each <= lives]
        return Microseconds(max(begun, default=min(sets.seen, default=ONE_US)) - ONE_US)


def whole_since_us(lake: Lake, schema: TableSchema) -> Microseconds:
    """From when on (µs) the log that is here tells all that was written to its table, with the values."""
    log = log_table(schema)
    since = [Lifetimes.of(lake, schema).created_us, schema.truncated_us or 0]
    since += [(lake.transaction(log, name) or 0) + 1 for name in (GAP_APPLICATION, RETYPED_APPLICATION)]
    said = [each for each in cdc_tables.read_table_changes(lake) if each.full_name == schema.full_name]
    since += [_altered_us(each) for before, each in pairwise(said) if _tells_all(each) and not _tells_all(before)]
    since += [each.until_us for each in unobserved_intervals(said)]
    since += _columns_back(said)
    return Microseconds(max(since))


def _tells_all(change: TableChange) -> bool:
    """Whether the log of a table as it was told to be then has all writes, with what was written."""
    told = schema_from_change(change)
    return change.enabled and (told is None or told.cdc.delta == "full")


def _columns_back(said: Iterable[TableChange]) -> Iterator[Microseconds]:
    """When (µs) a column came that the table had lost: what the log has of the one before was dropped with that."""
    lost, names = set[str](), set[str]()
    for change in said:
        schema = schema_from_change(change)
        if schema is not None:
            now = {column.name for column in schema.columns}
            lost |= names - now
            if lost & now:
                yield _altered_us(change)
            lost, names = lost - now, now


def _altered_us(change: TableChange) -> Microseconds:
    """When (µs) a table became what was seen: as it was altered last, at the latest as that was seen."""
    noted = parse_alteration(change.ddl)
    return change.changed_at_us if noted is None else min(change.changed_at_us, noted.at_us)


def gaps_between(
    lake: Lake, schema: TableSchema, after_us: Microseconds, until_us: Microseconds, now_us: Microseconds
) -> list[LogGap]:
    """Return the gaps that reading rows later than `after_us` up to `until_us` (µs) at `now_us` reveals.

    Rows may have died unread, went with a log that was dropped and recreated, or were written while CDC was off.
    """
    lives, name, found = Lifetimes.of(lake, schema), (schema.keyspace, schema.name), list[LogGap]()
    said = [each for each in cdc_tables.read_table_changes(lake) if each.full_name == schema.full_name]
    since, end = Microseconds(after_us + ONE_US), Microseconds(until_us + ONE_US)
    recreated_us = max(log_recreation_times(said), default=since)
    if since < recreated_us:
        found.append(LogGap(*name, LogLoss.RECREATED, since, min(recreated_us, end), describe_recreation(recreated_us)))
    for before, each in pairwise(said):
        if each.enabled and not before.enabled:
            off_us, why = _off_since(said, before), "no log has what was written meanwhile"
            found.append(LogGap(*name, LogLoss.CDC_OFF, off_us, each.changed_at_us, why))
    for each in unobserved_intervals(said):
        if each.before.enabled:
            why = "if its CDC was off or logged less, no log has what was written meanwhile"
            ended = Microseconds(max(each.until_us, each.since_us + ONE_US))
            found.append(LogGap(*name, LogLoss.ALTERED, each.since_us, ended, why))
    gone = lives.died_us(after_us, until_us, now_us)
    if gone is not None:
        ttl_us = next(each.ttl_us for each in lives.by_time if each.since_us <= gone < each.until_us)
        why = f"they live for {ttl_us // SECOND_US} s, and are read later than that"
        found.append(LogGap(*name, LogLoss.DIED, since, Microseconds(gone + ONE_US), why))
    return [gap for gap in found if gap.overlaps(since, end)]


def before_reading(lake: Lake, schema: TableSchema, now_us: Microseconds) -> LogGap:
    """Return what no reader can have of a log that is read for the first time at `now_us` (µs)."""
    lives = Lifetimes.of(lake, schema)
    gone = lives.died_us(Microseconds(-ONE_US), now_us, now_us)
    until = Microseconds(max(lives.created_us, ONE_US, 0 if gone is None else gone + ONE_US))
    why = "the log was read first when it was gone, or was created then"
    return LogGap(schema.keyspace, schema.name, LogLoss.BEFORE_READING, Microseconds(0), until, why)


def died_before(schema: TableSchema, window: Window, died_us: Microseconds) -> LogGap:
    """Return the gap of rows of a window that may have died before the streams of its set could be read."""
    times = Microseconds(window.after_us + ONE_US), Microseconds(died_us + ONE_US)
    why = f"the streams of the generation of {format_us(window.set_us)} could not be read before"
    return LogGap(schema.keyspace, schema.name, LogLoss.DIED, *times, why)


def _off_since(said: list[TableChange], last: TableChange) -> Microseconds:
    """When CDC was switched off (µs) of a table of which `last` says that it is."""
    since = last.changed_at_us
    for change in reversed(said[: said.index(last) + 1]):
        if change.enabled:
            break
        since = change.changed_at_us
    return since


def second_pass_goes_first(
    position_us: Microseconds, policy: ReadPolicy, lives: Lifetimes, now_us: Microseconds
) -> bool:
    """Return True if the second pass of old windows runs before new windows are read.

    It does as a rule: the rows that it looks for die first. It does not after a stop so long that the next new window
    (behind `position_us`, µs) is itself due for a second pass by now (`now_us`). Rows that no pass has read die first
    then, and new windows come before the second pass.
    """
    after = policy.again_after(lives.least_us)
    return not after or position_us >= now_us - after
