"""The transitions of a switch and a participant's rules, one by one; test_switch_machine tests their combination."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.clock import Microseconds, Milliseconds, us_from_ms
from cdc_platform.errors import InputError, NotFound, StateError, WriteRefused
from cdc_platform.generations import (
    GenerationSwitch,
    RingLayout,
    SwitchPhase,
    SwitchTimes,
    TopologyDescription,
    UndecidedSwitch,
    WriteVerdict,
    decide_write,
    generate_description,
)
from cdc_platform.generations import switch as rules
from cdc_platform.node.participant import SwitchParticipant
from cdc_platform.ring import Node, Ring

TIMES = SwitchTimes(Milliseconds(5_000), Milliseconds(60_000), Milliseconds(30_000), Milliseconds(4_000))
NOW = Milliseconds(1_700_000_000_000)
OLD_RING = Ring.of([Node(UUID(int=1), (-(2**62), 2**62), 2, 12)])
NEW_RING = OLD_RING.join(Node(UUID(int=2), (0,), 3, 12))


def describe(ring: Ring, number: int) -> TopologyDescription:
    """Return generation `number` over a ring."""
    return generate_description(RingLayout.of(ring), UUID(int=number))


def prepare(
    generation: str = "g", hosts: tuple[str, ...] = ("a", "b"), known: tuple[GenerationSwitch, ...] = ()
) -> GenerationSwitch:
    """Return a switch that `a` has prepared now."""
    return rules.prepare_switch(known, generation, "a", hosts, TIMES, now_ms=NOW, newest_ms=None)


def acknowledge(switch: GenerationSwitch, **ends: int) -> GenerationSwitch:
    """Return the switch after these hosts have answered with these lease ends."""
    for host, end in ends.items():
        switch = rules.acknowledge_switch(switch, host, Milliseconds(end), TIMES, NOW)
    return switch


def test_a_switch_begins_undecided_with_its_deadline() -> None:
    """The switch has its participants in order and no answers."""
    switch = prepare(hosts=("b", "a"))
    assert switch == GenerationSwitch("g", "a", ("a", "b"), NOW, Milliseconds(NOW + 30_000))
    assert (switch.phase, switch.missing, switch.is_decided) == (SwitchPhase.PREPARING, ("a", "b"), False)


def test_a_lease_ends_leeway_and_lease_after_the_clock() -> None:
    """The lease end is in whole ms, computed from the clock's µs."""
    assert TIMES.lease_end_ms(Microseconds(us_from_ms(NOW) + 999)) == NOW + 65_000


@given(st.lists(st.integers(5_001, 10**6), min_size=1, max_size=5), st.integers(0, 5_000), st.integers(0, 2 * 10**6))
def test_the_time_is_after_every_lease_by_the_margin_and_after_every_generation(
    ends: list[int], margin: Milliseconds, newest: int
) -> None:
    """T = max(L) + margin; only a generation that starts at T or later moves it on."""
    times = SwitchTimes(Milliseconds(5_000), Milliseconds(60_000), Milliseconds(30_000), margin)
    hosts = {str(number): NOW + end for number, end in enumerate(ends)}
    switch = rules.prepare_switch([], "g", "0", list(hosts), times, now_ms=NOW, newest_ms=None)
    committed = rules.commit_switch(
        acknowledge(switch, **hosts), times, now_ms=NOW, newest_ms=Milliseconds(NOW + newest), by="x"
    )
    earliest = max(hosts.values()) + margin
    assert committed.time_ms == (earliest if newest < earliest - NOW else NOW + newest + 1)


def test_repeating_a_step_gives_the_same_row() -> None:
    """Repeated preparation, acknowledgement, commit and abort change nothing, whatever their arguments."""
    switch = acknowledge(prepare(), a=NOW + 65_000)
    assert prepare(known=(switch,)) == switch
    assert rules.acknowledge_switch(switch, "a", Milliseconds(NOW + 99_000), TIMES, Milliseconds(NOW + 10**6)) == switch
    aborted = rules.abort_switch(switch, now_ms=switch.deadline_ms, by="x")
    assert rules.abort_switch(aborted, now_ms=Milliseconds(0), by="y") == aborted
    committed = rules.commit_switch(acknowledge(switch, b=NOW + 70_000), TIMES, now_ms=NOW, newest_ms=None, by="x")
    assert rules.commit_switch(committed, TIMES, now_ms=Milliseconds(0), newest_ms=Milliseconds(0), by="y") == committed


def test_the_due_phase_follows_from_answers_and_deadline() -> None:
    """All answers commit at any time; the deadline aborts an incomplete switch; before it the switch waits."""
    waiting, full = prepare(), acknowledge(prepare(), a=NOW + 65_000, b=NOW + 65_000)
    assert rules.get_due_phase(waiting, Milliseconds(NOW + 29_999)) is SwitchPhase.PREPARING
    assert rules.get_due_phase(waiting, Milliseconds(NOW + 30_000)) is SwitchPhase.ABORTED
    assert (
        rules.get_due_phase(full, NOW) is rules.get_due_phase(full, Milliseconds(NOW + 10**9)) is SwitchPhase.COMMITTED
    )
    assert rules.decide_switch(waiting, TIMES, now_ms=NOW, newest_ms=None, by="x") is waiting


def test_a_decision_is_final() -> None:
    """An aborted switch is not committed, a committed one is not aborted, and neither accepts an answer."""
    aborted = rules.abort_switch(prepare(), now_ms=Milliseconds(NOW + 30_000), by="x")
    committed = rules.commit_switch(
        acknowledge(prepare(hosts=("a",)), a=NOW + 65_000), TIMES, now_ms=NOW, newest_ms=None, by="x"
    )
    with pytest.raises(StateError, match="a decision is final"):
        rules.commit_switch(aborted, TIMES, now_ms=NOW, newest_ms=None, by="y")
    with pytest.raises(StateError, match="a decision is final"):
        rules.abort_switch(committed, now_ms=Milliseconds(NOW + 30_000), by="y")
    with pytest.raises(StateError, match="too late to acknowledge"):
        rules.acknowledge_switch(aborted, "a", Milliseconds(NOW + 65_000), TIMES, NOW)
    with pytest.raises(StateError, match="is not retried"):
        prepare(known=(aborted,))


def test_bad_requests_are_refused() -> None:
    """Each refusal names the error."""
    with pytest.raises(StateError, match="must wait: the switch to g is undecided"):
        prepare("h", known=(prepare(),))
    with pytest.raises(InputError, match="none of its participants"):
        prepare(hosts=("b",))
    with pytest.raises(StateError, match="clock is behind"):
        rules.prepare_switch([], "g", "a", ["a"], TIMES, now_ms=NOW, newest_ms=Milliseconds(NOW + 10**6))
    with pytest.raises(NotFound, match="no participant"):
        rules.acknowledge_switch(prepare(), "c", Milliseconds(NOW + 65_000), TIMES, NOW)
    with pytest.raises(StateError, match="has passed"):
        rules.acknowledge_switch(prepare(), "a", Milliseconds(NOW + 65_000), TIMES, Milliseconds(NOW + 30_000))
    with pytest.raises(StateError, match="before the acknowledgement"):
        rules.acknowledge_switch(prepare(), "a", Milliseconds(NOW + 5_000), TIMES, NOW)
    with pytest.raises(InputError, match="is not longer than the margin"):
        SwitchTimes(Milliseconds(5_000), Milliseconds(4_000), Milliseconds(30_000), Milliseconds(4_000))
    with pytest.raises(InputError, match="is negative"):
        SwitchTimes(Milliseconds(-1))


def test_only_otherwise_accepted_writes_wait_for_a_decision() -> None:
    """UNDECIDED comes after every other reason; of several switches, the first lease end counts."""
    waiting = [
        UndecidedSwitch("h", Microseconds(1), Microseconds(900)),
        UndecidedSwitch("g", Microseconds(2), Microseconds(500)),
    ]
    for ts, verdict in (
        (499, WriteVerdict.OK),
        (500, WriteVerdict.UNDECIDED),
        (5_000_600, WriteVerdict.FUTURE),
        (1, WriteVerdict.PAST),
    ):
        assert (
            decide_write([Microseconds(100)], Microseconds(ts), Microseconds(400), undecided=waiting).verdict is verdict
        )
    decision = decide_write([Microseconds(100)], Microseconds(500), Microseconds(400), undecided=waiting)
    assert (decision.generation_us, decision.first_usable_us) == (None, None)
    assert decision.reason.startswith("a generation switch is undecided since 1970-01-01T00:00:00.000002Z; ")
    assert "generation g" in decision.reason


@pytest.fixture
def node() -> SwitchParticipant:
    """Node 1 with the old generation, which started an hour ago."""
    node = SwitchParticipant("a", TIMES)
    node.know(Milliseconds(NOW - 3_600_000), describe(OLD_RING, 1), OLD_RING, us_from_ms(NOW))
    return node


def test_routing_follows_the_timestamp_of_the_write(node: SwitchParticipant) -> None:
    """Before T, a write uses the old streams and ring, and from T on the new ones, to the microsecond."""
    new = describe(NEW_RING, 2)
    switch = prepare(str(UUID(int=2)), hosts=("a",))
    promise = node.promise(switch, new, NEW_RING, us_from_ms(NOW))
    committed = rules.commit_switch(
        acknowledge(switch, a=promise.lease_end_ms), TIMES, now_ms=NOW, newest_ms=None, by="a"
    )
    assert node.learn(committed, us_from_ms(NOW))
    assert committed.time_ms is not None
    start = us_from_ms(committed.time_ms)
    before, after = (node.accept(Microseconds(start + beside), -5, Microseconds(start - 1_000)) for beside in (-1, 0))
    assert (before.ring, after.ring) == (OLD_RING, NEW_RING)
    assert before.stream_id == describe(OLD_RING, 1).streams_of([-5])[0].tobytes()
    assert after.stream_id == new.streams_of([-5])[0].tobytes()


def test_a_promise_holds_until_the_decision_is_known(node: SwitchParticipant) -> None:
    """The node accepts writes up to the lease end, then refuses them until it learns of the decision."""
    switch = prepare(hosts=("a", "b"))
    promise = node.promise(switch, describe(NEW_RING, 2), NEW_RING, us_from_ms(NOW))
    end = us_from_ms(promise.lease_end_ms)
    assert node.accept(Microseconds(end - 1), 5, Microseconds(end - 1)).ring is OLD_RING
    with pytest.raises(WriteRefused, match="a generation switch is undecided since") as refused:
        node.accept(end, 5, end)
    assert refused.value.verdict == WriteVerdict.UNDECIDED
    assert node.promise(switch, describe(NEW_RING, 2), NEW_RING, end) == promise
    assert node.learn(rules.abort_switch(switch, now_ms=switch.deadline_ms, by="b"), end)
    assert node.accept(end, 5, end).ring is OLD_RING


def test_a_restarted_node_retains_its_promise_and_rereads_the_generation(node: SwitchParticipant) -> None:
    """A decision whose generation the node has not read does not end the promise."""
    switch = prepare(hosts=("a",))
    promise = node.promise(switch, describe(NEW_RING, 2), NEW_RING, us_from_ms(NOW))
    restarted = SwitchParticipant("a", TIMES, promises=node.promises)
    restarted.know(Milliseconds(NOW - 3_600_000), describe(OLD_RING, 1), OLD_RING, us_from_ms(NOW))
    committed = rules.commit_switch(
        acknowledge(switch, a=promise.lease_end_ms), TIMES, now_ms=NOW, newest_ms=None, by="a"
    )
    assert not restarted.learn(committed, us_from_ms(NOW))
    with pytest.raises(WriteRefused, match="undecided"):
        restarted.accept(us_from_ms(promise.lease_end_ms), 5, us_from_ms(promise.lease_end_ms))
    restarted.promise(switch, describe(NEW_RING, 2), NEW_RING, us_from_ms(NOW))
    assert restarted.learn(committed, us_from_ms(NOW))
    assert restarted.promises == ()
    assert restarted.accept(us_from_ms(promise.lease_end_ms), 5, us_from_ms(promise.lease_end_ms)).ring is OLD_RING
