"""Hypothesis draws the schedule (gossip partners, delays, losses, faults and writes) and shrinks failures.

Any schedule of a two-phase switch is safe, and so is one of gossip if its delay is long enough.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from cdc_platform.clock import MILLISECOND_US, SECOND_US, Microseconds, Milliseconds, us_from_ms
from cdc_platform.generations import AcceptancePolicy, SwitchTimes
from cdc_platform.simulation import HistoryPlan, Outage, OutageKind, Property, Rules, judge_plan
from cdc_platform.simulation.plan import (
    ClockOffset,
    CrashAtStep,
    Network,
    OperationKind,
    Partition,
    PlannedOperation,
    PlannedWrite,
)

NODES = 4
JOINING = NODES
END_US = SECOND_US * 150
TIMES = SwitchTimes(Milliseconds(5_000), Milliseconds(20_000), Milliseconds(10_000), Milliseconds(2_000))
SAFETY = frozenset(Property) - {Property.ALL_LEARN, Property.READ_ONCE, Property.LAST_ROW_READ}
"""Properties without assumptions; the others assume a reader's window and an end of faults."""

times = st.integers(0, END_US).map(Microseconds)
spans = st.integers(1, SECOND_US * 90).map(Microseconds)
nodes = st.integers(0, JOINING)
offsets = st.integers(-SECOND_US, SECOND_US).map(Microseconds)
operations = st.lists(
    st.one_of(
        st.builds(PlannedOperation, times, st.just(OperationKind.REPAIR), st.integers(0, NODES - 1)),
        st.builds(PlannedOperation, times, st.just(OperationKind.JOIN), st.just(JOINING)),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda operation: operation.node,
).map(tuple)
writes = st.lists(
    st.builds(PlannedWrite, times, nodes, st.integers(1, 100), st.none() | offsets, st.none() | nodes),
    max_size=30,
).map(tuple)


choices = st.lists(st.integers(0, 15).map(lambda number: number / 16), max_size=60).map(tuple)
"""Random choices of network and gossip, in sixteenths: the peer, a message's delay, and its loss."""
START_US = SECOND_US
near = st.integers(0, SECOND_US * 12).map(lambda offset: Microseconds(START_US + offset))
clients = st.builds(
    PlannedWrite,
    near,
    st.integers(0, NODES - 1),
    st.integers(1, 100),
    st.none() | st.integers(-SECOND_US * 5, SECOND_US * 5).map(Microseconds),
)
late_faults = st.lists(
    st.builds(Outage, near, st.integers(0, NODES - 1), st.sampled_from(OutageKind), spans), max_size=2
).map(tuple)


def gossip_plans(delay_ms: int, faults: st.SearchStrategy[tuple[Outage, ...]]) -> st.SearchStrategy[HistoryPlan]:
    """Return histories of one repair by gossip with writes around it; up to three of ten messages are lost."""
    return st.builds(
        HistoryPlan,
        st.just(1),
        st.just(Rules("gossip", delay_ms=Milliseconds(delay_ms))),
        st.just(Network(MILLISECOND_US * 500, 0.3)),
        st.just(NODES),
        duration_us=st.just(us_from_ms(Milliseconds(delay_ms + 15_000))),
        settle_us=st.just(SECOND_US * 45 if delay_ms > 60_000 else SECOND_US),
        operations=st.just((PlannedOperation(START_US, OperationKind.REPAIR, 0),)),
        outages=faults,
        writes=st.lists(clients, min_size=1, max_size=10).map(tuple),
        choices=choices,
    )


def is_misplaced(plan: HistoryPlan) -> bool:
    """Return True if a write is in the wrong generation."""
    return Property.RIGHT_GENERATION in judge_plan(plan).verdict.broken


@given(plan=gossip_plans(65_000, st.just(())))
def test_any_schedule_of_gossip_is_safe_if_the_delay_is_long(plan: HistoryPlan) -> None:
    """This holds for any gossip partners, and any number of late or lost messages."""
    assert judge_plan(plan).verdict.violations == ()


def test_short_delay_shrinks_to_one_write() -> None:
    """The smallest history is one write through an uninformed node, with few random choices."""
    plan = find(
        gossip_plans(6_000, late_faults),
        is_misplaced,
        settings=settings(max_examples=2_000, database=None, derandomize=True, phases=[Phase.generate, Phase.shrink]),
    )
    assert plan.choices is not None
    assert len(plan.writes) == 1
    assert 1 <= len(plan.outages) + sum(choice > 0 for choice in plan.choices) <= 4
    assert is_misplaced(plan)
    assert not is_misplaced(replace(plan, choices=(), outages=()))


@given(
    choices=st.none() | choices,
    policy=st.sampled_from(["strict", "recent-past"]),
    operations=operations,
    clocks=st.lists(st.builds(ClockOffset, times, nodes, offsets), max_size=4).map(tuple),
    outages=st.lists(st.builds(Outage, times, nodes, st.sampled_from(OutageKind), spans), max_size=4).map(tuple),
    partitions=st.lists(st.builds(Partition, times, st.integers(0, 31), st.booleans(), spans), max_size=2).map(tuple),
    crashes=st.lists(st.builds(CrashAtStep, nodes, st.integers(1, 6), st.booleans(), spans), max_size=3).map(tuple),
    writes=writes,
)
def test_any_schedule_of_a_two_phase_switch_is_safe(
    choices: tuple[float, ...] | None,
    policy: AcceptancePolicy,
    operations: tuple[PlannedOperation, ...],
    clocks: tuple[ClockOffset, ...],
    outages: tuple[Outage, ...],
    partitions: tuple[Partition, ...],
    crashes: tuple[CrashAtStep, ...],
    writes: tuple[PlannedWrite, ...],
) -> None:
    """Writes are in their generations, placed once, and no switch is decided twice."""
    plan = HistoryPlan(
        1,
        Rules("two-phase", policy=policy, ring_delay_ms=Milliseconds(1_000), switch=TIMES),
        nodes=NODES,
        duration_us=END_US,
        settle_us=SECOND_US * 30,
        operations=operations,
        clocks=clocks,
        outages=outages,
        partitions=partitions,
        crashes=crashes,
        writes=writes,
        choices=choices,
    )
    verdict = judge_plan(plan).verdict
    assert [violation for violation in verdict.violations if violation.property in SAFETY] == []
