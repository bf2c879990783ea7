"""The register of two-phase switches, `platform.generation_switches`, and the lease promises of nodes.

`generations.switch` holds the rules of the phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.clock import Milliseconds, datetime_from_ms, format_ms, ms_from_datetime, ms_from_us, us_from_ms
from cdc_platform.delta import Lake, to_python_values
from cdc_platform.errors import NotFound
from cdc_platform.generations import GenerationSwitch, SwitchPhase, UndecidedSwitch
from cdc_platform.tables import GENERATION_SWITCHES, GENERATIONS, SWITCH_PROMISES


def read_switches(lake: Lake) -> list[GenerationSwitch]:
    """Return every switch in the order of preparation."""
    switches = parse_switches(lake.read(GENERATION_SWITCHES))
    return sorted(switches, key=lambda switch: (switch.prepared_at_ms, switch.generation_id))


class SwitchOutcome(NamedTuple):
    """What became of a switch, without its participants. `time_ms` is None until it is committed."""

    generation_id: str
    phase: SwitchPhase
    prepared_at_ms: Milliseconds
    time_ms: Milliseconds | None


def read_switch_outcomes(lake: Lake) -> list[SwitchOutcome]:
    """Return the outcome of every switch, unordered. The participants of each take ten times as long to parse."""
    rows = lake.read(GENERATION_SWITCHES, ["generation_id", "phase", "prepared_at", "time"])
    return [
        SwitchOutcome(
            row["generation_id"],
            SwitchPhase(row["phase"]),
            ms_from_us(row["prepared_at"]),
            None if row["time"] is None else ms_from_us(row["time"]),
        )
        for row in _times_as_integers(rows).to_pylist()
    ]


def find_switch(lake: Lake, name: str | Milliseconds) -> GenerationSwitch:
    """Return the switch to the generation with this UUID, or with this timestamp (ms) once it is committed.

    Raises:
        NotFound: there is none.
    """
    for switch in read_switches(lake):
        if name in (switch.generation_id, switch.time_ms):
            return switch
    label = name if isinstance(name, str) else format_ms(name)
    raise NotFound(f"there is no switch to generation {label}; list them with: cdc-platform switch show")


def read_lease_promises(lake: Lake, generation_id: str) -> dict[str, Milliseconds]:
    """Return the lease ends (ms) that participants have promised, by host_id, even if they have not acknowledged."""
    rows = lake.read(SWITCH_PROMISES, ["host_id", "lease_end"], [("generation_id", "=", generation_id)]).to_pylist()
    return {row["host_id"]: ms_from_datetime(row["lease_end"]) for row in rows}


def read_undecided_switches(lake: Lake, known: Sequence[SwitchOutcome] | None = None) -> list[UndecidedSwitch]:
    """Return the undecided switches, optionally of `known` only, for which a node has promised to wait.

    Each has the earliest of its nodes' lease ends, from which on writes need the decision. A participant that cannot
    read the decision refuses such writes; one that can read and finds none knows no more than that.
    """
    outcomes = read_switch_outcomes(lake) if known is None else known
    waiting = [outcome for outcome in outcomes if outcome.phase is SwitchPhase.PREPARING]
    ends = {switch.generation_id: read_lease_promises(lake, switch.generation_id).values() for switch in waiting}
    return [
        UndecidedSwitch(
            switch.generation_id, us_from_ms(switch.prepared_at_ms), us_from_ms(min(ends[switch.generation_id]))
        )
        for switch in waiting
        if ends[switch.generation_id]
    ]


def read_unfinished_switches(lake: Lake) -> list[GenerationSwitch]:
    """Return the unfinished switches, oldest first: undecided, or committed and not in the ledger."""
    recorded = set(to_python_values(lake.read(GENERATIONS, ["generation_id"])["generation_id"]))

    def is_unfinished(switch: SwitchOutcome | GenerationSwitch) -> bool:
        return switch.phase is SwitchPhase.PREPARING or (
            switch.phase is SwitchPhase.COMMITTED and switch.generation_id not in recorded
        )

    if not any(map(is_unfinished, read_switch_outcomes(lake))):
        return []
    return list(filter(is_unfinished, read_switches(lake)))


def parse_switches(rows: pa.Table) -> list[GenerationSwitch]:
    """Parse rows of the register."""
    return [_parse_switch(row) for row in _times_as_integers(rows).to_pylist()]


def _times_as_integers(rows: pa.Table) -> pa.Table:
    """Return the rows with int64 (µs) instead of times. Arrow takes four times as long to convert times to objects."""
    return rows.cast(pa.schema([(field.name, _with_integers(field.type)) for field in rows.schema]))


def _with_integers(type_: pa.DataType) -> pa.DataType:
    """Return a type with int64 instead of times."""
    if pat.is_list(type_):
        return pa.list_(_with_integers(type_.value_type))
    return pa.int64() if pat.is_timestamp(type_) else type_


def _parse_switch(row: dict[str, Any]) -> GenerationSwitch:
    return GenerationSwitch(
        row["generation_id"],
        row["initiator"],
        tuple(row["participants"]),
        ms_from_us(row["prepared_at"]),
        ms_from_us(row["deadline"]),
        SwitchPhase(row["phase"]),
        tuple((host, ms_from_us(end)) for host, end in zip(row["acknowledged"], row["lease_ends"], strict=True)),
        None if row["time"] is None else ms_from_us(row["time"]),
        None if row["decided_at"] is None else ms_from_us(row["decided_at"]),
        row["decided_by"],
    )


def switch_row(switch: GenerationSwitch) -> dict[str, Any]:
    """Build the row of the register for a switch."""
    return {
        "generation_id": switch.generation_id,
        "phase": str(switch.phase),
        "initiator": switch.initiator,
        "participants": list(switch.participants),
        "acknowledged": [host for host, _ in switch.leases],
        "lease_ends": [datetime_from_ms(end) for _, end in switch.leases],
        "prepared_at": datetime_from_ms(switch.prepared_at_ms),
        "deadline": datetime_from_ms(switch.deadline_ms),
        "time": None if switch.time_ms is None else datetime_from_ms(switch.time_ms),
        "decided_at": None if switch.decided_at_ms is None else datetime_from_ms(switch.decided_at_ms),
        "decided_by": switch.decided_by,
    }
