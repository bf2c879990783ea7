"""The rule of lag against the TTL: its thresholds, changes of the TTL, and unknown values."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from support.homes.ingested import POSITION_US, ReadLog, ingested_home, read_up_to

from cdc_platform.cdclog import RowLifetime, TtlLag, read_ingest_lags
from cdc_platform.cdclog.consumer.lag import judge_ttl_lag
from cdc_platform.clock import SECOND_US, Microseconds
from cdc_platform.delta import Lake

POSITION, TTL = 1_000 * SECOND_US, 400 * SECOND_US
FOREVER = 2**62


def lifetimes(*ttls: tuple[int, int]) -> list[RowLifetime]:
    """Return TTLs (µs), each valid from a time (µs) on."""
    ends = [since for since, _ in ttls[1:]] + [FOREVER]
    return [
        RowLifetime(Microseconds(since), Microseconds(end), Microseconds(ttl))
        for (since, ttl), end in zip(ttls, ends, strict=True)
    ]


@pytest.mark.parametrize(
    ("of_rows", "after_us", "lag", "share"),
    [
        (lifetimes((0, TTL)), 0, TtlLag.FINE, 0.0),
        (lifetimes((0, TTL)), -5, TtlLag.FINE, 0.0),
        (lifetimes((0, TTL)), TTL // 2, TtlLag.FINE, None),
        (lifetimes((0, TTL)), TTL // 2 + 1, TtlLag.HALF, 0.5),
        (lifetimes((0, TTL)), TTL * 3 // 4, TtlLag.HALF, None),
        (lifetimes((0, TTL)), TTL * 3 // 4 + 1, TtlLag.MOST, 0.75),
        (lifetimes((0, TTL)), TTL, TtlLag.MOST, None),
        (lifetimes((0, TTL)), TTL + 1, TtlLag.DYING, 1.0),
        (lifetimes((0, TTL)), TTL * 100 + 1, TtlLag.DYING, 100.0),
        (lifetimes((0, 0)), TTL * 100, TtlLag.FINE, None),
        (lifetimes((0, TTL), (POSITION + 1, 0)), TTL * 100, TtlLag.FINE, None),
        (lifetimes((0, TTL), (POSITION + 2, 0)), TTL + 1, TtlLag.DYING, 1.0),
        (lifetimes((0, 0), (POSITION + TTL // 2, TTL)), TTL // 2, TtlLag.FINE, 0.0),
        (lifetimes((0, 0), (POSITION + TTL // 2, TTL)), TTL, TtlLag.HALF, 0.5),
        (lifetimes((0, 0), (POSITION + TTL // 2, TTL)), TTL // 2 + TTL, TtlLag.DYING, 1.0),
        (lifetimes((0, 0), (POSITION + TTL, TTL)), TTL - 1, TtlLag.FINE, None),
        (lifetimes((0, TTL * 10), (POSITION + SECOND_US, TTL)), SECOND_US + TTL * 3 // 4, TtlLag.MOST, 0.75),
        ([], TTL * 100, TtlLag.UNKNOWN, None),
    ],
)
def test_each_threshold_begins_at_its_microsecond(
    of_rows: list[RowLifetime], after_us: int, lag: TtlLag, share: float | None
) -> None:
    """The oldest unread row may be a microsecond after the position; a later, shorter TTL counts from its start."""
    status = judge_ttl_lag(of_rows, Microseconds(POSITION), Microseconds(POSITION + after_us))
    assert status.lag is lag
    if share is not None:
        assert status.share == share
    assert (status.died_us is not None) == (lag is TtlLag.DYING)


def test_the_lag_only_grows_while_nothing_is_read() -> None:
    """At every second of two TTLs the level matches the share, and never falls."""
    order = [TtlLag.FINE, TtlLag.HALF, TtlLag.MOST, TtlLag.DYING]
    levels = []
    for second in range(801):
        status = judge_ttl_lag(
            lifetimes((0, TTL)), Microseconds(POSITION), Microseconds(POSITION + second * SECOND_US + 1)
        )
        levels.append(order.index(status.lag))
        assert levels[-1] == sum(second * 100 >= 400 * percent for percent in (50, 75, 100))
    assert all(before <= after for before, after in pairwise(levels))


def test_only_three_levels_are_reported() -> None:
    """Each level has its own code; an unknown lag is no alarm."""
    codes = {lag: lag.code for lag in TtlLag if lag.code is not None}
    assert codes == {TtlLag.HALF: "lag-half-ttl", TtlLag.MOST: "lag-near-ttl", TtlLag.DYING: "rows-dying"}


def test_a_mirror_lists_every_table_and_its_unknowns(tmp_path: Path) -> None:
    """Tables: read, registered without a window, never ingested, with unknown TTL, and one with CDC off."""
    logs = [
        ReadLog("a"),
        ReadLog("b", windows=0),
        ReadLog("c", windows=None),
        ReadLog("off", windows=None, enabled=False),
    ]
    _, cluster = ingested_home(tmp_path / "home", logs)
    lake = Lake(cluster.open_home().lake)
    read_up_to(lake, [ReadLog("gone"), ReadLog("c", reader="audit")])
    lags = read_ingest_lags(lake, Microseconds(POSITION_US + 200 * SECOND_US + 1))
    assert [(lag.full_name, str(lag.status.lag), lag.lag_us) for lag in lags] == [
        ("shop.a", "half", 200 * SECOND_US + 1),
        ("shop.b", "unknown", 200 * SECOND_US + 1),
        ("shop.c", "unknown", None),
        ("shop.gone", "unknown", 200 * SECOND_US + 1),
    ]
    assert [str(lag).split(",", 1)[-1].strip() for lag in lags] == [
        "200 s ago, and its rows live for 400 s",
        "200 s ago, and how long its rows live is unknown",
        "so its lag is unknown",
        "200 s ago, and how long its rows live is unknown",
    ]
