"""The two-phase switch of generations on the lake: prepare, acknowledge, commit or abort.

`platform.generation_switches` is the register, with one Delta commit per change of phase. `generations.switch` holds
the rules. No Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, datetime_from_us
from cdc_platform.delta import Lake, get_verified_lake
from cdc_platform.errors import StateError
from cdc_platform.generations import GenerationSwitch, SwitchPhase, SwitchTimes
from cdc_platform.generations import switch as rules
from cdc_platform.metastore import generations, switches
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_SWITCHES,
    NODES,
    SWITCH_PROMISES,
    VERDICTS,
)
from cdc_platform.timeline import Timeline

COMMIT_STEP, ABORT_STEP = "switch commit", "switch abort"
"""The names of the manual decisions in error messages."""


def switch_times(settings: Settings) -> SwitchTimes:
    """Return the configured times of a switch.

    Raises:
        InputError: the lease is not longer than the margin.
    """
    return SwitchTimes(
        settings.generation_leeway_ms, settings.switch_lease_ms, settings.switch_deadline_ms, settings.switch_margin_ms
    )


def run_switch(
    lake: Lake, clock: Clock, settings: Settings, generation_id: str, initiator: str, participants: Collection[str]
) -> Milliseconds | None:
    """Switch to an inserted generation in two phases and return its timestamp (ms).

    Returns None if generations are not switched in two phases: the setting is off, and this switch has not begun.
    Participants are the platform's own nodes, each of which acknowledges by reading the whole generation. Repeated and
    concurrent calls resume the switch, and all get the same timestamp.

    Raises:
        StateError: another switch is undecided, this one was aborted, rows are missing, or the clock is behind.
    """
    begun = any(outcome.generation_id == generation_id for outcome in switches.read_switch_outcomes(lake))
    if not begun and not settings.two_phase_switch:
        return None
    prepare_switch(lake, clock, settings, generation_id, initiator, participants)
    switch = advance_switch(lake, clock, settings, generation_id, initiator)
    if switch.time_ms is None:
        rules.assert_not_aborted(switch)
        raise StateError(f"the switch to {generation_id} is undecided; run the step again")
    return switch.time_ms


def prepare_switch(
    lake: Lake, clock: Clock, settings: Settings, generation_id: str, initiator: str, participants: Collection[str]
) -> GenerationSwitch:
    """Insert the row of a switch into the register unless it exists.

    Raises:
        StateError: another switch is undecided, this one was aborted, the clock is behind, or rows of the generation
            are missing.
    """
    generations.read_v2_range_ends(lake, generation_id)
    times = switch_times(settings)

    def begun(known: list[GenerationSwitch]) -> GenerationSwitch:
        now = clock.now_ms()
        return rules.prepare_switch(
            known, generation_id, initiator, participants, times, now_ms=now, newest_ms=_newest_ms(lake)
        )

    switch = _change_register(lake, begun)
    failpoints.kill_if_selected(failpoints.AFTER_SWITCH_PREPARED)
    return switch


def acknowledge_switch(
    lake: Lake, clock: Clock, settings: Settings, generation_id: str, hosts: Iterable[str]
) -> GenerationSwitch:
    """Let participants read the whole generation, promise, and then acknowledge; all of `hosts` in one commit.

    The first promise remains, so that a lost acknowledgement is repeated unchanged. The clock is checked before and
    after the promise, so that no expired promise is acknowledged.

    Raises:
        NotFound: there is no such switch, a host is no participant, or the generation has no rows.
        StateError: rows of the generation are missing, the switch is decided, or it is too late to acknowledge.
    """
    times = switch_times(settings)
    switch = switches.find_switch(lake, generation_id)
    promised = {host: times.lease_end_ms(clock.now_us()) for host in hosts}
    acknowledged = _with_acknowledgements(switch, promised, times, clock)
    if acknowledged != switch:
        generations.read_v2_description(lake, generation_id)
        _record_promises(lake, clock, switch, promised)
        failpoints.kill_if_selected(failpoints.AFTER_SWITCH_PROMISE)
        promises = switches.read_lease_promises(lake, generation_id)
        acknowledged = _change_switch(
            lake,
            generation_id,
            lambda row: _with_acknowledgements(row, {h: promises[h] for h in promised}, times, clock),
        )
        failpoints.kill_if_selected(failpoints.AFTER_SWITCH_ACKNOWLEDGED)
    return acknowledged


def commit_switch(lake: Lake, clock: Clock, settings: Settings, generation_id: str, by: str) -> GenerationSwitch:
    """Commit the switch if all have acknowledged; return a committed one unchanged.

    Raises:
        NotFound: there is no such switch.
        StateError: it is aborted, or acknowledgements are missing.
        NotAsCommitted: a table on which the decision depends is not as committed.
    """
    lake = _verified_lake(lake, generation_id, COMMIT_STEP)
    times = switch_times(settings)
    return _apply_decision(
        lake,
        generation_id,
        lambda row: rules.commit_switch(row, times, now_ms=clock.now_ms(), newest_ms=_newest_ms(lake), by=by),
    )


def abort_switch(lake: Lake, clock: Clock, generation_id: str, by: str) -> GenerationSwitch:
    """Abort the switch if acknowledgements are missing after its deadline; return an aborted one unchanged.

    Raises:
        NotFound: there is no such switch.
        StateError: it is committed, its deadline has not passed, or all have acknowledged.
        NotAsCommitted: a table on which the decision depends is not as committed.
    """
    lake = _verified_lake(lake, generation_id, ABORT_STEP)
    return _apply_decision(lake, generation_id, lambda row: rules.abort_switch(row, now_ms=clock.now_ms(), by=by))


def advance_switch(lake: Lake, clock: Clock, settings: Settings, generation_id: str, by: str) -> GenerationSwitch:
    """Acknowledge for the platform's nodes if the deadline allows, then commit or abort if that is due.

    Raises:
        NotFound: there is no such switch.
        StateError: the deadline has not passed, and the generation cannot be read.
        NotAsCommitted: a table on which the decision depends is not as committed.
    """
    lake = _verified_lake(lake, generation_id, "the decision of a switch")
    switch = switches.find_switch(lake, generation_id)
    if rules.get_due_phase(switch, clock.now_ms()) is SwitchPhase.PREPARING:
        acknowledge_switch(lake, clock, settings, generation_id, switch.missing)
    times = switch_times(settings)
    return _apply_decision(
        lake,
        generation_id,
        lambda row: rules.decide_switch(row, times, now_ms=clock.now_ms(), newest_ms=_newest_ms(lake), by=by),
    )


def _verified_lake(lake: Lake, generation_id: str, step: str) -> Lake:
    """Return the lake for a decision, after verifying the promises, the join and the generation."""
    lake = get_verified_lake(lake, step)
    lake.verify(GENERATION_SWITCHES, SWITCH_PROMISES, BOOTSTRAP_EVENTS, NODES, VERDICTS)
    lake.read(GENERATION_DESCRIPTIONS_V2, ["range_end"], [("id", "=", generation_id)])
    return lake


def _newest_ms(lake: Lake) -> Milliseconds | None:
    return Timeline.read(lake).last_assigned_ms


def _with_acknowledgements(
    switch: GenerationSwitch, leases: dict[str, Milliseconds], times: SwitchTimes, clock: Clock
) -> GenerationSwitch:
    for host, lease_end in leases.items():
        switch = rules.acknowledge_switch(switch, host, lease_end, times, clock.now_ms())
    return switch


def _record_promises(lake: Lake, clock: Clock, switch: GenerationSwitch, promised: dict[str, Milliseconds]) -> None:
    rows = [
        {
            "generation_id": switch.generation_id,
            "host_id": host,
            "lease_end": datetime_from_ms(lease_end),
            "promised_at": datetime_from_us(clock.now_us()),
        }
        for host, lease_end in promised.items()
    ]
    lake.merge(SWITCH_PROMISES, pa.Table.from_pylist(rows, schema=SWITCH_PROMISES.schema), update=False)


def _apply_decision(
    lake: Lake, generation_id: str, decision: Callable[[GenerationSwitch], GenerationSwitch]
) -> GenerationSwitch:
    switch = _change_switch(lake, generation_id, decision)
    if switch.is_decided:
        failpoints.kill_if_selected(failpoints.AFTER_SWITCH_DECISION)
    return switch


def _change_switch(
    lake: Lake, generation_id: str, transition: Callable[[GenerationSwitch], GenerationSwitch]
) -> GenerationSwitch:
    switches.find_switch(lake, generation_id)  # raises before a register is created for an unknown switch
    return _change_register(
        lake, lambda known: transition(next(switch for switch in known if switch.generation_id == generation_id))
    )


def _change_register(lake: Lake, transition: Callable[[list[GenerationSwitch]], GenerationSwitch]) -> GenerationSwitch:
    """Compare-and-set: write the row that `transition` derives from the register as the next version.

    If another process wrote that version, `transition` runs again with its rows. Returns the resulting row.
    """
    result: list[GenerationSwitch] = []

    def rule(rows: pa.Table) -> pa.Table | None:
        known = switches.parse_switches(rows)
        switch = transition(known)
        result[:] = [switch]
        if switch in known:
            return None
        return pa.Table.from_pylist([switches.switch_row(switch)], schema=GENERATION_SWITCHES.schema)

    lake.transact(GENERATION_SWITCHES, rule)
    return result[0]
