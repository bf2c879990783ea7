"""The files of a log's Delta table as arrays: parts by time, keys as tokens, timeuuids as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds, from_datetime
from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.timeuuid import VERSION, ticks_of
from cdc_platform.cql.types import GREGORIAN
from cdc_platform.errors import InputError
from cdc_platform.generations.stream_ids import STREAM_ID_BYTES
from cdc_platform.lake.arrow import compute, fixed_bytes, tokens_of_column
from cdc_platform.lake.files import ROUNDED_US
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.volume import file_batches
from cdc_platform.log.audit.rows import NO_TIME, LogRows
from cdc_platform.log.exact import may_be_far
from cdc_platform.log.key_bytes import canonical_keys, key_bytes
from cdc_platform.log.log_table import log_table
from cdc_platform.log.stored_names import EXACT, WRITTEN_AT, stored
from cdc_platform.ring.tokens import Bools, Int64s, UInt64s

_HEAD = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$end_of_batch", WRITTEN_AT)
_NIBBLES = np.full(256, 255, dtype=np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _NIBBLES[list(_digits)] = np.arange(16)
_HYPHENS = (8, 13, 18, 23)
_HEX_PLACES = [place for place in range(36) if place not in _HYPHENS]
_NO_UUID = "-" * 36


@dataclass(frozen=True)
class LogPart:
    """The rows of a log with `from_us` <= cdc$timestamp < `before_us` (µs, None for no bound), and their files.

    Rows without a cdc$timestamp are in the part that has no lower bound.
    """

    paths: tuple[str, ...]
    from_us: Microseconds | None
    before_us: Microseconds | None


def log_parts(lake: Lake, schema: TableSchema, rows_a_part: int) -> list[LogPart]:
    """Parts of a log of about as many rows each; what has one time is in one part."""
    files = [
        (path, _us_of(low), _us_of(high), rows)
        for path, low, high, rows in lake.bounded_files(log_table(schema), WRITTEN_AT)
    ]
    return list(_parts(files, rows_a_part))


def _us_of(bound: datetime | None) -> Microseconds | None:
    return None if bound is None else from_datetime(bound)


def _parts(
    files: Sequence[tuple[str, Microseconds | None, Microseconds | None, int]], rows_a_part: int
) -> Iterator[LogPart]:
    spans = [
        (low - ROUNDED_US, high + ROUNDED_US, rows)
        for _, low, high, rows in files
        if low is not None and high is not None
    ]
    bounds = [None, *_cuts(spans, rows_a_part), None]
    for lower, upper in pairwise(bounds):
        paths = [
            path
            for path, low, high, _ in files
            if (low is None or upper is None or low - ROUNDED_US < upper)
            and (high is None or lower is None or high + ROUNDED_US >= lower)
        ]
        if paths:
            yield LogPart(tuple(paths), lower, upper)


def _cuts(spans: Sequence[tuple[int, int, int]], rows_a_part: int) -> list[Microseconds]:
    """The times (µs, ascending) between which there are about as many rows each, if files are evenly filled."""
    count = sum(rows for *_, rows in spans)
    wanted = np.arange(rows_a_part, count, rows_a_part)
    if not len(wanted):
        return []
    lows, highs, rows = np.array(spans, dtype=np.float64).T
    edges, places = np.unique(np.concatenate([lows, highs]), return_inverse=True)
    density = np.bincount(places, np.concatenate([rows / (highs - lows), -rows / (highs - lows)]))
    so_far = np.concatenate([[0.0], np.cumsum(np.cumsum(density)[:-1] * np.diff(edges))])
    return sorted({Microseconds(int(cut)) for cut in np.interp(wanted, so_far, edges)})


def part_rows(schema: TableSchema, part: LogPart) -> LogRows:
    """The rows of a part as columns."""
    schema = stored(schema)
    names = [*_HEAD, *(column.name for column in schema.partition_key)]
    if any(may_be_far(column.type) for column in schema.partition_key):
        names.append(EXACT)
    fields = log_table(schema, exact=True).schema
    found = [_empty(schema)]
    for path in part.paths:
        for batch in file_batches(path, names):
            # Files from before the first value that no native column holds have no column for such.
            present = [name for name in names if name in batch.schema.names]
            arrays = [batch.column(name).cast(fields.field(name).type) for name in present]
            whole = pa.RecordBatch.from_arrays(arrays, names=present)
            inside = whole.filter(pa.array(_inside(part, whole.column(WRITTEN_AT))))
            if inside.num_rows:
                found.append(_columns(schema, inside))
    members = [name for name in LogRows.__dataclass_fields__ if name != "table"]
    return LogRows(
        schema.full_name, **{name: np.concatenate([getattr(each, name) for each in found]) for name in members}
    )


def _inside(part: LogPart, written: pa.Array) -> Bools:
    when = _written(written)
    known = when != NO_TIME
    inside = known if part.from_us is not None else np.ones(len(when), dtype=bool)
    if part.from_us is not None:
        inside = inside & (when >= part.from_us)
    return inside if part.before_us is None else inside & (when < part.before_us)


def _written(column: pa.Array) -> Int64s:
    return np.asarray(compute.fill_null(column.cast(pa.int64()), NO_TIME), dtype=np.int64)


def _integers(column: pa.Array) -> Int64s:
    return np.asarray(compute.fill_null(column.cast(pa.int64()), -1), dtype=np.int64)


def _empty(schema: TableSchema) -> LogRows:
    fields = log_table(schema).schema
    names = [*_HEAD, *(column.name for column in schema.partition_key)]
    return _columns(
        schema, pa.RecordBatch.from_arrays([pa.array([], fields.field(name).type) for name in names], names=names)
    )


def _columns(schema: TableSchema, batch: pa.RecordBatch) -> LogRows:
    times, timed = timeuuid_words(batch.column("cdc$time"))
    streams, whole = _streams(batch.column("cdc$stream_id"))
    tokens, keyed = _tokens(schema, batch)
    return LogRows(
        schema.full_name,
        times,
        _us_of_timeuuids(times),
        timed,
        _written(batch.column(WRITTEN_AT)),
        streams,
        whole,
        tokens,
        keyed,
        _integers(batch.column("cdc$batch_seq_no")),
        _integers(batch.column("cdc$operation")),
        np.asarray(compute.fill_null(batch.column("cdc$end_of_batch"), False)),
    )


def timeuuid_words(column: pa.Array) -> tuple[UInt64s, Bools]:
    """UUIDs in text as their halves (uint64[n, 2]), zeros where there is none, and which are of version 1 (bool[n])."""
    long = np.asarray(compute.fill_null(compute.equal(compute.binary_length(column), 36), False))
    if not long.all():
        column = compute.if_else(pa.array(long), column, pa.scalar(_NO_UUID, pa.string()))
    flat = np.frombuffer(b"".join(column.cast(pa.binary()).to_pylist()), dtype=np.uint8).reshape(-1, 36)
    nibbles = _NIBBLES[flat[:, _HEX_PLACES]]
    good = (nibbles < 16).all(axis=1) & (flat[:, _HYPHENS] == ord("-")).all(axis=1)
    packed: Any = np.where(good[:, None], nibbles[:, ::2] << 4 | nibbles[:, 1::2], 0).astype(np.uint8)
    words = np.ascontiguousarray(packed).view(">u8").astype(np.uint64)
    return words, good & ((words[:, 0] >> np.uint64(12) & np.uint64(15)) == VERSION)


def _us_of_timeuuids(words: UInt64s) -> Int64s:
    """The time (µs since 1970) in timeuuids."""
    return (ticks_of(words[:, 0]).astype(np.int64) - GREGORIAN) // 10


def _streams(column: pa.Array) -> tuple[np.ndarray, Bools]:
    whole = np.asarray(compute.fill_null(compute.equal(compute.binary_length(column), STREAM_ID_BYTES), False))
    if not whole.all():
        column = compute.if_else(pa.array(whole), column, pa.scalar(bytes(STREAM_ID_BYTES), pa.binary()))
    return fixed_bytes(column), whole


def _tokens(schema: TableSchema, batch: pa.RecordBatch) -> tuple[Int64s, Bools]:
    """The tokens of the base rows, and which of them have a whole key."""
    columns = [batch.column(column.name) for column in schema.partition_key]
    keyed = np.logical_and.reduce([np.asarray(compute.is_valid(column)) for column in columns])
    tokens = np.zeros(len(keyed), dtype=np.int64)
    if keyed.any():
        tokens[keyed] = tokens_of_column(_key_bytes(schema, batch.filter(pa.array(keyed))))
    return tokens, keyed


def _key_bytes(schema: TableSchema, batch: pa.RecordBatch) -> pa.Array:
    """Serialized keys, by column where the types have such a way, else row by row."""
    columns = [batch.column(column.name) for column in schema.partition_key]
    exact = batch.column(EXACT) if EXACT in batch.schema.names else None
    if exact is not None and exact.null_count < len(exact):
        return canonical_keys(schema, columns, exact)
    try:
        return key_bytes(schema, columns)
    except InputError:
        return canonical_keys(schema, columns)
