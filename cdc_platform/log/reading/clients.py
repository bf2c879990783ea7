"""How ScyllaDB's own clients read a log: their windows, groups and checkpoints, and what follows for a cluster.

Numbers are the defaults of scylla-cdc-go 1.2, scylla-cdc-rust 0.7 and scylla-cdc-java 1.3, on which the Kafka connector
is built; of Alternator Streams those of its server and of Amazon's KCL. Nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cdc_platform.clock import DAY_SECONDS

MOST_IN_A_QUERY = 100
"""Streams that a server takes in one query: `max_partition_key_restrictions_per_query`, by default."""
MOST_SHARDS_A_PAGE = 100
"""Streams that DescribeStream names in one answer: the limit of DynamoDB's interface, which Alternator keeps."""


class Group(StrEnum):
    """What a client reads together, in one query, and keeps a checkpoint of."""

    RANGE = "range"
    STREAM = "stream"
    TABLE = "table"


@dataclass(frozen=True)
class Client:
    """A client with its settings, times in seconds.

    `reads`, `reads_tablets`: what it asks for together, of vnodes and of tablets. `keeps`: what it keeps a checkpoint
    of. `window_s`: how much time of the log it asks for at once; `cycle_s`: how long it lets pass between two reads
    once it has caught up; `confidence_s`: how far it stays behind the clock; `poll_s`: how often it looks for a new
    generation; `flush_s`: how often checkpoints are written, 0 with each read. `starts_s`: how far back it begins
    without a checkpoint, None for as far as the log's TTL reaches.
    """

    name: str
    reads: Group
    reads_tablets: Group
    keeps: Group
    confidence_s: int
    window_s: int
    cycle_s: int
    poll_s: int
    flush_s: int
    starts_s: int | None = None


CLIENTS = {
    each.name: each
    for each in (
        Client("go", Group.RANGE, Group.STREAM, Group.STREAM, 30, 30, 30, 15, 0, starts_s=60),
        Client("rust", Group.RANGE, Group.STREAM, Group.STREAM, 30, 60, 10, 10, 10),
        Client("java", Group.RANGE, Group.TABLE, Group.RANGE, 30, 30, 30, 30, 0),
        Client("connector", Group.RANGE, Group.TABLE, Group.RANGE, 30, 30, 30, 30, 60),
        Client("alternator", Group.STREAM, Group.STREAM, Group.STREAM, 10, DAY_SECONDS, 1, 60, 0),
    )
}
"""By name. Java's reader has one task for all tablets of a table (scylla-cdc-java#190). Alternator's shard is a stream
(scylladb#13080) that KCL asks for once a second, whatever came; it answers from any time on, so that a shard is caught
up with in as many calls as its rows need, one here.
"""


@dataclass(frozen=True)
class Part:
    """A generation or stream set, as far as it is to be read: how long (s), its ranges (0: tablets) and its streams."""

    seconds: float
    ranges: int
    streams: int

    def count(self, client: Client) -> int:
        """How many queries one window of it takes: what the client reads together."""
        return self._of(client.reads if self.ranges else client.reads_tablets)

    def kept(self, client: Client) -> int:
        """How many checkpoints there are of it."""
        if not self.ranges and client.reads_tablets is Group.TABLE:
            return 1
        return self._of(client.keeps if self.ranges else Group.STREAM)

    def _of(self, group: Group) -> int:
        return {Group.RANGE: self.ranges, Group.STREAM: self.streams, Group.TABLE: 1}[group]

    def windows(self, client: Client) -> int:
        """The windows into which a client cuts it."""
        return max(1, -int(-self.seconds // client.window_s))


@dataclass(frozen=True)
class Plan:
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
        return self.streams_a_query > MOST_IN_A_QUERY


def plan(client: Client, parts: Iterable[Part]) -> Plan:
    """The plan for parts in the order in which they are read, the newest last; there is one at least.

    A query for each group and window, as the figures of scylla-cdc-java#1 have it: 180 days in windows of 30 s are
    518,400 windows, and 530,841,600 queries with 4 nodes of 256 ranges.
    """
    read = list(parts)
    newest = read[-1]
    groups, kept = newest.count(client), newest.kept(client)
    reads_a_day = DAY_SECONDS // max(client.cycle_s, 1)
    return Plan(
        groups,
        sum(part.windows(client) for part in read),
        sum(part.windows(client) * part.count(client) for part in read),
        groups * reads_a_day,
        sum(part.kept(client) for part in read),
        kept * (DAY_SECONDS // client.flush_s if client.flush_s else reads_a_day),
        -(-newest.streams // groups),
        -(-newest.streams // MOST_SHARDS_A_PAGE),
    )


@dataclass(frozen=True)
class Lag:
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


def lag_at_a_switch(client: Client) -> Lag:
    """What a switch costs a reader that has caught up."""
    return Lag(client.confidence_s, client.cycle_s, client.poll_s, client.flush_s)
