"""Rates of reads: a token bucket by a clock of the test's own, and what a cluster is asked for in an ingest."""

from __future__ import annotations

import random

import pytest
from support.command_line import run
from support.standin.brought import FIRST_US, SWITCH_US, assert_each_once
from support.standin.cluster import StandIn
from support.standin.live_log import LiveLog

from cdc_platform.scylla import Connection, ScyllaCluster
from cdc_platform.scylla.rate import ReadMeter, TokenBucket


class Watch:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds


@pytest.mark.parametrize("rate", [1, 7, 1_000, 99_999])
def test_a_bucket_holds_its_rate_over_every_interval(rate: int) -> None:
    """No interval has more than its rate, a second's worth and the last one taken; no wait is longer than due."""
    watch, dice, taken = Watch(), random.Random(rate), list[tuple[float, float]]()
    bucket = TokenBucket(rate, lambda: watch.now, watch.sleep)
    for _ in range(300):
        bucket.await_tokens(0)
        amount = dice.uniform(0, 2 * rate)
        bucket.take(amount)
        taken.append((watch.now, amount))
        if dice.random() < 0.2:
            watch.sleep(dice.uniform(0, 3))
    for first in range(0, 300, 7):
        total = 0.0
        for at, amount in taken[first:]:
            assert total <= rate * (at - taken[first][0] + 1) + 2 * rate + 1e-6
            total += amount
    steady = Watch()
    bucket = TokenBucket(rate, lambda: steady.now, steady.sleep)
    for _ in range(100):
        bucket.await_tokens(0)
        bucket.take(rate / 2)
    assert steady.now - 100.0 == pytest.approx(99 * 0.5)


def test_an_unlimited_meter_only_counts() -> None:
    """And pages stay as large as they are asked for."""
    meter = ReadMeter(None, None)
    with meter.measure() as traffic:
        for _ in range(1_000):
            meter.await_request()
            meter.count_page(5)
    assert (meter.is_limited, traffic.requests, traffic.rows, meter.limit_page(5_000)) == (False, 1_000, 5_000, 5_000)


def test_readers_share_a_rate() -> None:
    """Tasks of Spark may all run at once; each may send something."""
    connection = Connection(contacts=("a",), rows_per_second=100, requests_per_second=3)
    shares = [(share.rows_per_second, share.requests_per_second) for share in map(connection.divided, (1, 4, 50))]
    assert shares == [(100, 3), (25, 1), (2, 1)]
    assert Connection(contacts=("a",)).divided(4) == Connection(contacts=("a",))


@pytest.mark.cassandra
@pytest.mark.parametrize("limit", [("--rate", "150"), ("--request-rate", "5")], ids=["rows", "requests"])
def test_an_ingest_keeps_to_its_rate(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, limit: tuple[str, str]
) -> None:
    """As measured by itself, and by the server's pages; all rows come once."""
    log.write([FIRST_US + 1 + place for place in range(200)] + [SWITCH_US + 1 + place for place in range(100)])
    answer = run("--home", cluster.home.parent.parent, "ingest", "prod", "shop.t", "--json", *limit)
    assert answer.exit_code == 0, answer.stderr
    read = answer.json["read"]
    assert read["rows"] == 300
    assert read["requests"] == standin.proxy.faults.pages_asked
    most = int(limit[1])
    taken = read["rows"] if limit[0] == "--rate" else read["requests"]
    # It may be slower for any reason; a page of each request in flight may be ahead.
    assert read["seconds"] >= (taken - 2 * most) / most
    assert taken > most
    assert_each_once(cluster, log)
