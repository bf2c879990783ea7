"""Looking at tablet-based tables: their stream sets and differences, their tablets, where a write goes. No JVM.

Nothing here writes; how tablets change is `tablets`' business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.clock import Clock, format_ms
from cdc_platform.errors import ConflictError, NotFound, StateError
from cdc_platform.generations import Decision, tablets
from cdc_platform.generations.tablets import StreamSet
from cdc_platform.lake.lake import Lake
from cdc_platform.records import tablet_rows
from cdc_platform.records.tablet_rows import CLOSED, CURRENT, OPENED, TabletRows
from cdc_platform.settings import Settings

_READS = 5


@dataclass(frozen=True, eq=False)
class ChangeOfSet:
    """A stream set and how it came out of the one before: uint8[n, 16] each, in ring order."""

    timestamp_ms: int
    current: np.ndarray
    closed: np.ndarray
    opened: np.ndarray


@dataclass(frozen=True)
class TabletExplanation:
    """Where a write to a tablet-based table goes. Times in µs; the set and its tablet are those of the write's time.

    `tablet` is the tablet's number from 0, `range_start` the last token before it (none before the first one).
    """

    table: str
    token: int
    at_us: int
    now_us: int
    set_ms: int | None
    tablet: int | None
    range_start: int | None
    range_end: int | None
    stream_id: bytes | None
    decision: Decision


def tables(lake: Lake) -> list[tuple[str, str]]:
    """The tables (keyspace, name) that have stream sets, in order."""
    return sorted({name for name, _ in tablet_rows.listed_sets(lake)})


def is_tablet_based(lake: Lake, keyspace: str, table: str) -> bool:
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


def streams_for(
    lake: Lake, keyspace: str, table: str, ts_us: ArrayLike, tokens: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """The streams of many writes to a table: timestamps (µs) and tokens (int64[n]) to uint8[n, 16] and int64[n].

    The second is the index among `stream_sets` of the set that operates at each timestamp, -1 before the first; the
    stream is then sixteen zeros. Acceptance is not asked: the writes have been made.

    Raises:
        As `stream_sets`; InputError: a set does not cover the ring.
    """
    return tablets.streams_for(stream_sets(lake, keyspace, table), ts_us, tokens)


def explain(
    lake: Lake, clock: Clock, settings: Settings, keyspace: str, table: str, token: int, at_us: int | None = None
) -> TabletExplanation:
    """Where a write of `token` with timestamp `at_us` (by default now) to this table goes, and whether it is accepted.

    Raises:
        As `stream_sets`; InputError: the set does not cover the ring.
    """
    now_us = clock.now_us()
    at_us = now_us if at_us is None else at_us
    sets = stream_sets(lake, keyspace, table)
    times = [each.timestamp_ms for each in sets]
    decision = tablets.decide_write(times, at_us, now_us, leeway_us=settings.generation_leeway_ms * 1000)
    streams, rows = tablets.streams_for(sets, [at_us], [token])
    name = f"{keyspace}.{table}"
    if rows[0] < 0:
        return TabletExplanation(name, token, at_us, now_us, None, None, None, None, None, decision)
    used = sets[int(rows[0])]
    number = int(np.searchsorted(used.tokens, token))
    start = int(used.tokens[number - 1]) if number else None
    end = int(used.tokens[number])
    return TabletExplanation(
        name, token, at_us, now_us, used.timestamp_ms, number, start, end, streams[0].tobytes(), decision
    )


def _consistent(lake: Lake, keyspace: str, table: str, states: list[int]) -> tuple[list[int], TabletRows]:
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
