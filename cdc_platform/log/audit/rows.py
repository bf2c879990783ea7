"""The rules that rows of CDC logs keep, on arrays: in the stream that their base key has at their time, batches whole.

Which streams there are is told by `timeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from cdc_platform.clock import Microseconds, format_us
from cdc_platform.errors import PlatformError
from cdc_platform.generations import decode, operating_index
from cdc_platform.invariants.findings import (
    LOG_BATCH_COMPLETE,
    LOG_BATCH_ENDED,
    LOG_ROW_COLOCATED,
    LOG_STREAM_OPERATES,
    LOG_TIME_IN_BOUNDS,
    LOG_TIMESTAMP_IS_TIME,
    Tally,
)
from cdc_platform.ring.tokens import Bools, Int64s, UInt8s, UInt64s
from cdc_platform.timeline import KnownStreams, Period

NOT_JUDGED = "log_rows_not_judged"
"""No invariant: the tally of the rows whose generation was removed, so that their streams cannot be looked up."""
NO_TIME = -(2**63)
"""Stands for a cdc$timestamp that is null."""
_SHOWN = 6


@dataclass(frozen=True, eq=False)
class LogRows:
    """Rows of one table's log, in columns.

    `times` uint64[n, 2]: the two halves of cdc$time; `times_us` (int64[n], µs) the time in it; `timed`: it is a
    timeuuid. `written_us` is cdc$timestamp. `streams` uint8[n, 16]; `whole`: the stream has 16 bytes. `tokens` are
    those of the base rows; `keyed`: no key column is null. `numbers` are cdc$batch_seq_no, `operations` cdc$operation,
    -1 for null; `ended` is cdc$end_of_batch.
    """

    table: str
    times: UInt64s
    times_us: Int64s
    timed: Bools
    written_us: Int64s
    streams: UInt8s
    whole: Bools
    tokens: Int64s
    keyed: Bools
    numbers: Int64s
    operations: Int64s
    ended: Bools

    def __len__(self) -> int:
        return len(self.times_us)

    def name(self, row: int) -> str:
        """How messages call a row."""
        return f"{self.table}: row {self.numbers[row]} of batch {self.batch(row)}"

    def batch(self, row: int) -> str:
        """How messages call the batch of a row."""
        high, low = (int(half) for half in self.times[row])
        stream = f"0x{self.streams[row].tobytes().hex()}" if self.whole[row] else "no stream"
        return f"{UUID(int=high << 64 | low)} in {stream}"


def audit_log_rows(rows: LogRows, periods: Sequence[Period]) -> Iterator[Tally]:
    """Tallies of all invariants of a log. `rows` hold every row of whatever times they have, so that batches are whole.

    A row without a time is judged by log_time_in_bounds alone; one of a removed generation not by its stream.
    """
    chosen = operating_index([each.begin_us for each in periods], rows.times_us)
    chosen[~rows.timed] = -1
    yield _in_bounds(rows, periods, chosen)
    yield _timestamps(rows)
    removed = np.array([*(each.removed for each in periods), False])[chosen]
    yield Tally(NOT_JUDGED, int(removed.sum()), 0)
    for number in np.unique(chosen[(chosen >= 0) & ~removed]).tolist():
        yield from _in_streams(rows, np.flatnonzero(chosen == number), periods[number])
    yield from _batches(rows)


def _in_bounds(rows: LogRows, periods: Sequence[Period], chosen: Int64s) -> Tally:
    begin = f"{periods[0].name} is the first" if periods else "no generation is known"

    def explain(row: int) -> str:
        if not rows.timed[row]:
            return "cdc$time is no timeuuid"
        return f"nothing operates at {format_us(Microseconds(rows.times_us[row]))}; {begin}"

    return _tally(LOG_TIME_IN_BOUNDS, rows, len(rows), chosen < 0, explain)


def _timestamps(rows: LogRows) -> Tally:
    def explain(row: int) -> str:
        at = Microseconds(rows.written_us[row])
        shown = "null" if at == NO_TIME else format_us(at)
        return f"cdc$timestamp is {shown}, the time in cdc$time {format_us(Microseconds(rows.times_us[row]))}"

    wrong = rows.timed & (rows.written_us != rows.times_us)
    return _tally(LOG_TIMESTAMP_IS_TIME, rows, int(rows.timed.sum()), wrong, explain)


def _in_streams(rows: LogRows, mine: Int64s, period: Period) -> Iterator[Tally]:
    """The rows (by number) of one period, against its streams."""
    foreign, apart = np.zeros((2, len(rows)), dtype=bool)
    try:
        known = period.streams()
        # Almost every row is where the rule puts it; only the others are looked for.
        usual = rows.keyed[mine] & rows.whole[mine]
        usual[usual] = (known.given(rows.tokens[mine[usual]]) == rows.streams[mine[usual]]).all(axis=1)
    except PlatformError as error:
        foreign[mine] = True
        why = f"its stream cannot be looked up: {error}"
        # Where a row belongs is as unknown as whether its stream operates.
        for invariant in (LOG_STREAM_OPERATES, LOG_ROW_COLOCATED):
            yield _tally(invariant, rows, len(mine), foreign, lambda _: why)
        return
    others = mine[~usual]
    among, colocated = _looked_for(rows, others, known)
    foreign[others] = ~among
    apart[others] = among & ~colocated
    yield _tally(LOG_STREAM_OPERATES, rows, len(mine), foreign, lambda _: f"its stream is none of {period.name}")

    def explain(row: int) -> str:
        if not rows.keyed[row]:
            return "a key column of the base row is null"
        due = known.given(rows.tokens[row : row + 1])[0].tobytes().hex()
        return f"the stream of its base row's token {rows.tokens[row]} is 0x{due}"

    yield _tally(LOG_ROW_COLOCATED, rows, len(mine) - int(foreign.sum()), apart, explain)


def _looked_for(rows: LogRows, numbers: Int64s, known: KnownStreams) -> tuple[Bools, Bools]:
    """Which rows have a stream of the period, and which of these one that their key can have."""
    ids = rows.streams[numbers]
    at = known.range_of(decode(ids).tokens)
    among = rows.whole[numbers] & known.has(ids, at)
    due = known.range_of(rows.tokens[numbers])
    return among, among & rows.keyed[numbers] & (due == at) & known.by_range[due]


def _batches(rows: LogRows) -> Iterator[Tally]:
    """The batches of all rows that say to which one they belong."""
    told = np.flatnonzero(rows.timed & rows.whole)
    words = rows.streams[told].view(">u8").astype(np.uint64)
    times = rows.times[told]
    columns = (rows.numbers[told], words[:, 1], words[:, 0], times[:, 1], times[:, 0])
    order = np.lexsort(columns)
    begins = np.ones(len(told), dtype=bool)
    for column in columns[1:]:
        begins[1:] &= column[order][1:] == column[order][:-1]
    begins[1:] ^= True
    firsts = np.flatnonzero(begins)
    sizes = np.diff(firsts, append=len(told))
    ordered = told[order]
    places = np.arange(len(told)) - np.repeat(firsts, sizes)
    last = np.zeros(len(told), dtype=bool)
    last[firsts + sizes - 1] = True
    wrong = rows.numbers[ordered] != places
    misplaced = rows.ended[ordered] != last
    for invariant, broken in ((LOG_BATCH_COMPLETE, wrong), (LOG_BATCH_ENDED, misplaced)):
        bad = np.logical_or.reduceat(broken, firsts) if len(firsts) else np.zeros(0, dtype=bool)
        yield _batch_tally(
            invariant, rows, [ordered[at : at + size] for at, size in _spans(firsts, sizes, bad)], len(bad)
        )


def _spans(firsts: Int64s, sizes: Int64s, bad: Bools) -> Iterator[tuple[int, int]]:
    return zip(firsts[bad].tolist(), sizes[bad].tolist(), strict=True)


def _batch_tally(invariant: str, rows: LogRows, bad: Sequence[Int64s], population: int) -> Tally:
    """The tally of batches, of which the bad ones come as the numbers of their rows."""
    if not bad:
        return Tally(invariant, population, 0)
    first = min(bad, key=lambda numbers: int(rows.times_us[numbers[0]]))
    shown = ", ".join(
        f"{rows.numbers[row]}{' (end)' if rows.ended[row] else ''}" for row in first[:_SHOWN].tolist()
    ) + (", ..." if len(first) > _SHOWN else "")
    rule = "it has to be 0 to n - 1" if invariant == LOG_BATCH_COMPLETE else "the last one, and only it, is the end"
    sample = f"{rows.table}: batch {rows.batch(int(first[0]))} has rows {shown}; {rule}"
    return Tally(invariant, population, len(bad), int(rows.times_us[first[0]]), sample)


def _tally(invariant: str, rows: LogRows, population: int, wrong: Bools, explain: Callable[[int], str]) -> Tally:
    """The tally of rows; the earliest that is wrong is the sample."""
    numbers = np.flatnonzero(wrong)
    if not len(numbers):
        return Tally(invariant, population, 0)
    first = int(numbers[np.argmin(rows.times_us[numbers])])
    return Tally(
        invariant, population, len(numbers), int(rows.times_us[first]), f"{rows.name(first)}: {explain(first)}"
    )
