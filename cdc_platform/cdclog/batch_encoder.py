"""Validate typed writes and encode them as log rows, a batch of Arrow columns at a time.

Applies the rules of `encoder` to writes of one row each, in the columns of `schema.typed_writes_schema`. Texts are
parsed one by one only if they are not in canonical form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cdclog.column_codec import encode_column, encode_partition_keys, rank_values
from cdc_platform.cdclog.encoder import Operation
from cdc_platform.cdclog.fingerprint import Hashes, fingerprint_rows, hash_column
from cdc_platform.cdclog.schema import (
    RANGE_END,
    WRITTEN_AT,
    log_table,
    range_end_column,
    range_end_columns,
    with_stored_names,
)
from cdc_platform.cdclog.values import FIRST_DAY, FIRST_MS, LAST_DAY, LAST_MS, TEXT_PARSERS
from cdc_platform.clock import DAY_NS, MILLISECOND_US, us_from_ms
from cdc_platform.cql import (
    GREGORIAN_OFFSET,
    MAX_TIMEUUID_US,
    MAX_WRITE_TTL,
    MIN_TIMEUUID_US,
    Column,
    CqlType,
    ListType,
    MapType,
    ScalarType,
    SetType,
    TableSchema,
    UserType,
    VectorType,
    get_log_columns,
    shorten_value,
    timeuuid_high_half,
    timeuuid_low_half,
)
from cdc_platform.delta import compute, uuids_to_text
from cdc_platform.errors import InputError
from cdc_platform.tables import TIMESTAMP
from cdc_platform.timeline import StreamFinder

_MAX_KEY_BYTES = 0xFFFF
_HEX = "[0-9a-f]"
_CANONICAL_PATTERNS: Mapping[str, str] = {
    "uuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "timeuuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-1{_HEX}{{3}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "varint": "^-?[0-9]+$",
    "decimal": r"^-?[0-9]+(\.[0-9]+)?$",
}
"""Texts that match are valid values and need no parsing."""


def validate_values(schema: TableSchema, columns: Mapping[str, pa.Array]) -> None:
    """Validate the columns of typed writes (`typed_writes_schema`) against their types.

    Raises:
        InputError: a value is not of its column's type, or typed writes cannot carry it.
    """
    for column in get_log_columns(schema):
        values = columns.get(column.name)
        if column.role in ("key", "value", "deleted_elements") and values is not None:
            _validate_column(column.name, column.type, values)
    for key in schema.clustering_key:
        ends = columns.get(range_end_column(key.name))
        if ends is not None:
            _validate_column(range_end_column(key.name), key.type, ends)


def validate_partition_keys(schema: TableSchema, keys: pa.Array) -> None:
    """Raise InputError if a serialized partition key (binary) is empty or too long."""
    sizes = np.diff(np.asarray(_key_offsets(keys), dtype=np.int64))
    if np.any(sizes == 0):
        raise InputError(f"{np.count_nonzero(sizes == 0)} writes to {schema.full_name} have an empty partition key")
    if np.any(sizes > _MAX_KEY_BYTES):
        raise InputError(
            f"a partition key of {schema.full_name} has {sizes.max()} bytes; it has at most {_MAX_KEY_BYTES}"
        )


def _key_offsets(keys: Any) -> Any:
    if pat.is_fixed_size_binary(keys.type):
        return np.arange(len(keys) + 1) * keys.type.byte_width
    return np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]


def _validate_column(name: str, kind: CqlType, values: Any) -> None:
    if values.null_count == len(values):
        return
    match kind:
        case ScalarType():
            _validate_scalar(name, kind, values)
        case MapType():
            first, last = _element_bounds(values)
            _validate_elements(name, kind.key, values.keys.slice(first, last - first))
            _validate_elements(name, kind.value, values.items.slice(first, last - first))
        case VectorType():
            _validate_elements(name, kind.element, values.flatten())
            if compute.any(compute.not_equal(compute.list_value_length(values), kind.dimension)).as_py():
                raise InputError(f"column {name}: a value of type {kind.cql} has exactly {kind.dimension} elements")
        case ListType() | SetType():
            _validate_elements(name, kind.element, values.flatten())
        case _:
            field_names = (
                kind.field_names if isinstance(kind, UserType) else [f"_{n}" for n, _ in enumerate(kind.parts, 1)]
            )
            for field, part, inner in zip(field_names, kind.parts, values.flatten(), strict=True):
                _validate_column(f"{name}.{field}", part, inner)


def _element_bounds(values: Any) -> tuple[int, int]:
    return values.offsets[0].as_py(), values.offsets[-1].as_py()


def _validate_elements(name: str, kind: CqlType, elements: Any) -> None:
    if elements.null_count:
        raise InputError(f"column {name}: {elements.null_count} elements are null; leave them out")
    _validate_column(name, kind, elements)


def _validate_scalar(name: str, kind: ScalarType, values: Any) -> None:
    if kind.name in TEXT_PARSERS:
        _validate_texts(name, kind, values)
    elif kind.name in _SCALAR_CHECKS:
        wrong, rule = _SCALAR_CHECKS[kind.name]
        invalid = np.asarray(compute.fill_null(wrong(values), False))
        if invalid.any():
            value = values.filter(pa.array(invalid))[:1].cast(_MESSAGE_TYPES.get(kind.name, values.type))[0].as_py()
            raise InputError(
                f"column {name}: {shorten_value(value)} of {np.count_nonzero(invalid)} writes is no value of type"
                f" {kind.name} here; it is {rule}"
            )


def _validate_texts(name: str, kind: ScalarType, values: Any) -> None:
    texts: Iterable[str]
    if kind.name in _CANONICAL_PATTERNS:
        canonical = compute.fill_null(compute.match_substring_regex(values, _CANONICAL_PATTERNS[kind.name]), True)
        texts = compute.unique(values.filter(compute.invert(canonical))).to_pylist()
    else:
        texts = compute.unique(values.drop_null()).to_pylist()
    for text in texts:
        try:
            kind.canonical(TEXT_PARSERS[kind.name](text))
        except (ValueError, ArithmeticError):
            raise InputError(f"column {name}: {shorten_value(text)} is no value of type {kind.name}") from None


def _outside(low: int, high: int) -> Callable[[Any], Any]:
    return lambda values: compute.or_(
        compute.less(values.cast(pa.int64()), low), compute.greater(values.cast(pa.int64()), high)
    )


def _not_ascii(values: Any) -> Any:
    return compute.invert(compute.string_is_ascii(values))


def _invalid_timestamps(values: Any) -> Any:
    us = values.cast(pa.int64())
    finer = compute.not_equal(compute.multiply(compute.divide(us, MILLISECOND_US), MILLISECOND_US), us)
    return compute.or_(finer, _outside(us_from_ms(FIRST_MS), us_from_ms(LAST_MS))(values))


_SCALAR_CHECKS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "ascii": (_not_ascii, "of characters below 128"),
    "time": (_outside(0, DAY_NS - 1), f"from 0 to {DAY_NS - 1} ns"),
    "timestamp": (
        _invalid_timestamps,
        "whole milliseconds from 1677-09-22 to 2262-04-11; write others by CQL statements",
    ),
    "date": (
        lambda values: _outside(FIRST_DAY, LAST_DAY)(values.cast(pa.int32())),
        "of the years 1 to 9999; write others by CQL statements",
    ),
}
_MESSAGE_TYPES = {"timestamp": pa.int64(), "date": pa.int32()}


_RANGE_STARTS = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE)
_RANGE_ENDS = (Operation.RANGE_END_INCLUSIVE, Operation.RANGE_END_EXCLUSIVE)


@dataclass(frozen=True)
class RangeDeletions:
    """The range deletions of a batch: which writes (bool) log a start of a range, and which log an end.

    `ends` are the operations (int64) that log the ends.
    """

    told_start: np.ndarray
    told_end: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True)
class _RangeBounds:
    """One bound of each range: the ranks of its values, the number of values, and whether it is inclusive."""

    ranks: Sequence[np.ndarray]
    depth: np.ndarray
    inclusive: np.ndarray


def encode_range_deletions(schema: TableSchema, columns: Mapping[str, Any], operations: np.ndarray) -> RangeDeletions:
    """Return the ranges of a batch of typed writes (`typed_writes_schema`, in stored names).

    Raises:
        InputError: a bound has a value after a column without one, or excludes a key without naming one; or a write
            that is not a range deletion has the end of a range.
    """
    size = len(operations)
    chosen = np.isin(operations, _RANGE_STARTS)
    ends = _end_operations(columns, size)
    _refuse_stray_ends(schema, columns, chosen)
    told_start, told_end = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
    rows = np.flatnonzero(chosen)
    if len(rows):
        if not schema.clustering_key:
            raise InputError(f"{schema.full_name} has no clustering column; operation 4 deletes its rows, not a range")
        start, end = _range_bounds(schema, columns, rows, operations, ends)
        not_empty = _start_before_end(schema.clustering_key, start, end)
        end_alone = _is_implied_bound(start, end)
        start_alone = _is_implied_bound(end, start) & ~end_alone
        told_start[rows], told_end[rows] = not_empty & ~end_alone, not_empty & ~start_alone
    return RangeDeletions(told_start, told_end, ends)


def _end_operations(columns: Mapping[str, Any], size: int) -> np.ndarray:
    values = columns.get(RANGE_END)
    if values is None:
        return np.full(size, Operation.RANGE_END_INCLUSIVE, dtype=np.int64)
    ends = np.asarray(compute.fill_null(values, int(Operation.RANGE_END_INCLUSIVE)).cast(pa.int64()))
    wrong = ~np.isin(ends, _RANGE_ENDS)
    if wrong.any():
        raise InputError(f"{RANGE_END} {ends[wrong][0]} of {np.count_nonzero(wrong)} writes is out of bounds; 7 or 8")
    return ends


def _refuse_stray_ends(schema: TableSchema, columns: Mapping[str, Any], chosen: np.ndarray) -> None:
    for name in (RANGE_END, *(range_end_column(key.name) for key in schema.clustering_key)):
        values = columns.get(name)
        count = 0 if values is None else np.count_nonzero(_is_valid(values) & ~chosen)
        if count:
            raise InputError(f"{count} writes have a {name}, and are of no range (operation 5 or 6)")


def _range_bounds(
    schema: TableSchema, columns: Mapping[str, Any], rows: np.ndarray, operations: np.ndarray, ends: np.ndarray
) -> tuple[_RangeBounds, _RangeBounds]:
    size = len(rows)
    ranked: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    depths = np.zeros((2, size), dtype=np.int64)
    indices = pa.array(rows)
    for index, key in enumerate(schema.clustering_key):
        pair = [columns.get(name) for name in (key.name, range_end_column(key.name))]
        bounds = [None if values is None else values.take(indices) for values in pair]
        present = [np.zeros(size, dtype=bool) if values is None else _is_valid(values) for values in bounds]
        for side in (0, 1):
            skipped = present[side] & (depths[side] < index)
            if skipped.any():
                raise InputError(f"{np.count_nonzero(skipped)} bounds have a {key.name}, and lack a column before it")
            depths[side] += present[side]
        for side, ranks in enumerate(_rank_bounds(key, bounds, present)):
            ranked[side].append(ranks)
    inclusive = operations[rows] == _RANGE_STARTS[0], ends[rows] == _RANGE_ENDS[0]
    for side in (0, 1):
        empty = (depths[side] == 0) & ~inclusive[side]
        if empty.any():
            raise InputError(f"{np.count_nonzero(empty)} bounds of ranges exclude a key, and name none")
    start, end = (_RangeBounds(ranked[side], depths[side], inclusive[side]) for side in (0, 1))
    return start, end


def _rank_bounds(key: Column, given: Sequence[Any], masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the ranks of the values of both bounds, in one order; 0 if there is no value."""
    parts = [None if values is None else values.drop_null() for values in given]
    whole = pa.concat_arrays([values for values in parts if values is not None])
    order = rank_values(key.type, encode_column(key.type, whole)) if len(whole) else np.zeros(0, dtype=np.int64)
    ranks, offset = [], 0
    for mask in masks:
        count = int(np.count_nonzero(mask))
        bound_ranks = np.zeros(len(mask), dtype=np.int64)
        bound_ranks[mask] = order[offset : offset + count]
        ranks.append(bound_ranks)
        offset += count
    return ranks


def _start_before_end(keys: Sequence[Column], start: _RangeBounds, end: _RangeBounds) -> np.ndarray:
    """Return which starts (bool) are before their ends, so that rows can lie between them."""
    # An edge lies before or after all rows that begin with its values.
    sides = np.where(start.inclusive, -1, 1), np.where(end.inclusive, 1, -1)
    before, undecided = np.zeros(len(start.depth), dtype=bool), np.ones(len(start.depth), dtype=bool)
    for index, key in enumerate(keys):
        has_value = [bound.depth > index for bound in (start, end)]
        # A value lies between the edges before and after all rows with the preceding values.
        level = [np.where(has_side_value, 0, side) for has_side_value, side in zip(has_value, sides, strict=True)]
        both = has_value[0] & has_value[1]
        one, other = start.ranks[index], end.ranks[index]
        less = np.where(both, (one > other) if key.descending else (one < other), level[0] < level[1])
        same = np.where(both, one == other, level[0] == level[1])
        before |= undecided & less
        undecided &= same
        # Do not compare beyond the last value of either bound.
        undecided &= both
    whole = undecided & (start.depth == len(keys)) & (end.depth == len(keys))
    return before | (whole & (sides[0] < sides[1]))


def _is_implied_bound(bound: _RangeBounds, other: _RangeBounds) -> np.ndarray:
    """Return which bounds (bool) follow from the other bound, so that the log omits them."""
    implied = (other.depth > 0) & (bound.depth == other.depth - 1) & bound.inclusive
    for index, (ranks, other_ranks) in enumerate(zip(bound.ranks, other.ranks, strict=True)):
        implied &= (bound.depth <= index) | (ranks == other_ranks)
    return implied


def _is_valid(column: Any) -> np.ndarray:
    return np.asarray(compute.is_valid(column))


_SIGN_BITS = np.uint64(0x8080808080808080)


class LogRowSlot:
    """The log rows that one write can have, in their order; `NONE` is no row.

    They are plain integers: numpy treats an enum member as 8 bytes, and widens arrays that are compared with it.
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
class _ColumnWrites:
    """The changes of a batch's writes to one column: the slots of its values and of its deletions."""

    column: Column
    value: pa.Array
    deleted: pa.Array
    elements: pa.Array | None
    live: np.ndarray
    removed: np.ndarray


def encode_log_batch(schema: TableSchema, writes: pa.RecordBatch, streams_of: StreamFinder) -> pa.RecordBatch:
    """Return the log rows of a batch of typed writes, in the columns of the log's Delta table.

    Rows of one write are together, in the order of `cdc$batch_seq_no`. The low half of `cdc$time` is a hash of the
    whole write, so that equal writes always have equal rows. The hashes of several writes to a partition at one time
    are put in the order of the batch.

    Raises:
        InputError: a write is invalid for the table, or no generation operates at its time.
    """
    batch, _, streams, low = _validate_writes(with_stored_names(schema), writes, streams_of)
    return batch.log(streams, _timeuuid_texts(batch.timestamps, low))


def validate_batch(
    schema: TableSchema, writes: pa.RecordBatch, streams_of: StreamFinder
) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Validate all writes of a batch; see `encode_log_batch`.

    Returns for each write its serialized partition key (binary), its stream (binary) and the low half of its `cdc$time`
    (uint64).
    """
    _, keys, streams, low = _validate_writes(with_stored_names(schema), writes, streams_of)
    return keys, streams, low


def validate_write_values(schema: TableSchema, writes: pa.RecordBatch) -> None:
    """Validate the writes of a batch without looking up their streams; see `encode_log_batch`.

    Raises:
        InputError: a write is invalid for the table.
    """
    schema = with_stored_names(schema)
    columns = dict(zip(writes.schema.names, writes.columns, strict=True))
    _WriteBatch(schema, columns, len(writes))
    validate_partition_keys(schema, encode_partition_keys(schema, [columns[key.name] for key in schema.partition_key]))


def is_write_operation(operations: np.ndarray) -> np.ndarray:
    """Return which operations (int64) a typed write may have (bool)."""
    return (operations >= Operation.UPDATE) & (operations <= Operation.RANGE_START_EXCLUSIVE)


def is_write_time(timestamps: np.ndarray) -> np.ndarray:
    """Return which timestamps (int64, µs) a timeuuid can express (bool)."""
    return (timestamps >= MIN_TIMEUUID_US) & (timestamps <= MAX_TIMEUUID_US)


def is_write_ttl(ttls: np.ndarray) -> np.ndarray:
    """Return which TTLs (int64, s) a write may have (bool); 0 is none."""
    return (ttls >= 0) & (ttls <= MAX_WRITE_TTL)


def _validate_writes(
    schema: TableSchema, writes: pa.RecordBatch, streams_of: StreamFinder
) -> tuple[_WriteBatch, pa.Array, pa.Array, np.ndarray]:
    columns = dict(zip(writes.schema.names, writes.columns, strict=True))
    batch = _WriteBatch(schema, columns, len(writes))
    keys = encode_partition_keys(schema, [columns[key.name] for key in schema.partition_key])
    validate_partition_keys(schema, keys)
    streams = streams_of(keys, columns["timestamp"])
    if streams.null_count:
        raise InputError(f"{streams.null_count} writes have a timestamp at which no known generation operates")
    hashed = hash_column(keys)
    low = timeuuid_low_half(_hash_writes(schema, hashed, columns, len(writes)))
    low = _order_low_halves(fingerprint_rows([hashed, columns["timestamp"]], len(writes)), low)
    return batch, keys, streams, low


def _hash_writes(schema: TableSchema, keys: Hashes, columns: Mapping[str, pa.Array], rows: int) -> np.ndarray:
    """Hash (uint64) each write; the ends of ranges only affect the hashes of writes that have them."""
    end_columns = {name: columns[name] for name in range_end_columns(schema) if name in columns}
    hashes = fingerprint_rows([keys, *(values for name, values in columns.items() if name not in end_columns)], rows)
    if all(values.null_count == rows for values in end_columns.values()):
        return hashes
    has_end = _any_mask([_valid_mask(values) for values in end_columns.values()], rows)
    return np.where(has_end, fingerprint_rows([pa.array(hashes), *end_columns.values()], rows), hashes)


def _order_low_halves(writes: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return low halves (uint64) that ascend as timeuuids in batch order among rows that are equal in `writes`.

    Otherwise writes to one partition at one time would have no order, and equal writes would be one.
    """
    # Most rows are unique: do not sort those whose last bits are unique.
    bits = (writes & np.uint64((16 << len(writes).bit_length()) - 1)).view(np.int64)
    candidates = np.flatnonzero(np.bincount(bits).take(bits) > 1)
    order = candidates[np.argsort(writes[candidates], kind="stable")]
    ascending = writes[order]
    if not np.any(ascending[1:] == ascending[:-1]):
        return low
    starts = np.flatnonzero(np.diff(ascending, prepend=~ascending[:1]))
    low = low.copy()
    for begin, end in zip(starts, np.append(starts[1:], len(order)), strict=True):
        if end - begin > 1:
            group = order[begin:end]
            # Timeuuids compare these bytes as signed.
            positions = np.arange(len(group), dtype=np.uint64)
            ranked = np.maximum(np.sort(low[group] ^ _SIGN_BITS), positions)
            low[group] = (np.maximum.accumulate(ranked - positions) + positions) ^ _SIGN_BITS
    return low


class _WriteBatch:
    """A batch of typed writes, each split into its slots."""

    def __init__(self, schema: TableSchema, columns: Mapping[str, pa.Array], rows: int) -> None:
        self._schema = schema
        self._columns = columns
        self._rows = rows
        self.timestamps = _as_int64(columns["timestamp"])
        self._operations = _as_int64(columns["operation"])
        self._ttls = _as_int64(columns["ttl"], schema.default_ttl)
        self._check()
        self._ranges = encode_range_deletions(schema, columns, self._operations)
        self._expiring = self._ttls > 0
        self._inserted = self._operations == Operation.INSERT
        self._written = self._places()
        self._check_kinds()

    def log(self, streams: pa.Array, times: pa.Array) -> pa.RecordBatch:
        """Return the log rows, given the stream (binary) and `cdc$time` (text) of each write."""
        source, slots = self._pieces()
        firsts = np.flatnonzero(np.diff(source, prepend=-1))
        numbers = np.arange(len(source)) - np.repeat(firsts, np.diff(firsts, append=len(source)))
        last = np.diff(source, append=-1) != 0
        same = np.array_equal(source, np.arange(self._rows))
        indices, rows = (None, slice(None)) if same else (pa.array(source), source)
        expiring = _equals_either(slots, LogRowSlot.STATIC_EXPIRING, LogRowSlot.UPDATE_EXPIRING)
        expiring |= (slots == LogRowSlot.INSERT) & self._expiring[rows]
        arrays = {
            "cdc$stream_id": _take(streams, indices),
            "cdc$time": _take(times, indices),
            "cdc$batch_seq_no": pa.array(numbers.astype(np.int32)),
            "cdc$operation": pa.array(self._shown_operations(source, slots)),
            "cdc$ttl": pa.array(self._ttls[rows], mask=~expiring),
            "cdc$end_of_batch": pa.array(last, mask=~last),
            WRITTEN_AT: pa.array(self.timestamps[rows]).cast(TIMESTAMP),
        }
        for key in self._schema.partition_key:
            arrays[key.name] = _take(self._columns[key.name], indices)
        keyed = slots >= LogRowSlot.INSERT
        for key in self._schema.clustering_key:
            arrays[key.name] = _null_unless(keyed, self._clustering(key.name, slots, indices))
        # The slot of a deletion has no column values, so that a keys-only log has none.
        value_slots = slots if self._schema.cdc.delta == "full" else np.full_like(slots, LogRowSlot.DELETE)
        for written in self._written:
            arrays |= _encode_column(written, rows, value_slots, indices)
        fields = log_table(self._schema).schema
        return pa.RecordBatch.from_arrays([arrays[field.name].cast(field.type) for field in fields], schema=fields)

    def _clustering(self, name: str, piece: np.ndarray, keep: pa.Array | None) -> pa.Array:
        """Return a clustering column of each log row; rows of range ends have the end's value."""
        values, ends = _take(self._columns[name], keep), self._columns.get(range_end_column(name))
        is_end = piece == LogRowSlot.RANGE_END
        if not is_end.any():
            return values
        end_values = pa.nulls(len(piece), values.type) if ends is None else _take(ends, keep)
        return compute.if_else(pa.array(is_end), end_values, values)

    def _check(self) -> None:
        always = ["operation", "timestamp", *(key.name for key in self._schema.partition_key)]
        for name in always:
            if self._columns[name].null_count:
                raise InputError(f"{self._columns[name].null_count} writes have no {name}; every write has one")
        _refuse_out_of_bounds(~is_write_operation(self._operations), self._operations, "operation", "1 to 6")
        _refuse_out_of_bounds(~is_write_time(self.timestamps), self.timestamps, "timestamp", "1582 to 5236")
        _refuse_out_of_bounds(~is_write_ttl(self._ttls), self._ttls, "ttl", f"0 to {MAX_WRITE_TTL} seconds, 20 years")
        validate_values(self._schema, self._columns)
        if not self._schema.clustering_key and np.any(self._operations == Operation.ROW_DELETE):
            raise InputError(f"{self._schema.full_name} has no clustering column; operation 4 deletes its rows, not 3")

    def _check_kinds(self) -> None:
        """Check keys and columns against the operation."""
        deletes = self._operations >= Operation.ROW_DELETE
        slots = [slot for written in self._written for slot in (written.live, written.removed)]
        touched = (
            np.any([slots_of_column != LogRowSlot.NONE for slots_of_column in slots], axis=0)
            if slots
            else np.zeros(self._rows, bool)
        )
        if np.any(touched & deletes):
            raise InputError(f"{np.count_nonzero(touched & deletes)} deletions (operation 3 to 6) also write a column")
        clustered = (
            np.any([slots_of_column >= LogRowSlot.INSERT for slots_of_column in slots], axis=0)
            if slots
            else np.zeros(self._rows, bool)
        )
        requires_key = clustered | self._inserted | (self._operations == Operation.ROW_DELETE)
        whole = self._operations == Operation.PARTITION_DELETE
        for key in self._schema.clustering_key:
            narrowed = whole & _valid_mask(self._columns[key.name])
            if narrowed.any():
                raise InputError(
                    f"{np.count_nonzero(narrowed)} deletions of a partition (operation 4) have a {key.name}; operation "
                    "3 deletes a row"
                )
            missing = requires_key & ~_valid_mask(self._columns[key.name])
            if missing.any():
                raise InputError(
                    f"{np.count_nonzero(missing)} writes to a row have no {key.name}; it is a clustering column"
                )

    def _places(self) -> list[_ColumnWrites]:
        """Return every column with the slots of its values and deletions; see `encoder.split_mutation` for why."""
        schema = self._schema
        static = [self._parts(column) for column in schema.statics]
        regular = [self._parts(column) for column in schema.regulars]
        # For rows with a marker: whether the mutation is split, so that element-only changes leave the insert.
        is_split = _any_mask([live | removed for _, live, removed, _ in static], self._rows)
        is_split |= _any_mask([live for column, live, _, _ in regular if column.type.multicell], self._rows)
        is_split |= self._expiring & _any_mask([removed for _, _, removed, _ in regular], self._rows)
        writes = []
        for column, live, removed, _ in static:
            expiring = _select_codes(self._expiring, LogRowSlot.STATIC_EXPIRING, LogRowSlot.STATIC)
            writes.append(self._written_to(column, live, removed, expiring, LogRowSlot.STATIC))
        update = _select_codes(self._expiring, LogRowSlot.UPDATE_EXPIRING, LogRowSlot.UPDATE)
        for column, live, removed, overwritten in regular:
            with_marker = self._inserted & ~(is_split & ~overwritten) if column.type.multicell else self._inserted
            live_in = with_marker & ~(self._expiring & column.type.multicell)
            live_piece = _select_codes(live_in, LogRowSlot.INSERT, update)
            deleted_piece = _select_codes(with_marker & ~self._expiring, LogRowSlot.INSERT, LogRowSlot.UPDATE)
            writes.append(self._written_to(column, live, removed, live_piece, deleted_piece))
        return writes

    def _parts(self, column: Column) -> tuple[Column, np.ndarray, np.ndarray, np.ndarray]:
        """Return a column with masks of the writes with live values, with deletions, and with whole overwrites."""
        value, deleted, elements = self._arrays(column)
        overwritten = _true_mask(deleted)
        if not column.type.multicell:
            live = _valid_mask(value)
            if np.any(live & overwritten):
                raise InputError(f"{np.count_nonzero(live & overwritten)} writes both set {column.name} and delete it")
            return column, live, overwritten, overwritten
        return column, _non_empty_mask(column, value), overwritten | _non_empty_list_mask(elements), overwritten

    def _arrays(self, column: Column) -> tuple[pa.Array, pa.Array, pa.Array | None]:
        value, deleted = self._columns[column.name], self._columns[f"cdc$deleted_{column.name}"]
        return value, deleted, self._columns.get(f"cdc$deleted_elements_{column.name}")

    def _written_to(
        self,
        column: Column,
        live: np.ndarray,
        removed: np.ndarray,
        live_piece: np.ndarray,
        deleted_piece: np.ndarray | int,
    ) -> _ColumnWrites:
        value, deleted, elements = self._arrays(column)
        slots = (
            _select_codes(mask, slot, LogRowSlot.NONE) for mask, slot in ((live, live_piece), (removed, deleted_piece))
        )
        return _ColumnWrites(column, value, deleted, elements, *slots)

    def _pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """Return for every log row its write (int64, ascending) and its slot (int8, ascending in each write)."""
        exists = np.zeros((LogRowSlot.COUNT, self._rows), dtype=bool)
        exists[LogRowSlot.INSERT] = self._inserted
        exists[LogRowSlot.DELETE] = _equals_either(self._operations, Operation.ROW_DELETE, Operation.PARTITION_DELETE)
        exists[LogRowSlot.RANGE_START] = self._ranges.told_start
        exists[LogRowSlot.RANGE_END] = self._ranges.told_end
        for written in self._written:
            for slots in (written.live, written.removed):
                for piece in range(slots.min(initial=LogRowSlot.DELETE), slots.max(initial=LogRowSlot.NONE) + 1):
                    if piece != LogRowSlot.NONE:
                        exists[piece] |= slots == piece
        source, piece = np.nonzero(np.ascontiguousarray(exists.T))
        return source, piece.astype(np.int8)

    def _shown_operations(self, source: np.ndarray, piece: np.ndarray) -> np.ndarray:
        operations = _select_codes(piece == LogRowSlot.INSERT, Operation.INSERT, Operation.UPDATE)
        if np.any(piece >= LogRowSlot.DELETE):
            operations = np.where(
                _equals_either(piece, LogRowSlot.DELETE, LogRowSlot.RANGE_START), self._operations[source], operations
            )
            operations = np.where(piece == LogRowSlot.RANGE_END, self._ranges.ends[source], operations).astype(np.int8)
        return operations


def _encode_column(
    written: _ColumnWrites, rows: np.ndarray | slice, piece: np.ndarray, keep: pa.Array | None
) -> dict[str, pa.Array]:
    """Return the two or three columns of the log for a column."""
    name = written.column.name
    live = written.live[rows] == piece
    deleted = written.removed[rows] == piece
    value = _take(written.value, keep)
    if written.column.type.multicell and isinstance(written.column.type, UserType):
        value = _encode_user_type(value, live, live | deleted)
    else:
        value = _null_unless(live, value)
    arrays = {
        name: value,
        f"cdc$deleted_{name}": _null_unless(
            deleted & _true_mask(_take(written.deleted, keep)), _take(written.deleted, keep)
        ),
    }
    if written.elements is not None:
        elements = _take(written.elements, keep)
        arrays[f"cdc$deleted_elements_{name}"] = _null_unless(deleted & _non_empty_list_mask(elements), elements)
    return arrays


def _encode_user_type(value: Any, live: np.ndarray, touched: np.ndarray) -> pa.Array:
    """Return the live fields of a user type; a write with only deletions has a value without fields."""
    fields = [_null_unless(live, part) for part in value.flatten()]
    return pa.StructArray.from_arrays(fields, fields=list(value.type), mask=pa.array(~touched))


def _take(column: pa.Array, keep: pa.Array | None) -> pa.Array:
    return column if keep is None else column.take(keep)


def _null_unless(chosen: np.ndarray, column: pa.Array) -> pa.Array:
    """Return the column, null where it is not chosen."""
    if chosen.all():
        return column
    if not chosen.any():
        return pa.nulls(len(column), column.type)
    if pat.is_nested(column.type):
        return column.take(pa.array(np.arange(len(column)), mask=~chosen))
    return compute.if_else(pa.array(chosen), column, pa.scalar(None, column.type))


def _valid_mask(column: pa.Array) -> np.ndarray:
    if column.null_count in (0, len(column)):
        return np.full(len(column), column.null_count == 0)
    return np.asarray(compute.is_valid(column))


def _true_mask(column: pa.Array) -> np.ndarray:
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=bool)
    return np.asarray(compute.fill_null(column, False))


def _non_empty_mask(column: Column, value: Any) -> np.ndarray:
    """Return where a collection has an element, or a user type a non-null field."""
    if isinstance(column.type, UserType):
        return _any_mask([_valid_mask(part) for part in value.flatten()], len(value))
    return _non_empty_list_mask(value)


def _non_empty_list_mask(value: Any) -> np.ndarray:
    if value.null_count == len(value):
        return np.zeros(len(value), dtype=bool)
    return _valid_mask(value) & (np.diff(np.asarray(value.offsets, dtype=np.int64)) > 0)


def _select_codes(chosen: np.ndarray, value: np.ndarray | int, other: np.ndarray | int) -> np.ndarray:
    """Return slots or operations (int8): the first where chosen, otherwise the second."""
    return np.where(chosen, np.asarray(value, dtype=np.int8), np.asarray(other, dtype=np.int8))


def _equals_either(numbers: np.ndarray, first: int, second: int) -> np.ndarray:
    return (numbers == first) | (numbers == second)


def _any_mask(masks: list[np.ndarray], rows: int) -> np.ndarray:
    return np.any(masks, axis=0) if masks else np.zeros(rows, dtype=bool)


def _as_int64(column: pa.Array, missing: int = 0) -> np.ndarray:
    filled = compute.fill_null(column, missing) if column.null_count else column
    return np.asarray(filled.cast(pa.int64()))


def _refuse_out_of_bounds(wrong: np.ndarray, values: np.ndarray, name: str, rule: str) -> None:
    if wrong.any():
        raise InputError(
            f"{name} {values[wrong][0]} of {np.count_nonzero(wrong)} writes is out of bounds; it is {rule}"
        )


def _timeuuid_texts(timestamps: np.ndarray, low: np.ndarray) -> pa.Array:
    """Return version 1 UUIDs as text, from times (int64, µs) and low halves (uint64)."""
    ticks = (timestamps * 10 + GREGORIAN_OFFSET).astype(np.uint64)
    words = np.empty((len(ticks), 2), dtype=">u8")
    words[:, 0] = timeuuid_high_half(ticks)
    words[:, 1] = low
    return uuids_to_text(words.view(np.uint8).reshape(-1, 16))
