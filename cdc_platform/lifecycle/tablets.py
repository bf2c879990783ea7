"""Changes of a table's tablets with their streams, from create to drop, and garbage collection of stream sets.

One ledger row decides a change, and only one process can insert it. The streams are written next, and the timestamp
last as the commit mark; any process can finish a decided change. Collection removes sets that no log row needs and
every consumer has read, and the oldest remaining set becomes the base.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from cdc_platform import failpoints
from cdc_platform.clock import (
    HOUR_MS,
    Clock,
    Microseconds,
    Milliseconds,
    datetime_from_ms,
    format_ms,
    format_us,
    us_from_ms,
)
from cdc_platform.cql import DEFAULT_CDC_TTL
from cdc_platform.delta import TABLES_LOCK, Lake, TaskRunner, exclusive, get_verified_lake
from cdc_platform.errors import NotFound, StateError
from cdc_platform.generations import ClockMargins, live_until_us, tablets
from cdc_platform.metastore import (
    LAYOUT_CREATED,
    LAYOUT_DROPPED,
    LAYOUT_RESIZED,
    STREAM_CLOSED,
    STREAM_CURRENT,
    STREAM_OPENED,
    CdcTable,
    Consumer,
    TableChange,
    TabletLayout,
    TabletLayoutChange,
    cdc_tables,
    consumers,
    decide_layout,
    derive_table_id,
    has_leftovers,
    is_layout_finished,
    is_log_dropped,
    read_live_layout,
    read_newest_layout,
    read_tablet_layouts,
    read_unfinished_layouts,
    record_layout,
    table_filter,
)
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.settings import Settings
from cdc_platform.spark import frames
from cdc_platform.tables import (
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    CONSUMERS,
    TABLET_LAYOUTS,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
)

log = logging.getLogger(__name__)


@exclusive(TABLES_LOCK)
def create_tablets(
    lake: Lake,
    clock: Clock,
    settings: Settings,
    keyspace: str,
    table: str,
    last_tokens: np.ndarray,
    *,
    ttl_seconds: int | None = None,
    was_on: bool = False,
) -> TabletLayoutChange:
    """Create a table's first stream set, one stream for each tablet that ends at `last_tokens` (int64[n]).

    The set starts a leeway ago, so that the table can be written to at once. An unknown table is registered with this
    TTL, with that of its dropped log, or with 86400 s. The same call again changes nothing. `was_on` allows a table
    whose CDC is off, for rows written before that.

    Raises:
        InputError: the tokens do not end tablets, or the table is known with another TTL.
        StateError: the table already has other tablets, or its CDC is off.
        ConflictError: another process created other tablets at the same time.
    """
    options = {"ttl_seconds": ttl_seconds, "was_on": was_on}
    return _finish_and_return(
        lake, decide_tablet_creation(lake, clock, settings, keyspace, table, last_tokens, **options)
    )


@exclusive(TABLES_LOCK)
def split_tablets(
    lake: Lake, clock: Clock, settings: Settings, keyspace: str, table: str, count: int
) -> TabletLayoutChange:
    """Split a table's tablets into `count`, see `generations.tablets.split_tablet_ends`; all of its streams change.

    Raises:
        InputError: no split leads to that count.
        NotFound, StateError, ConflictError: as `resize_tablets`.
    """
    return _finish_and_return(
        lake,
        decide_tablet_resize(lake, clock, settings, keyspace, table, partial(tablets.split_tablet_ends, count=count)),
    )


@exclusive(TABLES_LOCK)
def merge_tablets(
    lake: Lake, clock: Clock, settings: Settings, keyspace: str, table: str, count: int
) -> TabletLayoutChange:
    """Merge a table's tablets into `count`, see `generations.tablets.merge_tablet_ends`; all of its streams change.

    Raises:
        InputError: no merge leads to that count.
        NotFound, StateError, ConflictError: as `resize_tablets`.
    """
    return _finish_and_return(
        lake,
        decide_tablet_resize(lake, clock, settings, keyspace, table, partial(tablets.merge_tablet_ends, count=count)),
    )


@exclusive(TABLES_LOCK)
def resize_tablets(
    lake: Lake, clock: Clock, settings: Settings, keyspace: str, table: str, last_tokens: np.ndarray
) -> TabletLayoutChange:
    """Replace a table's tablets by tablets that end at `last_tokens` (int64[n]); all of its streams change.

    The set starts twice the ring delay and the leeway from now. If the tablets already have these ends, they and their
    streams remain.

    Raises:
        InputError: the tokens do not end tablets.
        NotFound: the table has no tablets.
        ConflictError: another process gave it other tablets at the same time.
    """
    ends = tablets.check_tablet_ends(last_tokens, f"{keyspace}.{table}")
    return _finish_and_return(lake, decide_tablet_resize(lake, clock, settings, keyspace, table, lambda _: ends))


@exclusive(TABLES_LOCK)
def decide_tablet_creation(
    lake: Lake,
    clock: Clock,
    settings: Settings,
    keyspace: str,
    table: str,
    last_tokens: np.ndarray,
    *,
    ttl_seconds: int | None = None,
    was_on: bool = False,
) -> TabletLayoutChange:
    """Decide the set of `create_tablets` and its time, the first step; readers see nothing of it yet."""
    name = f"{keyspace}.{table}"
    ends = tablets.check_tablet_ends(last_tokens, name)
    newest = read_live_layout(lake, keyspace, table)
    if newest is not None and not np.array_equal(newest.last_tokens, ends):
        raise StateError(
            f"{name} has {len(newest.last_tokens)} tablets already; change them with: cdc-platform tablets split, "
            "merge or resize"
        )
    known = _ensure_cdc_table(lake, clock, keyspace, table, ttl_seconds)
    if not known.enabled and not was_on:
        raise StateError(f"CDC is off for {name}; turn it on with: cdc-platform tables alter {name} --enabled")
    if newest is not None:
        return TabletLayoutChange(newest, changed=False)
    number = _next_number(lake, clock, keyspace, table)
    time = tablets.first_set_timestamp(clock.now_ms(), settings.generation_leeway_ms)
    table_id = derive_table_id(keyspace, table, number)
    at_us = max(clock.now_us(), _last_change_us(lake, keyspace, table))
    return decide_layout(lake, TabletLayout(keyspace, table, number, LAYOUT_CREATED, table_id, time, ends, at_us))


@exclusive(TABLES_LOCK)
def decide_tablet_resize(
    lake: Lake,
    clock: Clock,
    settings: Settings,
    keyspace: str,
    table: str,
    last_tokens_of: Callable[[np.ndarray], np.ndarray],
) -> TabletLayoutChange:
    """Decide the tablets of a split or merge and the time of their set: the first step.

    `last_tokens_of` returns the new last tokens for the current ones.
    """
    newest = read_live_layout(lake, keyspace, table)
    if newest is None or newest.timestamp_ms is None:
        raise NotFound(
            f"{keyspace}.{table} has no tablets; make them with: cdc-platform tablets create {keyspace}.{table} "
            "--count N"
        )
    ends = last_tokens_of(newest.last_tokens)
    if np.array_equal(ends, newest.last_tokens):
        return TabletLayoutChange(newest, changed=False)
    record_layout(lake, newest)
    _finish_layout(lake, newest)
    time = tablets.next_set_timestamp(
        clock.now_ms(),
        newest.timestamp_ms,
        ring_delay_ms=settings.ring_delay_ms,
        leeway_ms=settings.generation_leeway_ms,
    )
    at_us = clock.now_us()
    return decide_layout(
        lake, TabletLayout(keyspace, table, newest.number + 1, LAYOUT_RESIZED, newest.table_id, time, ends, at_us)
    )


@exclusive(TABLES_LOCK)
def write_set_streams(lake: Lake, layout: TabletLayout) -> int | None:
    """Write the streams rows of a decided set, the second step; return the table's version, None if the set is listed.

    Does nothing for a set that has been superseded meanwhile, because it was finished before the next was decided.

    Raises:
        StateError: the sets before it, or the decided tablets, are not as committed.
    """
    if layout.timestamp_ms is None or is_layout_finished(lake, layout):
        return None
    _verify_stream_tables(lake)
    previous = _streams_before(lake, layout)
    current = tablets.generate_tablet_streams(layout.table_id, layout.timestamp_ms, layout.last_tokens)
    change = tablets.compute_difference(previous, current)
    states = [(STREAM_CURRENT, current), (STREAM_CLOSED, change.closed), (STREAM_OPENED, change.opened)]
    rows = metastore_tablets.stream_set_rows(layout.keyspace, layout.table, layout.timestamp_ms, states)
    version = lake.merge(TABLET_STREAMS, rows, update=False).version
    failpoints.kill_if_selected(failpoints.AFTER_TABLET_STREAMS)
    return version


def _verify_stream_tables(lake: Lake) -> None:
    for table in (TABLET_LAYOUTS, TABLET_STREAMS):
        frames.assert_partition_as_committed(TaskRunner.alone(), lake, table, {})


@exclusive(TABLES_LOCK)
def publish_set_timestamp(lake: Lake, layout: TabletLayout) -> None:
    """Publish the set's timestamp, the last step; readers rely on its rows from then on.

    Raises:
        StateError: streams are missing, or are not as committed.
    """
    if layout.timestamp_ms is None or is_layout_finished(lake, layout):
        return
    _verify_stream_tables(lake)
    rows = metastore_tablets.read_stream_rows(
        lake, layout.keyspace, layout.table, times_ms=[layout.timestamp_ms], states=[STREAM_CURRENT]
    )
    written = np.sort(tablets.get_stream_tokens(rows.ids))
    if not np.array_equal(written, layout.last_tokens):
        raise StateError(
            f"{layout.full_name}: {len(written)} of the {len(layout.last_tokens)} streams of "
            f"{format_ms(layout.timestamp_ms)} are written; materialise cdc_streams before its timestamp"
        )
    rows_of_time = metastore_tablets.set_timestamp_rows(layout.keyspace, layout.table, [layout.timestamp_ms])
    lake.merge(TABLET_TIMESTAMPS, rows_of_time, update=False)


@exclusive(TABLES_LOCK)
def drop_table_log(lake: Lake, clock: Clock, keyspace: str, table: str) -> None:
    """Record that the log of a table was dropped, and remove its stream sets.

    Raises:
        NotFound: the table is not known and has no sets.
        NotAsCommitted: a table on which the decision depends, or that loses rows, is not as committed.
    """
    lake = _verified_lake(lake, "tables drop")
    newest = read_newest_layout(lake, keyspace, table)
    if newest is not None:
        record_layout(lake, newest)
    try:
        cdc_tables.drop_cdc_table(lake, clock, keyspace, table)
    except NotFound:
        if newest is None or not has_leftovers(lake, newest):
            raise
    failpoints.kill_if_selected(failpoints.AFTER_TABLET_DROP)
    if newest is not None:
        _finish_layout(lake, newest if newest.kind == LAYOUT_DROPPED else _decide_drop(lake, clock, newest))


@exclusive(TABLES_LOCK)
def enable_table_log(
    lake: Lake, clock: Clock, settings: Settings, keyspace: str, table: str
) -> TabletLayoutChange | None:
    """Turn a table's CDC on again. An existing log keeps its sets; a dropped one is created again.

    A new log gets new streams for the tablets that the table had when its log was dropped. Returns None for a table
    that has never had tablets.

    Raises:
        NotFound: the table is not registered.
    """
    newest = read_newest_layout(lake, keyspace, table)
    if newest is not None and is_log_dropped(lake, newest):
        return create_tablets(lake, clock, settings, keyspace, table, newest.last_tokens)
    cdc_tables.alter_cdc_table(lake, clock, keyspace, table, enabled=True)
    return None if newest is None else TabletLayoutChange(newest, changed=False)


@exclusive(TABLES_LOCK)
def finish_tablet_change(lake: Lake, clock: Clock, keyspace: str, table: str) -> TabletLayout | None:
    """Finish the table's newest change, or remove the sets of a dropped log; return the newest change.

    Any number of processes may call this; it does nothing if nothing is left to do.

    Raises:
        NotAsCommitted: a table on which the decision depends, or that loses rows, is not as committed.
    """
    lake = _verified_lake(lake, f"finishing the tablets of {keyspace}.{table}")
    newest = read_newest_layout(lake, keyspace, table)
    if newest is None:
        return None
    if newest.kind != LAYOUT_DROPPED and is_log_dropped(lake, newest):
        newest = _decide_drop(lake, clock, newest)
    _finish_layout(lake, newest)
    return newest


def finish_tablet_changes(lake: Lake, clock: Clock) -> list[TabletLayout]:
    """Finish the unfinished changes of any process, and remove the sets of dropped logs; return those changes."""
    unfinished = read_unfinished_layouts(lake)
    for layout in unfinished:
        log.info("%s: finishing change %d of its tablets.", layout.full_name, layout.number)
        finish_tablet_change(lake, clock, layout.keyspace, layout.table)
    return unfinished


def _verified_lake(lake: Lake, step: str) -> Lake:
    """Return the lake for a step that may remove stream sets, after verifying the tables that decide or lose rows."""
    lake = get_verified_lake(lake, step)
    lake.verify(CDC_TABLE_CHANGES, CDC_TABLES, TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS)
    return lake


def _decide_drop(lake: Lake, clock: Clock, newest: TabletLayout) -> TabletLayout:
    """Decide that the log of these tablets is dropped. The ledger keeps the tablets for a log that is created again."""
    at_us = max(clock.now_us(), newest.decided_at_us)
    number, table_id = newest.number + 1, newest.table_id
    dropped = TabletLayout(
        newest.keyspace, newest.table, number, LAYOUT_DROPPED, table_id, None, newest.last_tokens, at_us
    )
    return decide_layout(lake, dropped).layout


def _finish_and_return(lake: Lake, change: TabletLayoutChange) -> TabletLayoutChange:
    _finish_layout(lake, change.layout)
    return change


def _finish_layout(lake: Lake, layout: TabletLayout) -> None:
    if layout.kind == LAYOUT_DROPPED:
        _remove_stream_sets(lake, layout)
    else:
        write_set_streams(lake, layout)
        publish_set_timestamp(lake, layout)


def _remove_stream_sets(lake: Lake, layout: TabletLayout) -> None:
    """Remove the sets of a dropped log, timestamps first, so that no reader looks for rows that are gone."""
    where = table_filter(layout.keyspace, layout.table)
    if read_tablet_layouts(lake, layout.keyspace, layout.table)[-1].number != layout.number:
        return
    lake.delete(TABLET_TIMESTAMPS, where)
    failpoints.kill_if_selected(failpoints.AFTER_TABLET_TIMESTAMPS_REMOVED)
    lake.delete(TABLET_STREAMS, where)
    lake.delete(TABLET_LAYOUTS, [*where, ("number", "<", layout.number)])


def _streams_before(lake: Lake, layout: TabletLayout) -> np.ndarray:
    """Return the streams (uint8[n, 16]) of the set before that of `layout`: the newest listed one, which remains."""
    listed = metastore_tablets.read_set_timestamps(lake, layout.keyspace, layout.table)
    before = [time for time in listed if layout.timestamp_ms is not None and time < layout.timestamp_ms]
    return metastore_tablets.read_stream_rows(
        lake, layout.keyspace, layout.table, times_ms=before[-1:], states=[STREAM_CURRENT]
    ).ids


def _next_number(lake: Lake, clock: Clock, keyspace: str, table: str) -> int:
    """Return the number of a new log's first change, after removing the leftovers of a dropped log."""
    last = finish_tablet_change(lake, clock, keyspace, table)
    return 0 if last is None else last.number + 1


def _ensure_cdc_table(lake: Lake, clock: Clock, keyspace: str, table: str, ttl_seconds: int | None) -> CdcTable:
    if ttl_seconds is None:
        try:
            return cdc_tables.find_cdc_table(lake, keyspace, table)
        except NotFound:
            ttl_seconds = _last_ttl(lake, keyspace, table)
    return cdc_tables.add_cdc_table(lake, clock, keyspace, table, ttl_seconds=ttl_seconds, created_now=True)


def _last_ttl(lake: Lake, keyspace: str, table: str) -> int:
    changes = _table_changes(lake, keyspace, table)
    return changes[-1].ttl_seconds if changes else DEFAULT_CDC_TTL


def _last_change_us(lake: Lake, keyspace: str, table: str) -> Microseconds:
    """Return when (µs) the table last changed; a new log must follow the drop of the previous one."""
    return max((change.changed_at_us for change in _table_changes(lake, keyspace, table)), default=Microseconds(0))


def _table_changes(lake: Lake, keyspace: str, table: str) -> list[TableChange]:
    changes = cdc_tables.read_table_changes(lake)
    return [change for change in changes if (change.keyspace_name, change.table_name) == (keyspace, table)]


collection_log = logging.getLogger(__name__)

_TableName = tuple[str, str]
COLLECTION_STEP = "tablets gc"
"""The name of a collection in error messages."""


@dataclass(frozen=True)
class ConsumerHold:
    """The sets (ms, oldest first) that are kept only because a consumer has not read them to their end."""

    consumer: Consumer
    sets_ms: tuple[Milliseconds, ...]

    def __str__(self) -> str:
        count = len(self.sets_ms)
        return (
            f"{count} stream {'set is' if count == 1 else 'sets are'} held back by consumer {self.consumer.full_name}, "
            f"which has read up to {format_us(self.consumer.position_us)}"
        )


@dataclass(frozen=True)
class TabletCollection:
    """The removable sets of one table: `removed_ms` (ms, oldest first); `base_ms` is the oldest that remains.

    `at_risk_ms` are those of them that can still hold a row, because it was written under a larger TTL than the current
    one. `held_back` has, for each consumer, the sets that the TTL would release but the consumer still needs.
    """

    keyspace: str
    table: str
    ttl_seconds: int
    base_ms: Milliseconds
    removed_ms: tuple[Milliseconds, ...]
    at_risk_ms: tuple[Milliseconds, ...]
    held_back: tuple[ConsumerHold, ...] = ()

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.table}"


def plan_tablet_collection(
    lake: Lake, clock: Clock, keyspace: str, table: str, *, ttl_seconds: int | None = None
) -> TabletCollection:
    """Return the sets of a table that its current TTL, by ScyllaDB's rule, and its consumers release. Removes nothing.

    `ttl_seconds` asks what would be removable with that TTL from now on; existing rows keep theirs.

    Raises:
        NotFound: the table has no stream sets, or is not known.
    """
    times = metastore_tablets.read_set_timestamps(lake, keyspace, table)
    if not times:
        raise NotFound(f"{keyspace}.{table} has no stream sets of tablets; list tables with: cdc-platform tables")
    known = cdc_tables.find_cdc_table(lake, keyspace, table).ttl_seconds
    readers = [consumer for consumer in consumers.read_consumers(lake) if consumer.key[1:] == (keyspace, table)]
    ttl_seconds = known if ttl_seconds is None else ttl_seconds
    return _collection(lake, (keyspace, table), times, ttl_seconds, readers, clock.now_ms())


@exclusive(TABLES_LOCK)
def collect_tablet_sets(
    lake: Lake, clock: Clock, keyspace: str, table: str, *, grace_ms: Milliseconds = HOUR_MS
) -> TabletCollection:
    """Remove the sets that `plan_tablet_collection` returns, and the leftovers of a collection that died.

    Timestamps are removed first, so that a concurrent reader finds a removed set but never one without streams.
    `grace_ms` is by how much the clock may be ahead of the machine's.

    Raises:
        As `plan_tablet_collection`.
        NotAsCommitted: a table on which the decision depends, or that loses rows, is not as committed.
        ClockRefused: sets would be removed by a clock that is too far ahead of the machine's.
    """
    lake = get_verified_lake(lake, COLLECTION_STEP)
    lake.verify(CDC_TABLE_CHANGES, CDC_TABLES, CONSUMERS, TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS)
    collection = plan_tablet_collection(lake, clock, keyspace, table)
    if collection.removed_ms:
        clock.assert_not_ahead(grace_ms, COLLECTION_STEP)
    where = table_filter(keyspace, table)
    base = datetime_from_ms(collection.base_ms)
    _open_base_set(lake, keyspace, table, collection.base_ms)
    if collection.removed_ms:
        lake.delete(TABLET_TIMESTAMPS, [*where, ("timestamp", "<", base)])
        collection_log.info("%s: %d stream sets are gone.", collection.full_name, len(collection.removed_ms))
    failpoints.kill_if_selected(failpoints.AFTER_TABLET_TIMESTAMPS_REMOVED)
    lake.delete(TABLET_STREAMS, [*where, ("timestamp", "<", base)])
    failpoints.kill_if_selected(failpoints.AFTER_TABLET_STREAMS_REMOVED)
    lake.delete(TABLET_STREAMS, [*where, ("timestamp", "=", base), ("stream_state", "=", STREAM_CLOSED)])
    # Keep the row of the log's creation, which distinguishes a dropped log from one created after it.
    lake.delete(TABLET_LAYOUTS, [*where, ("kind", "=", LAYOUT_RESIZED), ("timestamp", "<", base)])
    return collection


def read_due_collections(lake: Lake, clock: Clock) -> list[TabletCollection]:
    """Return every collection whose TTL releases sets now, by table, with the removable and the held-back sets.

    Reads no stream IDs.
    """
    known = {(table.keyspace_name, table.table_name): table.ttl_seconds for table in cdc_tables.read_cdc_tables(lake)}
    times: dict[_TableName, list[Milliseconds]] = {}
    for name, time in sorted(metastore_tablets.read_listed_stream_sets(lake)):
        times.setdefault(name, []).append(time)
    now_ms = clock.now_ms()
    due = [
        name
        for name, listed in times.items()
        if name in known and tablets.first_set_index_after_gc(listed, now_ms, known[name]) > 0
    ]
    registered = consumers.read_consumers(lake) if due else []
    readers = {name: [consumer for consumer in registered if consumer.key[1:] == name] for name in due}
    return [_collection(lake, name, times[name], known[name], readers[name], now_ms) for name in due]


def _collection(
    lake: Lake,
    name: _TableName,
    times: list[Milliseconds],
    ttl_seconds: int,
    readers: Sequence[Consumer],
    now_ms: Milliseconds,
) -> TabletCollection:
    """Return the collection of a table with sets that start at `times` (ms, ascending) and with these consumers."""
    by_ttl = tablets.first_set_index_after_gc(times, now_ms, ttl_seconds)
    unread = [tablets.oldest_unread_set_index(times, consumer.position_us) for consumer in readers]
    held_back = [
        ConsumerHold(reader, tuple(times[oldest:by_ttl]))
        for reader, oldest in zip(readers, unread, strict=True)
        if oldest < by_ttl
    ]
    base = min([by_ttl, *unread])
    # A timestamp without a row of streams cannot be the base, because the next set builds on the one before it.
    while base and not metastore_tablets.has_stream_rows(lake, *name, times[base]):
        base -= 1
    at_risk = _sets_at_risk(lake, name, times, base, now_ms)
    return TabletCollection(*name, ttl_seconds, times[base], tuple(times[:base]), at_risk, tuple(held_back))


def _open_base_set(lake: Lake, keyspace: str, table: str, base_ms: Milliseconds) -> None:
    """Mark the whole set of a base as opened if its difference was partial.

    A reader that starts there knows no earlier set. This runs first because it is correct at once: streams opened again
    were already open.
    """
    rows = metastore_tablets.read_stream_rows(
        lake, keyspace, table, times_ms=[base_ms], states=[STREAM_CURRENT, STREAM_OPENED]
    )
    current, opened = rows.of(base_ms, STREAM_CURRENT), rows.of(base_ms, STREAM_OPENED)
    if not tablets.isin_streams(current, opened).all():
        missing = metastore_tablets.stream_set_rows(keyspace, table, base_ms, [(STREAM_OPENED, current)])
        lake.merge(TABLET_STREAMS, missing, update=False)


def _sets_at_risk(
    lake: Lake, name: _TableName, times_ms: list[Milliseconds], removed: int, now_ms: Milliseconds
) -> tuple[Milliseconds, ...]:
    """Return those of the first `removed` sets (ms) that can still hold a row, by the TTLs of the written rows."""
    history = cdc_tables.read_log_histories(lake).get(name) if removed else None
    if history is None:
        return ()
    # The timestamp of a row determines its tablet, so clock differences do not matter.
    live_until = live_until_us(
        us_from_ms(np.array(times_ms, dtype=np.int64)),
        history,
        ClockMargins(Microseconds(0), Microseconds(0), Microseconds(0)),
    )
    return tuple(
        time for time, until in zip(times_ms[:removed], live_until.tolist(), strict=False) if until > us_from_ms(now_ms)
    )
