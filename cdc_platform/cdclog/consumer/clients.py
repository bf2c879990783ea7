"""How ScyllaDB's own CDC clients read a log: their windows, groups and checkpoints, and the resulting load.

Figures are the defaults of scylla-cdc-go 1.2, scylla-cdc-rust 0.7 and scylla-cdc-java 1.3 (the base of the Kafka
connector); for Alternator Streams those of the server and of Amazon's KCL. This module only computes; it reads no log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cdc_platform.clock import DAY_SECONDS, Microseconds, format_us, seconds_from_us, us_from_ms, us_from_seconds
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.metastore import CdcTable, tablets
from cdc_platform.timeline import StreamSources, read_generation_sizes

MAX_STREAMS_PER_QUERY = 100
"""Streams that a server accepts in one query: default of `max_partition_key_restrictions_per_query`."""
MAX_STREAMS_PER_PAGE = 100
"""Streams in one answer of DescribeStream: the limit of DynamoDB's API, which Alternator keeps."""


class ReadGroup(StrEnum):
    """The unit that a client reads in one query, or stores a checkpoint of."""

    RANGE = "range"
    STREAM = "stream"
    TABLE = "table"


@dataclass(frozen=True)
class CdcClient:
    """A client with its settings, times in seconds.

    `reads` and `reads_tablets` are the units of a query with vnodes and with tablets; `keeps` is the unit of a
    checkpoint. `window_s` is the length of the log in one query. `cycle_s` is the pause between two reads once the
    client has caught up. `confidence_s` is its distance from the clock. `poll_s` is the interval of looking for a new
    generation. `flush_s` is the interval of writing checkpoints, 0 with each read. `starts_s` is how far back it begins
    without a checkpoint, None for the log's TTL.
    """

    name: str
    reads: ReadGroup
    reads_tablets: ReadGroup
    keeps: ReadGroup
    confidence_s: int
    window_s: int
    cycle_s: int
    poll_s: int
    flush_s: int
    starts_s: int | None = None


CDC_CLIENTS = {
    client.name: client
    for client in (
        CdcClient("go", ReadGroup.RANGE, ReadGroup.STREAM, ReadGroup.STREAM, 30, 30, 30, 15, 0, starts_s=60),
        CdcClient("rust", ReadGroup.RANGE, ReadGroup.STREAM, ReadGroup.STREAM, 30, 60, 10, 10, 10),
        CdcClient("java", ReadGroup.RANGE, ReadGroup.TABLE, ReadGroup.RANGE, 30, 30, 30, 30, 0),
        CdcClient("connector", ReadGroup.RANGE, ReadGroup.TABLE, ReadGroup.RANGE, 30, 30, 30, 30, 60),
        CdcClient("alternator", ReadGroup.STREAM, ReadGroup.STREAM, ReadGroup.STREAM, 10, DAY_SECONDS, 1, 60, 0),
    )
}
"""By name. Java's reader has one task for all tablets of a table (scylla-cdc-java#190).

Alternator's shard is a stream (scylladb#13080), which KCL queries once a second regardless of the result. It answers
from any time onwards, so catching up with a shard takes as many calls as its rows need, one here.
"""


@dataclass(frozen=True)
class BacklogPart:
    """The unread part of a generation or stream set: its length (s), ranges (0: tablets) and streams."""

    seconds: float
    ranges: int
    streams: int

    def count(self, client: CdcClient) -> int:
        """Return the number of queries per window."""
        return self._of(client.reads if self.ranges else client.reads_tablets)

    def count_checkpoints(self, client: CdcClient) -> int:
        """Return the number of checkpoints."""
        if not self.ranges and client.reads_tablets is ReadGroup.TABLE:
            return 1
        return self._of(client.keeps if self.ranges else ReadGroup.STREAM)

    def _of(self, group: ReadGroup) -> int:
        return {ReadGroup.RANGE: self.ranges, ReadGroup.STREAM: self.streams, ReadGroup.TABLE: 1}[group]

    def windows(self, client: CdcClient) -> int:
        """Return the number of windows into which a client cuts it."""
        return max(1, -int(-self.seconds // client.window_s))


@dataclass(frozen=True)
class ClientReadPlan:
    """The load of a client without a checkpoint until it has caught up, and then per day.

    `windows` are those of each of the `groups` of the newest part; `requests` are those of all groups of all parts.
    `checkpoints` are the stored rows, keys or leases. `..._a_day` are maxima after it has caught up. `streams_a_query`
    is that of the largest group.
    """

    groups: int
    windows: int
    requests: int
    requests_a_day: int
    checkpoints: int
    checkpoint_writes_a_day: int
    streams_a_query: int
    pages_of_streams: int

    @property
    def is_refused(self) -> bool:
        """Return True if a server by default refuses its queries because they have too many streams."""
        return self.streams_a_query > MAX_STREAMS_PER_QUERY


def plan_client_reads(client: CdcClient, parts: Iterable[BacklogPart]) -> ClientReadPlan:
    """Return the plan for parts in reading order, the newest last; there is at least one.

    Each group and window takes a query, as in the figures of scylla-cdc-java#1: 180 days in windows of 30 s are 518,400
    windows, and 530,841,600 queries with 4 nodes of 256 ranges.
    """
    backlog = list(parts)
    newest = backlog[-1]
    groups, checkpoints = newest.count(client), newest.count_checkpoints(client)
    reads_a_day = DAY_SECONDS // max(client.cycle_s, 1)
    return ClientReadPlan(
        groups,
        sum(part.windows(client) for part in backlog),
        sum(part.windows(client) * part.count(client) for part in backlog),
        groups * reads_a_day,
        sum(part.count_checkpoints(client) for part in backlog),
        checkpoints * (DAY_SECONDS // client.flush_s if client.flush_s else reads_a_day),
        -(-newest.streams // groups),
        -(-newest.streams // MAX_STREAMS_PER_PAGE),
    )


@dataclass(frozen=True)
class SwitchLag:
    """The delay (s) of a client's first rows of a new generation, by cause.

    At most the causes add up (scylla-cdc-source-connector#1): `confidence_s` behind the clock; `cycle_s` until the
    reader of the old generation looks again, and finds that its window ends after the new one's start; `poll_s` until
    the new one is seen; `flush_s` until the checkpoints of the old one are written.
    """

    confidence_s: int
    cycle_s: int
    poll_s: int
    flush_s: int

    @property
    def most_s(self) -> int:
        """Return the sum."""
        return self.confidence_s + self.cycle_s + self.poll_s + self.flush_s


def estimate_switch_lag(client: CdcClient) -> SwitchLag:
    """Return the delay that a switch causes for a reader that has caught up."""
    return SwitchLag(client.confidence_s, client.cycle_s, client.poll_s, client.flush_s)


def read_backlog(
    lake: Lake, table: CdcTable, client: CdcClient, now_us: Microseconds, ttl_seconds: int
) -> list[BacklogPart]:
    """Return the unread parts of a table's log within the TTL (s; 0: unlimited) up to now, oldest first.

    Raises:
        StateError: no generation or stream set that the log could have rows of is known, or none has begun.
    """
    started = [period for period in _period_starts(lake, table) if period[0] <= now_us]
    if not started:
        raise StateError(f"no generation or stream set of {table.full_name} has begun at {format_us(now_us)}")
    since = started[0][0] if not ttl_seconds else Microseconds(now_us - us_from_seconds(ttl_seconds))
    if client.starts_s is not None:
        since = max(since, Microseconds(now_us - us_from_seconds(client.starts_s)))
    since = max(since, us_from_ms(table.oldest_ms))
    ends = [*(begin for begin, _, _ in started[1:]), now_us]
    parts = [
        BacklogPart(seconds_from_us(Microseconds(end - max(begin, since))), ranges, streams)
        for (begin, ranges, streams), end in zip(started, ends, strict=True)
        if end > max(begin, since)
    ]
    return parts or [BacklogPart(0, started[-1][1], started[-1][2])]


def estimate_backlog(streams: int, ranges: int, ttl_seconds: int, client: CdcClient) -> list[BacklogPart]:
    """Return the backlog of one generation of a given size that has operated for all of the TTL.

    Raises:
        InputError: there are fewer streams than ranges, or the TTL is unlimited, so that the backlog is unknown.
    """
    if streams < ranges:
        raise InputError(f"{streams} streams in {ranges} ranges; a range has a stream at least")
    if not ttl_seconds:
        raise InputError("TTL 0 keeps everything: the backlog is known only for a table of the home; name one")
    length_s = ttl_seconds if client.starts_s is None else min(client.starts_s, ttl_seconds)
    return [BacklogPart(length_s, ranges, streams)]


def _period_starts(lake: Lake, table: CdcTable) -> Sequence[tuple[Microseconds, int, int]]:
    """Return the start (µs), ranges (0: tablets) and streams of each period whose size is known."""
    if StreamSources(lake).of(table.keyspace_name, table.table_name).in_generations:
        sizes = [size for size in read_generation_sizes(lake) if size.num_streams]
        return [(us_from_ms(size.time_ms), size.num_ranges or size.num_streams, size.num_streams) for size in sizes]
    sets = tablets.read_stream_set_changes(lake, table.keyspace_name, table.table_name)
    return [(us_from_ms(change.timestamp_ms), 0, len(change.current)) for change in sets]
