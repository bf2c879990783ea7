"""Update a replica from a log that has only keys: read the rows that the log names from the base table.

A log with `'delta': 'keys'` names each row that was written and each deletion, without values. Post-images do not make
up for that: ScyllaDB computes one from the row as it was read before the write, so of two concurrent writes to a row
neither has the other's values, and none has write times or TTLs (cdc/log.cc, `generate_image`, `pre_image_select`).

A row that is read again replaces everything that the state has of it. It is as new as the log or newer, and a write
after the reading has a log row of its own, which the next update reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import (
    STATE_SCHEMA,
    LogBatches,
    Operation,
    StateRowKind,
    join_components,
    merge_states,
)
from cdc_platform.clock import ONE_US, SECOND_US, Microseconds
from cdc_platform.cql import TableSchema
from cdc_platform.delta import compute
from cdc_platform.ingest.replica.reread import Place, place_order, places_of, send_key_request, send_partition_request
from cdc_platform.ingest.replica.snapshot import SyntheticTimestamps, seen, selection
from cdc_platform.ingest.requests import Pages, start_requests
from cdc_platform.scylla import RawPage, ScyllaSession

FEWEST_ROWS_FOR_COPY = 1_000
COPY_SHARE = 0.02
"""If more rows than these, and than this share of the table, are to be read one by one, a copy is faster.

With four requests in flight, reading a row by its key took 60 times as long as in a scan.
"""
_UPSERTS = (Operation.UPDATE, Operation.INSERT)
_ROW_DELETES = (Operation.ROW_DELETE, Operation.SERVICE_ROW_DELETE)
_IMAGES = (Operation.PRE_IMAGE, Operation.POST_IMAGE)


@dataclass(frozen=True)
class ChangedKeys:
    """The rows that log rows name, each with its last possible expiry (µs; 0: never), and partitions to read whole.

    A partition is read whole if a range of its rows, or the partition itself, was deleted. They come from `log_rows`
    rows of the log, up to its version `log_version`.
    """

    expiries: Mapping[Place, int]
    partitions: frozenset[bytes]
    log_rows: int
    log_version: int

    @classmethod
    def find(cls, schema: TableSchema, logs: Sequence[pa.Table], log_version: int) -> ChangedKeys:
        """Return what rows of a log (any number of tables) name.

        Raises:
            InputError: a row is not a valid log row, or a batch is incomplete.
        """
        if not any(rows.num_rows for rows in logs):
            return cls({}, frozenset(), 0, log_version)
        log = LogBatches(schema, pa.concat_tables(logs, promote_options="default"))
        of_row = np.isin(log.operations, _UPSERTS) | np.isin(log.operations, _ROW_DELETES) & log.has_full_key
        wholes = ~of_row & ~np.isin(log.operations, _IMAGES)
        partitions = frozenset(log.partition.filter(pa.array(wholes)).to_pylist())
        ends = np.where(log.ttls > 0, log.timestamps + log.ttls * SECOND_US, 0)[of_row]
        chosen = pa.array(of_row)
        expiries: dict[Place, int] = {}
        keys = places_of(log.partition.filter(chosen), log.clustering_keys().filter(chosen))
        for place, end in zip(keys, ends.tolist(), strict=True):
            expiries[place] = max(end, expiries.get(place, 0))
        return cls(expiries, partitions, log.size, log_version)

    @property
    def size(self) -> int:
        """The number of rows and whole partitions."""
        return len(self.expiries) + len(self.partitions)

    def exceeds_copy(self, rows: int) -> bool:
        """Return True if a copy of a table of so many rows is faster than reading the rows that changed."""
        return self.size > max(FEWEST_ROWS_FOR_COPY, rows * COPY_SHARE)


@dataclass(frozen=True)
class RereadRows:
    """What the base table has of changed rows: `state` (`STATE_SCHEMA`) replaces what a replica has of `keys`.

    What has no write time in it has the time of reading `read_us` (µs).
    """

    schema: TableSchema
    keys: ChangedKeys
    state: pa.Table
    read_us: Microseconds

    @staticmethod
    def read(
        live: ScyllaSession, schema: TableSchema, keys: ChangedKeys, now_us: Microseconds, concurrency: int
    ) -> RereadRows:
        """Read changed rows from the base table; what has no write time gets the time of reading `now_us` (µs).

        Raises:
            NotGranted, Unreachable: the table could not be read.
        """
        timestamps, columns = SyntheticTimestamps(now_us, now_us), selection(schema)
        rows = sorted((place for place in keys.expiries if place[0] not in keys.partitions), key=place_order)

        def send_row(place: Place, _: int, paging_state: bytes | None) -> Pages:
            return send_key_request(live, schema, place, columns, paging_state)

        def send_partition(partition: bytes, attempt: int, paging_state: bytes | None) -> Pages:
            return send_partition_request(live, schema, partition, columns, attempt, paging_state)

        def states() -> Iterator[pa.Table]:
            for place, pages in start_requests(rows, send_row, concurrency):
                if _has_rows(pages):
                    state = seen(schema, pages, timestamps)
                    # A row comes with its static row, and a static row with a row of its partition.
                    is_static = compute.is_null(state["clustering"])
                    yield state.filter(is_static if place[1] is None else compute.invert(is_static))
            for _, pages in start_requests(sorted(keys.partitions), send_partition, concurrency):
                if _has_rows(pages):
                    yield seen(schema, pages, timestamps)

        state = merge_states(schema, states())
        ends = {place: end for place, end in keys.expiries.items() if end}
        return RereadRows(schema, keys, _with_expiries(schema, state, ends, now_us), now_us)

    @cached_property
    def places(self) -> pa.Table:
        """The keys of the rows and partitions, with the columns of a state that locate a change."""
        keys = [*self.keys.expiries, *((partition, None) for partition in sorted(self.keys.partitions))]
        return pa.table(
            {
                "partition": pa.array([partition for partition, _ in keys], pa.binary()),
                "clustering": pa.array([clustering for _, clustering in keys], pa.binary()),
                "kind": pa.array(np.full(len(keys), StateRowKind.CELL, np.int8)),
            }
        )

    def remove_from(self, state: pa.Table) -> pa.Table:
        """Return a state without what it has of the rows."""
        return state.filter(compute.invert(pa.array(self._replaces(state)))) if self.places.num_rows else state

    def extend_expiries(self, changes: pa.Table, before: pa.Table, as_of_us: Microseconds) -> pa.Table:
        """Return rows of `state` with the expiries of a state before, as far as they are later than `as_of_us` (µs)."""
        if not self.places.num_rows or not before.num_rows:
            return changes
        pending = before.filter(pa.array(_carry_expiry(before) & (np.asarray(before["expires"]) > as_of_us)))
        pending = pending.filter(pa.array(self._replaces(pending)))
        if not pending.num_rows:
            return changes
        ends: dict[Place, int] = {}
        places = places_of(pending["partition"], pending["clustering"])
        for place, end in zip(places, pending["expires"].to_pylist(), strict=True):
            ends[place] = max(end, ends.get(place, 0))
        return _with_expiries(self.schema, changes, ends, self.read_us)

    def _replaces(self, state: pa.Table) -> np.ndarray:
        """Return which rows (bool) of a state belong to the rows that were read."""
        whole = compute.is_in(state["partition"], value_set=pa.array(sorted(self.keys.partitions), pa.binary()))
        return np.asarray(compute.or_(whole, compute.is_in(_joined(state), value_set=_joined(self.places))))


def _has_rows(pages: Iterable[RawPage]) -> bool:
    return any(page.rows for page in pages)


def _joined(state: pa.Table) -> pa.Array:
    """Return a row's keys as one value; a static row's differs from that of every row."""
    partition, clustering = (state[name].combine_chunks() for name in ("partition", "clustering"))
    is_static = pa.array(np.where(np.asarray(clustering.is_null()), b"\1", b"\0"), pa.binary())
    return join_components([partition, compute.fill_null(clustering, b""), is_static], state.num_rows)


def _carry_expiry(state: pa.Table) -> np.ndarray:
    """Return which rows (bool) of a state carry the time at which unreported TTLs of their row have passed.

    For a row that is its marker, and for a static row the tombstones of its collections.
    """
    kinds, of_static = np.asarray(state["kind"]), np.asarray(compute.is_null(state["clustering"]))
    carriers = (kinds == StateRowKind.MARKER) | (kinds == StateRowKind.COLLECTION_TOMBSTONE) & of_static
    return carriers & np.asarray(state["inexact"])


def _with_expiries(schema: TableSchema, state: pa.Table, ends: Mapping[Place, int], read_us: Microseconds) -> pa.Table:
    """Return a merged state in which rows carry at least the expiries in `ends` (µs)."""
    if not ends or not state.num_rows:
        return state
    state = merge_states(schema, [state, _static_carriers(schema, state, ends, read_us)])
    carriers = _carry_expiry(state)
    chosen = state.filter(pa.array(carriers))
    later = [ends.get(place, 0) for place in places_of(chosen["partition"], chosen["clustering"])]
    expires = np.asarray(state["expires"]).copy()
    expires[carriers] = np.maximum(expires[carriers], np.array(later, np.int64))
    return state.set_column(state.schema.get_field_index("expires"), STATE_SCHEMA.field("expires"), pa.array(expires))


def _static_carriers(
    schema: TableSchema, state: pa.Table, ends: Mapping[Place, int], read_us: Microseconds
) -> pa.Table:
    """Return the tombstones that carry the expiries of static rows: one for each collection that has elements."""
    names = pa.array([column.name for column in schema.statics if column.type.multicell], pa.string())
    of_static = compute.and_(compute.is_null(state["clustering"]), compute.is_in(state["column"], value_set=names))
    cells = state.filter(of_static).select(["partition", "column"]).group_by(["partition", "column"]).aggregate([])
    nothing: dict[str, Any] = {"clustering": None, "path": None, "value": None, "ttl": 0, "expires": 0, "dead": False}
    kind = {"kind": int(StateRowKind.COLLECTION_TOMBSTONE), "timestamp": read_us - ONE_US, "inexact": True}
    rows = [row | nothing | kind for row in cells.to_pylist() if (row["partition"], None) in ends]
    return pa.Table.from_pylist(rows, schema=STATE_SCHEMA)
