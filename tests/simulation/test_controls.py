"""As controls, the judge finds violations with short delays and windows, and with parts that break a rule."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Any

import pytest

from cdc_platform.cdclog import ReaderSets, Window, next_window
from cdc_platform.clock import SECOND_US, Microseconds, Milliseconds, us_from_ms
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
from cdc_platform.simulation.log_reader import LogReader, TabletLogReader
from cdc_platform.simulation.machine import Disk, Machine
from cdc_platform.simulation.observations import AcceptedRow, Committed, Read, SimulatedGeneration
from cdc_platform.simulation.plan import OperationKind, PlannedOperation, PlannedWrite, Protocol
from cdc_platform.simulation.publisher import Publisher
from cdc_platform.simulation.run import DEFAULT_PARTS as WORKING

SEEDS = 150
PROTOCOLS: tuple[Protocol, ...] = ("gossip", "two-phase")
PLAIN = Assumptions(nodes=4, joins=2, writes=100)


def broken(assumptions: Assumptions, property: Property, parts: Parts = WORKING, seeds: int = SEEDS) -> int | None:
    """Return the first seed at which a property fails, or None if it always holds."""
    for seed in range(seeds):
        if property in judge_plan(draw_plan(assumptions, seed), parts=parts).verdict.broken:
            return seed
    return None


def with_rules(assumptions: Assumptions, **changes: Any) -> Assumptions:
    """Return the assumptions under other rules."""
    return replace(assumptions, rules=replace(assumptions.rules, **changes))


def test_delay_shorter_than_gossip() -> None:
    """A node that learns of the generation too late writes to the previous one; with the full delay none does."""
    short = with_rules(PLAIN, delay_ms=Milliseconds(6_000))
    assert broken(short, Property.RIGHT_GENERATION) is not None
    assert broken(PLAIN, Property.RIGHT_GENERATION, seeds=12) is None


def test_two_nodes_place_a_write_differently() -> None:
    """A repeated write at another node is in two streams while one of the nodes is uninformed."""
    short = with_rules(replace(PLAIN, writes=400), delay_ms=Milliseconds(6_000))
    assert broken(short, Property.ONE_PLACEMENT) is not None


@pytest.mark.parametrize("policy", ["strict", "recent-past"])
def test_window_shorter_than_skew_plus_leeway(policy: str) -> None:
    """A row that is older than the window when it appears is never read; the sum and a second is enough."""
    skewed = with_rules(replace(PLAIN, skew_us=SECOND_US * 4), policy=policy)
    assert broken(with_rules(skewed, window_us=SECOND_US * 8), Property.READ_ONCE) is not None
    assert broken(with_rules(skewed, window_us=SECOND_US * 10), Property.READ_ONCE, seeds=15) is None


def test_reader_leaves_a_generation_before_its_last_row() -> None:
    """With the newer policy, rows of a generation appear for a leeway after the start of the next one."""
    skewed = with_rules(replace(PLAIN, skew_us=SECOND_US * 4, writes=300), policy="recent-past")
    assert broken(with_rules(skewed, window_us=SECOND_US), Property.LAST_ROW_READ) is not None


class EarlyExpiry(Expiry):
    """Uses a tenth of the rows' TTL."""

    def ttl_us(self) -> Microseconds:
        return self.world.rules.ttl_us // 10


def test_generation_removed_too_early() -> None:
    """Rows of the removed generation are still alive."""
    expiring = with_rules(PLAIN, ttl_us=SECOND_US * 120, expiry_grace_us=SECOND_US, window_us=SECOND_US * 10)
    assert broken(expiring, Property.EXPIRED_UNNEEDED, Parts(expiry=EarlyExpiry)) is not None
    assert broken(expiring, Property.EXPIRED_UNNEEDED, seeds=12) is None


class TimestampFirst(Publisher):
    """Publishes the timestamp, then the streams."""

    def steps(self) -> tuple[tuple[str, int], ...]:
        return tuple(reversed(super().steps()))


def test_timestamp_published_before_its_streams() -> None:
    """The first publication shows the violation."""
    assert broken(PLAIN, Property.STREAMS_FIRST, Parts(publisher=TimestampFirst)) == 0


class NewestFirst(Publisher):
    """Publishes generations in any order, like nodes that do not know of each other."""

    def earlier(self, generation: SimulatedGeneration) -> list[SimulatedGeneration]:
        return []


class NeverPublished(NewestFirst):
    """Never publishes generation 1, as if all nodes restarted before any could publish it."""

    def publish(self, machine: Machine, generation: SimulatedGeneration) -> None:
        if generation.number != 1:
            super().publish(machine, generation)


class WithoutCatchUp(LogReader):
    """Reads only after its position, as the official clients do."""

    def _next_window(self, sets: ReaderSets, horizon_us: Microseconds) -> Window | None:
        return next_window(sets, self.position_us, self.windows, horizon_us)


class WaitingForAll(LogReader):
    """Waits for every generation that it knows, including one before a published one."""

    def sets(self, visible: list[SimulatedGeneration], now_us: Microseconds) -> ReaderSets:
        unpublished = [generation for generation in visible if generation.number not in self._published]
        awaited_us = min((us_from_ms(generation.time_ms) for generation in unpublished), default=None)
        return replace(super().sets(visible, now_us), awaited=awaited_us)


LATE = replace(PLAIN, joins=3, late_publication_us=SECOND_US * 200)


def test_generation_published_after_a_later_one() -> None:
    """Its rows are read after publication, from its own start, and so after later rows of their keys."""
    unordered = Parts(publisher=NewestFirst)
    assert broken(LATE, Property.READ_ONCE, unordered, seeds=40) is None
    assert broken(LATE, Property.READ_IN_ORDER, unordered) is not None
    assert broken(LATE, Property.READ_ONCE, Parts(publisher=NewestFirst, reader=WithoutCatchUp)) is not None
    assert broken(LATE, Property.READ_IN_ORDER, seeds=12) is None


def test_generation_that_is_never_published() -> None:
    """Only its own rows are not read; a reader that waited for it would never read anything later."""

    def unread_generations(seed: int, reader: type[LogReader]) -> set[int]:
        parts = Parts(publisher=NeverPublished, reader=reader)
        observations = judge_plan(draw_plan(replace(PLAIN, joins=3), seed), parts=parts).history.observations
        generations = sorted(
            (item.generation for item in observations if isinstance(item, Committed)), key=lambda item: item.time_ms
        )
        begins = [us_from_ms(item.time_ms) for item in generations]
        read = {item.row for item in observations if isinstance(item, Read)}
        rows = (item for item in observations if isinstance(item, AcceptedRow) and item.row not in read)
        return {generations[bisect_right(begins, row.ts_us) - 1].number for row in rows}

    for seed in range(6):
        assert unread_generations(seed, LogReader) == {1}
        assert unread_generations(seed, WaitingForAll) == {1, 2, 3}


class ForgetfulDisk(Disk):
    """Loses the promises of two-phase switches."""

    def load_promises(self) -> tuple:
        return ()


def test_promise_lost_by_a_restart() -> None:
    """Without its promise, a restarted node that cannot read the decision writes to the old generation."""
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


def test_reader_that_passes_a_generation_published_late() -> None:
    """Official clients see only published generations; the platform's reader waits for those that nodes know."""
    late = replace(PLAIN, late_publication_us=SECOND_US * 200)
    assert broken(with_rules(late, reader="client"), Property.READ_ONCE) is not None
    assert broken(late, Property.READ_ONCE, seeds=12) is None


def concurrent_repairs(protocol: Protocol, seed: int) -> HistoryPlan:
    """Return two repairs half a second apart, with writes through every node when their generations begin."""
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


def test_concurrent_generations_by_gossip() -> None:
    """An endpoint gossips one ID, so a node that learns only the later one never learns of the earlier one."""
    broken_by = {
        protocol: any(
            Property.RIGHT_GENERATION in judge_plan(concurrent_repairs(protocol, seed)).verdict.broken
            for seed in range(20)
        )
        for protocol in PROTOCOLS
    }
    assert broken_by == {"gossip": True, "two-phase": False}


def test_outages_longer_than_the_delay_by_gossip() -> None:
    """A node cut off for longer than the delay writes to the wrong generation; in two phases it refuses."""
    cut_off = replace(PLAIN, partitions=3, outages=4, outage_us=SECOND_US * 240)
    assert broken(cut_off, Property.RIGHT_GENERATION, seeds=150) is not None
    assert broken(replace(cut_off, rules=Rules("two-phase")), Property.RIGHT_GENERATION, seeds=12) is None


TABLETS = Assumptions(Rules("tablets"), nodes=4, joins=0, splits=2, merges=1, writes=200)


def test_delay_shorter_than_the_leeway_with_tablets() -> None:
    """A node accepts writes a leeway ahead of its clock, in a stream set that ends earlier at another node."""
    short = with_rules(TABLETS, delay_ms=Milliseconds(4_500))
    assert broken(short, Property.RIGHT_GENERATION) is not None
    assert broken(TABLETS, Property.RIGHT_GENERATION, seeds=12) is None


def test_window_shorter_than_skew_plus_leeway_with_tablets() -> None:
    """A set accepts any timestamp of its time, so the window must cover the maximum age."""
    skewed = replace(TABLETS, skew_us=SECOND_US * 4)
    assert broken(with_rules(skewed, window_us=SECOND_US * 8), Property.READ_ONCE) is not None
    assert broken(with_rules(skewed, window_us=SECOND_US * 8), Property.LAST_ROW_READ) is not None
    assert broken(with_rules(skewed, window_us=SECOND_US * 10), Property.READ_ONCE, seeds=15) is None


def test_node_cut_off_for_longer_than_the_delay_with_tablets() -> None:
    """It writes to the previous stream set, as with gossip."""
    cut_off = replace(TABLETS, partitions=3, outages=4, outage_us=SECOND_US * 240)
    assert broken(cut_off, Property.RIGHT_GENERATION) is not None


class OneNodeAsked(TabletLogReader):
    """Queries only node 1, which may learn of a stream set last, and reads only after its position."""

    def visible(self) -> list[SimulatedGeneration]:
        self._published |= self.world.known[1]
        return self._by_time(self._published)

    def _next_window(self, sets: ReaderSets, horizon_us: Microseconds) -> Window | None:
        return next_window(sets, self.position_us, self.windows, horizon_us)


class CatchingUp(OneNodeAsked):
    """The same reader with the platform's choice of windows."""

    _next_window = TabletLogReader._next_window


def test_reader_that_passes_a_stream_set_listed_late() -> None:
    """A reader that continues in the previous set loses its rows; the platform reads the set from its start."""
    cut_off = replace(
        TABLETS,
        server_timestamps=True,
        fixed_outages=(Outage(Microseconds(0), 1, OutageKind.CUT_OFF, SECOND_US * 180),),
    )

    def count_missed(reader: type[TabletLogReader]) -> int:
        verdicts = [judge_plan(draw_plan(cut_off, seed), parts=Parts(reader=reader)).verdict for seed in range(12)]
        return sum(verdict.missed for verdict in verdicts)

    assert count_missed(OneNodeAsked) > count_missed(CatchingUp)


def test_scylladbs_rule_for_removing_stream_sets() -> None:
    """The rule uses row timestamps, but a row written later than its timestamp may still be alive."""
    expiring = with_rules(replace(TABLETS, splits=3), ttl_us=SECOND_US * 60, window_us=SECOND_US * 10)
    assert broken(expiring, Property.EXPIRED_UNNEEDED) is not None
