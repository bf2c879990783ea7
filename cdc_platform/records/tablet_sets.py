"""Looking at tablet-based tables: their stream sets and what each changes of the one before. No JVM.

Nothing here writes; how tablets change is `tablets`' business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.errors import ConflictError, NotFound, StateError
from cdc_platform.generations import tablets
from cdc_platform.generations.tablets import StreamSet
from cdc_platform.lake.lake import Lake
from cdc_platform.records import tablet_rows
from cdc_platform.records.tablet_rows import CLOSED, CURRENT, OPENED, TabletRows

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
    """The stream sets of a table, oldest first.

    Raises:
        NotFound: the table has none.
        StateError: a timestamp has no streams, or rows are damaged.
    """
    times, rows = _consistent(lake, keyspace, table, [CURRENT])
    return [StreamSet.of(time, rows.of(time, CURRENT)) for time in times]


def changes(lake: Lake, keyspace: str, table: str) -> list[ChangeOfSet]:
    """Every stream set of a table with what was closed and opened for it, oldest first.

    Raises:
        As `stream_sets`.
    """
    times, rows = _consistent(lake, keyspace, table, [CURRENT, CLOSED, OPENED])
    return [
        ChangeOfSet(time, *(tablets.in_ring_order(rows.of(time, state)) for state in (CURRENT, CLOSED, OPENED)))
        for time in times
    ]


def _consistent(lake: Lake, keyspace: str, table: str, states: list[int]) -> tuple[list[Milliseconds], TabletRows]:
    """The timestamps of a table, oldest first, and their rows: read again where sets went while they were read."""
    for _ in range(_READS):
        times = tablet_rows.listed_times(lake, keyspace, table)
        if not times:
            raise NotFound(
                f"{keyspace}.{table} has no stream sets of tablets; make the first with: "
                f"cdc-platform tablets create {keyspace}.{table} --count N"
            )
        rows = tablet_rows.stream_rows(lake, keyspace, table, times_ms=times, states=states)
        present = set(rows.times_ms[rows.states == CURRENT].tolist())
        missing = [time for time in times if time not in present]
        if rows.damaged:
            raise StateError(
                f"{keyspace}.{table}: {rows.damaged} rows of system.cdc_streams hold no stream ID of 16 bytes; "
                "write them again as they were"
            )
        if not missing:
            return times, rows
        if tablet_rows.listed_times(lake, keyspace, table) == times:
            raise StateError(
                f"{keyspace}.{table}: the timestamp {format_ms(missing[0])} has no current streams; "
                "look at: cdc-platform check"
            )
    raise ConflictError(f"{keyspace}.{table}: its stream sets changed with every read; run it again")
