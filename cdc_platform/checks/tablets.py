"""Audits of the stream sets of tablet-based tables, table by table, damaged rows included. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cdc_platform.checks.invariants import (
    TABLET_CLOSED_IN_PREVIOUS,
    TABLET_INVARIANTS,
    TABLET_RING_COVERED,
    TABLET_SETS_ADD_UP,
    TABLET_STREAM_AT_END,
    TABLET_STREAM_FORMAT,
    TABLET_STREAMS_TIMED,
    TABLET_TIMESTAMP_COMPLETE,
    Finding,
    InvariantTally,
    sum_tallies,
)
from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.generations import (
    STREAM_ID_VERSION,
    StreamSetDifference,
    apply_difference_unchecked,
    decode_stream_ids,
    get_stream_tokens,
    isin_streams,
    sort_in_ring_order,
)
from cdc_platform.metastore import STREAM_CLOSED, STREAM_CURRENT, STREAM_OPENED, TabletRows, tablets
from cdc_platform.ring import LAST_TOKEN

_Sets = set[tuple[tuple[str, str], Milliseconds]]


def audit_tablets(lake: Lake) -> list[Finding]:
    """Audit the stream sets of all tables: a line an invariant, and none without such tables."""
    there, strange = _sets_with_rows_and_undecided(lake)
    names = sorted({name for name, _ in tablets.read_listed_stream_sets(lake) | there})
    return _findings(
        tally
        for name in names
        for tally in _table_tallies(lake, *name, _set_times(there, name), _set_times(strange, name))
    )


def audit_tablet_table(lake: Lake, keyspace: str, table: str) -> list[Finding]:
    """Audit the stream sets of one table, with the one that is decided and about to be published."""
    newest = tablets.read_live_layout(lake, keyspace, table)
    there, strange = (_set_times(sets, (keyspace, table)) for sets in _sets_with_rows_and_undecided(lake))
    return _findings(
        _table_tallies(lake, keyspace, table, there, strange, None if newest is None else newest.timestamp_ms)
    )


def _findings(tallies: Iterable[InvariantTally]) -> list[Finding]:
    totals = sum_tallies(tallies)
    if not totals:
        return []
    return [
        Finding(name, found.population, found.violations, found.sample)
        for name in TABLET_INVARIANTS
        if (found := totals.get(name, InvariantTally(name, 0, 0, 0, "no timestamp is there to be judged")))
    ]


def _table_tallies(
    lake: Lake,
    keyspace: str,
    table: str,
    there: set[Milliseconds],
    strange: set[Milliseconds],
    decided_ms: Milliseconds | None = None,
) -> Iterator[InvariantTally]:
    """Of the sets that readers see, of those that nobody decided, and of the one that is decided and to come."""
    name = f"{keyspace}.{table}"
    listed = tablets.read_set_timestamps(lake, keyspace, table)
    times: list[Milliseconds] = sorted({*listed, *strange} if decided_ms is None else {*listed, *strange, decided_ms})
    for time in there:
        shown = f"{name} has streams at {format_ms(time)} and no row in cdc_timestamps"
        yield _tally_of_set(TABLET_STREAMS_TIMED, time, time in strange, shown)
    if not times:
        return
    rows = tablets.read_stream_rows(lake, keyspace, table, times_ms=times)
    ends = {each.timestamp_ms: each.last_tokens for each in tablets.read_tablet_layouts(lake, keyspace, table)}
    yield _format(name, rows)
    previous, after_nothing = None, False
    for time in times:
        current, closed, opened = (rows.of(time, state) for state in (STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED))
        where = f"{name} at {format_ms(time)}"
        if time not in strange:
            yield _tally_of_set(TABLET_TIMESTAMP_COMPLETE, time, len(current) == 0, f"{where} has no current streams")
        if not (rows.times_ms == time).any():
            # Without a single row there is nothing else to judge, nor what the set after it makes of this one.
            after_nothing = True
            continue
        yield _at_ends(where, time, current, ends.get(time))
        last = int(get_stream_tokens(current).max()) if len(current) else None
        yield _tally_of_set(
            TABLET_RING_COVERED, time, last != LAST_TOKEN, f"{where} ends at {last}, the ring at {LAST_TOKEN}"
        )
        if not after_nothing:
            yield _added_up(where, time, previous, current, closed, opened)
            yield _closed(where, time, previous, closed)
        previous, after_nothing = current, False


def _sets_with_rows_and_undecided(lake: Lake) -> tuple[_Sets, _Sets]:
    """The sets with rows, and those of them that readers do not see and nobody has decided here.

    What was decided is asked before and after: a set is decided before its rows, and that is forgotten after them.
    """
    decided = _decided(lake)
    there = tablets.read_stream_sets_with_rows(lake)
    return there, there - tablets.read_listed_stream_sets(lake) - decided - _decided(lake)


def _decided(lake: Lake) -> _Sets:
    """The sets that are about to be shown, or were and are about to go."""
    known = tablets.read_tablet_layouts(lake)
    return {((each.keyspace, each.table), each.timestamp_ms) for each in known if each.timestamp_ms is not None}


def _set_times(sets: _Sets, name: tuple[str, str]) -> set[Milliseconds]:
    return {time for table, time in sets if table == name}


def _format(name: str, rows: TabletRows) -> InvariantTally:
    fields = decode_stream_ids(rows.ids)
    wrong = np.flatnonzero((fields.versions != STREAM_ID_VERSION) | (fields.indexes != 0))
    sample = ""
    if wrong.size:
        at = int(wrong[0])
        shown = f"version {fields.versions[at]} and index {fields.indexes[at]}"
        sample = f"{name}: stream 0x{rows.ids[at].tobytes().hex()} has {shown}; a tablet's has 1 and 0"
    elif rows.damaged:
        sample = f"{name}: {rows.damaged} rows hold no stream ID of 16 bytes"
    return InvariantTally(TABLET_STREAM_FORMAT, len(rows.ids) + rows.damaged, wrong.size + rows.damaged, 0, sample)


def _at_ends(where: str, time: Milliseconds, current: np.ndarray, ends: np.ndarray | None) -> InvariantTally:
    """Streams against the tablets that were noted; where none were, no two streams may stand for one tablet."""
    tokens = np.sort(get_stream_tokens(current))
    repeated = tokens[1:][tokens[1:] == tokens[:-1]]
    foreign = np.empty(0, dtype=np.int64) if ends is None else np.setxor1d(tokens, ends)
    wrong = np.concatenate([repeated, foreign])
    sample = (
        f"{where}: {len(wrong)} tokens are not those of one stream at one tablet's end, as {wrong[0]}"
        if len(wrong)
        else ""
    )
    return InvariantTally(TABLET_STREAM_AT_END, max(len(tokens), len(wrong)), len(wrong), time, sample)


def _added_up(
    where: str,
    time: Milliseconds,
    previous: np.ndarray | None,
    current: np.ndarray,
    closed: np.ndarray,
    opened: np.ndarray,
) -> InvariantTally:
    made = apply_difference_unchecked(previous, StreamSetDifference(closed, opened))
    wrong = not np.array_equal(made, sort_in_ring_order(current))
    shown = f"{where}: what was open, closed and opened makes {len(made)} streams that are not its {len(current)}"
    return _tally_of_set(TABLET_SETS_ADD_UP, time, wrong, shown)


def _closed(where: str, time: Milliseconds, previous: np.ndarray | None, closed: np.ndarray) -> InvariantTally:
    foreign = closed[:0] if previous is None else closed[~isin_streams(closed, previous)]
    shown = f"{where} closes 0x{foreign[0].tobytes().hex()}, which was not open before" if len(foreign) else ""
    return _tally_of_set(TABLET_CLOSED_IN_PREVIOUS, time, len(foreign) > 0, shown)


def _tally_of_set(invariant: str, time: Milliseconds, wrong: bool, sample: str) -> InvariantTally:
    """The tally of one set."""
    return InvariantTally(invariant, 1, int(wrong), time, sample if wrong else "")
