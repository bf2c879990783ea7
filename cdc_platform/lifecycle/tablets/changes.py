"""Changes of a table's tablets and of the streams that go with them: create, split, merge, resize, drop, enable.

A change is decided by one row of the ledger, which one process wins; then its streams are written, and its timestamp
after them as the commit mark. Whoever comes by finishes what was decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Microseconds, format_ms
from cdc_platform.cql.schema import DEFAULT_TTL
from cdc_platform.errors import NotFound, StateError
from cdc_platform.generations import tablets
from cdc_platform.lake import frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    TABLET_LAYOUTS,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
)
from cdc_platform.lake.turns import TABLES, in_turn
from cdc_platform.lake.verified import verified
from cdc_platform.lake.volume import Workers
from cdc_platform.records import cdc_tables, tablet_rows
from cdc_platform.records.table_history import CdcTable, TableChange
from cdc_platform.records.tablet_ledger import (
    CREATED,
    DROPPED,
    RESIZED,
    Layout,
    TabletChange,
    decide,
    is_done,
    is_left,
    layouts,
    live,
    log_is_gone,
    newest_layout,
    note,
    table_id_of,
    unfinished,
)
from cdc_platform.records.tablet_rows import CLOSED, CURRENT, OPENED, of_table
from cdc_platform.records.tablet_sets import stream_sets
from cdc_platform.settings import Settings

__all__ = [
    "TabletChange",
    "create",
    "decide_create",
    "decide_resize",
    "drop",
    "enable",
    "finish",
    "finish_all",
    "merge",
    "publish_timestamp",
    "resize",
    "split",
    "stream_sets",
    "write_streams",
]


log = logging.getLogger(__name__)


@in_turn(TABLES)
def create(
    lake: Lake,
    clock: Clock,
    settings: Settings,
    keyspace: str,
    table: str,
    last_tokens: np.ndarray,
    *,
    ttl_seconds: int | None = None,
    was_on: bool = False,
) -> TabletChange:
    """Give a table its first stream set, one stream for each tablet that ends at `last_tokens` (int64[n]).

    The set starts a leeway ago, so that the table can be written to at once. A table that is not known is told of,
    with this TTL, or the one that its dropped log had, or 86400 s. The same call again changes nothing. `was_on`: also
    where its CDC is off, for rows of before that.

    Raises:
        InputError: the tokens are no tablets' ends, or the table is known with another TTL.
        StateError: the table has other tablets already, or its CDC is off.
        ConflictError: another process made other tablets at the same moment.
    """
    options = {"ttl_seconds": ttl_seconds, "was_on": was_on}
    return _finished(lake, decide_create(lake, clock, settings, keyspace, table, last_tokens, **options))


@in_turn(TABLES)
def split(lake: Lake, clock: Clock, settings: Settings, keyspace: str, table: str, count: int) -> TabletChange:
    """Split a table's tablets to `count`, see `generations.tablets.split_ends`; all of its streams are new then.

    Raises:
        InputError: no split leads to that count.
        NotFound, StateError, ConflictError: as `resize`.
    """
    return _finished(lake, decide_resize(lake, clock, settings, keyspace, table, _to_count(tablets.split_ends, count)))


@in_turn(TABLES)
def merge(lake: Lake, clock: Clock, settings: Settings, keyspace: str, table: str, count: int) -> TabletChange:
    """Merge a table's tablets to `count`, see `generations.tablets.merged_ends`; all of its streams are new then.

    Raises:
        InputError: no merge leads to that count.
        NotFound, StateError, ConflictError: as `resize`.
    """
    return _finished(lake, decide_resize(lake, clock, settings, keyspace, table, _to_count(tablets.merged_ends, count)))


@in_turn(TABLES)
def resize(
    lake: Lake, clock: Clock, settings: Settings, keyspace: str, table: str, last_tokens: np.ndarray
) -> TabletChange:
    """Give a table other tablets, which end at `last_tokens` (int64[n]); all of its streams are new then.

    The set starts twice the ring delay and the leeway from now. Tablets that are as asked for stay, with their streams.

    Raises:
        InputError: the tokens are no tablets' ends.
        NotFound: the table has no tablets.
        ConflictError: another process gave it other tablets at the same moment.
    """
    ends = tablets.tablet_ends(last_tokens, f"{keyspace}.{table}")
    return _finished(lake, decide_resize(lake, clock, settings, keyspace, table, lambda _: ends))


@in_turn(TABLES)
def decide_create(
    lake: Lake,
    clock: Clock,
    settings: Settings,
    keyspace: str,
    table: str,
    last_tokens: np.ndarray,
    *,
    ttl_seconds: int | None = None,
    was_on: bool = False,
) -> TabletChange:
    """The first step of `create`: the set and its time are decided, nothing of it can be seen."""
    name = f"{keyspace}.{table}"
    ends = tablets.tablet_ends(last_tokens, name)
    newest = live(lake, keyspace, table)
    if newest is not None and not np.array_equal(newest.last_tokens, ends):
        raise StateError(
            f"{name} has {len(newest.last_tokens)} tablets already; change them with: cdc-platform tablets split, "
            "merge or resize"
        )
    known = _tell_of(lake, clock, keyspace, table, ttl_seconds)
    if not known.enabled and not was_on:
        raise StateError(f"CDC is off for {name}; turn it on with: cdc-platform tables alter {name} --enabled")
    if newest is not None:
        return TabletChange(newest, changed=False)
    number = _next_number(lake, clock, keyspace, table)
    time = tablets.base_timestamp(clock.now_ms(), settings.generation_leeway_ms)
    table_id = table_id_of(keyspace, table, number)
    at_us = max(clock.now_us(), _last_said_us(lake, keyspace, table))
    return decide(lake, Layout(keyspace, table, number, CREATED, table_id, time, ends, at_us))


@in_turn(TABLES)
def decide_resize(
    lake: Lake,
    clock: Clock,
    settings: Settings,
    keyspace: str,
    table: str,
    ends_of: Callable[[np.ndarray], np.ndarray],
) -> TabletChange:
    """The first step of a split or merge: the tablets `ends_of` (those there are), and the time of their set."""
    newest = live(lake, keyspace, table)
    if newest is None or newest.timestamp_ms is None:
        raise NotFound(
            f"{keyspace}.{table} has no tablets; make them with: cdc-platform tablets create {keyspace}.{table} "
            "--count N"
        )
    ends = ends_of(newest.last_tokens)
    if np.array_equal(ends, newest.last_tokens):
        return TabletChange(newest, changed=False)
    note(lake, newest)
    _finish(lake, newest)
    time = tablets.next_set_timestamp(
        clock.now_ms(),
        newest.timestamp_ms,
        ring_delay_ms=settings.ring_delay_ms,
        leeway_ms=settings.generation_leeway_ms,
    )
    at_us = clock.now_us()
    return decide(lake, Layout(keyspace, table, newest.number + 1, RESIZED, newest.table_id, time, ends, at_us))


@in_turn(TABLES)
def write_streams(lake: Lake, layout: Layout) -> int | None:
    """The second step: the streams rows of a decided set; answers with the table's version, None where it is listed.

    A set that has been superseded meanwhile is left alone: it was finished before the next was decided.

    Raises:
        StateError: the sets before it, or the tablets as they were decided, are not what was committed.
    """
    if layout.timestamp_ms is None or is_done(lake, layout):
        return None
    _hold_what_is_read(lake)
    previous = _streams_before(lake, layout)
    current = tablets.new_streams(layout.table_id, layout.timestamp_ms, layout.last_tokens)
    change = tablets.difference(previous, current)
    states = [(CURRENT, current), (CLOSED, change.closed), (OPENED, change.opened)]
    rows = tablet_rows.rows_of_set(layout.keyspace, layout.table, layout.timestamp_ms, states)
    version = lake.merge(TABLET_STREAMS, rows, update=False).version
    failpoints.reached(failpoints.AFTER_TABLET_STREAMS)
    return version


def _hold_what_is_read(lake: Lake) -> None:
    for table in (TABLET_LAYOUTS, TABLET_STREAMS):
        frames.assert_as_committed(Workers.alone(), lake, table, {})


@in_turn(TABLES)
def publish_timestamp(lake: Lake, layout: Layout) -> None:
    """The last step: the set's timestamp, from which on readers rely on its rows.

    Raises:
        StateError: the streams are not all there, or not what was committed.
    """
    if layout.timestamp_ms is None or is_done(lake, layout):
        return
    _hold_what_is_read(lake)
    rows = tablet_rows.stream_rows(
        lake, layout.keyspace, layout.table, times_ms=[layout.timestamp_ms], states=[CURRENT]
    )
    written = np.sort(tablets.tokens_of(rows.ids))
    if not np.array_equal(written, layout.last_tokens):
        raise StateError(
            f"{layout.full_name}: {len(written)} of the {len(layout.last_tokens)} streams of "
            f"{format_ms(layout.timestamp_ms)} are written; materialise cdc_streams before its timestamp"
        )
    rows_of_time = tablet_rows.rows_of_times(layout.keyspace, layout.table, [layout.timestamp_ms])
    lake.merge(TABLET_TIMESTAMPS, rows_of_time, update=False)


@in_turn(TABLES)
def drop(lake: Lake, clock: Clock, keyspace: str, table: str) -> None:
    """Note that the log of a table was dropped, and remove its stream sets.

    Raises:
        NotFound: the table is not known and has no sets.
        NotAsCommitted: a table that decides, or that rows go from, is not as committed.
    """
    lake = _verified(lake, "tables drop")
    newest = newest_layout(lake, keyspace, table)
    if newest is not None:
        note(lake, newest)
    try:
        cdc_tables.drop(lake, clock, keyspace, table)
    except NotFound:
        if newest is None or not is_left(lake, newest):
            raise
    failpoints.reached(failpoints.AFTER_TABLET_DROP)
    if newest is not None:
        _finish(lake, newest if newest.kind == DROPPED else _let_go(lake, clock, newest))


@in_turn(TABLES)
def enable(lake: Lake, clock: Clock, settings: Settings, keyspace: str, table: str) -> TabletChange | None:
    """Turn a table's CDC on again. A log that is there keeps its sets; one that was dropped is made anew.

    A new log gets new streams for the tablets that the table had when its log was dropped; None for a table that has
    never had tablets.

    Raises:
        NotFound: the platform was never told of the table.
    """
    newest = newest_layout(lake, keyspace, table)
    if newest is not None and log_is_gone(lake, newest):
        return create(lake, clock, settings, keyspace, table, newest.last_tokens)
    cdc_tables.alter(lake, clock, keyspace, table, enabled=True)
    return None if newest is None else TabletChange(newest, changed=False)


@in_turn(TABLES)
def finish(lake: Lake, clock: Clock, keyspace: str, table: str) -> Layout | None:
    """Finish the table's newest change, or remove the sets of a log that was dropped; answers with what then holds.

    Any number of processes may, and nothing happens where nothing is left to do.

    Raises:
        NotAsCommitted: a table that decides, or that rows go from, is not as committed.
    """
    lake = _verified(lake, f"finishing the tablets of {keyspace}.{table}")
    newest = newest_layout(lake, keyspace, table)
    if newest is None:
        return None
    if newest.kind != DROPPED and log_is_gone(lake, newest):
        newest = _let_go(lake, clock, newest)
    _finish(lake, newest)
    return newest


def finish_all(lake: Lake, clock: Clock) -> list[Layout]:
    """Finish what any process has left: decided sets, and sets of dropped logs. Answers with those that were."""
    left = unfinished(lake)
    for layout in left:
        log.info("%s: finishing change %d of its tablets.", layout.full_name, layout.number)
        finish(lake, clock, layout.keyspace, layout.table)
    return left


def _verified(lake: Lake, step: str) -> Lake:
    """The lake for a step that may remove stream sets, with every table verified that decides it or loses rows."""
    lake = verified(lake, step)
    lake.verify(CDC_TABLE_CHANGES, CDC_TABLES, TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS)
    return lake


def _let_go(lake: Lake, clock: Clock, newest: Layout) -> Layout:
    """Decide that the log of these tablets is gone. The ledger keeps the tablets, for a log that is made anew."""
    at_us = max(clock.now_us(), newest.decided_at_us)
    number, table_id = newest.number + 1, newest.table_id
    gone = Layout(newest.keyspace, newest.table, number, DROPPED, table_id, None, newest.last_tokens, at_us)
    return decide(lake, gone).layout


def _finished(lake: Lake, change: TabletChange) -> TabletChange:
    _finish(lake, change.layout)
    return change


def _finish(lake: Lake, layout: Layout) -> None:
    if layout.kind == DROPPED:
        _remove(lake, layout)
    else:
        write_streams(lake, layout)
        publish_timestamp(lake, layout)


def _remove(lake: Lake, layout: Layout) -> None:
    """The sets of a dropped log go: timestamps first, so that no reader comes for rows that are gone."""
    where = of_table(layout.keyspace, layout.table)
    if layouts(lake, layout.keyspace, layout.table)[-1].number != layout.number:
        return
    lake.delete(TABLET_TIMESTAMPS, where)
    failpoints.reached(failpoints.AFTER_TABLET_TIMESTAMPS_REMOVED)
    lake.delete(TABLET_STREAMS, where)
    lake.delete(TABLET_LAYOUTS, [*where, ("number", "<", layout.number)])


def _streams_before(lake: Lake, layout: Layout) -> np.ndarray:
    """The streams (uint8[n, 16]) of the set before the one of `layout`: the newest that is listed, which stays."""
    listed = tablet_rows.listed_times(lake, layout.keyspace, layout.table)
    before = [time for time in listed if layout.timestamp_ms is not None and time < layout.timestamp_ms]
    return tablet_rows.stream_rows(lake, layout.keyspace, layout.table, times_ms=before[-1:], states=[CURRENT]).ids


def _next_number(lake: Lake, clock: Clock, keyspace: str, table: str) -> int:
    """The number of a new log's first change, after what is left of a dropped log is removed."""
    last = finish(lake, clock, keyspace, table)
    return 0 if last is None else last.number + 1


def _tell_of(lake: Lake, clock: Clock, keyspace: str, table: str, ttl_seconds: int | None) -> CdcTable:
    if ttl_seconds is None:
        try:
            return cdc_tables.find(lake, keyspace, table)
        except NotFound:
            ttl_seconds = _last_ttl(lake, keyspace, table)
    return cdc_tables.add(lake, clock, keyspace, table, ttl_seconds=ttl_seconds, created_now=True)


def _last_ttl(lake: Lake, keyspace: str, table: str) -> int:
    said = _said(lake, keyspace, table)
    return said[-1].ttl_seconds if said else DEFAULT_TTL


def _last_said_us(lake: Lake, keyspace: str, table: str) -> Microseconds:
    """When (µs) something was last said of the table: a new log is noted after the drop of the one before it."""
    return max((change.changed_at_us for change in _said(lake, keyspace, table)), default=Microseconds(0))


def _said(lake: Lake, keyspace: str, table: str) -> list[TableChange]:
    changes = cdc_tables.changes(lake)
    return [change for change in changes if (change.keyspace_name, change.table_name) == (keyspace, table)]


def _to_count(rule: Callable[[np.ndarray, int], np.ndarray], count: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda ends: rule(ends, count)
