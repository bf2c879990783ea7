"""Arrow columns and the bytes of CQL's protocol, a column at a time: there, back, and in which order the bytes stand.

Types whose bytes lie in memory as in the protocol, or nearly, are moved as a whole; the others value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.clock import MILLISECOND_US, ms_of
from cdc_platform.cql.timeuuid import ticks_of
from cdc_platform.cql.types import CqlType, Scalar
from cdc_platform.cql.wire import read_value
from cdc_platform.lake.arrow import compute, cut_binaries, fixed_width, layout, uuid_texts
from cdc_platform.lake.tables import TIMESTAMP
from cdc_platform.log.exact import nearest_of
from cdc_platform.log.log_table import arrow_type
from cdc_platform.log.log_values import arrow_value, canonical_values

_NUMBERS = {
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
_TEXTS = ("text", "ascii")
_UUIDS = ("uuid", "timeuuid")
_OF_ONE_FORM = frozenset(
    ("tinyint", "smallint", "int", "bigint", "time", "timestamp", "date", "blob", *_TEXTS, *_UUIDS)
)
_DATE_ZERO = 2**31
_HYPHENS = (8, 13, 18, 23)
_DIGITS = [place for place in range(36) if place not in _HYPHENS]
_HALVES = np.full(256, 0xFF, dtype=np.uint8)
_HALVES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16)
_HALVES[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = np.arange(10, 16)
_SIGNS = np.uint64(0x8080808080808080)
_LENGTH = 4


def to_wire(kind: CqlType, values: Any) -> pa.Array:
    """A column of `arrow_type(kind)`, none null, as bytes of the protocol (binary).

    Raises:
        InputError: a text is none of a value of the type.
    """
    name = kind.name if isinstance(kind, Scalar) else ""
    if name in _NUMBERS:
        return fixed_width(_numbers(name, values).astype(_NUMBERS[name]))
    if name in _TEXTS:
        return values.cast(pa.binary())
    if name == "blob":
        return values
    if name in _UUIDS:
        return fixed_width(uuid_bytes(values).view("V16").reshape(-1))
    return pa.array([kind.to_bytes(value) for value in canonical_values(kind, values)], pa.binary())


def from_wire(kind: CqlType, data: Any) -> pa.Array:
    """The column of `arrow_type(kind)` that bytes of the protocol (binary) hold, null where they are null.

    Dates and timestamps that not every reader has are the nearest of those that it has. Bytes of another width than
    all values of a type have, as no bytes at all, are null.
    """
    name = kind.name if isinstance(kind, Scalar) else ""
    if name in _TEXTS:
        return data.cast(pa.string())
    if name == "blob":
        return data
    if name in _NUMBERS or name in _UUIDS:
        raw, null = _fixed(data, np.dtype(_NUMBERS.get(name, "V16")).itemsize)
        if name in _UUIDS:
            return _masked(uuid_texts(raw.reshape(-1, 16)), null)
        return _native(name, raw.view(_NUMBERS[name]), null)
    found = [None if each is None else arrow_value(kind, read_value(kind, each)) for each in data.to_pylist()]
    return pa.array(found, arrow_type(kind))


def has_one_form(kind: CqlType) -> bool:
    """Whether each value of a type has one form as bytes: those that `to_wire` makes of what `from_wire` made of them.

    Bytes that `from_wire` has no value for, or but the nearest of a date or timestamp, are apart.
    """
    name = kind.name if isinstance(kind, Scalar) else ""
    return name in _OF_ONE_FORM


def integers_from_wire(kind: CqlType, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """The integers (int64) of dates, as days, or timestamps, as ms, whatever they are; and which are null (bool)."""
    assert isinstance(kind, Scalar)
    dtype = np.dtype(_NUMBERS[kind.name])
    raw, null = _fixed(data, dtype.itemsize)
    values = raw.view(dtype).astype(np.int64)
    return values - _DATE_ZERO if kind.name == "date" else values, np.zeros(len(data), bool) if null is None else null


def ranks(kind: CqlType, data: Any) -> np.ndarray:
    """Integers (int64) that stand in the order of the values whose bytes (binary, none null) are given.

    Values that are one in that order have one rank.
    """
    name = kind.name if isinstance(kind, Scalar) else ""
    if name in _NUMBERS:
        raw, bounds = layout(data)
        found = raw[bounds[0] : bounds[-1]].view(_NUMBERS[name])
        if name in ("float", "double"):
            return _ranks_of_floats(found)
        return found.astype(np.int64)
    if name == "timeuuid":
        return _ranks_of_timeuuids(data)
    encoded = data.dictionary_encode()
    places = np.asarray(encoded.indices, dtype=np.int64)
    if name in (*_TEXTS, "blob", "inet"):
        order = np.asarray(compute.sort_indices(encoded.dictionary), dtype=np.int64)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rank[places]
    keys = [kind.sort_key(read_value(kind, each)) for each in encoded.dictionary.to_pylist()]
    rank = np.zeros(len(keys), dtype=np.int64)
    last, number = None, -1
    for place in sorted(range(len(keys)), key=keys.__getitem__):
        number += number < 0 or keys[place] != last
        rank[place], last = number, keys[place]
    return rank[places]


def uuid_bytes(texts: Any) -> np.ndarray:
    """UUIDs in text, none null, as uint8[n, 16]; raises ValueError for a text that is none."""
    raw, bounds = layout(texts.cast(pa.binary()))
    if len(texts) and bounds[-1] - bounds[0] == 36 * len(texts) and np.all(np.diff(bounds) == 36):
        written = raw[bounds[0] : bounds[-1]].reshape(-1, 36)
        digits = _HALVES[written[:, _DIGITS]]
        if digits.max() < 16 and np.all(written[:, _HYPHENS] == ord("-")):
            return np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    found = b"".join(UUID(text).bytes for text in texts.to_pylist())
    return np.frombuffer(found, dtype=np.uint8).reshape(-1, 16)


def halves(uuids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of timeuuids (uint8[n, 16]): their times (int64, 100 ns since 1582), and what orders those of one (uint64)."""
    words = np.ascontiguousarray(uuids).view(">u8").reshape(-1, 2).astype(np.uint64)
    return ticks_of(words[:, 0]).astype(np.int64), words[:, 1] ^ _SIGNS


def composed(components: Sequence[Any], rows: int) -> pa.Array:
    """Columns of bytes (binary) as one: each value behind its length (uint32, big-endian); without columns empty."""
    parts = []
    for component in components:
        _, bounds = layout(component)
        parts += [fixed_width(np.diff(bounds).astype(">u4")), component]
    if not parts:
        return pa.array([b""] * rows, pa.binary())
    return compute.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def components(data: Any, count: int, header: int = _LENGTH, trailer: int = 0) -> list[pa.Array]:
    """The columns of which `composed` has made one, all whole; or that `composite_column` has, with 2 and 1."""
    raw, bounds = layout(data)
    at = np.asarray(bounds[:-1], dtype=np.int64)
    found = []
    for _ in range(count):
        lengths = _windows(raw, at, header).view(f">u{header}")[:, 0].astype(np.int64)
        at = at + header
        found.append(_cut(raw, at, lengths))
        at = at + lengths + trailer
    return found


def _windows(raw: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """So many bytes from each place on (uint8[n, width])."""
    if not len(starts):
        return np.empty((0, width), dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(raw, width)[starts]


def _cut(raw: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
    if len(lengths) and lengths[0] and (lengths == lengths[0]).all():
        return fixed_width(_windows(raw, starts, int(lengths[0])).view(f"V{lengths[0]}")[:, 0])
    ends = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    taken = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
    return cut_binaries(raw[taken], ends)


def _numbers(name: str, values: Any) -> np.ndarray:
    if name == "boolean":
        return values.cast(pa.uint8()).to_numpy(zero_copy_only=False)
    if name == "date":
        return values.cast(pa.int32()).to_numpy(zero_copy_only=False) + np.int64(_DATE_ZERO)
    if name == "timestamp":
        return ms_of(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
    found = values.to_numpy(zero_copy_only=False)
    if name in ("float", "double"):
        # There is one NaN.
        return np.where(np.isnan(found), found.dtype.type(np.nan), found)
    return found


def _fixed(data: Any, width: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The bytes (uint8[]) of values of one width, 0 for null; and which are null (bool), None where none is."""
    null = np.asarray(compute.is_null(data)) if data.null_count else None
    other = np.diff(layout(data)[1]) != width
    if null is not None or other.any():
        null = other if null is None else null | other
        data = compute.if_else(pa.array(null), pa.scalar(bytes(width), data.type), data)
    raw, bounds = layout(data)
    return raw[bounds[0] : bounds[-1]], null


def _native(name: str, found: np.ndarray, null: np.ndarray | None) -> pa.Array:
    if name == "boolean":
        return pa.array(found != 0, mask=null)
    if name == "date":
        days = nearest_of(name, found.astype(np.int64) - _DATE_ZERO)
        return pa.array(days.astype(np.int32), mask=null).cast(pa.date32())
    if name == "timestamp":
        ms = nearest_of(name, found.astype(np.int64))
        return pa.array(ms * MILLISECOND_US, mask=null).cast(TIMESTAMP)
    return pa.array(found.astype(found.dtype.newbyteorder("=")), mask=null)


def _masked(values: pa.Array, null: np.ndarray | None) -> pa.Array:
    return values if null is None else compute.if_else(pa.array(null), pa.scalar(None, values.type), values)


def _ranks_of_floats(found: np.ndarray) -> np.ndarray:
    """-0.0 in front of 0.0, NaN behind all."""
    bits = found.astype(">f8").view(">i8").astype(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def _ranks_of_timeuuids(data: Any) -> np.ndarray:
    raw, bounds = layout(data)
    times, low = halves(raw[bounds[0] : bounds[-1]].reshape(-1, 16))
    order = np.lexsort((low, times))
    changed = np.zeros(len(order), dtype=np.int64)
    changed[1:] = (np.diff(times[order]) != 0) | (np.diff(low[order]) != 0)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.cumsum(changed)
    return rank
