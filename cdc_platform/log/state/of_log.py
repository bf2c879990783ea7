"""Rows of a log as the rows of a state that they tell of: the inverse of `rows` for tables with full delta.

Columns are taken whole. What no native column holds (`exact`) is read value by value, in the columns that have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import ONE_US, SECOND_US
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import GREGORIAN, TIMEUUID
from cdc_platform.errors import InputError, StateError
from cdc_platform.lake.arrow import compute
from cdc_platform.log.log_values import canonical_values
from cdc_platform.log.rows import Operation
from cdc_platform.log.state.log_columns import LogColumns, at, lacking
from cdc_platform.log.state.merging import codes, together
from cdc_platform.log.state.shape import STATE, Kind
from cdc_platform.log.state.wire import composed, halves, uuid_bytes

_PARTITION_DELETES = (Operation.PARTITION_DELETE, Operation.SERVICE_PARTITION_DELETE)
_ROW_DELETES = (Operation.ROW_DELETE, Operation.SERVICE_ROW_DELETE)
_UPSERTS = (Operation.UPDATE, Operation.INSERT)
_STARTS = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE)
_ENDS = (Operation.RANGE_END_INCLUSIVE, Operation.RANGE_END_EXCLUSIVE)


def assert_full_delta(schema: TableSchema) -> None:
    """Hold that a table's log tells values, not keys alone; raises StateError."""
    if schema.cdc.delta != "full":
        raise StateError(
            f"{schema.full_name} logs keys alone (delta 'keys'); only a log with full delta can be replayed"
        )


def state_of_log(schema: TableSchema, log: pa.Table, keys: pa.Array | None = None) -> pa.Table:
    """The rows of a state (`shape.STATE`), not merged, that rows of the Delta table of a log, in any order, tell of.

    Cells, markers and tombstones have the timestamps and TTLs that they were written with; images are passed over.
    What the rows lack of the columns of `schema` counts as null. `keys`: their `partition_keys`, where those are known.

    Raises:
        StateError: the log holds keys alone.
        InputError: a row is none of a log, or a batch is not complete.
    """
    assert_full_delta(schema)
    return _Log(schema, log, keys).state()


def partition_keys(schema: TableSchema, log: pa.Table) -> pa.Array:
    """The serialized partition keys (binary) of rows of the Delta table of a log, whatever forms its values have.

    Raises:
        InputError: a value is null, or none of its type.
    """
    return LogColumns(schema, log).partition_keys()


class _Log(LogColumns):
    """Rows of a log with what is told of each beside its columns: its batch, time and keys."""

    def __init__(self, schema: TableSchema, log: pa.Table, keys: pa.Array | None) -> None:
        super().__init__(schema, log)
        self._operations = self.present("cdc$operation").astype(np.int64)
        if wrong := set(np.unique(self._operations).tolist()) - {*Operation}:
            raise InputError(
                f"operation {min(wrong)} of a log row is out of bounds; operations that can be replayed are 0 to 9, -3"
                " and -4"
            )
        texts = self.values("cdc$time")
        if texts is None or texts.null_count:
            raise lacking("cdc$time")
        self._batches = self._complete_batches(texts)
        self._timestamps = _times_of(texts)
        ttl = self.values("cdc$ttl")
        self._ttls = np.zeros(self.size, np.int64) if ttl is None else _integers(ttl)
        self._partition = self.partition_keys() if keys is None else keys
        self._keys = [self.wire(column.name) for column in schema.clustering_key]
        self._depth = self._key_depth()

    def state(self) -> pa.Table:
        """All that the rows tell of."""
        schema, operations = self.schema, self._operations
        whole = self._depth == len(schema.clustering_key)
        upserts = np.isin(operations, _UPSERTS)
        self._clustering = self._clustering_keys(whole)
        inserted = np.flatnonzero((operations == Operation.INSERT) & whole)
        parts = [
            self._tombstones(Kind.PARTITION_TOMBSTONE, np.flatnonzero(np.isin(operations, _PARTITION_DELETES))),
            self._tombstones(Kind.ROW_TOMBSTONE, np.flatnonzero(np.isin(operations, _ROW_DELETES) & whole)),
            self._part(Kind.MARKER, inserted, ttl=self._ttls[inserted]),
            pa.Table.from_pylist(list(self._ranges()), schema=STATE),
        ]
        for columns, chosen in ((schema.statics, upserts & ~whole), (schema.regulars, upserts & whole)):
            for column in columns:
                parts += self._cells(column, chosen)
        return pa.concat_tables(parts)

    def _key_depth(self) -> np.ndarray:
        """How many clustering columns of each row have a value, up to the first that is null."""
        depth = np.zeros(self.size, np.int64)
        for place, wire in enumerate(self._keys):
            there = np.zeros(self.size, dtype=bool)
            there[wire.rows] = True
            depth += there & (depth == place)
        return depth

    def _clustering_keys(self, whole: np.ndarray) -> pa.Array:
        """The clustering key of each row; null of those that have not all of it."""
        rows = np.flatnonzero(whole)
        parts = [at(wire, rows) for wire in self._keys]
        keys = composed(parts, len(rows))
        if len(rows) == self.size:
            return keys
        places = np.full(self.size, -1, dtype=np.int64)
        places[rows] = np.arange(len(rows))
        return keys.take(pa.array(places, mask=places < 0))

    def _complete_batches(self, texts: Any) -> np.ndarray:
        """The batch of each row (int64), whose rows are held to be all there."""
        streams = self.values("cdc$stream_id")
        of_stream = np.zeros(self.size, np.int64) if streams is None else codes(streams)
        batches = together([of_stream, codes(texts)])
        self._numbers = self.present("cdc$batch_seq_no").astype(np.int64)
        order = np.lexsort((self._numbers, batches))
        starts = np.flatnonzero(np.diff(batches[order], prepend=-1))
        lengths = np.diff(starts, append=self.size)
        due = np.arange(self.size) - np.repeat(starts, lengths)
        ends = self.values("cdc$end_of_batch")
        ended = np.zeros(self.size, bool) if ends is None else np.asarray(compute.fill_null(ends, False))
        wrong = np.flatnonzero(self._numbers[order] != due)
        open_ = np.flatnonzero(~ended[order][starts + lengths - 1])
        if len(wrong) or len(open_):
            place = order[wrong[0]] if len(wrong) else order[starts[open_[0]]]
            raise InputError(
                f"the batch of {texts[int(place)].as_py()} in the log of {self.schema.full_name} is not complete"
            )
        return batches

    def _tombstones(self, kind: Kind, rows: np.ndarray) -> pa.Table:
        return self._part(kind, rows, of_row=kind is Kind.ROW_TOMBSTONE)

    def _cells(self, column: Column, chosen: np.ndarray) -> Iterator[pa.Table]:
        deleted = self.true(f"cdc$deleted_{column.name}") & chosen
        if column.type.multicell:
            yield from self._collection(column, chosen, deleted)
            return
        gone = np.flatnonzero(deleted)
        yield self._part(Kind.CELL, gone, column=column.name, dead=True)
        wire = self.wire(column.name, chosen & ~deleted)
        yield self._part(Kind.CELL, wire.rows, column=column.name, ttl=self._ttls[wire.rows], value=wire.data)

    def _collection(self, column: Column, chosen: np.ndarray, deleted: np.ndarray) -> Iterator[pa.Table]:
        # The log shows the tombstone of a collection one microsecond late.
        yield self._part(Kind.COLLECTION_TOMBSTONE, np.flatnonzero(deleted), column=column.name, shift=-ONE_US)
        rows, paths = self.deleted_elements(column, chosen)
        yield self._part(Kind.CELL, rows, column=column.name, path=paths, dead=True)
        for rows, paths, values in self.live_elements(column, chosen):
            yield self._part(Kind.CELL, rows, column=column.name, path=paths, ttl=self._ttls[rows], value=values)

    def _part(
        self,
        kind: Kind,
        rows: np.ndarray,
        *,
        of_row: bool = True,
        column: str | None = None,
        path: pa.Array | None = None,
        ttl: np.ndarray | None = None,
        value: pa.Array | None = None,
        dead: bool = False,
        shift: int = 0,
    ) -> pa.Table:
        """Rows of one kind of a state, from rows (int64) of the log."""
        size = len(rows)
        if not size:
            return STATE.empty_table()
        taken = pa.array(rows)
        timestamps = self._timestamps[rows] + shift
        ttls = np.zeros(size, np.int64) if ttl is None else ttl
        found = {
            "partition": self._partition.take(taken),
            "clustering": self._clustering.take(taken) if of_row else pa.nulls(size, pa.binary()),
            "kind": pa.array(np.full(size, kind, dtype=np.int8)),
            "column": pa.nulls(size, pa.string()) if column is None else pa.repeat(column, size),
            "path": pa.nulls(size, pa.binary()) if path is None else path,
            "timestamp": pa.array(timestamps),
            "ttl": pa.array(ttls),
            "expires": pa.array(np.where(ttls > 0, timestamps + ttls * SECOND_US, 0)),
            "dead": pa.array(np.full(size, dead)),
            "value": pa.nulls(size, pa.binary()) if value is None else value,
            "inexact": pa.array(np.zeros(size, dtype=bool)),
        }
        return pa.table(found, schema=STATE)

    def _ranges(self) -> Iterator[dict[str, Any]]:
        """The range tombstones: an end belongs to the start right before it in its batch, if there is one."""
        rows = np.flatnonzero(np.isin(self._operations, (*_STARTS, *_ENDS)))
        if not len(rows):
            return
        rows = rows[np.lexsort((self._numbers[rows], self._batches[rows]))]
        prefixes = self._prefixes(rows)
        batches, operations = self._batches[rows].tolist(), self._operations[rows].tolist()
        begun: int | None = None
        for place, operation in enumerate(operations):
            if begun is not None and (batches[begun] != batches[place] or operation in _STARTS):
                yield from self._range(rows[begun], operations[begun], prefixes[begun], None)
                begun = None
            if operation in _STARTS:
                begun = place
                continue
            start = None if begun is None else (operations[begun], prefixes[begun])
            yield from self._range(rows[place], operation, prefixes[place], start)
            begun = None
        if begun is not None:
            yield from self._range(rows[begun], operations[begun], prefixes[begun], None)

    def _range(
        self, row: int, operation: int, prefix: list[bytes], start: tuple[int, list[bytes]] | None
    ) -> Iterator[dict[str, Any]]:
        """The range of one row of the log, or of two."""
        edges = {operation in _ENDS: _edge(operation, prefix)}
        if start is not None:
            edges[False] = _edge(*start)
        elif not prefix and operation in _STARTS:
            # A start without a bound tells nothing without its end.
            return
        else:
            # Where one bound alone is told, the other is where the columns before its last one change.
            edges[operation not in _ENDS] = _joined(prefix[:-1]) + bytes([operation in _STARTS])
        yield {
            "partition": self._partition[int(row)].as_py(),
            "clustering": edges[False],
            "kind": int(Kind.RANGE_TOMBSTONE),
            "path": edges[True],
            "timestamp": int(self._timestamps[row]),
            "ttl": 0,
            "expires": 0,
            "dead": False,
            "inexact": False,
        }

    def _prefixes(self, rows: np.ndarray) -> list[list[bytes]]:
        """Of some rows, the bytes of the clustering columns up to the first that is null."""
        found: list[list[bytes]] = [[] for _ in rows]
        for place, wire in enumerate(self._keys):
            deep = np.flatnonzero(self._depth[rows] > place)
            for row, data in zip(deep.tolist(), at(wire, rows[deep]).to_pylist(), strict=True):
                found[row].append(data)
        return found


def _edge(operation: int, prefix: list[bytes]) -> bytes:
    behind = operation in (Operation.RANGE_START_EXCLUSIVE, Operation.RANGE_END_INCLUSIVE)
    if not prefix:
        behind = operation in _ENDS
    return _joined(prefix) + bytes([behind])


def _joined(prefix: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in prefix)


def _times_of(texts: Any) -> np.ndarray:
    """The times (int64, µs) of timeuuids in text."""
    try:
        uuids = uuid_bytes(texts)
    except ValueError:
        canonical_values(TIMEUUID, texts)
        raise
    return (halves(uuids)[0] - GREGORIAN) // 10


def _integers(values: Any) -> np.ndarray:
    return np.asarray(compute.fill_null(values, 0).cast(pa.int64()))
