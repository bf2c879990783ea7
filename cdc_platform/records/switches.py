"""The register of two-phase switches, `platform.generation_switches`, and the promises that nodes made: what is there.

What a phase leads to is the rule of `generations.switch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdc_platform.clock import Milliseconds, format_ms, ms_from_datetime, ms_to_datetime, us_of
from cdc_platform.errors import NotFound
from cdc_platform.generations.metadata import Undecided
from cdc_platform.generations.switch import Phase, Switch
from cdc_platform.lake.arrow import values
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_SWITCHES, GENERATIONS, SWITCH_PROMISES


def switches(lake: Lake) -> list[Switch]:
    """Every switch, in the order in which they were prepared."""
    found = [switch_of(row) for row in lake.read(GENERATION_SWITCHES).to_pylist()]
    return sorted(found, key=lambda switch: (switch.prepared_at_ms, switch.generation_id))


def find(lake: Lake, name: str | Milliseconds) -> Switch:
    """The switch to the generation with this UUID, or with this timestamp (ms) once it is committed.

    Raises:
        NotFound: there is none.
    """
    for switch in switches(lake):
        if name in (switch.generation_id, switch.time_ms):
            return switch
    shown = name if isinstance(name, str) else format_ms(name)
    raise NotFound(f"there is no switch to generation {shown}; list them with: cdc-platform switch show")


def promises(lake: Lake, generation_id: str) -> dict[str, Milliseconds]:
    """Where the leases end (ms) that participants have promised, by host_id; whether or not they have answered."""
    rows = lake.read(SWITCH_PROMISES, ["host_id", "lease_end"], [("generation_id", "=", generation_id)]).to_pylist()
    return {row["host_id"]: ms_from_datetime(row["lease_end"]) for row in rows}


def undecided(lake: Lake, known: Sequence[Switch] | None = None) -> list[Undecided]:
    """The switches, of those that are `known`, that some node has promised to wait for from its first lease end on.

    A participant that cannot read the decision refuses; one that can, and finds none, does not know more.
    """
    waiting = [switch for switch in (switches(lake) if known is None else known) if not switch.is_decided]
    ends = {switch.generation_id: promises(lake, switch.generation_id).values() for switch in waiting}
    return [
        Undecided(switch.generation_id, us_of(switch.prepared_at_ms), us_of(min(ends[switch.generation_id])))
        for switch in waiting
        if ends[switch.generation_id]
    ]


def unfinished(lake: Lake) -> list[Switch]:
    """The switches of which something is left to do: undecided, or committed and not in the ledger; oldest first."""
    entered = set(values(lake.read(GENERATIONS, ["generation_id"])["generation_id"]))
    return [
        switch
        for switch in switches(lake)
        if not switch.is_decided or (switch.phase is Phase.COMMITTED and switch.generation_id not in entered)
    ]


def switch_of(row: dict[str, Any]) -> Switch:
    """A row of the register as a switch."""
    return Switch(
        row["generation_id"],
        row["initiator"],
        tuple(row["participants"]),
        ms_from_datetime(row["prepared_at"]),
        ms_from_datetime(row["deadline"]),
        Phase(row["phase"]),
        tuple((host, ms_from_datetime(end)) for host, end in zip(row["acknowledged"], row["lease_ends"], strict=True)),
        None if row["time"] is None else ms_from_datetime(row["time"]),
        None if row["decided_at"] is None else ms_from_datetime(row["decided_at"]),
        row["decided_by"],
    )


def row_of(switch: Switch) -> dict[str, Any]:
    """A switch as a row of the register."""
    return {
        "generation_id": switch.generation_id,
        "phase": str(switch.phase),
        "initiator": switch.initiator,
        "participants": list(switch.participants),
        "acknowledged": [host for host, _ in switch.leases],
        "lease_ends": [ms_to_datetime(end) for _, end in switch.leases],
        "prepared_at": ms_to_datetime(switch.prepared_at_ms),
        "deadline": ms_to_datetime(switch.deadline_ms),
        "time": None if switch.time_ms is None else ms_to_datetime(switch.time_ms),
        "decided_at": None if switch.decided_at_ms is None else ms_to_datetime(switch.decided_at_ms),
        "decided_by": switch.decided_by,
    }
