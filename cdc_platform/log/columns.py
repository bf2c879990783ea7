"""Typed writes as log rows, a batch of columns at a time: the rules of `split` and `rows` for writes of one row each.

It works on Arrow columns of `log_table.writes_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cql.schema import MAX_TTL, Column, TableSchema
from cdc_platform.cql.timeuuid import FIRST_US, LAST_US, high_half, low_half
from cdc_platform.cql.types import GREGORIAN, UserType
from cdc_platform.errors import InputError
from cdc_platform.lake.arrow import compute, uuid_texts
from cdc_platform.lake.tables import TIMESTAMP
from cdc_platform.log.fingerprint import Hashes, fingerprints, hashes
from cdc_platform.log.key_bytes import key_bytes
from cdc_platform.log.log_table import end_column, log_table, range_columns
from cdc_platform.log.rows import Operation
from cdc_platform.log.stored_names import WRITTEN_AT, stored
from cdc_platform.log.typed_ranges import ranges_of
from cdc_platform.log.typed_values import refuse_wrong_keys, refuse_wrong_values
from cdc_platform.timeline import StreamsOf

_SIGNS = np.uint64(0x8080808080808080)


class Piece:
    """The log rows that one write can have, in their order; `NONE` is no row.

    They are plain numbers: numpy takes a member of an enum for one of eight bytes, and widens what it is held against.
    """

    NONE = -1
    STATIC = 0
    STATIC_EXPIRING = 1
    INSERT = 2
    UPDATE = 3
    UPDATE_EXPIRING = 4
    DELETE = 5
    RANGE_START = 6
    RANGE_END = 7
    COUNT = 8


@dataclass(frozen=True)
class _Written:
    """What the writes of a batch do to one column: in which piece its value goes, and in which its deletions."""

    column: Column
    value: pa.Array
    deleted: pa.Array
    elements: pa.Array | None
    live: np.ndarray
    gone: np.ndarray


def log_batch(schema: TableSchema, writes: pa.RecordBatch, streams_of: StreamsOf) -> pa.RecordBatch:
    """The log rows of a batch of typed writes, in the columns of the log's Delta table.

    Rows of one write stand together, in the order of `cdc$batch_seq_no`. The low half of `cdc$time` is a hash of all
    that is written, so that the same writes always have the same rows; of several writes to a partition at one time
    the hashes are put into the order of the batch.

    Raises:
        InputError: a write is none that the table can have, or no generation operates at its time.
    """
    batch, _, streams, low = _checked(stored(schema), writes, streams_of)
    return batch.log(streams, _timeuuids(batch.timestamps, low))


def checked_batch(
    schema: TableSchema, writes: pa.RecordBatch, streams_of: StreamsOf
) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Hold that all writes of a batch are ones that the table can have: see `log_batch`.

    Returns of each its serialized partition key (binary), its stream (binary) and the low half of its `cdc$time`
    (uint64).
    """
    _, keys, streams, low = _checked(stored(schema), writes, streams_of)
    return keys, streams, low


def _checked(
    schema: TableSchema, writes: pa.RecordBatch, streams_of: StreamsOf
) -> tuple[_Batch, pa.Array, pa.Array, np.ndarray]:
    columns = dict(zip(writes.schema.names, writes.columns, strict=True))
    batch = _Batch(schema, columns, len(writes))
    keys = key_bytes(schema, [columns[key.name] for key in schema.partition_key])
    refuse_wrong_keys(schema, keys)
    streams = streams_of(keys, columns["timestamp"])
    if streams.null_count:
        raise InputError(f"{streams.null_count} writes have a timestamp at which no known generation operates")
    hashed = hashes(keys)
    low = low_half(_identities(schema, hashed, columns, len(writes)))
    low = _in_order(fingerprints([hashed, columns["timestamp"]], len(writes)), low)
    return batch, keys, streams, low


def _identities(schema: TableSchema, keys: Hashes, columns: Mapping[str, pa.Array], rows: int) -> np.ndarray:
    """A hash (uint64) of each write; the ends of ranges count for writes that have them alone."""
    of_ranges = {name: columns[name] for name in range_columns(schema) if name in columns}
    found = fingerprints([keys, *(values for name, values in columns.items() if name not in of_ranges)], rows)
    if all(values.null_count == rows for values in of_ranges.values()):
        return found
    ended = _any([_valid(values) for values in of_ranges.values()], rows)
    return np.where(ended, fingerprints([pa.array(found), *of_ranges.values()], rows), found)


def _in_order(writes: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Low halves (uint64) that ascend, as timeuuids do, by place in the batch among the rows that are one in `writes`.

    Writes to one partition at one time would else be in no order, and the same one twice would be one.
    """
    # Most have no other one: those whose last bits are theirs alone are not sorted.
    bits = (writes & np.uint64((16 << len(writes).bit_length()) - 1)).view(np.int64)
    maybe = np.flatnonzero(np.bincount(bits).take(bits) > 1)
    order = maybe[np.argsort(writes[maybe], kind="stable")]
    ascending = writes[order]
    if not np.any(ascending[1:] == ascending[:-1]):
        return low
    starts = np.flatnonzero(np.diff(ascending, prepend=~ascending[:1]))
    low = low.copy()
    for begin, end in zip(starts, np.append(starts[1:], len(order)), strict=True):
        if end - begin > 1:
            group = order[begin:end]
            # Timeuuids compare these bytes as signed ones.
            places = np.arange(len(group), dtype=np.uint64)
            ranked = np.maximum(np.sort(low[group] ^ _SIGNS), places)
            low[group] = (np.maximum.accumulate(ranked - places) + places) ^ _SIGNS
    return low


class _Batch:
    """A batch of typed writes, of which each is taken apart into its pieces."""

    def __init__(self, schema: TableSchema, columns: Mapping[str, pa.Array], rows: int) -> None:
        self._schema = schema
        self._columns = columns
        self._rows = rows
        self.timestamps = _integers(columns["timestamp"])
        self._operations = _integers(columns["operation"])
        self._ttls = _integers(columns["ttl"], schema.default_ttl)
        self._check()
        self._ranges = ranges_of(schema, columns, self._operations)
        self._expiring = self._ttls > 0
        self._inserted = self._operations == Operation.INSERT
        self._written = self._places()
        self._check_kinds()

    def log(self, streams: pa.Array, times: pa.Array) -> pa.RecordBatch:
        """The log rows, given the stream (binary) and `cdc$time` (text) of each write."""
        source, piece = self._pieces()
        firsts = np.flatnonzero(np.diff(source, prepend=-1))
        numbers = np.arange(len(source)) - np.repeat(firsts, np.diff(firsts, append=len(source)))
        last = np.diff(source, append=-1) != 0
        same = np.array_equal(source, np.arange(self._rows))
        keep, rows = (None, slice(None)) if same else (pa.array(source), source)
        expiring = _one_of(piece, Piece.STATIC_EXPIRING, Piece.UPDATE_EXPIRING)
        expiring |= (piece == Piece.INSERT) & self._expiring[rows]
        found = {
            "cdc$stream_id": _taken(streams, keep),
            "cdc$time": _taken(times, keep),
            "cdc$batch_seq_no": pa.array(numbers.astype(np.int32)),
            "cdc$operation": pa.array(self._shown_operations(source, piece)),
            "cdc$ttl": pa.array(self._ttls[rows], mask=~expiring),
            "cdc$end_of_batch": pa.array(last, mask=~last),
            WRITTEN_AT: pa.array(self.timestamps[rows]).cast(TIMESTAMP),
        }
        for key in self._schema.partition_key:
            found[key.name] = _taken(self._columns[key.name], keep)
        keyed = piece >= Piece.INSERT
        for key in self._schema.clustering_key:
            found[key.name] = _where(keyed, self._clustering(key.name, piece, keep))
        # No column is written to in the piece of a deletion, so that there none is shown.
        told = piece if self._schema.cdc.delta == "full" else np.full_like(piece, Piece.DELETE)
        for written in self._written:
            found |= _shown(written, rows, told, keep)
        fields = log_table(self._schema).schema
        return pa.RecordBatch.from_arrays([found[field.name].cast(field.type) for field in fields], schema=fields)

    def _clustering(self, name: str, piece: np.ndarray, keep: pa.Array | None) -> pa.Array:
        """A clustering column of each log row, at the end of a range the one that it ends with."""
        values, ends = _taken(self._columns[name], keep), self._columns.get(end_column(name))
        ended = piece == Piece.RANGE_END
        if not ended.any():
            return values
        told = pa.nulls(len(piece), values.type) if ends is None else _taken(ends, keep)
        return compute.if_else(pa.array(ended), told, values)

    def _check(self) -> None:
        always = ["operation", "timestamp", *(key.name for key in self._schema.partition_key)]
        for name in always:
            if self._columns[name].null_count:
                raise InputError(f"{self._columns[name].null_count} writes have no {name}; every write has one")
        _refuse((self._operations < 1) | (self._operations > 6), self._operations, "operation", "1 to 6")
        _refuse(
            (self.timestamps < FIRST_US) | (self.timestamps > LAST_US), self.timestamps, "timestamp", "1582 to 5236"
        )
        _refuse((self._ttls < 0) | (self._ttls > MAX_TTL), self._ttls, "ttl", f"0 to {MAX_TTL} seconds, 20 years")
        refuse_wrong_values(self._schema, self._columns)
        if not self._schema.clustering_key and np.any(self._operations == Operation.ROW_DELETE):
            raise InputError(f"{self._schema.full_name} has no clustering column; operation 4 deletes its rows, not 3")

    def _check_kinds(self) -> None:
        """Hold keys and columns against the operation."""
        deletes = self._operations >= Operation.ROW_DELETE
        places = [each for written in self._written for each in (written.live, written.gone)]
        touched = np.any([place != Piece.NONE for place in places], axis=0) if places else np.zeros(self._rows, bool)
        if np.any(touched & deletes):
            raise InputError(f"{np.count_nonzero(touched & deletes)} deletions (operation 3 to 6) also write a column")
        clustered = (
            np.any([place >= Piece.INSERT for place in places], axis=0) if places else np.zeros(self._rows, bool)
        )
        needed = clustered | self._inserted | (self._operations == Operation.ROW_DELETE)
        for key in self._schema.clustering_key:
            missing = needed & ~_valid(self._columns[key.name])
            if missing.any():
                raise InputError(
                    f"{np.count_nonzero(missing)} writes to a row have no {key.name}; it is a clustering column"
                )

    def _places(self) -> list[_Written]:
        """Every column with the pieces that its values and deletions go to; see `split` for why."""
        schema = self._schema
        static = [self._parts(column) for column in schema.statics]
        regular = [self._parts(column) for column in schema.regulars]
        # Of rows with a marker: whether the whole mutation is taken apart, so that elements alone leave the insert.
        apart = _any([live | gone for _, live, gone, _ in static], self._rows)
        apart |= _any([live for column, live, _, _ in regular if column.type.multicell], self._rows)
        apart |= self._expiring & _any([gone for _, _, gone, _ in regular], self._rows)
        placed = []
        for column, live, gone, _ in static:
            expiring = _either(self._expiring, Piece.STATIC_EXPIRING, Piece.STATIC)
            placed.append(self._written_to(column, live, gone, expiring, Piece.STATIC))
        update = _either(self._expiring, Piece.UPDATE_EXPIRING, Piece.UPDATE)
        for column, live, gone, overwritten in regular:
            with_marker = self._inserted & ~(apart & ~overwritten) if column.type.multicell else self._inserted
            live_in = with_marker & ~(self._expiring & column.type.multicell)
            live_piece = _either(live_in, Piece.INSERT, update)
            gone_piece = _either(with_marker & ~self._expiring, Piece.INSERT, Piece.UPDATE)
            placed.append(self._written_to(column, live, gone, live_piece, gone_piece))
        return placed

    def _parts(self, column: Column) -> tuple[Column, np.ndarray, np.ndarray, np.ndarray]:
        """Of a column in every write: something alive, something dead, the tombstone of a whole collection."""
        value, deleted, elements = self._arrays(column)
        overwritten = _true(deleted)
        if not column.type.multicell:
            live = _valid(value)
            if np.any(live & overwritten):
                raise InputError(f"{np.count_nonzero(live & overwritten)} writes both set {column.name} and delete it")
            return column, live, overwritten, overwritten
        return column, _filled(column, value), overwritten | _filled_list(elements), overwritten

    def _arrays(self, column: Column) -> tuple[pa.Array, pa.Array, pa.Array | None]:
        value, deleted = self._columns[column.name], self._columns[f"cdc$deleted_{column.name}"]
        return value, deleted, self._columns.get(f"cdc$deleted_elements_{column.name}")

    def _written_to(
        self,
        column: Column,
        live: np.ndarray,
        gone: np.ndarray,
        live_piece: np.ndarray,
        gone_piece: np.ndarray | int,
    ) -> _Written:
        value, deleted, elements = self._arrays(column)
        places = (_either(there, piece, Piece.NONE) for there, piece in ((live, live_piece), (gone, gone_piece)))
        return _Written(column, value, deleted, elements, *places)

    def _pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """Of every log row its write (int64), ascending, and its piece (int8), ascending in each write."""
        exists = np.zeros((Piece.COUNT, self._rows), dtype=bool)
        exists[Piece.INSERT] = self._inserted
        exists[Piece.DELETE] = _one_of(self._operations, Operation.ROW_DELETE, Operation.PARTITION_DELETE)
        exists[Piece.RANGE_START] = self._ranges.told_start
        exists[Piece.RANGE_END] = self._ranges.told_end
        for written in self._written:
            for place in (written.live, written.gone):
                for piece in range(place.min(initial=Piece.DELETE), place.max(initial=Piece.NONE) + 1):
                    if piece != Piece.NONE:
                        exists[piece] |= place == piece
        source, piece = np.nonzero(np.ascontiguousarray(exists.T))
        return source, piece.astype(np.int8)

    def _shown_operations(self, source: np.ndarray, piece: np.ndarray) -> np.ndarray:
        shown = _either(piece == Piece.INSERT, Operation.INSERT, Operation.UPDATE)
        if np.any(piece >= Piece.DELETE):
            shown = np.where(_one_of(piece, Piece.DELETE, Piece.RANGE_START), self._operations[source], shown)
            shown = np.where(piece == Piece.RANGE_END, self._ranges.ends[source], shown).astype(np.int8)
        return shown


def _shown(
    written: _Written, rows: np.ndarray | slice, piece: np.ndarray, keep: pa.Array | None
) -> dict[str, pa.Array]:
    """The two or three columns of the log that a column has."""
    name = written.column.name
    live = written.live[rows] == piece
    gone = written.gone[rows] == piece
    value = _taken(written.value, keep)
    if written.column.type.multicell and isinstance(written.column.type, UserType):
        value = _fields(value, live, live | gone)
    else:
        value = _where(live, value)
    shown = {
        name: value,
        f"cdc$deleted_{name}": _where(gone & _true(_taken(written.deleted, keep)), _taken(written.deleted, keep)),
    }
    if written.elements is not None:
        elements = _taken(written.elements, keep)
        shown[f"cdc$deleted_elements_{name}"] = _where(gone & _filled_list(elements), elements)
    return shown


def _fields(value: Any, live: np.ndarray, touched: np.ndarray) -> pa.Array:
    """A user type's fields: those that are alive, and a value without any where all that happened are deletions."""
    fields = [_where(live, part) for part in value.flatten()]
    return pa.StructArray.from_arrays(fields, fields=list(value.type), mask=pa.array(~touched))


def _taken(column: pa.Array, keep: pa.Array | None) -> pa.Array:
    return column if keep is None else column.take(keep)


def _where(chosen: np.ndarray, column: pa.Array) -> pa.Array:
    """The column, null where it is not chosen."""
    if chosen.all():
        return column
    if not chosen.any():
        return pa.nulls(len(column), column.type)
    if pat.is_nested(column.type):
        return column.take(pa.array(np.arange(len(column)), mask=~chosen))
    return compute.if_else(pa.array(chosen), column, pa.scalar(None, column.type))


def _valid(column: pa.Array) -> np.ndarray:
    if column.null_count in (0, len(column)):
        return np.full(len(column), column.null_count == 0)
    return np.asarray(compute.is_valid(column))


def _true(column: pa.Array) -> np.ndarray:
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=bool)
    return np.asarray(compute.fill_null(column, False))


def _filled(column: Column, value: Any) -> np.ndarray:
    """Where a collection has an element, or a user type a field that is not null."""
    if isinstance(column.type, UserType):
        return _any([_valid(part) for part in value.flatten()], len(value))
    return _filled_list(value)


def _filled_list(value: Any) -> np.ndarray:
    if value.null_count == len(value):
        return np.zeros(len(value), dtype=bool)
    return _valid(value) & (np.diff(np.asarray(value.offsets, dtype=np.int64)) > 0)


def _either(chosen: np.ndarray, there: np.ndarray | int, else_: np.ndarray | int) -> np.ndarray:
    """Pieces or operations (int8): one where it is chosen, and the other where not."""
    return np.where(chosen, np.asarray(there, dtype=np.int8), np.asarray(else_, dtype=np.int8))


def _one_of(numbers: np.ndarray, first: int, second: int) -> np.ndarray:
    return (numbers == first) | (numbers == second)


def _any(masks: list[np.ndarray], rows: int) -> np.ndarray:
    return np.any(masks, axis=0) if masks else np.zeros(rows, dtype=bool)


def _integers(column: pa.Array, missing: int = 0) -> np.ndarray:
    filled = compute.fill_null(column, missing) if column.null_count else column
    return np.asarray(filled.cast(pa.int64()))


def _refuse(wrong: np.ndarray, values: np.ndarray, name: str, rule: str) -> None:
    if wrong.any():
        raise InputError(
            f"{name} {values[wrong][0]} of {np.count_nonzero(wrong)} writes is out of bounds; it is {rule}"
        )


def _timeuuids(timestamps: np.ndarray, low: np.ndarray) -> pa.Array:
    """Version 1 UUIDs as text, of times (int64, µs) and low halves (uint64)."""
    ticks = (timestamps * 10 + GREGORIAN).astype(np.uint64)
    words = np.empty((len(ticks), 2), dtype=">u8")
    words[:, 0] = high_half(ticks)
    words[:, 1] = low
    return uuid_texts(words.view(np.uint8).reshape(-1, 16))
