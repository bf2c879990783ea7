"""The rows of windows, asked of a cluster by this process: a window by its streams, or several by one scan.

What a scan brings of later windows is kept until their turn, so that each still has a commit of its own. What does not
fit into memory is let go of, and asked for again in its turn. Commits are left to `ingesting`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.cluster.cells import OtherColumns, log_rows
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.observing import look
from cdc_platform.cluster.session import LiveCluster
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import NotFound
from cdc_platform.ingest.planner import STREAMS, Estimate, Next, Plan, Way, by_token, plan, served
from cdc_platform.ingest.policy import Lifetimes, rows_since, share_of
from cdc_platform.ingest.requests import LogQuery, empty_rows
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import mend
from cdc_platform.log.ddl import schema_of
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.following import TooManyRows
from cdc_platform.log.reading.left_out import Tell
from cdc_platform.log.reading.reader import ROWS_AT_ONCE, in_order
from cdc_platform.log.reading.sets import sets_of
from cdc_platform.log.reading.windows import Window, next_window
from cdc_platform.log.stored_names import EXACT, WRITTEN_AT
from cdc_platform.ring.tokens import UInt8s
from cdc_platform.timeline import StreamSource

_LEARNS = 3
_WINDOWS_AHEAD = 100


@dataclass(frozen=True)
class WindowResult:
    """What came for a window: rows, sorted; requests, of which there are none where an earlier window's scan had them.

    That one's number is `scanned_with`, None for a window that was asked for itself.
    """

    rows: pa.Table
    chosen: Estimate
    other: Estimate
    requests: int
    scanned_with: int | None = None


class WindowReader:
    """Asks for windows of one table's log, one after the other."""

    def __init__(
        self,
        live: LiveCluster,
        cluster: KnownCluster,
        clock: Clock,
        lake: Lake,
        schema: TableSchema,
        way: Way | None,
        tell: Tell,
    ) -> None:
        self.schema = schema
        self.begins_anew = False
        self._live, self._cluster, self._clock, self._lake = live, cluster, clock, lake
        self._way: Way | None = way
        self._tell = tell
        self._longest: Microseconds | None = None
        self._ahead: _Ahead | None = None
        self._streams: dict[Microseconds, int] = {}

    def longest_us(self, after_us: Microseconds) -> Microseconds | None:
        """As `Copier`: what is here already ends a window, and one that had too many rows shortens the next ones."""
        if self._ahead is not None and self._ahead.after_us <= after_us < self._ahead.until_us:
            return Microseconds(self._ahead.until_us - after_us)
        return self._longest

    def are_here(self, window: Window) -> bool:
        """Whether an earlier window's scan has brought the rows of this one."""
        return self._ahead is not None and self._ahead.covers(window)

    def asking(self) -> LogQuery:
        """What asks for rows of the log as it is known now."""
        return LogQuery(self._live.name, self._live.connection, self.schema, self._live.is_scylla)

    def plan(self, source: StreamSource, window: Window, horizon_us: Microseconds | None = None) -> Plan:
        """How a window is asked for; with a horizon (µs) together with what comes up to then, where that is cheaper."""
        streams = by_token(_streams_of(source, window))
        self._streams[window.set_us] = len(streams)
        held, since, now = self._held()
        coming = () if horizon_us is None else islice(self._coming(source, window, horizon_us), _WINDOWS_AHEAD)
        nexts = [Next(each.until_us, self._count(source, each), share_of(each, since, now)) for each in coming]
        page_rows = self._live.connection.page_rows
        return plan(window, streams, held, share_of(window, since, now), page_rows, self._way, nexts)

    def come(
        self, source: StreamSource, window: Window, horizon_us: Microseconds, made: Plan | None = None
    ) -> WindowResult:
        """The rows of a window, by its own requests, as they were planned, or those that an earlier one has made.

        Raises:
            TooManyRows: they do not fit into memory; `longest_us` is shorter from now on.
            OtherColumns: the table was altered, and its definition is not understood.
        """
        if not self.are_here(window):
            self._ahead = self._asked(source, window, horizon_us, made)
        ahead = self._ahead
        assert ahead is not None
        if not ahead.covers(window):
            raise TooManyRows
        rows = ahead.of(window)
        if ahead.until_us == window.until_us:
            self._ahead = None
        if ahead.number is None:
            ahead.number = window.number
            return WindowResult(rows, ahead.plan.chosen, ahead.plan.other, ahead.requests)
        held, since, now = self._held()
        estimates = served(
            window, self._count(source, window), held, share_of(window, since, now), self._live.connection.page_rows
        )
        return WindowResult(rows, *estimates, 0, ahead.number)

    def learn(self) -> None:
        """Look at the cluster again: its table was altered since it was looked at."""
        look(self._live, self._cluster, self._clock)
        self.schema = definition(self._lake, self.schema.keyspace, self.schema.name)

    def _coming(self, source: StreamSource, window: Window, horizon_us: Microseconds) -> Iterator[Window]:
        """The windows behind one that can be read by now."""
        sets = sets_of(source, self._clock.now_us())
        longest = self._longest
        after: Window | None = window
        while after is not None:
            after = next_window(sets, after.until_us, after.number, horizon_us, longest_us=longest)
            if after is None or not (after.passed or source.is_complete(after.set_us)):
                return
            if not after.passed:
                yield after

    def _count(self, source: StreamSource, window: Window) -> int:
        if window.set_us not in self._streams:
            self._streams[window.set_us] = len(_streams_of(source, window))
        return self._streams[window.set_us]

    def _held(self) -> tuple[int | None, Microseconds, Microseconds]:
        """About how many rows the log has, None where nobody knows; since when they are there and what is now (µs)."""
        lives, now = Lifetimes.of(self._lake, self.schema), self._clock.now_us()
        since = lives.since_us(now)
        held = None if self.begins_anew else rows_since(self._lake, log_table(self.schema), since)
        return held, since, now

    def _asked(self, source: StreamSource, window: Window, horizon_us: Microseconds, made: Plan | None) -> _Ahead:
        doubtful = True
        for place in range(_LEARNS):
            try:
                return self._read(made or self.plan(source, window, horizon_us), doubtful)
            except OtherColumns:
                if place == _LEARNS - 1:
                    raise
                known = self.schema
                self.learn()
                # A value that is none of its column's type may be one of a newer type, and if not it is none at all.
                doubtful = self.schema != known
        raise AssertionError("unreachable: the last try raises")

    def _read(self, made: Plan, doubtful: bool) -> _Ahead:
        """All rows of a plan; where it is `doubtful` a value that is none of its type is another table's."""
        found = _Ahead(made, made.until_us)
        unreadable: Counter[str] = Counter()
        # Each condition is made when it is sent: up to when rows are asked for may be less by then.
        conditions = (made.condition(place, found.until_us) for place in made.places)
        for pages in self.asking().answers(conditions):
            found.requests += len(pages)
            if any(page.rows for page in pages):
                part = log_rows(self.schema, pages)
                unreadable.update(part.unreadable)
                found.add(part.rows)
        if doubtful and unreadable:
            raise OtherColumns(f"{', '.join(unreadable)} of {self.schema.full_name} have values of another type")
        for name, several in unreadable.items():
            self._tell(f"{several} values of {self.schema.full_name}.{name} are none of its type, and come as null")
        found.rows = in_order(pa.concat_tables(_alike(found.parts))) if found.parts else empty_rows(self.schema)
        found.parts.clear()
        if made.chosen.way == STREAMS:
            self._learn_length(found)
        return found

    def _learn_length(self, found: _Ahead) -> None:
        """Ask for less time at once, where rows had to be let go of that will be asked for again; else for more."""
        if found.until_us < found.plan.until_us:
            self._longest = Microseconds(found.until_us - found.after_us)
        elif self._longest is not None:
            self._longest = Microseconds(self._longest * 2)


@dataclass
class _Ahead:
    """Rows later than `after_us` up to `until_us` (µs), all that the log has.

    `number` is that of the window they came with, None until that was told of.
    """

    plan: Plan
    until_us: Microseconds
    parts: list[pa.Table] = field(default_factory=list)
    rows: pa.Table = field(default_factory=lambda: pa.table({}))
    requests: int = 0
    number: int | None = None

    @property
    def after_us(self) -> Microseconds:
        """Behind what they begin."""
        return self.plan.after_us

    def covers(self, window: Window) -> bool:
        """Whether all rows of a window are here."""
        return self.after_us <= window.after_us and window.until_us <= self.until_us

    def add(self, rows: pa.Table) -> None:
        """Take rows in. Where they become more than fit into memory, the later half of their time is let go of."""
        self.parts.append(_until(rows, self.until_us))
        if sum(part.num_rows for part in self.parts) <= ROWS_AT_ONCE:
            return
        times = np.concatenate([_times(part) for part in self.parts])
        middle = int(np.partition(times, len(times) // 2)[len(times) // 2])
        # Rows of one microsecond are not told apart.
        until = middle - 1 if middle > int(times.min()) else middle
        if until < self.until_us:
            self.until_us = Microseconds(until)
            self.parts[:] = [_until(part, self.until_us) for part in self.parts]

    def of(self, window: Window) -> pa.Table:
        """The rows of a window, sorted."""
        if self.rows.num_rows == 0:
            return self.rows
        times = _times(self.rows)
        first, last = np.searchsorted(times, [window.after_us, window.until_us], side="right").tolist()
        return self.rows.slice(first, last - first)


def definition(lake: Lake, keyspace: str, table: str) -> TableSchema:
    """The table as the cluster was seen to have it last.

    Raises:
        NotFound: it has none with a log, or one that the platform does not understand.
    """
    try:
        return schema_of(lake, keyspace, table)
    except NotFound:
        look = mend(lake, "cdc-platform cluster test", "cdc-platform cluster test {cluster}")
        raise NotFound(
            f"the cluster has no table {keyspace}.{table} with a CDC log whose definition is understood; look at what"
            f" there is with: {look}"
        ) from None


def _streams_of(source: StreamSource, window: Window) -> UInt8s:
    """The streams (uint8[k, 16]) of a window's set."""
    return next(each for each in source.periods() if each.begin_us == window.set_us).streams().streams


def _times(rows: pa.Table) -> np.ndarray:
    """When rows were written, in µs."""
    return rows[WRITTEN_AT].cast(pa.int64()).to_numpy()


def _until(rows: pa.Table, until_us: Microseconds) -> pa.Table:
    times = _times(rows)
    return rows if not len(times) or int(times.max()) <= until_us else rows.filter(pa.array(times <= until_us))


def _alike(several: Sequence[pa.Table]) -> list[pa.Table]:
    """Tables of one log, of which some have the column for values that no native one holds."""
    wide = next((each.schema for each in several if EXACT in each.column_names), None)
    if wide is None:
        return list(several)
    return [
        each
        if EXACT in each.column_names
        else each.append_column(wide.field(EXACT), pa.nulls(each.num_rows, wide.field(EXACT).type))
        for each in several
    ]
