"""64-bit hashes of rows in Arrow columns, equal for equal values on every machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.delta import compute
from cdc_platform.ring import GOLDEN_RATIO_64, hash128, mix_bits

Hashes = np.ndarray
"""uint64[n]."""

_NULL = np.uint64(0x5851F42D4C957F2D)


def fingerprint_rows(columns: Iterable[pa.Array | Hashes], rows: int) -> Hashes:
    """Hash (uint64) each row of columns of `rows` rows, or of their `hash_column`; the order of columns matters."""
    total = np.zeros(rows, dtype=np.uint64)
    for column in columns:
        total += column if isinstance(column, np.ndarray) else hash_column(column)
        total = _splitmix(total)
    return _splitmix(total)


def fingerprint_values(batch: pa.RecordBatch) -> Hashes:
    """Hash (uint64) the values of each row, with the names of their columns, in any order; nulls do not matter."""
    total = np.zeros(len(batch), dtype=np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count < len(column):
            named = np.full(len(batch), crc32(name.encode()), dtype=np.uint64)
            total += np.where(compute.is_valid(column), fingerprint_rows([named, column], len(batch)), np.uint64(0))
    return _splitmix(total)


def hash_column(column: pa.Array) -> Hashes:
    """Return the contribution of a column to the hashes of its rows, to use in several `fingerprint_rows`."""
    # A row's hash must not depend on other rows, so a column of nulls hashes as any null.
    return np.full(len(column), _NULL) if column.null_count == len(column) else _hash_values(column)


def _splitmix(words: Hashes) -> Hashes:
    """Apply the finaliser of splitmix64, in which every input bit affects every output bit."""
    return mix_bits(words + GOLDEN_RATIO_64)


def _hash_values(column: pa.Array) -> Hashes:
    if pat.is_struct(column.type):
        hashes = fingerprint_rows(column.flatten(), len(column))
    elif pat.is_list(column.type) or pat.is_map(column.type):
        hashes = _hash_lists(column)
    elif pat.is_string(column.type) or pat.is_binary(column.type):
        hashes = _hash_texts(column)
    else:
        hashes = _splitmix(_fixed_width_words(column))
    if column.null_count:
        hashes = np.where(np.asarray(compute.is_valid(column)), hashes, _NULL)
    return hashes


def _fixed_width_words(column: pa.Array) -> Hashes:
    """Return values of fixed width as integers; those of nulls are arbitrary."""
    width = 8 if pat.is_boolean(column.type) else column.type.bit_width
    if pat.is_boolean(column.type):
        values: Any = compute.fill_null(column, False).cast(pa.uint8()).to_numpy(zero_copy_only=False)
    else:
        _, data = column.buffers()
        values = np.frombuffer(data, dtype=f"u{width // 8}")[column.offset : column.offset + len(column)]
    return values.astype(np.uint64)


def _hash_texts(column: pa.Array) -> Hashes:
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    values = np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return hash128(values, bounds)[0]


def _hash_lists(column: Any) -> Hashes:
    """Hash lists and maps by adding up the hashes of their elements, each with its position."""
    offsets = np.asarray(column.offsets, dtype=np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    parts = (column.keys, column.items) if pat.is_map(column.type) else (column.values,)
    elements = fingerprint_rows((part.slice(first, last - first) for part in parts), last - first)
    lengths = np.diff(offsets)
    positions = np.arange(last - first, dtype=np.int64) - np.repeat(offsets[:-1] - first, lengths)
    sums = np.zeros(last - first + 1, dtype=np.uint64)
    np.cumsum(_splitmix(elements + positions.astype(np.uint64) * GOLDEN_RATIO_64), out=sums[1:])
    totals = sums[offsets[1:] - first] - sums[offsets[:-1] - first]
    return _splitmix(totals + lengths.astype(np.uint64))
