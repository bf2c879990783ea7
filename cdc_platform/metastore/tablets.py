"""Stream sets of tablet-based tables and the ledger of tablet changes.

One ledger row, which only one process can insert, decides the next change of a table's tablets. No JVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import (
    Microseconds,
    Milliseconds,
    datetime_from_ms,
    datetime_from_us,
    format_ms,
    ms_from_datetime,
    ms_from_us,
    us_from_datetime,
    us_from_ms,
)
from cdc_platform.delta import Filter, Lake, choose_remedy, compute, stream_ids_to_arrow, stream_ids_to_numpy
from cdc_platform.errors import ConflictError, NotFound, StateError
from cdc_platform.generations import STREAM_ID_BYTES, StreamSet, tablets
from cdc_platform.metastore import cdc_tables
from cdc_platform.ring import LAST_TOKEN
from cdc_platform.tables import TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS

STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED = 0, 1, 2
"""The states of a stream at a timestamp."""


@dataclass(frozen=True, eq=False)
class TabletRows:
    """Rows of `cdc_streams` of one table in no order, as columns of one length, and the number of damaged rows.

    `times_ms` int64[n], `states` int8[n], `ids` uint8[n, 16]. Rows whose ID is not 16 bytes long are counted in
    `damaged` and otherwise dropped.
    """

    times_ms: np.ndarray
    states: np.ndarray
    ids: np.ndarray
    damaged: int

    def of(self, time_ms: Milliseconds, state: int) -> np.ndarray:
        """Return the streams (uint8[k, 16], in no order) of one timestamp in one state."""
        return self.ids[(self.times_ms == time_ms) & (self.states == state)]


def table_filter(keyspace: str, table: str) -> list[Filter]:
    """Return the filter that selects the rows of one table."""
    return [("keyspace_name", "=", keyspace), ("table_name", "=", table)]


def read_listed_stream_sets(lake: Lake) -> set[tuple[tuple[str, str], Milliseconds]]:
    """Return every stream set that readers see: ((keyspace, table), timestamp in ms)."""
    return _sets(lake.read(TABLET_TIMESTAMPS))


def read_stream_sets_with_rows(lake: Lake) -> set[tuple[tuple[str, str], Milliseconds]]:
    """Return every stream set that has rows of streams: ((keyspace, table), timestamp in ms)."""
    keys = ["keyspace_name", "table_name", "timestamp"]
    return _sets(lake.read(TABLET_STREAMS, keys).group_by(keys).aggregate([]))


def read_set_timestamps(lake: Lake, keyspace: str, table: str) -> list[Milliseconds]:
    """Return the timestamps (ms) of a table's stream sets, oldest first."""
    rows = lake.read(TABLET_TIMESTAMPS, ["timestamp"], table_filter(keyspace, table))
    return np.sort(_column_ms(rows["timestamp"])).tolist()


def read_tables_with_streams(lake: Lake, table_names: Sequence[str]) -> set[tuple[str, str]]:
    """Return the tables (keyspace, name) with one of these names that still have rows of streams."""
    if not table_names:
        return set()
    where: list[Filter] = [("table_name", "in", sorted(set(table_names)))]
    rows = lake.read(TABLET_STREAMS, ["keyspace_name", "table_name"], where)
    names = rows.group_by(["keyspace_name", "table_name"]).aggregate([])
    return set(zip(names["keyspace_name"].to_pylist(), names["table_name"].to_pylist(), strict=True))


def has_stream_rows(lake: Lake, keyspace: str, table: str, time_ms: Milliseconds) -> bool:
    """Return True if a table has rows of streams at a timestamp (ms)."""
    where: list[Filter] = [*table_filter(keyspace, table), ("timestamp", "=", datetime_from_ms(time_ms))]
    return lake.read(TABLET_STREAMS, ["stream_state"], where).num_rows > 0


def read_stream_rows(
    lake: Lake,
    keyspace: str,
    table: str,
    *,
    times_ms: Sequence[Milliseconds] | None = None,
    states: Sequence[int] | None = None,
) -> TabletRows:
    """Return the rows of a table's streams, optionally of some timestamps and states only."""
    where = table_filter(keyspace, table)
    if times_ms is not None:
        where.append(("timestamp", "in", [datetime_from_ms(time) for time in times_ms]))
    if states is not None:
        where.append(("stream_state", "in", states))
    rows = lake.read(TABLET_STREAMS, ["timestamp", "stream_state", "stream_id"], where)
    whole = np.asarray(compute.equal(compute.binary_length(rows["stream_id"]), STREAM_ID_BYTES), dtype=bool)
    damaged = int(rows.num_rows - whole.sum())
    if damaged:
        rows = rows.filter(pa.array(whole))
    ids = rows["stream_id"].combine_chunks()
    ids = pa.concat_arrays(ids.chunks) if isinstance(ids, pa.ChunkedArray) else ids
    return TabletRows(_column_ms(rows["timestamp"]), rows["stream_state"].to_numpy(), stream_ids_to_numpy(ids), damaged)


def stream_set_rows(
    keyspace: str, table: str, time_ms: Milliseconds, states: Sequence[tuple[int, np.ndarray]]
) -> pa.Table:
    """Build the rows of `cdc_streams` for one timestamp; `states` are (state, streams uint8[n, 16])."""
    counts = [len(ids) for _, ids in states]
    count = sum(counts)
    when = pa.array([datetime_from_ms(time_ms)], type=TABLET_STREAMS.schema.field("timestamp").type)
    return pa.table(
        {
            "keyspace_name": pa.repeat(keyspace, count),
            "table_name": pa.repeat(table, count),
            "timestamp": pa.repeat(when[0], count),
            "stream_state": pa.array(np.repeat(np.array([state for state, _ in states], dtype=np.int8), counts)),
            "stream_id": stream_ids_to_arrow(np.concatenate([ids for _, ids in states])),
        }
    )


def set_timestamp_rows(keyspace: str, table: str, times_ms: Sequence[Milliseconds]) -> pa.Table:
    """Build the rows of `cdc_timestamps`."""
    columns = {"keyspace_name": keyspace, "table_name": table}
    rows = [{**columns, "timestamp": datetime_from_ms(time_ms)} for time_ms in times_ms]
    return pa.Table.from_pylist(rows, schema=TABLET_TIMESTAMPS.schema)


def _sets(rows: pa.Table) -> set[tuple[tuple[str, str], Milliseconds]]:
    names = zip(rows["keyspace_name"].to_pylist(), rows["table_name"].to_pylist(), strict=True)
    return set(zip(names, _column_ms(rows["timestamp"]).tolist(), strict=True))


def _column_ms(moments: pa.ChunkedArray) -> np.ndarray:
    return ms_from_us(np.asarray(moments.cast(pa.int64()), dtype=np.int64))


_READ_ATTEMPTS = 5


@dataclass(frozen=True, eq=False)
class StreamSetChange:
    """A stream set and its difference from the previous one: uint8[n, 16] each, in ring order."""

    timestamp_ms: Milliseconds
    current: np.ndarray
    closed: np.ndarray
    opened: np.ndarray


def read_tables_with_stream_sets(lake: Lake) -> list[tuple[str, str]]:
    """Return the tables (keyspace, name) that have stream sets, in order."""
    return sorted({name for name, _ in read_listed_stream_sets(lake)})


def has_stream_sets(lake: Lake, keyspace: str, table: str) -> bool:
    """Return True if the table has a stream set that readers see."""
    return bool(read_set_timestamps(lake, keyspace, table))


def read_stream_sets(lake: Lake, keyspace: str, table: str) -> list[StreamSet]:
    """Return the stream sets of a table, oldest first, without timestamps that have no rows of streams.

    Raises:
        NotFound: the table has no timestamp.
        StateError: a timestamp has rows and no current streams, or rows are damaged.
    """
    return read_stream_sets_and_empty_timestamps(lake, keyspace, table)[0]


def read_stream_sets_and_empty_timestamps(
    lake: Lake, keyspace: str, table: str
) -> tuple[list[StreamSet], list[Milliseconds]]:
    """Return the stream sets of a table, oldest first, and the listed timestamps (ms) without a row of streams.

    Raises:
        NotFound, StateError: as `read_stream_sets`.
    """
    times, bare, rows = _read_consistent_rows(lake, keyspace, table, [STREAM_CURRENT])
    return [StreamSet.of(time, rows.of(time, STREAM_CURRENT)) for time in times], bare


def read_stream_set_changes(lake: Lake, keyspace: str, table: str) -> list[StreamSetChange]:
    """Return every stream set of a table with its closed and opened streams, oldest first.

    Raises:
        NotFound, StateError: as `read_stream_sets`.
    """
    times, _, rows = _read_consistent_rows(lake, keyspace, table, [STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED])
    return [
        StreamSetChange(
            time,
            *(
                tablets.sort_in_ring_order(rows.of(time, state))
                for state in (STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED)
            ),
        )
        for time in times
    ]


def is_stream_set_complete(lake: Lake, keyspace: str, table: str, time_ms: Milliseconds) -> bool:
    """Return True if all streams of a set (ms) exist.

    The set must end at the last token, and it must match the previous set with the stored difference applied.
    """
    earlier = [time for time in read_set_timestamps(lake, keyspace, table) if time < time_ms][-1:]
    rows = read_stream_rows(lake, keyspace, table, times_ms=[*earlier, time_ms])
    current, closed, opened = (rows.of(time_ms, state) for state in (STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED))
    if rows.damaged or not len(current) or int(tablets.get_stream_tokens(current).max()) != LAST_TOKEN:
        return False
    if earlier and not (rows.times_ms == earlier[0]).any():
        # The previous set has no rows to which the difference could be applied.
        return bool(tablets.isin_streams(opened, current).all() and not tablets.isin_streams(closed, current).any())
    previous = rows.of(earlier[0], STREAM_CURRENT) if earlier else None
    expected = tablets.apply_difference_unchecked(previous, tablets.StreamSetDifference(closed, opened))
    return np.array_equal(expected, tablets.sort_in_ring_order(current))


def _read_consistent_rows(
    lake: Lake, keyspace: str, table: str, states: list[int]
) -> tuple[list[Milliseconds], list[Milliseconds], TabletRows]:
    """Return a table's timestamps with streams, its timestamps without rows, and the rows; both lists are oldest first.

    Reads again if sets were removed during the read.
    """
    for _ in range(_READ_ATTEMPTS):
        times = read_set_timestamps(lake, keyspace, table)
        if not times:
            do = choose_remedy(lake, f"create the first with: cdc-platform tablets create {keyspace}.{table} --count N")
            raise NotFound(f"{keyspace}.{table} has no stream sets of tablets; {do}")
        rows = read_stream_rows(lake, keyspace, table, times_ms=times, states=states)
        present = set(rows.times_ms[rows.states == STREAM_CURRENT].tolist())
        missing = [time for time in times if time not in present]
        if rows.damaged:
            raise StateError(
                f"{keyspace}.{table}: {rows.damaged} rows of system.cdc_streams hold no stream ID of 16 bytes; "
                "write them again as they were"
            )
        if not missing:
            return times, [], rows
        others = read_stream_rows(lake, keyspace, table, times_ms=missing)
        if read_set_timestamps(lake, keyspace, table) == times:
            if len(others.ids) or others.damaged:
                raise StateError(
                    f"{keyspace}.{table}: the timestamp {format_ms(missing[0])} has no current streams; "
                    "look at: cdc-platform check"
                )
            return [time for time in times if time in present], missing, rows
    raise ConflictError(f"{keyspace}.{table}: its stream sets changed during every read; run the command again")


LAYOUT_CREATED, LAYOUT_RESIZED, LAYOUT_DROPPED = "created", "resized", "dropped"


@dataclass(frozen=True, eq=False)
class TabletLayout:
    """The tablets of a table after one change: a row of `platform.tablet_layouts`.

    `timestamp_ms` is that of the corresponding stream set, None if the log was dropped. `last_tokens` is int64[n]
    ascending.
    """

    keyspace: str
    table: str
    number: int
    kind: str
    table_id: UUID
    timestamp_ms: Milliseconds | None
    last_tokens: np.ndarray
    decided_at_us: Microseconds

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.table}"


@dataclass(frozen=True)
class TabletLayoutChange:
    """The newest layout of a table after a change. `changed` is False if the tablets already had this layout."""

    layout: TabletLayout
    changed: bool


def read_tablet_layouts(lake: Lake, keyspace: str | None = None, table: str | None = None) -> list[TabletLayout]:
    """Return the tablet changes of one table, or of all tables, in the order in which they were decided."""
    where = None if keyspace is None or table is None else table_filter(keyspace, table)
    rows = lake.read(TABLET_LAYOUTS, filters=where)
    ends = rows["last_tokens"]
    layouts = [
        TabletLayout(
            row["keyspace_name"],
            row["table_name"],
            row["number"],
            row["kind"],
            UUID(row["table_id"]),
            None if row["timestamp"] is None else ms_from_datetime(row["timestamp"]),
            ends[index].values.to_numpy(),
            us_from_datetime(row["decided_at"]),
        )
        for index, row in enumerate(rows.drop_columns(["last_tokens"]).to_pylist())
    ]
    return sorted(layouts, key=lambda each: (each.keyspace, each.table, each.number))


def read_newest_layout(lake: Lake, keyspace: str, table: str) -> TabletLayout | None:
    """Return the last tablet change of a table; if another writer made its sets, derive it from the newest set."""
    known = read_tablet_layouts(lake, keyspace, table)
    if known:
        return known[-1]
    times = read_set_timestamps(lake, keyspace, table)
    if not times:
        return None
    sets = read_stream_sets(lake, keyspace, table)
    if not sets:
        return None
    newest, table_id = sets[-1], derive_table_id(keyspace, table, 0)
    return TabletLayout(
        keyspace, table, 0, LAYOUT_CREATED, table_id, newest.timestamp_ms, newest.tokens, us_from_ms(times[0])
    )


def derive_table_id(keyspace: str, table: str, number: int) -> UUID:
    """Derive the UUID of the log that change `number` of its table creates."""
    return uuid5(NAMESPACE_URL, f"{keyspace}.{table}/{number}")


def read_unfinished_layouts(lake: Lake) -> list[TabletLayout]:
    """Return the newest change of each table whose stream set does not exist yet, or whose sets outlive its log."""
    known = read_tablet_layouts(lake)
    newest = {(layout.keyspace, layout.table): layout for layout in known}
    dropped = {name for name, layout in newest.items() if layout.kind == LAYOUT_DROPPED} | _tables_with_dropped_log(
        lake, known
    )
    sets = read_listed_stream_sets(lake)
    remaining = {name for name, _ in sets} | read_tables_with_streams(lake, [name for _, name in dropped])
    remaining |= {
        (layout.keyspace, layout.table) for layout in known if layout.number < _number_of_drop(newest, layout)
    }
    return [
        layout
        for name, layout in newest.items()
        if (name in remaining if name in dropped else (name, layout.timestamp_ms) not in sets)
    ]


def is_log_dropped(lake: Lake, layout: TabletLayout) -> bool:
    """Return True if the log of this layout has been dropped since, even if the table has a new one."""
    name = (layout.keyspace, layout.table)
    return layout.kind == LAYOUT_DROPPED or name in _tables_with_dropped_log(
        lake, read_tablet_layouts(lake, *name) or [layout]
    )


def read_live_layout(lake: Lake, keyspace: str, table: str) -> TabletLayout | None:
    """Return the tablets of a table, None if it has none or its log was dropped."""
    newest = read_newest_layout(lake, keyspace, table)
    return None if newest is None or is_log_dropped(lake, newest) else newest


def has_leftovers(lake: Lake, newest: TabletLayout) -> bool:
    """Return True if sets of a table, or changes before its drop, still exist."""
    name = (newest.keyspace, newest.table)
    if name in read_tables_with_streams(lake, [newest.table]) or read_set_timestamps(lake, *name):
        return True
    return (
        any(layout.number < newest.number for layout in read_tablet_layouts(lake, *name))
        or newest.kind != LAYOUT_DROPPED
    )


def is_layout_finished(lake: Lake, layout: TabletLayout) -> bool:
    """Return True if the layout's set is listed, or if a later change of its table superseded it."""
    known = read_tablet_layouts(lake, layout.keyspace, layout.table)
    if known and known[-1].number != layout.number:
        return True
    return layout.timestamp_ms in read_set_timestamps(lake, layout.keyspace, layout.table)


def decide_layout(lake: Lake, wanted: TabletLayout) -> TabletLayoutChange:
    """Insert a change as the next one of its table; if another process won, return its change if it asks for the same.

    Raises:
        ConflictError: the other process's change asks for something else.
    """
    inserted = record_layout(lake, wanted)
    failpoints.kill_if_selected(failpoints.AFTER_TABLET_DECISION)
    if inserted:
        return TabletLayoutChange(wanted, changed=True)
    winners = [
        layout for layout in read_tablet_layouts(lake, wanted.keyspace, wanted.table) if layout.number == wanted.number
    ]
    if winners and (winners[0].kind, winners[0].last_tokens.tolist()) == (wanted.kind, wanted.last_tokens.tolist()):
        return TabletLayoutChange(winners[0], changed=True)
    raise ConflictError(
        f"{wanted.full_name} got other tablets from another process at the same time; see: cdc-platform tablets "
        f"show {wanted.full_name}, and run it again if that is not what you want"
    )


def record_layout(lake: Lake, layout: TabletLayout) -> bool:
    """Insert a change into the ledger; return True if no change with its number existed before."""
    return lake.merge(TABLET_LAYOUTS, tablet_layout_rows([layout]), update=False).inserted > 0


def tablet_layout_rows(changes: Sequence[TabletLayout]) -> pa.Table:
    """Build the rows of the ledger from changes."""
    rows = [
        {
            "keyspace_name": layout.keyspace,
            "table_name": layout.table,
            "number": layout.number,
            "kind": layout.kind,
            "table_id": str(layout.table_id),
            "timestamp": None if layout.timestamp_ms is None else datetime_from_ms(layout.timestamp_ms),
            "last_tokens": pa.array(layout.last_tokens),
            "decided_at": datetime_from_us(layout.decided_at_us),
        }
        for layout in changes
    ]
    return pa.Table.from_pylist(rows, schema=TABLET_LAYOUTS.schema)


def _number_of_drop(newest: Mapping[tuple[str, str], TabletLayout], each: TabletLayout) -> int:
    """Return the number of the change that dropped a table's log; 0 if its newest change is not a drop."""
    last = newest[each.keyspace, each.table]
    return last.number if last.kind == LAYOUT_DROPPED else 0


def _tables_with_dropped_log(lake: Lake, known: list[TabletLayout]) -> set[tuple[str, str]]:
    """Return the tables whose newest log was dropped after its tablets were recorded. `known` is in ledger order."""
    created_us = {
        (layout.keyspace, layout.table): layout.decided_at_us for layout in known if layout.kind == LAYOUT_CREATED
    }
    return {
        name
        for change in cdc_tables.read_table_changes(lake)
        if (name := (change.keyspace_name, change.table_name)) in created_us
        and change.what == cdc_tables.TABLE_DROPPED
        and change.changed_at_us > created_us[name]
    }
