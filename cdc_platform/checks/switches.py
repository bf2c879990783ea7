"""Audits of two-phase switches: decisions that follow the rules, and their effects.

They read small tables without Spark. A switch that waits for its decision is no violation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cdc_platform.checks.invariants import (
    SWITCH_DECIDED_ONCE,
    SWITCH_HAS_ITS_GENERATION,
    SWITCH_INVARIANTS,
    SWITCH_PROMISES_KEPT,
    SWITCH_TIME_AFTER_LEASES,
    Finding,
)
from cdc_platform.delta import Lake
from cdc_platform.tables import GENERATION_SWITCHES, GENERATIONS, SWITCH_PROMISES

_Row = dict[str, Any]


def audit_switches(lake: Lake) -> list[Finding]:
    """Audit every switch; return no findings if there is none."""
    rows = lake.read(GENERATION_SWITCHES).sort_by("prepared_at").to_pylist()
    if not rows:
        return []
    ledger = {
        row["generation_id"]: row["time"] for row in lake.read(GENERATIONS, ["generation_id", "time"]).to_pylist()
    }
    promises = {
        (row["generation_id"], row["host_id"]): row["lease_end"] for row in lake.read(SWITCH_PROMISES).to_pylist()
    }
    judges: dict[str, Callable[[_Row], str | None]] = {
        SWITCH_DECIDED_ONCE: lambda row: _decision_violation(row, rows),
        SWITCH_TIME_AFTER_LEASES: _lease_violation,
        SWITCH_PROMISES_KEPT: lambda row: _promise_violation(row, promises),
        SWITCH_HAS_ITS_GENERATION: lambda row: _ledger_violation(row, ledger),
    }
    return [_finding(name, judges[name], rows) for name in SWITCH_INVARIANTS]


def _finding(name: str, judge: Callable[[_Row], str | None], rows: Sequence[_Row]) -> Finding:
    amiss = [f"switch to {row['generation_id']}: {why}" for row in rows if (why := judge(row)) is not None]
    return Finding(name, len(rows), len(amiss), amiss[0] if amiss else "")


def _decision_violation(row: _Row, rows: Sequence[_Row]) -> str | None:
    """Check for one row per switch, one undecided switch at a time, and each phase with only its own values."""
    same = [other["phase"] for other in rows if other["generation_id"] == row["generation_id"]]
    if len(same) > 1:
        return f"it is there {len(same)} times, {' and '.join(sorted(same))}"
    if row["phase"] == "preparing":
        waiting = sum(other["phase"] == "preparing" for other in rows)
        return f"it is one of {waiting} that are undecided at once" if waiting > 1 else _undecided_violation(row)
    if row["decided_at"] is None or row["decided_by"] is None:
        return f"it is {row['phase']}, and nobody has decided it"
    missing = set(row["participants"]) - set(row["acknowledged"])
    if row["phase"] == "committed":
        return f"it is committed without the answer of {min(missing)}" if missing else None
    if row["time"] is not None:
        return "it is aborted and has a time"
    if row["decided_at"] < row["deadline"]:
        return "it was aborted before its deadline"
    return None if missing else "it was aborted though all had answered"


def _undecided_violation(row: _Row) -> str | None:
    return None if row["time"] is None and row["decided_at"] is None else "it is undecided and has a decision's marks"


def _lease_violation(row: _Row) -> str | None:
    """Check that a committed generation starts after every lease, so no node can have accepted its writes before."""
    if row["phase"] != "committed":
        return None
    if row["time"] is None:
        return "it is committed without a time"
    latest = max(row["lease_ends"], default=None)
    return None if latest is not None and row["time"] >= latest else f"its time is before the lease end {latest}"


def _promise_violation(row: _Row, promises: dict[tuple[str, str], Any]) -> str | None:
    """Check that every answer was promised first, with the same lease end."""
    if foreign := set(row["acknowledged"]) - set(row["participants"]):
        return f"{min(foreign)} has answered and is no participant"
    for host, end in zip(row["acknowledged"], row["lease_ends"], strict=True):
        if promises.get((row["generation_id"], host)) != end:
            return f"{host} has answered with a lease that it has not promised"
    return None


def _ledger_violation(row: _Row, ledger: dict[str, Any]) -> str | None:
    """Check that a committed generation is in the ledger under its time, and that no other is."""
    entered = ledger.get(row["generation_id"])
    if row["phase"] != "committed":
        return None if entered is None else f"it is {row['phase']}, and its generation was given a timestamp"
    if entered is None:
        return "it is committed and not in the ledger yet; finish it with: cdc-platform switch commit"
    return None if entered == row["time"] else "the ledger has another time for its generation"
