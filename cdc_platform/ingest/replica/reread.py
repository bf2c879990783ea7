"""Reread rows from the cluster whose current state the log alone does not determine.

They are rows whose marker is uncertain, lists changed at unknown keys, rows that lost values to a TTL, and rows of late
changes, whose values may have been deleted before the log reported them. For logs without values see `changed_keys`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import STATE_SCHEMA, SelectedRows, StateRowKind, merge_states, split_components, state_from_log
from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.cql import Column, ListType, TableSchema, quote_name
from cdc_platform.delta import compute
from cdc_platform.ingest.replica.snapshot import SOLE, SyntheticTimestamps, base_name, elements, seen, selection
from cdc_platform.ingest.requests import Pages, limit_page_rows, start_requests
from cdc_platform.scylla import ScyllaSession

Place = tuple[bytes, bytes | None]
"""A row: its serialized partition key, and its clustering key as a state has it; None for the static row."""
_Row = dict[str, Any]
_DELETIONS = (StateRowKind.PARTITION_TOMBSTONE, StateRowKind.RANGE_TOMBSTONE, StateRowKind.ROW_TOMBSTONE)


def find_doubtful_rows(
    schema: TableSchema,
    state: pa.Table,
    changes: pa.Table,
    selected: SelectedRows,
    expired: tuple[Microseconds, Microseconds],
) -> set[Place]:
    """Return the rows of a merged state to reread; `changes` were merged last, and `selected` is what the state shows.

    `expired` are the times (µs) between which TTLs have passed since the last call.
    """
    doubtful = pa.array(selected.doubtful)
    places = set(places_of(selected.partitions.filter(doubtful), selected.clusterings.filter(doubtful)))
    expires = np.asarray(state["expires"])
    gone, lists = (expires > expired[0]) & (expires <= expired[1]), _lists(schema)
    if not (gone.any() or (lists and changes.num_rows)):
        return places
    unsure = state.filter(state["inexact"])
    if lists and changes.num_rows:
        places |= _changed(lists, unsure, changes)
    passed = state.filter(pa.array(gone))
    if passed.num_rows:
        near = _of(unsure, passed["partition"])
        near = near.filter(compute.invert(near["dead"]))
        places |= set(places_of(passed["partition"], passed["clustering"])) & set(
            places_of(near["partition"], near["clustering"])
        )
    return places


def reread_rows(
    live: ScyllaSession,
    schema: TableSchema,
    state: pa.Table,
    places: set[Place],
    now_us: Microseconds,
    concurrency: int,
) -> pa.Table:
    """Return the state rows (`STATE_SCHEMA`), not merged, of rows as the cluster has them now (µs)."""
    unsure = state.filter(state["inexact"])
    known: dict[Place, list[_Row]] = {}
    partitions = pa.array(sorted({partition for partition, _ in places}), pa.binary())
    for row in _of(unsure, partitions).to_pylist():
        row_key = row["partition"], row["clustering"]
        if row_key in places:
            known.setdefault(row_key, []).append(row)
    rows: list[_Row] = []
    for row_key, values in _answers(live, schema, sorted(known, key=place_order), concurrency):
        rows += _now(schema, known[row_key], values, now_us, static=row_key[1] is None)
    return pa.Table.from_pylist(rows, schema=STATE_SCHEMA)


def places_of(partitions: Any, clusterings: Any) -> Iterator[Place]:
    """Yield the rows that columns of a state belong to."""
    return zip(partitions.to_pylist(), clusterings.to_pylist(), strict=True)


def place_order(place: Place) -> tuple[bytes, bytes]:
    """Return a sort key of a row."""
    return place[0], place[1] or b""


def _of(state: pa.Table, partitions: Any) -> pa.Table:
    if isinstance(partitions, pa.ChunkedArray):
        partitions = partitions.combine_chunks()
    return state.filter(compute.is_in(state["partition"], value_set=partitions))


def _lists(schema: TableSchema) -> list[str]:
    """Return the list columns whose elements have keys."""
    return [column.name for column in schema.columns if column.type.multicell and isinstance(column.type, ListType)]


def _changed(names: list[str], unsure: pa.Table, changes: pa.Table) -> set[Place]:
    """Return the rows with lists of unknown keys that were changed, or that a deletion may have affected."""
    named = pa.array(names, pa.string())
    lists = unsure.filter(compute.fill_null(compute.is_in(unsure["column"], value_set=named), False))
    lists = _of(lists, changes["partition"])
    if not lists.num_rows:
        return set()
    changed = changes.filter(compute.fill_null(compute.is_in(changes["column"], value_set=named), False))
    cells = set(zip(*(changed[name].to_pylist() for name in ("partition", "clustering", "column")), strict=True))
    deleted: dict[bytes, int] = {}
    for row in changes.filter(pa.array(np.isin(np.asarray(changes["kind"]), _DELETIONS))).to_pylist():
        deleted[row["partition"]] = min(row["timestamp"], deleted.get(row["partition"], row["timestamp"]))
    return {
        (row["partition"], row["clustering"])
        for row in lists.to_pylist()
        if (row["partition"], row["clustering"], row["column"]) in cells
        or row["timestamp"] >= deleted.get(row["partition"], row["timestamp"] + 1)
    }


def _answers(
    live: ScyllaSession, schema: TableSchema, places: Sequence[Place], concurrency: int
) -> Iterator[tuple[Place, dict[str, bytes | None] | None]]:
    """Yield each row's values by column, None for a missing row, while the next requests are in flight."""

    def send(place: Place, _: int, paging_state: bytes | None) -> Pages:
        columns = ", ".join(quote_name(column.name) for column in _columns(schema, static=place[1] is None))
        return send_key_request(live, schema, place, columns, paging_state)

    for row_key, pages in start_requests(places, send, concurrency):
        names = [column.name for column in _columns(schema, static=row_key[1] is None)]
        row = next(([cells[0].as_py() for cells in page.columns] for page in pages if page.rows), None)
        yield row_key, None if row is None else dict(zip(names, row, strict=True))


def send_key_request(
    live: ScyllaSession, schema: TableSchema, place: Place, selected: str, paging_state: bytes | None
) -> Pages:
    """Select columns of a row by its key; for a static row, with one row of its partition."""
    partition, clustering = place
    keys, values = list(schema.partition_key), _key_parts(partition, len(schema.partition_key))
    if clustering is not None and schema.clustering_key:
        keys += schema.clustering_key
        values += [
            component[0].as_py()
            for component in split_components(pa.array([clustering], pa.binary()), len(schema.clustering_key))
        ]
    limit = " LIMIT 1" if clustering is None else ""
    text = _statement(live, schema, selected, keys, limit)
    return live.send_request(base_name(schema), text, 1, values, paging_state=paging_state)


def send_partition_request(
    live: ScyllaSession, schema: TableSchema, partition: bytes, selected: str, attempt: int, paging_state: bytes | None
) -> Pages:
    """Select columns of all rows of a partition."""
    values = _key_parts(partition, len(schema.partition_key))
    text = _statement(live, schema, selected, schema.partition_key)
    page_rows = limit_page_rows(live.connection, attempt)
    return live.send_request(base_name(schema), text, page_rows, values, paging_state=paging_state)


def _statement(live: ScyllaSession, schema: TableSchema, selected: str, keys: Sequence[Column], limit: str = "") -> str:
    where = " AND ".join(f"{quote_name(key.name)} = ?" for key in keys)
    end = " BYPASS CACHE" if live.is_scylla else ""
    return f"SELECT {selected} FROM {base_name(schema)} WHERE {where}{limit}{end}"


def _key_parts(partition: bytes, count: int) -> list[bytes]:
    if count == 1:
        return [partition]
    return [
        component[0].as_py()
        for component in split_components(pa.array([partition], pa.binary()), count, header=2, trailer=1)
    ]


def _columns(schema: TableSchema, *, static: bool) -> list[Column]:
    columns = schema.statics if static else schema.regulars
    return [*schema.partition_key[:1], *columns]


def _now(
    schema: TableSchema,
    known: list[_Row],
    values: dict[str, bytes | None] | None,
    now_us: Microseconds,
    *,
    static: bool,
) -> Iterator[_Row]:
    """Yield the current state of one row's inexact parts, from its values."""
    current = values or {}
    elements_by_column = {
        column.name: dict(elements(column, current.get(column.name) or b"")) if current.get(column.name) else {}
        for column in (schema.statics if static else schema.regulars)
        if column.type.multicell
    }
    bare = not any(current.get(column.name) is not None for column in schema.regulars)
    lists = dict[str, _Row]()
    for row in known:
        name = row["column"]
        if row["kind"] == StateRowKind.MARKER:
            if values is None:
                yield row | {"dead": True, "value": None}
            elif bare:
                # One with an expiry outlived it; at the same time the one that expires would win.
                later = {"timestamp": row["timestamp"] + ONE_US, "expires": 0} if row["expires"] else {}
                yield row | {"value": SOLE} | later
        elif name in elements_by_column and isinstance(schema.column(name).type, ListType):
            lists[name] = row
        elif (
            row["kind"] == StateRowKind.CELL
            and name in elements_by_column
            and row["path"] not in elements_by_column[name]
        ):
            yield row | {"dead": True, "value": None}
    for name, row in lists.items():
        overwritten = {"kind": int(StateRowKind.COLLECTION_TOMBSTONE), "path": None, "value": None, "dead": False}
        yield row | overwritten | {"timestamp": now_us - ONE_US}
        for path, value in elements_by_column[name].items():
            yield row | {
                "kind": int(StateRowKind.CELL),
                "path": path,
                "value": value,
                "timestamp": now_us,
                "dead": False,
            }


@dataclass(frozen=True)
class LateChanges:
    """The effect of late log rows. `changes` are to be merged (`STATE_SCHEMA`); `rows` counts the log's rows.

    `places` are the rows written to, and `partitions` those in which something was deleted.
    """

    changes: pa.Table
    rows: int = 0
    places: frozenset[Place] = frozenset()
    partitions: frozenset[bytes] = frozenset()

    @staticmethod
    def none() -> LateChanges:
        """Return no changes."""
        return LateChanges(STATE_SCHEMA.empty_table())

    @staticmethod
    def read(
        live: ScyllaSession,
        schema: TableSchema,
        logs: Sequence[pa.Table],
        timestamps: SyntheticTimestamps,
        concurrency: int,
    ) -> LateChanges:
        """Return the effect of log rows (one table or more), reading their rows of the base table as a copy does.

        Raises:
            NotGranted, Unreachable: the table could not be read.
        """
        state = merge_states(schema, [state_from_log(schema, pa.concat_tables(logs, promote_options="default"))])
        kinds = np.asarray(state["kind"])
        deletes = np.isin(kinds, _DELETIONS)
        removed = deletes | np.asarray(state["dead"]) | (kinds == StateRowKind.COLLECTION_TOMBSTONE)
        written = state.filter(pa.array(~deletes))
        places = frozenset(places_of(written["partition"], written["clustering"]))
        partitions = frozenset(state["partition"].filter(pa.array(deletes)).to_pylist())
        ordered = sorted(places, key=place_order)
        columns = selection(schema)

        def send(place: Place, _: int, paging_state: bytes | None) -> Pages:
            return send_key_request(live, schema, place, columns, paging_state)

        answers = start_requests(ordered, send, concurrency)
        states = [seen(schema, pages, timestamps) for _, pages in answers if any(page.rows for page in pages)]
        changes = merge_states(schema, [state.filter(pa.array(removed)), *states])
        return LateChanges(changes, sum(log_rows.num_rows for log_rows in logs), places, partitions)

    def without_reread(self, state: pa.Table) -> pa.Table:
        """Return a state without the synthetic-time cells of rows that were reread."""
        if not self.places:
            return state
        unsure = np.flatnonzero(np.asarray(state["inexact"]))
        unsure_keys = state.select(["partition", "clustering"]).take(pa.array(unsure))
        keep = np.ones(state.num_rows, bool)
        keep[unsure] = [
            row_key not in self.places for row_key in places_of(unsure_keys["partition"], unsure_keys["clustering"])
        ]
        return state.filter(pa.array(keep))

    def find_doubtful_rows(self, state: pa.Table) -> set[Place]:
        """Return the rows of a merged state that deletions may have affected in a way that CQL does not report."""
        if not self.partitions:
            return set()
        unsure = state.filter(state["inexact"])
        keys = set(places_of(unsure["partition"], unsure["clustering"]))
        return {row_key for row_key in keys - self.places if row_key[0] in self.partitions}
