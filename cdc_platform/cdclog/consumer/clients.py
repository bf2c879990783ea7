"""How ScyllaDB's own CDC clients read a log: their windows, groups and checkpoints, and the load that follows.

Figures are the defaults of scylla-cdc-go 1.2, scylla-cdc-rust 0.7 and scylla-cdc-java 1.3 (the base of the Kafka
connector); for Alternator Streams those of the server and of Amazon's KCL. Nothing is read here.
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
"""Streams that a server takes in one query: `max_partition_key_restrictions_per_query`, by default."""
MAX_STREAMS_PER_PAGE = 100
"""Streams that DescribeStream names in one answer: the limit of DynamoDB's interface, which Alternator keeps."""


class ReadGroup(StrEnum):
    """What a client reads together, in one query, and keeps a checkpoint of."""

    RANGE = "range"
    STREAM = "stream"
    TABLE = "table"


@dataclass(frozen=True)
class CdcClient:
    """A client with its settings, times in seconds.

    `reads`, `reads_tablets`: what it asks for together, of vnodes and of tablets. `keeps`: what it keeps a checkpoint
    of. `window_s`: how much time of the log it asks for at once; `cycle_s`: how long it lets pass between two reads
    once it has caught up; `confidence_s`: how far it stays behind the clock; `poll_s`: how often it looks for a new
    generation; `flush_s`: how often checkpoints are written, 0 with each read. `starts_s`: how far back it begins
    without a checkpoint, None for as far as the log's TTL reaches.
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
    each.name: each
    for each in (
        CdcClient("go", ReadGroup.RANGE, ReadGroup.STREAM, ReadGroup.STREAM, 30, 30, 30, 15, 0, starts_s=60),
        CdcClient("rust", ReadGroup.RANGE, ReadGroup.STREAM, ReadGroup.STREAM, 30, 60, 10, 10, 10),
        CdcClient("java", ReadGroup.RANGE, ReadGroup.TABLE, ReadGroup.RANGE, 30, 30, 30, 30, 0),
        CdcClient("connector", ReadGroup.RANGE, ReadGroup.TABLE, ReadGroup.RANGE, 30, 30, 30, 30, 60),
        CdcClient("alternator", ReadGroup.STREAM, ReadGroup.STREAM, ReadGroup.STREAM, 10, DAY_SECONDS, 1, 60, 0),
    )
}
"""By name. Java's reader has one task for all tablets of a table (scylla-cdc-java#190). Alternator's shard is a stream
(scylladb#13080) that KCL asks for once a second, whatever came; it answers from any time on, so that a shard is caught
up with in as many calls as its rows need, one here.
"""


@dataclass(frozen=True)
class BacklogPart:
    """A generation or stream set, as far as it is to be read: how long (s), its ranges (0: tablets) and its streams."""

    seconds: float
    ranges: int
    streams: int

    def count(self, client: CdcClient) -> int:
        """How many queries one window of it takes: what the client reads together."""
        return self._of(client.reads if self.ranges else client.reads_tablets)

    def kept(self, client: CdcClient) -> int:
        """How many checkpoints there are of it."""
        if not self.ranges and client.reads_tablets is ReadGroup.TABLE:
            return 1
        return self._of(client.keeps if self.ranges else ReadGroup.STREAM)

    def _of(self, group: ReadGroup) -> int:
        return {ReadGroup.RANGE: self.ranges, ReadGroup.STREAM: self.streams, ReadGroup.TABLE: 1}[group]

    def windows(self, client: CdcClient) -> int:
        """The windows into which a client cuts it."""
        return max(1, -int(-self.seconds // client.window_s))


@dataclass(frozen=True)
class ClientReadPlan:
    """What a client without a checkpoint does until it has caught up, and then from day to day.

    `windows`: of each of the `groups` of the newest part; `requests`: of all groups of all parts; `checkpoints`: rows,
    keys or leases that it keeps; `..._a_day` once it has caught up, at most. `streams_a_query`: of the largest group.
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
        """Whether a server refuses its queries by default, because of too many streams in one."""
        return self.streams_a_query > MAX_STREAMS_PER_QUERY


def plan_client_reads(client: CdcClient, parts: Iterable[BacklogPart]) -> ClientReadPlan:
    """The plan for parts in the order in which they are read, the newest last; there is one at least.

    A query for each group and window, as the figures of scylla-cdc-java#1 have it: 180 days in windows of 30 s are
    518,400 windows, and 530,841,600 queries with 4 nodes of 256 ranges.
    """
    read = list(parts)
    newest = read[-1]
    groups, kept = newest.count(client), newest.kept(client)
    reads_a_day = DAY_SECONDS // max(client.cycle_s, 1)
    return ClientReadPlan(
        groups,
        sum(part.windows(client) for part in read),
        sum(part.windows(client) * part.count(client) for part in read),
        groups * reads_a_day,
        sum(part.kept(client) for part in read),
        kept * (DAY_SECONDS // client.flush_s if client.flush_s else reads_a_day),
        -(-newest.streams // groups),
        -(-newest.streams // MAX_STREAMS_PER_PAGE),
    )


@dataclass(frozen=True)
class SwitchLag:
    """How long after a generation has begun its first rows come out of a client, in seconds, by what it waits for.

    They add up at most (scylla-cdc-source-connector#1): `confidence_s` behind the clock; `cycle_s` until the reader of
    the old generation looks again, and finds that its window ends behind the new one's begin; `poll_s` until the new
    one is seen; `flush_s` until the checkpoints of the old one are written.
    """

    confidence_s: int
    cycle_s: int
    poll_s: int
    flush_s: int

    @property
    def most_s(self) -> int:
        """All of it."""
        return self.confidence_s + self.cycle_s + self.poll_s + self.flush_s


def estimate_switch_lag(client: CdcClient) -> SwitchLag:
    """What a switch costs a reader that has caught up."""
    return SwitchLag(client.confidence_s, client.cycle_s, client.poll_s, client.flush_s)


def read_backlog(
    lake: Lake, table: CdcTable, client: CdcClient, now_us: Microseconds, ttl_seconds: int
) -> list[BacklogPart]:
    """What is to be read of a table's log, oldest first: rows that the TTL (s; 0: all) has left, up to the clock.

    Raises:
        StateError: nothing that the log could have rows of is known, or none of it has begun.
    """
    begun = [each for each in _period_starts(lake, table) if each[0] <= now_us]
    if not begun:
        raise StateError(f"no generation or stream set of {table.full_name} has begun at {format_us(now_us)}")
    since = begun[0][0] if not ttl_seconds else Microseconds(now_us - us_from_seconds(ttl_seconds))
    if client.starts_s is not None:
        since = max(since, Microseconds(now_us - us_from_seconds(client.starts_s)))
    since = max(since, us_from_ms(table.oldest_ms))
    ends = [*(begin for begin, _, _ in begun[1:]), now_us]
    found = [
        BacklogPart(seconds_from_us(Microseconds(end - max(begin, since))), ranges, streams)
        for (begin, ranges, streams), end in zip(begun, ends, strict=True)
        if end > max(begin, since)
    ]
    return found or [BacklogPart(0, begun[-1][1], begun[-1][2])]


def estimate_backlog(streams: int, ranges: int, ttl_seconds: int, client: CdcClient) -> list[BacklogPart]:
    """The same of one generation of a size that is only told, which has operated for all of the TTL.

    Raises:
        InputError: there are fewer streams than ranges, or the TTL has no end: nobody can say how much there is.
    """
    if streams < ranges:
        raise InputError(f"{streams} streams in {ranges} ranges; a range has a stream at least")
    if not ttl_seconds:
        raise InputError("TTL 0 keeps everything: how much there is only a table of the home can tell; name one")
    back = ttl_seconds if client.starts_s is None else min(client.starts_s, ttl_seconds)
    return [BacklogPart(back, ranges, streams)]


def _period_starts(lake: Lake, table: CdcTable) -> Sequence[tuple[Microseconds, int, int]]:
    """When each begins (µs), its ranges (0: tablets) and its streams; without those of which only the time is known."""
    if StreamSources(lake).of(table.keyspace_name, table.table_name).in_generations:
        sizes = [each for each in read_generation_sizes(lake) if each.num_streams]
        return [(us_from_ms(each.time_ms), each.num_ranges or each.num_streams, each.num_streams) for each in sizes]
    sets = tablets.read_stream_set_changes(lake, table.keyspace_name, table.table_name)
    return [(us_from_ms(each.timestamp_ms), 0, len(each.current)) for each in sets]
