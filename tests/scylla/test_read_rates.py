"""Read rates: a token bucket with the test's own clock, and an ingest that is limited by them."""

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
    """A clock that only `sleep` advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


@pytest.mark.parametrize("rate", [1, 7, 1_000, 99_999])
def test_bucket_respects_its_rate_over_every_interval(rate: int) -> None:
    """No interval exceeds its rate, one second's worth and the last amount; no wait is longer than needed."""
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


def test_unlimited_meter_only_counts() -> None:
    """Pages stay as large as requested."""
    meter = ReadMeter(None, None)
    with meter.measure() as traffic:
        for _ in range(1_000):
            meter.await_request()
            meter.count_page(5)
    assert (meter.is_limited, traffic.requests, traffic.rows, meter.limit_page(5_000)) == (False, 1_000, 5_000, 5_000)


def test_readers_share_a_rate() -> None:
    """All tasks of Spark may run at once; each share allows some reads."""
    connection = Connection(contacts=("a",), rows_per_second=100, requests_per_second=3)
    shares = [(share.rows_per_second, share.requests_per_second) for share in map(connection.divided, (1, 4, 50))]
    assert shares == [(100, 3), (25, 1), (2, 1)]
    assert Connection(contacts=("a",)).divided(4) == Connection(contacts=("a",))


@pytest.mark.cassandra
@pytest.mark.parametrize("limit", [("--rate", "150"), ("--request-rate", "5")], ids=["rows", "requests"])
def test_ingest_respects_its_rate(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, limit: tuple[str, str]
) -> None:
    """Both its own figures and the server's pages show this; all rows arrive once."""
    log.write([FIRST_US + 1 + offset for offset in range(200)] + [SWITCH_US + 1 + offset for offset in range(100)])
    answer = run("--home", cluster.home.parent.parent, "ingest", "prod", "shop.t", "--json", *limit)
    assert answer.exit_code == 0, answer.stderr
    read = answer.json["read"]
    assert read["rows"] == 300
    assert read["requests"] == standin.proxy.faults.pages_asked
    limit_per_second = int(limit[1])
    taken = read["rows"] if limit[0] == "--rate" else read["requests"]
    # It may be slower for any reason; one page of each request in flight may exceed the rate.
    assert read["seconds"] >= (taken - 2 * limit_per_second) / limit_per_second
    assert taken > limit_per_second
    assert_each_once(cluster, log)
