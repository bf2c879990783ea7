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
from cdc_platform.checks.judge import failed_rows
from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.generations import (
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
    """Audit the stream sets of all tables: one finding per invariant, and none without such tables."""
    with_rows, undecided = _sets_with_rows_and_undecided(lake)
    names = sorted({name for name, _ in tablets.read_listed_stream_sets(lake) | with_rows})
    return _findings(
        tally
        for name in names
        for tally in _table_tallies(lake, *name, _set_times(with_rows, name), _set_times(undecided, name))
    )


def audit_tablet_table(lake: Lake, keyspace: str, table: str) -> list[Finding]:
    """Audit the stream sets of one table, including a planned set that is about to be published."""
    newest = tablets.read_live_layout(lake, keyspace, table)
    with_rows, undecided = (_set_times(sets, (keyspace, table)) for sets in _sets_with_rows_and_undecided(lake))
    return _findings(
        _table_tallies(lake, keyspace, table, with_rows, undecided, None if newest is None else newest.timestamp_ms)
    )


def _findings(tallies: Iterable[InvariantTally]) -> list[Finding]:
    totals = sum_tallies(tallies)
    if not totals:
        return []
    return [
        Finding(name, tally.population, tally.violations, tally.sample)
        for name in TABLET_INVARIANTS
        if (tally := totals.get(name, InvariantTally(name, 0, 0, 0, "there is no timestamp to check")))
    ]


def _table_tallies(
    lake: Lake,
    keyspace: str,
    table: str,
    stream_times: set[Milliseconds],
    strange: set[Milliseconds],
    decided_ms: Milliseconds | None = None,
) -> Iterator[InvariantTally]:
    """Yield the tallies of published sets, of sets that were never planned, and of the set about to be published."""
    name = f"{keyspace}.{table}"
    listed = tablets.read_set_timestamps(lake, keyspace, table)
    times: list[Milliseconds] = sorted({*listed, *strange} if decided_ms is None else {*listed, *strange, decided_ms})
    for time in stream_times:
        message = f"{name} has streams at {format_ms(time)} and no row in cdc_timestamps"
        yield _tally_of_set(TABLET_STREAMS_TIMED, time, time in strange, message)
    if not times:
        return
    rows = tablets.read_stream_rows(lake, keyspace, table, times_ms=times)
    ends = {layout.timestamp_ms: layout.last_tokens for layout in tablets.read_tablet_layouts(lake, keyspace, table)}
    yield _format(name, rows)
    previous, after_nothing = None, False
    for time in times:
        current, closed, opened = (rows.of(time, state) for state in (STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED))
        where = f"{name} at {format_ms(time)}"
        if time not in strange:
            yield _tally_of_set(TABLET_TIMESTAMP_COMPLETE, time, len(current) == 0, f"{where} has no current streams")
        if not (rows.times_ms == time).any():
            # Without a single row there is nothing else to judge, nor can the next set be compared with this one.
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
    """Return the sets with rows, and those of them that are neither published nor planned here.

    The plans are read before and after: a set is planned before its rows are written, and its plan is removed after
    them.
    """
    decided = _decided(lake)
    with_rows = tablets.read_stream_sets_with_rows(lake)
    return with_rows, with_rows - tablets.read_listed_stream_sets(lake) - decided - _decided(lake)


def _decided(lake: Lake) -> _Sets:
    """Return the sets that are about to be published, or were published and are about to be removed."""
    known = tablets.read_tablet_layouts(lake)
    return {
        ((layout.keyspace, layout.table), layout.timestamp_ms) for layout in known if layout.timestamp_ms is not None
    }


def _set_times(sets: _Sets, name: tuple[str, str]) -> set[Milliseconds]:
    return {time for table, time in sets if table == name}


def _format(name: str, rows: TabletRows) -> InvariantTally:
    from cdc_platform.checks.models import TabletStreamModel

    fields = decode_stream_ids(rows.ids)
    total = len(rows.ids) + rows.damaged
    columns = {
        "is_complete": np.arange(total) < len(rows.ids),
        "version": np.append(fields.versions, np.zeros(rows.damaged, dtype=np.int64)),
        "index": np.append(fields.indexes, np.zeros(rows.damaged, dtype=np.int64)),
    }
    wrong = failed_rows(TabletStreamModel, columns).get(TABLET_STREAM_FORMAT)
    if wrong is None:
        return InvariantTally(TABLET_STREAM_FORMAT, total, 0)
    at = int(np.argmax(wrong))
    sample = f"{name}: {rows.damaged} rows hold no stream ID of 16 bytes"
    if at < len(rows.ids):
        values = f"version {fields.versions[at]} and index {fields.indexes[at]}"
        sample = f"{name}: stream 0x{rows.ids[at].tobytes().hex()} has {values}; a tablet's has 1 and 0"
    return InvariantTally(TABLET_STREAM_FORMAT, total, int(wrong.sum()), 0, sample)


def _at_ends(where: str, time: Milliseconds, current: np.ndarray, ends: np.ndarray | None) -> InvariantTally:
    """Compare streams with the recorded tablets; without these, no two streams may belong to one tablet."""
    from cdc_platform.checks.models import TabletModel

    streams = get_stream_tokens(current)
    tablets = np.unique(streams) if ends is None else ends
    tokens = np.union1d(streams, tablets)
    columns = {"token": tokens, "streams": _count(streams, tokens), "tablets": _count(tablets, tokens)}
    wrong = failed_rows(TabletModel, columns).get(TABLET_STREAM_AT_END)
    if wrong is None:
        return InvariantTally(TABLET_STREAM_AT_END, len(tokens), 0)
    violations = int(wrong.sum())
    sample = (
        f"{where}: {violations} tokens are not those of one stream at one tablet's end, as {tokens[np.argmax(wrong)]}"
    )
    return InvariantTally(TABLET_STREAM_AT_END, len(tokens), violations, time, sample)


def _count(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Count how often each of `among` (int64[n]) occurs in `values` (int64[m]): int64[n]."""
    in_order = np.sort(values)
    return np.searchsorted(in_order, among, side="right") - np.searchsorted(in_order, among)


def _added_up(
    where: str,
    time: Milliseconds,
    previous: np.ndarray | None,
    current: np.ndarray,
    closed: np.ndarray,
    opened: np.ndarray,
) -> InvariantTally:
    computed = apply_difference_unchecked(previous, StreamSetDifference(closed, opened))
    wrong = not np.array_equal(computed, sort_in_ring_order(current))
    message = f"{where}: what was open, closed and opened makes {len(computed)} streams that are not its {len(current)}"
    return _tally_of_set(TABLET_SETS_ADD_UP, time, wrong, message)


def _closed(where: str, time: Milliseconds, previous: np.ndarray | None, closed: np.ndarray) -> InvariantTally:
    foreign = closed[:0] if previous is None else closed[~isin_streams(closed, previous)]
    message = f"{where} closes 0x{foreign[0].tobytes().hex()}, which was not open before" if len(foreign) else ""
    return _tally_of_set(TABLET_CLOSED_IN_PREVIOUS, time, len(foreign) > 0, message)


def _tally_of_set(invariant: str, time: Milliseconds, wrong: bool, sample: str) -> InvariantTally:
    """Return the tally of one set."""
    return InvariantTally(invariant, 1, int(wrong), time, sample if wrong else "")
