"""The audit of switches: a seeded violation of every kind. No Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from support.worlds.switch_lake import NOON, NOON_MS, TWO_PHASE, host, inserted, ring_of

from cdc_platform.checks import audit_switches
from cdc_platform.checks.invariants import (
    SWITCH_DECIDED_ONCE,
    SWITCH_HAS_ITS_GENERATION,
    SWITCH_INVARIANTS,
    SWITCH_PROMISES_KEPT,
    SWITCH_TIME_AFTER_LEASES,
)
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.lifecycle import switch
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.metastore import inbox
from cdc_platform.tables import GENERATION_SWITCHES

EARLY = datetime_from_ms(NOON_MS)
ABORTED = {"phase": "aborted", "time": None, "acknowledged": [], "lease_ends": []}
UNDECIDED = {**ABORTED, "phase": "preparing", "decided_at": None, "decided_by": None}


@pytest.fixture
def generation_id(lake: Lake) -> str:
    """Create a node that has joined in two phases; return its generation."""
    ring_of(lake, (1, 2))
    generation_id = inserted(lake, 3)
    bootstrap.introduce_generation(lake, NOON, TWO_PHASE, generation_id)
    return generation_id


def violated(lake: Lake) -> dict[str, str]:
    """Return the violated invariants with their samples."""
    findings = audit_switches(lake)
    assert [line.invariant for line in findings] == list(SWITCH_INVARIANTS)
    assert all(line.population for line in findings)
    return {line.invariant: line.sample for line in findings if line.violations}


def change(lake: Lake, of: str, **values: Any) -> None:
    """Change values of the switch's row."""
    row = next(row for row in lake.read(GENERATION_SWITCHES).to_pylist() if row["generation_id"] == of)
    rows = pa.Table.from_pylist([row | values], schema=GENERATION_SWITCHES.schema)
    lake.merge(GENERATION_SWITCHES, rows, update=True)


def test_without_a_switch_there_are_no_findings(lake: Lake) -> None:
    """While the setting is off there are no findings."""
    assert audit_switches(lake) == []


def test_switches_of_the_platform_pass(lake: Lake, generation_id: str) -> None:
    """A committed, an aborted and an undecided switch pass."""
    assert violated(lake) == {}
    event = inbox.find_event(lake, generation_id=generation_id)
    lake.delete(inbox.GENERATIONS, [("generation_id", "=", event.generation_id)])
    assert SWITCH_HAS_ITS_GENERATION in violated(lake)
    bootstrap.introduce_generation(lake, NOON, TWO_PHASE, generation_id)
    other = inserted(lake, 4)
    switch.prepare_switch(lake, NOON, TWO_PHASE, other, host(4), [host(4)])
    assert violated(lake) == {}
    switch.abort_switch(lake, Clock(us_from_ms(Milliseconds(NOON_MS + 30_000))), other, "a test")
    assert violated(lake) == {}


@pytest.mark.parametrize(
    ("values", "broken", "says"),
    [
        ({"acknowledged": [host(1)], "lease_ends": [EARLY]}, SWITCH_DECIDED_ONCE, f"without the answer of {host(2)}"),
        ({"decided_by": None}, SWITCH_DECIDED_ONCE, "nobody has decided it"),
        ({"phase": "aborted"}, SWITCH_DECIDED_ONCE, "it is aborted and has a time"),
        ({**ABORTED, "decided_at": EARLY}, SWITCH_DECIDED_ONCE, "aborted before its deadline"),
        ({"phase": "preparing"}, SWITCH_DECIDED_ONCE, "undecided and has a decision's marks"),
        ({"time": EARLY}, SWITCH_TIME_AFTER_LEASES, "its time is before the lease end"),
        ({"time": None}, SWITCH_TIME_AFTER_LEASES, "committed without a time"),
        ({"lease_ends": [EARLY] * 3}, SWITCH_PROMISES_KEPT, f"{host(1)} has answered with a lease that it has not"),
        ({"participants": [host(1), host(2)]}, SWITCH_PROMISES_KEPT, f"{host(3)} has answered and is no participant"),
        (
            {"time": datetime_from_ms(Milliseconds(NOON_MS + 10**6))},
            SWITCH_HAS_ITS_GENERATION,
            "the ledger has another time",
        ),
        (UNDECIDED, SWITCH_HAS_ITS_GENERATION, "it is preparing, and its generation was given a timestamp"),
    ],
)
def test_a_seeded_violation_is_found(
    lake: Lake, generation_id: str, values: dict[str, Any], broken: str, says: str
) -> None:
    """The sample of each violation states what is wrong."""
    change(lake, generation_id, **values)
    assert says in violated(lake)[broken]


def test_two_undecided_switches_are_found(lake: Lake, generation_id: str) -> None:
    """A writer without a compare-and-set begins a second switch."""
    change(lake, generation_id, generation_id=host(7), **UNDECIDED)
    change(lake, generation_id, generation_id=host(8), **UNDECIDED)
    assert "it is one of 2 that are undecided at once" in violated(lake)[SWITCH_DECIDED_ONCE]


def test_a_duplicate_switch_is_found(lake: Lake, generation_id: str) -> None:
    """A writer that ignores keys stores two decisions on one generation."""
    from deltalake import write_deltalake

    row = lake.read(GENERATION_SWITCHES).to_pylist()[0] | ABORTED
    rows = pa.Table.from_pylist([row], schema=GENERATION_SWITCHES.schema)
    write_deltalake(lake.path(GENERATION_SWITCHES), rows, mode="append")
    assert "it is there 2 times, aborted and committed" in violated(lake)[SWITCH_DECIDED_ONCE]
