"""The log of a live cluster comes into the lake, each row once: over switches, by either way, and whoever fails."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.proxy import OVERLOADED, READ_TIMEOUT
from support.standin.world import time_uuid

from cdc_platform.clock import Clock, Microseconds, Milliseconds, us_of
from cdc_platform.cluster import known
from cdc_platform.cluster.ingest.ingesting import Ingested, ingest
from cdc_platform.cluster.ingest.pace import Pace
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.home import open_home
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.volume import Workers
from cdc_platform.log.log_table import log_table

pytestmark = pytest.mark.cassandra

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
SWITCH_MS = FIRST_MS + Milliseconds(3_600_000)
FIRST_US, SWITCH_US = us_of(FIRST_MS), us_of(SWITCH_MS)
NOW_US = Microseconds(SWITCH_US + HOUR_US)
DDL = "CREATE TABLE shop.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
GENERATIONS = {time: description(time_uuid(time)) for time in (FIRST_MS, SWITCH_MS)}


@pytest.fixture
def log(standin: StandIn) -> LiveLog:
    """`shop.t` with an empty log, and a second generation an hour after the first."""
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    return LiveLog(standin.world, defined(DDL), GENERATIONS).make()


def lake_of(cluster: KnownCluster) -> Lake:
    """The tables of its home."""
    return Lake(cluster.open_home().lake)


def rows_in(cluster: KnownCluster, log: LiveLog) -> pa.Table:
    """What the lake has of the log."""
    return lake_of(cluster).read(log_table(log.schema))


def bring(
    cluster: KnownCluster, workers: Workers, now_us: int = NOW_US, told: list[str] | None = None, **options: object
) -> Ingested:
    """Ingest as the next process would: what is known of the cluster is read anew."""
    again = known.find(open_home(cluster.home.parent.parent), cluster.name)
    tell = (told if told is not None else []).append
    return ingest(again, Clock(Microseconds(now_us)), "shop", "t", workers, tell=tell, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["streams", "ranges"])
def test_every_row_comes_once_over_a_switch(
    standin: StandIn, cluster: KnownCluster, log: LiveLog, workers: Workers, way: str
) -> None:
    """Rows at the borders of both generations and of the horizon; the newest wait, and nothing comes a second time."""
    horizon = NOW_US - 30 * SECOND_US
    times = [FIRST_US, FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 1, horizon, horizon + 1]
    rows = log.write(times)
    done = bring(cluster, workers, way=way)
    assert (done.rows, done.position_us) == (len(times) - 1, horizon)
    assert [window.chosen and window.chosen.way for window in done.windows] == [way, way]
    assert keys_of(rows_in(cluster, log)) == [
        key for key in log.written_keys() if key[1] != rows["cdc$time"][6].as_py()
    ]
    expected = rows.slice(0, 6).sort_by("cdc$time")
    assert rows_in(cluster, log).sort_by("cdc$time").equals(expected)
    assert bring(cluster, workers, way=way).windows == []
    assert bring(cluster, workers, NOW_US + HOUR_US, way=way).rows == 1
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert standin.proxy.refused == []


def test_a_cluster_that_fails_now_and_then_loses_and_doubles_nothing(
    standin: StandIn, cluster: KnownCluster, log: LiveLog, workers: Workers
) -> None:
    """Overloads, timeouts and nodes that go down between requests: all rows come, in the end each once."""
    log.write([FIRST_US + place for place in range(500)])
    bring(cluster, workers, FIRST_US + 31 * SECOND_US)
    log.write([SWITCH_US + place for place in range(500)])
    standin.proxy.faults.error_rate = 0.1
    standin.proxy.faults.errors = [OVERLOADED, READ_TIMEOUT]
    standin.proxy.kill(2)
    told: list[str] = []
    bring(cluster, workers, told=told, way="streams")
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert [line for line in told if "127.0.0.3" in line]


def test_rows_that_come_late_are_found_once(cluster: KnownCluster, log: LiveLog, workers: Workers) -> None:
    """Written behind the confidence window with an old timestamp: the second reading merges and counts them."""
    log.write([FIRST_US + 1, SWITCH_US + 1])
    bring(cluster, workers)
    log.write([FIRST_US + 2, SWITCH_US + 2], v=[7, 8])
    pace = Pace(again_after_us=Microseconds(HOUR_US), again_every_us=Microseconds(SECOND_US))
    first = bring(cluster, workers, pace=pace)
    assert (first.rows, first.late) == (0, 1)
    assert first.again_us == SWITCH_US
    assert bring(cluster, workers, pace=pace).late == 0
    second = bring(cluster, workers, NOW_US + HOUR_US, pace=pace)
    assert second.late == 1
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    from cdc_platform.cluster.ingest.again import LATE

    assert lake_of(cluster).transaction(log_table(log.schema), LATE) == 2
