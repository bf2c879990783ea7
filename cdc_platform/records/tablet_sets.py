"""Looking at tablet-based tables: their stream sets and what each changes of the one before. No JVM.

Nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.errors import ConflictError, NotFound, StateError
from cdc_platform.generations import tablets
from cdc_platform.generations.tablets import StreamSet
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import mend
from cdc_platform.records import tablet_rows
from cdc_platform.records.tablet_rows import CLOSED, CURRENT, OPENED, TabletRows
from cdc_platform.ring import LAST

_READS = 5


@dataclass(frozen=True, eq=False)
class ChangeOfSet:
    """A stream set and how it came out of the one before: uint8[n, 16] each, in ring order."""

    timestamp_ms: Milliseconds
    current: np.ndarray
    closed: np.ndarray
    opened: np.ndarray


def tables(lake: Lake) -> list[tuple[str, str]]:
    """The tables (keyspace, name) that have stream sets, in order."""
    return sorted({name for name, _ in tablet_rows.listed_sets(lake)})


def has_sets(lake: Lake, keyspace: str, table: str) -> bool:
    """Whether the table has a stream set that readers see."""
    return bool(tablet_rows.listed_times(lake, keyspace, table))


def stream_sets(lake: Lake, keyspace: str, table: str) -> list[StreamSet]:
    """The stream sets of a table, oldest first; a timestamp without a single row of streams is none.

    Raises:
        NotFound: the table has no timestamp.
        StateError: a timestamp has rows and no current streams, or rows are damaged.
    """
    return sets_and_bare_times(lake, keyspace, table)[0]


def sets_and_bare_times(lake: Lake, keyspace: str, table: str) -> tuple[list[StreamSet], list[Milliseconds]]:
    """The stream sets of a table, oldest first, and the timestamps (ms) that readers see without a row of streams.

    Raises:
        As `stream_sets`.
    """
    times, bare, rows = _consistent(lake, keyspace, table, [CURRENT])
    return [StreamSet.of(time, rows.of(time, CURRENT)) for time in times], bare


def changes(lake: Lake, keyspace: str, table: str) -> list[ChangeOfSet]:
    """Every stream set of a table with what was closed and opened for it, oldest first.

    Raises:
        As `stream_sets`.
    """
    times, _, rows = _consistent(lake, keyspace, table, [CURRENT, CLOSED, OPENED])
    return [
        ChangeOfSet(time, *(tablets.in_ring_order(rows.of(time, state)) for state in (CURRENT, CLOSED, OPENED)))
        for time in times
    ]


def is_whole(lake: Lake, keyspace: str, table: str, time_ms: Milliseconds) -> bool:
    """Whether all streams of a set (ms) are there: up to the end of the ring, and as it changes the one before it."""
    earlier = [time for time in tablet_rows.listed_times(lake, keyspace, table) if time < time_ms][-1:]
    rows = tablet_rows.stream_rows(lake, keyspace, table, times_ms=[*earlier, time_ms])
    current, closed, opened = (rows.of(time_ms, state) for state in (CURRENT, CLOSED, OPENED))
    if rows.damaged or not len(current) or int(tablets.tokens_of(current).max()) != LAST:
        return False
    if earlier and not (rows.times_ms == earlier[0]).any():
        # Of the one before there is nothing to add it to.
        return bool(tablets.among(opened, current).all() and not tablets.among(closed, current).any())
    previous = rows.of(earlier[0], CURRENT) if earlier else None
    made = tablets.made_of(previous, tablets.StreamDifference(closed, opened))
    return np.array_equal(made, tablets.in_ring_order(current))


def _consistent(
    lake: Lake, keyspace: str, table: str, states: list[int]
) -> tuple[list[Milliseconds], list[Milliseconds], TabletRows]:
    """The timestamps of a table with streams, those without a row, and the rows; both are oldest first.

    Read again where sets went while they were read.
    """
    for _ in range(_READS):
        times = tablet_rows.listed_times(lake, keyspace, table)
        if not times:
            do = mend(lake, f"make the first with: cdc-platform tablets create {keyspace}.{table} --count N")
            raise NotFound(f"{keyspace}.{table} has no stream sets of tablets; {do}")
        rows = tablet_rows.stream_rows(lake, keyspace, table, times_ms=times, states=states)
        present = set(rows.times_ms[rows.states == CURRENT].tolist())
        missing = [time for time in times if time not in present]
        if rows.damaged:
            raise StateError(
                f"{keyspace}.{table}: {rows.damaged} rows of system.cdc_streams hold no stream ID of 16 bytes; "
                "write them again as they were"
            )
        if not missing:
            return times, [], rows
        others = tablet_rows.stream_rows(lake, keyspace, table, times_ms=missing)
        if tablet_rows.listed_times(lake, keyspace, table) == times:
            if len(others.ids) or others.damaged:
                raise StateError(
                    f"{keyspace}.{table}: the timestamp {format_ms(missing[0])} has no current streams; "
                    "look at: cdc-platform check"
                )
            return [time for time in times if time in present], missing, rows
    raise ConflictError(f"{keyspace}.{table}: its stream sets changed with every read; run it again")
