"""Plan how to request the rows of a window, by streams or by token ranges, and estimate the server's cost of each.

A request for streams makes the server look up each of them, whether they have rows or not. A scan of the ring
makes it read every row that the log still holds, for one window or for several. The plan looks at fewer of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

import numpy as np

from cdc_platform.cdclog import WRITTEN_AT, Window, log_table
from cdc_platform.clock import Microseconds, us_from_datetime
from cdc_platform.cql import TableSchema, min_timeuuid, quote_name
from cdc_platform.delta import Lake
from cdc_platform.ingest.policy import Lifetimes
from cdc_platform.ring import LAST_TOKEN, UInt8s
from cdc_platform.tables import Table
from cdc_platform.timeline import StreamSource

Way = Literal["streams", "ranges"]
STREAMS: Way = "streams"
RANGES: Way = "ranges"
MIN_STREAMS_A_REQUEST, MAX_STREAMS_A_REQUEST = 16, 100
"""A server refuses more partition keys in one IN, unless configured otherwise.

With fewer streams a request, several are in flight even if all rows of a window are in few streams: a backlog took 1.3
seconds instead of 2.1. Smaller requests cost the server more.
"""
LOOKS_A_TASK = 250_000
"""Streams and rows that the server looks at for one task of Spark."""
LEAST_RANGES = 16
"""Token ranges of a scan of a small log."""
MOST_RANGES = 128
ROWS_A_RANGE = 50_000
UNKNOWN_ROWS = 100_000
"""The assumed number of rows of a log that was never read."""
_FIRST_TOKEN = -(2**63)


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a way to read: requests, and what the server looks at (streams and rows).

    `windows` is the number of windows that it reads, the first one included.
    """

    way: Way
    requests: int
    looks: int
    windows: int = 1


@dataclass(frozen=True)
class Plan:
    """The requests for rows in `(after_us, until_us]` (µs): of one window, or of several by one scan.

    `places` are the conditions after WHERE, without the times. `other` is the estimate of the rejected way. `ends` are
    the ends of the windows (µs).
    """

    places: Sequence[str]
    after_us: Microseconds
    until_us: Microseconds
    chosen: Estimate
    other: Estimate
    ends: tuple[Microseconds, ...]

    @property
    def conditions(self) -> list[str]:
        """Return the conditions after WHERE, one for each request."""
        times = _between(self.after_us, self.until_us)
        return [f"{condition} AND {times}" for condition in self.places]

    @property
    def task_count(self) -> int:
        """Return into how many tasks of Spark to split the requests, by the estimated number of rows."""
        return max(1, min(len(self.places), -(-self.chosen.looks // LOOKS_A_TASK)))

    def tasks(self) -> list[list[str]]:
        """Return the conditions of each task, in parts of equal length."""
        conditions, count = self.conditions, self.task_count
        edges = [len(conditions) * index // count for index in range(count + 1)]
        return [conditions[first:last] for first, last in pairwise(edges)]


@dataclass(frozen=True)
class Next:
    """A window that one scan would read with the first: its end (µs), its streams, and its share as in `plan`."""

    until_us: Microseconds
    streams: int
    share: float


def plan(
    window: Window,
    streams: UInt8s,
    held: int | None,
    share: float,
    page_rows: int,
    way: Way | None = None,
    coming: Iterable[Next] = (),
) -> Plan:
    """Plan the requests of a window over streams uint8[k, 16]; one scan also reads the windows that are `coming`.

    `held` is the number of rows that the log holds, None if unknown; `share` is the estimated part of them in the
    window. With `way`, plan that way regardless of its cost.
    """
    rows = UNKNOWN_ROWS if held is None else held
    ranges = min(MOST_RANGES, max(LEAST_RANGES, rows // ROWS_A_RANGE))
    windows = [Next(window.until_us, len(streams), share), *coming]
    ends = tuple(candidate.until_us for candidate in windows)
    costs = [_by_streams(candidate, rows, page_rows) for candidate in windows]
    inside = sum(_inside(candidate, rows) for candidate in windows)
    one_scan = Estimate(RANGES, ranges + inside // page_rows, rows + ranges, len(windows))
    by_streams = Estimate(
        STREAMS,
        sum(candidate.requests for candidate in costs),
        sum(candidate.looks for candidate in costs),
        len(windows),
    )
    if (one_scan.looks < by_streams.looks) if way is None else way == RANGES:
        return Plan(_of_ranges(ranges), window.after_us, windows[-1].until_us, one_scan, by_streams, ends)
    conditions = _of_streams(streams, _streams_a_request(windows[0], rows, page_rows))
    return Plan(conditions, window.after_us, window.until_us, costs[0], one_scan, ends[:1])


def served(window: Window, streams: int, held: int | None, share: float, page_rows: int) -> tuple[Estimate, Estimate]:
    """Return the estimates for a window whose rows an earlier window's scan has read: no cost, against its streams."""
    rows = UNKNOWN_ROWS if held is None else held
    return Estimate(RANGES, 0, 0), _by_streams(Next(window.until_us, streams, share), rows, page_rows)


def _inside(window: Next, rows: int) -> int:
    return int(rows * min(max(window.share, 0.0), 1.0))


def _by_streams(window: Next, rows: int, page_rows: int) -> Estimate:
    inside = _inside(window, rows)
    requests = -(-window.streams // _streams_a_request(window, rows, page_rows)) + inside // page_rows
    return Estimate(STREAMS, requests, window.streams + inside)


def _streams_a_request(window: Next, rows: int, page_rows: int) -> int:
    """Return how many streams a request names: as many as have about one page of rows, within bounds."""
    fill_a_page = window.streams * page_rows // max(_inside(window, rows), 1)
    return min(MAX_STREAMS_A_REQUEST, max(MIN_STREAMS_A_REQUEST, fill_a_page))


@dataclass(frozen=True)
class StoredRows:
    """The approximate number of rows in a cluster's log, None if unknown, and since when they exist (µs)."""

    rows: int | None
    since_us: Microseconds
    now_us: Microseconds

    def share(self, window: Window) -> float:
        """Return the estimated part of the rows that a window has."""
        length = window.until_us - max(window.after_us, self.since_us)
        return length / max(self.now_us - self.since_us, 1)


class WindowPlanner:
    """Plans how to read windows of one log, for the command and for the Spark data source."""

    def __init__(self, lake: Lake, schema: TableSchema, page_rows: int, way: Way | None = None) -> None:
        self._lake, self._schema, self._page_rows = lake, schema, page_rows
        self._way: Way | None = way
        self._counts: dict[Microseconds, int] = {}

    def stored(self, now_us: Microseconds, *, first_read: bool = False) -> StoredRows:
        """Estimate the log's rows from those in the lake; unknown for the first window of a reader."""
        since = Lifetimes.read(self._lake, self._schema).since_us(now_us)
        rows = None if first_read else rows_since(self._lake, log_table(self._schema), since)
        return StoredRows(rows, since, now_us)

    def plan(self, source: StreamSource, window: Window, stored: StoredRows, coming: Iterable[Window] = ()) -> Plan:
        """Plan the requests of a window; one scan also reads the windows that are `coming`."""
        streams = streams_of(source, window)
        self._counts[window.set_us] = len(streams)
        behind = [
            Next(following.until_us, self._count(source, following), stored.share(following)) for following in coming
        ]
        share = stored.share(window)
        return plan(window, by_token(streams), stored.rows, share, self._page_rows, self._way, behind)

    def plan_all(self, source: StreamSource, windows: Sequence[Window], stored: StoredRows) -> Iterator[Plan]:
        """Plan windows one by one, or several by one scan, without skipped ones."""
        for passed, together in groupby(windows, key=lambda window: window.passed):
            remaining = [] if passed else list(together)
            while remaining:
                next_plan = self.plan(source, remaining[0], stored, remaining[1:])
                yield next_plan
                remaining = remaining[next_plan.chosen.windows :]

    def served(self, source: StreamSource, window: Window, stored: StoredRows) -> tuple[Estimate, Estimate]:
        """Return the estimates to report for a window whose rows the scan of an earlier one has read."""
        return served(window, self._count(source, window), stored.rows, stored.share(window), self._page_rows)

    def _count(self, source: StreamSource, window: Window) -> int:
        if window.set_us not in self._counts:
            self._counts[window.set_us] = len(streams_of(source, window))
        return self._counts[window.set_us]


def streams_of(source: StreamSource, window: Window) -> UInt8s:
    """Return the streams (uint8[k, 16]) of a window's set."""
    return next(period for period in source.periods() if period.begin_us == window.set_us).streams().streams


def rows_since(lake: Lake, sink: Table, since_us: Microseconds) -> int | None:
    """Estimate how many of the lake's rows of a log were written from `since_us` (µs) on; None without a table."""
    if not lake.exists(sink):
        return None
    count = 0.0
    for low, high, rows in lake.file_bounds(sink, WRITTEN_AT):
        first, last = us_from_datetime(low), us_from_datetime(high)
        if last >= since_us:
            count += rows * min(1.0, (last - since_us + 1) / (last - first + 1))
    return int(count)


def statement(schema: TableSchema, condition: str, bypass_cache: bool) -> str:
    """Return the SELECT of one request."""
    scans = " ALLOW FILTERING" if condition.startswith("token(") else ""
    end = " BYPASS CACHE" if bypass_cache else ""
    return f"SELECT * FROM {log_name(schema)} WHERE {condition}{scans}{end}"


def log_name(schema: TableSchema) -> str:
    """Return the log's name in CQL."""
    return f"{quote_name(schema.keyspace)}.{quote_name(schema.log_name)}"


def _of_streams(streams: UInt8s, streams_a_request: int) -> list[str]:
    texts = [f"0x{stream.tobytes().hex()}" for stream in streams]
    return [
        f'"cdc$stream_id" IN ({", ".join(texts[first : first + streams_a_request])})'
        for first in range(0, len(texts), streams_a_request)
    ]


def _of_ranges(count: int) -> list[str]:
    ends = [_FIRST_TOKEN + (LAST_TOKEN - _FIRST_TOKEN) * index // count for index in range(count + 1)]
    key = 'token("cdc$stream_id")'
    return [f"{key} > {low} AND {key} <= {high}" for low, high in pairwise(ends)]


def _between(after_us: Microseconds, until_us: Microseconds) -> str:
    """Return the condition `after_us` < time <= `until_us`, by the least timeuuids of the microseconds after both."""
    low, high = (min_timeuuid(Microseconds(time_us + 1)) for time_us in (after_us, until_us))
    return f'"cdc$time" >= {low} AND "cdc$time" < {high}'


def by_token(streams: UInt8s) -> UInt8s:
    """Sort streams by token, so that the streams of a request are close to each other on the ring."""
    tokens = np.ascontiguousarray(streams[:, :8]).view(">i8")[:, 0]
    return streams[np.argsort(tokens, kind="stable")]
