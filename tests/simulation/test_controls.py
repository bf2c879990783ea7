"""What must go wrong does, and the judge says so: too small delays and windows, and parts that break a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc_platform.clock import SECOND_US, Microseconds, Milliseconds
from cdc_platform.generations import SwitchTimes
from cdc_platform.simulation import (
    Assumptions,
    HistoryPlan,
    Outage,
    OutageKind,
    Parts,
    Property,
    Rules,
    draw_plan,
    judge_plan,
)
from cdc_platform.simulation.expiry import Expiry
from cdc_platform.simulation.machine import Disk
from cdc_platform.simulation.observations import SimulatedGeneration
from cdc_platform.simulation.plan import OperationKind, PlannedOperation, PlannedWrite, Protocol
from cdc_platform.simulation.publisher import Publisher
from cdc_platform.simulation.run import DEFAULT_PARTS as WORKING

SEEDS = 150
PROTOCOLS: tuple[Protocol, ...] = ("gossip", "two-phase")
PLAIN = Assumptions(nodes=4, joins=2, writes=100)


def broken(assumptions: Assumptions, property: Property, parts: Parts = WORKING, seeds: int = SEEDS) -> int | None:
    """The first seed at which a property does not hold, None if it always does."""
    for seed in range(seeds):
        if property in judge_plan(draw_plan(assumptions, seed), parts=parts).verdict.broken:
            return seed
    return None


def with_rules(assumptions: Assumptions, **changes: Any) -> Assumptions:
    """The assumptions under other rules."""
    return replace(assumptions, rules=replace(assumptions.rules, **changes))


def test_a_delay_shorter_than_gossip_takes() -> None:
    """A node that hears of the generation too late writes to the one before; with the whole delay none does."""
    short = with_rules(PLAIN, delay_ms=Milliseconds(6_000))
    assert broken(short, Property.RIGHT_GENERATION) is not None
    assert broken(PLAIN, Property.RIGHT_GENERATION, seeds=12) is None


def test_two_nodes_place_a_write_differently() -> None:
    """A client that repeats its write at another node finds it in two streams, while one of them has not heard."""
    short = with_rules(replace(PLAIN, writes=400), delay_ms=Milliseconds(6_000))
    assert broken(short, Property.ONE_PLACEMENT) is not None


@pytest.mark.parametrize("policy", ["strict", "recent-past"])
def test_a_window_shorter_than_skew_plus_leeway(policy: str) -> None:
    """A row that is older than the window when it appears is never read; the sum and a second is enough."""
    skewed = with_rules(replace(PLAIN, skew_us=SECOND_US * 4), policy=policy)
    assert broken(with_rules(skewed, window_us=SECOND_US * 8), Property.READ_ONCE) is not None
    assert broken(with_rules(skewed, window_us=SECOND_US * 10), Property.READ_ONCE, seeds=15) is None


def test_a_reader_leaves_a_generation_before_its_last_row() -> None:
    """Rows of the generation before appear for a leeway after the start of the next, with the newer policy."""
    skewed = with_rules(replace(PLAIN, skew_us=SECOND_US * 4, writes=300), policy="recent-past")
    assert broken(with_rules(skewed, window_us=SECOND_US), Property.LAST_ROW_READ) is not None


class EarlyExpiry(Expiry):
    """Counts with a tenth of the TTL that rows have."""

    def ttl_us(self) -> Microseconds:
        return self.world.rules.ttl_us // 10


def test_a_generation_removed_too_early() -> None:
    """Its rows are still alive."""
    expiring = with_rules(PLAIN, ttl_us=SECOND_US * 120, expiry_grace_us=SECOND_US, window_us=SECOND_US * 10)
    assert broken(expiring, Property.EXPIRED_UNNEEDED, Parts(expiry=EarlyExpiry)) is not None
    assert broken(expiring, Property.EXPIRED_UNNEEDED, seeds=12) is None


class TimestampFirst(Publisher):
    """Publishes the timestamp, then the streams."""

    def steps(self) -> tuple[tuple[str, int], ...]:
        return tuple(reversed(super().steps()))


def test_a_timestamp_published_before_its_streams() -> None:
    """The very first publication shows it."""
    assert broken(PLAIN, Property.STREAMS_FIRST, Parts(publisher=TimestampFirst)) == 0


class NewestFirst(Publisher):
    """Publishes generations in any order, as nodes do that know nothing of each other."""

    def earlier(self, generation: SimulatedGeneration) -> list[SimulatedGeneration]:
        return []


def test_a_generation_published_after_a_later_one() -> None:
    """The reader takes a period that is not shown, before one that is, for one without rows: it loses them."""
    late = replace(PLAIN, joins=3, late_publication_us=SECOND_US * 200)
    assert broken(late, Property.READ_ONCE, Parts(publisher=NewestFirst)) is not None
    assert broken(late, Property.READ_ONCE, seeds=12) is None


class ForgetfulDisk(Disk):
    """Loses the promises of two-phase switches."""

    def load_promises(self) -> tuple:
        return ()


def test_a_promise_forgotten_by_a_restart() -> None:
    """A node answers, restarts, and cannot read the decision: without its promise it writes to the old generation."""
    second = SECOND_US
    times = SwitchTimes(Milliseconds(5_000), Milliseconds(8_000), Milliseconds(20_000), Milliseconds(0))
    plan = HistoryPlan(
        1,
        Rules("two-phase", switch=times),
        operations=(PlannedOperation(second, OperationKind.REPAIR, 0),),
        outages=(
            Outage(Microseconds(0), 1, OutageKind.UNREADABLE, second * 15),
            Outage(second * 8, 2, OutageKind.DOWN, second),
            Outage(second * 12, 2, OutageKind.UNREADABLE, second * 60),
        ),
        writes=tuple(PlannedWrite(second * at, 2, at) for at in range(1, 60)),
    )
    assert judge_plan(plan).verdict.broken == frozenset()
    assert judge_plan(plan).verdict.refused["UNDECIDED"] > 10
    assert Property.RIGHT_GENERATION in judge_plan(plan, parts=Parts(disk=ForgetfulDisk)).verdict.broken


def test_a_reader_that_passes_a_generation_published_late() -> None:
    """The official clients see only what is published; the platform's reader waits for what nodes have heard of."""
    late = replace(PLAIN, late_publication_us=SECOND_US * 200)
    assert broken(with_rules(late, reader="client"), Property.READ_ONCE) is not None
    assert broken(late, Property.READ_ONCE, seeds=12) is None


def repairs_at_once(protocol: Protocol, seed: int) -> HistoryPlan:
    """Two repairs half a second apart, and writes through every node when their generations begin."""
    apart_us = SECOND_US // 2
    first_us = SECOND_US * 5
    return HistoryPlan(
        seed,
        Rules(protocol),
        nodes=4,
        duration_us=SECOND_US * 120,
        settle_us=SECOND_US * 60,
        operations=tuple(
            PlannedOperation(Microseconds(first_us + node * apart_us), OperationKind.REPAIR, node) for node in (0, 1)
        ),
        writes=tuple(
            PlannedWrite(Microseconds(SECOND_US * 70 + apart_us // 10 * tick), node, 10 * tick + node)
            for tick in range(10)
            for node in range(4)
        ),
    )


def test_generations_at_once_by_gossip() -> None:
    """An endpoint gossips one ID: a node that first hears after it was replaced never learns of the earlier one."""
    broken_by = {
        protocol: any(
            Property.RIGHT_GENERATION in judge_plan(repairs_at_once(protocol, seed)).verdict.broken
            for seed in range(20)
        )
        for protocol in PROTOCOLS
    }
    assert broken_by == {"gossip": True, "two-phase": False}


def test_outages_longer_than_the_delay_by_gossip() -> None:
    """A node that is cut off for longer than the delay writes to the wrong generation; in two phases it refuses."""
    cut_off = replace(PLAIN, partitions=3, outages=4, outage_us=SECOND_US * 240)
    assert broken(cut_off, Property.RIGHT_GENERATION, seeds=150) is not None
    assert broken(replace(cut_off, rules=Rules("two-phase")), Property.RIGHT_GENERATION, seeds=12) is None
