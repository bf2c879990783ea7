"""Encode Arrow columns as bytes of the CQL protocol and back, and partition keys for token hashing.

Types with the same layout in memory and in the protocol are converted as whole columns, the others value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.schema import arrow_type
from cdc_platform.cdclog.values import clamp_values, decode_exact_value, to_arrow_value, to_canonical_values
from cdc_platform.clock import MILLISECOND_US, ms_from_us
from cdc_platform.cql import Column, CqlType, ScalarType, TableSchema, ticks_from_high_half, value_from_bytes
from cdc_platform.delta import (
    binaries_from_buffer,
    composite_keys_to_arrow,
    compute,
    fixed_width_to_arrow,
    get_binary_buffers,
    uuids_to_text,
)
from cdc_platform.errors import InputError
from cdc_platform.tables import TIMESTAMP

_NUMBER_DTYPES = {
    "tinyint": ">i1",
    "smallint": ">i2",
    "int": ">i4",
    "bigint": ">i8",
    "counter": ">i8",
    "time": ">i8",
    "timestamp": ">i8",
    "date": ">u4",
    "boolean": ">u1",
    "float": ">f4",
    "double": ">f8",
}
_TEXT_TYPES = ("text", "ascii")
_UUID_TYPES = ("uuid", "timeuuid")
_UNIQUELY_ENCODED = frozenset(
    ("tinyint", "smallint", "int", "bigint", "time", "timestamp", "date", "blob", *_TEXT_TYPES, *_UUID_TYPES)
)
_DATE_ZERO = 2**31
_HYPHEN_POSITIONS = (8, 13, 18, 23)
_DIGIT_POSITIONS = [position for position in range(36) if position not in _HYPHEN_POSITIONS]
_HEX_VALUES = np.full(256, 0xFF, dtype=np.uint8)
_HEX_VALUES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16)
_HEX_VALUES[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = np.arange(10, 16)
_SIGN_BITS = np.uint64(0x8080808080808080)
_LENGTH_BYTES = 4


def encode_column(kind: CqlType, values: Any) -> pa.Array:
    """Encode a column of `arrow_type(kind)` without nulls as bytes of the protocol (binary).

    Raises:
        InputError: a text is not a value of the type.
    """
    name = kind.name if isinstance(kind, ScalarType) else ""
    if name in _NUMBER_DTYPES:
        return fixed_width_to_arrow(_to_numbers(name, values).astype(_NUMBER_DTYPES[name]))
    if name in _TEXT_TYPES:
        return values.cast(pa.binary())
    if name == "blob":
        return values
    if name in _UUID_TYPES:
        return fixed_width_to_arrow(parse_uuids(values).view("V16").reshape(-1))
    return pa.array([kind.to_bytes(value) for value in to_canonical_values(kind, values)], pa.binary())


def decode_column(kind: CqlType, data: Any) -> pa.Array:
    """Decode bytes of the protocol (binary) into a column of `arrow_type(kind)`; null stays null.

    Dates and timestamps that not every reader supports become the nearest supported ones. Bytes of a wrong width for a
    fixed-width type, also no bytes at all, become null.
    """
    name = kind.name if isinstance(kind, ScalarType) else ""
    if name in _TEXT_TYPES:
        return data.cast(pa.string())
    if name == "blob":
        return data
    if name in _NUMBER_DTYPES or name in _UUID_TYPES:
        raw, null = _fixed_width_bytes(data, np.dtype(_NUMBER_DTYPES.get(name, "V16")).itemsize)
        if name in _UUID_TYPES:
            return _with_nulls(uuids_to_text(raw.reshape(-1, 16)), null)
        return _to_native_array(name, raw.view(_NUMBER_DTYPES[name]), null)
    values = [None if item is None else to_arrow_value(kind, value_from_bytes(kind, item)) for item in data.to_pylist()]
    return pa.array(values, arrow_type(kind))


def has_unique_encoding(kind: CqlType) -> bool:
    """Return True if each value of a type has one encoding, so that `encode_column` reverses `decode_column`.

    This excludes bytes that `decode_column` turns into null, or into the nearest date or timestamp.
    """
    name = kind.name if isinstance(kind, ScalarType) else ""
    return name in _UNIQUELY_ENCODED


def decode_exact_integers(kind: CqlType, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Decode dates (days) or timestamps (ms) into integers (int64), in range or not, and which are null (bool)."""
    assert isinstance(kind, ScalarType)
    dtype = np.dtype(_NUMBER_DTYPES[kind.name])
    raw, null = _fixed_width_bytes(data, dtype.itemsize)
    values = raw.view(dtype).astype(np.int64)
    return values - _DATE_ZERO if kind.name == "date" else values, np.zeros(len(data), bool) if null is None else null


def rank_values(kind: CqlType, data: Any) -> np.ndarray:
    """Return integers (int64) in the order of the encoded values (binary, none null).

    Values that are equal in that order have one rank.
    """
    name = kind.name if isinstance(kind, ScalarType) else ""
    if name in _NUMBER_DTYPES:
        raw, bounds = get_binary_buffers(data)
        numbers = raw[bounds[0] : bounds[-1]].view(_NUMBER_DTYPES[name])
        if name in ("float", "double"):
            return _rank_floats(numbers)
        return numbers.astype(np.int64)
    if name == "timeuuid":
        return _rank_timeuuids(data)
    encoded = data.dictionary_encode()
    codes = np.asarray(encoded.indices, dtype=np.int64)
    if name in (*_TEXT_TYPES, "blob", "inet"):
        order = np.asarray(compute.sort_indices(encoded.dictionary), dtype=np.int64)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rank[codes]
    keys = [kind.sort_key(value_from_bytes(kind, item)) for item in encoded.dictionary.to_pylist()]
    rank = np.zeros(len(keys), dtype=np.int64)
    last, number = None, -1
    for index in sorted(range(len(keys)), key=keys.__getitem__):
        number += number < 0 or keys[index] != last
        rank[index], last = number, keys[index]
    return rank[codes]


def parse_uuids(texts: Any) -> np.ndarray:
    """Parse UUID texts, none null, into uint8[n, 16]; raise ValueError for an invalid one."""
    raw, bounds = get_binary_buffers(texts.cast(pa.binary()))
    if len(texts) and bounds[-1] - bounds[0] == 36 * len(texts) and np.all(np.diff(bounds) == 36):
        written = raw[bounds[0] : bounds[-1]].reshape(-1, 36)
        digits = _HEX_VALUES[written[:, _DIGIT_POSITIONS]]
        if digits.max() < 16 and np.all(written[:, _HYPHEN_POSITIONS] == ord("-")):
            return np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    encoded = b"".join(UUID(text).bytes for text in texts.to_pylist())
    return np.frombuffer(encoded, dtype=np.uint8).reshape(-1, 16)


def split_timeuuids(uuids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split timeuuids (uint8[n, 16]) into times (int64, 100 ns since 1582) and order within a time (uint64)."""
    words = np.ascontiguousarray(uuids).view(">u8").reshape(-1, 2).astype(np.uint64)
    return ticks_from_high_half(words[:, 0]).astype(np.int64), words[:, 1] ^ _SIGN_BITS


def join_components(components: Sequence[Any], rows: int) -> pa.Array:
    """Join columns of bytes (binary): each value after its length (uint32, big-endian); empty without columns."""
    parts = []
    for component in components:
        _, bounds = get_binary_buffers(component)
        parts += [fixed_width_to_arrow(np.diff(bounds).astype(">u4")), component]
    if not parts:
        return pa.array([b""] * rows, pa.binary())
    return compute.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def split_components(data: Any, count: int, header: int = _LENGTH_BYTES, trailer: int = 0) -> list[pa.Array]:
    """Split the result of `join_components` without nulls; or, with 2 and 1, of `composite_keys_to_arrow`."""
    raw, bounds = get_binary_buffers(data)
    offsets = np.asarray(bounds[:-1], dtype=np.int64)
    columns = []
    for _ in range(count):
        lengths = _byte_windows(raw, offsets, header).view(f">u{header}")[:, 0].astype(np.int64)
        offsets = offsets + header
        columns.append(_slice_binaries(raw, offsets, lengths))
        offsets = offsets + lengths + trailer
    return columns


def _byte_windows(raw: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """Return `width` bytes from each start (uint8[n, width])."""
    if not len(starts):
        return np.empty((0, width), dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(raw, width)[starts]


def _slice_binaries(raw: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
    if len(lengths) and lengths[0] and (lengths == lengths[0]).all():
        return fixed_width_to_arrow(_byte_windows(raw, starts, int(lengths[0])).view(f"V{lengths[0]}")[:, 0])
    ends = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    indices = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
    return binaries_from_buffer(raw[indices], ends)


def _to_numbers(name: str, values: Any) -> np.ndarray:
    if name == "boolean":
        return values.cast(pa.uint8()).to_numpy(zero_copy_only=False)
    if name == "date":
        return values.cast(pa.int32()).to_numpy(zero_copy_only=False) + np.int64(_DATE_ZERO)
    if name == "timestamp":
        return ms_from_us(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
    numbers = values.to_numpy(zero_copy_only=False)
    if name in ("float", "double"):
        # All NaNs have one encoding.
        return np.where(np.isnan(numbers), numbers.dtype.type(np.nan), numbers)
    return numbers


def _fixed_width_bytes(data: Any, width: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the bytes (uint8[]) of values of one width, 0 for null, and which are null (bool); None if none."""
    null = np.asarray(compute.is_null(data)) if data.null_count else None
    other = np.diff(get_binary_buffers(data)[1]) != width
    if null is not None or other.any():
        null = other if null is None else null | other
        data = compute.if_else(pa.array(null), pa.scalar(bytes(width), data.type), data)
    raw, bounds = get_binary_buffers(data)
    return raw[bounds[0] : bounds[-1]], null


def _to_native_array(name: str, numbers: np.ndarray, null: np.ndarray | None) -> pa.Array:
    if name == "boolean":
        return pa.array(numbers != 0, mask=null)
    if name == "date":
        days = clamp_values(name, numbers.astype(np.int64) - _DATE_ZERO)
        return pa.array(days.astype(np.int32), mask=null).cast(pa.date32())
    if name == "timestamp":
        ms = clamp_values(name, numbers.astype(np.int64))
        return pa.array(ms * MILLISECOND_US, mask=null).cast(TIMESTAMP)
    return pa.array(numbers.astype(numbers.dtype.newbyteorder("=")), mask=null)


def _with_nulls(values: pa.Array, null: np.ndarray | None) -> pa.Array:
    return values if null is None else compute.if_else(pa.array(null), pa.scalar(None, values.type), values)


def _rank_floats(numbers: np.ndarray) -> np.ndarray:
    """Rank -0.0 before 0.0, and NaN last."""
    bits = numbers.astype(">f8").view(">i8").astype(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def _rank_timeuuids(data: Any) -> np.ndarray:
    raw, bounds = get_binary_buffers(data)
    times, low = split_timeuuids(raw[bounds[0] : bounds[-1]].reshape(-1, 16))
    order = np.lexsort((low, times))
    changed = np.zeros(len(order), dtype=np.int64)
    changed[1:] = (np.diff(times[order]) != 0) | (np.diff(low[order]) != 0)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.cumsum(changed)
    return rank


_KEY_DTYPES = {"tinyint": ">i1", "smallint": ">i2", "int": ">i4", "bigint": ">i8", "time": ">i8", "float": ">f4"}
_KEY_DTYPES |= {"double": ">f8"}
_KEY_DATE_ZERO = 2**31


def encode_partition_keys(schema: TableSchema, columns: Sequence[pa.Array]) -> pa.Array:
    """Return the serialized partition keys (binary) of the partition key columns, none null.

    Raises:
        InputError: the partition key has a type that typed writes cannot have.
    """
    components = [
        _encode_key_component(column, values) for column, values in zip(schema.partition_key, columns, strict=True)
    ]
    return components[0] if len(components) == 1 else composite_keys_to_arrow(components)


def encode_canonical_partition_keys(
    schema: TableSchema, columns: Sequence[pa.Array], exact: pa.Array | None = None
) -> pa.Array:
    """Do as `encode_partition_keys`, value by value, for all types and all Arrow forms of a value.

    `exact` is the log's column of exact values that other columns only approximate; None if it has none.

    Raises:
        InputError: a text is not a value of its column's type.
    """
    values = [
        to_canonical_values(column.type, column_values)
        for column, column_values in zip(schema.partition_key, columns, strict=True)
    ]
    for number, pairs in enumerate([] if exact is None else exact.to_pylist()):
        exact_values = dict(pairs or ())
        for column, column_values in zip(schema.partition_key, values, strict=True):
            if column.name in exact_values:
                column_values[number] = decode_exact_value(column.type, exact_values[column.name])
    return pa.array([schema.partition_bytes(key) for key in zip(*values, strict=True)], pa.binary())


def _encode_key_component(column: Column, values: pa.Array) -> pa.Array:
    name = column.type.cql
    if name in ("text", "ascii"):
        return values.cast(pa.binary())
    if name == "blob":
        return values
    if name in ("uuid", "timeuuid"):
        return pa.array([UUID(text).bytes for text in values.to_pylist()], pa.binary())
    if name == "boolean":
        return fixed_width_to_arrow(values.cast(pa.uint8()).to_numpy(zero_copy_only=False))
    if name == "date":
        return fixed_width_to_arrow((values.cast(pa.int32()).to_numpy() + np.int64(_KEY_DATE_ZERO)).astype(">u4"))
    if name == "timestamp":
        return fixed_width_to_arrow((ms_from_us(values.cast(pa.int64()).to_numpy())).astype(">i8"))
    if name in _KEY_DTYPES:
        return fixed_width_to_arrow(values.to_numpy(zero_copy_only=False).astype(_KEY_DTYPES[name]))
    raise InputError(
        f"typed writes cannot have partition key column {column.name} of type {name}; write its table by CQL statements"
    )
