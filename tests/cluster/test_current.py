"""A table of a live cluster is kept in the lake: copied once, kept up by its log, equal to what the cluster has."""

from __future__ import annotations

import os
import random
import time
import uuid
from typing import Any

import pytest
from support.standin.cluster import FIRST_MS, StandIn, description, nodes
from support.standin.live_table import LiveTable, by_key, drawn
from support.standin.world import time_uuid

from cdc_platform.clock import Clock, Microseconds, Milliseconds
from cdc_platform.cluster import known
from cdc_platform.cluster.current import keeping, scanning
from cdc_platform.cluster.current.kept import current_table
from cdc_platform.cluster.ingest.ingesting import Ingested, ingest
from cdc_platform.cluster.ingest.pace import Pace
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.generations.tablets import StreamSet, new_streams, uniform_ends
from cdc_platform.home import open_home
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.volume import Workers
from cdc_platform.log.stored_names import INEXACT

pytestmark = pytest.mark.cassandra

HISTORIES = int(os.environ.get("CDC_PLATFORM_LIVE_HISTORIES", "3"))
SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
TABLE_ID = uuid.UUID(int=7)


def bring(cluster: KnownCluster, workers: Workers, **options: Any) -> Ingested:
    """Ingest as the next process would, up to now."""
    again = known.find(open_home(cluster.home.parent.parent), cluster.name)
    return ingest(again, Clock(), "shop", "t", workers, pace=Pace(Microseconds(0)), **options)


def in_lake(cluster: KnownCluster, table: LiveTable) -> tuple[dict[Any, Any], set[Any]]:
    """The rows that the lake has by key, and the keys of those that are marked."""
    lake = Lake(cluster.open_home().lake)
    rows = lake.read(current_table(table.schema)).to_pylist()
    found = by_key(table.schema, rows)
    marked = {key for key, row in zip(found, rows, strict=True) if row[INEXACT]}
    return found, marked


class Writing:
    """Writes at the clock's own times, each once."""

    def __init__(self, table: LiveTable) -> None:
        self.table, self.at = table, 0

    def some(self, count: int, *, ago_us: int = 0, **options: Any) -> None:
        """Random writes now, or some time ago, in any order of their times."""
        for _ in range(count):
            self.at = max(self.at + 1, Clock().now_us())
            back = self.table.dice.randrange(SECOND_US) if self.table.dice.random() < 0.3 and not options else 0
            when = self.at - ago_us - back
            if when not in self.table.times:
                self.table.write(when, **options)


def topology(standin: StandIn, table: LiveTable, number: int, *, tablets: bool) -> None:
    """A join, or a split of tablets, now."""
    at = Milliseconds(Clock().now_ms())
    if tablets:
        before = new_streams(TABLE_ID, max(table.generations), uniform_ends(2**number))
        streams = new_streams(TABLE_ID, at, uniform_ends(2 ** (number + 1)))
        ids = [[stream.tobytes() for stream in each] for each in (before, streams)]
        standin.world.stream_set("shop", "t", at, ids[1], closed=ids[0], opened=ids[1])
        table.generations = {**table.generations, at: StreamSet.of(at, streams)}
    else:
        made = description(time_uuid(at), nodes(3 + number))
        standin.world.generation(at, time_uuid(at), made)
        table.generations = {**table.generations, at: made}
    time.sleep(0.002)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_the_kept_table_is_the_clusters_at_every_quiet_moment(
    standin: StandIn, cluster: KnownCluster, workers: Workers, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any table and history, written before the log, before and after the copy, over joins or splits, with TTLs."""
    dice, tablets = random.Random(seed), seed % 2 == 1
    monkeypatch.setattr(scanning, "ROWS_A_SLICE", 3)
    monkeypatch.setattr(scanning, "_SAMPLE_ROWS", 2)
    monkeypatch.setattr(scanning, "MOST_SLICES", 5)
    monkeypatch.setattr(keeping, "_ROWS_AT_ONCE", dice.choice((20, 10**6)))
    schema = drawn(dice)
    first: Any = description(time_uuid(FIRST_MS))
    if tablets:
        streams = new_streams(TABLE_ID, FIRST_MS, uniform_ends(2))
        first = StreamSet.of(FIRST_MS, streams)
        standin.world.stream_set("shop", "t", FIRST_MS, [stream.tobytes() for stream in streams])
    table = LiveTable(standin.world, schema, {FIRST_MS: first}, dice).make()
    standin.proxy.collections = {column.name for column in schema.columns if column.type.multicell}
    writing = Writing(table)
    writing.some(dice.randrange(15), ago_us=2 * DAY_US, log=False)
    writing.some(dice.randrange(15))
    for number in range(3):
        done = bring(cluster, workers, current=number == 0)
        assert done.current is not None
        assert done.current.copied_now == (number == 0)
        found, marked = in_lake(cluster, table)
        assert found == table.rows()
        assert (done.current.rows, done.current.inexact) == (len(found), len(marked))
        topology(standin, table, number + 1, tablets=tablets)
        writing.some(dice.randrange(1, 20))
        writing.some(3, ttl=1000 if number < 2 else 1)
    time.sleep(2.1)
    bring(cluster, workers)
    assert in_lake(cluster, table)[0] == table.rows()
    assert standin.proxy.refused == []
