"""The audit of tablet-based tables: what readers of stream sets rely on, table by table. No Spark.

It looks at rows as they are, damaged ones included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.generations import decode
from cdc_platform.generations.stream_ids import VERSION
from cdc_platform.generations.tablets import StreamDifference, among, in_ring_order, made_of, tokens_of
from cdc_platform.invariants.findings import (
    TABLET_CLOSED_IN_PREVIOUS,
    TABLET_INVARIANTS,
    TABLET_RING_COVERED,
    TABLET_SETS_ADD_UP,
    TABLET_STREAM_AT_END,
    TABLET_STREAM_FORMAT,
    TABLET_TIMESTAMP_COMPLETE,
    Finding,
    Tally,
    add_up,
)
from cdc_platform.lake.lake import Lake
from cdc_platform.records import tablet_ledger, tablet_rows, tablet_sets
from cdc_platform.records.tablet_rows import CLOSED, CURRENT, OPENED, TabletRows
from cdc_platform.ring import LAST


def audit_tablets(lake: Lake) -> list[Finding]:
    """Audit the stream sets of all tables that readers see: a line an invariant, and none without such tables."""
    return _lines(tally for name in tablet_sets.tables(lake) for tally in _of_table(lake, *name))


def audit_tablet_table(lake: Lake, keyspace: str, table: str) -> list[Finding]:
    """Audit the stream sets of one table, with the one that is decided and about to be published."""
    newest = tablet_ledger.live(lake, keyspace, table)
    return _lines(_of_table(lake, keyspace, table, None if newest is None else newest.timestamp_ms))


def _lines(tallies: Iterable[Tally]) -> list[Finding]:
    totals = add_up(tallies)
    if not totals:
        return []
    return [
        Finding(name, totals[name].population, totals[name].violations, totals[name].sample)
        for name in TABLET_INVARIANTS
    ]


def _of_table(lake: Lake, keyspace: str, table: str, decided_ms: Milliseconds | None = None) -> Iterator[Tally]:
    name = f"{keyspace}.{table}"
    listed = tablet_rows.listed_times(lake, keyspace, table)
    times = listed if decided_ms is None else sorted({*listed, decided_ms})
    if not times:
        return
    rows = tablet_rows.stream_rows(lake, keyspace, table, times_ms=times)
    ends = {each.timestamp_ms: each.last_tokens for each in tablet_ledger.layouts(lake, keyspace, table)}
    yield _format(name, rows)
    previous, after_nothing = None, False
    for time in times:
        current, closed, opened = (rows.of(time, state) for state in (CURRENT, CLOSED, OPENED))
        where = f"{name} at {format_ms(time)}"
        yield _judged(TABLET_TIMESTAMP_COMPLETE, time, len(current) == 0, f"{where} has no current streams")
        if not (rows.times_ms == time).any():
            # Without a single row there is nothing else to judge, nor what the set after it makes of this one.
            after_nothing = True
            continue
        yield _at_ends(where, time, current, ends.get(time))
        last = int(tokens_of(current).max()) if len(current) else None
        yield _judged(TABLET_RING_COVERED, time, last != LAST, f"{where} ends at {last}, the ring at {LAST}")
        if not after_nothing:
            yield _added_up(where, time, previous, current, closed, opened)
            yield _closed(where, time, previous, closed)
        previous, after_nothing = current, False


def _format(name: str, rows: TabletRows) -> Tally:
    fields = decode(rows.ids)
    wrong = np.flatnonzero((fields.versions != VERSION) | (fields.indexes != 0))
    sample = ""
    if wrong.size:
        at = int(wrong[0])
        shown = f"version {fields.versions[at]} and index {fields.indexes[at]}"
        sample = f"{name}: stream 0x{rows.ids[at].tobytes().hex()} has {shown}; a tablet's has 1 and 0"
    elif rows.damaged:
        sample = f"{name}: {rows.damaged} rows hold no stream ID of 16 bytes"
    return Tally(TABLET_STREAM_FORMAT, len(rows.ids) + rows.damaged, wrong.size + rows.damaged, 0, sample)


def _at_ends(where: str, time: Milliseconds, current: np.ndarray, ends: np.ndarray | None) -> Tally:
    """Streams against the tablets that were noted; where none were, no two streams may stand for one tablet."""
    tokens = np.sort(tokens_of(current))
    repeated = tokens[1:][tokens[1:] == tokens[:-1]]
    foreign = np.empty(0, dtype=np.int64) if ends is None else np.setxor1d(tokens, ends)
    wrong = np.concatenate([repeated, foreign])
    sample = (
        f"{where}: {len(wrong)} tokens are not those of one stream at one tablet's end, as {wrong[0]}"
        if len(wrong)
        else ""
    )
    return Tally(TABLET_STREAM_AT_END, max(len(tokens), len(wrong)), len(wrong), time, sample)


def _added_up(
    where: str,
    time: Milliseconds,
    previous: np.ndarray | None,
    current: np.ndarray,
    closed: np.ndarray,
    opened: np.ndarray,
) -> Tally:
    made = made_of(previous, StreamDifference(closed, opened))
    wrong = not np.array_equal(made, in_ring_order(current))
    shown = f"{where}: what was open, closed and opened makes {len(made)} streams that are not its {len(current)}"
    return _judged(TABLET_SETS_ADD_UP, time, wrong, shown)


def _closed(where: str, time: Milliseconds, previous: np.ndarray | None, closed: np.ndarray) -> Tally:
    foreign = closed[:0] if previous is None else closed[~among(closed, previous)]
    shown = f"{where} closes 0x{foreign[0].tobytes().hex()}, which was not open before" if len(foreign) else ""
    return _judged(TABLET_CLOSED_IN_PREVIOUS, time, len(foreign) > 0, shown)


def _judged(invariant: str, time: Milliseconds, wrong: bool, sample: str) -> Tally:
    """The tally of one set."""
    return Tally(invariant, 1, int(wrong), time, sample if wrong else "")
