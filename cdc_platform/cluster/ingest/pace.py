"""How far an ingest stays behind the clocks, what of a log may be gone by now, and when windows are read again.

Times in µs. What is read of a log at a time is left to `planning`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from cdc_platform.clock import (
    DAY_SECONDS,
    ONE_US,
    SECOND_US,
    Clock,
    Microseconds,
    format_us,
    from_datetime,
    us_of_seconds,
)
from cdc_platform.cluster.ingest.shape import ASIDE
from cdc_platform.cluster.refusals import Unreachable
from cdc_platform.cluster.session import LiveCluster, one
from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.types import timeuuid_us
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.log.ddl import schema_as_told
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.sets import SAFETY_US
from cdc_platform.log.reading.windows import Sets, Window
from cdc_platform.log.stored_names import WRITTEN_AT
from cdc_platform.records import cdc_tables
from cdc_platform.records.alterations import altered, unseen
from cdc_platform.records.table_history import DROPPED, TableChange

GAP = "ingest:gap"
"""The application under which a log's table notes up to when (µs) rows of it may have died unread."""
_AGAIN_SHARE = 0.75
"""Of a row's time to live: when a window is read a second time, by default."""
_AGAIN_ROUNDS = 24
_SKEW_TOLD_US = SECOND_US * 5


@dataclass(frozen=True)
class Pace:
    """The settings of an ingest. `confidence_us`: how far it stays behind the slowest clock.

    `again_after_us`: the age at which a window is read a second time, None for three quarters of the log's TTL, 0 for
    never; `again_every_us`: how much of such time is read at once, None for a part of it.
    """

    confidence_us: Microseconds = SAFETY_US
    again_after_us: Microseconds | None = None
    again_every_us: Microseconds | None = None

    def again_after(self, ttl_us: Microseconds) -> Microseconds:
        """The age (µs) at which windows of a log are read again; 0 for never. `ttl_us` 0: rows live for ever."""
        if self.again_after_us is not None:
            return self.again_after_us
        return Microseconds(int((ttl_us or us_of_seconds(DAY_SECONDS)) * _AGAIN_SHARE))

    def again_every(self, ttl_us: Microseconds) -> Microseconds:
        """How much time (µs) has to be due before it is read again."""
        if self.again_every_us is not None:
            return self.again_every_us
        return Microseconds(self.again_after(ttl_us) // _AGAIN_ROUNDS)


def horizon_us(live: LiveCluster, clock: Clock, pace: Pace, tell: Callable[[str], None]) -> Microseconds:
    """Up to when (µs) rows are read: the confidence window behind the slowest clock, nodes' or this machine's."""
    slowest = clock.now_us()
    for member in live.members:
        try:
            rows = live.select("system.local", "now() AS now", "WHERE key = 'local'", at=member.address)
        except Unreachable:
            tell(f"node {member.address} does not tell its time; rows that it writes late come as late ones")
            continue
        theirs = timeuuid_us(one(rows, "system.local")["now"])
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

    @classmethod
    def of(cls, lake: Lake, schema: TableSchema) -> Lifetimes:
        """Those of a table that the lake knows, since its log was made."""
        said = [change for change in cdc_tables.changes(lake) if change.full_name == schema.full_name]
        drops = [place for place, change in enumerate(said) if change.what == DROPPED and change is not said[-1]]
        found = [change for change in said[drops[-1] + 1 if drops else 0 :] if change.what != DROPPED]
        ttls = [us_of_seconds(change.ttl_seconds) for change in found]
        lived = [ttl for ttl in ttls if ttl]
        # A log of unknown age is older than everything.
        created = found[-1].created_at_us or Microseconds(0)
        return cls(min(lived, default=Microseconds(0)), Microseconds(0) if 0 in ttls else max(ttls), created)

    def since_us(self, now_us: Microseconds) -> Microseconds:
        """From when on (µs) rows may be there now."""
        return Microseconds(max(self.created_us, now_us - self.most_us) if self.most_us else self.created_us)

    def gone_us(self, now_us: Microseconds) -> Microseconds | None:
        """Rows written at or before this time (µs) may be gone; None where they live for ever."""
        return Microseconds(now_us - self.least_us) if self.least_us else None

    def died_us(self, after_us: Microseconds, until_us: Microseconds, now_us: Microseconds) -> Microseconds | None:
        """Up to when (µs) rows written later than `after_us` up to `until_us` may have died unread; None: none have."""
        gone = self.gone_us(now_us)
        return Microseconds(min(gone, until_us)) if gone is not None and after_us < gone else None

    def first_us(self, sets: Sets, now_us: Microseconds) -> Microseconds:
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
    since += [(lake.transaction(log, name) or 0) + 1 for name in (GAP, ASIDE)]
    said = [each for each in cdc_tables.changes(lake) if each.full_name == schema.full_name]
    since += [_altered_us(each) for before, each in pairwise(said) if _tells_all(each) and not _tells_all(before)]
    since += [each.until_us for each in unseen(said)]
    since += _columns_back(said)
    return Microseconds(max(since))


def _tells_all(change: TableChange) -> bool:
    """Whether the log of a table as it was told to be then has all writes, with what was written."""
    told = schema_as_told(change)
    return change.enabled and (told is None or told.cdc.delta == "full")


def _columns_back(said: Iterable[TableChange]) -> Iterator[Microseconds]:
    """When (µs) a column came that the table had lost: what the log has of the one before was dropped with that."""
    lost, names = set[str](), set[str]()
    for change in said:
        schema = schema_as_told(change)
        if schema is not None:
            now = {column.name for column in schema.columns}
            lost |= names - now
            if lost & now:
                yield _altered_us(change)
            lost, names = lost - now, now


def _altered_us(change: TableChange) -> Microseconds:
    """When (µs) a table became what was seen: as it was altered last, at the latest as that was seen."""
    noted = altered(change.ddl)
    return change.changed_at_us if noted is None else min(change.changed_at_us, noted.at_us)


def what_is_gone(
    lake: Lake, schema: TableSchema, after_us: Microseconds, until_us: Microseconds, now_us: Microseconds
) -> list[str]:
    """What is told of rows written later than `after_us` up to `until_us` (µs) that nobody can read any more.

    Some may have lived and died unread, went with a log that was made anew, or were written while CDC was off.
    """
    lives, name, told = Lifetimes.of(lake, schema), schema.full_name, list[str]()
    said = [each for each in cdc_tables.changes(lake) if each.full_name == name]
    made_anew = any(each.what == DROPPED for each in said)
    if made_anew and after_us < lives.created_us <= until_us:
        told.append(
            f"the log of {name} was made anew at {format_us(lives.created_us)}: what was written to the one before"
            f" after {format_us(after_us)} went with it unread"
        )
    for before, each in pairwise(said):
        if each.enabled and not before.enabled and after_us < each.changed_at_us <= until_us:
            told.append(
                f"CDC of {name} was off from {format_us(_off_since(said, before))} to {format_us(each.changed_at_us)}:"
                " no log tells what was written meanwhile"
            )
    for each in unseen(said):
        if each.before.enabled and after_us < each.until_us <= until_us:
            told.append(
                f"{name} was altered between {format_us(each.since_us)} and {format_us(each.until_us)}, and looks as"
                " before: if its CDC was off or logged less, no log tells what was written meanwhile"
            )
    gone = lives.died_us(after_us, until_us, now_us)
    if gone is not None:
        told.append(
            f"rows of {name} written from {format_us(after_us)} to {format_us(gone)} may be gone: they live for"
            f" {lives.least_us // SECOND_US} s, and are read later than that"
        )
    return told


def died_before(schema: TableSchema, window: Window, died_us: Microseconds) -> str:
    """Return a line about rows of a window that may have died before the streams of its set could be read."""
    return (
        f"rows of {schema.full_name} written from {format_us(window.after_us)} to {format_us(died_us)} may be gone: the"
        f" streams of the generation of {format_us(window.set_us)} could not be read before"
    )


def _off_since(said: list[TableChange], last: TableChange) -> Microseconds:
    """When CDC was switched off (µs) of a table of which `last` says that it is."""
    since = last.changed_at_us
    for change in reversed(said[: said.index(last) + 1]):
        if change.enabled:
            break
        since = change.changed_at_us
    return since


def rows_since(lake: Lake, sink: Table, since_us: Microseconds) -> int | None:
    """About how many rows of a log that is here were written from then on (µs); None where nothing is here."""
    if not lake.exists(sink):
        return None
    count = 0.0
    for low, high, rows in lake.file_bounds(sink, WRITTEN_AT):
        first, last = from_datetime(low), from_datetime(high)
        if last >= since_us:
            count += rows * min(1.0, (last - since_us + 1) / (last - first + 1))
    return int(count)


def share_of(window: Window, since_us: Microseconds, now_us: Microseconds) -> float:
    """The part of a log's rows since then that a window is thought to have."""
    return (window.until_us - max(window.after_us, since_us)) / max(now_us - since_us, 1)
