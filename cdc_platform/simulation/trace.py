"""A history as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_platform.clock import Microseconds, seconds_from_us, us_from_ms
from cdc_platform.simulation.judge import Violation
from cdc_platform.simulation.judged import JudgedHistory
from cdc_platform.simulation.observations import (
    AcceptedRow,
    Advanced,
    Committed,
    Decided,
    Learned,
    Noted,
    Observation,
    Read,
    RefusedWrite,
    Removed,
    Stored,
)
from cdc_platform.simulation.plan import CLIENT, READER
from cdc_platform.simulation.world import START_US


def describe_history(judged: JudgedHistory) -> Iterator[str]:
    """Yield one line for each thing that happened, with its time since the start, and the violations in their place."""
    pending = list(judged.verdict.violations)
    noun = "stream set" if judged.plan.rules.protocol == "tablets" else "generation"
    for observation in judged.history.observations:
        while pending and pending[0].at_us < observation.at_us:
            yield _describe_violation(pending.pop(0))
        text = _describe(observation, noun)
        if text is not None:
            yield f"{format_offset(observation.at_us)}  {text}"
    yield from map(_describe_violation, pending)


def _describe_violation(violation: Violation) -> str:
    return f"{format_offset(violation.at_us)}  VIOLATION of {violation.property}: {violation.text}"


def format_offset(time_us: Microseconds) -> str:
    """Return a time as seconds since the start of the history."""
    return f"{seconds_from_us(Microseconds(time_us - START_US)):11.6f} s"


def _name(node: int) -> str:
    return {CLIENT: "the clients", READER: "the reader"}.get(node, f"node {node}")


def _describe(observation: Observation, noun: str) -> str | None:
    match observation:
        case Committed(generation=generation) if generation.number == 0:
            return None
        case Learned(generation=0) | Stored(generation=0) | Decided(generation=0):
            return None
        case Committed(_, node, generation):
            begin = format_offset(us_from_ms(generation.time_ms)).strip()
            return f"{_name(node)} introduces {noun} {generation.number}, which begins at {begin}"
        case Learned(_, node, generation, readable):
            return f"{_name(node)} {'reads' if readable else 'hears of'} {noun} {generation}"
        case AcceptedRow():
            ts = format_offset(observation.ts_us).strip()
            return f"{_name(observation.node)} accepts row {observation.row} with timestamp {ts}"
        case RefusedWrite(_, node, _, ts_us, verdict):
            return f"{_name(node)} refuses a write with timestamp {format_offset(ts_us).strip()}: {verdict}"
        case Stored(_, replica, table, generation, batch, batches):
            return f"{_name(replica)} stores the {table} of generation {generation} ({batch + 1} of {batches})"
        case Removed(_, generation):
            return f"{noun} {generation} is removed"
        case Read(_, row):
            return f"the reader reads row {row}"
        case Decided(_, generation, time_ms):
            return f"the switch to generation {generation} is {'aborted' if time_ms is None else 'committed'}"
        case Noted(_, node, text):
            return f"{_name(node)}: {text}"
        case Advanced():
            return None
