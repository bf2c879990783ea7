"""An ingest reads the log of a tablets table over splits and merges, each row once and in its own streams' window."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import pytest
from support.standin.brought import DDL, FIRST_US, NOW_US, SWITCH_MS, SWITCH_US, assert_each_once, bring
from support.standin.cluster import FIRST_MS, StandIn
from support.standin.live_log import LiveLog, defined

from cdc_platform.clock import SECOND_US, Milliseconds, us_from_ms
from cdc_platform.delta import TaskRunner
from cdc_platform.generations import StreamSet, uniform_tablet_ends
from cdc_platform.generations.tablets import generate_tablet_streams
from cdc_platform.scylla import ScyllaCluster

pytestmark = pytest.mark.cassandra

TABLE_ID = uuid.UUID(int=7)
SETS_MS = [FIRST_MS, SWITCH_MS, Milliseconds(SWITCH_MS + 60_000)]
TABLETS = {
    "a split": (2, 4),
    "a merge": (4, 2),
    "a merge to a single tablet": (2, 1),
    "a split and a merge": (2, 4, 2),
    "two merges": (8, 4, 2),
}


def on_tablets(standin: StandIn, counts: Sequence[int]) -> tuple[LiveLog, list[Callable[[], None]]]:
    """Create `shop.t` with its first stream set; return its log and functions that list the later sets."""
    stream_arrays = [
        generate_tablet_streams(TABLE_ID, at, uniform_tablet_ends(count))
        for at, count in zip(SETS_MS, counts, strict=False)
    ]
    sets = {at: StreamSet.of(at, streams) for at, streams in zip(SETS_MS, stream_arrays, strict=False)}
    log = LiveLog(standin.world, defined(DDL), sets).make()
    ids = [[stream.tobytes() for stream in streams] for streams in stream_arrays]
    standin.world.stream_set("shop", "t", FIRST_MS, ids[0])

    def create_listing(index: int) -> Callable[[], None]:
        before, after = ids[index - 1], ids[index]
        return lambda: standin.world.stream_set("shop", "t", SETS_MS[index], after, closed=before, opened=after)

    return log, [create_listing(index) for index in range(1, len(ids))]


@pytest.mark.grid("splits and merges of tablets", 4)
@pytest.mark.parametrize("counts", TABLETS.values(), ids=TABLETS)
@pytest.mark.parametrize("way", ["streams", "ranges"])
def test_each_row_is_in_the_window_of_its_streams(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, way: str, counts: Sequence[int]
) -> None:
    """Rows are at the borders of every set; later sets are listed between two ingests."""
    log, later = on_tablets(standin, counts)
    log.write([FIRST_US + 1, SWITCH_US - 1])
    bring(cluster, workers, SWITCH_US - 60 * SECOND_US, way=way)
    for list_set, at_ms in zip(later, SETS_MS[1:], strict=False):
        list_set()
        log.write([us_from_ms(at_ms) - 2, us_from_ms(at_ms), us_from_ms(at_ms) + 1])
    done = bring(cluster, workers, way=way)
    assert [(window.set_us, window.rows) for window in done.windows] == [
        (us_from_ms(at), rows) for at, rows in zip(SETS_MS, (2, *[3] * (len(counts) - 2), 2), strict=False)
    ]
    assert_each_once(cluster, log)


@pytest.mark.parametrize("counts", [(2, 4), (4, 2)], ids=["a split", "a merge"])
def test_switch_during_an_ingest(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, counts: Sequence[int]
) -> None:
    """The set is listed while pages arrive, with rows of both sets; the next ingest has what this one did not read."""
    log, (list_set,) = on_tablets(standin, counts)
    log.write([FIRST_US + second * SECOND_US for second in range(1, 8)])

    def switch() -> None:
        list_set()
        log.write([SWITCH_US - 1, SWITCH_US, SWITCH_US + 1])

    standin.proxy.faults.pages_asked = 0
    standin.proxy.faults.meanwhile = {1: switch}
    first = bring(cluster, workers, SWITCH_US - 10 * SECOND_US, way="streams")
    assert (first.rows, standin.proxy.faults.meanwhile) == (7, {})
    second = bring(cluster, workers, NOW_US, way="streams")
    assert [(window.set_us, window.rows) for window in second.windows] == [(FIRST_US, 1), (SWITCH_US, 2)]
    assert_each_once(cluster, log)
