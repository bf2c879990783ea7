"""The two-phase switch as a hypothesis state machine, with gossip as the negative control.

Nodes are slow, deaf, paused, restarted and skewed, initiators die at every step, and two nodes join at once. After
every step, the machine compares the state with the decisions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase as HypothesisPhase
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.worlds.switch_world import (
    HEARTBEAT_MS,
    INITIAL,
    SECOND,
    GossipWorld,
    Machine,
    SwitchWorld,
    World,
)

from cdc_platform.clock import Microseconds, Milliseconds, ms_from_us, us_from_ms
from cdc_platform.generations import GenerationSwitch, SwitchPhase, SwitchTimes
from cdc_platform.node.participant import SwitchParticipant

SKEW_US = SECOND * 2
"""The largest clock difference in this file."""
DEADLINE_MS = Milliseconds(20_000)
# Clocks aside, a healthy node learns of the decision within the deadline and a heartbeat after its promise. A longer
# lease therefore never makes it refuse a write, whatever ails other nodes.
LONG_LEASE_MS, SHORT_LEASE_MS = Milliseconds(40_000), Milliseconds(8_000)
assert DEADLINE_MS + HEARTBEAT_MS + ms_from_us(SKEW_US) * 2 < LONG_LEASE_MS

CAP = st.integers(0, 8)
AILMENTS = st.sampled_from(["deaf", "deaf", "paused", "restarted"])


class Cluster(RuleBasedStateMachine):
    """A cluster with joins, ailments and writes; `kind` is its method of switching generations."""

    kind: type[World] = SwitchWorld

    world: World
    checked: int
    known: dict[int, Microseconds]

    @initialize(
        lease=st.sampled_from([LONG_LEASE_MS, SHORT_LEASE_MS]), margin=st.sampled_from([0, ms_from_us(SKEW_US)])
    )
    def begin(self, lease: Milliseconds, margin: Milliseconds) -> None:
        """Begin with three nodes and one generation."""
        self.world = self.kind(SwitchTimes(Milliseconds(5_000), lease, DEADLINE_MS, margin))
        self.checked = 0
        self.known = {}

    def number(self, index: int) -> int:
        """Return the node that an index refers to."""
        return list(self.world.machines)[index % len(self.world.machines)]

    @rule(ms=st.one_of(st.integers(1, 2_000), st.integers(2_000, 60_000)))
    def time_goes_by(self, ms: Milliseconds) -> None:
        """Advance the time; healthy nodes look around in between."""
        self.world.tick(ms)

    @rule(late=st.booleans())
    def a_node_joins(self, late: bool) -> None:
        """Let a node join or wait for an undecided join; its messages may be delayed for long."""
        if len(self.world.machines) < 8:
            self.world.join(late=late)

    @rule()
    def two_nodes_join_at_once(self) -> None:
        """Let two nodes join without knowing of each other; their messages arrive one after the other."""
        if len(self.world.machines) < 8:
            joining = [len(self.world.machines) for _ in range(2) if self.world.join(late=True)]
            for number in joining:
                self.world.deliver(number)

    @rule(index=CAP, what=AILMENTS)
    def a_node_joins_and_one_falls_ill(self, index: int, what: str) -> None:
        """Let a node join and another fall ill directly after its acknowledgement, so that it misses the decision."""
        self.a_node_joins(late=False)
        ill = self.number(index)
        self.world.look(ill)
        self.world.ail(ill, what)
        for number in self.world.machines:
            self.world.look(number)

    @rule(moment=CAP, before_us=st.integers(0, 6 * SECOND))
    def time_comes_to_a_boundary(self, moment: int, before_us: Microseconds) -> None:
        """Advance to a lease end or the start of a generation, near which writes are accepted or not."""
        moments = self.world.moments_us()
        self.world.tick(ms_from_us(moments[-1 - moment % len(moments)] - before_us - self.world.now_us))

    @rule(index=CAP, what=AILMENTS)
    def something_happens(self, index: int, what: str) -> None:
        """Let something happen to one node."""
        self.world.ail(self.number(index), what)

    @rule()
    def an_initiator_dies(self) -> None:
        """Kill the last node that began to join, at whatever step it is."""
        if len(self.world.machines) > INITIAL:
            self.world.ail(len(self.world.machines), "dead")

    @rule()
    def all_is_well_again(self) -> None:
        """Heal all nodes except dead ones."""
        self.world.heal()

    @rule(index=CAP, late=st.booleans())
    def a_node_looks(self, index: int, late: bool) -> None:
        """Let a node acknowledge and decide; a slow node's messages arrive later."""
        number = self.number(index)
        self.world.look(number, late=late)
        self.after_looking(self.world.machines[number], late)

    @rule(index=CAP, lost=st.booleans())
    def a_message_arrives(self, index: int, lost: bool) -> None:
        """Deliver the oldest message of a node, in time, late or never."""
        self.world.deliver(self.number(index), lost=lost)

    @rule(index=CAP, offset_us=st.integers(0, SKEW_US))
    def a_clock_is_set(self, index: int, offset_us: Microseconds) -> None:
        """Set a clock forward or back, within the margin from the others."""
        self.world.set_clock(self.number(index), offset_us)

    @rule(key=st.integers(0, 2**20), ahead_us=st.integers(-SECOND, 5 * SECOND))
    def clients_write(self, key: int, ahead_us: Microseconds) -> None:
        """Write at every node, at a time near its clock."""
        for number, machine in self.world.machines.items():
            self.write(number, key, self.world.clock_us(machine) + ahead_us)

    @rule(key=st.integers(0, 2**20), moment=CAP, beside_us=st.integers(-1, 1))
    def clients_write_at_a_boundary(self, key: int, moment: int, beside_us: Microseconds) -> None:
        """Write at every node, at a lease end or a generation's start, to the microsecond."""
        moments = self.world.moments_us()
        for number in self.world.machines:
            self.write(number, key, moments[-1 - moment % len(moments)] + beside_us)

    def write(self, number: int, key: int, ts_us: Microseconds) -> None:
        """Write a key whose token is anywhere on the ring."""
        refused = len(self.world.refused)
        token = max((key * 0x9E3779B97F4A7C15) % 2**64, 1) - 2**63
        self.world.write(number, token, ts_us)
        if len(self.world.refused) > refused and self.world.refused[-1][2] == "UNDECIDED":
            self.excused(self.world.machines[number])

    def after_looking(self, machine: Machine, late: bool) -> None:
        """Assert that a node that sees an undecided switch after its deadline has decided it."""
        world = self.world
        if isinstance(world, SwitchWorld) and machine.hears and not late:
            for switch in world.register.values():
                overdue = ms_from_us(world.clock_us(machine)) >= switch.deadline_ms
                assert switch.is_decided or not overdue, f"node {machine.number} left {switch} undecided"

    def excused(self, machine: Machine) -> None:
        """Assert a reason for an UNDECIDED refusal: while every node answers, no write is refused."""
        world = self.world
        assert isinstance(world, SwitchWorld)
        assert not world.calm, "refused though nobody was ill"
        if world.times.lease_ms == LONG_LEASE_MS:
            since = us_from_ms(min(promise.since_ms for promise in world.nodes[machine.number].promises))
            assert machine.ill_at_us >= since - SKEW_US, f"node {machine.number} was well and refused"

    @invariant()
    def decisions_are_one(self) -> None:
        """Assert that no two nodes have different decisions, and that the register never decides twice."""
        world = self.world
        if not isinstance(world, SwitchWorld):
            return
        world.note_decisions()
        for decisions_of_node in world.told.values():
            assert all(world.decisions[generation] == decision for generation, decision in decisions_of_node.items())
        assert sum(not switch.is_decided for switch in world.register.values()) <= 1, "two joins at once"

    def note(self) -> None:
        """Record decisions only."""
        if isinstance(self.world, SwitchWorld):
            self.world.note_decisions()

    @invariant()
    def every_write_is_in_its_generation(self) -> None:
        """Assert that each write is in the committed generation with the greatest timestamp not after the write's."""
        if self.world.started != self.known or self.checked < len(self.world.writes):
            assert not self.world.wrong_generation()

    @invariant()
    def colocation_is_never_lost(self) -> None:
        """Assert that a write's generation refines the ring that routes it, so its stream is in the write's vnode."""
        if self.checked < len(self.world.writes):
            assert not self.world.not_refined()
            assert not self.world.lost_colocation()

    @invariant()
    def remember(self) -> None:
        """Remember the checked state until something changes. Runs last, because the names sort so."""
        self.known, self.checked = dict(self.world.started), len(self.world.writes)

    def teardown(self) -> None:
        """Assert that once all nodes are healthy after the deadline, all is decided and no write is refused."""
        if not hasattr(self, "world") or not isinstance(self.world, SwitchWorld):
            return
        world = self.world
        world.heal()
        world.tick(Milliseconds(DEADLINE_MS + ms_from_us(SKEW_US) * 2 + HEARTBEAT_MS))
        self.decisions_are_one()
        assert all(switch.is_decided for switch in world.register.values())
        for machine in world.machines.values():
            if not machine.dead:
                assert world.nodes[machine.number].promises == ()
                clock = world.clock_us(machine)
                assert machine.number > INITIAL or world.accept(machine.number, 0, clock)
        assert not world.wrong_generation()


Cluster.TestCase.settings = settings(settings.get_profile("histories"), stateful_step_count=40)
TestTwoPhase = Cluster.TestCase


class NoPromiseNode(SwitchParticipant):
    """A participant that acknowledges, but accepts writes as if it had promised nothing."""

    def accept(self, write_ts_us: Microseconds, token: int, now_us: Microseconds):
        self._promises, promises = {}, self._promises
        try:
            return super().accept(write_ts_us, token, now_us)
        finally:
            self._promises = promises


class PromisesBroken(SwitchWorld):
    """Participants acknowledge and then ignore their promises."""

    def restart(self, machine: Machine) -> None:
        self.nodes[machine.number] = NoPromiseNode(str(machine.number), self.times, promises=machine.disk)


class PromisesForgotten(SwitchWorld):
    """A promise is sent, but not stored on disk: a restart forgets it while the answer is under way."""

    def restart(self, machine: Machine) -> None:
        machine.disk = []
        super().restart(machine)


class TooEarly(SwitchWorld):
    """The generation starts at the first lease end instead of after the last."""

    def decide(self, switch: GenerationSwitch, now_ms: Milliseconds, by: str) -> GenerationSwitch:
        decided = super().decide(switch, now_ms, by)
        if decided.phase is not SwitchPhase.COMMITTED or decided is switch:
            return decided
        return replace(decided, time_ms=min(end for _, end in switch.leases))


class NoCompare(SwitchWorld):
    """The register accepts the last write without a comparison."""

    def arrive(self, version: int, switch: GenerationSwitch) -> None:
        super().arrive(self.version, switch)


def find_failure(world: type[World], invariant: str) -> str:
    """Return the failure of the machine for a world in which only this invariant is checked."""
    machine = type(world.__name__, (Cluster,), {"kind": world})
    for name in ("every_write_is_in_its_generation", "colocation_is_never_lost", "decisions_are_one"):
        if name != invariant:
            setattr(machine, name, Cluster.note if name == "decisions_are_one" else lambda self: None)
    hunt = settings(
        settings.get_profile("histories"),
        max_examples=500,
        derandomize=True,
        stateful_step_count=40,
        phases=[HypothesisPhase.generate],
    )
    with pytest.raises(AssertionError) as failure:
        run_state_machine_as_test(machine, settings=hunt)
    return str(failure.value)


GENERATION, COLOCATION, DECISION = (
    "every_write_is_in_its_generation",
    "colocation_is_never_lost",
    "decisions_are_one",
)


@pytest.mark.parametrize(("world", "invariant"), [(GossipWorld, GENERATION), (GossipWorld, COLOCATION)])
def test_gossip_breaks_the_first_two_invariants(world: type[World], invariant: str) -> None:
    """As the negative control, the machine fails when generations are switched as documented, by gossip."""
    assert "Write(ts_us=" in find_failure(world, invariant)


@pytest.mark.parametrize(
    ("world", "invariant"), [(PromisesBroken, GENERATION), (TooEarly, GENERATION), (NoCompare, DECISION)]
)
def test_each_rule_is_needed(world: type[World], invariant: str) -> None:
    """The machine fails without a stored promise, a time after every lease, or a compare before the set."""
    assert find_failure(world, invariant)


@pytest.mark.parametrize(("kind", "wrong"), [(SwitchWorld, 0), (PromisesForgotten, 1)])
def test_a_promise_is_stored_before_it_is_answered(kind: type[SwitchWorld], wrong: int) -> None:
    """A node that restarts while its answer is under way breaks the promise unless it is on disk."""
    world = kind(SwitchTimes(Milliseconds(5_000), SHORT_LEASE_MS, DEADLINE_MS, Milliseconds(0)))
    world.join()
    for number in (1, 3, 4):
        world.look(number)
    world.look(2, late=True)
    world.ail(2, "restarted")
    for number in world.machines:
        world.ail(number, "deaf" if number == 2 else "paused")
    world.tick(Milliseconds(10_000))
    world.ail(2, "hears")
    world.look(2, late=True)
    world.ail(2, "deaf")
    world.deliver(2)
    world.heal()
    world.ail(2, "deaf")
    world.look(1)
    world.note_decisions()
    committed = world.started[1]
    assert committed < world.now_us + 4 * SECOND
    assert world.write(2, 5, Microseconds(committed + 1))
    assert len(world.wrong_generation()) == wrong
