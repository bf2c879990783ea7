"""What the values of a column are as bytes, whatever form Arrow has them in: equal values are equal bytes.

The encoding of a value is made of parts:

* whole numbers, booleans, dates, times and timestamps (in µs): 8 bytes, little-endian; floats and decimals as Arrow
  has them;
* text and binaries: their length in 4 bytes, then their bytes;
* lists and maps: their length in 4 bytes, then, of all elements, each part of their encoding on its own;
* structs: a byte 1, then each field.

Inside lists and structs a null has the length -1, or a byte 0 before zeros, where other values have a byte 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.lake.arrow import compute

Piece = np.ndarray | tuple[np.ndarray, np.ndarray]
"""A part of the encoding of n values: uint8[n, width], or all their bytes and where each begins (int64[n + 1])."""

_BYTES = frozenset(
    kind.id
    for kind in (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(1),
    )
)
"""The types whose values are bytes, as Arrow numbers them."""
_OFFSETS = {
    pa.string().id: np.dtype(np.int32),
    pa.binary().id: np.dtype(np.int32),
    pa.large_string().id: np.dtype(np.int64),
    pa.large_binary().id: np.dtype(np.int64),
}
"""Of those, the ones that are all bytes and where each value's begin, with what these places are."""
_WITHOUT_VIEWS: dict[pa.DataType, pa.DataType] = {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece, without the views that deltalake's files may have: few of Arrow's functions take them."""
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks or [pa.nulls(0, column.type)]
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    kind = _plain(column.type)
    return column if kind == column.type else column.cast(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if isinstance(kind, pa.MapType):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return _WITHOUT_VIEWS.get(kind, kind)


def pieces_of(values: pa.Array, *, nested: bool = False) -> list[Piece]:
    """The encoding of values, part by part; where they are `nested`, some may be null, elsewhere none."""
    kind = values.type
    if isinstance(kind, pa.DictionaryType):
        return pieces_of(values.dictionary_decode(), nested=nested)
    if kind.id in _BYTES:
        return _of_bytes(values)
    if pat.is_map(kind):
        entries = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _of_lists(values.cast(pa.list_(entries)))
    if _is_list(kind):
        return _of_lists(values)
    if pat.is_struct(kind):
        fields = (pieces_of(field, nested=True) for field in values.flatten())
        return [_given(values), *(piece for field in fields for piece in field)]
    if pat.is_null(kind):
        return [_given(values)]
    return [_given(values), _numbers(values)] if nested else [_numbers(values)]


def _given(values: pa.Array) -> np.ndarray:
    """A byte of each value: 0 of a null, else 1."""
    return np.asarray(compute.is_valid(values)).astype(np.uint8)[:, None]


def _is_list(kind: pa.DataType) -> bool:
    return pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)


def _of_bytes(values: pa.Array) -> list[Piece]:
    if len(values) and not values.null_count and values.type.id in _OFFSETS:
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, dtype=_OFFSETS[values.type.id])[values.offset : values.offset + len(values) + 1]
        bounds = ends.astype(np.int64)
        return [_bytes_of(np.diff(bounds).astype("<i4")), (_all_of(data), bounds)]
    array = values.cast(pa.large_binary()) if values.type != pa.large_string() else values
    lengths = compute.binary_length(array)
    if array.null_count:
        lengths, array = compute.fill_null(lengths, -1), compute.fill_null(array, b"")
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    return [_bytes_of(np.asarray(lengths, dtype="<i4")), (_all_of(data), bounds)]


def _all_of(data: pa.Buffer | None) -> np.ndarray:
    return np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)


def _of_lists(values: pa.Array) -> list[Piece]:
    lengths = compute.list_value_length(values)
    counts = np.asarray(compute.fill_null(lengths, -1), dtype="<i4")
    bounds = np.concatenate([[0], np.cumsum(np.maximum(counts, 0), dtype=np.int64)])
    elements = pieces_of(compute.list_flatten(values), nested=True)
    return [_bytes_of(counts), *(at(piece, bounds) for piece in elements)]


def _numbers(values: pa.Array) -> np.ndarray:
    """Values of one width, as uint8[n, width]; nulls as zeros."""
    kind = values.type
    if pat.is_decimal(kind):
        width = kind.byte_width
        filled = compute.fill_null(values, pa.scalar(0).cast(kind)) if values.null_count else values
        raw = np.frombuffer(filled.buffers()[1], dtype=np.uint8)
        return raw[filled.offset * width : (filled.offset + len(filled)) * width].reshape(-1, width)
    if pat.is_timestamp(kind):
        values = (values if kind.unit == "us" else values.cast(pa.timestamp("us", kind.tz))).view(pa.int64())
    elif pat.is_time32(kind) or pat.is_date32(kind):
        values = values.cast(pa.int32())
    elif pat.is_time64(kind) or pat.is_date64(kind) or pat.is_duration(kind):
        values = values.cast(pa.int64())
    if not pat.is_floating(kind) and values.type != pa.int64():
        values = values.cast(pa.int64())
    filled = compute.fill_null(values, 0) if values.null_count else values
    return _bytes_of(np.asarray(filled))


def _bytes_of(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)


def at(piece: Piece, bounds: np.ndarray) -> Piece:
    """A piece of n values as one of the runs of values that begin at these bounds (int64[m + 1])."""
    data, inner = ragged(piece)
    return data, inner[bounds]


def ragged(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """All bytes of a piece, and where each value's begin (int64[n + 1])."""
    if isinstance(piece, tuple):
        return piece
    rows, width = piece.shape
    return np.ascontiguousarray(piece).ravel(), width * np.arange(rows + 1, dtype=np.int64)


def side_by_side(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same pieces, those of one width that are neighbours as one: every piece that is joined costs."""
    for fixed, some in groupby(pieces, key=lambda piece: isinstance(piece, np.ndarray)):
        several = list(some)
        if fixed and len(several) > 1:
            yield np.hstack(several)
        else:
            yield from several


def joined(pieces: Iterable[Piece], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of each row, one behind the other: all bytes, and where each row begins and ends."""
    columns = [large_binaries(*ragged(piece)) for piece in side_by_side(pieces)]
    if not columns:
        return np.empty(0, dtype=np.uint8), np.zeros(count + 1, dtype=np.int64)
    joined = compute.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))
    _, offsets, data = joined.buffers()
    return np.frombuffer(data, dtype=np.uint8), np.frombuffer(offsets, dtype=np.int64)[: count + 1]


def large_binaries(data: np.ndarray, bounds: np.ndarray) -> pa.Array:
    """Bytes, cut where each value's begin and the last one's end, as a column."""
    buffers: list[Any] = [None, np.ascontiguousarray(bounds), np.ascontiguousarray(data)]
    return pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [each if each is None else pa.py_buffer(each) for each in buffers]
    )
