"""The audit of tablet-based tables: valid sets pass, and wrong rows violate each invariant once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from support.oracles import tablet_oracle
from support.oracles.tablet_oracle import SEED_FIRST_MS, SEED_FOUR, SEED_ROWS, SEED_SECOND_MS, SEED_TWO

from cdc_platform.checks import audit_tablet_table, audit_tablets, invariants, judge_findings
from cdc_platform.checks.invariants import TABLET_INVARIANTS
from cdc_platform.clock import Clock, Microseconds, Milliseconds, datetime_from_ms
from cdc_platform.delta import Lake
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.settings import Settings
from cdc_platform.tables import TABLET_STREAMS, TABLET_TIMESTAMPS

Row = tuple[int, int, str]
NAME = {"keyspace_name": "ks", "table_name": "t"}
BOTH = (SEED_FIRST_MS, SEED_SECOND_MS)


def store_sets(lake: Lake, rows: Sequence[Row], times: tuple[int, ...] = BOTH) -> None:
    """Store these streams and timestamps, as another writer would."""
    streams = [
        {
            **NAME,
            "timestamp": datetime_from_ms(Milliseconds(time)),
            "stream_state": state,
            "stream_id": bytes.fromhex(stream),
        }
        for time, state, stream in rows
    ]
    listed = [{**NAME, "timestamp": datetime_from_ms(Milliseconds(time))} for time in times]
    lake.merge(TABLET_STREAMS, pa.Table.from_pylist(streams, schema=TABLET_STREAMS.schema), update=False)
    lake.merge(TABLET_TIMESTAMPS, pa.Table.from_pylist(listed, schema=TABLET_TIMESTAMPS.schema), update=False)


def violated(lake: Lake) -> dict[str, str]:
    """Return the violated invariants with their samples."""
    results = judge_findings(audit_tablets(lake), TABLET_INVARIANTS)
    assert [line.invariant for line in results] == list(TABLET_INVARIANTS)
    return {line.invariant: line.sample for line in results if not line.passed}


def remove_rows(*removed: Row) -> list[Row]:
    """Return the worked example without some rows."""
    assert set(removed) <= set(SEED_ROWS)
    return [row for row in SEED_ROWS if row not in removed]


def replace_stream(old: str, new: str) -> list[Row]:
    """Return the worked example with one stream of the second set replaced."""
    return [(time, state, new if stream == old else stream) for time, state, stream in SEED_ROWS]


def stream(token: int, low: int = 1) -> str:
    """Return a stream with these lower eight bytes."""
    return (tablet_oracle.make(token, 0)[:8] + low.to_bytes(8, "big")).hex()


def test_a_lake_without_tablets_has_nothing_to_audit(lake: Lake) -> None:
    """There are no findings, so a check of generations stays as it is."""
    assert audit_tablets(lake) == []
    assert audit_tablet_table(lake, "ks", "t") == []


def test_the_worked_example_passes(lake: Lake) -> None:
    """Six streams of two sets satisfy every invariant, and each has a population."""
    store_sets(lake, SEED_ROWS)
    assert violated(lake) == {}
    populations = {line.invariant: line.population for line in audit_tablets(lake)}
    assert populations[invariants.TABLET_STREAM_FORMAT] == 14
    assert populations[invariants.TABLET_STREAM_AT_END] == 6
    assert set(populations.values()) == {14, 6, 2}


@pytest.mark.parametrize("times", [(), (SEED_FIRST_MS,)])
def test_streams_without_their_time_are_found(lake: Lake, times: tuple[int, ...]) -> None:
    """Readers never find streams without a timestamp; they are named for one set or for all, and judged like others."""
    store_sets(lake, SEED_ROWS, times)
    failures = violated(lake)
    assert "ks.t has streams at 2025-09-09T14:4" in failures.pop(invariants.TABLET_STREAMS_TIMED)
    assert set(failures) == (set() if times else {invariants.TABLET_TIMESTAMP_COMPLETE})
    findings = {line.invariant: (line.population, line.violations) for line in audit_tablet_table(lake, "ks", "t")}
    assert findings[invariants.TABLET_STREAMS_TIMED] == (2, 2 - len(times))
    assert findings[invariants.TABLET_SETS_ADD_UP] == (2, 0)


def test_a_set_under_collection_is_no_violation(lake: Lake) -> None:
    """Collection deletes the timestamp before the rows, and the decision last."""
    tablets.create_tablets(lake, Clock(Microseconds(10**15)), Settings(), "ks", "t", uniform_tablet_ends(1))
    tablets.split_tablets(lake, Clock(Microseconds(10**15)), Settings(), "ks", "t", 2)
    first = min(metastore_tablets.read_set_timestamps(lake, "ks", "t"))
    lake.delete(TABLET_TIMESTAMPS, [("timestamp", "=", datetime_from_ms(first))])
    assert invariants.TABLET_STREAMS_TIMED not in violated(lake)


def test_sets_of_the_platform_pass(lake: Lake) -> None:
    """Two tables with a history each pass, including the comparison of streams with the stored tablets."""
    for table in ("t", "u"):
        tablets.create_tablets(lake, Clock(Microseconds(10**15)), Settings(), "ks", table, uniform_tablet_ends(3))
        tablets.split_tablets(lake, Clock(Microseconds(10**15)), Settings(), "ks", table, 8)
        tablets.merge_tablets(lake, Clock(Microseconds(10**15)), Settings(), "ks", table, 1)
    assert violated(lake) == {}
    assert {line.population for line in audit_tablets(lake)} == {2 * (3 * 2 + 8 * 2 + 3 + 1 * 2 + 8), 2 * 12, 2 * 3}


LAST_OF_FOUR = SEED_FOUR[3]
SEEDED: list[tuple[list[Row], dict[str, str]]] = [
    (
        replace_stream(SEED_FOUR[0], stream(-(2**62) - 1, 2)),
        {invariants.TABLET_STREAM_FORMAT: "has version 2 and index 0"},
    ),
    (
        replace_stream(SEED_FOUR[0], stream(-(2**62) - 1, 1 | 5 << 4)),
        {invariants.TABLET_STREAM_FORMAT: "has version 1 and index 5"},
    ),
    (
        [*SEED_ROWS, (SEED_SECOND_MS, 2, "abcd")],
        {invariants.TABLET_STREAM_FORMAT: "1 rows hold no stream ID of 16 bytes"},
    ),
    (
        [*SEED_ROWS, *((SEED_SECOND_MS, state, stream(-1)) for state in (0, 2))],
        {invariants.TABLET_STREAM_AT_END: "as -1"},
    ),
    (
        remove_rows((SEED_SECOND_MS, 0, LAST_OF_FOUR), (SEED_SECOND_MS, 2, LAST_OF_FOUR)),
        {invariants.TABLET_RING_COVERED: "ends at 4611686018427387903"},
    ),
    (
        remove_rows((SEED_SECOND_MS, 1, SEED_TWO[0])),
        {invariants.TABLET_SETS_ADD_UP: "makes 5 streams that are not its 4"},
    ),
    (
        remove_rows((SEED_SECOND_MS, 2, SEED_FOUR[1])),
        {invariants.TABLET_SETS_ADD_UP: "makes 3 streams that are not its 4"},
    ),
    (
        remove_rows((SEED_FIRST_MS, 2, SEED_TWO[0])),
        {invariants.TABLET_SETS_ADD_UP: "makes 1 streams that are not its 2"},
    ),
    (
        [*SEED_ROWS, (SEED_SECOND_MS, 1, stream(9))],
        {invariants.TABLET_CLOSED_IN_PREVIOUS: "closes 0x00000000000000090000000000000001"},
    ),
]


@pytest.mark.parametrize(("rows", "expected"), SEEDED)
def test_seeded_violations_are_found(lake: Lake, rows: Sequence[Row], expected: dict[str, str]) -> None:
    """One error in the worked example fails its invariant alone, with a sample that names it."""
    store_sets(lake, rows)
    failures = violated(lake)
    assert failures.keys() == expected.keys()
    for name, sample in expected.items():
        assert sample in failures[name]


def test_a_timestamp_without_streams_is_found(lake: Lake) -> None:
    """A timestamp without streams is a violation, since readers would look for them."""
    store_sets(lake, SEED_ROWS, (*BOTH, SEED_SECOND_MS + 1))
    assert "2025-09-09T14:44:47.821Z has no current streams" in violated(lake)[invariants.TABLET_TIMESTAMP_COMPLETE]


def test_streams_are_compared_with_the_stored_tablets(lake: Lake) -> None:
    """A stream whose token ends no tablet is found, although the set adds up and covers the ring."""
    tablets.create_tablets(lake, Clock(Microseconds(10**15)), Settings(), "ks", "t", uniform_tablet_ends(1))
    store_sets(lake, [(10**12 - 5_000, state, stream(9)) for state in (0, 2)], ())
    assert set(violated(lake)) == {invariants.TABLET_STREAM_AT_END}


def test_a_decided_set_is_audited_before_readers_see_it(lake: Lake) -> None:
    """A decided set without written streams is incomplete, but no violation for readers, which do not see it."""
    tablets.create_tablets(lake, Clock(Microseconds(10**15)), Settings(), "ks", "t", uniform_tablet_ends(1))
    decided = tablets.decide_tablet_resize(
        lake, Clock(Microseconds(10**15)), Settings(), "ks", "t", lambda _: uniform_tablet_ends(2)
    ).layout
    assert violated(lake) == {}
    violated_names = {line.invariant for line in audit_tablet_table(lake, "ks", "t") if line.violations}
    assert invariants.TABLET_TIMESTAMP_COMPLETE in violated_names
    tablets.write_set_streams(lake, decided)
    assert not [line for line in audit_tablet_table(lake, "ks", "t") if line.violations]


def test_closed_streams_left_by_a_collection_are_no_violation(lake: Lake) -> None:
    """A process killed during a collection leaves closed streams at the base; the next collection removes them."""
    store_sets(lake, [row for row in SEED_ROWS if row[0] == SEED_SECOND_MS], (SEED_SECOND_MS,))
    assert violated(lake) == {}
