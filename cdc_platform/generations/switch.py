"""The two-phase switch of generations: prepare, acknowledge with a lease, commit or abort. Pure transitions.

A `GenerationSwitch` is one row of the register of switches. A transition takes a row and returns its replacement,
which the caller writes by compare-and-set. Times are ms since 1970 UTC by the caller's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from cdc_platform.clock import (
    DEFAULT_LEEWAY_MS,
    MINUTE_MS,
    ONE_MS,
    SECOND_MS,
    Microseconds,
    Milliseconds,
    format_ms,
    ms_from_us,
)
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations.generation_id import next_generation_timestamp


class SwitchPhase(StrEnum):
    """The state of a switch. The last two are decisions, which never change."""

    PREPARING = "preparing"
    """Participants acknowledge; the old generation continues."""
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True)
class SwitchTimes:
    """Durations of a switch, in ms.

    `leeway_ms`: how far ahead of its clock a node accepts writes. `lease_ms`: how much longer than that a participant
    continues after its acknowledgement, without knowing the decision. `deadline_ms`: how long participants may take to
    answer. `margin_ms`: how far clocks may differ; the generation starts that much after the last lease.

    Raises:
        InputError: a time is negative, or the lease is not longer than the margin. Otherwise a node whose clock is set
            back by the margin right before its acknowledgement could promise what it has already broken.
    """

    leeway_ms: Milliseconds = DEFAULT_LEEWAY_MS
    lease_ms: Milliseconds = MINUTE_MS
    deadline_ms: Milliseconds = SECOND_MS * 30
    margin_ms: Milliseconds = SECOND_MS * 5

    def __post_init__(self) -> None:
        for name in ("leeway_ms", "lease_ms", "deadline_ms", "margin_ms"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} {getattr(self, name)} is negative; times of a switch are 0 ms or more")
        if self.lease_ms <= self.margin_ms:
            raise InputError(
                f"a lease of {self.lease_ms} ms is not longer than the margin of {self.margin_ms} ms by which clocks "
                "may be apart; set switch_lease_ms above switch_margin_ms"
            )

    def lease_end_ms(self, now_us: Microseconds) -> Milliseconds:
        """Return the lease end of a participant whose clock shows `now_us` (µs): clock + leeway + lease."""
        return ms_from_us(now_us) + self.leeway_ms + self.lease_ms

    @property
    def earliest_ms(self) -> Milliseconds:
        """Return how long after its preparation a generation starts at the earliest."""
        return self.leeway_ms + self.lease_ms + self.margin_ms


@dataclass(frozen=True)
class GenerationSwitch:
    """One switch as stored in the register.

    `leases`: (host_id, lease end) of the participants that have acknowledged, by host_id. `time_ms`: the generation's
    timestamp, once it is committed. `decided_by`: whose compare-and-set decided.
    """

    generation_id: str
    initiator: str
    participants: tuple[str, ...]
    prepared_at_ms: Milliseconds
    deadline_ms: Milliseconds
    phase: SwitchPhase = SwitchPhase.PREPARING
    leases: tuple[tuple[str, Milliseconds], ...] = ()
    time_ms: Milliseconds | None = None
    decided_at_ms: Milliseconds | None = None
    decided_by: str | None = None

    @property
    def is_decided(self) -> bool:
        """Return True if it is committed or aborted."""
        return self.phase is not SwitchPhase.PREPARING

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the participants that have not acknowledged."""
        answered = {host for host, _ in self.leases}
        return tuple(host for host in self.participants if host not in answered)

    def lease_of(self, host_id: str) -> int | None:
        """Return the lease end of a participant, or None if it has not acknowledged."""
        return dict(self.leases).get(host_id)


def prepare_switch(
    known: Iterable[GenerationSwitch],
    generation_id: str,
    initiator: str,
    participants: Collection[str],
    times: SwitchTimes,
    *,
    now_ms: Milliseconds,
    newest_ms: Milliseconds | None,
) -> GenerationSwitch:
    """Begin the switch to a generation whose description is inserted. A switch that was begun already stays unchanged.

    `known` is the whole register; `newest_ms` the timestamp of the newest generation. The caller may add the row only
    if nothing else has changed in the register: two concurrent joins must not both begin.

    Raises:
        StateError: another switch is undecided, this one was aborted, or the clock is behind the newest generation.
        InputError: the initiator is no participant.
    """
    others: list[GenerationSwitch] = []
    for switch in known:
        if switch.generation_id == generation_id:
            return assert_not_aborted(switch)
        others.append(switch)
    undecided = next((switch for switch in others if not switch.is_decided), None)
    if undecided is not None:
        raise StateError(
            f"generation {generation_id} must wait: the switch to {undecided.generation_id} is undecided until "
            f"{format_ms(undecided.deadline_ms)} at the latest; then: cdc-platform switch abort "
            f"{undecided.generation_id}"
        )
    if initiator not in participants:
        raise InputError(f"host {initiator} begins the switch to {generation_id} and is none of its participants")
    next_generation_timestamp(now_ms + times.earliest_ms, newest_ms, times.earliest_ms)
    return GenerationSwitch(generation_id, initiator, tuple(sorted(participants)), now_ms, now_ms + times.deadline_ms)


def acknowledge_switch(
    switch: GenerationSwitch, host_id: str, lease_end_ms: Milliseconds, times: SwitchTimes, now_ms: Milliseconds
) -> GenerationSwitch:
    """Record a participant's answer with the lease end that it has promised. A second answer changes nothing.

    Raises:
        NotFound: the host is no participant.
        StateError: the switch is decided, the deadline has passed, or the promise has expired before it was sent.
    """
    if host_id not in switch.participants:
        raise NotFound(
            f"host {host_id} is no participant of the switch to {switch.generation_id}; they are "
            f"{', '.join(switch.participants)}"
        )
    if switch.lease_of(host_id) is not None:
        return switch
    if switch.is_decided:
        raise StateError(f"{_describe_decision(switch)}; it is too late to acknowledge")
    if now_ms >= switch.deadline_ms:
        raise StateError(
            f"the deadline of the switch to {switch.generation_id}, {format_ms(switch.deadline_ms)}, has passed "
            f"(clock: {format_ms(now_ms)}); abort it and let the node try again: cdc-platform switch abort "
            f"{switch.generation_id}"
        )
    if lease_end_ms <= now_ms + times.leeway_ms:
        raise StateError(
            f"the lease of host {host_id} ended at {format_ms(lease_end_ms)} before the acknowledgement (clock: "
            f"{format_ms(now_ms)}): writes may have been accepted after it; wait for the deadline and abort the "
            f"switch to "
            f"{switch.generation_id}"
        )
    return replace(switch, leases=tuple(sorted((*switch.leases, (host_id, lease_end_ms)))))


def commit_switch(
    switch: GenerationSwitch, times: SwitchTimes, *, now_ms: Milliseconds, newest_ms: Milliseconds | None, by: str
) -> GenerationSwitch:
    """Commit a fully acknowledged switch: the generation starts at the last lease end + margin, after all others.

    The time is never before a lease end, so no participant can have accepted a write that belongs to the generation.

    Raises:
        StateError: it is aborted, or answers are missing.
    """
    if switch.phase is SwitchPhase.COMMITTED:
        return switch
    if switch.phase is SwitchPhase.ABORTED:
        raise StateError(f"{_describe_decision(switch)}; a decision is final: let the node draw a new generation")
    if switch.missing:
        raise StateError(
            f"the switch to {switch.generation_id} cannot be committed: {len(switch.missing)} of "
            f"{len(switch.participants)} participants have not acknowledged, the first is {switch.missing[0]}; "
            f"acknowledge with: cdc-platform switch ack {switch.generation_id} --node {switch.missing[0]}"
        )
    time_ms = max(end for _, end in switch.leases) + times.margin_ms
    if newest_ms is not None:
        time_ms = max(time_ms, newest_ms + ONE_MS)
    return replace(switch, phase=SwitchPhase.COMMITTED, time_ms=time_ms, decided_at_ms=now_ms, decided_by=by)


def abort_switch(switch: GenerationSwitch, *, now_ms: Milliseconds, by: str) -> GenerationSwitch:
    """Abort a switch whose deadline has passed without all answers; any node may. The old generation continues.

    Raises:
        StateError: it is committed, the deadline has not passed, or no answer is missing.
    """
    if switch.phase is SwitchPhase.ABORTED:
        return switch
    if switch.phase is SwitchPhase.COMMITTED:
        raise StateError(f"{_describe_decision(switch)}; a decision is final")
    if now_ms < switch.deadline_ms:
        raise StateError(
            f"the switch to {switch.generation_id} may be aborted from its deadline on, "
            f"{format_ms(switch.deadline_ms)} (clock: {format_ms(now_ms)}); until then participants may answer"
        )
    if not switch.missing:
        raise StateError(
            f"all {len(switch.participants)} participants of the switch to {switch.generation_id} have acknowledged; "
            f"commit it with: cdc-platform switch commit {switch.generation_id}"
        )
    return replace(switch, phase=SwitchPhase.ABORTED, decided_at_ms=now_ms, decided_by=by)


def get_due_phase(switch: GenerationSwitch, now_ms: Milliseconds) -> SwitchPhase:
    """Return the phase that any node whose clock shows `now_ms` may set; PREPARING means wait for answers."""
    if switch.is_decided:
        return switch.phase
    if not switch.missing:
        return SwitchPhase.COMMITTED
    return SwitchPhase.ABORTED if now_ms >= switch.deadline_ms else SwitchPhase.PREPARING


def decide_switch(
    switch: GenerationSwitch, times: SwitchTimes, *, now_ms: Milliseconds, newest_ms: Milliseconds | None, by: str
) -> GenerationSwitch:
    """Return the switch in its due phase, unchanged if no decision is due."""
    outcome = get_due_phase(switch, now_ms)
    if outcome is SwitchPhase.COMMITTED:
        return commit_switch(switch, times, now_ms=now_ms, newest_ms=newest_ms, by=by)
    return abort_switch(switch, now_ms=now_ms, by=by) if outcome is SwitchPhase.ABORTED else switch


def assert_not_aborted(switch: GenerationSwitch) -> GenerationSwitch:
    """Return the switch unchanged.

    Raises:
        StateError: it was aborted; says how the node tries again.
    """
    if switch.phase is SwitchPhase.ABORTED:
        raise StateError(
            f"{_describe_decision(switch)} and is not retried; withdraw its event with bootstrap --withdraw and queue "
            f"the node again: it chooses a new generation"
        )
    return switch


def _describe_decision(switch: GenerationSwitch) -> str:
    when = "" if switch.decided_at_ms is None else f" at {format_ms(switch.decided_at_ms)} by {switch.decided_by}"
    time = "" if switch.time_ms is None else f" for {format_ms(switch.time_ms)}"
    return f"the switch to {switch.generation_id} was {switch.phase}{when}{time}"
