"""Hypothesis draws the schedule of a two-phase switch, so that what it finds shrinks; any schedule must be safe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.clock import SECOND_US, Microseconds, Milliseconds
from cdc_platform.generations import AcceptancePolicy, SwitchTimes
from cdc_platform.simulation import HistoryPlan, Outage, OutageKind, Property, Rules, judge_plan
from cdc_platform.simulation.plan import (
    ClockOffset,
    CrashAtStep,
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
"""What holds whatever happens; a reader's window and the end of faults are assumptions of the others."""

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


@given(
    policy=st.sampled_from(["strict", "recent-past"]),
    operations=operations,
    clocks=st.lists(st.builds(ClockOffset, times, nodes, offsets), max_size=4).map(tuple),
    outages=st.lists(st.builds(Outage, times, nodes, st.sampled_from(OutageKind), spans), max_size=4).map(tuple),
    partitions=st.lists(st.builds(Partition, times, st.integers(0, 31), st.booleans(), spans), max_size=2).map(tuple),
    crashes=st.lists(st.builds(CrashAtStep, nodes, st.integers(1, 6), st.booleans(), spans), max_size=3).map(tuple),
    writes=writes,
)
def test_any_schedule_of_a_two_phase_switch_is_safe(
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
    )
    broken = judge_plan(plan).verdict
    assert [each for each in broken.violations if each.property in SAFETY] == []
